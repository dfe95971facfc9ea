"""Converts what a remote MCP server lists into skills of the index: entries of `skills/list` (SEP-2640) and `SKILL.md` resources.

The catalog's `RemoteSkills` and `objects.mcp_source` use it. It sends nothing itself; `policy.skill_policy` decides which entries are
valid.
"""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Awaitable, Callable, Sequence
from typing import cast
from urllib.parse import unquote

from gateway.errors import SkillError
from gateway.json_types import JsonMapping, JsonObject, JsonValue, members_of, objects_in
from gateway.policy.skill_policy import is_skill_name, judge_entry
from gateway.skills.index import SCHEME
from gateway.skills.mime import MARKDOWN, SCRIPT_SUFFIXES, mime_type_of, suffix_of
from gateway.skills.model import MANIFEST, Skill, SkillDocument, SkillFile
from gateway.skills.parser import parse_skill

INDEX_URI = "skill://index.json"
"""URI of the resource that lists a server's skills in the draft of SEP-2640."""

MAX_SKILLS = 10_000
"""Maximum number of skills of one server; further skills are ignored."""

MAX_PAGES = 1_000
"""Maximum number of pages that are read from one server's list of skills."""

MAX_INDEX_LENGTH = 8_000_000
"""Maximum length of a `skill://index.json`. A longer one is not used; this is enough for tens of thousands of skills."""

FetchPage = Callable[[str | None], Awaitable[tuple[Sequence[JsonMapping], str | None]]]
"""Fetches the page of `skills/list` at a cursor (`None` for the first) and returns its entries and the next cursor."""


async def list_skills(fetch_page: FetchPage, backend: str, origin: str) -> list[Skill]:
    """Return the skills of all pages of a server's `skills/list`, in order, without entries that SEP-2640 does not allow.

    Of several entries with the same URI, the first is used. Errors of `fetch_page` are not caught.
    """
    found: dict[str, Skill] = {}
    cursor: str | None = None
    for _ in range(MAX_PAGES):
        entries, cursor = await fetch_page(cursor)
        for entry in entries:
            skill = to_skill(entry, backend, origin)
            if skill is not None and len(found) < MAX_SKILLS:
                found.setdefault(skill.id, skill)
        if cursor is None:
            break
    return list(found.values())


def to_skill(entry: JsonMapping, backend: str, origin: str) -> Skill | None:
    """Convert a `skills/list` entry with exposed URIs to a skill without its body; `None` for an entry that SEP-2640 does not allow."""
    if not judge_entry(entry):
        return None
    uri, fields = str(entry["uri"]), cast("JsonObject", entry["frontmatter"])
    root = uri.removesuffix(f"/{MANIFEST}")
    if entry["resources"] == "dynamic":
        files = {MANIFEST: _file(MANIFEST, uri)}
    else:
        listed = cast("list[JsonMapping]", entry["resources"])
        found = [_file(unquote(str(f["uri"])[len(root) + 1 :]), str(f["uri"]), int(f["size"]), str(f["digest"])) for f in listed]
        files = {file.path: file for file in found}
    document = SkillDocument(fields, str(fields["name"]), str(fields["description"]), "", 0, conformant=True)
    skill_id = root.removeprefix(SCHEME)
    return Skill(skill_id, (backend, skill_id), origin, root, document, files, entry=dict(entry), is_remote=True)


def listed_skill(uri: str, description: str, backend: str, origin: str) -> Skill | None:
    """Return a skill for a `SKILL.md` resource of a server without the skills extension; `None` if the URI does not end in `/SKILL.md`.

    The other files of the skill and the digest of its `SKILL.md` stay unknown.
    """
    root = uri.removesuffix(f"/{MANIFEST}")
    name = root.rpartition("/")[2]
    if not uri.startswith(SCHEME) or root == uri or not is_skill_name(name):
        return None
    skill_id = root.removeprefix(SCHEME)
    document = SkillDocument({"name": name, "description": description}, name, description or name, "", 0, conformant=False)
    entry: JsonObject = {"resources": "dynamic"}
    files = {MANIFEST: _file(MANIFEST, uri)}
    return Skill(skill_id, (backend, skill_id), origin, root, document, files, entry=entry, is_remote=True)


def entry_of(uri: str, data: bytes) -> JsonObject | None:
    """Make a `skills/list` entry from the bytes of a `SKILL.md`; `None` if the file breaks the rules for listed skills.

    Raises:
        SkillError: The bytes are not a usable `SKILL.md` (code `entry-differs`).
    """
    document = parse_skill(data, directory=uri.rpartition("/")[0].rpartition("/")[2])
    wrong = next((d.message for d in document.diagnostics if d.level == "error"), None)
    if wrong is not None:
        raise SkillError(f"{uri!r} cannot be used: {wrong}", code="entry-differs")
    if not document.conformant or not is_skill_name(document.name):
        return None
    return {"uri": uri, "frontmatter": dict(document.frontmatter), "resources": "dynamic"}


def index_entries(text: str | bytes) -> list[JsonMapping]:
    """Return the entries of a `skill://index.json`, the listing of the draft of SEP-2640.

    Raises:
        ValueError: The text is longer than `MAX_INDEX_LENGTH`, is not JSON, or has no list `skills`.
    """
    if len(text) > MAX_INDEX_LENGTH:
        raise ValueError(f"it is longer than {MAX_INDEX_LENGTH}")
    try:
        value: JsonValue = json.loads(text)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    listed = members_of(value).get("skills")
    if not isinstance(listed, list):
        raise ValueError("it has no list `skills`")
    return list[JsonMapping](objects_in(listed))


def bytes_of(contents: JsonValue) -> bytes | None:
    """Return the bytes of the first text or blob in the `contents` of a `resources/read` result; `None` if there is no valid one."""
    for wire in objects_in(contents):
        if isinstance(text := wire.get("text"), str):
            return text.encode("utf-8", errors="surrogatepass")
        if isinstance(blob := wire.get("blob"), str):
            return decode_blob(blob)
    return None


def decode_blob(blob: str) -> bytes | None:
    """Return the bytes of a base64 text; `None` if it is not valid base64."""
    try:
        return base64.b64decode(blob, validate=True)
    except (binascii.Error, ValueError):
        return None


def _file(path: str, uri: str, size: int = 0, digest: str = "") -> SkillFile:
    mime_type = MARKDOWN if path == MANIFEST else mime_type_of(path, is_text=True)
    return SkillFile(path, (uri,), (size, 0, 0, 0), digest, mime_type, is_script=suffix_of(path) in SCRIPT_SUFFIXES)

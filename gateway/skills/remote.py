"""Converts a remote MCP server's entries of `skills/list` (SEP-2640) and `SKILL.md` resources to skills for the skill index.

The catalog's `RemoteSkills`, `library` and `objects.mcp_source` use this module. It sends no requests itself; its callers pass functions
that send them. `policy.skill_policy` decides which entries are valid.
"""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Awaitable, Callable, Sequence
from typing import cast
from urllib.parse import unquote

from gateway.errors import NotFound, SkillError
from gateway.json_types import JsonMapping, JsonObject, JsonValue, members_of, objects_in
from gateway.policy.skill_policy import is_safe_name, is_skill_name, judge_entry
from gateway.skills.index import SCHEME, file_uri
from gateway.skills.mime import MARKDOWN, SCRIPT_SUFFIXES, mime_type_of, suffix_of
from gateway.skills.model import MANIFEST, MAX_SKILL_BYTES, Skill, SkillDocument, SkillFile
from gateway.skills.parser import parse_skill

INDEX_URI = "skill://index.json"
"""URI of the resource in which a server lists its skills according to the draft of SEP-2640. Microsoft's agent framework reads only this
list."""

MAX_SKILLS = 10_000
"""Maximum number of skills of one remote server that are listed and served; the server's further skills are ignored."""

MAX_PAGES = 1_000
"""Maximum number of pages that are read of one server's `skills/list`."""

MAX_INDEX_LENGTH = 8_000_000
"""Maximum length of a server's `skill://index.json`, in characters of a text or bytes of a blob. A longer list is not used; the limit is
enough for tens of thousands of skills."""

MAX_ATTEMPTS = 3
"""How often a file is read while its bytes do not have the listed digest, before the read fails."""

Fetch = Callable[[Skill, str], Awaitable[tuple[SkillFile, bytes]]]
"""Type of a function that fetches the file at a path of a skill. Returns the file's description (path, size, digest) and its bytes."""

FetchPage = Callable[[str | None], Awaitable[tuple[Sequence[JsonMapping], str | None]]]
"""Type of a function that fetches one page of `skills/list`. The argument is the page's cursor, `None` for the first page. Returns the
entries and the next cursor."""


async def list_skills(fetch_page: FetchPage, backend: str, origin: str) -> list[Skill]:
    """Return the skills of all pages of a server's `skills/list`, in order. Entries that SEP-2640 does not allow are left out.

    At most `MAX_PAGES` pages are fetched, and at most `MAX_SKILLS` skills returned. Of several entries with the same URI, the first is
    used. Each skill stores `backend`, the id of the backend that provides it, and `origin`, the name of the server. Errors of `fetch_page`
    are not caught.
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
    """Convert an entry of `skills/list` to a skill without the text of its `SKILL.md`; `None` if SEP-2640 does not allow the entry.

    The URIs in the entry are those that the gateway exposes or, for a program's own MCP client, those of the server. `backend` is the id of
    the backend that provides the skill, and becomes part of the skill's key; `origin` is the name of the server.
    """
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
    """Return a skill for a `SKILL.md` in the resource list of a server without the skills extension; `None` for any other URI.

    The URI must be `skill://…/<name>/SKILL.md` with a legal name. The skill's other files and the digest of its `SKILL.md` stay unknown.
    """
    root = uri.removesuffix(f"/{MANIFEST}")
    name = root.rpartition("/")[2]
    if not uri.startswith(SCHEME) or root == uri or not is_skill_name(name):
        return None
    return unlisted_skill(uri, name, description, backend, origin)


def unlisted_skill(uri: str, name: str, description: str, backend: str, origin: str) -> Skill:
    """Return a skill without an entry of `skills/list`: only its name, its description and the URI of its `SKILL.md` are known.

    Its other files are unknown, so the skill counts as `dynamic`: any safe path can be read from the server.
    """
    root = uri.removesuffix(f"/{MANIFEST}").rstrip("/")
    skill_id = root.removeprefix(SCHEME)
    document = SkillDocument({"name": name, "description": description}, name, description or name, "", 0, conformant=False)
    entry: JsonObject = {"resources": "dynamic"}
    files = {MANIFEST: _file(MANIFEST, uri)}
    return Skill(skill_id, (backend, skill_id), origin, root, document, files, entry=entry, is_remote=True)


def file_of(skill: Skill, path: str) -> SkillFile:
    """Return the description (`SkillFile`: path, URI, size, digest) of a file of a remote server's skill.

    If the server does not list the skill's files (`dynamic`), a description without digest is made for any safe path.

    Raises:
        NotFound: The skill has no such file, or the path is not safe.
    """
    file = skill.files.get(path)
    if file is not None:
        return file
    if not skill.is_dynamic or not is_safe_name(path):
        raise NotFound("resource", path)
    return _file(path, file_uri(skill.root_uri, path))


async def read_listed(skill: Skill, path: str, fetch: Fetch, renew: Callable[[Skill], Awaitable[Skill]]) -> tuple[Skill, SkillFile, bytes]:
    """Fetch a file of a skill until its bytes have the listed digest. Return the current skill, the file's description, and the bytes.

    After each fetch of bytes with another digest, `renew` fetches the skill's entry again. A file without a listed digest is fetched once.
    Errors of `fetch` and `renew` are not caught.

    Raises:
        SkillError: After `MAX_ATTEMPTS` fetches the bytes still differ from the listed digest (code `digest-differs`), or the file is
            larger than `MAX_SKILL_BYTES` (code `too-large`).
    """
    for _ in range(MAX_ATTEMPTS):
        file, data = await fetch(skill, path)
        if len(data) > MAX_SKILL_BYTES:
            raise SkillError(f"{path!r} of skill {skill.id!r} has {len(data)} bytes; {MAX_SKILL_BYTES} are allowed.", code="too-large")
        now = file.with_content(data)
        if file.is_dynamic or (now.digest, now.size) == (file.digest, file.size):
            return skill, now, data
        skill = await renew(skill)
    text = f"{skill.origin!r} sends other bytes for {path!r} of skill {skill.id!r} than it lists; the file is not used."
    raise SkillError(text, code="digest-differs")


def entry_of(uri: str, data: bytes) -> JsonObject | None:
    """Create an entry of `skills/list` from a `SKILL.md`. `uri` is the URI of the file, and `data` its content.

    Return `None` if the skill can be used but must not be listed: its name or frontmatter breaks the rules of SEP-2640 for listed skills.

    Raises:
        SkillError: The skill cannot be used, because the file has an error (code `entry-differs`).
    """
    document = parse_skill(data, directory=uri.rpartition("/")[0].rpartition("/")[2])
    wrong = next((d.message for d in document.diagnostics if d.level == "error"), None)
    if wrong is not None:
        raise SkillError(f"{uri!r} cannot be used: {wrong}", code="entry-differs")
    if not document.conformant or not is_skill_name(document.name):
        return None
    return {"uri": uri, "frontmatter": dict(document.frontmatter), "resources": "dynamic"}


def index_entries(text: str | bytes) -> list[JsonMapping]:
    """Return the skills that a server's `skill://index.json` lists, in the format of the draft of SEP-2640.

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
    """Return the bytes of the first text or blob in `contents` of a `resources/read` result; `None` without a text or valid blob."""
    for wire in objects_in(contents):
        if isinstance(text := wire.get("text"), str):
            return text.encode("utf-8", errors="surrogatepass")
        if isinstance(blob := wire.get("blob"), str):
            return decode_blob(blob)
    return None


def decode_blob(blob: str) -> bytes | None:
    """Decode base64 text and return its bytes; `None` if it is not valid base64."""
    try:
        return base64.b64decode(blob, validate=True)
    except (binascii.Error, ValueError):
        return None


def _file(path: str, uri: str, size: int = 0, digest: str = "") -> SkillFile:
    mime_type = MARKDOWN if path == MANIFEST else mime_type_of(path, is_text=True)
    return SkillFile(path, (uri,), (size, 0, 0, 0), digest, mime_type, is_script=suffix_of(path) in SCRIPT_SUFFIXES)

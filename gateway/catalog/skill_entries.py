"""Entries of the skills extension (SEP-2640) as the index holds skills. Pure; which entries count is `policy.skills`'s."""

from __future__ import annotations

import base64
import binascii
from typing import cast
from urllib.parse import unquote

from gateway.errors import SkillError
from gateway.json_types import JsonMapping, JsonObject, JsonValue
from gateway.policy.skills import is_skill_name, judge_entry
from gateway.skills.index import SCHEME
from gateway.skills.mime import MARKDOWN, SCRIPT_SUFFIXES, mime_type_of, suffix_of
from gateway.skills.models import MANIFEST, Skill, SkillDocument, SkillFile
from gateway.skills.parser import parse_skill


def to_skill(entry: JsonMapping, home: str, origin: str) -> Skill | None:
    """The skill of an entry whose URIs are exposed, without its body; `None` for an entry that cannot be used."""
    if not judge_entry(entry):
        return None
    uri, fields = str(entry["uri"]), cast("JsonObject", entry["frontmatter"])
    root = uri.removesuffix(f"/{MANIFEST}")
    if entry["resources"] == "dynamic":
        files = {MANIFEST: _file(MANIFEST, uri, 0, "")}
    else:
        listed = cast("list[JsonMapping]", entry["resources"])
        found = [_file(unquote(str(f["uri"])[len(root) + 1 :]), str(f["uri"]), int(f["size"]), str(f["digest"])) for f in listed]
        files = {file.path: file for file in found}
    document = SkillDocument(fields, str(fields["name"]), str(fields["description"]), "", 0, conformant=True)
    skill_id = root.removeprefix(SCHEME)
    return Skill(skill_id, (home, skill_id), origin, root, document, files, entry=dict(entry), is_remote=True)


def listed_skill(uri: str, description: str, home: str, origin: str) -> Skill | None:
    """A skill that a server without the extension shows as a resource; only its `SKILL.md` is known, and not its digest."""
    root = uri.removesuffix(f"/{MANIFEST}")
    name = root.rpartition("/")[2]
    if not uri.startswith(SCHEME) or root == uri or not is_skill_name(name):
        return None
    skill_id = root.removeprefix(SCHEME)
    document = SkillDocument({"name": name, "description": description}, name, description or name, "", 0, conformant=False)
    entry: JsonObject = {"resources": "dynamic"}
    return Skill(skill_id, (home, skill_id), origin, root, document, {MANIFEST: _file(MANIFEST, uri, 0, "")}, entry=entry, is_remote=True)


def entry_of(uri: str, data: bytes) -> JsonObject | None:
    """The entry of a `SKILL.md` that no server lists; `None` where it cannot be listed as it is. Its other files are not known.

    Raises:
        SkillError: It is no skill at all (code `entry-differs`).
    """
    document = parse_skill(data, directory=uri.rpartition("/")[0].rpartition("/")[2])
    wrong = next((d.message for d in document.diagnostics if d.level == "error"), None)
    if wrong is not None:
        raise SkillError(f"{uri!r} cannot be used: {wrong}", code="entry-differs")
    if not document.conformant or not is_skill_name(document.name):
        return None
    return {"uri": uri, "frontmatter": dict(document.frontmatter), "resources": "dynamic"}


def bytes_of(contents: JsonValue) -> tuple[bytes, bool] | None:
    """The first usable content of a `resources/read`, and whether it came as text."""
    for item in cast("list[JsonValue]", contents) if isinstance(contents, list) else []:
        wire: JsonMapping = cast("JsonObject", item) if isinstance(item, dict) else cast("JsonObject", {})
        if isinstance(text := wire.get("text"), str):
            return text.encode("utf-8", errors="surrogatepass"), True
        if isinstance(blob := wire.get("blob"), str):
            try:
                return base64.b64decode(blob, validate=True), False
            except (binascii.Error, ValueError):
                return None
    return None


def _file(path: str, uri: str, size: int, digest: str) -> SkillFile:
    """A file with its URI as only segment."""
    return SkillFile(
        path=path,
        segments=(uri,),
        stamp=(size, 0, 0, 0),
        digest=digest,
        mime_type=MARKDOWN if path == MANIFEST else mime_type_of(path, is_text=True),
        is_text=True,
        is_script=suffix_of(path) in SCRIPT_SUFFIXES,
        is_settled=True,
    )

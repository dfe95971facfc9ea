"""Entries of the skills extension (SEP-2640) as the index holds skills. Pure; which entries count is `policy.skills`'s."""

from __future__ import annotations

from typing import cast
from urllib.parse import unquote

from gateway.json_types import JsonMapping, JsonObject
from gateway.policy.skills import is_skill_name, judge_entry
from gateway.skills.index import SCHEME
from gateway.skills.mime import MARKDOWN, SCRIPT_SUFFIXES, mime_type_of, suffix_of
from gateway.skills.models import MANIFEST, Skill, SkillDocument, SkillFile


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

"""The payloads of `io.modelcontextprotocol/skills` (SEP-2640): `skills/list`, `skills/get`, `resources/directory/read`.

Results in wire form but for `resultType`, which `server` adds where it binds the methods. Everything comes from the
library's index, so digests here and bytes in `resources/read` agree. No tools, no prompts, no rendering.
"""

from __future__ import annotations

import base64
import binascii
from bisect import bisect_right

from gateway.errors import NotFound
from gateway.json_types import JsonObject
from gateway.skills.index import SkillIndex, file_uri
from gateway.skills.library import SkillLibrary
from gateway.skills.mime import MARKDOWN
from gateway.skills.models import MANIFEST, Skill, SkillFile
from gateway.tools.context import CallContext

PAGE_SIZE = 100
"""Entries per page: about 82 KB of real skills."""

TTL_MS = 60_000
"""How long a client may keep a result. Changes are announced; a stale digest is noticed by its reader anyway."""

FOLDER = "inode/directory"


class SkillsExtension:
    """The three methods over one library."""

    def __init__(self, library: SkillLibrary) -> None:
        self._library = library

    async def list_page(self, cursor: str | None = None, limit: int = PAGE_SIZE) -> JsonObject:
        """`skills/list`: entries sorted by URI, from after the one the cursor names.

        Raises:
            NotFound: The cursor is not one of ours (kind `cursor`).
        """
        return list_page(await self._library.current(), cursor, limit)

    async def get(self, uri: str, ctx: CallContext) -> JsonObject:
        """`skills/get`: the entry of a skill by the URI of its `SKILL.md`, as its folder is now.

        Raises:
            NotFound: No skill has this URI (kind `skill`).
        """
        await self._library.current()
        owner = _skill_at(self._library.index, uri)
        await self._library.recheck(owner, ctx)
        return get(self._library.index, uri)

    async def directory(self, uri: str, cursor: str | None = None, limit: int = PAGE_SIZE) -> JsonObject:
        """`resources/directory/read`: the direct children of a folder of a skill.

        Raises:
            NotFound: No folder has this URI (kind `directory`), or a foreign cursor (kind `cursor`).
        """
        return directory(await self._library.current(), uri, cursor, limit)


def list_page(index: SkillIndex, cursor: str | None, limit: int) -> JsonObject:
    """One page of entries."""
    uris = [skill.root_uri for skill in index.listed]
    start = bisect_right(uris, _decode(cursor)) if cursor else 0
    page = index.listed[start : start + limit]
    result: JsonObject = {"skills": [dict(skill.entry) for skill in page], "ttlMs": TTL_MS, "cacheScope": "private"}
    if start + limit < len(uris):
        result["nextCursor"] = _encode(page[-1].root_uri)
    return result


def get(index: SkillIndex, uri: str) -> JsonObject:
    """One entry."""
    return {"skill": dict(_skill_at(index, uri).entry), "ttlMs": TTL_MS, "cacheScope": "private"}


def directory(index: SkillIndex, uri: str, cursor: str | None, limit: int) -> JsonObject:
    """The direct children of a folder as MCP resources, sorted by URI."""
    found = index.directory(uri)
    if found is None:
        raise NotFound("directory", uri)
    skill, folder = found
    children = sorted(_children(skill, folder), key=lambda child: child["uri"])
    start = bisect_right([child["uri"] for child in children], _decode(cursor)) if cursor else 0
    page = children[start : start + limit]
    result: JsonObject = {"resources": page, "ttlMs": TTL_MS, "cacheScope": "private"}
    if start + limit < len(children):
        result["nextCursor"] = _encode(page[-1]["uri"])
    return result


def resource_wire(skill: Skill, file: SkillFile) -> JsonObject:
    """A file as an MCP `Resource`; `SKILL.md` carries the skill's own name and description."""
    wire: JsonObject = {"uri": file_uri(skill.root_uri, file.path), "name": file.path.rpartition("/")[2]}
    if file.path == MANIFEST:
        wire |= {"name": skill.document.name, "description": skill.document.description, "mimeType": MARKDOWN}
    else:
        wire["mimeType"] = file.mime_type
    return wire if file.is_dynamic else {**wire, "size": file.size}


def _children(skill: Skill, folder: str) -> list[JsonObject]:
    prefix = f"{folder}/" if folder else ""
    children: dict[str, JsonObject] = {}
    for path, file in skill.files.items():
        if not path.startswith(prefix):
            continue
        name, slash, _ = path[len(prefix) :].partition("/")
        if slash:
            children.setdefault(name, {"uri": file_uri(skill.root_uri, prefix + name), "name": name, "mimeType": FOLDER})
        else:
            children[name] = resource_wire(skill, file)
    return list(children.values())


def _skill_at(index: SkillIndex, uri: str) -> Skill:
    skill = index.by_root.get(uri.removesuffix(f"/{MANIFEST}")) if uri.endswith(f"/{MANIFEST}") else None
    if skill is None:
        raise NotFound("skill", uri)
    return skill


def _encode(uri: str) -> str:
    return base64.urlsafe_b64encode(uri.encode()).decode().rstrip("=")


def _decode(cursor: str) -> str:
    try:
        return base64.b64decode(cursor + "=" * (-len(cursor) % 4), altchars=b"-_", validate=True).decode()
    except (binascii.Error, UnicodeDecodeError, ValueError):
        raise NotFound("cursor", cursor) from None

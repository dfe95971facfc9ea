"""`SkillsExtension`: answers the requests of the MCP extension `io.modelcontextprotocol/skills` (SEP-2640).

`SkillSource` calls it; the packages `catalog` and `server` complete and send the results. All answers come from the skill library's index,
so the digests in them match the bytes that `resources/read` returns.
"""

from __future__ import annotations

from gateway.errors import NotFound
from gateway.json_types import JsonObject
from gateway.skills.index import children, file_uri
from gateway.skills.library import SkillLibrary
from gateway.skills.mime import MARKDOWN
from gateway.skills.model import MANIFEST, Skill, SkillFile
from gateway.skills.skill_pages import FOLDER, PAGE_SIZE, TTL_MS, page_after
from gateway.tools.base import cacheable
from gateway.tools.context import CallContext


class SkillsExtension:
    """Answers requests of the MCP skills extension (`skills/list`, `skills/get`, `resources/directory/read`) from a skill library."""

    def __init__(self, library: SkillLibrary) -> None:
        self._library = library

    async def list_page(self, cursor: str | None = None, limit: int = PAGE_SIZE) -> JsonObject:
        """Answer `skills/list`: return the listed skills sorted by URI, starting after the URI that the cursor encodes.

        Raises:
            NotFound: The cursor cannot be decoded (kind `cursor`).
        """
        index = await self._library.current()
        return page_after(cursor, "skills", [(skill.root_uri, skill.entry) for skill in index.listed], limit)

    async def get(self, uri: str, ctx: CallContext) -> JsonObject:
        """Answer `skills/get`: read a skill again, and return its entry as in `skills/list`. `uri` is the URI of its `SKILL.md`.

        Raises:
            NotFound: No skill has this URI (kind `skill`).
        """
        await self._library.current()
        await self._library.recheck(self._skill_at(uri), ctx)
        return cacheable({"skill": dict(self._skill_at(uri).entry)}, TTL_MS)

    async def directory(self, uri: str, cursor: str | None = None, limit: int = PAGE_SIZE) -> JsonObject:
        """Answer `resources/directory/read`: return the files and folders directly inside a folder of a skill, sorted by URI.

        Raises:
            NotFound: No folder has this URI (kind `directory`), or the cursor cannot be decoded (kind `cursor`).
        """
        found = (await self._library.current()).directory(uri)
        if found is None:
            raise NotFound("directory", uri)
        return page_after(cursor, "resources", sorted((child["uri"], child) for child in _children(*found)), limit)

    def _skill_at(self, uri: str) -> Skill:
        by_root = self._library.index.by_root
        skill = by_root.get(uri.removesuffix(f"/{MANIFEST}")) if uri.endswith(f"/{MANIFEST}") else None
        if skill is None:
            raise NotFound("skill", uri)
        return skill


def resource_wire(skill: Skill, file: SkillFile) -> JsonObject:
    """Return a skill's file as an MCP `Resource` object. A `SKILL.md` gets the name and description of the skill."""
    wire: JsonObject = {"uri": file_uri(skill.root_uri, file.path), "name": file.path.rpartition("/")[2]}
    if file.path == MANIFEST:
        wire |= {"name": skill.document.name, "description": skill.document.description, "mimeType": MARKDOWN}
    else:
        wire["mimeType"] = file.mime_type
    return wire if file.is_dynamic else {**wire, "size": file.size}


def _children(skill: Skill, folder: str) -> list[JsonObject]:
    root = skill.root_uri
    return [
        resource_wire(skill, file)
        if file is not None
        else {"uri": file_uri(root, path.rstrip("/")), "name": path.rstrip("/").rpartition("/")[2], "mimeType": FOLDER}
        for path, file in children(skill, folder).items()
    ]

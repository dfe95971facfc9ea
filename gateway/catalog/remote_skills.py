"""`RemoteSkills`: provides the skills of upstream servers to the skill index, as a `SkillBackend`.

It keeps the entries that each server lists, so search, tools, prompts and the legacy index answer from memory. It reads bodies and files
through the catalog, as a client does. The skill library checks digests and frontmatter as SEP-2640 requires of hosts. `shared_skills`
decides when the skills of servers are listed again.
"""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Callable, Sequence
from typing import cast

import anyio

from gateway.catalog.catalog import Catalog
from gateway.catalog.shelf import Shelf
from gateway.catalog.skills import SkillFace
from gateway.errors import GatewayError, NotFound, PolicyDenied, SkillError
from gateway.json_types import JsonMapping, JsonObject, JsonValue
from gateway.policy.hidden_text import strip_text
from gateway.policy.skill_policy import is_safe_name
from gateway.skills.index import file_uri
from gateway.skills.model import MANIFEST, Skill, SkillFile
from gateway.skills.remote import INDEX_URI, index_entries, list_skills, listed_skill, to_skill
from gateway.tools.context import CallContext

logger = logging.getLogger(__name__)

BACKEND_ID = "server:"
"""First part of the keys that identify skills of servers in the skill index."""

MAX_SHOWN = 1_000
"""Maximum number of skills of one server without the skills extension, because the `SKILL.md` of each is read."""

READS_AT_ONCE = 16
"""Maximum number of `SKILL.md` files that are read from one server at the same time."""

LOOK_SECONDS = 60.0
"""Timeout for listing the skills of one server, all pages together."""

MIN_REST_SECONDS, MAX_REST_SECONDS = 60.0, 3600.0
"""Shortest and longest time until a server's skills are listed again, whatever `ttlMs` the server sends."""


class RemoteSkills:
    """The skills of all connected servers, as a `SkillBackend`. Safe for concurrent calls."""

    def __init__(self, catalog: Catalog) -> None:
        """Create it without skills. Call `look` to list the skills of the servers in `catalog`."""
        self._catalog = catalog
        self._face = SkillFace(catalog)
        self._by_server: dict[str, tuple[Skill, ...]] = {}
        self._told: tuple[Skill, ...] = ()
        self._rest: dict[str, float] = {}
        self._on_change: Callable[[], None] = lambda: None

    @property
    def id(self) -> str:
        """Always `server:`."""
        return BACKEND_ID

    @property
    def skills(self) -> Sequence[Skill]:
        """The skills that the servers listed last, in the order of the servers."""
        return self._told

    @property
    def rest_seconds(self) -> float:
        """Seconds until the skills should be listed again: the shortest `ttlMs` of all servers."""
        return min(self._rest.values(), default=MAX_REST_SECONDS)

    def subscribe(self, on_change: Callable[[], None]) -> None:
        """Register the one callback that is called when the list of skills has changed."""
        self._on_change = on_change

    async def refresh(self) -> None:
        """Do nothing. `SharedSkills` lists the skills again after change notifications and when a `ttlMs` has passed."""

    async def ready(self) -> None:
        """Wait, with a deadline, for servers that are still starting. A server counts as started only after its skills were listed."""
        await self._catalog.ready()

    async def look(self, only: str | None = None) -> None:
        """List the skills of every server again, or of the server `only`. If that fails for a server, its previous skills stay."""
        shelves = [s for s in self._catalog.shelves if not s.entry.is_local and only in (None, s.entry.source.id)]
        async with anyio.create_task_group() as tasks:
            for shelf in shelves:
                tasks.start_soon(self._look_at, shelf)
        known = [shelf.entry.source.id for shelf in self._catalog.shelves]
        for gone in [server for server in self._by_server if server not in known]:
            del self._by_server[gone]
            self._rest.pop(gone, None)
        self._tell()

    def _tell(self) -> None:
        order = [shelf.entry.source.id for shelf in self._catalog.shelves]
        now = tuple(skill for server in order for skill in self._by_server.get(server, ()))
        if now != self._told:
            self._told = now
            self._on_change()

    async def _look_at(self, shelf: Shelf) -> None:
        server = shelf.entry.source.id
        try:
            with anyio.fail_after(LOOK_SECONDS):
                self._by_server[server] = tuple(await (self._listed(shelf) if shelf.serves_skills else self._shown(shelf)))
        except (GatewayError, TimeoutError) as error:
            logger.warning("skills not listed, keeping the last list server=%s error=%s", server, error or "timeout")

    async def _listed(self, shelf: Shelf) -> list[Skill]:
        """Return the skills of a server that supports the skills extension (`skills/list`), all pages."""
        server = shelf.entry.source.id

        async def fetch_page(cursor: str | None) -> tuple[list[JsonObject], str | None]:
            entries, following, ttl = await self._face.page_of(shelf, cursor, CallContext())
            self._rest[server] = min(MAX_REST_SECONDS, max(MIN_REST_SECONDS, ttl / 1000))
            return entries, following

        return await list_skills(fetch_page, BACKEND_ID, server)

    async def _shown(self, shelf: Shelf) -> list[Skill]:
        """Return the skills of a server without the skills extension, from its `SKILL.md` resources and its `skill://index.json`.

        Each `SKILL.md` is read, because a listed skill must have the frontmatter of its file.
        """
        index = next((uri for uri, native in shelf.natives.get("resources", {}).items() if native == INDEX_URI), None)
        seen = dict(await self._indexed(shelf, index)) if index is not None else {}
        for wire in shelf.listed.get("resources", ()):
            seen.setdefault(str(wire["uri"]), str(wire.get("description") or ""))
        server = shelf.entry.source.id
        found = [skill for uri, said in seen.items() if (skill := listed_skill(uri, said, BACKEND_ID, server)) is not None][:MAX_SHOWN]
        limit = anyio.CapacityLimiter(READS_AT_ONCE)
        read: dict[str, Skill] = {}

        async def look(skill: Skill) -> None:
            async with limit:
                try:
                    entry = await self._face.show(shelf, f"{skill.root_uri}/{MANIFEST}", CallContext())
                except (NotFound, PolicyDenied, SkillError) as error:
                    logger.warning("skill left out server=%s skill=%s reason=%s", server, strip_text(skill.id), error)
                    return
            read[skill.id] = (to_skill(entry, BACKEND_ID, server) if entry is not None else None) or skill

        for gone in shelf.shown_skills.keys() - {f"{skill.root_uri}/{MANIFEST}" for skill in found}:
            del shelf.shown_skills[gone]
        async with anyio.create_task_group() as tasks:
            for skill in found:
                tasks.start_soon(look, skill)
        return [read[skill.id] for skill in found if skill.id in read]

    async def _indexed(self, shelf: Shelf, index: str) -> list[tuple[str, str]]:
        """Return the exposed URI and the description of each `skill-md` entry of a server's `skill://index.json`."""
        try:
            entries = index_entries(await self._face.bytes_at(index, CallContext()))
        except ValueError:
            return []
        found: list[tuple[str, str]] = []
        for wire in entries:
            if wire.get("type") == "skill-md" and isinstance(url := wire.get("url"), str):
                exposed = self._face.exposed(shelf, url)
                if exposed is not None:
                    found.append((exposed, str(wire.get("description") or "")))
        return found[:MAX_SHOWN]

    async def renew(self, skill: Skill, ctx: CallContext) -> Skill:
        """Fetch the entry of a skill from its server again (`skills/get`), put it into the index, and return it.

        Raises:
            NotFound: The server no longer has the skill.
            GatewayError: The server cannot be reached.
        """
        if not skill.document.conformant:
            return skill  # the server has no entry for it
        try:
            answer = await self._face.get(f"{skill.root_uri}/{MANIFEST}", ctx)
        except NotFound:
            self._put(skill, None)
            raise NotFound("skill", skill.id) from None
        now = to_skill(cast("JsonMapping", answer["skill"]), BACKEND_ID, skill.origin)
        if now is None:
            raise NotFound("skill", skill.id)
        self._put(skill, now)
        return now

    async def fetch(self, skill: Skill, path: str, ctx: CallContext) -> tuple[SkillFile, bytes]:
        """Read a skill's file from its server and return its list entry and its bytes. An unlisted file gets a new entry without a digest.

        Only a skill whose `resources` are `dynamic` may have unlisted files.

        Raises:
            NotFound: The skill has no such file.
            GatewayError: The server cannot be reached.
        """
        file = skill.files.get(path)
        if file is None and (not skill.is_dynamic or not is_safe_name(path)):
            raise NotFound("resource", path)
        uri = file.segments[0] if file is not None else file_uri(skill.root_uri, path)
        data = await self._face.bytes_at(uri, ctx)
        return file or dataclasses.replace(skill.manifest, path=path, digest=""), data

    def locate(self, skill: Skill, path: str) -> tuple[str, str]:
        """Return the id of the skill's server, and the URI of the file at this server. Raises `NotFound`."""
        shelf, native = self._catalog.locate(file_uri(skill.root_uri, path))
        return shelf.entry.source.id, native

    async def run(self, skill: Skill, function: str, args: JsonValue, ctx: CallContext) -> str:
        """Raise `SkillError`: the gateway does not run scripts of a server."""
        raise SkillError(f"Scripts of server {skill.origin!r} do not run in the gateway.", code="scripts-off")

    def _put(self, old: Skill, now: Skill | None) -> None:
        known = self._by_server.get(old.origin, ())
        renewed = tuple(skill if skill.id != old.id else now for skill in known if skill.id != old.id or now is not None)
        kept = tuple(skill for skill in renewed if skill is not None)
        if kept != known:
            self._by_server[old.origin] = kept
            self._tell()

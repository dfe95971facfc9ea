"""`RemoteSkills`: provides the skills of remote servers to the gateway's skill index, as a `SkillBackend`.

It stores the entries that each server lists, so that searching and listing skills needs no request. It reads `SKILL.md` and other files
through the catalog, as a client does. The skill library checks digests and frontmatter as SEP-2640 requires of hosts. The module
`shared_skills` decides when the skills of servers are listed again.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import cast

import anyio

from gateway.catalog.catalog import Catalog
from gateway.catalog.skill_catalog import SkillCatalog
from gateway.catalog.source_listing import SourceListing
from gateway.errors import GatewayError, NotFound, PolicyDenied, SkillError
from gateway.json_types import JsonMapping, JsonObject
from gateway.policy.hidden_text import strip_text
from gateway.skills.backend import SkillBackend
from gateway.skills.index import file_uri
from gateway.skills.model import MANIFEST, Skill, SkillFile
from gateway.skills.remote import INDEX_URI, file_of, index_entries, list_skills, listed_skill, to_skill
from gateway.tools.context import CallContext

logger = logging.getLogger(__name__)

BACKEND_ID = "server:"
"""Id of this skill backend: the first part of the key of each remote skill in the skill index."""

MAX_SHOWN = 1_000
"""Maximum number of skills of a server that lists them only as resources. The limit exists because the `SKILL.md` of each is read."""

READS_AT_ONCE = 16
"""Maximum number of `SKILL.md` files that are read from one server at the same time."""

LIST_SECONDS = 60.0
"""Timeout in seconds for listing the skills of one server, all pages together."""

MIN_REST_SECONDS, MAX_REST_SECONDS = 60.0, 3600.0
"""Minimum and maximum time until a server's skills are listed again, in seconds. The server's `ttlMs` is limited to this range."""


class RemoteSkills(SkillBackend):
    """Stores the skills that the connected servers list, and reads their files, for the gateway's skill index (`SkillBackend`).

    Safe for concurrent calls.
    """

    id = BACKEND_ID

    def __init__(self, catalog: Catalog) -> None:
        """Create an empty backend. It has no skills until `read_servers` has listed the skills of the servers in `catalog`."""
        super().__init__()
        self._catalog = catalog
        self._skill_catalog = SkillCatalog(catalog)
        self._by_server: dict[str, tuple[Skill, ...]] = {}
        self._served: tuple[Skill, ...] = ()
        self._rest: dict[str, float] = {}

    @property
    def skills(self) -> Sequence[Skill]:
        """The skills from the latest list of each server, in the order of the servers in the catalog."""
        return self._served

    @property
    def refresh_seconds(self) -> float:
        """Seconds until the skills should be listed again: the shortest `ttlMs` of all servers, between one minute and one hour."""
        return min(self._rest.values(), default=MAX_REST_SECONDS)

    async def ready(self) -> None:
        """Wait, with a deadline, for servers that are still starting. A server counts as started only when its skills have been listed."""
        await self._catalog.ready()

    async def read_servers(self, only: str | None = None) -> None:
        """List the skills of every server again, or of one server, if `only` is its id. If listing fails, the server's old skills stay."""
        listings = [s for s in self._catalog.listings if not s.entry.is_local and only in (None, s.entry.source.id)]
        async with anyio.create_task_group() as tasks:
            for listing in listings:
                tasks.start_soon(self._read_server, listing)
        known = [listing.entry.source.id for listing in self._catalog.listings]
        for gone in [server for server in self._by_server if server not in known]:
            del self._by_server[gone]
            self._rest.pop(gone, None)
        self._update()

    def _update(self) -> None:
        order = [listing.entry.source.id for listing in self._catalog.listings]
        now = tuple(skill for server in order for skill in self._by_server.get(server, ()))
        if now != self._served:
            self._served = now
            self._on_change()

    async def _read_server(self, listing: SourceListing) -> None:
        server = listing.entry.source.id
        try:
            with anyio.fail_after(LIST_SECONDS):
                self._by_server[server] = tuple(await (self._listed(listing) if listing.serves_skills else self._shown(listing)))
        except (GatewayError, TimeoutError) as error:
            logger.warning("skills not listed, keeping the last list server=%s error=%s", server, error or "timeout")

    async def _listed(self, listing: SourceListing) -> list[Skill]:
        """Return all skills of a server that supports the skills extension, from all pages of `skills/list`. Stores its `ttlMs`."""
        server = listing.entry.source.id

        async def fetch_page(cursor: str | None) -> tuple[list[JsonObject], str | None]:
            entries, following, ttl = await self._skill_catalog.page_of(listing, cursor, CallContext())
            self._rest[server] = min(MAX_REST_SECONDS, max(MIN_REST_SECONDS, ttl / 1000))
            return entries, following

        return await list_skills(fetch_page, BACKEND_ID, server)

    async def _shown(self, listing: SourceListing) -> list[Skill]:
        """Return the skills of a server without the skills extension, found by its `SKILL.md` resources and its `skill://index.json`.

        Each `SKILL.md` is read, because the entry of a listed skill must have the frontmatter of its file.
        """
        index = next((uri for uri, native in listing.natives.get("resources", {}).items() if native == INDEX_URI), None)
        seen = dict(await self._indexed(listing, index)) if index is not None else {}
        for wire in listing.listed.get("resources", ()):
            seen.setdefault(str(wire["uri"]), str(wire.get("description") or ""))
        server = listing.entry.source.id
        found = [skill for uri, said in seen.items() if (skill := listed_skill(uri, said, BACKEND_ID, server)) is not None][:MAX_SHOWN]
        limit = anyio.CapacityLimiter(READS_AT_ONCE)
        read: dict[str, Skill] = {}

        async def fetch(skill: Skill) -> None:
            async with limit:
                try:
                    entry = await self._skill_catalog.show(listing, f"{skill.root_uri}/{MANIFEST}", CallContext())
                except (NotFound, PolicyDenied, SkillError) as error:
                    logger.warning("skill left out server=%s skill=%s reason=%s", server, strip_text(skill.id), error)
                    return
            read[skill.id] = (to_skill(entry, BACKEND_ID, server) if entry is not None else None) or skill

        for gone in listing.shown_skills.keys() - {f"{skill.root_uri}/{MANIFEST}" for skill in found}:
            del listing.shown_skills[gone]
        async with anyio.create_task_group() as tasks:
            for skill in found:
                tasks.start_soon(fetch, skill)
        return [read[skill.id] for skill in found if skill.id in read]

    async def _indexed(self, listing: SourceListing, index: str) -> list[tuple[str, str]]:
        """Read a server's `skill://index.json` (exposed URI `index`); return the exposed URI and description of its `skill-md` entries."""
        try:
            entries = index_entries(await self._skill_catalog.bytes_at(index, CallContext()))
        except ValueError:
            return []
        found: list[tuple[str, str]] = []
        for wire in entries:
            if wire.get("type") == "skill-md" and isinstance(url := wire.get("url"), str):
                exposed = self._skill_catalog.exposed(listing, url)
                if exposed is not None:
                    found.append((exposed, str(wire.get("description") or "")))
        return found[:MAX_SHOWN]

    async def renew(self, skill: Skill, ctx: CallContext) -> Skill:
        """Fetch the entry of a skill from its server again (`skills/get`), replace the stored skill, and return the new one.

        A skill that breaks the extension's rules for listed skills has no entry to fetch, and is returned unchanged.

        Raises:
            NotFound: The server no longer has the skill, or its new entry is not usable.
            GatewayError: The server cannot be reached.
        """
        if not skill.document.conformant:
            return skill  # the server has no `skills/get` entry for a skill that it does not list by the extension's rules
        try:
            answer = await self._skill_catalog.get(f"{skill.root_uri}/{MANIFEST}", ctx)
        except NotFound:
            self._put(skill, None)
            raise NotFound("skill", skill.id) from None
        now = to_skill(cast("JsonMapping", answer["skill"]), BACKEND_ID, skill.origin)
        if now is None:
            raise NotFound("skill", skill.id)
        self._put(skill, now)
        return now

    async def fetch(self, skill: Skill, path: str, ctx: CallContext) -> tuple[SkillFile, bytes]:
        """Read a file of a skill from its server; return the file's entry (`SkillFile`) and its bytes.

        `path` is relative to the skill's folder. If the skill's `resources` are `dynamic`, the skill's entry may not list the file; the
        file then gets a new entry without a digest.

        Raises:
            NotFound: The skill has no file with this path.
            GatewayError: The server cannot be reached.
        """
        file = file_of(skill, path)
        return file, await self._skill_catalog.bytes_at(file.segments[0], ctx)

    def locate(self, skill: Skill, path: str) -> tuple[str, str]:
        """Return the id of the server that has the skill, and the URI of the skill's file `path` at this server. Raises `NotFound`."""
        listing, native = self._catalog.locate(file_uri(skill.root_uri, path))
        return listing.entry.source.id, native

    def _put(self, old: Skill, now: Skill | None) -> None:
        known = self._by_server.get(old.origin, ())
        renewed = tuple(skill if skill.id != old.id else now for skill in known if skill.id != old.id or now is not None)
        kept = tuple(skill for skill in renewed if skill is not None)
        if kept != known:
            self._by_server[old.origin] = kept
            self._update()

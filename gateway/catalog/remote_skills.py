"""`RemoteSkills`: the skills of servers behind this gateway, in the same index as those of folders.

Implements `SkillHome`: it keeps what each server lists, so search, tools, prompts and the legacy index answer from memory, and
reads bodies and files through the catalog, as any client would. What is read is checked against the digest that was listed, and
the frontmatter against the entry, as SEP-2640 asks of hosts; a skill that moved on is asked for again, alone. `app` tells it when
to look.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import logging
from collections.abc import Callable, Sequence
from typing import cast

import anyio

from gateway.catalog.catalog import Catalog
from gateway.catalog.shelf import Shelf
from gateway.catalog.skill_entries import bytes_of, listed_skill, to_skill
from gateway.catalog.skills import SkillFace
from gateway.errors import GatewayError, NotFound, PolicyDenied, SkillError
from gateway.json_types import JsonMapping, JsonObject, JsonValue
from gateway.policy.hidden_text import strip_text
from gateway.policy.skills import is_safe_name
from gateway.skills.index import file_uri
from gateway.skills.models import MANIFEST, Skill, SkillFile
from gateway.skills.parser import parse_skill
from gateway.tools.base import Finished
from gateway.tools.context import CallContext

logger = logging.getLogger(__name__)

HOME_ID = "server:"
"""First part of the keys of these skills."""

MAX_SKILLS = 10_000
"""Skills of one server; the rest is not looked at."""

MAX_PAGES = 1_000
"""Pages of one server's list."""

MAX_SHOWN = 1_000
"""Skills of one server without the extension: each `SKILL.md` is read."""

READS_AT_ONCE = 16
"""How many of them."""

LOOK_SECONDS = 60.0
"""Time one look at one server may take, all its pages together."""

MIN_REST_SECONDS, MAX_REST_SECONDS = 60.0, 3600.0
"""How long a list counts, whatever its server says (`ttlMs`)."""

MAX_ATTEMPTS = 3
"""How often a read starts over when the server's file is not the listed one."""

INDEX_PATH = "skill://index.json"


class RemoteSkills:
    """Implements `SkillHome`. Safe for concurrent calls."""

    def __init__(self, catalog: Catalog) -> None:
        """No side effects; `look` fills it."""
        self._catalog = catalog
        self._face = SkillFace(catalog)
        self._by_server: dict[str, tuple[Skill, ...]] = {}
        self._told: tuple[Skill, ...] = ()
        self._rest: dict[str, float] = {}
        self._on_change: Callable[[], None] = lambda: None

    @property
    def id(self) -> str:
        """Always `server:`."""
        return HOME_ID

    @property
    def skills(self) -> Sequence[Skill]:
        """As last listed, in the order of the servers."""
        return self._told

    @property
    def rest_seconds(self) -> float:
        """How long what is known may be kept: the shortest time that a server gives."""
        return min(self._rest.values(), default=MAX_REST_SECONDS)

    def subscribe(self, on_change: Callable[[], None]) -> None:
        """Register the library."""
        self._on_change = on_change

    async def refresh(self) -> None:
        """Nothing: servers are looked at when they say that something changed, and by their own time."""

    async def ready(self) -> None:
        """Wait, bounded, for servers that are still starting: their skills are looked for before they count as started."""
        await self._catalog.ready()

    async def look(self, only: str | None = None) -> None:
        """List the skills of every server, or of one, anew. A server that fails keeps what it had."""
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
                self._by_server[server] = tuple(await (self._listed(shelf) if self._face.serves(shelf) else self._shown(shelf)))
        except (GatewayError, TimeoutError) as error:
            logger.warning("%s: its skills cannot be listed, keeping the last list: %s", server, error or "it took too long")

    async def _listed(self, shelf: Shelf) -> list[Skill]:
        """What the extension lists."""
        found: dict[str, Skill] = {}
        cursor: str | None = None
        server = shelf.entry.source.id
        for _ in range(MAX_PAGES):
            entries, cursor, ttl = await self._face.page_of(shelf, cursor, CallContext())
            self._rest[server] = min(MAX_REST_SECONDS, max(MIN_REST_SECONDS, ttl / 1000))
            for entry in entries:
                skill = to_skill(entry, HOME_ID, server)
                if skill is not None and len(found) < MAX_SKILLS:
                    found.setdefault(skill.id, skill)
            if cursor is None:
                break
        return list(found.values())

    async def _shown(self, shelf: Shelf) -> list[Skill]:
        """What a server without the extension shows: `SKILL.md` among its resources, or its `skill://index.json`.

        Each is read, for what is listed must have the frontmatter of the file.
        """
        index = next((uri for uri, native in shelf.natives.get("resources", {}).items() if native == INDEX_PATH), None)
        seen = dict(await self._indexed(shelf, index)) if index is not None else {}
        for wire in shelf.listed.get("resources", ()):
            seen.setdefault(str(wire["uri"]), str(wire.get("description") or ""))
        server = shelf.entry.source.id
        found = [skill for uri, said in seen.items() if (skill := listed_skill(uri, said, HOME_ID, server)) is not None][:MAX_SHOWN]
        limit = anyio.CapacityLimiter(READS_AT_ONCE)
        read: dict[str, Skill] = {}

        async def look(skill: Skill) -> None:
            async with limit:
                try:
                    entry = await self._face.show(shelf, f"{skill.root_uri}/{MANIFEST}", CallContext())
                except (NotFound, PolicyDenied, SkillError) as error:
                    logger.warning("%s: skill %s left out: %s", server, strip_text(skill.id), error)
                    return
            read[skill.id] = (to_skill(entry, HOME_ID, server) if entry is not None else None) or skill

        for gone in shelf.shown_skills.keys() - {f"{skill.root_uri}/{MANIFEST}" for skill in found}:
            del shelf.shown_skills[gone]
        async with anyio.create_task_group() as tasks:
            for skill in found:
                tasks.start_soon(look, skill)
        return [read[skill.id] for skill in found if skill.id in read]

    async def _indexed(self, shelf: Shelf, index: str) -> list[tuple[str, str]]:
        """URI and description of each entry of the legacy index that is a file."""
        text = await self._content(index, CallContext())
        try:
            listed: JsonValue = json.loads(text)
        except ValueError:
            return []
        entries: JsonValue = cast("JsonMapping", listed).get("skills") if isinstance(listed, dict) else None
        found: list[tuple[str, str]] = []
        for entry in cast("list[JsonValue]", entries) if isinstance(entries, list) else []:
            wire: JsonMapping = cast("JsonMapping", entry) if isinstance(entry, dict) else cast("JsonObject", {})
            if wire.get("type") == "skill-md" and isinstance(url := wire.get("url"), str):
                exposed = self._face.exposed(shelf, url)
                if exposed is not None:
                    found.append((exposed, str(wire.get("description") or "")))
        return found[:MAX_SHOWN]

    # -- one skill ---------------------------------------------------------------------------------------------

    async def renew(self, skill: Skill, ctx: CallContext) -> Skill:
        """The skill as its server has it now, with its body.

        Raises:
            NotFound: It is gone.
            SkillError: Its `SKILL.md` is not what its entry says (code `entry-differs`), or it keeps changing.
            GatewayError: The server cannot be reached.
        """
        now, _, data = await self.read(await self._asked(skill, ctx), MANIFEST, ctx)
        document = parse_skill(data, directory=now.document.name)
        if now.document.conformant and document.frontmatter != now.document.frontmatter:
            raise SkillError(f"Skill {now.id!r} is not what {now.origin!r} lists: its frontmatter differs.", code="entry-differs")
        if any(d.level == "error" for d in document.diagnostics):
            raise SkillError(f"Skill {now.id!r} of {now.origin!r} cannot be used: {document.diagnostics[0].message}", code="entry-differs")
        known = dataclasses.replace(now.document, text=document.text, body_start=document.body_start, frontmatter=document.frontmatter)
        return dataclasses.replace(now, document=known)

    async def read(self, skill: Skill, path: str, ctx: CallContext) -> tuple[Skill, SkillFile, bytes]:
        """The bytes of a file; they have the listed digest, where there is one.

        Raises:
            NotFound: There is no such file.
            SkillError: The server keeps giving other bytes than it lists.
            GatewayError: The server cannot be reached.
        """
        for _ in range(MAX_ATTEMPTS):
            file = skill.files.get(path)
            if file is None and (skill.entry.get("resources") != "dynamic" or not is_safe_name(path)):
                raise NotFound("resource", path)
            uri = file.segments[0] if file is not None else file_uri(skill.root_uri, path)
            data, is_text = await self._bytes(uri, ctx)
            file = file or dataclasses.replace(skill.manifest, path=path, digest="")
            digest = f"sha256:{hashlib.sha256(data).hexdigest()}"
            if file.is_dynamic or (file.digest, file.size) == (digest, len(data)):
                return skill, dataclasses.replace(file, stamp=(len(data), 0, 0, 0), digest=digest, is_text=is_text), data
            skill = await self._asked(skill, ctx)
        raise SkillError(f"{path!r} of skill {skill.id!r} is not what {skill.origin!r} lists; it is not used.", code="digest-differs")

    def place_of(self, skill: Skill, path: str) -> tuple[str, str]:
        """The server and the URI that it knows the file by. Raises `NotFound`."""
        shelf, native = self._catalog.locate(file_uri(skill.root_uri, path))
        return shelf.entry.source.id, native

    async def run(self, skill: Skill, function: str, args: JsonValue, ctx: CallContext) -> str:
        """Never: scripts of a server are its own. Raises `SkillError`."""
        raise SkillError(f"Scripts of {skill.origin!r} are not run here.", code="scripts-off")

    async def _asked(self, skill: Skill, ctx: CallContext) -> Skill:
        """Its entry as the server gives it now; the index learns what changed."""
        if not skill.document.conformant:
            return skill  # it has no entry to ask for
        try:
            answer = await self._face.get(f"{skill.root_uri}/{MANIFEST}", ctx)
        except NotFound:
            self._put(skill, None)
            raise NotFound("skill", skill.id) from None
        now = to_skill(cast("JsonMapping", answer["skill"]), HOME_ID, skill.origin)
        if now is None:
            raise NotFound("skill", skill.id)
        self._put(skill, now)
        return now

    def _put(self, old: Skill, now: Skill | None) -> None:
        known = self._by_server.get(old.origin, ())
        renewed = tuple(skill if skill.id != old.id else now for skill in known if skill.id != old.id or now is not None)
        kept = tuple(skill for skill in renewed if skill is not None)
        if kept != known:
            self._by_server[old.origin] = kept
            self._tell()

    async def _content(self, uri: str, ctx: CallContext) -> str:
        data, is_text = await self._bytes(uri, ctx)
        return data.decode() if is_text else ""

    async def _bytes(self, uri: str, ctx: CallContext) -> tuple[bytes, bool]:
        """The bytes behind an exposed URI, and whether they came as text."""
        outcome = await self._catalog.read_now(uri, ctx)
        found = bytes_of(outcome.result.get("contents")) if isinstance(outcome, Finished) else None
        if found is not None:
            return found
        raise SkillError(f"The server gives nothing usable at {uri!r}.", code="entry-differs")

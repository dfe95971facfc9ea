"""`Spread`: which calls a worker that is not home may answer by itself, and how it comes to know.

Home publishes a fingerprint of every tool whose plain calls need nothing that is remembered: those of modern servers over HTTP that
nobody signs in to. Another worker answers a call only where its own tool has the very same one, made of the entry, the policy and the
definition; in all other cases, and while either of them is about to learn something new, the call goes home. So workers that follow a
change at different moments cannot disagree in front of a client.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import logging
from collections.abc import Callable, Mapping
from typing import cast

import anyio

from gateway.app.servers import Server
from gateway.app.workers import Place
from gateway.catalog import Catalog
from gateway.catalog.shelf import Shelf
from gateway.config.load import LoadedConfig
from gateway.config.models import Expose, HttpServer, ServerEntry
from gateway.config.policies import SourcePolicy
from gateway.config.skills import SkillSettings
from gateway.errors import StorageError
from gateway.protocol import MODERN_PROTOCOL_VERSIONS
from gateway.storage.files import write_atomic
from gateway.tools.guard import GuardedTool

logger = logging.getLogger(__name__)

LOOK_SECONDS = 1.0
"""Between two looks whether a server came, went or now speaks another version; changed lists are seen at once."""


def view_of(loaded: LoadedConfig, place: Place) -> LoadedConfig:
    """What of a configuration this worker serves: home all of it, the others the servers whose calls they may take."""
    if place.is_home:
        return loaded
    config = loaded.config
    policies = {name: policy.model_copy(update={"max_concurrency": place.share(policy.max_concurrency)}) for name, policy in _all(loaded)}
    servers = {
        name: entry
        for name, entry in config.mcp_servers.items()
        if _may_spread(entry, config.policy(name)) and policies[name].max_concurrency
    }
    update = {"mcp_servers": servers, "policies": {**config.policies, **{name: policies[name] for name in servers}}}
    none = {"expose": Expose(), "skills": SkillSettings()}
    return dataclasses.replace(loaded, config=config.model_copy(update={**update, **none}), disabled=[], notes=[])


def _all(loaded: LoadedConfig) -> list[tuple[str, SourcePolicy]]:
    return [(name, loaded.config.policy(name)) for name in loaded.config.mcp_servers]


def _may_spread(entry: ServerEntry, policy: SourcePolicy) -> bool:
    return isinstance(entry, HttpServer) and policy.auth is None


class Spread:
    """One worker's side of it; `run` must be going."""

    def __init__(self, place: Place, catalog: Catalog, servers: Callable[[], Mapping[str, Server]]) -> None:
        """`servers` gives those that serve, as they are now."""
        self._place = place
        self._catalog = catalog
        self._servers = servers
        self._file = place.folder / "spread.json"
        self._own: Mapping[str, tuple[GuardedTool, str]] = {}
        self._published: Mapping[str, str] | None = None
        self._edition = -1
        self._seen: Mapping[str, object] | None = None
        self._wake = anyio.Event()
        catalog.subscribe(lambda kind: self.look_again())

    def takes(self, name: str, tool: GuardedTool) -> bool:
        """Whether this worker, which is not home, may answer calls of a tool of its own."""
        if self._place.board.edition != self._edition:
            self._wake.set()
            return False
        own = self._own.get(name)
        return own is not None and own[0] is tool and self._published is not None and self._published.get(name) == own[1]

    def look_again(self) -> None:
        """Something may have changed. Called before anybody is answered in the light of it, so home takes back here what it published."""
        self._seen = None
        board = self._place.board
        if self._place.is_home and not board.edition % 2:
            board.edition += 1
        self._wake.set()

    async def run(self) -> None:
        """Keep up until cancelled."""
        while True:
            self._wake = anyio.Event()
            try:
                await (self._publish() if self._place.is_home else self._read())
            except (StorageError, OSError) as error:
                logger.warning("what the other workers may answer cannot be told, so they ask here: %s", error)
            with anyio.move_on_after(LOOK_SECONDS):
                await self._wake.wait()

    def _renew(self) -> None:
        """Make the fingerprints of what is here now, where there is anything new to see."""
        modern = {name: server.source for name, server in self._servers().items() if _is_modern(server)}
        if self._seen == modern:
            return
        self._seen = modern
        own: dict[str, tuple[GuardedTool, str]] = {}
        for shelf in self._catalog.shelves:
            source = shelf.entry.source
            is_spread = modern.get(source.id) is source
            if self._place.is_home:
                bound = shelf.entry.policy.max_concurrency
                shelf.limiter.total = self._place.share(bound) if is_spread else bound
            if not is_spread:
                continue
            base = _digest_of(shelf, self._servers()[source.id].entry)
            for name, (_, tool) in shelf.tools.items():
                if self._catalog.shows(name, tool) and not tool.definition.may_ask and tool.definition.task_by == "nobody":
                    text = json.dumps([base, name, tool.definition.to_wire(name)], sort_keys=True, default=str)
                    own[name] = tool, hashlib.sha256(text.encode()).hexdigest()[:32]
        self._own = own

    async def _publish(self) -> None:
        """Make what is published current. Its edition is odd while it is not."""
        self._renew()
        seen, board = self._seen, self._place.board
        published = {name: print_ for name, (_, print_) in self._own.items()}
        if published != self._published:
            board.edition += 1 - board.edition % 2
            await anyio.to_thread.run_sync(write_atomic, self._file, json.dumps(published).encode())
            self._published = published
        if self._seen is seen:
            board.edition += board.edition % 2

    async def _read(self) -> None:
        self._renew()
        edition = self._place.board.edition
        if edition == self._edition or edition % 2 or not edition:
            return
        text = await anyio.to_thread.run_sync(self._file.read_bytes)
        self._published = cast("dict[str, str]", json.loads(text))
        self._edition = edition


def _is_modern(server: Server) -> bool:
    if not _may_spread(server.entry, server.policy):
        return False
    return server.source.status().protocol_version in MODERN_PROTOCOL_VERSIONS


def _digest_of(shelf: Shelf, entry: ServerEntry) -> str:
    """Of what holds for all tools of a server, wherever it is called from."""
    policy = shelf.entry.policy.model_dump_json(exclude={"max_concurrency"})
    text = "\n".join((shelf.entry.source.id, shelf.entry.prefix, shelf.label, entry.model_dump_json(), policy))
    return hashlib.sha256(text.encode()).hexdigest()

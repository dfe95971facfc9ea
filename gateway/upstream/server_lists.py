"""`ServerLists`: reads the lists of tools, resources, resource templates and prompts of one server, and serves them. Used by `source`.

A list is read when the server becomes ready and when it announces a change. The tools are also read before a call if the lock file pins
them and they were not read on the session of the call since their last change. `pinning` decides which tools are served, and
`listing_cache` stores the lists for the next start of the gateway.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence

import anyio
import anyio.to_thread

from gateway.config.policies import SourcePolicy
from gateway.errors import NotSent, OutcomeUnknown, SessionGone, UpstreamError
from gateway.json_types import JsonMapping, JsonObject
from gateway.tools.base import ChangeKind, OnChange, Tool
from gateway.upstream.accepted_definitions import DefinitionRecord
from gateway.upstream.connection import Connection
from gateway.upstream.delivery import RemoteTool, Sender
from gateway.upstream.gateway_chain import received
from gateway.upstream.gateway_loops import GatewayLoops
from gateway.upstream.listing import KINDS_OF, list_kind, to_listed
from gateway.upstream.listing_cache import CachedListing, ListingCache
from gateway.upstream.negotiated import Negotiated
from gateway.upstream.pinning import Pinning
from gateway.upstream.poisoning_check import PoisoningCheck
from gateway.upstream.server_session import Session

logger = logging.getLogger(__name__)

LIST_TIMEOUT_SECONDS = 60.0
"""Timeout for reading a server's lists again after it announced a change, or its tools before a call."""

COALESCE_SECONDS = 0.1
"""Seconds between the announcement of a change and the reading of the lists. Changes announced in this time are read together.

Some servers announce dozens of changes when they start.
"""

REREAD_SPACING_SECONDS = 1.0
"""Shortest time between two readings of a server's lists because of changes, however often the server announces changes."""


class ServerLists:
    """The tools, resources, resource templates and prompts of one server, as last read or as stored by an earlier run."""

    def __init__(self, server: str, policy: SourcePolicy, own_id: str, sender: Sender, may_request_input: Callable[[bool], bool]) -> None:
        """Store the arguments, without side effects.

        `own_id` is this gateway's id; a listed entry that contains the id came from this gateway itself. `sender` sends the calls of the
        tools. `may_request_input` receives whether the server uses MCP 2026, and returns whether the client may get requests for input
        while a call runs.
        """
        self.entries: dict[str, list[JsonObject]] = {"tools": [], "resources": [], "templates": [], "prompts": []}
        """The entries of each list, without entries that came from this gateway itself, and with only accepted `_meta` keys."""
        self.loops = GatewayLoops(server, own_id)
        self.suspicions = PoisoningCheck(server, lambda: self.entries)
        self.cached: CachedListing | None = None
        """The lists from an earlier run or configuration, which are served until the server's current lists are read."""
        self.on_change: OnChange = lambda _: None
        self._server = server
        self._sender = sender
        self._may_request_input = may_request_input
        self._tools: dict[str, tuple[JsonObject, RemoteTool]] = {}
        self.pins = Pinning(server, policy.pins)
        self._built_modern = False
        self._agreed: Negotiated | None = None
        self._rereads: list[anyio.Event] = []
        """Events for the scheduled and running readings of the tools. Each is set when its reading has ended; calls wait for the last."""
        self._shared: Session | None = None
        """The shared session, on which the lists that clients see were read."""
        self._memory: ListingCache | None = None
        self._to_store: CachedListing | None = None
        self._unstored = anyio.Event()
        """Set when the lists were read and must be stored."""
        self._dirty: set[ChangeKind] = set()
        self._changed = anyio.Event()

    @property
    def tools(self) -> Sequence[Tool]:
        """The tools that clients may see and call: the listed tools, except those whose definitions differ from the accepted ones."""
        return [tool for _, tool in self._tools.values()]

    async def load(self, session: Session) -> None:
        """Read all lists of a server on its new shared session."""
        await self._read(session, ("tools", "resources", "prompts"), announced=False)
        self._shared = session

    async def _read(self, session: Session, kinds: Sequence[ChangeKind], *, announced: bool) -> None:
        """Read lists of the server on `session`, and call `on_change` for each list that differs from the list that was read before.

        If `announced`, the server has announced a change of the lists. Then `on_change` is called even for a list that is the same, unless
        the server is another gateway.
        """
        for change in kinds:
            differs = False
            as_of = session.tool_changes
            for kind in KINDS_OF[change]:
                listing = await list_kind(session, kind, self.loops)
                # An announcement of another gateway alone is not reported: two gateways that list each other would repeat it without end.
                announced = announced and not listing.gateway
                differs = differs or listing.entries != self.entries[kind]
                self.entries[kind] = listing.entries
            if change == "tools":
                known, self._agreed = self._agreed, session.negotiated
                tasks_differ = (known is not None and known.has_tasks) != session.negotiated.has_tasks
                if differs or tasks_differ or session.is_modern != self._built_modern:
                    self._rebuild_tools(modern=session.is_modern)
                if self.pins.may_refuse:
                    session.note_tools(self.pins.digests(self.entries["tools"]), as_of=as_of)
                self.pins.note(self.entries["tools"])
            if differs or announced:
                self.on_change(change)
        agreed = session.negotiated
        self._to_store = CachedListing(dict(self.entries), session.is_modern, agreed.protocol_version, agreed.instructions)
        self._unstored.set()

    def _rebuild_tools(self, *, modern: bool) -> None:
        """Build a tool object for each listed tool that may be served. A tool whose definition did not change keeps its object."""
        has_tasks = self._agreed is not None and self._agreed.has_tasks
        may_request_input = self._may_request_input(modern and not has_tasks)
        keeps_era, self._built_modern, state = modern == self._built_modern, modern, (may_request_input, has_tasks)
        held = self.pins.judge(self.entries["tools"])
        tools: dict[str, tuple[JsonObject, RemoteTool]] = {}
        for wire in self.entries["tools"]:
            name = str(wire["name"])
            if name in held:
                continue
            known = self._tools.get(name) if keeps_era else None
            if known is not None and known[0] == wire and (known[1].definition.may_request_input, known[1].has_tasks) == state:
                tools[name] = known
                continue
            listed = to_listed(wire, modern=modern, may_request_input=may_request_input, has_tasks=has_tasks)
            if listed is None:
                logger.warning("tool with an invalid x-mcp-header annotation dropped server=%s tool=%r", self._server, name)
            elif name in tools:
                logger.warning("tool is listed twice, the first definition counts server=%s tool=%r", self._server, name)
            else:
                tools[name] = (wire, RemoteTool(listed, self._sender))
        self._tools = tools

    def annotations_of(self, name: str) -> JsonMapping | None:
        """Return a tool's annotations as the server listed them; `None` for an unknown tool or a tool without annotations."""
        known = self._tools.get(name)
        return known[1].definition.annotations if known is not None else None

    def pin(self, pinned: Mapping[str, str] | None) -> None:
        """Set the digests of the tools in the lock file, by tool name; `None` if the file does not contain the server.

        Called at the start and after each change of the file. If the digests changed, all listed tools are compared with them again.
        """
        self._judge_again(is_needed=self.pins.take(pinned))

    async def read_pins_again(self) -> None:
        """Read the recorded (accepted) tool definitions again, because a person accepted a definition in another process."""
        self._judge_again(is_needed=await self.pins.read_again())

    def _judge_again(self, *, is_needed: bool) -> None:
        if is_needed:
            self._rebuild_tools(modern=self._built_modern)
            self.on_change("tools")

    async def admit(self, session: Session, method: str, params: JsonMapping) -> None:
        """Check before a `tools/call` that the session of the call lists the tool with its accepted definition.

        Does nothing for other methods, or if no call can be refused: the lock file has no accepted definitions of the server, or policy
        only warns. The tools of a session are read before its first call, and again after the server announced a change.

        Raises:
            PolicyDenied: The tool is not listed, or its definition differs.
            NotSent: The tools cannot be read.
        """
        if method != "tools/call" or not self.pins.may_refuse:
            return
        listed = session.listed_tools
        if listed is None:
            await self._read_before_call(session)
            listed = session.listed_tools
        if listed is None:
            if session.closed.is_set():
                raise _gone(self._server)
            text = f"Server {self._server!r} changed its tools and they could not be read again; try again in a moment."
            raise NotSent(text, server=self._server)
        self.pins.admit(str(params.get("name")), listed)

    async def _read_before_call(self, session: Session) -> None:
        """Read the tools of a session before a call, because they were not read on this session yet or have changed since.

        Raises:
            NotSent: The connection broke before the tools were read, so that the call was not sent.
        """
        with anyio.move_on_after(LIST_TIMEOUT_SECONDS + REREAD_SPACING_SECONDS):
            try:
                if session is not self._shared:
                    as_of = session.tool_changes
                    listing = await list_kind(session, "tools", self.loops)
                    session.note_tools(self.pins.digests(listing.entries), as_of=as_of)
                elif self._rereads:
                    await self._rereads[-1].wait()
                else:
                    await self._read(session, ("tools",), announced=False)
            except OutcomeUnknown:
                raise _gone(self._server) from None

    def recall(self, memory: ListingCache, first_use: DefinitionRecord) -> None:
        """Serve the lists that an earlier run stored in `memory`, until the server's current lists are read.

        Also load the tool definitions that were accepted when the server was first used, from `first_use`; later definitions are compared
        with them. Call this before the connection to the server starts, and in a thread, because it reads files and blocks.

        Raises:
            StorageError: The record `first_use` cannot be read.
        """
        self._memory = memory
        self.cached = memory.recall()
        self.pins.begin(first_use, was_listed=self.cached is not None)
        if self.cached is not None:
            self.entries = {kind: received(entries) for kind, entries in self.cached.lists.items()}
            self._rebuild_tools(modern=self.cached.is_modern)

    def succeed(self, former: ServerLists) -> None:
        """If no lists are stored, serve those of `former` until the server's current lists are read.

        `former` are the lists of the same server before its configuration changed.
        """
        if self.cached is None and any(former.entries.values()):
            agreed = former._agreed or former.cached
            if agreed is not None:
                self.cached = CachedListing(dict(former.entries), former._built_modern, agreed.protocol_version, agreed.instructions)
                self.entries = dict(self.cached.lists)
                self._rebuild_tools(modern=self.cached.is_modern)

    @property
    def is_known(self) -> bool:
        """Whether all lists of the server are known, because this run has read them, or an earlier run or configuration has stored them."""
        return self.cached is not None or self._to_store is not None

    async def store_forever(self) -> None:
        """Store the lists each time they were read, and check them for poisoning, in the background until cancelled."""
        while True:
            await self._unstored.wait()
            await self._store()
            await self.suspicions.judge()

    async def close(self) -> None:
        """Store the lists if they were read since they were last stored."""
        if self._unstored.is_set():
            await self._store()

    async def _store(self) -> None:
        with anyio.CancelScope(shield=True):
            self._unstored = anyio.Event()
            self._judge_again(is_needed=await self.pins.write())
            if self._memory is not None and self._to_store is not None:
                await anyio.to_thread.run_sync(self._memory.keep, self._to_store)

    def mark_changed(self, kind: ChangeKind) -> None:
        """Schedule reading the list `kind` again, because the server announced that the list changed."""
        if kind == "tools":
            if self._shared is not None:
                self._shared.forget_tools()
            if "tools" not in self._dirty:
                self._rereads.append(anyio.Event())
        self._dirty.add(kind)
        self._changed.set()

    async def refresh_forever(self, connection: Connection) -> None:
        """Read the lists that `mark_changed` scheduled, in the background until cancelled."""
        spaced = float("-inf")
        while True:
            await self._changed.wait()
            await anyio.sleep(max(COALESCE_SECONDS, spaced - anyio.current_time()))
            spaced = anyio.current_time() + REREAD_SPACING_SECONDS
            kinds: tuple[ChangeKind, ...] = tuple(self._dirty)
            self._dirty.clear()
            self._changed = anyio.Event()
            awaited = list(self._rereads)
            connection.begin_use()
            try:
                session = await connection.session()
                with anyio.fail_after(LIST_TIMEOUT_SECONDS):
                    await self._read(session, kinds, announced=True)
            except (UpstreamError, TimeoutError) as error:
                logger.warning("lists not read again server=%s reason=%s", self._server, error)
            finally:
                connection.end_use()
            for event in awaited:
                self._rereads.remove(event)
                event.set()


def _gone(server: str) -> SessionGone:
    return SessionGone(f"Server {server!r} went away while its tools were read.", server=server)

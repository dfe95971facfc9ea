"""`UpstreamSource`: one remote MCP server as a source of tools, resources, prompts and completion.

Lists are read when the server becomes ready and again when it says that they changed, never per call; every
call is exactly one upstream request. Policy on arguments and results is the gate's, on asks `inputs`'.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from typing import cast

import anyio

from gateway.auth.principal import LOCAL
from gateway.config.models import HttpServer, ServerEntry, SseServer
from gateway.config.policies import SourcePolicy
from gateway.errors import (
    AskExpired,
    AskUnavailable,
    AuthNeeded,
    NotFound,
    SessionGone,
    UpstreamError,
    UpstreamLost,
    UpstreamRefused,
    UpstreamUnavailable,
)
from gateway.json_types import JsonMapping, JsonObject
from gateway.tools.base import ChangeKind, Finished, InputRequired, Kind, OnChange, SkillMethod, SourceStatus, Tool
from gateway.tools.context import CallContext, ClientProfile, LogLevel
from gateway.tools.drive import keyed
from gateway.tools.waits import own_task
from gateway.upstream.children import ChildProcesses
from gateway.upstream.connection import Connection
from gateway.upstream.conversing import converse
from gateway.upstream.credentials import OwnedCredentials
from gateway.upstream.delivery import Delivery
from gateway.upstream.first_use import FirstUse
from gateway.upstream.hop import received_entries
from gateway.upstream.inputs import Answered, AskServices, InputGuard, Relayed, to_input_required
from gateway.upstream.listing import KINDS_OF, list_kind, to_listed
from gateway.upstream.loops import Loops
from gateway.upstream.negotiated import Negotiated
from gateway.upstream.pinning import Pinning
from gateway.upstream.refusals import RESOURCE_MISSING, agreed, as_it_is, begin_again, explain, sign_in_first
from gateway.upstream.remembered import Memory, Remembered
from gateway.upstream.session import CANCEL_SECONDS, Session
from gateway.upstream.suspicions import Suspicions
from gateway.upstream.tasks import TaskFollower, task_options
from gateway.upstream.texts import readable_ask, readable_asks, readable_text, readable_value
from gateway.upstream.tool import RemoteTool
from gateway.upstream.transport import Remote
from gateway.upstream.watching import Watcher

logger = logging.getLogger(__name__)

LIST_TIMEOUT_SECONDS = 60.0
"""Time for one complete re-reading of a server's lists."""

COALESCE_SECONDS = 0.1
"""Changes announced within this time are read together; some servers announce dozens at start."""

REREAD_SPACING_SECONDS = 1.0
"""Lists are read again no more often than this, however often a server says that they changed."""


class UpstreamSource:
    """One remote server. Enter it to start; calls wait for the connection, listings never do."""

    def __init__(
        self,
        server: str,
        entry: ServerEntry,
        policy: SourcePolicy,
        services: AskServices,
        *,
        own_id: str,
        client: JsonObject,
        credentials: OwnedCredentials | None = None,
        children: ChildProcesses | None = None,
    ) -> None:
        """`own_id` is this gateway's hop id, `client` the `clientInfo` shown to the server; `children` counts its processes.

        No side effects.
        """
        remote = Remote(server, entry, policy, client, children, credentials)
        self._server, self._entry, self._policy = server, entry, policy
        self._loops = Loops(server, own_id)
        self._lists: dict[str, list[JsonObject]] = {"tools": [], "resources": [], "templates": [], "prompts": []}
        self._tools: dict[str, tuple[JsonObject, RemoteTool]] = {}
        self._pins = Pinning(server, policy.pins)
        self.quarantined = self._pins.quarantined
        self.suspicions = Suspicions(server, lambda: self._lists)
        self._built_modern = False
        self._agreed: Negotiated | None = None
        self._rereads: list[anyio.Event] = []
        """Set when a reading of the tools that has not begun yet, or is going on, has ended."""
        self._shared: Session | None = None
        """The session whose listing is the catalog's."""
        self._memory: Memory | None = None
        self._recalled: Remembered | None = None
        self._to_keep: Remembered | None = None
        self._kept = anyio.Event()
        """Set when there is something new to write down."""
        self._dirty: set[ChangeKind] = set()
        self._changed = anyio.Event()
        self._on_change: OnChange = lambda _: None
        self._guard = InputGuard(server, policy, services)
        self._watcher = Watcher(server, self._mark_changed)
        capabilities = self._guard.shared_capabilities()
        self._connection = Connection(
            remote, self, capabilities=capabilities, on_ready=self._load, keep_awake=lambda: self._watcher.is_watching
        )
        self._delivery = Delivery(remote, self._connection, self, own_id=own_id, annotations_of=self._annotations_of)
        self._credentials = credentials
        self._is_over = False
        self.tasks = TaskFollower(server, self, task_options(policy.tasks), readable=lambda text: readable_text(text, policy))
        self._stack = AsyncExitStack()

    @property
    def id(self) -> str:
        """The server's key in the configuration."""
        return self._server

    async def __aenter__(self) -> UpstreamSource:
        tasks = await self._stack.enter_async_context(anyio.create_task_group())
        self._stack.callback(tasks.cancel_scope.cancel)
        self._delivery.start(tasks)
        if self._credentials is not None:
            tasks.start_soon(self._credentials.run)
        asleep = self._policy.start == "lazy" and any(self._lists.values())
        tasks.start_soon(functools.partial(self._connection.run, asleep=asleep))
        tasks.start_soon(self._refresh_forever)
        tasks.start_soon(self._keep_lists)
        tasks.start_soon(self._watcher.run, self._connection)
        return self

    async def __aexit__(self, *exc: object) -> None:
        self._is_over = True
        self._connection.settled.set()
        self._connection.heard.set()
        await self.tasks.drain()
        await self._stack.aclose()
        if self._kept.is_set():
            await self._keep()

    async def settled(self) -> None:
        """Wait until the first attempt to reach the server has ended, well or badly; not at all for one that starts with the first call."""
        await self._connection.settled.wait()

    async def is_silent(self) -> bool:
        """Whether a server behind a URL has not said anything in the time that one takes which is there; a program may take any time."""
        return await self._connection.is_silent()

    def status(self) -> SourceStatus:
        """How the server is doing."""
        connection = self._connection
        agreed = connection.negotiated
        return SourceStatus(
            name=self._server,
            kind="server",
            transport="http" if isinstance(self._entry, HttpServer) else "sse" if isinstance(self._entry, SseServer) else "stdio",
            protocol_version=agreed.protocol_version if agreed else "",
            state=connection.state,
            tools=len(self._tools),
            milliseconds=connection.milliseconds,
            error=connection.last_error or None,
            quarantined=self.quarantined(),
            suspicious=self.suspicions.found,
            loop=self._loops.problem,
            since=connection.down_since_iso,
            questions=self._delivery.questions(self._guard.approving),
        )

    @property
    def instructions(self) -> str | None:
        """What the server tells its clients about itself."""
        agreed = self._connection.negotiated or self._recalled
        return readable_text(agreed.instructions, self._policy) if agreed and agreed.instructions else None

    @property
    def may_ask(self) -> bool:
        """Whether the server may ask in the middle of any request: a 2025 server may, a modern one asks in results."""
        agreed = self._connection.negotiated
        return self._guard.asks_midway(is_modern=agreed is not None and agreed.era == "modern")

    # -- lists -------------------------------------------------------------------------------------------------

    async def tools(self) -> Sequence[Tool]:
        """The server's tools as last listed."""
        return [tool for _, tool in self._tools.values()]

    async def list(self, kind: Kind) -> Sequence[JsonObject]:
        """The server's resources, templates or prompts as last listed."""
        return self._lists[kind]

    def subscribe(self, on_change: OnChange) -> None:
        """Register the one listener for changed lists."""
        self._on_change = on_change

    def subscribe_updates(self, on_update: Callable[[str], None]) -> None:
        """Register the one listener for changed resources; it gets the native URI."""
        self._watcher.on_update = on_update

    async def _load(self, session: Session) -> None:
        """Read every list of a server that just became ready."""
        await self._read_lists(session, ("tools", "resources", "prompts"), announced=False)
        self._shared = session

    async def _read_lists(self, session: Session, kinds: Sequence[ChangeKind], *, announced: bool) -> None:
        """Read lists and say which changed; one the server `announced` as changed is passed on as that in any case."""
        for change in kinds:
            differs = False
            as_of = session.tool_changes
            for kind in KINDS_OF[change]:
                listing = await list_kind(session, kind, self._loops)
                # Two gateways that list each other would otherwise announce to each other for ever.
                announced = announced and not listing.gateway
                differs = differs or listing.entries != self._lists[kind]
                self._lists[kind] = listing.entries
            if change == "tools":
                known, self._agreed = self._agreed, session.negotiated
                tasks_differ = (known is not None and known.has_tasks) != session.negotiated.has_tasks
                if differs or tasks_differ or session.is_modern != self._built_modern:
                    self._rebuild_tools(modern=session.is_modern)
                if self._pins.guards:
                    session.note_tools(self._pins.digests(self._lists["tools"]), as_of=as_of)
                self._pins.note(self._lists["tools"])
            if differs or announced:
                self._on_change(change)
        agreed = session.negotiated
        self._to_keep = Remembered(dict(self._lists), session.is_modern, agreed.protocol_version, agreed.instructions)
        self._kept.set()

    def _rebuild_tools(self, *, modern: bool) -> None:
        """Make a tool for each accepted listing entry, keeping those whose definition did not change."""
        has_tasks = self._agreed is not None and self._agreed.has_tasks
        may_ask = self._guard.asks_midway(is_modern=modern and not has_tasks)
        keeps_era, self._built_modern = modern == self._built_modern, modern
        held = self._pins.judge(self._lists["tools"])
        tools: dict[str, tuple[JsonObject, RemoteTool]] = {}
        for wire in self._lists["tools"]:
            name = str(wire["name"])
            if name in held:
                continue
            known = self._tools.get(name) if keeps_era else None
            if known is not None and known[0] == wire and (known[1].definition.may_ask, known[1].has_tasks) == (may_ask, has_tasks):
                tools[name] = known
                continue
            listed = to_listed(wire, modern=modern, may_ask=may_ask, has_tasks=has_tasks)
            if listed is None:
                logger.warning("%s: tool %r dropped: its x-mcp-header annotation is invalid", self._server, name)
            elif name in tools:
                logger.warning("%s: tool %r is listed twice; the first counts", self._server, name)
            else:
                tools[name] = (wire, RemoteTool(listed, self))
        self._tools = tools

    # -- pins and what is kept of lists ------------------------------------------------------------------------

    def pin(self, pinned: Mapping[str, str] | None) -> None:
        """Take the digests of the lock file by tool; `None` if the server is not in it. Called at the start and after each change."""
        self._judge_again(is_needed=self._pins.take(pinned))

    async def read_pins_again(self) -> None:
        """Take what a person accepted of this server's tools in another process."""
        self._judge_again(is_needed=await self._pins.read_again())

    def _judge_again(self, *, is_needed: bool) -> None:
        if is_needed:
            self._rebuild_tools(modern=self._built_modern)
            self._on_change("tools")

    def recall(self, memory: Memory, first_use: FirstUse) -> None:
        """List what `memory` kept until the server itself is read, and hold its tools to `first_use`; before entering. Blocks.

        Raises:
            StorageError: The record of first listings cannot be used.
        """
        self._memory = memory
        self._recalled = memory.recall()
        self._pins.begin(first_use, was_listed=self._recalled is not None)
        if self._recalled is not None:
            self._lists = {kind: list(received_entries(entries)) for kind, entries in self._recalled.lists.items()}
            self._rebuild_tools(modern=self._recalled.is_modern)

    def succeed(self, former: UpstreamSource) -> None:
        """Come in place of the server's `former` connection, made from another entry or policy; before entering.

        What clients watch stays watched. What it listed stays listed until this one is read, where nothing better is known.
        """
        self._watcher.inherit(former._watcher)
        if self._recalled is None and any(former._lists.values()):
            agreed = former._connection.negotiated or former._recalled
            if agreed is not None:
                self._recalled = Remembered(dict(former._lists), former._built_modern, agreed.protocol_version, agreed.instructions)
                self._lists = dict(self._recalled.lists)
                self._rebuild_tools(modern=self._recalled.is_modern)

    @property
    def is_known(self) -> bool:
        """Whether there is a complete listing, of this run or an earlier one."""
        return self._recalled is not None or self._connection.negotiated is not None

    async def _keep_lists(self) -> None:
        """Write each new listing down, off the path of calls; `__aexit__` does it with the last one."""
        while True:
            await self._kept.wait()
            await self._keep()
            await self.suspicions.judge()

    async def _keep(self) -> None:
        with anyio.CancelScope(shield=True):
            self._kept = anyio.Event()
            self._judge_again(is_needed=await self._pins.write())
            if self._memory is not None and self._to_keep is not None:
                await anyio.to_thread.run_sync(self._memory.keep, self._to_keep)

    def definitions(self) -> Sequence[JsonObject]:
        """Every tool as the server lists it, quarantined ones too, for the lock file."""
        return self._lists["tools"]

    def pin_remarks(self) -> list[str]:
        """What the lock file holds that is not there."""
        return self._pins.remarks()

    @property
    def guards(self) -> bool:
        """Whether the server is pinned (`Owner`)."""
        return self._pins.guards

    async def admit(self, session: Session, method: str, params: JsonMapping) -> None:
        """Let a call of a pinned server pass only for a tool that is accepted as `session` lists it (`Owner`).

        What a session lists is read once, and again when it announced a change; the calls in between cost a look at a table.
        """
        if method != "tools/call" or not self._pins.guards:
            return
        listed = session.listed_tools
        if listed is None:
            await self._read_before_call(session)
            listed = session.listed_tools
        if listed is None:
            if session.closed.is_set():
                raise _gone(self._server)
            text = f"Server {self._server!r} changed its tools and they could not be read again; try again in a moment."
            raise UpstreamUnavailable(text, server=self._server)
        self._pins.admit(str(params.get("name")), listed)

    async def _read_before_call(self, session: Session) -> None:
        """Read the tools of a session that were not read on it, or changed since.

        Raises:
            UpstreamUnavailable: It cannot be done; the call that waits for it was not sent.
        """
        await own_task()
        with anyio.move_on_after(LIST_TIMEOUT_SECONDS + REREAD_SPACING_SECONDS):
            try:
                if session is not self._shared:
                    as_of = session.tool_changes
                    listing = await list_kind(session, "tools", self._loops)
                    session.note_tools(self._pins.digests(listing.entries), as_of=as_of)
                elif self._rereads:
                    await self._rereads[-1].wait()
                else:
                    await self._read_lists(session, ("tools",), announced=False)
            except UpstreamLost:
                raise _gone(self._server) from None

    def _mark_changed(self, kind: ChangeKind) -> None:
        if kind == "tools":
            if self._shared is not None:
                self._shared.forget_tools()
            if "tools" not in self._dirty:
                self._rereads.append(anyio.Event())
        self._dirty.add(kind)
        self._changed.set()

    async def _refresh_forever(self) -> None:
        spaced = float("-inf")
        while True:
            await self._changed.wait()
            await anyio.sleep(max(COALESCE_SECONDS, spaced - anyio.current_time()))
            spaced = anyio.current_time() + REREAD_SPACING_SECONDS
            kinds: tuple[ChangeKind, ...] = tuple(self._dirty)
            self._dirty.clear()
            self._changed = anyio.Event()
            awaited = list(self._rereads)
            self._connection.begin_use()
            try:
                session = await self._connection.session()
                with anyio.fail_after(LIST_TIMEOUT_SECONDS):
                    await self._read_lists(session, kinds, announced=True)
            except (UpstreamError, TimeoutError) as error:
                logger.warning("%s: lists could not be read again: %s", self._server, error)
            finally:
                self._connection.end_use()
            for event in awaited:
                self._rereads.remove(event)
                event.set()

    def _annotations_of(self, name: str) -> JsonMapping | None:
        """The server's own hints about a tool, as listed."""
        known = self._tools.get(name)
        return known[1].definition.annotations if known is not None else None

    # -- what the server sends ---------------------------------------------------------------------------------

    async def answer(self, request: JsonObject, ctx: CallContext | None) -> JsonObject:
        """A legacy server asks something during `ctx`'s call (`SessionHooks`)."""
        with self._delivery.question(str(request.get("method")), ctx) as asking:
            if asking is None:
                raise AskUnavailable("It cannot be told for which caller this is.", capability="")
            try:
                return await self._guard.answer(readable_ask(request, self._policy, self._server), asking)
            except AskExpired as error:
                if asking.clocks:
                    asking.clocks[-1].end(str(error))
                    await anyio.sleep(CANCEL_SECONDS)
                raise

    def capabilities_for(self, client: ClientProfile) -> JsonObject:
        """Client capabilities to declare on behalf of one caller (`Owner`)."""
        return self._guard.capabilities_for(client)

    def shared_capabilities(self) -> JsonObject:
        """Client capabilities declared on the connection that callers share (`Owner`)."""
        return self._guard.shared_capabilities()

    async def notified(self, method: str, params: JsonMapping, ctx: CallContext | None) -> None:
        """The server notifies (`SessionHooks`)."""
        if method == "notifications/message":
            if ctx is not None:
                name = params.get("logger")
                level = cast("LogLevel", params.get("level") or "info")
                data = readable_value(params.get("data"), self._policy)
                await ctx.log(level, data, readable_text(name, self._policy) if isinstance(name, str) else None)
            return
        self._watcher.notified(method, params)

    # -- calls -------------------------------------------------------------------------------------------------

    async def send(self, method: str, params: JsonObject, ctx: CallContext, headers: Mapping[str, str] | None = None) -> JsonObject:
        """One request on behalf of `ctx` (`Delivery.send`); what the result still asks is judged and the caller's to answer.

        Refusals that the caller's era says otherwise are translated.
        """
        if self._is_over:
            text = f"Server {self._server!r} was taken out of the configuration, or changed in it; list what there is now."
            raise UpstreamUnavailable(text, server=self._server)
        if ctx.request_state is not None:  # else it is no retry
            await self._await_sign_in(ctx)
            ctx = begin_again(ctx)
        try:
            first = None
            if not self._guard.answers_itself:
                first = await self._delivery.send(method, dict(params), ctx, headers)
                if "inputRequests" not in first and first.get("resultType") != "input_required":
                    return first
            return await self._converse(method, params, ctx, headers, first)
        except UpstreamRefused as error:

            async def judge(ask: JsonObject) -> JsonObject:
                judged = await self._guard.judge(readable_ask(ask, self._policy, self._server), ctx)
                return judged.result if isinstance(judged, Answered) else judged.request

            return await explain(error, ctx, self._guard.capabilities_for(ctx.client), judge)
        except AuthNeeded as error:
            return await self._offer_sign_in(error, ctx)

    async def _converse(
        self, method: str, params: JsonObject, ctx: CallContext, headers: Mapping[str, str] | None, first: JsonObject | None
    ) -> JsonObject:
        """A request that may ask: what is answered here goes back to the server; `first` is its first result, where there is one."""

        async def once(leg: CallContext) -> JsonObject:
            nonlocal first
            result = first if first is not None else await self._delivery.send(method, dict(params), leg, headers)
            first = None
            if isinstance(asked := result.get("inputRequests"), dict):
                result["inputRequests"] = readable_asks(cast("JsonObject", asked), self._policy, self._server)
            return result

        return await converse(self._guard, once, ctx)

    async def _offer_sign_in(self, error: AuthNeeded, ctx: CallContext) -> JsonObject:
        """Have the local user sign in where their client can show a page; anybody else reads which command does it.

        A page of somebody else's would come back to their machine, and sign the gateway in as them.
        """
        offer = self._credentials.sign_in if self._credentials is not None else None
        if offer is None or ctx.principal.id != LOCAL.id or not ctx.client.can("elicitation.url"):
            raise error
        await own_task()
        invitation = await offer.invite()
        if invitation is None:
            raise error
        return await explain(sign_in_first(self._server, *invitation), ctx, {}, as_it_is)

    async def _await_sign_in(self, ctx: CallContext) -> None:
        """The retry of a call that was told to sign in first waits, like every wait for a person, until that is done."""
        offer = self._credentials.sign_in if self._credentials is not None else None
        if self._credentials is not None and offer is not None and agreed(ctx):
            async with ctx.waiting():
                await offer.finished()
            await self._credentials.look_again()
            self._connection.try_at_once()

    def judge(self, result: JsonObject, ctx: CallContext) -> InputRequired:
        """The asks of an `input_required` result of `send`, which judged them."""
        return to_input_required(result)

    async def reconnect(self) -> None:
        """Have a session again (`TaskLine`)."""
        await self._connection.session()

    async def judge_ask(self, request: JsonObject, ctx: CallContext) -> Relayed | Answered:
        """One ask of a relayed task, judged as every other (`TaskLine`)."""
        return await self._guard.judge(readable_ask(request, self._policy, self._server), ctx)

    async def answer_ask(self, request: JsonObject, key: str, ctx: CallContext) -> JsonObject:
        """Answer one request for input of a followed task, judged like every other (`TaskLine`)."""
        asked = keyed(readable_ask(request, self._policy, self._server), key)
        return await self._guard.answer(asked, ctx, ctx.question(f"task {key}"))

    # -- resources, prompts, completion ------------------------------------------------------------------------

    async def read(self, uri: str, ctx: CallContext) -> Finished | InputRequired:
        """Read a resource by its native URI."""
        try:
            result = await self.send("resources/read", {"uri": uri}, ctx)
        except UpstreamRefused as error:
            if error.code in RESOURCE_MISSING:
                raise NotFound("resource", uri) from None
            raise
        return self._finish(result, ctx)

    @property
    def serves_skills(self) -> bool:
        """Whether the server has the skills extension (`SkillServing`); known once it was reached."""
        agreed = self._connection.negotiated
        return agreed is not None and agreed.skills is not None

    @property
    def reads_directories(self) -> bool:
        """Whether its skills extension lists folders."""
        agreed = self._connection.negotiated
        return bool(agreed is not None and agreed.skills and agreed.skills.get("directoryRead"))

    async def skills(self, method: SkillMethod, params: JsonObject, ctx: CallContext) -> JsonObject:
        """One request of the skills extension in the server's own URIs."""
        try:
            return await self.send(method, params, ctx)
        except UpstreamRefused as error:
            if error.code in RESOURCE_MISSING:
                kind = "cursor" if method == "skills/list" else "skill" if method == "skills/get" else "directory"
                raise NotFound(kind, str(params.get("uri") or params.get("cursor") or "")) from None
            raise

    async def get_prompt(self, name: str, arguments: Mapping[str, str], ctx: CallContext) -> Finished | InputRequired:
        """Render a prompt by its native name."""
        params: JsonObject = {"name": name}
        if arguments:
            params["arguments"] = dict(arguments)
        return self._finish(await self.send("prompts/get", params, ctx), ctx)

    def _finish(self, result: JsonObject, ctx: CallContext) -> Finished | InputRequired:
        if result.get("resultType") == "input_required":
            return self.judge(result, ctx)
        result.pop("resultType", None)
        return Finished(result)

    async def complete(self, ref: JsonObject, argument: JsonObject, context: JsonObject | None, ctx: CallContext) -> JsonObject:
        """Complete an argument; a server without completion has no suggestions."""
        session = await self._connection.session()
        if "completions" not in session.negotiated.capabilities:
            return {"values": []}
        params: JsonObject = {"ref": ref, "argument": argument}
        if context is not None:
            params["context"] = context
        result = await self.send("completion/complete", params, ctx)
        return cast("JsonObject", readable_value(result.get("completion") or {"values": []}, self._policy))

    async def watch(self, uri: str) -> None:
        """Subscribe to a resource; counted."""
        await self._watcher.watch(uri, self._connection)

    async def unwatch(self, uri: str) -> None:
        """Undo one `watch`."""
        self._watcher.unwatch(uri)


def _gone(server: str) -> SessionGone:
    return SessionGone(f"Server {server!r} went away while its tools were read.", server=server)

"""`UpstreamSource`: makes one remote MCP server available to the gateway as a source of tools, resources, prompts and completion.

Lists are read when the server becomes ready and when it announces a change. A call reads the tools first only if the lock file pins them
and they were not read on the session of the call since their last change. A call is one request to the server, unless it is resent or runs
as a task. The package `gate` applies policy to arguments and results, and `input_guard` applies policy to requests for input.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from datetime import UTC, datetime
from typing import cast

import anyio

from gateway.auth.principal import LOCAL
from gateway.config.models import ServerEntry, StdioServer
from gateway.config.policies import SourcePolicy
from gateway.errors import InputExpired, InputUnavailable, NotFound, NotSent, Rejected, StorageError, Unauthorized
from gateway.json_types import JsonMapping, JsonObject
from gateway.tools.base import Finished, InputRequired, Kind, OnChange, SkillMethod, SourceStatus, Tool
from gateway.tools.context import CallContext
from gateway.tools.drive import keyed
from gateway.tools.ports import LogLevel
from gateway.upstream.change_listener import ChangeListener
from gateway.upstream.child_processes import ChildProcesses
from gateway.upstream.connection import Connection
from gateway.upstream.credential_protocols import OwnedCredentials
from gateway.upstream.delivery import Delivery
from gateway.upstream.error_translation import RESOURCE_MISSING, agreed, as_it_is, begin_again, explain, sign_in_first
from gateway.upstream.input_guard import Answered, InputGuard, InputRequestServices, Relayed, to_input_required
from gateway.upstream.input_rounds import converse
from gateway.upstream.relayed_calls import RelayedCaller, RelayedCalls
from gateway.upstream.server_lists import ServerLists
from gateway.upstream.server_messages import CANCEL_SECONDS
from gateway.upstream.task_follower import Resends, TaskFollower, task_options
from gateway.upstream.text_filters import readable_input_request, readable_input_requests, readable_text, readable_value
from gateway.upstream.transport import Remote

logger = logging.getLogger(__name__)

SILENT_SECONDS = 2.0
"""Seconds after the start of the gateway for which listings wait for the first answer of a server over HTTP.

Then a listing leaves out this server until it has answered.
"""


class UpstreamSource:
    """One remote MCP server as a source of tools, resources and prompts. Entering it starts the connection.

    Calls wait until the server is connected; listings return the last known lists at once.
    """

    def __init__(
        self,
        server: str,
        entry: ServerEntry,
        policy: SourcePolicy,
        services: InputRequestServices,
        *,
        own_id: str,
        client: JsonObject,
        credentials: OwnedCredentials | None = None,
        children: ChildProcesses | None = None,
    ) -> None:
        """Create the source without side effects. `server` is the server's name in the configuration, and `entry` its entry.

        `own_id` is this gateway's id, by which loops between gateways are found. `client` is the `clientInfo` that the server receives.
        `children` limits the gateway's child processes.
        """
        remote = Remote(server, entry, policy, client, children, credentials)
        self._server, self._entry, self._policy = server, entry, policy
        self._guard = InputGuard(server, policy, services)
        self.lists = ServerLists(server, policy, own_id, self, lambda is_modern: self._guard.may_request_input(is_modern=is_modern))
        self._watcher = ChangeListener(server, self.lists.mark_changed)
        capabilities = self._guard.shared_capabilities()
        self._connection = Connection(
            remote, self, capabilities=capabilities, on_ready=self.lists.load, keep_awake=lambda: self._watcher.is_watching
        )
        self._delivery = Delivery(
            remote,
            self._connection,
            self,
            self._guard,
            own_id=own_id,
            pins=self.lists.pins,
            admit=self.lists.admit,
            annotations_of=self.lists.annotations_of,
        )
        self.relayed = RelayedCalls(self, self._connection, self._delivery.relay, remote.owns_process)
        """Serves the requests that other gateways forward to this server, if it is a stdio server with `single: true`."""
        self._credentials = credentials
        self._is_over = False
        self.tasks = TaskFollower(server, self, task_options(policy.tasks), readable=lambda text: readable_text(text, policy))
        self._stack = AsyncExitStack()

    @property
    def id(self) -> str:
        """The server's name, which is its key in `mcpServers` of the configuration."""
        return self._server

    async def __aenter__(self) -> UpstreamSource:
        tasks = await self._stack.enter_async_context(anyio.create_task_group())
        self._stack.callback(tasks.cancel_scope.cancel)
        self._delivery.start(tasks)
        if self._credentials is not None:
            tasks.start_soon(self._credentials.run)
        asleep = self._policy.start == "lazy" and any(self.lists.entries.values())
        tasks.start_soon(functools.partial(self._connection.run, asleep=asleep))
        tasks.start_soon(self.lists.refresh_forever, self._connection)
        tasks.start_soon(self.lists.store_forever)
        tasks.start_soon(self._watcher.run, self._connection)
        return self

    async def __aexit__(self, *exc: object) -> None:
        self._is_over = True
        self._connection.settled.set()
        self._connection.responded.set()
        await self.tasks.drain()
        await self._stack.aclose()
        await self.lists.close()

    async def settled(self) -> None:
        """Wait until the first attempt to connect has ended. Return at once for a lazy server (`start: lazy`) with stored lists."""
        await self._connection.settled.wait()

    async def is_silent(self) -> bool:
        """Wait at most `SILENT_SECONDS` for the first answer of a server over HTTP. Return true if it has neither answered nor failed.

        Listings do not wait for a silent server. For a child process, which may take longer to start, return false at once.
        """
        if isinstance(self._entry, StdioServer):
            return False
        with anyio.move_on_after(SILENT_SECONDS):
            await self._connection.responded.wait()
        return not self._connection.responded.is_set()

    def status(self) -> SourceStatus:
        """Return the state of the server and its connection, for the gateway's status."""
        connection = self._connection
        agreed, down_since = connection.negotiated, connection.down_since
        return SourceStatus(
            name=self._server,
            kind="server",
            transport=self._entry.type,
            protocol_version=agreed.protocol_version if agreed else "",
            state=connection.state,
            tools=len(self.lists.tools),
            milliseconds=connection.milliseconds,
            error=connection.last_error or None,
            failure=connection.failure,
            quarantined=self.lists.pins.quarantined(),
            suspicious=self.lists.suspicions.found,
            loop=self.lists.loops.problem,
            since=datetime.fromtimestamp(down_since, UTC).isoformat(timespec="seconds") if down_since is not None else None,
            questions=self._delivery.questions(self._guard.approving),
        )

    def quarantined(self) -> Mapping[str, str]:
        """Return the tools that are not served until a person accepts their definitions: tool name → reason and command to accept."""
        return self.lists.pins.quarantined()

    @property
    def instructions(self) -> str | None:
        """The instructions that the server sent in the handshake, or `None`. Hidden characters are removed unless policy allows them."""
        agreed = self._connection.negotiated or self.lists.cached
        return readable_text(agreed.instructions, self._policy) if agreed and agreed.instructions else None

    @property
    def may_request_input(self) -> bool:
        """Whether the client may get a request for input while it reads a resource or gets a prompt of this server.

        That is so if policy relays the requests of an MCP 2025 server, or if a person must approve sampling requests. For calls of tools,
        `ToolDefinition.may_request_input` is used instead.
        """
        agreed = self._connection.negotiated
        return self._guard.may_request_input(is_modern=agreed is not None and agreed.era == "modern")

    # -- lists -------------------------------------------------------------------------------------------------

    async def tools(self) -> Sequence[Tool]:
        """Return the tools that clients may see and call, as last listed by the server."""
        return self.lists.tools

    async def list(self, kind: Kind) -> Sequence[JsonObject]:
        """Return the resources, resource templates or prompts, as last listed by the server."""
        return self.lists.entries[kind]

    def subscribe(self, on_change: OnChange) -> None:
        """Set the callback that is called when a list changes. It replaces an earlier callback."""
        self.lists.on_change = on_change

    def subscribe_updates(self, on_update: Callable[[str], None]) -> None:
        """Set the callback that gets the URI of each changed resource, as the server writes the URI. It replaces an earlier callback."""
        self._watcher.on_update = on_update

    # -- replacing another source of the same server -----------------------------------------------------------

    def succeed(self, former: UpstreamSource) -> None:
        """Take over the state of `former`, the source of the same server before its entry or policy changed. Call before entering.

        Clients keep watching their resources. Until the current lists are read, this source serves the lists that are stored in a file, or
        those of `former` if no lists are stored.
        """
        self._watcher.inherit(former._watcher)
        self.lists.succeed(former.lists)

    # -- requests and notifications of the server --------------------------------------------------------------

    async def answer(self, request: JsonObject, ctx: CallContext | None) -> JsonObject:
        """Return the answer to a request for input that an MCP 2025 server sends during the call `ctx` (interface `SessionHooks`)."""
        with self._delivery.question(str(request.get("method")), ctx) as asking:
            if asking is None:
                text = "The server sent a request for input that cannot be attributed to one caller, so it was rejected."
                raise InputUnavailable(text, capability="")
            if isinstance(asking.ports.caller, RelayedCaller):  # the other gateway applies policy
                return await asking.ask(request)
            try:
                return await self._guard.answer(readable_input_request(request, self._policy, self._server), asking)
            except InputExpired as error:
                if asking.limits.clocks:
                    asking.limits.clocks[-1].end(str(error))
                    await anyio.sleep(CANCEL_SECONDS)
                raise

    async def notified(self, method: str, params: JsonMapping, ctx: CallContext | None) -> None:
        """Pass a server's log message to the caller of `ctx`, or process a change notification (interface `SessionHooks`)."""
        if ctx is None or method != "notifications/message":  # a changed list concerns every gateway, also if a call has changed it
            self.relayed.notified(method, params)
        if method == "notifications/message":
            if ctx is not None:
                name = params.get("logger")
                level = cast("LogLevel", params.get("level") or "info")
                data = readable_value(params.get("data"), self._policy)
                await ctx.log(level, data, readable_text(name, self._policy) if isinstance(name, str) else None)
            return
        self._watcher.notified(method, params)

    # -- calls -------------------------------------------------------------------------------------------------

    async def send(
        self, method: str, params: JsonObject, ctx: CallContext, headers: Mapping[str, str] | None = None, resends: Resends | None = None
    ) -> JsonObject:
        """Send one request for the call `ctx` to the server, and return the result.

        If the result has requests for input, policy has allowed them, and the caller must answer them. An error that exists only in the
        server's MCP version is translated to the client's version. Raises the errors of `Delivery.send`, `begin_again`, `explain` and
        `InputGuard.judge`.
        """
        if self._is_over:
            text = f"Server {self._server!r} was removed from the configuration, or changed in it; list the tools again."
            raise NotSent(text, server=self._server)
        if ctx.facts.request_state is not None:  # only a retry has a request state
            await self._await_sign_in(ctx)
            ctx = begin_again(ctx)
        try:
            first = None
            if not self._guard.answers_itself:
                first = await self._delivery.send(method, dict(params), ctx, headers, resends)
                if "inputRequests" not in first and first.get("resultType") != "input_required":
                    return first
            return await self._converse(method, params, ctx, headers, first, resends)
        except Rejected as error:

            async def judge(ask: JsonObject) -> JsonObject:
                judged = await self._guard.judge(readable_input_request(ask, self._policy, self._server), ctx)
                return judged.result if isinstance(judged, Answered) else judged.request

            return await explain(error, ctx, self._guard.capabilities_for(ctx.facts.client), judge)
        except Unauthorized as error:
            return await self._offer_sign_in(error, ctx)

    async def _converse(
        self,
        method: str,
        params: JsonObject,
        ctx: CallContext,
        headers: Mapping[str, str] | None,
        first: JsonObject | None,
        resends: Resends | None,
    ) -> JsonObject:
        """Send a request, and resend it as long as the gateway's models can answer all requests for input in its result (`converse`).

        `first` is the first result if the request was sent already.
        """

        async def once(leg: CallContext) -> JsonObject:
            nonlocal first
            result = first if first is not None else await self._delivery.send(method, dict(params), leg, headers, resends)
            first = None
            if isinstance(asked := result.get("inputRequests"), dict):
                result["inputRequests"] = readable_input_requests(cast("JsonObject", asked), self._policy, self._server)
            return result

        return await converse(self._guard, once, ctx)

    async def _offer_sign_in(self, error: Unauthorized, ctx: CallContext) -> JsonObject:
        """Offer a sign-in page to the local user if the client can show URLs; else raise `error`, which names the command to sign in.

        Return an `input_required` result with the page, or raise error -32042 with the page for an MCP 2025 client.

        Remote callers get no offer: the browser would return to the caller's machine, and the gateway would be signed in as that caller.
        """
        offer = self._credentials.sign_in if self._credentials is not None else None
        if offer is None or ctx.facts.principal.id != LOCAL.id or not ctx.facts.client.can("elicitation.url"):
            raise error
        invitation = await offer.invite()
        if invitation is None:
            raise error
        return await explain(sign_in_first(self._server, *invitation), ctx, {}, as_it_is)

    async def _await_sign_in(self, ctx: CallContext) -> None:
        """Wait until the sign-in that the first attempt of this call offered has ended. The wait does not count against the deadline."""
        offer = self._credentials.sign_in if self._credentials is not None else None
        if self._credentials is not None and offer is not None and agreed(ctx):
            async with ctx.waiting():
                await offer.finished()
            await self._credentials.reload_tokens()
            self._connection.try_at_once()

    async def read_tokens_again(self) -> None:
        """Read the stored tokens again, because another gateway has changed some. After a sign-in, connect to the server at once.

        A failure is logged. The next request reads the tokens again.
        """
        if self._credentials is None:
            return
        try:
            await self._credentials.reload_tokens()
        except StorageError as error:
            logger.warning("tokens not read server=%s reason=%s", self.id, error)
        self._connection.connect_after_sign_in()

    async def judge_input_request(self, request: JsonObject, ctx: CallContext) -> Relayed | Answered:
        """Apply policy to a request for input of a task that the caller polls itself (interface `TaskLine`)."""
        return await self._guard.judge(readable_input_request(request, self._policy, self._server), ctx)

    async def answer_input_request(self, request: JsonObject, key: str, ctx: CallContext) -> JsonObject:
        """Apply policy to a request for input of a task that the gateway polls, and return its answer (interface `TaskLine`)."""
        asked = keyed(readable_input_request(request, self._policy, self._server), key)
        return await self._guard.answer(asked, ctx, ctx.question(f"task {key}"))

    # -- resources, prompts, completion ------------------------------------------------------------------------

    async def read(self, uri: str, ctx: CallContext) -> Finished | InputRequired:
        """Read the resource that has `uri` at the server. Raises `NotFound` if the server does not have it."""
        try:
            result = await self.send("resources/read", {"uri": uri}, ctx)
        except Rejected as error:
            if error.code in RESOURCE_MISSING:
                raise NotFound("resource", uri) from None
            raise
        return self._finish(result)

    @property
    def serves_skills(self) -> bool:
        """Whether the server supports the skills extension; false before the first connection (interface `SkillServing`)."""
        agreed = self._connection.negotiated
        return agreed is not None and agreed.skills is not None

    @property
    def reads_directories(self) -> bool:
        """Whether the server's skills extension can list folders (`resources/directory/read`)."""
        agreed = self._connection.negotiated
        return bool(agreed is not None and agreed.skills and agreed.skills.get("directoryRead"))

    async def skills(self, method: SkillMethod, params: JsonObject, ctx: CallContext) -> JsonObject:
        """Send one request of the skills extension, with URIs as the server writes them. Raises `NotFound` for an unknown URI or cursor."""
        try:
            return await self.send(method, params, ctx)
        except Rejected as error:
            if error.code in RESOURCE_MISSING:
                kind = "cursor" if method == "skills/list" else "skill" if method == "skills/get" else "directory"
                raise NotFound(kind, str(params.get("uri") or params.get("cursor") or "")) from None
            raise

    async def get_prompt(self, name: str, arguments: Mapping[str, str], ctx: CallContext) -> Finished | InputRequired:
        """Return the prompt that has `name` at the server, rendered with `arguments`."""
        params: JsonObject = {"name": name}
        if arguments:
            params["arguments"] = dict(arguments)
        return self._finish(await self.send("prompts/get", params, ctx))

    def _finish(self, result: JsonObject) -> Finished | InputRequired:
        if result.get("resultType") == "input_required":
            return to_input_required(result)
        result.pop("resultType", None)
        return Finished(result)

    async def complete(self, ref: JsonObject, argument: JsonObject, context: JsonObject | None, ctx: CallContext) -> JsonObject:
        """Return the server's completion suggestions for an argument; no suggestions if the server does not support completion."""
        session = await self._connection.session()
        if "completions" not in session.negotiated.capabilities:
            return {"values": []}
        params: JsonObject = {"ref": ref, "argument": argument}
        if context is not None:
            params["context"] = context
        result = await self.send("completion/complete", params, ctx)
        return cast("JsonObject", readable_value(result.get("completion") or {"values": []}, self._policy))

    async def watch(self, uri: str) -> None:
        """Count one more client that watches the resource `uri`. For the first client, subscribe to the resource at the server."""
        await self._watcher.watch(uri, self._connection)

    async def unwatch(self, uri: str) -> None:
        """Count one client fewer that watches the resource `uri`. After the last client, unsubscribe from the resource at the server."""
        self._watcher.unwatch(uri)

"""`GatewayServer`: the downstream MCP server, one for both eras and both transports.

Puts the handlers on the SDK's low-level `Server` and owns their background work. The transports are `stdio` and
`http`; what is served is the catalog's.
"""

from __future__ import annotations

import hmac
import logging
from collections.abc import Callable
from contextlib import AsyncExitStack
from importlib import import_module
from typing import TYPE_CHECKING, Any

import anyio
import anyio.to_thread
from mcp.server.context import CallNext, HandlerResult
from mcp.server.lowlevel import NotificationOptions, Server
from mcp.server.models import InitializationOptions
from mcp.server.request_state import RequestStateBoundary, RequestStateSecurity
from mcp.shared.exceptions import MCPError
from mcp_types import (
    CallToolRequestParams,
    CompleteRequestParams,
    GetPromptRequestParams,
    NotificationParams,
    PaginatedRequestParams,
    ReadResourceRequestParams,
    ServerCapabilities,
    ServerTasksCapability,
    ServerTasksRequestsCapability,
    SetLevelRequestParams,
    SubscribeRequestParams,
    SubscriptionsListenRequestParams,
    TasksCallCapability,
    TasksCancelCapability,
    TasksListCapability,
    TasksToolsCapability,
    UnsubscribeRequestParams,
)
from pydantic import ValidationError
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from gateway.auth.principal import LOCAL, Principal
from gateway.catalog import Catalog
from gateway.catalog.disclosure import scope_of
from gateway.catalog.skills import SkillFace
from gateway.config.models import TaskSettings
from gateway.errors import StorageError
from gateway.protocol import MODERN_PROTOCOL_VERSIONS
from gateway.server.caller import WireCaller
from gateway.server.calls import CallHandler
from gateway.server.changes import Changes
from gateway.server.clients import Clients, LegacySession, RequestContext, is_modern, principal_of
from gateway.server.errors import to_rpc_error
from gateway.server.lists import ListHandler
from gateway.server.parked import ParkedCalls
from gateway.server.reads import ReadHandler
from gateway.server.skills import bind_skills, declare_skills
from gateway.server.task_news import TaskNews
from gateway.server.tasks import TaskHandler
from gateway.storage.records import Records
from gateway.tasks.runner import TaskRunner
from gateway.tasks.tools import TaskTools
from gateway.telemetry.instrumentation import OBSERVABILITY_SETTINGS
from gateway.telemetry.operations import SERVER_DURATION, measured
from gateway.tools.base import ChangeKind

if TYPE_CHECKING:
    from gateway.server.agui import AguiRoute, Conversations

logger = logging.getLogger(__name__)

DRAIN_SECONDS = 5.0
"""How long a server that is told to stop waits for what its tasks do that must not be done twice."""

REVOKED_SECONDS = 2.0
"""How long a call or task may go on after its caller's API key was revoked; what it asks next is refused at once."""

AGUI_PATH = "/agui/"
"""Where agents are reached by AG-UI applications, each by its name."""


async def keep_internals(ctx: RequestContext, call_next: CallNext) -> HandlerResult:
    """Outermost middleware: what an unexpected exception says stays here; the SDK would send it to legacy clients as it is.

    Where metrics are made, it measures too.
    """
    if OBSERVABILITY_SETTINGS.enable_instrumentation:
        transport = "pipe" if ctx.request is None else "tcp"
        return await measured(
            SERVER_DURATION,
            ctx.method,
            ctx.params,
            lambda: _without_internals(ctx, call_next),
            protocol_version=ctx.protocol_version,
            transport=transport,
            code_of=lambda error: error.code if isinstance(error, MCPError) else None,
        )
    return await _without_internals(ctx, call_next)


async def _without_internals(ctx: RequestContext, call_next: CallNext) -> HandlerResult:
    try:
        return await call_next(ctx)
    except (MCPError, ValidationError):
        raise
    except Exception as error:  # the call-handler boundary
        told = to_rpc_error(error, "modern" if is_modern(ctx) else "legacy")
        raise MCPError(told.code, told.message, told.data) from None


class _Server(Server[Any]):
    """The SDK server, advertising list changes to legacy HTTP clients too (the SDK passes no options there), and 2025 tasks."""

    def get_capabilities(
        self,
        notification_options: NotificationOptions | None = None,
        experimental_capabilities: dict[str, dict[str, Any]] | None = None,
        extensions: dict[str, dict[str, Any]] | None = None,
        *,
        protocol_version: str | None = None,
    ) -> ServerCapabilities:
        """As the SDK's; a 2025-11-25 client is told of tasks in its own dialect."""
        found = super().get_capabilities(
            notification_options, experimental_capabilities, extensions, protocol_version=protocol_version
        )
        if protocol_version in MODERN_PROTOCOL_VERSIONS:
            return found
        calls = ServerTasksRequestsCapability(tools=TasksToolsCapability(call=TasksCallCapability()))
        tasks = ServerTasksCapability(list=TasksListCapability(), cancel=TasksCancelCapability(), requests=calls)
        return found.model_copy(update={"tasks": tasks})

    def create_initialization_options(
        self,
        notification_options: NotificationOptions | None = None,
        experimental_capabilities: dict[str, dict[str, Any]] | None = None,
        extensions: dict[str, dict[str, Any]] | None = None,
    ) -> InitializationOptions:
        """As the SDK's, with every list-changed notification on."""
        options = notification_options or NotificationOptions(prompts_changed=True, resources_changed=True, tools_changed=True)
        return super().create_initialization_options(options, experimental_capabilities, extensions)


class GatewayServer:
    """One gateway's MCP server. Enter it before serving; leaving ends parked calls and listen streams."""

    def __init__(
        self,
        catalog: Catalog,
        *,
        name: str,
        version: str,
        own_id: str,
        page_size: int,
        instructions: Callable[[Principal], str],
        ask_timeout_seconds: float,
        state_key: bytes,
    ) -> None:
        """`instructions` describes what is here now for a caller; a person has `ask_timeout_seconds` to answer. `state_key` (32 bytes)
        seals request state; gateways that share it take each other's. No side effects."""
        self._ask_timeout_seconds = ask_timeout_seconds
        self._kept_tasks: tuple[Records, TaskSettings, TaskTools] | None = None
        self._runner: TaskRunner | None = None
        self._may_call: Callable[[str], bool] | None = None
        self.catalog = catalog
        self._task_key = hmac.digest(state_key, b"task-handles", "sha256")
        self._instructions = instructions
        self._stack = AsyncExitStack()
        self.clients = Clients(self._released, ask_timeout_seconds=ask_timeout_seconds)
        self._changes = Changes(catalog, self.clients)
        self._lists = ListHandler(catalog, self.clients, page_size=page_size, own_id=own_id)
        self._reads = ReadHandler(catalog, self.clients)
        self._skills = SkillFace(catalog)
        self.mcp = _Server(name, version=version, instructions=instructions(LOCAL), get_tool_input_schema=catalog.input_schema)
        self._register()
        self.mcp.middleware.append(keep_internals)
        self.mcp.middleware.append(self._describe_scoped)
        self.mcp.middleware.append(
            RequestStateBoundary(
                RequestStateSecurity(
                    keys=[state_key], ttl=ask_timeout_seconds, bind_principal=lambda ctx: principal_of(ctx).id
                ),
                default_audience=own_id,
            )
        )
        catalog.subscribe(self._describe_again)

    def _register(self) -> None:
        """Bind the handlers. They return wire dicts, which the constructor's typed slots do not admit."""
        add, lists, reads = self.mcp.add_request_handler, self._lists, self._reads
        add("tools/list", PaginatedRequestParams, lists.tools)
        add("resources/list", PaginatedRequestParams, lists.resources)
        add("resources/templates/list", PaginatedRequestParams, lists.templates)
        add("prompts/list", PaginatedRequestParams, lists.prompts)
        add("resources/read", ReadResourceRequestParams, reads.read)
        add("resources/subscribe", SubscribeRequestParams, reads.subscribe)
        add("resources/unsubscribe", UnsubscribeRequestParams, reads.unsubscribe)
        add("prompts/get", GetPromptRequestParams, reads.get_prompt)
        add("completion/complete", CompleteRequestParams, reads.complete)
        add("logging/setLevel", SetLevelRequestParams, reads.set_level)
        add("subscriptions/listen", SubscriptionsListenRequestParams, self._changes.listen)
        self.mcp.add_notification_handler("notifications/initialized", NotificationParams, self._arrived)
        bind_skills(self.mcp, self._skills, lambda ctx: self.clients.context(ctx, WireCaller(ctx)))
        declare_skills(self.mcp, self._skills)

    def keep_tasks_in(self, records: Records, settings: TaskSettings, tools: TaskTools) -> None:
        """Where tasks of this gateway are kept, and what shows them to clients without tasks; before it is entered.

        Without it only tasks of servers are relayed.
        """
        self._kept_tasks = (records, settings, tools)

    def end_what_runs_unless(self, may_call: Callable[[str], bool]) -> None:
        """What runs for a principal that `may_call` no longer lets is ended; before it is entered."""
        self._may_call = may_call

    async def __aenter__(self) -> GatewayServer:
        tasks = await self._stack.enter_async_context(anyio.create_task_group())
        self._stack.callback(tasks.cancel_scope.cancel)
        self._parked = parked = ParkedCalls(tasks, ttl_seconds=self._ask_timeout_seconds)
        self._reads.park_in(parked)
        handler = TaskHandler(self.catalog, self.clients, self._task_key)
        runner: TaskRunner | None = None
        if self._kept_tasks is not None:
            records, settings, tools = self._kept_tasks
            runner = TaskRunner(tasks, records, handler.call, settings=settings, ask_timeout_seconds=self._ask_timeout_seconds)
            handler.run_with(runner)
            tools.run_with(runner)
            self._runner = runner
            tasks.start_soon(runner.run)
        handler.bind(self.mcp)
        self._changes.tell_tasks(TaskNews(handler, self.clients, tasks, runner))
        self.calls = CallHandler(self.catalog, self.clients, parked, handler)
        if self._may_call is not None:
            tasks.start_soon(self._end_revoked, runner, self._may_call)
        self.mcp.add_request_handler("tools/call", CallToolRequestParams, self.calls)
        tasks.start_soon(self._changes.run)
        return self

    async def __aexit__(self, *exc: object) -> None:
        self._changes.close()
        if self._runner is not None and exc[0] is None:
            await self._runner.drain(DRAIN_SECONDS)
        await self._stack.aclose()

    async def _end_revoked(self, runner: TaskRunner | None, may_call: Callable[[str], bool]) -> None:
        """End calls and tasks of callers that may no longer call, until cancelled."""
        while True:
            await anyio.sleep(REVOKED_SECONDS)
            try:
                callers = self.calls.running.callers() | self._parked.callers()
                if runner is not None:
                    callers |= runner.callers()
                if not callers:
                    continue
                gone = await anyio.to_thread.run_sync(lambda: {caller for caller in callers if not may_call(caller)})  # noqa: B023
                for caller in gone:
                    logger.warning("what runs for %s is ended: its API key is revoked or expired", caller)
                self._parked.end(gone)
                self.calls.running.end(gone)
                if runner is not None:
                    await runner.end(gone)
            except StorageError as error:
                logger.warning("It is not known whose API keys are revoked: %s", error)

    async def _arrived(self, ctx: RequestContext, params: NotificationParams) -> None:
        """A 2025 client is here, and hears of changes from now on, whatever it asks for."""
        if not is_modern(ctx):
            self.clients.session_of(ctx)

    def agui_route(self, agents: Conversations, *, max_request_bytes: int) -> Route:
        """The route of AG-UI applications; it parks calls as this server does."""
        made: list[AguiRoute] = []

        async def serve(request: Request) -> Response:
            """Brings the protocol's package along with the first request."""
            if not made:
                agui = await anyio.to_thread.run_sync(import_module, "gateway.server.agui")
                limits = {"ask_timeout_seconds": self._ask_timeout_seconds, "max_request_bytes": max_request_bytes}
                made.append(agui.AguiRoute(self.catalog, agents, self._parked, **limits))
            return await made[0].serve(request)

        return Route(AGUI_PATH + "{agent}", serve, methods=["POST"])

    async def _describe_scoped(self, ctx: RequestContext, call_next: CallNext) -> HandlerResult:
        """Middleware: a caller whose key is not for everything is told of what it may use."""
        result = await call_next(ctx)
        principal = principal_of(ctx)
        if principal.scopes is None or result is None or ctx.method not in ("initialize", "server/discover"):
            return result
        told = {"instructions": self._instructions(principal)}
        return {**result, **told} if isinstance(result, dict) else result.model_copy(update=told)

    async def _released(self, session: LegacySession) -> None:
        await self._reads.release(session)
        if self.catalog.disclosure is not None:
            self.catalog.disclosure.forget(scope_of(session.profile.session_id, ""))

    def describe(self) -> None:
        """Tell clients that come from now on what is here now; done by itself when a list changes."""
        self.mcp.instructions = self._instructions(LOCAL)
        declare_skills(self.mcp, self._skills)

    def _describe_again(self, kind: ChangeKind) -> None:
        self.describe()

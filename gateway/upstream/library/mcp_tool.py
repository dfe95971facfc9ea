"""`MCPTool`: connects a Python program to one remote MCP server, and offers the server's tools and prompts as functions.

`connect` and `close` (or `async with`) may be called from any task. Calls pass the gateway's gate (`GuardedTool`): argument rules, limits,
approval. Subclasses open the transport.
"""

from __future__ import annotations

import dataclasses
import logging
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Generator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager, nullcontext
from importlib.metadata import version
from typing import Any, Unpack

import anyio
from mcp_types import (
    CallToolResult,
    CreateMessageRequestParams,
    CreateMessageResult,
    CreateMessageResultWithTools,
    ErrorData,
    GetPromptResult,
)

from gateway.errors import (
    InputUnavailable,
    ModelError,
    NotReadyInTime,
    PolicyDenied,
    RequestFailure,
    TaskError,
    ToolFailed,
    UpstreamError,
    UpstreamTimeout,
)
from gateway.gate.approvals import Approvals, approved_in_run
from gateway.gate.pipeline import GateServices, SourceGate
from gateway.gate.refusals import refusal
from gateway.gate.tool_rules import ToolRules
from gateway.gate.tools import GuardedTool
from gateway.json_types import JsonMapping, JsonObject
from gateway.policy.decision import Reject
from gateway.policy.retry_safety import may_resend
from gateway.protocol import TASKS_EXTENSION
from gateway.telemetry.gateway_events import EventStream
from gateway.telemetry.mcp_operations import note_unsent
from gateway.tools.base import Complete, InputRequired, OnChange, Tool, ToolDefinition, prompt_schema
from gateway.tools.context import AgentScope, CallContext
from gateway.tools.drive import drive, keyed
from gateway.tools.invocation import FunctionInvocationContext
from gateway.types.content import Content
from gateway.upstream.carriers.carrier import Carrier
from gateway.upstream.carriers.sdk_carrier import SdkCarrier, Streams
from gateway.upstream.delivery import RemoteTool, add_input_responses
from gateway.upstream.gateway_chain import received
from gateway.upstream.input_guard import Answered, Relayed, to_input_required
from gateway.upstream.library.functions import MAX_NAME_CHARS, Invoke, MCPFunction, Parse, local_name, normalize_name, read_outcome
from gateway.upstream.library.loadable_functions import Disclosure
from gateway.upstream.library.mcp_tool_options import MCPToolOptions, check_options, needs_approval, to_policy
from gateway.upstream.library.sampling import SamplingHandler
from gateway.upstream.library.tool_calls import SamplingCaller, with_host_values, with_properties
from gateway.upstream.library.tool_connection import RemoteSession, ToolConnection
from gateway.upstream.library.tool_contents import to_prompt_text
from gateway.upstream.listing import Listed, list_all, listed_meta, to_listed
from gateway.upstream.server_session import Envelope, Session, open_session, with_extension
from gateway.upstream.task_follower import MCPTaskOptions, Resends, TaskFollower

logger = logging.getLogger(__name__)

LIST_SECONDS = 60.0
"""Timeout for reading the complete list of the server's tools or prompts."""

_CLIENT: JsonObject = {"name": "moongate-library", "version": version("moongate")}
_RELOADS = {"notifications/tools/list_changed": "tools", "notifications/prompts/list_changed": "prompts"}


class MCPTool(ABC):
    """Base class: one remote MCP server with its tools and prompts as functions. An `Agent` accepts it as a tool (`ToolSource`)."""

    def __init__(self, name: str, **options: Unpack[MCPToolOptions]) -> None:
        """Store the settings (`MCPToolOptions`) without side effects. `connect` opens the connection."""
        self.name = name
        check_options(options)
        self.description = options.get("description") or ""
        self.additional_properties = options.get("additional_properties")
        self._options = options
        self._policy = to_policy(options)
        self._link = ToolConnection(name, self._open)
        self._sampling = SamplingHandler(name, options)
        self.tasks = TaskFollower(name, self, options.get("task_options") or MCPTaskOptions())
        self._events = EventStream()
        self._approvals = Approvals(None, self._events)
        self._gate = SourceGate(name, GateServices(self._events, self._approvals))
        self._tools: dict[str, tuple[GuardedTool, MCPFunction]] = {}
        self._prompts: dict[str, MCPFunction] = {}
        self._changed = anyio.Event()
        self._dirty: set[str] = set()
        self._on_change: OnChange = lambda _: None
        self._disclosure: Disclosure | None = None
        if options.get("use_progressive_disclosure"):
            if not options.get("load_tools", True):
                raise ValueError("use_progressive_disclosure=True needs load_tools=True")
            self._disclosure = Disclosure(name, options.get("tool_name_prefix"), options.get("always_load") or (), self._allowed)
        if (session := options.get("session")) is not None:
            self._link.borrow(session)
            if self._sampling.is_configured:
                logger.warning("the session belongs to the program, so these sampling settings do not apply server=%s", name)

    # -- connection --------------------------------------------------------------------------------------------

    @abstractmethod
    def get_streams(self) -> AbstractAsyncContextManager[Streams | Carrier]:
        """Return a context manager, for use in one task, that opens and yields the transport: streams of the MCP SDK, or a `Carrier`."""

    @property
    def is_connected(self) -> bool:
        """Whether a session with the server is open."""
        return self._link.wire is not None

    @property
    def task_options(self) -> MCPTaskOptions:
        """Settings for calls that the server runs as long-running tasks. Replace the whole object; `None` restores the defaults."""
        return self.tasks.options

    @task_options.setter
    def task_options(self, options: MCPTaskOptions | None) -> None:
        self.tasks.options = options or MCPTaskOptions()

    async def connect(self, *, reset: bool = False) -> None:
        """Open the connection if it is not open (with `reset`, open a new one), and list tools and prompts as the settings say.

        Raises:
            ToolFailed: The server cannot be reached or is not an MCP server, or two remote names have the same local name.
        """
        with self._failures():
            await self._link.open(instead_of=self._link.wire if reset else None)
        if self._options.get("load_tools", True):
            await self.load_tools()
        if self._options.get("load_prompts", True):
            await self.load_prompts()

    async def close(self) -> None:
        """Close the connection. `functions` stays as it is, and a call of a function opens the connection again.

        A session that the program passed stays open, but this object does not use it any more.
        """
        await self.tasks.drain()
        await self._link.close()

    async def __aenter__(self) -> MCPTool:
        try:
            await self.connect()
        except BaseException:
            with anyio.CancelScope(shield=True):
                await self.close()
            raise
        return self

    async def __aexit__(self, *exc: object) -> None:
        with anyio.CancelScope(shield=True):
            await self.close()

    @asynccontextmanager
    async def _open(self) -> AsyncGenerator[Session, None]:
        seconds = self._policy.connect_timeout_seconds
        async with self.get_streams() as opened:
            carrier = SdkCarrier(self.name, lambda: nullcontext(opened)) if isinstance(opened, tuple) else opened
            async with open_session(self.name, carrier, self, client=_CLIENT) as session:
                try:
                    with anyio.fail_after(seconds):
                        await session.negotiate("auto", self._sampling.capabilities)
                except TimeoutError:
                    raise NotReadyInTime(f"Server {self.name!r} did not answer within {seconds:g} s.", server=self.name) from None
                self._sampling.reset()
                async with anyio.create_task_group() as tasks:
                    tasks.start_soon(self._reload_forever)
                    yield session
                    tasks.cancel_scope.cancel()

    @contextmanager
    def _failures(self) -> Generator[None]:
        """Raise failures of the server as `ToolFailed`, which is agent-framework's `ToolExecutionException`."""
        try:
            yield
        except (UpstreamError, TaskError) as error:
            text = str(error)
            raise ToolFailed(text if self.name in text else f"Server {self.name!r}: {text}") from error

    # -- lists -------------------------------------------------------------------------------------------------

    @property
    def id(self) -> str:
        """The name that the program gave to this object (interface `ToolSource`)."""
        return self.name

    async def tools(self) -> Sequence[Tool]:
        """Return `functions`, after connecting if no session is open (interface `ToolSource`)."""
        if not self.is_connected:
            await self.connect()
        return self.functions

    def subscribe(self, on_change: OnChange) -> None:
        """Set the callback that is called when the functions change (interface `ToolSource`). It replaces an earlier one."""
        self._on_change = on_change

    @property
    def functions(self) -> list[MCPFunction]:
        """The allowed tools and then prompts, as last listed.

        With progressive disclosure, only the helper functions, the functions in `always_load` and the loaded functions.
        """
        return self._disclosure.visible if self._disclosure is not None else self._allowed()

    def _allowed(self) -> list[MCPFunction]:
        allowed = self._options.get("allowed_tools")
        found = [*(function for _, function in self._tools.values()), *self._prompts.values()]
        if allowed is None:
            return found
        return [f for f in found if not set(f.known_as).isdisjoint(allowed)]

    async def load_tools(self) -> None:
        """Read the list of the server's tools, and replace the functions for tools. The list is empty if the server does not support tools.

        Raises:
            ToolFailed: The list cannot be read, or two remote names have the same local name.
        """
        listed: dict[str, Listed] = {}
        with self._failures():
            wire = await self._link.open()
            for entry in await self._list(wire, "tools"):
                found = to_listed(entry, modern=wire.is_modern, may_request_input=False)
                if found is not None and self._is_usable(found.definition.name):
                    listed.setdefault(found.definition.name, found)
        self._check_names([*listed, *self._prompts])
        mode = self._options.get("approval_mode")
        asks = {name: needs_approval(mode, self._known_as(name)) for name in listed}
        tools: dict[str, tuple[GuardedTool, MCPFunction]] = {}
        for name, found in listed.items():
            guarded = self._guard(found)
            definition = dataclasses.replace(
                found.definition, name=self._local(name), input_schema=with_properties(guarded.definition.input_schema)
            )
            invoke = self._invoker(guarded, needs_approval=bool(asks[name]))
            function = MCPFunction(definition, name, invoke, source=self.name, approval=asks[name], parse=self._parser())
            tools[name] = (guarded, function)
        self._tools = tools
        self._on_change("tools")

    async def load_prompts(self) -> None:
        """Read the list of the server's prompts, and replace the functions for prompts. Without support for prompts, the list is empty.

        Raises:
            ToolFailed: The list cannot be read, or two remote names have the same local name.
        """
        with self._failures():
            wire = await self._link.open()
            found = await self._list(wire, "prompts")
        entries = {name: entry for entry in found if self._is_usable(name := str(entry["name"]))}
        self._check_names([*self._tools, *entries])
        mode = self._options.get("approval_mode")
        prompts: dict[str, MCPFunction] = {}
        for name, entry in entries.items():
            description = entry.get("description")
            definition = ToolDefinition(self._local(name), description if isinstance(description, str) else None, prompt_schema(entry))
            approval = needs_approval(mode, self._known_as(name))
            prompts[name] = MCPFunction(definition, name, self._prompt_invoker(name), source=self.name, approval=approval)
        self._prompts = prompts
        self._on_change("tools")

    async def _list(self, wire: RemoteSession, what: str) -> list[JsonObject]:
        if what not in wire.negotiated.capabilities:
            return []
        try:
            with anyio.fail_after(LIST_SECONDS):
                return (await list_all(wire, what, Envelope(capabilities=self._sampling.capabilities))).entries
        except TimeoutError:
            raise UpstreamTimeout(f"Server {self.name!r} did not list its {what} within {LIST_SECONDS:g} s.", server=self.name) from None

    def _is_usable(self, remote: str) -> bool:
        """Return whether the local name for a remote name is valid: not empty and not too long. If it is invalid, log a warning."""
        if 0 < len(self._local(remote)) <= MAX_NAME_CHARS:
            return True
        logger.warning("function left out, name empty or too long max_chars=%d server=%s name=%.60r", MAX_NAME_CHARS, self.name, remote)
        return False

    def _check_names(self, remote: Sequence[str]) -> None:
        seen: dict[str, str] = {}
        for name in remote:
            other = seen.setdefault(self._local(name), name)
            if other != name:
                raise ToolFailed(f"Server {self.name!r} lists {other!r} and {name!r}; both would be called {self._local(name)!r} here.")

    def _local(self, remote: str) -> str:
        return local_name(remote, self._options.get("tool_name_prefix"))

    def _known_as(self, remote: str) -> tuple[str, ...]:
        return (self._local(remote), normalize_name(remote), remote)

    def _guard(self, listed: Listed) -> GuardedTool:
        rules = ToolRules.build(listed.definition, self._policy)
        return GuardedTool(RemoteTool(listed, self), rules, self._gate, exposed_name=self._local(listed.definition.name))

    async def _reload_forever(self) -> None:
        while True:
            await self._changed.wait()
            self._changed = anyio.Event()
            dirty, self._dirty = self._dirty, set()
            try:
                if "tools" in dirty and self._options.get("load_tools", True):
                    await self.load_tools()
                if "prompts" in dirty and self._options.get("load_prompts", True):
                    await self.load_prompts()
            except (UpstreamError, ToolFailed) as error:
                logger.warning("lists not read again server=%s reason=%s", self.name, error)

    # -- calls -------------------------------------------------------------------------------------------------

    async def call_tool(self, tool_name: str, /, **arguments: Any) -> str | list[Content]:
        """Call a tool by its remote name, and return its converted result.

        Arguments that the tool does not declare are not sent, unless the setting `additional_tool_argument_names` has their names. The
        keyword `_meta` is not an argument, but a dict with the `_meta` of the request.

        Raises:
            ToolFailed: Tools are not loaded, the call was refused, the server could not be reached or answered with an error, or the
                tool failed. An error of the connection is the `__cause__`.
        """
        return await self._call(self._known(tool_name), arguments)

    async def call_tool_as_task(self, tool_name: str, /, **arguments: Any) -> str | list[Content]:
        """Call a tool by its remote name as a task, wait for the task's result, and return it converted.

        With a server of MCP 2025-11-25, a task is requested even if the tool does not require one; if the server rejects the task, the tool
        is called once without a task. A server of MCP 2026-07-28 decides itself which calls are tasks. `task_options` apply to the wait.

        Raises:
            ToolFailed: As for `call_tool`; or the task failed, was lost, or took longer than `max_task_wait`.
        """
        guarded = self._known(tool_name)
        with self._failures():
            wire = await self._link.open()
        if not wire.is_modern:
            native = guarded.definition
            definition = dataclasses.replace(native, name=tool_name, task="required", task_by="gateway")
            meta = native.extra.get("_meta")
            guarded = self._guard(Listed(definition, meta=listed_meta(meta)))
        return await self._call(guarded, arguments)

    async def _call(self, guarded: GuardedTool, arguments: JsonObject) -> str | list[Content]:
        host = FunctionInvocationContext(guarded, arguments, kwargs=arguments)
        outcome = await self._run(guarded, {}, CallContext(run=AgentScope(invocation=host)))
        return read_outcome(outcome, self._parser())

    def _parser(self) -> Parse | None:
        parse = self._options.get("parse_tool_results")
        return None if parse is None else lambda outcome: parse(CallToolResult.model_validate(outcome.result))

    def _known(self, tool_name: str) -> GuardedTool:
        """Return a tool by its remote name. For a tool that is not listed, return one without declared arguments.

        Raises:
            ToolFailed: Tools are not loaded.
        """
        if not self._options.get("load_tools", True):
            raise ToolFailed(f"The tools of {self.name!r} are not loaded; set load_tools=True.")
        if (known := self._tools.get(tool_name)) is not None:
            return known[0]
        return self._guard(Listed(ToolDefinition(tool_name, input_schema={"type": "object", "properties": {}})))

    def _invoker(self, guarded: GuardedTool, *, needs_approval: bool) -> Invoke:
        """Return the function that runs calls of a tool. With `needs_approval`, a person must approve each call that a model makes."""

        async def invoke(arguments: JsonObject, ctx: CallContext, *, by_program: bool) -> Complete:
            if needs_approval and not by_program and not approved_in_run(ctx):
                verdict = await self._approvals.approve_call(self.name, guarded.definition.name, arguments, ctx)
                if isinstance(verdict, Reject):
                    return refusal(verdict.rule, verdict.reason)
            return await self._run(guarded, arguments, ctx)

        return invoke

    async def _run(self, guarded: GuardedTool, arguments: JsonObject, ctx: CallContext) -> Complete:
        arguments, ctx = with_host_values(guarded, arguments, ctx)
        answering = ctx.with_caller(SamplingCaller(self.answer_sampling, ctx))
        try:
            with self._failures():
                await self._connected("tools/call", {"name": guarded.definition.name})
                outcome = await drive(guarded, arguments, answering)
        except (PolicyDenied, ModelError, InputUnavailable) as error:
            return Complete.text(str(error), is_error=True)
        if isinstance(outcome, Complete):
            return outcome
        raise ToolFailed(f"Tool {guarded.exposed_name!r} continued in the background, which the caller did not request.")

    async def get_prompt(self, prompt_name: str, /, **arguments: str) -> str:
        """Return a prompt of the server as text, by its remote name, rendered with `arguments`.

        The setting `parse_prompt_results` replaces the conversion to text.

        Raises:
            ToolFailed: Prompts are not loaded, or the server could not be reached, answered with an error, or did not answer in time.
        """
        if not self._options.get("load_prompts", True):
            raise ToolFailed(f"The prompts of {self.name!r} are not loaded; set load_prompts=True.")
        return await self._prompt(prompt_name, arguments, CallContext())

    async def _prompt(self, name: str, arguments: Mapping[str, Any], ctx: CallContext) -> str:
        params: JsonObject = {"name": name, "arguments": {key: str(value) for key, value in arguments.items()}}
        try:
            with anyio.fail_after(self._policy.timeout_seconds), self._failures():
                result = await self.send("prompts/get", params, ctx)
        except TimeoutError:
            raise ToolFailed(f"Prompt {name!r} of {self.name!r} took longer than {self._policy.timeout_seconds:g} s.") from None
        parse = self._options.get("parse_prompt_results")
        return parse(GetPromptResult.model_validate(result)) if parse is not None else to_prompt_text(result)

    def _prompt_invoker(self, name: str) -> Invoke:
        async def invoke(arguments: JsonObject, ctx: CallContext, *, by_program: bool) -> Complete:
            return Complete.text(await self._prompt(name, arguments, ctx))

        return invoke

    # -- sampling ----------------------------------------------------------------------------------------------

    async def sampling_callback(
        self, context: CallContext | None, params: CreateMessageRequestParams
    ) -> CreateMessageResult | CreateMessageResultWithTools | ErrorData:
        """Answer one sampling request with the chat client, after checking the number of requests, the approval and the token limit.

        Override it to answer in another way. `context` is the call during which the server sent the request, `None` if that is unknown.
        """
        return await self._sampling.answer_params(params)

    async def answer_sampling(self, request: JsonObject, ctx: CallContext | None) -> JsonObject:
        """Call `sampling_callback` for a sampling request in JSON, as the server sent it, and return the result in JSON.

        Raises:
            ModelError: The model failed. The server gets an internal error (-32603).
            PolicyDenied: The request is refused or malformed. The server gets error -32600.
        """
        params = self._sampling.read(request)
        return self._sampling.to_wire(await self.sampling_callback(ctx, params))

    async def send(
        self, method: str, params: JsonObject, ctx: CallContext, headers: Mapping[str, str] | None = None, resends: Resends | None = None
    ) -> JsonObject:
        """Send one request for `ctx`, and return its result. After a failure, send it once more if that cannot do harm (`may_resend`).

        A connection that has ended is opened again.
        """
        add_input_responses(params, ctx)
        envelope = Envelope(ctx=ctx, meta=ctx.facts.meta, capabilities=self._sampling.capabilities, headers=headers or {})
        wire = await self._connected(method, params)
        if wire.negotiated.has_tasks and method in ("tools/call", "tasks/get", "tasks/update", "tasks/cancel"):
            envelope = with_extension(envelope, TASKS_EXTENSION)
        try:
            result = await wire.request(method, params, envelope)
        except RequestFailure as failure:
            if not may_resend(failure, method, params) or not (resends is None or resends.take()):
                raise
            result = await (await self._link.open()).request(method, params, envelope)
        return received(result)

    async def _connected(self, method: str, params: JsonObject) -> RemoteSession:
        """Return the open session for a request, and open the connection again if it is closed. A failure is added to the traces."""
        try:
            return await self._link.open()
        except UpstreamError as error:
            note_unsent(method, params, error)
            raise

    async def judge_input_request(self, request: JsonObject, ctx: CallContext) -> Relayed | Answered:
        """Return a task's request for input unchanged (interface `TaskLine`). It is checked when answered, and never goes to a client."""
        return Relayed(request)

    async def answer_input_request(self, request: JsonObject, key: str, ctx: CallContext) -> JsonObject:
        """Return the answer to one request for input of a running task (interface `TaskLine`)."""
        return await ctx.ask(keyed(request, key))

    def judge(self, result: JsonObject, ctx: CallContext) -> InputRequired:
        """Return the requests for input in an `input_required` result. Each request is checked when it is answered."""
        return to_input_required(result)

    async def answer(self, request: JsonObject, ctx: CallContext | None) -> JsonObject:
        """Return the answer to a request for input that an MCP 2025 server sends (interface `SessionHooks`)."""
        return await self.answer_sampling(request, ctx)

    async def notified(self, method: str, params: JsonMapping, ctx: CallContext | None) -> None:
        """Schedule reading a list again that the server announced as changed, or log a server's log message (interface `SessionHooks`)."""
        kind = _RELOADS.get(method)
        if kind is not None:
            self._dirty.add(kind)
            self._changed.set()
        elif method == "notifications/message":
            logger.info("log message server=%s data=%s", self.name, str(params.get("data"))[:500])

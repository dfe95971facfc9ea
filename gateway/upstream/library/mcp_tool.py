"""`MCPTool`: one remote MCP server for a program: its tools and prompts as functions, its asks judged.

`connect` and `close` (or `async with`) may come from any task. Calls go through the same gate as the gateway's
(`GuardedTool`): argument allowlist, limits, approval. Subclasses say how to connect.
"""

from __future__ import annotations

import dataclasses
import json
import logging
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Generator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager
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
    AskUnavailable,
    ModelError,
    PolicyDenied,
    TaskError,
    ToolFailed,
    UpstreamError,
    UpstreamLost,
    UpstreamTimeout,
    UpstreamUnavailable,
)
from gateway.json_types import JsonMapping, JsonObject, JsonValue
from gateway.policy.decision import Reject
from gateway.policy.metadata import judge_meta
from gateway.protocol import TASKS_EXTENSION
from gateway.telemetry.events import EventStream
from gateway.telemetry.operations import note_unsent
from gateway.tools.approvals import Approvals, approved_in_run
from gateway.tools.base import Complete, InputRequired, OnChange, Tool, ToolDefinition
from gateway.tools.call_record import refusal
from gateway.tools.context import CallContext, NoCaller
from gateway.tools.drive import drive, keyed
from gateway.tools.guard import GuardedTool, ToolGate
from gateway.tools.invocation import FunctionInvocationContext
from gateway.types.content import Content
from gateway.upstream.hop import received
from gateway.upstream.inputs import Answered, Relayed, to_input_required
from gateway.upstream.library.disclosure import Disclosure
from gateway.upstream.library.functions import MAX_NAME_CHARS, Invoke, MCPFunction, Parse, local_name, normalize_name
from gateway.upstream.library.link import Link, Wire
from gateway.upstream.library.options import MCPToolOptions, check_options, needs_approval, to_policy
from gateway.upstream.library.results import error_text, prompt_schema, to_contents, to_prompt_text
from gateway.upstream.library.sampling import SamplingDesk
from gateway.upstream.link import Link as UpstreamLink
from gateway.upstream.link import Streams
from gateway.upstream.links import StreamLink
from gateway.upstream.listing import Listed, list_all, listed_meta, to_listed
from gateway.upstream.session import Envelope, Session, open_session, with_extension
from gateway.upstream.tasks import MCPTaskOptions, TaskFollower
from gateway.upstream.tool import RemoteTool

logger = logging.getLogger(__name__)

LIST_SECONDS = 60.0
"""Time for one complete listing."""

_CLIENT: JsonObject = {"name": "moongate-library", "version": version("moongate")}
_RELOADS = {"notifications/tools/list_changed": "tools", "notifications/prompts/list_changed": "prompts"}


def _link(way: Streams | UpstreamLink) -> UpstreamLink:
    return StreamLink(way) if isinstance(way, tuple) else way


class MCPTool(ABC):
    """Base of the tools below; also a `ToolSource`, so an `Agent` takes it among its tools and sees its current functions."""

    is_one_pipe = False
    """Whether a connection that broke during one call is gone for all of them."""

    def __init__(self, name: str, **options: Unpack[MCPToolOptions]) -> None:
        """No side effects: `connect` opens the connection. See `MCPToolOptions` for the settings."""
        self.name = name
        check_options(options)
        self.description = options.get("description") or ""
        self.additional_properties = options.get("additional_properties")
        self._options = options
        self._policy = to_policy(options)
        self._link = Link(name, self._open)
        self._desk = SamplingDesk(name, options)
        self.tasks = TaskFollower(name, self, options.get("task_options") or MCPTaskOptions())
        self._events = EventStream()
        self._approvals = Approvals(None, self._events)
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
            if self._desk.is_configured:
                logger.warning("%s: its session belongs to the program, so the sampling settings given here do not apply", name)

    # -- connection --------------------------------------------------------------------------------------------

    @abstractmethod
    def get_streams(self) -> AbstractAsyncContextManager[Streams | UpstreamLink]:
        """The way to the server, a stream pair of the SDK or a link; entered and left in one task."""

    @property
    def is_connected(self) -> bool:
        """Whether a session is up."""
        return self._link.wire is not None

    @property
    def task_options(self) -> MCPTaskOptions:
        """How long-running calls are followed; replace the whole object, `None` restores the defaults."""
        return self.tasks.options

    @task_options.setter
    def task_options(self, options: MCPTaskOptions | None) -> None:
        self.tasks.options = options or MCPTaskOptions()

    async def connect(self, *, reset: bool = False) -> None:
        """Open the connection and list what is configured to be loaded; `reset` opens a new one in any case.

        Raises:
            ToolFailed: The server cannot be reached or is not an MCP server, or two remote names become one local name.
        """
        with self._failures():
            await self._link.open(instead_of=self._link.wire if reset else None)
        if self._options.get("load_tools", True):
            await self.load_tools()
        if self._options.get("load_prompts", True):
            await self.load_prompts()

    async def close(self) -> None:
        """Close the connection; functions stay listed and connect again when called."""
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
        async with self.get_streams() as way, open_session(self.name, _link(way), self, client=_CLIENT) as session:
            try:
                with anyio.fail_after(seconds):
                    await session.negotiate("auto", self._desk.capabilities)
            except TimeoutError:
                raise UpstreamTimeout(f"Server {self.name!r} did not answer within {seconds:g} s.", server=self.name) from None
            self._desk.reset()
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(self._reload_forever)
                yield session
                tasks.cancel_scope.cancel()

    @contextmanager
    def _failures(self) -> Generator[None]:
        """Raise what goes wrong with the server as `ToolFailed`, which is agent-framework's `ToolExecutionException`."""
        try:
            yield
        except (UpstreamError, TaskError) as error:
            text = str(error)
            raise ToolFailed(text if self.name in text else f"Server {self.name!r}: {text}") from error

    # -- lists -------------------------------------------------------------------------------------------------

    @property
    def id(self) -> str:
        """The name given to it (`ToolSource`)."""
        return self.name

    async def tools(self) -> Sequence[Tool]:
        """The current functions, connecting first where needed (`ToolSource`)."""
        if not self.is_connected:
            await self.connect()
        return self.functions

    def subscribe(self, on_change: OnChange) -> None:
        """Register the one listener for changed lists (`ToolSource`)."""
        self._on_change = on_change

    @property
    def functions(self) -> list[MCPFunction]:
        """Tools, then prompts, as last listed and allowed; with progressive disclosure the helpers and what was loaded."""
        return self._disclosure.visible if self._disclosure is not None else self._allowed()

    def _allowed(self) -> list[MCPFunction]:
        allowed = self._options.get("allowed_tools")
        found = [*(function for _, function in self._tools.values()), *self._prompts.values()]
        if allowed is None:
            return found
        return [f for f in found if not set(f.known_as).isdisjoint(allowed)]

    async def load_tools(self) -> None:
        """List the server's tools again; a server without tools has none.

        Raises:
            ToolFailed: The server does not list them, or two remote names become one local name.
        """
        listed: dict[str, Listed] = {}
        with self._failures():
            wire = await self._link.open()
            for entry in await self._list(wire, "tools"):
                found = to_listed(entry, modern=wire.is_modern, may_ask=False)
                if found is not None and self._is_usable(found.definition.name):
                    listed.setdefault(found.definition.name, found)
        self._check_names([*listed, *self._prompts])
        mode = self._options.get("approval_mode")
        asks = {name: needs_approval(mode, self._known_as(name)) for name in listed}
        tools: dict[str, tuple[GuardedTool, MCPFunction]] = {}
        for name, found in listed.items():
            guarded = self._guard(found)
            definition = dataclasses.replace(
                found.definition, name=self._local(name), input_schema=_with_properties(guarded.definition.input_schema)
            )
            invoke = self._invoker(guarded, needs_approval=bool(asks[name]))
            function = MCPFunction(definition, name, invoke, source=self.name, approval=asks[name], parse=self._parser())
            tools[name] = (guarded, function)
        self._tools = tools
        self._on_change("tools")

    async def load_prompts(self) -> None:
        """List the server's prompts again; a server without prompts has none.

        Raises:
            ToolFailed: The server does not list them, or two remote names become one local name.
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

    async def _list(self, wire: Wire, what: str) -> list[JsonObject]:
        if what not in wire.negotiated.capabilities:
            return []
        try:
            with anyio.fail_after(LIST_SECONDS):
                return (await list_all(wire, what, Envelope(capabilities=self._desk.capabilities))).entries
        except TimeoutError:
            raise UpstreamTimeout(f"Server {self.name!r} did not list its {what} within {LIST_SECONDS:g} s.", server=self.name) from None

    def _is_usable(self, remote: str) -> bool:
        """Whether a remote name makes the name of a function; one that does not is left out with a warning."""
        if 0 < len(self._local(remote)) <= MAX_NAME_CHARS:
            return True
        logger.warning("%s: %.60r cannot be a function: its name has more than %d characters, or none", self.name, remote, MAX_NAME_CHARS)
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
        name = listed.definition.name
        return GuardedTool(
            RemoteTool(listed, self),
            exposed_name=self._local(name),
            source=self.name,
            policy=ToolGate.build(listed.definition, self._policy),
            limiter=None,
            events=self._events,
            approvals=Approvals(None, self._events),
        )

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
                logger.warning("%s: lists could not be read again: %s", self.name, error)

    # -- calls -------------------------------------------------------------------------------------------------

    async def call_tool(self, tool_name: str, /, **arguments: Any) -> str | list[Content]:
        """Call a tool by its remote name and return what it gave, parsed.

        Arguments that the tool neither declares nor the settings add are not sent. `_meta` is the request's metadata, a
        dict, and never an argument.

        Raises:
            ToolFailed: Tools are not loaded, the call was refused, the server could not be reached or answered with an error, or the
                tool says that it failed. An error of the connection is the `__cause__`.
        """
        return await self._call(self._known(tool_name), arguments)

    async def call_tool_as_task(self, tool_name: str, /, **arguments: Any) -> str | list[Content]:
        """`call_tool`, asking a 2025 server for a task although the tool does not require one.

        The task is followed as `task_options` say. A server that makes no task of it is called plainly, once. A 2026 server decides
        itself, for every call.

        Raises:
            ToolFailed: As `call_tool`; or the task failed, was lost, or took longer than `max_task_wait`.
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
        outcome = await self._run(guarded, {}, CallContext(invocation=host))
        parse = self._parser()
        parsed = parse(outcome) if parse is not None else to_contents(outcome.result)
        if outcome.is_error:
            raise ToolFailed(error_text(parsed))
        return parsed

    def _parser(self) -> Parse | None:
        parse = self._options.get("parse_tool_results")
        return None if parse is None else lambda outcome: parse(CallToolResult.model_validate(outcome.result))

    def _known(self, tool_name: str) -> GuardedTool:
        """A tool by its remote name. Of one that the server never listed nothing is declared, so only configured extras are sent.

        Raises:
            ToolFailed: Tools are not loaded.
        """
        if not self._options.get("load_tools", True):
            raise ToolFailed(f"The tools of {self.name!r} are not loaded; set load_tools=True.")
        if (known := self._tools.get(tool_name)) is not None:
            return known[0]
        return self._guard(Listed(ToolDefinition(tool_name, input_schema={"type": "object", "properties": {}})))

    def _invoker(self, guarded: GuardedTool, *, needs_approval: bool) -> Invoke:
        """How a function is run; only a call of a model needs an approval."""

        async def invoke(arguments: JsonObject, ctx: CallContext, *, by_program: bool) -> Complete:
            if needs_approval and not by_program and not approved_in_run(ctx):
                verdict = await self._approvals.approve_call(self.name, guarded.definition.name, arguments, ctx)
                if isinstance(verdict, Reject):
                    return refusal(verdict.rule, verdict.reason)
            return await self._run(guarded, arguments, ctx)

        return invoke

    async def _run(self, guarded: GuardedTool, arguments: JsonObject, ctx: CallContext) -> Complete:
        arguments, ctx = _with_host_values(guarded, arguments, ctx)
        answering = dataclasses.replace(ctx, caller=_Answering(self, ctx))
        try:
            with self._failures():
                await self._connected("tools/call", {"name": guarded.definition.name})
                outcome = await drive(guarded, arguments, answering)
        except (PolicyDenied, ModelError, AskUnavailable) as error:
            return Complete.text(str(error), is_error=True)
        if isinstance(outcome, Complete):
            return outcome
        raise ToolFailed(f"Tool {guarded.exposed_name!r} went on in the background, which was not asked for.")

    async def get_prompt(self, prompt_name: str, /, **arguments: str) -> str:
        """Render a prompt by its remote name.

        Raises:
            ToolFailed: Prompts are not loaded, or the server could not be reached or answered with an error.
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
        """Answer one sampling request with the chat client, within the budget, the approval and the token cap.

        Override it to answer requests in another way. `context` is the call during which the server asks, if that is known.
        """
        return await self._desk.answer_params(params)

    async def answer_sampling(self, request: JsonObject, ctx: CallContext | None) -> JsonObject:
        """The result of `sampling_callback` for a request in wire form.

        Raises:
            ModelError: It is an internal error (-32603).
            PolicyDenied: It is another error, or the request is not a valid sampling request.
        """
        params = self._desk.read(request)
        return self._desk.to_wire(await self.sampling_callback(ctx, params))

    # -- what `RemoteTool` and the session need ------------------------------------------------------------------

    async def send(self, method: str, params: JsonObject, ctx: CallContext, headers: Mapping[str, str] | None = None) -> JsonObject:
        """One request; a connection that is gone is opened again once, and the request repeated only if nothing was sent."""
        if ctx.input_responses is not None:
            params["inputResponses"] = ctx.input_responses
        if ctx.request_state is not None:
            params["requestState"] = ctx.request_state
        envelope = Envelope(ctx=ctx, meta=ctx.meta, capabilities=self._desk.capabilities, headers=headers or {})
        wire = await self._connected(method, params)
        if wire.negotiated.has_tasks and method in ("tools/call", "tasks/get", "tasks/update", "tasks/cancel"):
            envelope = with_extension(envelope, TASKS_EXTENSION)
        try:
            result = await wire.request(method, params, envelope)
        except UpstreamLost:
            if self.is_one_pipe:
                self._link.drop(wire)
            raise
        except UpstreamUnavailable:
            result = await (await self._link.open(instead_of=wire)).request(method, params, envelope)
        return received(result)

    async def _connected(self, method: str, params: JsonObject) -> Wire:
        """Return the connection for a request, opened again if it is gone."""
        try:
            return await self._link.open()
        except UpstreamError as error:
            note_unsent(method, params, error)
            raise

    async def reconnect(self) -> None:
        """Have a connection again (`TaskLine`)."""
        await self._link.open()

    async def judge_ask(self, request: JsonObject, ctx: CallContext) -> Relayed | Answered:
        """A program's tool relays no tasks (`TaskLine`)."""
        return Relayed(request)

    async def answer_ask(self, request: JsonObject, key: str, ctx: CallContext) -> JsonObject:
        """The answer to one ask of a running task; judged where it is answered (`TaskLine`)."""
        return await ctx.ask(keyed(request, key))

    def judge(self, result: JsonObject, ctx: CallContext) -> InputRequired:
        """The asks of an `input_required` result; each is judged where it is answered."""
        return to_input_required(result)

    async def answer(self, request: JsonObject, ctx: CallContext | None) -> JsonObject:
        """A legacy server asks (`SessionHooks`)."""
        return await self.answer_sampling(request, ctx)

    async def notified(self, method: str, params: JsonMapping, ctx: CallContext | None) -> None:
        """The server notifies (`SessionHooks`)."""
        kind = _RELOADS.get(method)
        if kind is not None:
            self._dirty.add(kind)
            self._changed.set()
        elif method == "notifications/message":
            logger.info("%s says: %s", self.name, str(params.get("data"))[:500])


class _Answering(NoCaller):
    """The caller of a call made through an `MCPTool`: progress and logs go on, sampling is answered here, the rest asked further."""

    def __init__(self, tool: MCPTool, outer: CallContext) -> None:
        self._tool = tool
        self._outer = outer

    async def progress(self, progress: float, total: float | None, message: str | None) -> None:
        await self._outer.caller.progress(progress, total, message)

    async def ask(self, request: JsonObject, key: str = "") -> JsonObject:
        if request.get("method") == "sampling/createMessage":
            return await self._tool.answer_sampling(request, self._outer)
        raise AskUnavailable(f"A program's MCP tool does not answer {str(request.get('method'))!r}.", capability="")


def _with_host_values(guarded: GuardedTool, arguments: JsonObject, ctx: CallContext) -> tuple[JsonObject, CallContext]:
    """The call with the values that the program gave to the run, as far as the tool takes them.

    The model's arguments win. Metadata is the program's alone: `_meta` among the model's arguments is never sent.

    Raises:
        ToolFailed: The program's `_meta` is malformed, or a value to be sent is not JSON.
    """
    host = ctx.invocation.kwargs if isinstance(ctx.invocation, FunctionInvocationContext) else {}
    if (meta := host.get("_meta")) is not None:
        if isinstance(verdict := judge_meta(meta), Reject):
            raise ToolFailed(verdict.reason)
        _check_json("_meta", meta)
        ctx = dataclasses.replace(ctx, meta={**ctx.meta, **meta})
    taken = {name: value for name, value in host.items() if name in guarded.arguments.accepted and name not in arguments}
    for name, value in taken.items():
        _check_json(name, value)
    return {**taken, **arguments}, ctx


def _check_json(name: str, value: JsonValue) -> None:
    try:
        json.dumps(value, allow_nan=False)
    except (TypeError, ValueError, RecursionError) as error:
        raise ToolFailed(f"The program's value for {name!r} cannot be sent, because it is not JSON: {error}") from None


def _with_properties(schema: JsonObject) -> JsonObject:
    return {**schema, "properties": {}} if schema.get("type") == "object" and "properties" not in schema else schema

"""`DirectPath`: the common `tools/call` past the SDK's HTTP machinery, in front of it and through the same gate.

It takes a plain 2026 request for a tool of a remote server and answers a plain result. All else goes on untouched, before
anything happened: other methods and eras, progress and logs, answers to questions, odd headers and bodies, every request that is
not valid, tools of our own and tools that may ask or become tasks. A call that has begun and turns out not to be plain (an error,
a question, a task, a block that versions differ in, or just a slow call) is handed on as it runs: the SDK's path does all of its
work and finds the call under way (`RUNNING_SCOPE_KEY`), so nothing is decided or worded twice. Keys, Host and Origin are checked
before (`http`), policy is the gate's (`calls`).

Plain asyncio: a call is one task and one future, because a task group, a stream and a watcher per request cost more than the call
(performance.md §4). A client that leaves is noticed once the call was handed on, after `HAND_ON_SECONDS`.
"""

from __future__ import annotations

import asyncio
import json
from collections import OrderedDict, deque
from collections.abc import Coroutine, Generator, Mapping, Set
from typing import TYPE_CHECKING, cast

from mcp.shared.inbound import InboundModernRoute, classify_inbound_request
from mcp_types import SERVER_INFO_META_KEY, methods
from mcp_types.version import MODERN_PROTOCOL_VERSIONS
from pydantic import ValidationError
from pydantic_core import from_json, to_json

from gateway.auth.principal import Principal
from gateway.errors import AskUnavailable, NotFound
from gateway.json_types import JsonMapping, JsonObject, JsonValue
from gateway.server.calls import RUNNING_SCOPE_KEY, CallHandler, to_wire
from gateway.server.clients import PRINCIPAL_SCOPE_KEY
from gateway.server.profiles import fit_outcome
from gateway.telemetry.instrumentation import is_traced
from gateway.tools.base import Complete, ToolOutcome
from gateway.tools.context import CallContext, LogLevel, capability_of
from gateway.tools.guard import GuardedTool
from gateway.upstream.exchange import has_odd_number

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

    from gateway.server.build import GatewayServer

HAND_ON_SECONDS = 0.25
"""A call that takes longer is handed on: there a client that leaves ends it, and a silent connection is kept alive."""

MAX_KNOWN_TOOLS = 50_000
"""Tools remembered with whether headers mirror their arguments; then all are looked at again."""

MAX_KNOWN_CLIENTS = 256
"""Client declarations remembered as valid."""

_MODERN = frozenset(version.encode() for version in MODERN_PROTOCOL_VERSIONS)
_WANTED = frozenset({"application/json", "text/event-stream"})
_REQUEST = frozenset({"jsonrpc", "id", "method", "params"})
_PARAMS = frozenset({"name", "arguments", "_meta"})
_INFO_KEY = "io.modelcontextprotocol/clientInfo"
_CAPABILITIES_KEY = "io.modelcontextprotocol/clientCapabilities"
_VERSION_KEY = "io.modelcontextprotocol/protocolVersion"
_ENVELOPE_KEYS = (_VERSION_KEY, _CAPABILITIES_KEY, _INFO_KEY)
_ENVELOPE = frozenset(_ENVELOPE_KEYS)
_BLOCKS: Mapping[str, Set[str]] = {
    "text": frozenset({"type", "text"}),
    "image": frozenset({"type", "data", "mimeType"}),
    "audio": frozenset({"type", "data", "mimeType"}),
}
_RESULT = frozenset({"content", "structuredContent", "isError", "_meta", "resultType"})
"""Blocks and keys that every version has as they are, so that no model needs to look at them."""


class PlainCaller:
    """The way back of a call whose client asked for neither progress nor logs, and is asked in results only."""

    log_level: LogLevel | None = None

    async def progress(self, progress: float, total: float | None, message: str | None) -> None:
        """Not asked for."""

    async def log(self, level: LogLevel, data: JsonValue, logger: str | None) -> None:
        """Not asked for."""

    async def ask(self, request: JsonObject) -> JsonObject:
        """Refused, as by every modern client."""
        raise AskUnavailable("This client is asked through input_required results only.", capability=capability_of(request))


class DirectPath:
    """ASGI middleware behind the key gate and before the SDK's application."""

    def __init__(self, app: ASGIApp, server: GatewayServer, *, path: str, max_request_bytes: int) -> None:
        """`path` is the endpoint's; a larger body than `max_request_bytes` is not looked at here."""
        self._app = app
        self._server = server
        self._path = path
        self._max_request_bytes = max_request_bytes
        self._envelopes = KnownEnvelopes()
        self._mirrored: dict[str, tuple[GuardedTool, bool]] = {}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer, or pass on."""
        headers = self._plain_headers(scope)
        if headers is None or is_traced():
            await self._app(scope, receive, send)
            return
        replay = Replay(receive)
        body = await replay.read(int(headers["content-length"]))
        request = None if body is None else self._read(body, headers)
        found = None if request is None else self._begin(request, scope)
        if request is None or found is None:
            await self._app(scope, replay, send)
            return
        calls, tool, ctx = found
        running = _Underway(calls.run(tool, request["params"].get("arguments") or {}, ctx, ctx.caller))
        try:
            answer = await self._plain_answer(running.task, request["id"], ctx)
            if answer is None:
                scope[RUNNING_SCOPE_KEY] = running
                await self._app(scope, replay, send)
            else:
                head = [(b"content-length", b"%d" % len(answer)), (b"content-type", b"application/json")]
                await send({"type": "http.response.start", "status": 200, "headers": head})
                await send({"type": "http.response.body", "body": answer})
        finally:
            await running.end()

    # -- what is taken -------------------------------------------------------------------------------------------

    def _plain_headers(self, scope: Scope) -> dict[str, str] | None:
        """The headers of a request that may be plain; `None` for all others."""
        if scope["type"] != "http" or scope["method"] != "POST" or scope["path"] != self._path or PRINCIPAL_SCOPE_KEY not in scope:
            return None
        raw: list[tuple[bytes, bytes]] = scope["headers"]
        if (b"mcp-method", b"tools/call") not in raw:
            return None
        found = dict(raw)
        if len(found) != len(raw) or found.get(b"mcp-protocol-version") not in _MODERN:
            return None
        headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in raw}
        length = headers.get("content-length", "")
        is_sized = length.isdecimal() and length.isascii() and len(length) < 12 and int(length) <= self._max_request_bytes
        if not is_sized or "transfer-encoding" in headers or any(name.startswith("mcp-param-") for name in headers):
            return None
        if not headers.get("content-type", "").lower().startswith("application/json"):
            return None
        accepted = {kind.partition(";")[0].strip().lower() for kind in headers.get("accept", "").split(",")}
        return headers if accepted >= _WANTED else None

    def _read(self, body: bytes, headers: Mapping[str, str]) -> JsonObject | None:
        """The request in a body, if it is a valid plain one. `tools/call` itself is checked by the words of the SDK."""
        try:
            request: JsonValue = from_json(body)
        except ValueError:
            return None
        if not isinstance(request, dict) or request.keys() != _REQUEST:
            return None
        message = cast("JsonObject", request)
        number, params = message["id"], message["params"]
        if message["jsonrpc"] != "2.0" or message["method"] != "tools/call":
            return None
        if isinstance(number, bool) or not isinstance(number, int | str) or not isinstance(params, dict) or not params.keys() <= _PARAMS:
            return None
        return message if self._is_plain(cast("JsonObject", params), message, headers) else None

    def _is_plain(self, params: JsonObject, message: JsonObject, headers: Mapping[str, str]) -> bool:
        meta = params.get("_meta")
        if not isinstance(params.get("name"), str) or not isinstance(params.get("arguments", {}), dict) or not isinstance(meta, dict):
            return False
        if not isinstance(classify_inbound_request(message, headers=headers), InboundModernRoute):
            return False
        fields = cast("JsonObject", meta)
        own = fields.keys() - _ENVELOPE
        if any(key == "progressToken" or key.startswith("io.modelcontextprotocol/") for key in own):
            return False
        return self._envelopes.is_valid(fields)

    def _begin(self, request: JsonObject, scope: Scope) -> tuple[CallHandler, GuardedTool, CallContext] | None:
        """What runs the call, the tool and the context; `None` where the tool is not for here."""
        server = self._server
        params = cast("JsonObject", request["params"])
        name = str(params["name"])
        try:
            tool = server.catalog.find(name)
        except NotFound:
            return None
        definition = tool.definition
        if definition.may_ask or definition.task_by != "nobody" or tool.is_local or self._is_mirrored(name, tool):
            return None
        principal = cast("Principal", scope[PRINCIPAL_SCOPE_KEY])
        version = str(params["_meta"][_VERSION_KEY])
        return server.calls, tool, server.clients.modern_context(principal, version, params, PlainCaller())

    def _is_mirrored(self, name: str, tool: GuardedTool) -> bool:
        """Whether headers may have to match arguments of the tool (`x-mcp-header`)."""
        known = self._mirrored.get(name)
        if known is None or known[0] is not tool:
            if len(self._mirrored) > MAX_KNOWN_TOOLS:
                self._mirrored.clear()
            known = self._mirrored[name] = (tool, "x-mcp-header" in json.dumps(tool.definition.input_schema))
        return known[1]

    # -- what is answered ----------------------------------------------------------------------------------------

    async def _plain_answer(self, running: asyncio.Task[ToolOutcome], number: JsonValue, ctx: CallContext) -> bytes | None:
        """The answer of a call that ends soon and plainly."""
        if not await _is_soon_done(running) or running.cancelled() or running.exception() is not None:
            return None
        outcome = running.result()
        if not isinstance(outcome, Complete) or fit_outcome(outcome, ctx.client) is not outcome:
            return None
        result = to_wire(outcome, modern=True)
        if not is_plain_result(result):
            return None
        meta = cast("JsonObject", result.get("_meta") or {})
        stamped = {**result, "_meta": {**meta, SERVER_INFO_META_KEY: self._server.mcp.server_info_stamp}}
        try:
            answer = to_json({"jsonrpc": "2.0", "id": number, "result": stamped})
        except (ValueError, TypeError, RecursionError):
            return None
        return None if has_odd_number(answer, stamped) else answer


class Replay:
    """The ASGI `receive` of a request that was looked at, from its beginning."""

    def __init__(self, receive: Receive) -> None:
        self._receive = receive
        self._seen: deque[Message] = deque()

    async def read(self, length: int) -> bytes | None:
        """The whole body, if it has this length; whatever comes is given again."""
        parts: list[bytes] = []
        size, is_more = 0, True
        while is_more:
            message = await self._receive()
            self._seen.append(message)
            if message["type"] != "http.request":
                return None
            parts.append(message.get("body", b""))
            size += len(parts[-1])
            is_more = message.get("more_body", False)
            if size > length:
                return None
        return (parts[0] if len(parts) == 1 else b"".join(parts)) if size == length else None

    async def __call__(self) -> Message:
        """As `receive`."""
        return self._seen.popleft() if self._seen else await self._receive()


class KnownEnvelopes:
    """Which client declarations are valid: each is shown to the SDK's models once."""

    def __init__(self) -> None:
        self._valid: OrderedDict[str, None] = OrderedDict()

    def is_valid(self, meta: JsonMapping) -> bool:
        """Whether version, capabilities and name of a request's `_meta` are as the protocol has them."""
        envelope = {key: meta[key] for key in _ENVELOPE_KEYS if key in meta}
        key = repr(envelope)
        if key in self._valid:
            return True
        try:
            methods.validate_client_request("tools/call", str(envelope[_VERSION_KEY]), {"name": "any", "_meta": envelope})
        except (ValidationError, ValueError, KeyError):
            return False
        self._valid[key] = None
        if len(self._valid) > MAX_KNOWN_CLIENTS:
            self._valid.popitem(last=False)
        return True


def is_plain_result(result: JsonMapping) -> bool:
    """Whether the SDK's models of every version would send the result as it is."""
    meta = result.get("_meta", {})
    if not result.keys() <= _RESULT or not isinstance(meta, dict) or None in cast("JsonMapping", meta).values():
        return False
    if SERVER_INFO_META_KEY in meta or result.get("structuredContent", True) is None or not isinstance(result.get("isError", False), bool):
        return False
    content = result.get("content")
    return isinstance(content, list) and all(_is_plain_block(block) for block in cast("list[JsonValue]", content))


def _is_plain_block(block: JsonValue) -> bool:
    if not isinstance(block, dict):
        return False
    fields = cast("JsonMapping", block)
    kind = fields.get("type")
    known = _BLOCKS.get(kind) if isinstance(kind, str) else None
    return known is not None and fields.keys() == known and all(isinstance(value, str) for value in fields.values())


async def _is_soon_done(running: asyncio.Task[ToolOutcome]) -> bool:
    """Whether the call ends within `HAND_ON_SECONDS`; it goes on in any case."""
    loop = asyncio.get_running_loop()
    over: asyncio.Future[None] = loop.create_future()

    def end(_: object = None) -> None:
        if not over.done():
            over.set_result(None)

    running.add_done_callback(end)
    timer = loop.call_later(HAND_ON_SECONDS, end)
    try:
        await over
    finally:
        timer.cancel()
        running.remove_done_callback(end)
    return running.done()


class _Underway:
    """A call in a task of its own. It is cancelled at most once, however often who awaits it is: it may have to tell its server."""

    def __init__(self, work: Coroutine[None, None, ToolOutcome]) -> None:
        self.task = asyncio.get_running_loop().create_task(work)
        self._is_ended = False

    def __await__(self) -> Generator[None, None, ToolOutcome]:
        return self._outcome().__await__()

    async def _outcome(self) -> ToolOutcome:
        try:
            return await asyncio.shield(self.task)
        except asyncio.CancelledError:
            self._cancel()
            raise

    def _cancel(self) -> None:
        if not self._is_ended:
            self._is_ended = True
            self.task.cancel()

    async def end(self) -> None:
        """Nobody waits for the call any more: end it, and hear its last word."""
        if not self.task.done():
            self._cancel()
            await asyncio.wait([self.task])
        if not self.task.cancelled():
            self.task.exception()

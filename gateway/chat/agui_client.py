"""`AGUIChatClient`: uses a remote agent that implements the AG-UI protocol as if it were a model.

The remote agent receives the whole conversation and runs its own tools. If it calls a tool of this program, the call is returned to this
program like a call from a model. Interrupts, with which the remote agent asks a person, become approval requests; their answers resume the
remote agent's run (AG-UI 1.0, https://docs.ag-ui.com). Wrap the client in an `Agent` to get an agent.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, cast

import httpx2

from gateway.chat.chat_client import BaseChatClient
from gateway.errors import ModelError, NotSent
from gateway.json_types import JsonMapping, JsonObject, JsonValue, as_text
from gateway.types.call_arguments import to_text
from gateway.types.content import Content
from gateway.types.messages import Message
from gateway.types.options import ChatOptions
from gateway.types.responses import ChatResponseUpdate
from gateway.wire.sse import SseParser

if TYPE_CHECKING:
    from gateway.tools.base import Tool

DEFAULT_TIMEOUT_SECONDS = 60.0
"""Seconds to wait for the next bytes of the event stream. Comments count too; servers send them in the stream while they work."""

MAX_EVENT_BYTES = 8_388_608
"""Maximum bytes of one event of the stream. A longer event is an error, so that a server cannot fill the memory."""

THREAD_KEY = "thread_id"
"""Key of the remote conversation's id in the options' `metadata` and in a response's `additional_properties`."""

_MALFORMED = (200, 400, 413, 415, 422, 429, 500)
"""HTTP statuses with which AG-UI endpoints answer a malformed request. With 200, the error is in the stream; with 500, the endpoint's code
failed."""

_USAGE = {
    "inputTokens": "input_token_count",
    "outputTokens": "output_token_count",
    "totalTokens": "total_token_count",
    "reasoningTokens": "reasoning_token_count",
    "cachedInputTokens": "cached_input_token_count",
}


class AGUIChatClient(BaseChatClient):
    """A chat client for the AG-UI endpoint of a remote agent."""

    def __init__(
        self,
        *,
        endpoint: str,
        headers: Mapping[str, str] | None = None,
        http_client: httpx2.AsyncClient | None = None,
        timeout: float = DEFAULT_TIMEOUT_SECONDS,
        middleware: Sequence[Any] = (),
    ) -> None:
        """Store the settings. `endpoint` is the URL of the remote agent; `headers`, such as an API key, are sent with every request.

        An `http_client` that is passed is not closed by this client.
        """
        super().__init__(endpoint, middleware=middleware)
        self._endpoint = endpoint
        self._headers = dict(headers or {})
        self._timeout = timeout
        self._given = http_client
        self._made: httpx2.AsyncClient | None = None

    async def aclose(self) -> None:
        """Close the connections that this client opened. The client can be used again."""
        made, self._made = self._made, None
        if made is not None:
            await made.aclose()

    async def _updates(
        self, messages: Sequence[Message], *, stream: bool, options: ChatOptions
    ) -> AsyncGenerator[ChatResponseUpdate, None]:
        request = build_request(messages, options)
        reader = _EventReader(str(request["threadId"]), {tool["name"] for tool in cast("list[JsonObject]", request["tools"])})
        body = json.dumps(request, ensure_ascii=False).encode()
        async with self._posted(body) as response:
            if response.status_code != 200:
                raise _refused(self._endpoint, response)
            async for event in _events(response.aiter_bytes()):
                for update in reader.take(event):
                    yield update
                if reader.is_over:
                    return
        raise ModelError(f"The AG-UI agent at {self._endpoint} ended its stream before the run was finished.", retryable=True)

    async def reach(self) -> None:
        """Check that the endpoint is an AG-UI endpoint. The check sends a malformed request, so that no agent runs there.

        Raises:
            ModelError: The endpoint is unreachable, rejects the key, or is not an AG-UI endpoint.
        """
        async with self._posted(b'{"messages": 0}') as response:
            kind = response.headers.get("content-type", "")
            if response.status_code == 200 and not kind.startswith("text/event-stream"):
                text = f"The address {self._endpoint} responds with {kind or 'no content type'} instead of a stream of events"
                raise ModelError(f"{text}, so it is not an AG-UI endpoint.")
            if response.status_code not in _MALFORMED:
                raise _refused(self._endpoint, response)

    @asynccontextmanager
    async def _posted(self, body: bytes) -> AsyncGenerator[httpx2.Response]:
        """Send `body` to the endpoint, and yield the response. Connection errors become `ModelError`."""
        headers = {"Accept": "text/event-stream", "Content-Type": "application/json", **self._headers}
        try:
            async with self._client().stream("POST", self._endpoint, content=body, headers=headers) as response:
                yield response
        except (httpx2.ConnectError, httpx2.ConnectTimeout, httpx2.UnsupportedProtocol):
            text = f"The AG-UI agent at {self._endpoint} cannot be reached; check its address and that it runs."
            raise ModelError(text, retryable=True) from None
        except httpx2.HTTPError:
            text = f"The connection to the AG-UI agent at {self._endpoint} broke; check that the agent still runs, then try again."
            raise ModelError(text, retryable=True) from None

    def _client(self) -> httpx2.AsyncClient:
        if self._given is not None:
            return self._given
        if self._made is None:
            from gateway.egress.client import build_client

            try:
                self._made = build_client(self._endpoint, self._endpoint, timeout_seconds=self._timeout)
            except NotSent as error:
                raise ModelError(str(error)) from None
        return self._made


def build_request(messages: Sequence[Message], options: ChatOptions) -> JsonObject:
    """Return the body of an AG-UI request (`RunAgentInput`) for a conversation.

    Answers to approval requests in the conversation become `resume` entries.
    """
    metadata = cast("JsonMapping", options.get("metadata") or {})
    wire: list[JsonObject] = []
    resume: list[JsonObject] = []
    if instructions := options.get("instructions"):
        wire.append({"id": "instructions", "role": "system", "content": instructions})
    for number, message in enumerate(messages):
        resume += [_resume(content) for content in message.contents if content.type == "function_approval_response"]
        wire += _to_wire(message, message.message_id or f"message-{number}")
    request: JsonObject = {
        "threadId": str(metadata.get(THREAD_KEY) or uuid.uuid4()),
        "runId": str(uuid.uuid4()),
        "protocolVersion": "1.0",
        "messages": wire,
        "tools": [_tool(tool) for tool in cast("Sequence[Tool]", options.get("tools") or ())],
        "context": [],
        "state": {},
        "forwardedProps": {},
    }
    if resume:
        request["resume"] = resume
    return request


def _tool(tool: Tool) -> JsonObject:
    definition = tool.definition
    return {"name": definition.name, "description": definition.description or "", "parameters": definition.input_schema}


def _resume(answer: Content) -> JsonObject:
    return {"interruptId": answer.id or "", "status": "resolved", "payload": bool(answer.approved)}


def _to_wire(message: Message, message_id: str) -> list[JsonObject]:
    match message.role:
        case "tool":
            results = [content for content in message.contents if content.type == "function_result"]
            return [
                {"id": f"{message_id}-{n}", "role": "tool", "toolCallId": result.call_id, "content": as_text(result.result)}
                for n, result in enumerate(results)
            ]
        case "assistant":
            calls = [
                {"id": c.call_id, "type": "function", "function": {"name": c.name, "arguments": to_text(c.arguments)}}
                for c in message.contents
                if c.type == "function_call"
            ]
            wire: JsonObject = {"id": message_id, "role": "assistant", "content": message.text}
            return [{**wire, "toolCalls": calls} if calls else wire] if calls or message.text else []
        case "user":
            parts = [part for content in message.contents if (part := _part(content)) is not None]
            plain = all(part["type"] == "text" for part in parts)
            return [{"id": message_id, "role": "user", "content": message.text if plain else parts}] if parts else []
        case _:
            return [{"id": message_id, "role": message.role, "content": message.text}] if message.text else []


def _part(content: Content) -> JsonObject | None:
    if content.type == "text":
        return {"type": "text", "text": content.text or ""}
    if content.type not in ("data", "uri"):
        return None
    media_type, uri = content.media_type or "", content.uri or ""
    kind = media_type.partition("/")[0]
    source: JsonObject = {"type": "url", "value": uri, "mimeType": media_type}
    if content.type == "data":
        source = {"type": "data", "value": uri.partition(",")[2], "mimeType": media_type}
    return {"type": kind if kind in ("image", "audio", "video") else "document", "source": source}


class _EventReader:
    """Converts the AG-UI events of one run to updates (parts of a response).

    Calls of the remote agent's own tools are reported together with their results.
    """

    def __init__(self, thread_id: str, ours: set[str]) -> None:
        """Start reading a run. `ours` are the names of the tools that run in this program instead of at the remote agent."""
        self._ours = ours
        self._calls: dict[str, list[str]] = {}
        self._thread: JsonObject = {THREAD_KEY: thread_id}
        self.is_over = False

    def take(self, event: JsonObject) -> list[ChatResponseUpdate]:
        """Return the updates (parts of the response) that one AG-UI event yields.

        Raises:
            ModelError: The event reports that the run failed.
        """
        message_id = cast("str | None", event.get("messageId"))
        match event.get("type"):
            case "TEXT_MESSAGE_CONTENT" | "TEXT_MESSAGE_CHUNK" if event.get("delta"):
                return [self._update([Content.from_text(str(event["delta"]))], message_id)]
            case "REASONING_MESSAGE_CONTENT" | "REASONING_MESSAGE_CHUNK" if event.get("delta"):
                return [self._update([Content.from_text_reasoning(str(event["delta"]))], message_id)]
            case "TOOL_CALL_START":
                self._calls[str(event.get("toolCallId"))] = [str(event.get("toolCallName")), ""]
            case "TOOL_CALL_ARGS":
                if call := self._calls.get(str(event.get("toolCallId"))):
                    call[1] += str(event.get("delta") or "")
            case "TOOL_CALL_CHUNK":
                call = self._calls.setdefault(str(event.get("toolCallId")), [str(event.get("toolCallName")), ""])
                call[1] += str(event.get("delta") or "")
            case "TOOL_CALL_RESULT":
                return self._answered(str(event.get("toolCallId")), event.get("content"))
            case "RUN_FINISHED":
                return self._finished(event)
            case "RUN_ERROR":
                raise ModelError(f"The AG-UI agent failed: {event.get('message')}")
            case _:
                pass
        return []

    def _answered(self, call_id: str, result: JsonValue) -> list[ChatResponseUpdate]:
        name, arguments = self._calls.pop(call_id, ["", ""])
        called = Content.from_mcp_server_tool_call(call_id, name, arguments=arguments)
        return [self._update([called, Content.from_mcp_server_tool_result(call_id, output=result)], None)]

    def _finished(self, event: JsonObject) -> list[ChatResponseUpdate]:
        self.is_over = True
        outcome = cast("JsonObject", event.get("outcome") or {})
        contents = [Content.from_function_call(call_id, name, text) for call_id, (name, text) in self._calls.items() if name in self._ours]
        reason = "tool_calls" if contents else "stop"
        if outcome.get("type") == "interrupt":
            contents = [_question(interrupt) for interrupt in cast("list[JsonObject]", outcome.get("interrupts") or [])]
        for entry in cast("list[JsonObject]", event.get("usage") or []):
            counts = {ours: entry[theirs] for theirs, ours in _USAGE.items() if isinstance(entry.get(theirs), int)}
            contents.append(Content.from_usage(counts))
        update = self._update(contents, None)
        update.finish_reason = reason
        update.additional_properties = self._thread
        return [update]

    def _update(self, contents: list[Content], message_id: str | None) -> ChatResponseUpdate:
        return ChatResponseUpdate(contents, "assistant", message_id=message_id)


def _question(interrupt: JsonObject) -> Content:
    """Convert an interrupt of the remote agent to an approval request for a function call named `interrupt`.

    The arguments of the function call are the interrupt's reason, message and response schema.
    """
    described = {key: interrupt[key] for key in ("reason", "message", "responseSchema") if interrupt.get(key)}
    wanted = str(interrupt.get("id"))
    call = Content.from_function_call(str(interrupt.get("toolCallId") or wanted), "interrupt", described)
    return Content.from_function_approval_request(wanted, call)


async def _events(chunks: AsyncIterator[bytes]) -> AsyncGenerator[JsonObject, None]:
    """Yield the JSON objects in a stream of server-sent events. Comments and fields other than `data` are ignored.

    Raises:
        ModelError: An event is too long, or not a JSON object.
    """
    parser = SseParser(MAX_EVENT_BYTES, event=None)
    async for chunk in chunks:
        for data in parser.feed(chunk):
            yield _decoded(data)
        if parser.is_too_large:
            raise ModelError(f"The AG-UI agent sent an event of more than {MAX_EVENT_BYTES} bytes.")


def _decoded(data: bytes) -> JsonObject:
    try:
        event: JsonValue = json.loads(data)
    except ValueError:
        event = None
    if not isinstance(event, dict):
        raise ModelError("The AG-UI agent sent an event that is not a JSON object.")
    return cast("JsonObject", event)


def _refused(endpoint: str, response: httpx2.Response) -> ModelError:
    hint = " Set a key in `headers`." if response.status_code in (401, 403) else ""
    return ModelError(f"The AG-UI agent at {endpoint} answered {response.status_code}.{hint}", retryable=response.status_code >= 500)

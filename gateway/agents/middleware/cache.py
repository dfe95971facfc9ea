"""Middleware that remembers: `ToolCacheMiddleware` for results of tools that only read, `ModelCacheMiddleware` for answers."""

from __future__ import annotations

import copy
import hashlib
import json
from collections import OrderedDict
from collections.abc import AsyncGenerator, Sequence
from typing import Generic, TypeVar, cast

import anyio

from gateway.agents.middleware.retry import covers
from gateway.chat.middleware import ChatContext, ChatMiddleware, ChatStream
from gateway.json_types import JsonObject, JsonValue
from gateway.middleware import CallNext
from gateway.tools.base import Tool
from gateway.tools.invocation import FunctionInvocationContext, FunctionMiddleware
from gateway.types.responses import ChatResponse, ChatResponseUpdate
from gateway.types.streams import ResponseStream

T = TypeVar("T")


class _Cache(Generic[T]):
    """Values for a time; of too many the one unused longest goes."""

    def __init__(self, ttl_seconds: float, max_entries: int) -> None:
        if ttl_seconds <= 0 or max_entries < 1:
            raise ValueError("ttl_seconds must be more than 0, and max_entries at least 1")
        self._ttl = ttl_seconds
        self._max = max_entries
        self._entries: OrderedDict[str, tuple[float, T]] = OrderedDict()

    def get(self, key: str) -> T | None:
        """A copy of the value, so that nobody changes what others get."""
        found = self._entries.get(key)
        if found is None or found[0] < anyio.current_time():
            self._entries.pop(key, None)
            return None
        self._entries.move_to_end(key)
        return copy.deepcopy(found[1])

    def put(self, key: str, value: T) -> None:
        """Keep a copy of a value."""
        self._entries[key] = (anyio.current_time() + self._ttl, copy.deepcopy(value))
        self._entries.move_to_end(key)
        while len(self._entries) > self._max:
            self._entries.popitem(last=False)


class ToolCacheMiddleware(FunctionMiddleware):
    """Answers a call that was made before with the same arguments, by the same caller, from memory.

    Only for tools that are named here, or that say `readOnlyHint` where `trust_annotations` is set. Errors are not kept.
    """

    def __init__(
        self, tools: Sequence[str] = (), *, trust_annotations: bool = False, ttl_seconds: float = 300.0, max_entries: int = 256
    ) -> None:
        """`tools` are globs over tool names. Raises `ValueError` for numbers that make no sense."""
        self._tools = tuple(tools)
        self._trust_annotations = trust_annotations
        self._cache: _Cache[JsonValue] = _Cache(ttl_seconds, max_entries)

    async def process(self, context: FunctionInvocationContext, call_next: CallNext) -> None:
        """Take the result from memory, or call and keep it."""
        if not covers(self._tools, context.function, trust_annotations=self._trust_annotations):
            await call_next()
            return
        key = _key([context.function.definition.name, context.arguments, context.ctx.principal.id])
        found = self._cache.get(key)
        if found is not None:
            context.result = found
            return
        await call_next()
        if context.result is not None and not getattr(context.result, "is_error", False):
            self._cache.put(key, context.result)


class ModelCacheMiddleware(ChatMiddleware):
    """Answers a model call that was made before with the same messages and options from memory; for tests and fixed prompts."""

    def __init__(self, *, ttl_seconds: float = 3600.0, max_entries: int = 256) -> None:
        """Raises `ValueError` for numbers that make no sense."""
        self._cache: _Cache[ChatResponse] = _Cache(ttl_seconds, max_entries)

    async def process(self, context: ChatContext, call_next: CallNext) -> None:
        """Take the answer from memory, or call and keep it; a stream is kept when it was read to its end."""
        key = _request_key(context)
        found = self._cache.get(key)
        if found is not None:
            context.result = _stream_of(found) if context.stream else found
            return
        await call_next()
        if isinstance(context.result, ResponseStream):
            context.result.with_result_hook(lambda response: self._cache.put(key, response))
        elif context.result is not None:
            self._cache.put(key, context.result)


def _request_key(context: ChatContext) -> str:
    options: JsonObject = {}
    for name, value in cast("JsonObject", context.options).items():
        if name == "tools":
            value = [cast("Tool", tool).definition.to_wire() if hasattr(tool, "definition") else tool for tool in value or ()]
        options[name] = value
    return _key([getattr(context.client, "model", ""), [message.to_dict() for message in context.messages], options])


def _key(value: JsonValue) -> str:
    text = json.dumps(value, sort_keys=True, default=repr)
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def _stream_of(response: ChatResponse) -> ChatStream:
    async def updates() -> AsyncGenerator[ChatResponseUpdate, None]:
        for update in response.to_updates():
            yield update

    return ResponseStream(updates(), ChatResponse.from_updates)

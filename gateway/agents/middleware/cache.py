"""Caching middleware: `ToolCacheMiddleware` for results of read-only tools, `ModelCacheMiddleware` for model responses."""

from __future__ import annotations

import copy
import hashlib
import json
from collections import OrderedDict
from collections.abc import Sequence
from fnmatch import fnmatchcase
from typing import Generic, TypeVar, cast

import anyio

from gateway.chat.chat_context import ChatContext
from gateway.chat.chat_middleware import ChatMiddleware
from gateway.json_types import JsonObject, JsonValue
from gateway.middleware import CallNext, replay
from gateway.policy.own_sources import may_change_something
from gateway.tools.base import Tool, ToolDefinition
from gateway.tools.invocation import FunctionInvocationContext, FunctionMiddleware
from gateway.types.responses import ChatResponse
from gateway.types.streams import ResponseStream

T = TypeVar("T")


class _Cache(Generic[T]):
    """Cache with a time to live that drops the least recently used entries."""

    def __init__(self, ttl_seconds: float, max_entries: int) -> None:
        if ttl_seconds <= 0 or max_entries < 1:
            raise ValueError("ttl_seconds must be more than 0, and max_entries at least 1")
        self._ttl = ttl_seconds
        self._max = max_entries
        self._entries: OrderedDict[str, tuple[float, T]] = OrderedDict()

    def get(self, key: str) -> T | None:
        """Return a copy of the cached value, which the caller may change, or `None` if the value is missing or has expired."""
        found = self._entries.get(key)
        if found is None or found[0] < anyio.current_time():
            self._entries.pop(key, None)
            return None
        self._entries.move_to_end(key)
        return copy.deepcopy(found[1])

    def put(self, key: str, value: T) -> None:
        """Store a copy of `value`, and drop the least recently used entries beyond the maximum number of entries."""
        self._entries[key] = (anyio.current_time() + self._ttl, copy.deepcopy(value))
        self._entries.move_to_end(key)
        while len(self._entries) > self._max:
            self._entries.popitem(last=False)


class ToolCacheMiddleware(FunctionMiddleware):
    """Function middleware that returns the cached result of an earlier call with the same tool, arguments and caller.

    It covers tools whose names match one of the globs `tools`, and with `trust_annotations` also tools with a `readOnlyHint`. These tools
    must only read, because a call with a cached result does not execute the tool. Error results are not cached.
    """

    def __init__(
        self, tools: Sequence[str] = (), *, trust_annotations: bool = False, ttl_seconds: float = 300.0, max_entries: int = 256
    ) -> None:
        """Configure the cache; `tools` are globs over tool names. Raises `ValueError` for a time or size that is not positive."""
        self._tools = tuple(tools)
        self._trust_annotations = trust_annotations
        self._cache: _Cache[JsonValue] = _Cache(ttl_seconds, max_entries)

    async def process(self, context: FunctionInvocationContext, call_next: CallNext) -> None:
        """Set the cached result as the result of the tool call, or execute the call and cache its result."""
        if not self._covers(context.function.definition):
            await call_next()
            return
        key = _key([context.function.definition.name, context.arguments, context.ctx.facts.principal.id])
        found = self._cache.get(key)
        if found is not None:
            context.result = found
            return
        await call_next()
        if context.result is not None and not getattr(context.result, "is_error", False):
            self._cache.put(key, context.result)

    def _covers(self, tool: ToolDefinition) -> bool:
        is_named = any(fnmatchcase(tool.name, glob) for glob in self._tools)
        return is_named or (self._trust_annotations and not may_change_something(tool.annotations))


class ModelCacheMiddleware(ChatMiddleware):
    """Chat middleware that returns the cached response of an earlier model call with the same model, messages and options.

    It is meant for tests and fixed prompts.
    """

    def __init__(self, *, ttl_seconds: float = 3600.0, max_entries: int = 256) -> None:
        """Configure the cache of responses. Raises `ValueError` for a time or size that is not positive."""
        self._cache: _Cache[ChatResponse] = _Cache(ttl_seconds, max_entries)

    async def process(self, context: ChatContext, call_next: CallNext) -> None:
        """Set the cached response as the call's result, or call the model and cache its response.

        The response of a streamed call is cached after the stream was read completely.
        """
        key = _request_key(context)
        found = self._cache.get(key)
        if found is not None:
            context.result = ResponseStream(replay(found), ChatResponse.from_updates) if context.stream else found
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

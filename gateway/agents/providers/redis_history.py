"""`RedisHistoryProvider`: stores the conversations of agents in Redis. The extra `redis` installs the Redis client."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, ClassVar, Unpack, cast
from urllib.parse import quote

from gateway.errors import StorageError
from gateway.json_types import JsonObject, JsonValue
from gateway.lazy import import_extra
from gateway.sessions.history import HistoryOptions, HistoryProvider
from gateway.types.messages import Message


class RedisHistoryProvider(HistoryProvider):
    """History provider that stores each conversation as a Redis list with one message per item."""

    DEFAULT_SOURCE_ID: ClassVar[str] = "redis_memory"

    def __init__(
        self,
        source_id: str = DEFAULT_SOURCE_ID,
        redis_url: str | None = None,
        *,
        redis_client: Any = None,
        key_prefix: str = "chat_messages",
        application_id: str | None = None,
        max_messages: int | None = None,
        **options: Unpack[HistoryOptions],
    ) -> None:
        """Configure the connection: pass `redis_url` (`redis://…`, `rediss://…`, `unix://…`), or a `redis_client` that the program closes.

        Keys are `<key_prefix>:<application_id>:<source_id>:<session id>`, each part URL-quoted; `application_id` is omitted if not given.
        `max_messages` limits the stored messages of a conversation; the oldest are deleted.

        Raises:
            ValueError: Neither or both of `redis_url` and `redis_client` are given, or `max_messages` is below 1.
            ModuleNotFoundError: `redis_url` is given and the extra `redis` is not installed.
        """
        super().__init__(source_id, **options)
        if (redis_url is None) == (redis_client is None):
            raise ValueError("RedisHistoryProvider needs either redis_url or redis_client.")
        if max_messages is not None and max_messages < 1:
            raise ValueError(f"max_messages must be at least 1, or None; not {max_messages}.")
        self.max_messages = max_messages
        self._prefix = ":".join(quote(part, safe="") for part in (key_prefix, application_id, source_id) if part)
        self._is_own = redis_client is None
        if redis_client is None:
            redis = cast("Any", import_extra("redis.asyncio", extra="redis", purpose="RedisHistoryProvider"))
            redis_client = redis.from_url(redis_url)
        self._redis = redis_client

    async def get_messages(self, session_id: str | None, *, state: JsonObject | None = None, **kwargs: JsonValue) -> list[Message]:
        """Return the stored messages of a session, oldest first. Raises `StorageError` if an entry is not a message."""
        stored: list[bytes | str] = await self._redis.lrange(self._key(session_id), 0, -1)
        try:
            return [Message.from_dict(json.loads(item)) for item in stored]
        except (KeyError, TypeError, ValueError, AttributeError):
            raise StorageError(f"Conversation {session_id!r} in Redis is damaged: not every entry is a message.") from None

    async def save_messages(
        self, session_id: str | None, messages: Sequence[Message], *, state: JsonObject | None = None, **kwargs: JsonValue
    ) -> None:
        """Append messages to the session's conversation in one transaction, and delete the oldest beyond `max_messages`."""
        if not messages:
            return
        key = self._key(session_id)
        async with self._redis.pipeline(transaction=True) as steps:
            steps.rpush(key, *(json.dumps(message.to_dict(), ensure_ascii=False) for message in messages))
            if self.max_messages is not None:
                steps.ltrim(key, -self.max_messages, -1)
            await steps.execute()

    async def clear(self, session_id: str | None) -> None:
        """Delete the stored conversation of a session."""
        await self._redis.delete(self._key(session_id))

    async def aclose(self) -> None:
        """Close the connections to Redis, unless the program passed a client."""
        if self._is_own:
            await self._redis.aclose()

    def _key(self, session_id: str | None) -> str:
        return f"{self._prefix}:{quote(session_id or 'default', safe='')}"

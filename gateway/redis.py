"""Conversations in Redis; the stable import path of that integration (extra `redis`)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gateway.lazy import lazy_names

if TYPE_CHECKING:
    from gateway.agents.providers.redis_history import RedisHistoryProvider

__all__ = ["RedisHistoryProvider"]

__getattr__ = lazy_names(
    __name__,
    {"RedisHistoryProvider": "agents.providers.redis_history"},
    missing={
        "RedisContextProvider": "memories by Redis' vector search are not supported here. Use gateway.SemanticMemoryProvider, which "
        "searches by meaning in SQLite or PostgreSQL, or gateway.mem0.Mem0ContextProvider."
    },
)

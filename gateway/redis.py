"""Conversation history of agents in Redis (extra `redis`). Stable import path; `redis.pyi` declares the names."""

from __future__ import annotations

from gateway.lazy import lazy_names

__getattr__ = lazy_names(
    __name__,
    hints={
        "RedisContextProvider": "vector search in Redis is not supported. Use gateway.SemanticMemoryProvider (SQLite or PostgreSQL) "
        "or gateway.mem0.Mem0ContextProvider.",
    },
)

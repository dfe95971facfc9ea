"""`gateway.lifecycle`: hooks around the steps of an agent's run, with the types that a hook's parameters and results have.

Experimental. `docs/middleware.md` says when each hook runs and what it may change.
"""

from __future__ import annotations

from gateway.agents.lifecycle.hooks import (
    ErrorContext,
    ErrorSource,
    FunctionContext,
    FunctionHandler,
    FunctionRequest,
    HookContext,
    IterationContext,
    LifecycleHooks,
    MessageTurnContext,
    ModelHandler,
    ModelRequest,
    ModelStreamHandler,
    ParallelBatchContext,
    ToolExecutionContext,
)
from gateway.agents.lifecycle.layers import lifecycle_middleware
from gateway.agents.lifecycle.state import EventListener, HookEvent, HookEvents, StateCell, TurnState
from gateway.json_types import JsonMapping, JsonValue

__all__ = [
    "ErrorContext",
    "ErrorSource",
    "EventListener",
    "FunctionContext",
    "FunctionHandler",
    "FunctionRequest",
    "HookContext",
    "HookEvent",
    "HookEvents",
    "IterationContext",
    "JsonMapping",
    "JsonValue",
    "LifecycleHooks",
    "MessageTurnContext",
    "ModelHandler",
    "ModelRequest",
    "ModelStreamHandler",
    "ParallelBatchContext",
    "StateCell",
    "ToolExecutionContext",
    "TurnState",
    "lifecycle_middleware",
]

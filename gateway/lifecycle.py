"""`gateway.lifecycle`: lifecycle hooks for an agent's runs, and the types of their parameters and results. Experimental.

`docs/middleware.md` describes when each hook is called and what it may change.
"""

from __future__ import annotations

from gateway.agents.lifecycle.hook_layers import lifecycle_middleware
from gateway.agents.lifecycle.hook_state import EventListener, HookEvent, HookEvents, StateCell, TurnState
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

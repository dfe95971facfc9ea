from gateway.agents.lifecycle.hook_layers import lifecycle_middleware as lifecycle_middleware
from gateway.agents.lifecycle.hook_state import (
    EventListener as EventListener,
    HookEvent as HookEvent,
    HookEvents as HookEvents,
    StateCell as StateCell,
    TurnState as TurnState,
)
from gateway.agents.lifecycle.hooks import (
    ErrorContext as ErrorContext,
    ErrorSource as ErrorSource,
    FunctionContext as FunctionContext,
    FunctionHandler as FunctionHandler,
    FunctionRequest as FunctionRequest,
    HookContext as HookContext,
    IterationContext as IterationContext,
    LifecycleHooks as LifecycleHooks,
    MessageTurnContext as MessageTurnContext,
    ModelHandler as ModelHandler,
    ModelRequest as ModelRequest,
    ModelStreamHandler as ModelStreamHandler,
    ParallelBatchContext as ParallelBatchContext,
    ToolExecutionContext as ToolExecutionContext,
)
from gateway.json_types import (
    JsonMapping as JsonMapping,
    JsonValue as JsonValue,
)

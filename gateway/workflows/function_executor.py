"""`FunctionExecutor` and the decorator `@executor`, which make a workflow executor from a function.

Names are those of Microsoft's agent-framework.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, overload

from gateway.tools.function import run_function
from gateway.workflows.executor import Executor, HandlerSpec, context_types, message_type_of
from gateway.workflows.type_hints import hints_of, members, resolved
from gateway.workflows.workflow_context import WorkflowContext


class FunctionExecutor(Executor):
    """A workflow executor that calls a function `func(message)` or `func(message, ctx)`, sync or async, for each message.

    The result of a function without `ctx` is sent along the edges and yielded as an output, unless it is `None`. The result of a function
    with `ctx` is ignored; it must call `ctx.send_message` and `ctx.yield_output`. A sync function runs in a worker thread.
    """

    def __init__(
        self, func: Callable[..., Any], id: str | None = None, *, input: Any = None, output: Any = None, workflow_output: Any = None
    ) -> None:
        """Create an executor of `func`. The default `id` is the name of the function.

        `input` is the type of the message, `output` the type of sent messages, `workflow_output` the type of yielded outputs. By default
        these types are read from the annotations of `func`.

        Raises:
            ValueError: `func` does not have one or two parameters, its message has no type, its context is not annotated as
                `WorkflowContext`, or it is a static method or class method.
        """
        if isinstance(func, staticmethod | classmethod):
            kind = "staticmethod" if isinstance(func, staticmethod) else "classmethod"
            raise ValueError(f"The @executor decorator cannot be used with @{kind}: decorate a plain function, or a method with @handler.")
        super().__init__(id or getattr(func, "__name__", "FunctionExecutor"), type="FunctionExecutor", defer_discovery=True)
        names = list(inspect.signature(func).parameters)
        if len(names) not in (1, 2):
            raise ValueError(
                f"Function {self.id!r} must have (message: T) or (message: T, ctx: WorkflowContext[U]). Got {len(names)} parameters."
            )
        hints = hints_of(func)
        self._func = func
        self._wants_context = len(names) == 2
        message_type = resolved(input, func) if input is not None else message_type_of(hints, names[0], func, "Function")
        if self._wants_context:
            sent, yielded = context_types(hints.get(names[1], inspect.Parameter.empty), f"Function {self.id!r}")
        else:
            sent = yielded = members(hints.get("return", Any))
        sent = members(resolved(output, func)) if output is not None else sent
        yielded = members(resolved(workflow_output, func)) if workflow_output is not None else yielded
        self.register(self._call, HandlerSpec(self.id, message_type, tuple(sent), tuple(yielded)))

    async def _call(self, message: Any, ctx: WorkflowContext[Any, Any]) -> None:
        value = await run_function(self._func, [message, ctx] if self._wants_context else [message], {})
        if value is not None and not self._wants_context:
            await ctx.send_message(value)
            await ctx.yield_output(value)


@overload
def executor(func: Callable[..., Any], /) -> FunctionExecutor: ...


@overload
def executor(
    *, id: str | None = None, input: Any = None, output: Any = None, workflow_output: Any = None
) -> Callable[[Callable[..., Any]], FunctionExecutor]: ...


def executor(
    func: Callable[..., Any] | None = None, /, *, id: str | None = None, input: Any = None, output: Any = None, workflow_output: Any = None
) -> Any:
    """Make a workflow executor from a function: use it as `@executor`, or with arguments as `@executor(id=…)`.

    `id` defaults to the function's name. `input`, `output` and `workflow_output` are types that replace the function's annotations.
    """

    def wrap(wrapped: Callable[..., Any]) -> FunctionExecutor:
        return FunctionExecutor(wrapped, id, input=input, output=output, workflow_output=workflow_output)

    return wrap if func is None else wrap(func)

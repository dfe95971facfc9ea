"""`@tool` and `FunctionTool`: a Python function as a tool.

A sync function runs in a worker thread, an async one is awaited. Knows neither where functions come from
(`functions_source`) nor policy (`guard`). Used by people who write functions, by `FunctionSource`, by agents
and by workflow files.
"""

from __future__ import annotations

import inspect
import json
import logging
import re
from collections.abc import Awaitable, Callable, Iterable, Mapping
from functools import cached_property, partial
from typing import Any, Generic, ParamSpec, TypeVar, cast, overload

import anyio
import anyio.lowlevel
import anyio.to_thread

from gateway.errors import GatewayError, ToolFailed
from gateway.json_types import JsonObject, JsonValue
from gateway.tools.base import Complete, InputRequired, TaskStarted, TaskSupport, Tool, ToolDefinition, ToolOutcome
from gateway.tools.context import CallContext
from gateway.tools.schema import Explicit, FunctionSchema, read_function

logger = logging.getLogger(__name__)

P = ParamSpec("P")
R = TypeVar("R")

MAX_THREADS = 40
"""Sync functions at once. Their own budget, because one that is cancelled keeps its thread until it returns."""

_NAME = re.compile(r"^[A-Za-z0-9_.-]{1,128}$")
_threads = anyio.lowlevel.RunVar[anyio.CapacityLimiter]("gateway.tools.function.threads")


class FunctionTool(Generic[P, R]):
    """A function as a `Tool`. Calling the object itself calls the plain function."""

    def __init__(
        self,
        func: Callable[P, R] | None,
        *,
        name: str | None = None,
        description: str | None = None,
        schema: Explicit | None = None,
        annotations: JsonObject | None = None,
        task: TaskSupport = "never",
        include_detailed_errors: bool = False,
    ) -> None:
        """Wrap `func`; name, description and schema come from it where not given.

        `func=None` declares a tool that the caller of an agent runs itself; it needs `name` and a JSON `schema`.
        The signature is read at first use, so annotations may name things defined further down.
        `include_detailed_errors` shows the model what an unexpected exception says; off, it only learns that
        the function failed.

        Raises:
            ValueError: The name is missing or not a tool name, or a declaration has no schema.
        """
        chosen = name or getattr(func, "__name__", "")
        if not _NAME.match(chosen):
            raise ValueError(f"{chosen!r} is not a tool name: use 1 to 128 letters, digits, '_', '-' or '.'; set it with name=.")
        if func is None and not isinstance(schema, Mapping):
            raise ValueError(f"Tool {chosen!r} has no function, so its schema must be given as JSON Schema.")
        self.name = chosen
        self.func = func
        self.include_detailed_errors = include_detailed_errors
        self._description = description
        self._explicit = schema
        self._annotations = annotations
        self._task: TaskSupport = task

    @property
    def is_declaration(self) -> bool:
        """Whether there is no function behind it."""
        return self.func is None

    @cached_property
    def _schema(self) -> FunctionSchema:
        if self.func is None:
            return FunctionSchema("", dict(cast("JsonObject", self._explicit)), None, None)
        return read_function(self.func, explicit=self._explicit)

    @property
    def definition(self) -> ToolDefinition:
        """What is published.

        Raises:
            TypeError: The signature cannot be described.
        """
        return self._definition

    @cached_property
    def _definition(self) -> ToolDefinition:
        schema = self._schema
        description = self._description if self._description is not None else schema.description
        return ToolDefinition(
            name=self.name,
            description=description or None,
            input_schema=schema.input_schema,
            output_schema=schema.output_schema,
            annotations=self._annotations,
            task=self._task,
            may_ask=schema.context_parameter is not None,
        )

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Call the plain function.

        Raises:
            TypeError: There is none.
        """
        if self.func is None:
            raise TypeError(f"Tool {self.name!r} is only declared; it has no function.")
        return self.func(*args, **kwargs)

    async def call(self, arguments: JsonObject, ctx: CallContext) -> ToolOutcome:
        """Run the function once.

        A cancelled sync function is abandoned: its thread runs on and its result is dropped.

        Raises:
            ToolFailed: The arguments do not fit, the tool is only declared, or the function raised; the
                exception is kept as `__cause__`. A `GatewayError` raised by the function passes unchanged.
        """
        value = await self.run(arguments, ctx)
        if isinstance(value, Complete | InputRequired | TaskStarted):
            return value
        if value is None:
            return Complete({"content": []})
        text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
        return Complete.text(text, structured=value if isinstance(value, dict) else None)

    async def run(self, arguments: JsonObject, ctx: CallContext) -> JsonValue | ToolOutcome:
        """`call` without the wrapping: the function's result as JSON, or the `ToolOutcome` it returned.

        Raises:
            ToolFailed: As `call` does.
        """
        if self.func is None:
            raise ToolFailed(f"Tool {self.name!r} is only declared; whoever runs the agent must answer it.")
        positional, keyword = self._schema.bind(arguments, ctx)
        try:
            value = await run_function(self.func, positional, keyword)
            return value if isinstance(value, Complete | InputRequired | TaskStarted) else self._schema.to_json(value)
        except GatewayError:
            raise
        except (Exception, SystemExit) as error:
            logger.warning("function %s failed: %s", self.name, type(error).__name__)
            logger.debug("function %s failed", self.name, exc_info=True)
            detail = f" {type(error).__name__}: {error}" if self.include_detailed_errors else ""
            raise ToolFailed(f"Function {self.name!r} failed.{detail}") from error


@overload
def tool(func: Callable[P, R], /) -> FunctionTool[P, R]: ...


@overload
def tool(
    *,
    name: str | None = None,
    description: str | None = None,
    schema: Explicit | None = None,
    annotations: JsonObject | None = None,
    task: TaskSupport = "never",
    include_detailed_errors: bool = False,
) -> Callable[[Callable[P, R]], FunctionTool[P, R]]: ...


def tool(
    func: Callable[..., Any] | None = None,
    /,
    *,
    name: str | None = None,
    description: str | None = None,
    schema: Explicit | None = None,
    annotations: JsonObject | None = None,
    task: TaskSupport = "never",
    include_detailed_errors: bool = False,
) -> Any:
    """Make a function a tool: `@tool`, or `@tool(name=…)`. See `FunctionTool` for what each setting does.

    A parameter annotated `CallContext` receives the call's context and is not published. Results: `str` becomes
    text; dataclasses, pydantic models and dicts become structured content with their JSON as text; anything else
    becomes JSON text; a `ToolOutcome` is returned as it is.
    """

    def wrap(wrapped: Callable[..., Any]) -> FunctionTool[..., Any]:
        return FunctionTool(
            wrapped,
            name=name,
            description=description,
            schema=schema,
            annotations=annotations,
            task=task,
            include_detailed_errors=include_detailed_errors,
        )

    return wrap if func is None else wrap(func)


def by_name(tools: Iterable[Tool]) -> dict[str, Tool]:
    """Tools keyed by name, in order; the same object twice counts once.

    Raises:
        ValueError: Two different tools have one name.
    """
    found: dict[str, Tool] = {}
    for item in tools:
        name = item.definition.name
        if found.setdefault(name, item) is not item:
            raise ValueError(f"Two different tools are named {name!r}; rename one.")
    return found


async def run_function(func: Callable[..., Any], positional: list[Any], keyword: dict[str, Any]) -> object:
    """Call any function: an async one is awaited, a sync one runs in a worker thread.

    A cancelled sync function is abandoned: its thread runs on and its result is dropped.
    """
    if _is_async(func):
        return await func(*positional, **keyword)
    work = partial(func, *positional, **keyword)
    value: object = await anyio.to_thread.run_sync(work, abandon_on_cancel=True, limiter=_limiter())
    return await cast("Awaitable[object]", value) if inspect.isawaitable(value) else value


def _is_async(func: Callable[..., Any]) -> bool:
    while isinstance(func, partial):
        func = func.func
    return inspect.iscoroutinefunction(func) or inspect.iscoroutinefunction(type(func).__call__)


def _limiter() -> anyio.CapacityLimiter:
    """The thread budget of the running event loop."""
    limiter = _threads.get(None)
    if limiter is None:
        limiter = anyio.CapacityLimiter(MAX_THREADS)
        _threads.set(limiter)
    return limiter

"""`@tool` and `FunctionTool`: make a Python function a tool that clients, agents and workflows can call.

A sync function runs in a worker thread; an async function is awaited. Used by authors of functions, `FunctionSource`, agents and workflow
files. The package `gate` applies the policy.
"""

from __future__ import annotations

import inspect
import json
import logging
import re
from collections.abc import Awaitable, Callable, Collection, Mapping
from copy import copy
from enum import Enum
from functools import cached_property, partial
from types import MethodType
from typing import Any, Generic, Literal, ParamSpec, Protocol, Self, TypeVar, cast, overload

import anyio
import anyio.lowlevel
import anyio.to_thread

from gateway.errors import CODE_ERRORS, GatewayError, ToolFailed, describe_error
from gateway.json_types import JsonMapping, JsonObject, JsonValue
from gateway.tools.base import Complete, InputRequired, TaskStarted, TaskSupport, ToolDefinition, ToolOutcome
from gateway.tools.contents import is_rich, to_block, to_contents
from gateway.tools.context import CallContext, Invocation
from gateway.tools.schema import ArgumentsRefused, Explicit, FunctionSchema, model_schema, read_function
from gateway.types.content import Content

logger = logging.getLogger(__name__)

P = ParamSpec("P")
R = TypeVar("R")

MAX_THREADS = 40
"""Maximum number of threads that run sync functions, separate from anyio's limit, because a cancelled function keeps its thread."""

_NAME = re.compile(r"^[A-Za-z0-9_.-]{1,128}$")
_TOLD = ("approval_mode", "kind", "max_invocations", "invocation_count", "max_invocation_exceptions", "invocation_exception_count")
_threads = anyio.lowlevel.RunVar[anyio.CapacityLimiter]("gateway.tools.function.threads")


class FunctionFailed(ToolFailed):
    """Raised if a tool's function, or the conversion of its result, raised an exception (the `__cause__`) that is not a `GatewayError`."""


class FunctionInvocation(Invocation, Protocol):
    """Protocol of the part of a `FunctionInvocationContext` (a tool call in an agent's run) that `FunctionTool.invoke` reads."""

    @property
    def ctx(self) -> CallContext:
        """The context of the gateway call to which the agent's run belongs."""
        ...

    @property
    def arguments(self) -> JsonObject:
        """The decoded arguments of the tool call."""
        ...


ApprovalMode = Literal["always_require", "never_require"]
"""Whether a person must approve each call of a tool."""

ResultParser = Callable[[Any], Any]
"""A function that converts the return value of a tool's function to text or `Content` objects for the model."""


class _SkipParsing(Enum):
    """The type of the constant `SKIP_PARSING`. The type is an enum, so that annotations can name the constant."""

    SKIP_PARSING = "skip"

    def __call__(self, value: object) -> object:
        return value


SKIP_PARSING = _SkipParsing.SKIP_PARSING
"""A value for the parameter `result_parser` of `FunctionTool`: `invoke` then returns the function's return value unchanged."""


class FunctionTool(Generic[P, R]):
    """A tool that runs a Python function. Calling the object itself calls the function without validating the arguments."""

    def __init__(
        self,
        func: Callable[P, R] | None = None,
        *,
        name: str | None = None,
        description: str | None = None,
        schema: Explicit | None = None,
        input_model: Explicit | None = None,
        approval_mode: ApprovalMode | None = None,
        kind: str | None = None,
        max_invocations: int | None = None,
        max_invocation_exceptions: int | None = None,
        additional_properties: JsonObject | None = None,
        result_parser: ResultParser | None = None,
        annotations: JsonObject | None = None,
        task: TaskSupport = "never",
        include_detailed_errors: bool | None = None,
    ) -> None:
        """Wrap `func`. Name, description and argument schema are by default those of the function; `input_model` is an alias of `schema`.

        `func=None` only declares a tool, which needs a `name`: the program that runs an agent answers the tool's calls. The signature is
        read at first use, so annotations may name objects that are defined later. With `approval_mode="always_require"` a person must
        approve each call. `max_invocations` and `max_invocation_exceptions` limit the calls and failures of this object.
        `include_detailed_errors` decides whether the caller receives the text of an unexpected exception. If it is `None`, every caller
        receives the text, except an agent's model, for which the key `include-detailed-errors` of the agent's file decides.

        Raises:
            ValueError: The name is missing or is not a valid tool name, a limit is below 1, or `approval_mode` is unknown.
        """
        while isinstance(func, FunctionTool):
            func = cast("Callable[P, R] | None", func.func)
        chosen = name or getattr(func, "__name__", "")
        _check_name(chosen)
        for limit, value in (("max_invocations", max_invocations), ("max_invocation_exceptions", max_invocation_exceptions)):
            if value is not None and value < 1:
                raise ValueError(f"{limit} must be at least 1, or None.")
        _check_approval(approval_mode or "never_require")
        explicit = schema if schema is not None else input_model
        self._name = chosen
        self.func = func
        self._approval_mode: ApprovalMode = approval_mode or "never_require"
        self.kind = kind
        self.max_invocations = max_invocations
        self.invocation_count = 0
        self.max_invocation_exceptions = max_invocation_exceptions
        self.invocation_exception_count = 0
        self.additional_properties: JsonObject = additional_properties or {}
        self.result_parser = result_parser
        self.include_detailed_errors = include_detailed_errors
        self._description = description
        self._explicit: Explicit | None = {"type": "object", "properties": {}} if func is None and explicit is None else explicit
        self._annotations = annotations
        self._task: TaskSupport = task

    def __get__(self, instance: object, owner: type | None = None) -> FunctionTool[..., R]:
        """Return a copy of the tool, bound to `instance`, if its function's first parameter is named `self`; else the tool itself."""
        if instance is None or self.func is None or next(iter(inspect.signature(self.func).parameters), "") != "self":
            return self
        bound = copy(self)
        for cached in ("_schema", "_definition"):
            bound.__dict__.pop(cached, None)
        bound.func = cast("Callable[P, R]", MethodType(self.func, instance))
        return bound

    @property
    def name(self) -> str:
        """The name by which the tool is called. Assigning to `name`, `description` or `approval_mode` changes the definition."""
        return self._name

    @name.setter
    def name(self, name: str) -> None:
        _check_name(name)
        self._name = name
        self.__dict__.pop("_definition", None)

    @property
    def description(self) -> str:
        """The description for models; by default the text of the function's docstring."""
        return self.definition.description or ""

    @description.setter
    def description(self, description: str | None) -> None:
        self._description = description
        self.__dict__.pop("_definition", None)

    @property
    def approval_mode(self) -> ApprovalMode:
        """Whether a person must approve each call of the tool: `always_require` or `never_require`."""
        return self._approval_mode

    @approval_mode.setter
    def approval_mode(self, approval_mode: ApprovalMode) -> None:
        _check_approval(approval_mode)
        self._approval_mode = approval_mode
        self.__dict__.pop("_definition", None)

    @property
    def declaration_only(self) -> bool:
        """Whether the tool is only declared: it has no function, and the program that runs the agent answers its calls."""
        return self.func is None

    def parameters(self) -> JsonObject:
        """Return the JSON Schema of the tool's arguments."""
        return self.definition.input_schema

    def __str__(self) -> str:
        return f"{type(self).__name__}(name={self.name}" + (f", description={self.description})" if self.description else ")")

    def to_dict(self, *, exclude: Collection[str] | None = None, exclude_none: bool = True) -> JsonObject:
        """Return the tool as JSON (`type: function_tool`) without its function, keys in `exclude` and, if `exclude_none`, `None` values."""
        data: JsonObject = {
            "type": "function_tool",
            "name": self.name,
            "description": self.description,
            "input_model": self.parameters(),
            **{key: getattr(self, key) for key in _TOLD},
        }
        return {key: value for key, value in data.items() if key not in (exclude or ()) and (value is not None or not exclude_none)}

    def to_json(self, *, exclude: Collection[str] | None = None, exclude_none: bool = True) -> str:
        """Return the object that `to_dict` returns (the tool without its function) as JSON text."""
        return json.dumps(self.to_dict(exclude=exclude, exclude_none=exclude_none), ensure_ascii=False)

    @classmethod
    def from_dict(cls, value: JsonMapping, /, *, dependencies: Mapping[str, Mapping[str, Any]] | None = None) -> Self:
        """Create a tool from the JSON that `to_dict` returns. `dependencies={"function_tool": {"func": f}}` sets its function.

        Without a function the tool is only declared. With a function, the schema is read from the signature again.
        """
        func = (dependencies or {}).get("function_tool", {}).get("func")
        made = cls(
            func,
            name=value["name"],
            description=value.get("description"),
            schema=value.get("input_model") if func is None else None,
            approval_mode=value.get("approval_mode"),
            kind=value.get("kind"),
            max_invocations=value.get("max_invocations"),
            max_invocation_exceptions=value.get("max_invocation_exceptions"),
        )
        for count in ("invocation_count", "invocation_exception_count"):
            setattr(made, count, value.get(count, 0))
        return made

    @classmethod
    def from_json(cls, value: str, /, *, dependencies: Mapping[str, Mapping[str, Any]] | None = None) -> Self:
        """Create a tool from the text that `to_json` returns. `dependencies={"function_tool": {"func": f}}` sets its function."""
        return cls.from_dict(json.loads(value), dependencies=dependencies)

    def to_json_schema_spec(self) -> JsonObject:
        """Return the tool in the form of OpenAI's `tools`, which most model APIs accept."""
        return {"type": "function", "function": {"name": self.name, "description": self.description, "parameters": self.parameters()}}

    @cached_property
    def _schema(self) -> FunctionSchema:
        if self.func is None:
            explicit = cast("Explicit", self._explicit)
            shape = explicit if isinstance(explicit, Mapping) else model_schema(explicit)
            return FunctionSchema("", dict(shape), None, None)
        return read_function(self.func, explicit=self._explicit)

    @property
    def definition(self) -> ToolDefinition:
        """The MCP definition of the tool, with its input schema and, for a return type that is an object, its output schema.

        Raises:
            TypeError, ValueError: The function's signature has no schema (see `read_function`).
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
            needs_approval=self.approval_mode == "always_require",
            may_request_input=schema.context_parameter is not None or self.approval_mode == "always_require",
        )

    @property
    def takes_context(self) -> bool:
        """Whether the function has a parameter that receives the context of the call."""
        return self._schema.context_parameter is not None

    def coerce(self, arguments: JsonMapping) -> JsonObject:
        """Validate and convert the arguments, add defaults, and return them (see `FunctionSchema.coerce`). Used by middleware of agents.

        Raises:
            ArgumentsRefused: The arguments do not match the schema.
        """
        return self._schema.coerce(arguments)

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Call the Python function directly with these arguments, without validating or converting them.

        Raises:
            ToolFailed: The tool is only declared, or a limit on calls or failures is reached.
        """
        if self.func is None:
            raise ToolFailed(f"Tool {self.name!r} is only declared; it has no function.")
        self._count()
        try:
            return self.func(*args, **kwargs)
        except Exception:
            self.invocation_exception_count += 1
            raise

    def _count(self) -> None:
        if self.max_invocations is not None and self.invocation_count >= self.max_invocations:
            raise ToolFailed(f"Function {self.name!r} was called {self.max_invocations} times, as often as allowed; do not use it again.")
        limit = self.max_invocation_exceptions
        if limit is not None and self.invocation_exception_count >= limit:
            raise ToolFailed(f"Function {self.name!r} failed {limit} times, as often as allowed; do not use it again.")
        self.invocation_count += 1

    async def invoke(
        self,
        *,
        arguments: JsonMapping | None = None,
        context: FunctionInvocation | None = None,
        tool_call_id: str | None = None,
        skip_parsing: bool = False,
        **values: JsonValue,
    ) -> Any:
        """Run the function once, and return its result as a list of `Content` objects, or unchanged with `skip_parsing`.

        The arguments come from `arguments` or the keywords, or else from `context`. Exceptions of the function are raised unchanged.

        Raises:
            TypeError: The arguments do not match the schema.
            ToolFailed: The tool is only declared, or a limit on calls or failures is reached.
        """
        ctx = CallContext() if context is None else context.ctx.for_invocation(context)
        known: JsonMapping = self.parameters().get("properties") or {}
        if unknown := [name for name in values if arguments is not None or name not in known]:
            raise TypeError(f"Tool {self.name!r} has no argument {', '.join(unknown)}. Pass values for the run in its context.")
        given = arguments if arguments is not None else values or ({} if context is None else context.arguments)
        dump = cast("Callable[[], JsonObject] | None", getattr(given, "model_dump", None))
        if dump is None and not isinstance(cast("object", given), Mapping):
            raise TypeError(f"The arguments of tool {self.name!r} must be an object, not {type(given).__name__}.")
        raw = skip_parsing or self.result_parser is SKIP_PARSING
        try:
            value = await self._value(dump() if dump is not None else dict(given), ctx, raw=raw)
        except ArgumentsRefused as error:
            raise TypeError(str(error)) from None
        except FunctionFailed as error:
            failure = error.__cause__ or error
        else:
            return value if raw else to_contents(value)
        raise failure

    @staticmethod
    def parse_result(result: object) -> list[Content]:
        """Convert the return value of a function to a list of `Content` objects, the parts of a message."""
        return to_contents(result)

    async def call(self, arguments: JsonObject, ctx: CallContext) -> ToolOutcome:
        """Run the function once, and return the outcome as an MCP result.

        A cancelled sync function is abandoned: its thread continues, and its result is dropped.

        Raises:
            GatewayError: The function raised this error.
            ToolFailed: As for `run`.
        """
        value = await self.run(arguments, ctx)
        if isinstance(value, Complete | InputRequired | TaskStarted):
            return value
        if is_rich(value):
            return Complete({"content": [to_block(item) for item in to_contents(value)]})
        if value is None:
            return Complete({"content": []})
        text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
        return Complete.text(text, structured=value if isinstance(value, dict) else None)

    async def run(self, arguments: JsonObject, ctx: CallContext) -> JsonValue | ToolOutcome:
        """Run the function, and return its result as JSON; a `ToolOutcome` stays unchanged. A `GatewayError` of the function is raised.

        Raises:
            ToolFailed: The arguments are invalid, there is no function, a limit is reached, or the function failed (`FunctionFailed`).
        """
        return await self._value(arguments, ctx)

    async def _value(self, arguments: JsonObject, ctx: CallContext, *, raw: bool = False) -> Any:
        if self.func is None:
            raise ToolFailed(f"Tool {self.name!r} is only declared; the caller of the agent must answer it.")
        positional, keyword = self._schema.bind(arguments, ctx, self)
        self._count()
        try:
            value = await run_function(self.func, positional, keyword)
            if raw or isinstance(value, Complete | InputRequired | TaskStarted):
                return value
            if self.result_parser is not None:
                return self.result_parser(value)
            return to_contents(value) if is_rich(value) else self._schema.to_json(value)
        except GatewayError:
            self.invocation_exception_count += 1
            raise
        except CODE_ERRORS as error:
            self.invocation_exception_count += 1
            logger.warning("function failed name=%s error=%s", self.name, type(error).__name__)
            logger.debug("function failed name=%s", self.name, exc_info=True)
            shows_error = ctx.facts.provenance.shows_errors if self.include_detailed_errors is None else self.include_detailed_errors
            detail = f": {describe_error(error)}" if shows_error else "."
            raise FunctionFailed(f"Function {self.name!r} failed{detail}") from error


@overload
def tool(func: Callable[P, R], /) -> FunctionTool[P, R]: ...


@overload
def tool(
    func: None = None,
    /,
    *,
    name: str | None = None,
    description: str | None = None,
    schema: Explicit | None = None,
    approval_mode: ApprovalMode | None = None,
    kind: str | None = None,
    max_invocations: int | None = None,
    max_invocation_exceptions: int | None = None,
    additional_properties: JsonObject | None = None,
    result_parser: ResultParser | None = None,
    annotations: JsonObject | None = None,
    task: TaskSupport = "never",
    include_detailed_errors: bool | None = None,
) -> Callable[[Callable[P, R]], FunctionTool[P, R]]: ...


def tool(
    func: Callable[..., Any] | None = None,
    /,
    *,
    name: str | None = None,
    description: str | None = None,
    schema: Explicit | None = None,
    approval_mode: ApprovalMode | None = None,
    kind: str | None = None,
    max_invocations: int | None = None,
    max_invocation_exceptions: int | None = None,
    additional_properties: JsonObject | None = None,
    result_parser: ResultParser | None = None,
    annotations: JsonObject | None = None,
    task: TaskSupport = "never",
    include_detailed_errors: bool | None = None,
) -> Any:
    """Make a function a tool: `@tool`, `@tool(name=…)`, or `tool(function)`. `FunctionTool` describes the parameters.

    A parameter annotated `CallContext` or `FunctionInvocationContext` receives the context of the call and is not in the input schema.
    Results of the function: `str` becomes text; `Content` objects become content blocks; dataclasses, pydantic models and dicts become
    structured content with their JSON as text; `None` gives no content; other values become JSON text; a `ToolOutcome` stays unchanged.
    """

    def wrap(wrapped: Callable[..., Any]) -> FunctionTool[..., Any]:
        return FunctionTool(
            wrapped,
            name=name,
            description=description,
            schema=schema,
            approval_mode=approval_mode,
            kind=kind,
            max_invocations=max_invocations,
            max_invocation_exceptions=max_invocation_exceptions,
            additional_properties=additional_properties,
            result_parser=result_parser,
            annotations=annotations,
            task=task,
            include_detailed_errors=include_detailed_errors,
        )

    return wrap if func is None else wrap(func)


async def run_function(func: Callable[..., Any], positional: list[Any], keyword: dict[str, Any]) -> object:
    """Call a function and return its result: an async function is awaited, a sync function runs in a worker thread.

    A cancelled sync function is abandoned: its thread continues, and its result is dropped.
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
    if (limiter := _threads.get(None)) is None:
        limiter = anyio.CapacityLimiter(MAX_THREADS)
        _threads.set(limiter)
    return limiter


def _check_name(name: str) -> None:
    if not _NAME.match(name):
        raise ValueError(f"{name!r} is not a tool name: use 1 to 128 letters, digits, '_', '-' or '.'; set it with name=.")


def _check_approval(mode: str) -> None:
    if mode not in ("always_require", "never_require"):
        raise ValueError(f"approval_mode must be 'always_require' or 'never_require', not {mode!r}.")

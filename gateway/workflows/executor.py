"""`Executor`, `handler` and `response_handler`: what people write to make a graph.

An executor handles one message at a time and acts through its context only. Knows nothing of files, tools or MCP,
except that a context carries the `CallContext` of the run. Functions as executors are `function_executor`'s.
"""

from __future__ import annotations

import functools
import inspect
import json
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, ForwardRef, Protocol, Self, TypeVar, cast, get_args, get_origin, overload

from gateway.errors import WorkflowError
from gateway.workflows.annotations import hints_of, is_compatible, is_instance_of, members, name_of, resolved
from gateway.workflows.context import WorkflowContext
from gateway.workflows.messages import MessageType, WorkflowMessage

HandlerFunction = Callable[..., Awaitable[Any]]
FunctionT = TypeVar("FunctionT", bound=HandlerFunction)


class Mark(Protocol):
    """A decorator that leaves the function as it is."""

    def __call__(self, function: FunctionT, /) -> FunctionT:
        """The same function."""
        ...


_HANDLER = "__workflow_handler__"
_RESPONSE_HANDLER = "__workflow_response_handler__"


@dataclass(frozen=True, slots=True)
class HandlerSpec:
    """What a handler takes and gives."""

    name: str
    message_type: Any
    """For a response handler the pair of request and response type."""
    output_types: tuple[Any, ...]
    workflow_output_types: tuple[Any, ...]


class Executor:
    """A node of a graph. Subclass it and mark async methods `(self, message, ctx)` with `@handler`."""

    joins: ClassVar[bool] = False
    """Whether the messages that arrive in one round are handled together, as one list, instead of one by one."""

    def __init__(self, id: str, *, type: str | None = None, defer_discovery: bool = False) -> None:
        """`id` is unique within a workflow. `defer_discovery` leaves finding handlers to the subclass.

        Raises:
            ValueError: The id is empty, or no method is a handler.
        """
        if not id:
            raise ValueError(f"{self.__class__.__name__} needs a non-empty id.")
        self.id = id
        self.type = type or self.__class__.__name__
        self._specs: list[HandlerSpec] = []
        self._handlers: dict[Any, HandlerFunction] = {}
        self._response_specs: list[HandlerSpec] = []
        self._response_handlers: dict[tuple[Any, Any], HandlerFunction] = {}
        if not defer_discovery:
            self._discover()
            if not self._handlers:
                raise ValueError(f"Executor {id!r} has no handlers defined: mark a method of {self.__class__.__name__} with @handler.")

    @property
    def input_types(self) -> list[Any]:
        """Message types it handles, in the order in which they are tried."""
        return list(self._handlers)

    @property
    def output_types(self) -> list[Any]:
        """What it may send on, by its annotations; empty when they do not say."""
        return list(dict.fromkeys(kind for spec in [*self._specs, *self._response_specs] for kind in spec.output_types))

    @property
    def workflow_output_types(self) -> list[Any]:
        """What it may yield, by its annotations; empty when they do not say."""
        return list(dict.fromkeys(kind for spec in [*self._specs, *self._response_specs] for kind in spec.workflow_output_types))

    @property
    def request_types(self) -> list[tuple[Any, Any]]:
        """Pairs of request and response type that it can take answers for."""
        return list(self._response_handlers)

    @property
    def is_request_response_capable(self) -> bool:
        """Whether it has a response handler."""
        return bool(self._response_handlers)

    def is_request_supported(self, request_type: Any, response_type: Any) -> bool:
        """Whether a response handler would take that pair."""
        return any(is_compatible(request_type, one) and is_compatible(response_type, two) for one, two in self._response_handlers)

    def can_handle(self, message: WorkflowMessage) -> bool:
        """Whether a handler takes this message."""
        return self._find(message) is not None

    def find(self, message: WorkflowMessage) -> HandlerFunction:
        """What handles the message, called with the message and a context.

        Raises:
            WorkflowError: Nothing does.
        """
        found = self._find(message)
        if found is None:
            what = f"message of type {type(message.data).__name__}"
            if (event := message.original_request_info_event) is not None:
                what = f"request of type {type(event.data).__name__} and response of type {type(message.data).__name__}"
            known = ", ".join(name_of(kind) for kind in self.input_types)
            raise WorkflowError(f"Executor {self.id!r} cannot handle {what}; it takes {known}.")
        return found

    async def on_checkpoint_save(self) -> dict[str, Any]:
        """What the executor keeps beside the shared state, for a checkpoint. Override together with `on_checkpoint_restore`."""
        return {}

    async def on_checkpoint_restore(self, state: dict[str, Any]) -> None:
        """Take back what `on_checkpoint_save` gave."""

    def to_dict(self) -> dict[str, Any]:
        """Id and kind."""
        return {"id": self.id, "type": self.type}

    def to_json(self) -> str:
        """`to_dict` as text."""
        return json.dumps(self.to_dict(), ensure_ascii=False)

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Self:
        """An executor of this class with what `to_dict` says; a class that takes more than an id overrides this."""
        return cls(**{name: value for name, value in data.items() if name != "type"})

    @classmethod
    def from_json(cls, raw: str) -> Self:
        """The inverse of `to_json`.

        Raises:
            ValueError: It is no JSON object.
        """
        data = json.loads(raw)
        if not isinstance(data, dict):
            raise ValueError("JSON payload must decode to a mapping")
        return cls.from_dict(cast("dict[str, Any]", data))

    def register(self, function: HandlerFunction, spec: HandlerSpec) -> None:
        """Add a handler to this object; for subclasses that are made from functions.

        Raises:
            ValueError: There already is one for that type.
        """
        if spec.message_type in self._handlers:
            raise ValueError(f"Duplicate handler for type {name_of(spec.message_type)} in {self.__class__.__name__}.")
        self._handlers[spec.message_type] = function
        self._specs.append(spec)

    def _find(self, message: WorkflowMessage) -> HandlerFunction | None:
        if message.type is MessageType.RESPONSE:
            event = message.original_request_info_event
            for (request_type, response_type), found in self._response_handlers.items():
                if event is not None and is_instance_of(event.data, request_type) and is_instance_of(message.data, response_type):
                    return functools.partial(found, event.data)
            return None
        for message_type, found in self._handlers.items():
            if is_instance_of(message.data, message_type):
                return found
        return None

    def _discover(self) -> None:
        found: dict[str, Any] = {}
        for base in reversed(type(self).__mro__):
            found.update(vars(base))
        for name, method in found.items():
            spec = cast("HandlerSpec | None", getattr(method, _HANDLER, None))
            if spec is not None:
                self.register(getattr(self, name), spec)
            spec = cast("HandlerSpec | None", getattr(method, _RESPONSE_HANDLER, None))
            if spec is not None:
                if spec.message_type in self._response_handlers:
                    request, response = spec.message_type
                    text = f"Duplicate response handler for request type {request} and response type {response}"
                    raise ValueError(f"{text} in {type(self).__name__}.")
                self._response_handlers[spec.message_type] = getattr(self, name)
                self._response_specs.append(spec)


@overload
def handler(function: FunctionT, /) -> FunctionT: ...


@overload
def handler(*, input: Any = None, output: Any = None, workflow_output: Any = None) -> Mark: ...


def handler(function: HandlerFunction | None = None, /, *, input: Any = None, output: Any = None, workflow_output: Any = None) -> Any:
    """Mark an async method `(self, message, ctx)` as a handler of messages of the annotated type.

    `input`, `output` and `workflow_output` say the types instead of the annotations; text is resolved where the method
    was written.

    Raises:
        ValueError: The signature is another, or the message has no type.
    """

    def mark(method: HandlerFunction) -> HandlerFunction:
        explicit = any(kind is not None for kind in (input, output, workflow_output))
        names = _parameters(method, 3, "(self, message: T, ctx: WorkflowContext[U, V])", "Handler")
        if explicit and input is None:
            raise ValueError(f"Handler {method.__name__} with explicit type parameters must specify 'input' type.")
        if explicit:
            sent, yielded = members(resolved(output, method)), members(resolved(workflow_output, method))
            kind = resolved(input, method)
        else:
            hints = hints_of(method)
            kind = message_type_of(hints, names[1], method, "Handler")
            sent, yielded = context_types(hints.get(names[2], inspect.Parameter.empty), f"Handler {method.__name__}")
        setattr(method, _HANDLER, HandlerSpec(method.__name__, kind, tuple(sent), tuple(yielded)))
        return method

    return mark if function is None else mark(function)


@overload
def response_handler(function: FunctionT, /) -> FunctionT: ...


@overload
def response_handler(*, request: Any = None, response: Any = None, output: Any = None, workflow_output: Any = None) -> Mark: ...


def response_handler(
    function: HandlerFunction | None = None,
    /,
    *,
    request: Any = None,
    response: Any = None,
    output: Any = None,
    workflow_output: Any = None,
) -> Any:
    """Mark an async method `(self, original_request, response, ctx)`: it gets the answers to `request_info`.

    The types of request and response choose the method; give them as annotations or as arguments.

    Raises:
        ValueError: The signature is another, or a type is missing.
    """

    def mark(method: HandlerFunction) -> HandlerFunction:
        words = "(self, original_request: Q, response: R, ctx: WorkflowContext[U, V])"
        names = _parameters(method, 4, words, "Response handler")
        if any(kind is not None for kind in (request, response, output, workflow_output)):
            for word, kind in (("request", request), ("response", response)):
                if kind is None:
                    raise ValueError(f"Response handler {method.__name__} with explicit type parameters must specify '{word}' type.")
            pair = (resolved(request, method), resolved(response, method))
            sent, yielded = members(resolved(output, method)), members(resolved(workflow_output, method))
        else:
            hints = hints_of(method)
            pair = (
                message_type_of(hints, names[1], method, "Response handler"),
                message_type_of(hints, names[2], method, "Response handler"),
            )
            sent, yielded = context_types(hints.get(names[3], inspect.Parameter.empty), f"Response handler {method.__name__}")
        setattr(method, _RESPONSE_HANDLER, HandlerSpec(method.__name__, pair, tuple(sent), tuple(yielded)))
        return method

    return mark if function is None else mark(function)


def message_type_of(hints: dict[str, Any], name: str, function: Callable[..., Any], word: str) -> Any:
    """The annotated type of a message parameter.

    Raises:
        ValueError: There is none, or it is a type variable.
    """
    if name not in hints:
        raise ValueError(f"{word} {function.__name__} must have a type annotation for the message parameter {name!r}.")
    if isinstance(hints[name], TypeVar):
        raise ValueError(f"{word} {function.__name__} has an unresolved TypeVar {hints[name]} as message type; give concrete types.")
    return hints[name]


def context_types(annotation: Any, who: str) -> tuple[list[Any], list[Any]]:
    """What a context's annotation says that is sent and yielded.

    Raises:
        ValueError: It is no `WorkflowContext`.
    """
    origin = get_origin(annotation) or annotation
    if annotation is inspect.Parameter.empty:
        raise ValueError(f"{who} must have a WorkflowContext annotation for its context, such as WorkflowContext[T].")
    if origin is Any:
        return [], []
    if not (isinstance(origin, type) and issubclass(origin, WorkflowContext)):
        raise ValueError(f"The context of {who} must be annotated as WorkflowContext, not as {name_of(annotation)}.")
    args = get_args(annotation)
    for kind in (part for arg in args for part in members(arg)):
        if not (kind is Any or isinstance(kind, type | TypeVar | ForwardRef) or get_origin(kind) is not None):
            raise ValueError(f"{who} has the invalid type entry {kind!r} in its WorkflowContext annotation.")
    return (members(args[0]) if args else []), (members(args[1]) if len(args) > 1 else [])


def _parameters(function: Callable[..., Any], count: int, words: str, what: str) -> list[str]:
    names = list(inspect.signature(function).parameters)
    if len(names) != count:
        raise ValueError(f"{what} {function.__name__} must have {words}. Got {len(names)} parameters.")
    if not inspect.iscoroutinefunction(function):
        raise ValueError(f"{what} {function.__name__} must be `async def {function.__name__}{words}`.")
    return names

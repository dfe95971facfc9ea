"""`Executor`, the base class of the nodes of a workflow graph, and the decorators `handler` and `response_handler` for its methods.

A handler gets one message and a `WorkflowContext`, through which it sends messages, yields outputs and makes requests. `function_executor`
wraps functions as executors. Public names are those of Microsoft's agent-framework.
"""

from __future__ import annotations

import functools
import inspect
import json
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, ForwardRef, Protocol, Self, TypeVar, cast, get_args, get_origin, overload

from gateway.errors import WorkflowError
from gateway.workflows.messages import MessageType, WorkflowMessage
from gateway.workflows.type_hints import hints_of, is_compatible, is_instance_of, members, name_of, resolved
from gateway.workflows.workflow_context import WorkflowContext

HandlerFunction = Callable[..., Awaitable[Any]]
FunctionT = TypeVar("FunctionT", bound=HandlerFunction)


class Mark(Protocol):
    """Type of a decorator that marks a method of an executor as a handler: it stores the handler's types in an attribute of the method."""

    def __call__(self, function: FunctionT, /) -> FunctionT:
        """Store the types that the handler `function` accepts, sends and yields in an attribute of `function`, and return `function`."""
        ...


_HANDLER = "__workflow_handler__"
_RESPONSE_HANDLER = "__workflow_response_handler__"


@dataclass(frozen=True, slots=True)
class HandlerSpec:
    """Types of one handler of an executor: of the message that it accepts, the messages that it sends, and the outputs that it yields."""

    name: str
    message_type: Any
    """Type of the message that the handler accepts; for a response handler, the tuple (request type, response type)."""
    output_types: tuple[Any, ...]
    workflow_output_types: tuple[Any, ...]


class Executor:
    """Base class of the nodes of a workflow graph. Subclass it and mark async methods `(self, message, ctx)` with `@handler`."""

    joins: ClassVar[bool] = False
    """Whether a handler gets all messages that reach the executor in one superstep (round of the run) as one list.

    Otherwise it is called once per message. A response handler is always called once per response."""

    def __init__(self, id: str, *, type: str | None = None, defer_discovery: bool = False) -> None:
        """Create an executor and register its handlers. `id` must be unique within a workflow. `type` defaults to the class name.

        With `defer_discovery`, methods marked `@handler` or `@response_handler` are not registered; the subclass must call `register`.

        Raises:
            ValueError: The id is empty, no method is marked `@handler`, or two handlers accept the same type.
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
        """Types of messages that the executor's handlers accept. The first type that fits a message selects its handler."""
        return list(self._handlers)

    @property
    def output_types(self) -> list[Any]:
        """Types of messages that the executor's handlers may send, according to their annotations; empty if not annotated."""
        return list(dict.fromkeys(kind for spec in [*self._specs, *self._response_specs] for kind in spec.output_types))

    @property
    def workflow_output_types(self) -> list[Any]:
        """Types of outputs that the executor's handlers may yield, according to their annotations; empty if not annotated."""
        return list(dict.fromkeys(kind for spec in [*self._specs, *self._response_specs] for kind in spec.workflow_output_types))

    @property
    def request_types(self) -> list[tuple[Any, Any]]:
        """Pairs (request type, response type) for which the executor has a handler of responses to its own requests."""
        return list(self._response_handlers)

    @property
    def is_request_response_capable(self) -> bool:
        """Whether the executor has a response handler, which handles responses to the executor's own requests."""
        return bool(self._response_handlers)

    def is_request_supported(self, request_type: Any, response_type: Any) -> bool:
        """Return whether the executor has a response handler for this type of request and this type of response."""
        return any(is_compatible(request_type, one) and is_compatible(response_type, two) for one, two in self._response_handlers)

    def can_handle(self, message: WorkflowMessage) -> bool:
        """Return whether the executor has a handler for the type of this message."""
        return self._find(message) is not None

    def find(self, message: WorkflowMessage) -> HandlerFunction:
        """Return the handler for the message: a function to be called with the message's data and a `WorkflowContext`.

        Raises:
            WorkflowError: No handler accepts the message.
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
        """Return the state of this executor for a checkpoint. The default is empty; override together with `on_checkpoint_restore`."""
        return {}

    async def on_checkpoint_restore(self, state: dict[str, Any]) -> None:
        """Restore the state of this executor from the result of `on_checkpoint_save`. The default does nothing."""

    def to_dict(self) -> dict[str, Any]:
        """Return the executor as JSON-compatible data: its id, and its type, which is the class name by default."""
        return {"id": self.id, "type": self.type}

    def to_json(self) -> str:
        """Return the result of `to_dict` as JSON text."""
        return json.dumps(self.to_dict(), ensure_ascii=False)

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Self:
        """Create an executor of this class from the result of `to_dict`.

        A class whose constructor has more required parameters than `id` must override this method.
        """
        return cls(**{name: value for name, value in data.items() if name != "type"})

    @classmethod
    def from_json(cls, raw: str) -> Self:
        """Create an executor of this class from the result of `to_json`.

        Raises:
            ValueError: The text is not a JSON object.
        """
        data = json.loads(raw)
        if not isinstance(data, dict):
            raise ValueError("JSON payload must decode to a mapping")
        return cls.from_dict(cast("dict[str, Any]", data))

    def register(self, function: HandlerFunction, spec: HandlerSpec) -> None:
        """Register `function` as a handler of this executor. For subclasses that create handlers instead of using `@handler`.

        Raises:
            ValueError: The executor already has a handler for the message type in `spec`.
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
    """Mark an async method `(self, message, ctx)` of an executor as a handler of messages.

    The annotation of `message` is the accepted type. The annotation `WorkflowContext[U, V]` of `ctx` gives the type `U` of sent messages
    and the type `V` of yielded outputs. If `input`, `output` or `workflow_output` is given, all annotations are ignored, and `input` is
    required. A type given as text is looked up in the scope of the method.

    Raises:
        ValueError: The method has another signature, or the type of the message is missing.
    """

    words = "(self, message: T, ctx: WorkflowContext[U, V])"
    mark = _marker(_HANDLER, "Handler", words, {"input": input}, output, workflow_output)
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
    """Mark an async method `(self, original_request, response, ctx)` of an executor as a handler of responses to its `request_info` calls.

    A response goes to the first method whose request type and response type fit. The types come from the annotations. If any type is
    given as an argument, all annotations are ignored, and `request` and `response` are required. `output` and `workflow_output` are the
    types of sent messages and yielded outputs.

    Raises:
        ValueError: The method has another signature, or a type is missing.
    """

    words = "(self, original_request: Q, response: R, ctx: WorkflowContext[U, V])"
    mark = _marker(_RESPONSE_HANDLER, "Response handler", words, {"request": request, "response": response}, output, workflow_output)
    return mark if function is None else mark(function)


def _marker(attribute: str, what: str, words: str, kinds: Mapping[str, Any], output: Any, workflow_output: Any) -> Mark:
    """Return a decorator that stores the types of a handler method, as a `HandlerSpec`, in the method's attribute `attribute`.

    `kinds` are the explicit types of the parameters between `self` and the context, by parameter name. If no explicit type is given, the
    types are read from the annotations. `words` is the required signature, for error messages.
    """

    def mark(method: FunctionT) -> FunctionT:
        names = _parameters(method, len(kinds) + 2, words, what)
        if any(kind is not None for kind in (*kinds.values(), output, workflow_output)):
            for word, kind in kinds.items():
                if kind is None:
                    raise ValueError(f"{what} {method.__name__} with explicit type parameters must specify {word!r} type.")
            taken = [resolved(kind, method) for kind in kinds.values()]
            sent, yielded = members(resolved(output, method)), members(resolved(workflow_output, method))
        else:
            hints = hints_of(method)
            taken = [message_type_of(hints, name, method, what) for name in names[1:-1]]
            sent, yielded = context_types(hints.get(names[-1], inspect.Parameter.empty), f"{what} {method.__name__}")
        message_type = taken[0] if len(taken) == 1 else tuple(taken)
        setattr(method, attribute, HandlerSpec(method.__name__, message_type, tuple(sent), tuple(yielded)))
        return method

    return mark


def message_type_of(hints: dict[str, Any], name: str, function: Callable[..., Any], word: str) -> Any:
    """Return the annotated type of the message parameter `name` of a handler. `word` is the kind of function, for error messages.

    Raises:
        ValueError: The parameter has no annotation, or its annotation is a type variable.
    """
    if name not in hints:
        raise ValueError(f"{word} {function.__name__} must have a type annotation for the message parameter {name!r}.")
    if isinstance(hints[name], TypeVar):
        raise ValueError(f"{word} {function.__name__} has an unresolved TypeVar {hints[name]} as message type; give concrete types.")
    return hints[name]


def context_types(annotation: Any, who: str) -> tuple[list[Any], list[Any]]:
    """Return the types of sent messages and the types of yielded outputs from a handler's annotation `WorkflowContext[U, V]`.

    Both lists are empty if the annotation is `Any` or has no arguments. `who` names the handler in error messages.

    Raises:
        ValueError: The annotation is missing, is not a `WorkflowContext`, or has an argument that is not a type.
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

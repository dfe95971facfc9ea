"""What hooks may assign: `MAY_ASSIGN` names it by hook, and the bases here refuse everything else at once.

A hook that assigns a property that is not its own to change fails the run: the assignment would have no effect, and a guard that is
ignored protects nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, TypeVar, cast

from gateway.errors import MiddlewareFailure
from gateway.json_types import JsonValue
from gateway.types.messages import Message
from gateway.types.responses import ChatResponse

KeyT = TypeVar("KeyT")
ValueT = TypeVar("ValueT")

MAY_ASSIGN: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "before_message_turn": ("user_message", "history"),
        "before_iteration": ("messages", "options", "skip_llm_call", "override_response"),
        "before_tool_execution": ("skip_tool_execution",),
        "before_parallel_batch": ("blocked",),
        "before_function": ("block_execution", "override_result"),
        "after_function": (),
        "after_iteration": (),
        "on_error": ("is_terminated", "termination_reason"),
        "after_message_turn": ("turn_history",),
    }
)
"""By hook, the properties of its context that it may assign."""


class Sealed:
    """A hook's context or request: its properties can be assigned only while a hook runs that may assign them."""

    __slots__ = ("_hook",)

    _hook: str | None
    """The hook that runs; `None` for a context outside its hooks, and for a request. Unset until the object is complete."""

    def __setattr__(self, name: str, value: object) -> None:
        """Assign a property, or raise `MiddlewareFailure` if the running hook may not assign it."""
        if hasattr(self, "_hook"):
            self._check(name)
        object.__setattr__(self, name, value)

    def __delattr__(self, name: str) -> None:
        """Raise `MiddlewareFailure`: no property can be deleted."""
        raise MiddlewareFailure(f"{type(self).__name__}.{name} cannot be deleted.")

    def _check(self, name: str) -> None:
        hook = self._hook
        names = MAY_ASSIGN.get(hook or "", ())
        if name in names:
            return
        owner = type(self).__name__
        if hasattr(self, "override"):
            raise MiddlewareFailure(f"{owner}.{name} cannot be assigned: `override({name}=…)` returns a changed copy of the request.")
        if hook is None:
            raise MiddlewareFailure(f"{owner}.{name} cannot be assigned after the hook has returned.")
        raise MiddlewareFailure(f"{owner}.{name} cannot be assigned in {hook}. {_assignable(hook)}")


def seal(sealed: Sealed, hook: str | None = None) -> None:
    """Let only what `hook` may assign be assigned from now on; without a hook, nothing."""
    object.__setattr__(sealed, "_hook", hook)


def settle(sealed: Sealed, **values: object) -> None:
    """Set properties for the hooks to read."""
    for name, value in values.items():
        object.__setattr__(sealed, name, value)


def _are_messages(value: Any) -> bool:
    return isinstance(value, Sequence) and all(isinstance(message, Message) for message in cast("Sequence[Any]", value))


_FORMS: Mapping[str, tuple[Callable[[Any], bool], str]] = MappingProxyType(
    {
        "user_message": (lambda value: isinstance(value, str), "text"),
        "history": (_are_messages, "a list of Message"),
        "messages": (_are_messages, "a list of Message"),
        "turn_history": (_are_messages, "a list of Message"),
        "options": (lambda value: isinstance(value, Mapping), "a mapping"),
        "override_response": (lambda value: value is None or isinstance(value, ChatResponse), "a ChatResponse"),
        "termination_reason": (lambda value: isinstance(value, str), "text"),
    }
)
"""By property, whether a value has the form that the run expects, and the name of that form."""


def check_forms(sealed: Sealed, hook: str) -> None:
    """Raise `MiddlewareFailure` if `hook` left a value of another type, which the run would pass on to the model as it is."""
    for name in MAY_ASSIGN[hook]:
        if name in _FORMS and not _FORMS[name][0](getattr(sealed, name)):
            raise MiddlewareFailure(f"{hook} gave `{name}` a wrong value: it takes {_FORMS[name][1]}.")


def _assignable(hook: str) -> str:
    names = MAY_ASSIGN[hook]
    return f"This hook may assign: {', '.join(names)}." if names else "This hook may assign nothing."


_CHANGED_BY: Mapping[str, str] = MappingProxyType(
    {
        "arguments": "FunctionRequest.override(arguments=…) in wrap_function_call changes them",
        "history": "before_message_turn may change it",
        "message": "before_message_turn changes the text if it assigns user_message",
        "messages": "before_iteration may change them",
        "options": "before_iteration may change them, and ModelRequest.override(options=…)",
        "response": "its parts are streamed already, and skip_tool_execution drops its calls",
        "run_options": "before_iteration may change the options of a model call",
        "tool_results": "wrap_function_call may return another result",
        "turn_history": "after_message_turn may change it, if the run has a response",
    }
)
"""By property that a hook can change in place, what does change it."""


def refusal(name: str) -> MiddlewareFailure:
    """Return the error for a property that a hook changed in place without an effect."""
    return MiddlewareFailure(f"`{name}` cannot be changed here, because that would have no effect: {_CHANGED_BY[name]}.")


class FixedList(list[ValueT]):
    """A list for hooks to read. Each change raises `MiddlewareFailure`; copies are ordinary lists."""

    __slots__ = ("_name",)

    def __init__(self, values: Iterable[ValueT], name: str) -> None:
        """Hold `values`; `name` is the property that the error names."""
        super().__init__(values)
        self._name = name

    def _refuse(self, *_: object, **__: object) -> Any:
        raise refusal(self._name)

    append = extend = insert = remove = pop = clear = reverse = __setitem__ = __delitem__ = __iadd__ = __imul__ = _refuse
    sort = _refuse  # pyright: ignore[reportAssignmentType]  # it takes whatever the overloads of `list` take

    def __reduce_ex__(self, _: object) -> tuple[Any, ...]:
        """Copy and pickle as an ordinary list."""
        return list, (list(self),)


class FixedDict(dict[KeyT, ValueT]):
    """A dict for hooks to read. Each change raises `MiddlewareFailure`; copies are ordinary dicts."""

    __slots__ = ("_name",)

    def __init__(self, values: Mapping[KeyT, ValueT], name: str) -> None:
        """Hold `values`; `name` is the property that the error names."""
        super().__init__(values)
        self._name = name

    def _refuse(self, *_: object, **__: object) -> Any:
        raise refusal(self._name)

    __setitem__ = __delitem__ = pop = popitem = clear = __ior__ = _refuse
    update = _refuse  # pyright: ignore[reportAssignmentType]  # it takes whatever the overloads of `dict` take
    setdefault = _refuse  # pyright: ignore[reportAssignmentType]  # likewise

    def __reduce_ex__(self, _: object) -> tuple[Any, ...]:
        """Copy and pickle as an ordinary dict."""
        return dict, (dict(self),)


def fixed(value: Any, name: str) -> Any:
    """Return a JSON value whose lists and dicts, nested ones included, cannot be changed."""
    if type(value) is dict:
        return FixedDict({key: fixed(part, name) for key, part in cast("dict[str, JsonValue]", value).items()}, name)
    if type(value) is list:
        return FixedList([fixed(part, name) for part in cast("list[JsonValue]", value)], name)
    return value


def free(value: Any) -> Any:
    """Return a JSON value with ordinary lists and dicts in place of fixed ones."""
    if type(value) in (dict, FixedDict):
        return {key: free(part) for key, part in cast("dict[str, JsonValue]", value).items()}
    if type(value) in (list, FixedList):
        return [free(part) for part in cast("list[JsonValue]", value)]
    return value

"""Restricts the fields of a context that a lifecycle hook may change to those in `MAY_ASSIGN`. Any other change fails the run.

Other changes would have no effect. They are not ignored silently, because a hook may rely on its change to protect something.
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
"""Maps the name of each lifecycle hook, except the `wrap_*` hooks, to the fields of the hook's context that it may assign."""


class Sealed:
    """Base class of the contexts and requests that lifecycle hooks receive. Only the running hook can assign fields (`MAY_ASSIGN`)."""

    __slots__ = ("_hook",)

    _hook: str | None
    """Name of the running hook, else `None`. Always `None` in a request (`ModelRequest`, `FunctionRequest`). Unset during construction."""

    def __setattr__(self, name: str, value: object) -> None:
        """Assign a field. Raises `MiddlewareFailure` if the running hook may not assign it."""
        if hasattr(self, "_hook"):
            self._check(name)
        object.__setattr__(self, name, value)

    def __delattr__(self, name: str) -> None:
        """Raise `MiddlewareFailure`: no field can be deleted."""
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
        raise MiddlewareFailure(f"{owner}.{name} cannot be assigned in {hook}. This hook may assign {', '.join(names) or 'nothing'}.")


def seal(sealed: Sealed, hook: str | None = None) -> None:
    """Allow assignments only to those fields of the context `sealed` that the hook named `hook` may assign.

    If `hook` is `None`, reject every assignment.
    """
    object.__setattr__(sealed, "_hook", hook)


def set_fields(sealed: Sealed, **values: object) -> None:
    """Set fields of a hook context or request from outside a hook, including fields that no hook may assign."""
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
"""Field that hooks may assign → a function that checks the assigned value, and the name of the expected type for the error text."""


def check_forms(sealed: Sealed, hook: str) -> None:
    """Raise `MiddlewareFailure` if the hook named `hook` assigned a value of a wrong type, because the value would be sent to the model."""
    for name in MAY_ASSIGN[hook]:
        if name in _FORMS and not _FORMS[name][0](getattr(sealed, name)):
            raise MiddlewareFailure(f"{hook} set `{name}` to a value of a wrong type; it must be {_FORMS[name][1]}.")


_CHANGED_BY: Mapping[str, str] = MappingProxyType(
    {
        "arguments": "use FunctionRequest.override(arguments=…) in wrap_function_call",
        "history": "change it in before_message_turn",
        "message": "assign user_message in before_message_turn to change its text",
        "messages": "change them in before_iteration",
        "options": "change them in before_iteration or with ModelRequest.override(options=…)",
        "response": "its updates are already streamed; skip_tool_execution removes its calls",
        "run_options": "change the options of a model call in before_iteration",
        "tool_results": "return another result from wrap_function_call",
        "turn_history": "change it in after_message_turn if the run has a response",
    }
)
"""Field that hooks must not change in place → the part of the error text that says what a hook can do instead."""


def refusal(name: str) -> MiddlewareFailure:
    """Return the error for a hook that changed the value of the field `name` in place. Such a change would have no effect."""
    return MiddlewareFailure(f"`{name}` cannot be changed here, because the change would have no effect: {_CHANGED_BY[name]}.")


class FixedList(list[ValueT]):
    """A read-only list for hooks: each change raises `MiddlewareFailure`; copies are ordinary lists."""

    __slots__ = ("_name",)

    def __init__(self, values: Iterable[ValueT], name: str) -> None:
        """Create a read-only list of `values`. Error messages contain `name`, the name of the context field that holds the list."""
        super().__init__(values)
        self._name = name

    def _refuse(self, *_: object, **__: object) -> Any:
        raise refusal(self._name)

    append = extend = insert = remove = pop = clear = reverse = __setitem__ = __delitem__ = __iadd__ = __imul__ = _refuse
    sort = _refuse  # pyright: ignore[reportAssignmentType]  # accepts the arguments of all overloads of `list.sort`

    def __reduce_ex__(self, _: object) -> tuple[Any, ...]:
        """Copy and pickle as an ordinary list."""
        return list, (list(self),)


class FixedDict(dict[KeyT, ValueT]):
    """A read-only dict for hooks: each change raises `MiddlewareFailure`; copies are ordinary dicts."""

    __slots__ = ("_name",)

    def __init__(self, values: Mapping[KeyT, ValueT], name: str) -> None:
        """Create a read-only dict of `values`. Error messages contain `name`, the name of the context field that holds the dict."""
        super().__init__(values)
        self._name = name

    def _refuse(self, *_: object, **__: object) -> Any:
        raise refusal(self._name)

    __setitem__ = __delitem__ = pop = popitem = clear = __ior__ = _refuse
    update = _refuse  # pyright: ignore[reportAssignmentType]  # accepts the arguments of all overloads of `dict.update`
    setdefault = _refuse  # pyright: ignore[reportAssignmentType]  # accepts the arguments of all overloads of `dict.setdefault`

    def __reduce_ex__(self, _: object) -> tuple[Any, ...]:
        """Copy and pickle as an ordinary dict."""
        return dict, (dict(self),)


def fixed(value: Any, name: str) -> Any:
    """Return a copy of a JSON value whose lists and dicts, including nested ones, are read-only (`FixedList`, `FixedDict`).

    Error messages contain `name`, the name of the field of the hook's context that holds the value.
    """
    if type(value) is dict:
        return FixedDict({key: fixed(part, name) for key, part in cast("dict[str, JsonValue]", value).items()}, name)
    if type(value) is list:
        return FixedList([fixed(part, name) for part in cast("list[JsonValue]", value)], name)
    return value


def free(value: Any) -> Any:
    """Return a copy of a JSON value with ordinary lists and dicts in place of `FixedList` and `FixedDict`, which are read-only."""
    if type(value) in (dict, FixedDict):
        return {key: free(part) for key, part in cast("dict[str, JsonValue]", value).items()}
    if type(value) in (list, FixedList):
        return [free(part) for part in cast("list[JsonValue]", value)]
    return value

"""What the hooks of one turn share: typed state of their own, the turn's own state, and events to and from the outside."""

from __future__ import annotations

import inspect
import secrets
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import TypeVar, cast

import anyio

from gateway.errors import AskExpired, AskUnavailable, MiddlewareFailure
from gateway.json_types import JsonMapping, JsonValue

StateT = TypeVar("StateT")

MAX_OPEN_REQUESTS = 100
"""Requests that may wait for an answer at once."""

REQUEST_SECONDS = 3600.0
"""How long a request waits for its answer, where nothing else is said."""


@dataclass(frozen=True, slots=True)
class TurnState:
    """The state of one turn at one moment; never changed, only replaced."""

    iteration: int = -1
    """The model call the turn is at, from 0; -1 before the first."""
    is_terminated: bool = False
    termination_reason: str = ""
    own: Mapping[type, object] = field(default_factory=lambda: MappingProxyType(cast("dict[type, object]", {})))
    """The hooks' own state, by its type."""

    def get(self, kind: type[StateT]) -> StateT:
        """The state of this type; made with its defaults where there is none yet."""
        found = self.own.get(kind)
        return found if isinstance(found, kind) else kind()

    def having(self, value: object) -> TurnState:
        """The same with a hook's own state set, by its type."""
        return replace(self, own=MappingProxyType({**self.own, type(value): value}))

    def terminated(self, reason: str) -> TurnState:
        """The same, ended for a reason."""
        return replace(self, is_terminated=True, termination_reason=reason)


class StateCell:
    """Where the turn's state is. Every read sees the last update."""

    def __init__(self) -> None:
        self._value = TurnState()

    @property
    def value(self) -> TurnState:
        """The state now."""
        return self._value

    def get(self, kind: type[StateT]) -> StateT:
        """The hooks' own state of this type."""
        return self._value.get(kind)

    def update(self, change: Callable[[TurnState], TurnState]) -> TurnState:
        """Replace the state by what `change` makes of it, own and turn's parts at once; if `change` raises, nothing changes.

        A state that is `terminated` ends the run before its next model call, with the reason as its answer.

        Raises:
            MiddlewareFailure: `change` returned another type, or another `iteration`, which only the run counts.
        """
        value = cast("object", change(self._value))
        if not isinstance(value, TurnState):
            raise MiddlewareFailure(f"state.update needs a function that returns a TurnState; it returned {type(value).__name__}.")
        if value.iteration != self._value.iteration:
            raise MiddlewareFailure("`iteration` of the state cannot be changed: only the run counts its iterations.")
        self._value = value
        return value

    def begin_iteration(self) -> int:
        """Count one more iteration and return its number. Called by the run, not by hooks."""
        self._value = replace(self._value, iteration=self._value.iteration + 1)
        return self._value.iteration

    def set(self, value: object) -> None:
        """Set a hook's own state, by its type."""
        self.update(lambda state: state.having(value))


@dataclass(frozen=True, slots=True)
class HookEvent:
    """Something a hook tells the outside."""

    name: str
    data: JsonMapping = field(default_factory=lambda: cast("JsonMapping", {}))
    request_id: str | None = None
    """Set where an answer is waited for: hand it to `HookEvents.respond`."""


EventListener = Callable[[HookEvent], Awaitable[None] | None]


class HookEvents:
    """Carries events out of runs, and answers in. One may serve many runs."""

    def __init__(self, listener: EventListener | None = None) -> None:
        """`listener` gets every event; it must not raise, and should not take long."""
        self._listener = listener
        self._open: dict[str, tuple[anyio.Event, list[JsonValue]]] = {}

    async def emit(self, event: HookEvent) -> None:
        """Tell the listener; without one nothing happens."""
        if self._listener is not None:
            done = self._listener(event)
            if inspect.isawaitable(done):
                await done

    async def request(self, name: str, data: JsonMapping | None = None, *, timeout_seconds: float = REQUEST_SECONDS) -> JsonValue:
        """Tell the listener and wait for the answer to exactly this request.

        Raises:
            AskUnavailable: Nobody listens, or too many requests wait already.
            AskExpired: Nobody answered in time.
        """
        if self._listener is None or len(self._open) >= MAX_OPEN_REQUESTS:
            raise AskUnavailable("Nobody listens to this run's requests, or too many wait already.", capability="events")
        request_id = secrets.token_hex(8)
        answered = anyio.Event()
        box: list[JsonValue] = []
        self._open[request_id] = (answered, box)
        try:
            with anyio.move_on_after(timeout_seconds):
                await self.emit(HookEvent(name, data or {}, request_id))
                await answered.wait()
                return box[0]
        finally:
            del self._open[request_id]
        raise AskExpired(f"Nobody answered {name!r} within {timeout_seconds:g} s.")

    def respond(self, request_id: str, answer: JsonValue) -> bool:
        """Answer a request, once; false where it does not wait (any more)."""
        found = self._open.get(request_id)
        if found is None or found[1]:
            return False
        found[1].append(answer)
        found[0].set()
        return True

"""State and events of lifecycle hooks.

`StateCell` and `TurnState` store the state that hooks share during a turn (one run of an agent). `HookEvents` sends events from hooks to
the program that runs the agent.
"""

from __future__ import annotations

import inspect
import secrets
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import TypeVar, cast

import anyio

from gateway.errors import InputExpired, InputUnavailable, MiddlewareFailure
from gateway.json_types import JsonMapping, JsonValue

StateT = TypeVar("StateT")

MAX_OPEN_REQUESTS = 100
"""Maximum number of requests of one `HookEvents` that wait for the program's response at the same time."""

REQUEST_SECONDS = 3600.0
"""Default time limit, in seconds, for the program's response to `HookEvents.request`."""


@dataclass(frozen=True, slots=True)
class TurnState:
    """Immutable state that the lifecycle hooks of a turn (one run of an agent) share; a change creates a new `TurnState`."""

    iteration: int = -1
    """Number of the current model call, from 0; -1 before the first call."""
    is_terminated: bool = False
    termination_reason: str = ""
    own: Mapping[type, object] = field(default_factory=lambda: MappingProxyType(cast("dict[type, object]", {})))
    """Values that hooks store for other hooks; maps the type of a value to the value."""

    def get(self, kind: type[StateT]) -> StateT:
        """Return the value of type `kind` that a hook stored, or a new `kind()` if no hook stored a value of this type."""
        found = self.own.get(kind)
        return found if isinstance(found, kind) else kind()

    def having(self, value: object) -> TurnState:
        """Return a copy of the state in which `value` is stored under its type."""
        return replace(self, own=MappingProxyType({**self.own, type(value): value}))

    def terminated(self, reason: str) -> TurnState:
        """Return a copy of the state that ends the run before its next model call, with `reason` as the run's answer."""
        return replace(self, is_terminated=True, termination_reason=reason)


class StateCell:
    """Stores the current `TurnState` of one run; all hooks of the run share the cell and may replace its state."""

    def __init__(self) -> None:
        self._value = TurnState()

    @property
    def value(self) -> TurnState:
        """The current state of the run."""
        return self._value

    def get(self, kind: type[StateT]) -> StateT:
        """Return the value of type `kind` that a hook stored, or a new `kind()` if no hook stored a value of this type."""
        return self._value.get(kind)

    def update(self, change: Callable[[TurnState], TurnState]) -> TurnState:
        """Replace the state of the run with `change(state)`, and return the new state. If `change` raises, the state does not change.

        If `is_terminated` is true in the new state, the run ends before its next model call, with the termination reason as its answer.

        Raises:
            MiddlewareFailure: `change` did not return a `TurnState`, or changed `iteration`, which only the run may change.
        """
        value = cast("object", change(self._value))
        if not isinstance(value, TurnState):
            raise MiddlewareFailure(f"state.update needs a function that returns a TurnState; it returned {type(value).__name__}.")
        if value.iteration != self._value.iteration:
            raise MiddlewareFailure("`iteration` of the state cannot be changed: only the run counts its model calls.")
        self._value = value
        return value

    def begin_iteration(self) -> int:
        """Increase the number of the current model call by one and return it. Called by the run, not by hooks."""
        self._value = replace(self._value, iteration=self._value.iteration + 1)
        return self._value.iteration

    def set(self, value: object) -> None:
        """Store a hook's value in the state, under the type of the value."""
        self.update(lambda state: state.having(value))


@dataclass(frozen=True, slots=True)
class HookEvent:
    """An event that a lifecycle hook sends to the program that runs the agent."""

    name: str
    data: JsonMapping = field(default_factory=lambda: cast("JsonMapping", {}))
    request_id: str | None = None
    """Id to pass to `HookEvents.respond` if the hook waits for a response; otherwise `None`."""


EventListener = Callable[[HookEvent], Awaitable[None] | None]


class HookEvents:
    """Sends events from lifecycle hooks to the program that runs the agent, and responses from the program to hooks.

    One object can serve many runs.
    """

    def __init__(self, listener: EventListener | None = None) -> None:
        """`listener` receives every event. It must not raise and should return quickly."""
        self._listener = listener
        self._open: dict[str, tuple[anyio.Event, list[JsonValue]]] = {}

    async def emit(self, event: HookEvent) -> None:
        """Send an event to the listener; without a listener, do nothing."""
        if self._listener is not None:
            done = self._listener(event)
            if inspect.isawaitable(done):
                await done

    async def request(self, name: str, data: JsonMapping | None = None, *, timeout_seconds: float = REQUEST_SECONDS) -> JsonValue:
        """Send a request to the program's listener, and wait for the response that the program passes to `respond`.

        Raises:
            InputUnavailable: The program has no listener, or too many requests are waiting.
            InputExpired: No response arrived in time.
        """
        if self._listener is None or len(self._open) >= MAX_OPEN_REQUESTS:
            raise InputUnavailable("The run has no event listener, or too many requests are waiting.", capability="events")
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
        raise InputExpired(f"Request {name!r} received no response within {timeout_seconds:g} s.")

    def respond(self, request_id: str, answer: JsonValue) -> bool:
        """Send the program's response to the hook that waits in `request`. Return false if the request is unknown, answered or expired."""
        found = self._open.get(request_id)
        if found is None or found[1]:
            return False
        found[1].append(answer)
        found[0].set()
        return True

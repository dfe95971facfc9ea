"""`AgentSession`: the state of one conversation with an agent. `SupportsAgentRun`: the interface of an agent.

A session contains only data that can be converted to JSON; the agent contains the behaviour. A session can therefore be stored, and
continued in another process.
"""

from __future__ import annotations

import uuid
from collections.abc import Awaitable, Mapping, Sequence
from typing import Literal, Protocol, TypeVar, cast, overload, runtime_checkable

from gateway.json_types import JsonMapping, JsonObject, JsonValue
from gateway.types.messages import Message
from gateway.types.responses import AgentResponse, AgentResponseUpdate
from gateway.types.streams import ResponseStream

_STATE_TYPES: dict[str, type] = {"message": Message}
"""Value of `type` in the JSON form of an object in a session's state → class of the object. Modules register their classes on import."""

Registered = TypeVar("Registered", bound=type)


def register_state_type(cls: Registered) -> Registered:
    """Class decorator: register a class whose objects may be in a session's state, so that `AgentSession.from_dict` can restore them.

    The class must have `to_dict` and `from_dict`, or be a pydantic model. The `type` in the JSON form of an object is the class name in
    lower case, or the result of the class method `_get_type_identifier`.
    """
    _STATE_TYPES[_identifier(cls)] = cls
    return cls


class AgentSession:
    """The state of one conversation with an agent. The context providers of the agent store their data in `state`, by their `source_id`."""

    def __init__(self, *, session_id: str | None = None, service_session_id: str | None = None) -> None:
        """Create a session with this id, or with a random id.

        `service_session_id` is the id of a conversation whose messages the provider of the model stores.
        """
        self._session_id = session_id or str(uuid.uuid4())
        self.service_session_id = service_session_id
        self.state: JsonObject = {}

    @property
    def session_id(self) -> str:
        """Id of the session, which never changes."""
        return self._session_id

    def to_dict(self) -> JsonObject:
        """Return the session as a JSON object (`type: session`).

        Messages and other objects in `state` that have `to_dict` or are pydantic models are converted too; all others must be JSON values.
        """
        return {
            "type": "session",
            "session_id": self.session_id,
            "service_session_id": self.service_session_id,
            "state": {str(key): _to_json(value) for key, value in self.state.items()},
        }

    @classmethod
    def from_dict(cls, data: JsonMapping) -> AgentSession:
        """Restore a session from the JSON object that `to_dict` returned."""
        session = cls(session_id=data.get("session_id"), service_session_id=data.get("service_session_id"))
        session.state = {key: _from_json(value) for key, value in cast("JsonMapping", data.get("state") or {}).items()}
        return session


@runtime_checkable
class SupportsAgentRun(Protocol):
    """Protocol of an agent: it can be run with messages, and creates sessions."""

    id: str
    name: str | None
    description: str | None

    @overload
    def run(
        self, messages: str | Message | Sequence[str | Message], *, stream: Literal[False] = False, session: AgentSession | None = None
    ) -> Awaitable[AgentResponse]: ...
    @overload
    def run(
        self, messages: str | Message | Sequence[str | Message], *, stream: Literal[True], session: AgentSession | None = None
    ) -> ResponseStream[AgentResponseUpdate, AgentResponse]: ...
    def run(
        self, messages: str | Message | Sequence[str | Message], *, stream: bool = False, session: AgentSession | None = None
    ) -> Awaitable[AgentResponse] | ResponseStream[AgentResponseUpdate, AgentResponse]:
        """Run the agent with `messages` as input. Await the return value for the response. With `stream`, iterate over it for updates."""
        ...

    def create_session(self, *, session_id: str | None = None) -> AgentSession:
        """Create a session, which is the state of a new conversation, with this id or a random id."""
        ...

    def get_session(self, service_session_id: str, *, session_id: str | None = None) -> AgentSession:
        """Create a session that continues the conversation `service_session_id`, whose messages the provider of the model stores."""
        ...


def _identifier(cls: type) -> str:
    own = getattr(cls, "_get_type_identifier", None)
    return str(own()) if own is not None else cls.__name__.lower()


def _to_json(value: JsonValue) -> JsonValue:
    if isinstance(value, Mapping):
        return {str(key): _to_json(item) for key, item in cast("JsonMapping", value).items()}
    if isinstance(value, list | tuple):
        return [_to_json(item) for item in cast("list[JsonValue]", value)]
    if isinstance(value, type):
        return value
    if callable(writer := getattr(value, "to_dict", None)):
        return writer()
    if callable(dump := getattr(value, "model_dump", None)):  # a pydantic model; importing pydantic to check the class is slow
        kind: type = type(cast("object", value))
        _STATE_TYPES.setdefault(_identifier(kind), kind)
        return {**cast("JsonMapping", dump(mode="json")), "type": _identifier(kind)}
    return value


def _from_json(value: JsonValue) -> JsonValue:
    if isinstance(value, list):
        return [_from_json(item) for item in cast("list[JsonValue]", value)]
    if not isinstance(value, Mapping):
        return value
    found = cast("JsonMapping", value)
    kind = _STATE_TYPES.get(str(found.get("type")))
    if kind is None or (kind is Message and "role" not in found):
        return {key: _from_json(item) for key, item in found.items()}
    make: JsonValue = getattr(kind, "from_dict", None)
    if make is not None:
        return make(dict(found))
    make = getattr(kind, "model_validate")  # noqa: B009  # the class is a pydantic model, which type checkers do not see here
    return make({key: item for key, item in found.items() if key != "type"})

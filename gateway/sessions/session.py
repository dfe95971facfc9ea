"""`AgentSession`: the state of one conversation with an agent, as plain data.

The agent owns behaviour, the session owns data (requirements SE2): nothing here calls anything, and everything in
`state` is JSON, so a session can be stored and taken up elsewhere.
"""

from __future__ import annotations

import uuid

from gateway.json_types import JsonMapping, JsonObject


class AgentSession:
    """A conversation. `state` is shared by the context providers, each under its own key."""

    def __init__(self, *, session_id: str | None = None, service_session_id: str | None = None) -> None:
        """A random id where none is given; `service_session_id` names a conversation kept by a model provider."""
        self.session_id = session_id or str(uuid.uuid4())
        self.service_session_id = service_session_id
        self.state: JsonObject = {}

    def to_dict(self) -> JsonObject:
        """JSON form, `type: session`."""
        data: JsonObject = {"type": "session", "session_id": self.session_id, "state": self.state}
        if self.service_session_id is not None:
            data["service_session_id"] = self.service_session_id
        return data

    @classmethod
    def from_dict(cls, data: JsonMapping) -> AgentSession:
        """The inverse of `to_dict`."""
        session = cls(session_id=data.get("session_id"), service_session_id=data.get("service_session_id"))
        session.state = dict(data.get("state") or {})
        return session

"""`CallFacts`: what is known about one call. `Provenance`: where the call came from."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import cast

from gateway.auth.principal import LOCAL, Principal
from gateway.json_types import JsonMapping, JsonObject
from gateway.tools.ports import ClientProfile, Era, LogLevel

SKILL_ARGUMENT = "skill_name"
"""Name of the argument that names a skill in calls of the skill tools."""


@dataclass(frozen=True, slots=True)
class Provenance:
    """The origin of a call. The gateway sets these facts; a request cannot."""

    caller: Principal | None = None
    """After the gate authorized a call: the caller with the scopes of its key. `None` before, and for a key without scopes."""
    agent_depth: int = 0
    """Number of agents that this call runs inside."""
    named_in_files: frozenset[tuple[str, str]] = frozenset()
    """Argument names and values that files of the agents and workflows around this call fix: constants, and `skill_name` for skills."""
    tells_errors: bool = True
    """Whether the caller gets the text of an unexpected exception of a function. Inside an agent, the agent's file decides this."""
    step_key: str = ""
    """Key of this call as a step of a durable task, which is the same when the task is resumed. Empty outside a durable task."""


DIRECT = Provenance()
"""The origin of a call that a client made itself, rather than an agent, a workflow or a task."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CallFacts:
    """What is known about one call. A call inside it starts from the same facts (`CallContext.child`)."""

    principal: Principal = LOCAL
    client: ClientProfile = field(default_factory=ClientProfile)
    meta: JsonMapping = field(default_factory=lambda: cast("JsonObject", {}))
    """Request `_meta` that may be forwarded: trace context, vendor keys, the `via` list of gateways. Never keys of the connection."""
    input_responses: JsonMapping | None = None
    """Answers to an earlier `InputRequired` of this call, by key, in wire form."""
    request_state: str | None = None
    """The `state` of that `InputRequired`, unchanged."""
    ask_timeout_seconds: float = 3600.0
    """Seconds that one question waits for its answer (`server.askTimeoutSeconds`)."""
    wants_progress: bool = False
    """Whether the caller requested progress. Only then is progress requested from a server."""
    takes_tasks: bool = False
    """Whether the caller accepts `TaskStarted` (it declared the tasks extension of 2026 with this call)."""
    in_task: bool = False
    """Whether this call runs as a task, with the limit `tasks.maxWaitSeconds` instead of `timeoutSeconds`. Not set for calls inside it."""
    line: str = ""
    """Calls with the same text (not empty) share a session with a server that may request input."""
    log_level: LogLevel | None = None
    """Least severe log level that the caller requested; `None` for no logs."""
    provenance: Provenance = DIRECT
    """The origin of this call."""

    @property
    def era(self) -> Era:
        """The protocol era of the client."""
        return self.client.era

    @property
    def on_behalf_of(self) -> Principal:
        """The caller with the scopes of its key, also in calls that an agent or workflow makes for the caller."""
        return self.provenance.caller or self.principal

    @property
    def skills_in_files(self) -> frozenset[str]:
        """The skills that files of the agents and workflows around this call name."""
        return frozenset(value for name, value in self.provenance.named_in_files if name == SKILL_ARGUMENT)

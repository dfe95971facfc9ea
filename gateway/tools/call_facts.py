"""`CallFacts`: the properties of a call, such as principal, client and `_meta`. `Provenance`: the agent, workflow or task that makes it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import cast

from gateway.auth.principal import LOCAL, Principal
from gateway.json_types import JsonMapping, JsonObject
from gateway.tools.ports import ClientProfile, Era, LogLevel

SKILL_ARGUMENT = "skill_name"
"""Argument of the gateway's skill tools (`load_skill` and others) whose value is the name of a skill."""


@dataclass(frozen=True, slots=True)
class Provenance:
    """The origin of a call: which agents, workflows or task the call is part of. The gateway sets these fields, never a request."""

    caller: Principal | None = None
    """The principal of the original caller with the scopes of its API key. `None` before the gate has authorized the call.

    When the gate (the checks before each call) authorizes the call, it removes the scopes from `CallFacts.principal`, so this field stores
    them. `None` also if the key has no scopes.
    """
    agent_depth: int = 0
    """Number of nested agent runs that this call is part of; 0 outside an agent."""
    named_in_files: frozenset[tuple[str, str]] = frozenset()
    """Values of arguments that the call may use regardless of the scopes of the caller's API key.

    The surrounding agent and workflow files contain these values. Each item is a pair of argument name and value: a constant of a workflow,
    or `skill_name` and the name of a skill.
    """
    runs_as_caller: bool = False
    """Whether the file of the surrounding agent or workflow has `runs-as: caller`. Then nothing in the file is exempt from the caller's
    rights."""
    shows_errors: bool = True
    """Whether the caller receives the text of a Python function's unexpected exception. In an agent's run, the agent's file decides."""
    step_key: str = ""
    """Key of this call if it is a step of a durable task (a background call that continues after a restart); else empty.

    The key stays the same when the task is resumed.
    """


DIRECT = Provenance()
"""The origin of a call that a client made directly, not an agent, a workflow or a task."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CallFacts:
    """The properties of one call: its principal, client, `_meta`, answers to requests for input, and options.

    A nested call starts with a copy of these properties (`CallContext.child`).
    """

    principal: Principal = LOCAL
    client: ClientProfile = field(default_factory=ClientProfile)
    meta: JsonMapping = field(default_factory=lambda: cast("JsonObject", {}))
    """The part of the request's `_meta` that may be forwarded to servers: trace context, vendor keys, the `via` list of gateways.

    It never contains keys that describe the connection to the client.
    """
    input_responses: JsonMapping | None = None
    """The client's answers to the requests for input that an earlier attempt of this call returned, by key, in MCP form."""
    request_state: str | None = None
    """The `requestState` that an earlier attempt of this call returned with its requests for input, unchanged."""
    ask_timeout_seconds: float = 3600.0
    """Seconds to wait for the answer to one request for input: `server.askTimeoutSeconds`, or in a task `tasks.askTimeoutSeconds`."""
    wants_progress: bool = False
    """Whether the caller requested progress notifications. Only then does the gateway request them from a server."""
    takes_tasks: bool = False
    """Whether the caller accepts an MCP task instead of a result, because it declared the tasks extension (2026-07-28) with this call."""
    in_task: bool = False
    """Whether this call runs as a task, or may still become one, with the limit `tasks.maxWaitSeconds` instead of `timeoutSeconds`.

    False for nested calls.
    """
    line: str = ""
    """Key that selects a session with the server, for a call that starts a task on the server; empty for other calls.

    Polls of the task have the same key, and thus use the same session.
    """
    log_level: LogLevel | None = None
    """The least severe level of log messages that the caller wants to receive; `None` for no log messages."""
    provenance: Provenance = DIRECT
    """The agents, workflows or task that this call is part of."""

    @property
    def era(self) -> Era:
        """The protocol era of the client: `legacy` (2025-11-25 and older) or `modern` (2026-07-28)."""
        return self.client.era

    @property
    def on_behalf_of(self) -> Principal:
        """The principal of the original caller with the scopes of its API key, also in calls that an agent or workflow makes for it.

        When the gate has authorized a call, it removes the scopes from `principal`, but not from the principal that this property returns.
        """
        return self.provenance.caller or self.principal

    @property
    def skills_in_files(self) -> frozenset[str]:
        """The names of the skills in the files of the agent and workflows that this call is part of.

        The scopes of the caller's API key do not apply to these skills.
        """
        return frozenset(value for name, value in self.provenance.named_in_files if name == SKILL_ARGUMENT)

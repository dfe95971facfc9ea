"""`AgentTool`: an agent as a tool with the argument `task`, and progress on the way.

Each call is a conversation of its own, or a turn of a session of its caller (`conversations`). The agent's model is chosen per call,
because `model: auto` may mean the caller's own; its tools are the guarded ones of the catalog, called in the caller's name.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from gateway.agents.attachments import ATTACHMENTS
from gateway.agents.conversations import NEW_SESSION
from gateway.agents.definition import OPTION_PARAMETERS, AgentDefinition
from gateway.agents.remote.run import Remote
from gateway.agents.tool_parts import Parts, Shared
from gateway.json_types import JsonObject
from gateway.sdk import load
from gateway.sessions.context import ContextProvider
from gateway.tools.base import Tool, ToolDefinition, ToolOutcome
from gateway.tools.context import CallContext
from gateway.types.messages import Message

if TYPE_CHECKING:
    from gateway.agents.tool_runs import AgentRuns
    from gateway.types.options import ChatOptions

MAX_TASK_CHARS = 200_000
"""Longer tasks are refused: they would not fit a model anyway."""


_TASK: JsonObject = {
    "type": "string",
    "minLength": 1,
    "maxLength": MAX_TASK_CHARS,
    "description": "What the agent is to do, with everything it needs to know: it does not see your conversation.",
}

_SESSION_ID: JsonObject = {
    "type": "string",
    "maxLength": 100,
    "description": (
        f"Leave it out for a task that stands alone. `{NEW_SESSION}` begins a conversation: the result names its id; "
        "give that id with the next task, and the agent remembers what was said."
    ),
}


class AgentTool:
    """Implements `Tool` over one agent file."""

    records_steps = True
    """Inside a durable task it records its model calls, and the tools it calls record themselves."""

    def __init__(
        self,
        definition: AgentDefinition,
        shared: Shared,
        *,
        context_providers: Sequence[ContextProvider] = (),
        remote: Remote | None = None,
        middleware: Sequence[object] = (),
    ) -> None:
        """`remote` is where an agent runs that does not run here; whoever made it closes it."""
        self._conversations = shared.conversations if definition.file.history != "none" else None
        self._parts = Parts(definition, shared, tuple(context_providers), remote or Remote(), tuple(middleware), self._conversations)
        self._runs: AgentRuns | None = None
        file = definition.file
        self._definition = ToolDefinition(
            name=file.name,
            description=file.description,
            input_schema={
                "type": "object",
                "properties": {
                    "task": _TASK,
                    **({"session_id": _SESSION_ID} if self._conversations is not None else {}),
                    **({"attachments": ATTACHMENTS} if file.attachments else {}),
                    **{name: OPTION_PARAMETERS[name] for name in file.parameters},
                },
                "required": ["task"],
                "additionalProperties": False,
            },
            output_schema=file.output,
            annotations={"title": f"Agent {file.name}", "openWorldHint": True},
            task=file.task,
            task_by="nobody" if file.task == "never" else "gateway",
            may_ask=True,
        )

    @property
    def definition(self) -> ToolDefinition:
        """The argument `task`, `session_id` where sessions are kept, `attachments`, and the options that the file lets callers set."""
        return self._definition

    async def call(self, arguments: JsonObject, ctx: CallContext) -> ToolOutcome:
        """Run the agent on a task, alone or as the next turn of a session.

        Raises:
            ModelError: No model, or it failed; the text says what to set or do.
            AgentError: Agents call each other too deeply, a skill it names does not exist, the session is busy, or an attachment
                is none.
            NotFound: The session is unknown to this caller (`kind` is `session`).
            PolicyDenied: The caller has too many sessions.
            StorageError: The session cannot be read.
        """
        return await (await self._running()).call(arguments, ctx)

    async def converse(
        self, messages: Sequence[Message], tools: Sequence[Tool], ctx: CallContext, options: ChatOptions | None = None
    ) -> ToolOutcome:
        """Run the agent on a conversation, with `tools` beside its own. A caller that is a `RunFollower` is told each part.

        Raises:
            ModelError: As `call`.
            AgentError: As `call`.
        """
        return await (await self._running()).converse(messages, tools, ctx, options)

    async def _running(self) -> AgentRuns:
        """What runs the agent, imported with the first call: a gateway starts without it."""
        if self._runs is None:
            await load("gateway.agents.tool_runs")
            from gateway.agents.tool_runs import AgentRuns

            self._runs = AgentRuns(self._parts)
        return self._runs

"""`AgentTool`: a tool with the argument `task` that runs the agent of one agent file. `ConversationTool` runs it on a whole conversation.

Each call starts a new conversation, or is a turn of a session of its caller (`conversations`). The model is chosen for each call, because
`model: auto` may select the caller's own model. The agent's tools come from the catalog and are called with the caller's identity.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from gateway.agents.agent_setup import AgentSetup
from gateway.agents.attachments import ATTACHMENTS
from gateway.agents.conversations import NEW_SESSION
from gateway.agents.definition import OPTION_PARAMETERS
from gateway.json_types import JsonObject
from gateway.sdk import load
from gateway.tools.base import Tool, ToolDefinition, ToolOutcome
from gateway.tools.context import CallContext
from gateway.types.messages import Message

if TYPE_CHECKING:
    from gateway.agents.agent_runs import AgentRuns
    from gateway.types.options import ChatOptions

MAX_TASK_CHARS = 200_000
"""Maximum length of a task, in characters; longer tasks exceed the context window of common models."""


_TASK: JsonObject = {
    "type": "string",
    "minLength": 1,
    "maxLength": MAX_TASK_CHARS,
    "description": "The task for the agent, with all information that it needs: the agent does not see your conversation.",
}

_SESSION_ID: JsonObject = {
    "type": "string",
    "maxLength": 100,
    "description": (
        f"Leave it out for an independent task. `{NEW_SESSION}` starts a session: the result contains its id. "
        "Send that id with the next task, and the agent continues the conversation."
    ),
}


class AgentTool:
    """A tool that runs the agent of one agent file."""

    records_steps = True
    """Always true: the agent and its tools record their own steps in a durable task (a call that continues after a restart)."""

    def __init__(self, setup: AgentSetup) -> None:
        """Create the tool of the agent that `setup` describes. The tool does not close the connection `setup.remote`."""
        self._setup = setup
        self._runs: AgentRuns | None = None
        file = setup.definition.file
        self._definition = ToolDefinition(
            name=file.name,
            description=file.description,
            input_schema={
                "type": "object",
                "properties": {
                    "task": _TASK,
                    **({"session_id": _SESSION_ID} if setup.conversations is not None else {}),
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
            may_request_input=True,
        )

    @property
    def definition(self) -> ToolDefinition:
        """Return the definition of the tool.

        A call has the argument `task` and, if the agent file allows them, `session_id`, `attachments` and model options.
        """
        return self._definition

    async def call(self, arguments: JsonObject, ctx: CallContext) -> ToolOutcome:
        """Run the agent on the task in `arguments`: as a new conversation, or as the next turn of a session (`session_id`).

        Raises:
            ModelError: No model is available, or a model call failed; the text names the fix.
            AgentError: The agent cannot run, for example because agents call each other too deeply, the gateway serves no skills, or a
                remote agent failed. Or the session is busy or belongs to another agent, or an attachment is invalid.
            NotFound: The caller has no such session (`kind` is `session`).
            PolicyDenied: The caller has too many sessions, or may not read a resource that an attachment links to.
            StorageError: The session cannot be read.
        """
        return await (await self._running()).call(arguments, ctx)

    async def converse(
        self, messages: Sequence[Message], tools: Sequence[Tool], ctx: CallContext, options: ChatOptions | None = None
    ) -> ToolOutcome:
        """Run the agent on the conversation `messages`. `tools`, which the caller executes itself, are added to the agent's own.

        If the caller in `ctx` is a `RunFollower`, it receives each update of the run.

        Raises:
            ModelError: No model is available, or a model call failed; the text names the fix.
            AgentError: The agent cannot run, for example because agents call each other too deeply, or a remote agent failed.
        """
        return await (await self._running()).converse(messages, tools, ctx, options)

    async def _running(self) -> AgentRuns:
        """Return the object that runs this agent. The first call imports its module, so that the gateway starts quickly."""
        if self._runs is None:
            await load("gateway.agents.agent_runs")
            from gateway.agents.agent_runs import AgentRuns

            self._runs = AgentRuns(self._setup)
        return self._runs


class ConversationTool:
    """A tool that runs an agent on a given conversation instead of a task, for user interfaces that send the whole conversation."""

    def __init__(self, agent: AgentTool, messages: Sequence[Message], tools: Sequence[Tool]) -> None:
        """Create the tool. The caller executes `tools`: if the model calls one of them, the run ends and returns the call to the caller."""
        self._agent = agent
        self._messages = messages
        self._tools = tools

    @property
    def definition(self) -> ToolDefinition:
        """The tool's definition, equal to that of the agent's `AgentTool`."""
        return self._agent.definition

    async def call(self, arguments: JsonObject, ctx: CallContext) -> ToolOutcome:
        """Run the agent on the conversation. Only the gate (authorization, approvals, limits) uses `arguments`.

        Raises:
            ModelError: No model is available, or a model call failed; the text names the fix.
            AgentError: The agent cannot run, for example because agents call each other too deeply, or a remote agent failed.
        """
        return await self._agent.converse(self._messages, self._tools, ctx)

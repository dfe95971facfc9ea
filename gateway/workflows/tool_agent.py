"""`ToolAgent`: an agent whose answers are the results of a tool, as a participant of an orchestration in a workflow file.

The tool is any tool of the gateway: an agent, a workflow or a remote tool. A chat client that calls the tool replaces the model, so that
sessions, handoffs and recorded runs work as for other agents. The calls are subject to policy, because the tools come from the gateway's
toolbox. `team` creates new agents for each run.
"""

from __future__ import annotations

import uuid
from collections.abc import AsyncGenerator, Sequence

from gateway.agents.agent import Agent
from gateway.chat.chat_client import BaseChatClient
from gateway.chat.openai_options import tool_definitions
from gateway.errors import WorkflowError
from gateway.tools.base import Tool
from gateway.tools.contents import from_block
from gateway.tools.context import CallContext
from gateway.types.content import Content
from gateway.types.messages import Message
from gateway.types.options import ChatOptions
from gateway.types.responses import ChatResponseUpdate
from gateway.workflows.steps import find_object, inner_context, invoke, task_argument

_HAND_OVER = """\
Instead of answering you can hand the conversation over. To do so answer with one JSON object and nothing else, such as \
{{"call": "{example}"}}. These can be called:
{tools}"""


class ToolChatClient(BaseChatClient):
    """A chat client that calls a tool instead of a model. The results of the tool are its answers."""

    def __init__(self, tool: Tool, *, name: str, has_judgement: bool) -> None:
        """Create a client that calls `tool`. `name` is the participant's name.

        `has_judgement` means that the tool is an agent: it gets the whole conversation, and may hand it over to another participant. Other
        tools get only the last message.

        Raises:
            ToolFailed: The tool has no text argument.
        """
        super().__init__(name)
        self._tool = tool
        self._argument = task_argument(tool)
        self._has_judgement = has_judgement
        self.call: CallContext | None = None
        """The tool call that the workflow serves. It must be set before each run."""

    async def _updates(
        self, messages: Sequence[Message], *, stream: bool, options: ChatOptions
    ) -> AsyncGenerator[ChatResponseUpdate, None]:
        if self.call is None:
            raise WorkflowError(f"Participant {self.model!r} runs outside a call of its workflow.")
        handoffs = {name: text for name, text, _ in tool_definitions(options)}
        asked = self._prompt(messages, handoffs if self._has_judgement else {}, options)
        result = await invoke(self._tool, {self._argument: asked}, inner_context(self.call, self.model))
        found = find_object(result.as_text()) if handoffs and self._has_judgement else None
        chosen = found.get("call") if found is not None else None
        if isinstance(chosen, str) and chosen in handoffs:
            contents = [Content.from_function_call(str(uuid.uuid4()), chosen, {})]
        else:
            contents = [from_block(block) for block in result.content]
        yield ChatResponseUpdate(contents, "assistant", self.model)

    def _prompt(self, messages: Sequence[Message], handoffs: dict[str, str], options: ChatOptions) -> str:
        said = [message for message in messages if message.role in ("user", "assistant") and message.text]
        if not self._has_judgement:
            return said[-1].text if said else ""
        parts = [str(options.get("instructions") or "")]
        if len(said) == 1 and said[0].role == "user":
            parts.append(said[0].text)
        elif said:
            lines = "\n\n".join(f"{message.author_name or message.role}: {message.text}" for message in said)
            parts.append(f"You are {self.model} in this conversation:\n\n{lines}\n\nIt is your turn.")
        if handoffs:
            tools = "\n".join(f"- {name}: {text}" for name, text in handoffs.items())
            parts.append(_HAND_OVER.format(example=next(iter(handoffs)), tools=tools))
        return "\n\n".join(part for part in parts if part)


class ToolAgent(Agent):
    """An agent whose answers are the results of a tool, so that a tool can be a participant of an orchestration of agents.

    Call `serve` before each run.
    """

    def __init__(self, tool: Tool, *, name: str, has_judgement: bool) -> None:
        """Create an agent for `tool`. `has_judgement` means that the tool is an agent, which gets the whole conversation.

        Raises:
            ToolFailed: The tool has no text argument.
        """
        self._answers = ToolChatClient(tool, name=name, has_judgement=has_judgement)
        super().__init__(self._answers, id=name, name=name, description=tool.definition.description)

    def serve(self, call: CallContext) -> None:
        """Set the tool call on whose behalf this agent makes its next runs. The workflow runs as part of this call."""
        self._answers.call = call

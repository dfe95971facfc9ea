"""`HandoffBuilder`: builds workflows in which agents hand a conversation over to each other, and otherwise ask the user.

Every agent gets a tool `handoff_to_<name>` for each agent to which it may hand over. A call of this tool ends the run of the calling agent,
and the other agent answers. If an agent answers without a handoff, the user is asked, unless the conversation ends or the agent continues
on its own (`with_autonomous_mode`). Every agent gets every message, except tool calls and their results.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Self, cast

from gateway.agents.agent import Agent
from gateway.errors import MiddlewareTermination
from gateway.json_types import JsonObject
from gateway.sessions.history import HistoryProvider, InMemoryHistoryProvider
from gateway.sessions.session import AgentSession, SupportsAgentRun
from gateway.sessions.session_context import ContextProvider, SessionContext
from gateway.tools.base import Complete, Tool, ToolDefinition
from gateway.tools.context import CallContext
from gateway.types.messages import Message, to_messages
from gateway.types.responses import AgentResponse
from gateway.workflows.agent_executor import AgentContextOf, AgentExecutor, AgentExecutorRequest, AgentExecutorResponse, resolve_agent_id
from gateway.workflows.checkpoints import CheckpointStorage
from gateway.workflows.events import WorkflowEvent
from gateway.workflows.executor import response_handler
from gateway.workflows.orchestrations.group_chat import TerminationCondition, is_met
from gateway.workflows.orchestrations.participants import IntermediateFrom, OutputFrom, StoredBuilder, spoken
from gateway.workflows.workflow import Workflow

DEFAULT_AUTONOMOUS_PROMPT = "User did not respond. Continue assisting autonomously."
DEFAULT_AUTONOMOUS_TURNS = 50

_NOT_IN_NAMES = re.compile(r"[^a-zA-Z0-9_-]")
_HANDOFF_KEY = "handoff_to"


@dataclass
class HandoffSentEvent:
    """Data of a `handoff_sent` event: the agent `source` has handed the conversation over to the agent `target`."""

    source: str
    target: str


@dataclass
class HandoffAgentUserRequest:
    """A request for the user's next message in a handoff workflow, because an agent answered without handing the conversation over."""

    agent_response: AgentResponse

    @staticmethod
    def create_response(response: str | Message | list[str] | list[Message]) -> list[Message]:
        """Return the response to this request that continues the conversation with the user's text or messages."""
        return to_messages(cast("list[str | Message]", response))

    @staticmethod
    def terminate() -> list[Message]:
        """Return the response to this request that ends the conversation: an empty list."""
        return []


class HandoffConfiguration:
    """A handoff that an agent is allowed to make: the target agent, and the description of the handoff tool for the model."""

    def __init__(self, *, target: str | SupportsAgentRun, description: str | None = None) -> None:
        self.target_id = target if isinstance(target, str) else resolve_agent_id(target)
        self.description = description


def handoff_tool_name(target_id: str) -> str:
    """Return the name of the tool that hands the conversation over to this agent: `handoff_to_<id>`.

    Characters other than ASCII letters, digits, `_` and `-` become `_`, and the name is cut to 64 characters.
    """
    return ("handoff_to_" + _NOT_IN_NAMES.sub("_", target_id))[:64]


class HandoffTool:
    """The tool `handoff_to_<name>`. A call ends the run of the calling agent, and the agent `<name>` continues the conversation."""

    def __init__(self, handoff: HandoffConfiguration) -> None:
        self.target_id = handoff.target_id
        self.name = handoff_tool_name(handoff.target_id)
        description = handoff.description or f"Hand the conversation over to {handoff.target_id}."
        self.definition = ToolDefinition(
            name=self.name,
            description=description,
            input_schema={"type": "object", "properties": {}},
            annotations={"readOnlyHint": True},
            task="never",
        )

    async def call(self, arguments: JsonObject, ctx: CallContext) -> Complete:
        """Stop the run of the calling agent. The result names the agent that continues the conversation.

        Raises:
            MiddlewareTermination: Always; it ends the run with the result.
        """
        raise MiddlewareTermination(result={_HANDOFF_KEY: self.target_id})


class HandoffProvider(ContextProvider):
    """A context provider that adds tools to each run of an agent. The tools hand the conversation over to other agents."""

    def __init__(self, tools: Sequence[HandoffTool]) -> None:
        super().__init__("handoff")
        self._tools = list(tools)

    async def before_run(self, *, agent: SupportsAgentRun, session: AgentSession, context: SessionContext, state: JsonObject) -> None:
        """Add the tools that hand the conversation over to other agents to the run that begins."""
        context.extend_tools(self.source_id, cast("list[Tool]", self._tools))


class HandoffAgentExecutor(AgentExecutor):
    """The executor of one agent in a handoff workflow. It runs the agent, and carries out the agent's handoffs to other agents."""

    def __init__(
        self,
        agent: Agent,
        handoffs: Sequence[HandoffConfiguration],
        *,
        is_start: bool = False,
        user_response_target_id: str | None = None,
        termination_condition: TerminationCondition | None = None,
        autonomous_turns: int = 0,
        autonomous_prompt: str | None = None,
    ) -> None:
        """Create the executor of `agent`. A copy of the agent gets tools for the allowed `handoffs`.

        `is_start` means that the agent answers first. `user_response_target_id` is the agent that gets the user's answer; the default is
        this agent. The conversation ends when `termination_condition` returns true for its messages. If the agent answers without a
        handoff, it is prompted to continue with the `autonomous_prompt`, up to `autonomous_turns` times before the user is asked.
        """
        tools = {tool.name: tool for tool in map(HandoffTool, handoffs)}
        own = copy.copy(agent)
        history = any(isinstance(item, HistoryProvider) and item.load_messages for item in agent.context_providers)
        own.context_providers = [
            *([] if history else [InMemoryHistoryProvider()]),
            *agent.context_providers,
            HandoffProvider(list(tools.values())),
        ]
        super().__init__(own)
        self._tools = tools
        self._is_start = is_start
        self._user_target = user_response_target_id
        self._condition = termination_condition
        self._turn_limit = autonomous_turns
        self._prompt = autonomous_prompt or DEFAULT_AUTONOMOUS_PROMPT
        self._turns = 0
        self._conversation_so_far: list[Message] = []
        """All messages of the conversation so far, for the termination condition."""

    async def _answer(self, ctx: AgentContextOf) -> None:
        if self._is_start and not self._conversation_so_far:
            await self._broadcast(list(self._cache), ctx)
        self._conversation_so_far += self._cache
        if not await is_met(self._condition, self._conversation_so_far):
            await super()._answer(ctx)

    async def publish_answer(self, answer: AgentExecutorResponse, ctx: AgentContextOf, *, is_shown: bool) -> None:
        """Yield the agent's answer as an output, and send it to the other agents.

        Then hand the conversation over if the agent called a handoff tool. Otherwise end the conversation if the termination condition is
        true, prompt the agent to continue, or ask the user.
        """
        response = answer.agent_response
        if not is_shown:
            await ctx.yield_output(response)
        said = spoken(response.messages)
        self._conversation_so_far += said
        await self._broadcast(said, ctx)
        target = self._target_of(response)
        if target is not None:
            self._turns = 0
            await ctx.send_message(cast("Any", AgentExecutorRequest([])), target_id=target)
            await ctx.add_event(WorkflowEvent("handoff_sent", HandoffSentEvent(self.id, target), self.id))
        elif await is_met(self._condition, self._conversation_so_far):
            return
        elif self._turns < self._turn_limit:
            self._turns += 1
            self._cache = [Message("user", [self._prompt])]
            await self._answer(ctx)
        else:
            self._turns = 0
            await ctx.request_info(HandoffAgentUserRequest(response), list[Message])

    @response_handler
    async def handle_response(self, original_request: HandoffAgentUserRequest, response: list[Message], ctx: AgentContextOf) -> None:
        """Handle the user's response: continue the conversation with its messages, or end it if the response is empty."""
        if not response:
            return
        await self._broadcast(response, ctx)
        self._cache += response
        if self._user_target is not None and self._user_target != self.id:
            self._conversation_so_far += self._cache
            self._cache = []
            await ctx.send_message(cast("Any", AgentExecutorRequest([])), target_id=self._user_target)
        else:
            await self._answer(ctx)

    async def on_checkpoint_save(self) -> dict[str, Any]:
        """Return the state for a checkpoint: the agent's state, the conversation, and the number of turns without the user."""
        return {**await super().on_checkpoint_save(), "heard": list(self._conversation_so_far), "turns": self._turns}

    async def on_checkpoint_restore(self, state: dict[str, Any]) -> None:
        """Restore what `on_checkpoint_save` returned: the agent's state, the conversation, and the number of turns without the user."""
        await super().on_checkpoint_restore(state)
        self._conversation_so_far, self._turns = list(state["heard"]), state["turns"]

    async def _broadcast(self, messages: list[Message], ctx: AgentContextOf) -> None:
        if messages:
            await ctx.send_message(cast("Any", AgentExecutorRequest(messages, should_respond=False)))

    def _target_of(self, response: AgentResponse) -> str | None:
        """Return the id of the agent that the last handoff call in the response names; `None` if the response has no handoff call."""
        for message in reversed(response.messages):
            for content in reversed(message.contents):
                tool = self._tools.get(content.name or "") if content.type == "function_call" else None
                if tool is not None:
                    return tool.target_id
        return None


class HandoffBuilder(StoredBuilder):
    """Builds a workflow in which agents hand a conversation over to each other, and otherwise ask the user.

    By default, every answer of an agent is an output of the workflow, and every agent may hand over to every other agent.
    """

    def __init__(
        self,
        *,
        participants: Sequence[Agent] | None = None,
        name: str | None = None,
        description: str | None = None,
        checkpoint_storage: CheckpointStorage | None = None,
        termination_condition: TerminationCondition | None = None,
        output_from: OutputFrom | None = None,
        intermediate_output_from: IntermediateFrom | None = None,
    ) -> None:
        """Begin a handoff workflow. The agents may also be set later, with the method `participants`.

        The conversation ends when `termination_condition` returns true for its messages. `output_from` and `intermediate_output_from`
        select the agents whose answers are outputs or intermediate outputs; by default all answers are outputs.
        """
        super().__init__(None, output_from, intermediate_output_from, name=name or "Handoff", storage=checkpoint_storage)
        self._agents: dict[str, Agent] = {}
        if participants is not None:
            self.participants(participants)
        self._description = description
        self._condition = termination_condition
        self._start: str | None = None
        self._handoffs: dict[str, dict[str, HandoffConfiguration]] = {}
        self._returns = True
        self._autonomous: dict[str, tuple[int, str | None]] = {}

    def participants(self, participants: Sequence[Agent]) -> Self:
        """Set the agents that take part in the conversation. May be called once.

        Raises:
            ValueError: The list is empty, two agents have the same name, or the participants were set before.
            TypeError: A participant is not an `Agent`; other kinds of agents cannot get handoff tools.
        """
        if self._agents:
            raise ValueError("The participants have been given already.")
        for item in participants:
            if not isinstance(item, Agent):  # pyright: ignore[reportUnnecessaryIsInstance]  # user code may pass other types
                raise TypeError(f"Participants must be Agent instances in a handoff. Got {type(item).__name__}.")
        self._take(participants)
        self._agents = dict(zip(self._given, participants, strict=True))
        return self

    def add_handoff(self, source: Agent | str, targets: Sequence[Agent | str], *, description: str | None = None) -> Self:
        """Allow the agent `source` to hand the conversation over to the agents in `targets`.

        After the first call, only handoffs that this method has allowed are possible.

        `description` is the description of the handoff tools for the model, which decides when to hand over.

        Raises:
            ValueError: An agent is not a participant.
        """
        own = self._handoffs.setdefault(self._known(source), {})
        for target in targets:
            own[self._known(target)] = HandoffConfiguration(target=self._known(target), description=description)
        return self

    def with_start_agent(self, agent: Agent | str) -> Self:
        """Set the agent that answers first. Required before `build`."""
        self._start = self._known(agent)
        return self

    def enable_return_to_previous(self, enabled: bool = True) -> Self:
        """Set whether the user's answer goes to the agent that answered last (the default) or to the start agent (`enabled=False`)."""
        self._returns = enabled
        return self

    def with_autonomous_mode(
        self,
        *,
        agents: Sequence[Agent | str] | None = None,
        prompts: dict[str, str] | None = None,
        turn_limits: dict[str, int] | None = None,
    ) -> Self:
        """Have these agents (by default all) continue without the user for some turns (answers) before the user is asked.

        `prompts` are the messages that prompt an agent to continue, and `turn_limits` the numbers of turns, both by agent name. The default
        is 50 turns with a fixed prompt.
        """
        for name in [self._known(agent) for agent in agents] if agents else list(self._agents):
            limit = (turn_limits or {}).get(name, DEFAULT_AUTONOMOUS_TURNS)
            self._autonomous[name] = (limit, (prompts or {}).get(name))
        return self

    def with_termination_condition(self, termination_condition: TerminationCondition) -> Self:
        """Set a sync or async function that gets the conversation's messages and returns whether the conversation ends."""
        self._condition = termination_condition
        return self

    def build(self) -> Workflow:
        """Build the graph of the agents, and return the workflow.

        Raises:
            ValueError: The participants or the start agent have not been set.
        """
        if not self._agents:
            raise ValueError("No participants: pass `participants` to HandoffBuilder.")
        if self._start is None:
            raise ValueError("Must call with_start_agent(...) before building the workflow.")
        executors: dict[str, Any] = {}
        for name, agent in self._agents.items():
            turns, prompt = self._autonomous.get(name, (0, None))
            executors[name] = HandoffAgentExecutor(
                agent,
                self._handoffs_of(name),
                is_start=name == self._start,
                user_response_target_id=None if self._returns else self._start,
                termination_condition=self._condition,
                autonomous_turns=turns,
                autonomous_prompt=prompt,
            )
        builder = self._graph(executors[self._start], executors, default=list(executors))
        for name, executor in executors.items():
            others = [item for other, item in executors.items() if other != name]
            if len(others) > 1:
                builder.add_fan_out_edges(executor, others)
            elif others:
                builder.add_edge(executor, others[0])
        return builder.build()

    def _handoffs_of(self, name: str) -> list[HandoffConfiguration]:
        own = self._handoffs.get(name, {}) if self._handoffs else {other: None for other in self._agents if other != name}
        return [
            HandoffConfiguration(target=target, description=(given and given.description) or self._agents[target].description)
            for target, given in own.items()
        ]

    def _known(self, agent: Agent | str) -> str:
        name = agent if isinstance(agent, str) else resolve_agent_id(agent)
        if name not in self._agents:
            raise ValueError(f"Agent {name!r} is not in the participants list: {', '.join(self._agents)}.")
        return name

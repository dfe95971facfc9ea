"""`AgentTool`: an agent as a tool with the argument `task`, and progress on the way.

Each call is a conversation of its own, or a turn of a session of its caller (`conversations`). The agent's model is chosen per call,
because `model: auto` may mean the caller's own; its tools are the guarded ones of the catalog, called in the caller's name.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Sequence

from gateway.agents.agent import Agent
from gateway.agents.compaction import to_strategy
from gateway.agents.conversations import NEW_SESSION, Conversations, in_session
from gateway.agents.definition import AgentDefinition
from gateway.agents.following import followed, is_handed_back
from gateway.agents.options import LoopOptions
from gateway.agents.remote.run import Remote, run_remote
from gateway.chat.resolve import ModelResolver
from gateway.errors import AgentError
from gateway.json_types import JsonObject, JsonValue
from gateway.policy.checking import SchemaCheck, measure
from gateway.policy.skill_tools import narrow_tools
from gateway.sessions.context import ContextProvider
from gateway.tools.base import Complete, Tool, ToolDefinition, ToolOutcome
from gateway.tools.context import CallContext, LogLevel
from gateway.tools.toolbox import ToolBox
from gateway.types.messages import Message
from gateway.types.options import ChatOptions
from gateway.types.responses import AgentResponse, last_text

DEPTH_KEY = "dev.moongate/agentDepth"
"""Request `_meta`: how many agents this call is already inside."""

MAX_DEPTH = 5
"""Agents that may call each other; a circle of agents ends here."""

RESULT_META_KEY = "dev.moongate/agent"
"""Result `_meta`: model, usage and how the run ended."""

SKILL_TOOLS = ("skill/search_skills", "skill/load_skill", "skill/read_skill_resource", "skill/run_skill_script")

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

    def __init__(
        self,
        definition: AgentDefinition,
        *,
        toolbox: ToolBox,
        models: ModelResolver,
        skill_instructions: Callable[[Sequence[str]], str] | None,
        skill_wishes: Callable[[Sequence[str]], Sequence[JsonValue]] | None = None,
        conversations: Conversations | None = None,
        context_providers: Sequence[ContextProvider] = (),
        remote: Remote | None = None,
    ) -> None:
        """`skill_instructions` says what an agent is told about skills by name, `skill_wishes` gives their `allowed-tools`;
        `None` where none are served. Without
        `conversations` every call stands alone. `remote` is where an agent runs that does not run here; whoever made it closes it.
        """
        self._agent = definition
        self._remote = remote or Remote()
        has_sessions = definition.file.history != "none" and self._remote.agent is None
        self._conversations = conversations if has_sessions else None
        self._context_providers = tuple(context_providers)
        self._toolbox = toolbox
        self._models = models
        self._skill_instructions = skill_instructions
        self._skill_wishes = skill_wishes
        file = definition.file
        self._definition = ToolDefinition(
            name=file.name,
            description=file.description,
            input_schema={
                "type": "object",
                "properties": {"task": _TASK, **({"session_id": _SESSION_ID} if self._conversations is not None else {})},
                "required": ["task"],
                "additionalProperties": False,
            },
            output_schema=file.output,
            annotations={"title": f"Agent {file.name}", "openWorldHint": True},
            may_ask=True,
        )

    @property
    def definition(self) -> ToolDefinition:
        """A string argument, `task`, and where sessions are kept an optional one, `session_id`."""
        return self._definition

    async def call(self, arguments: JsonObject, ctx: CallContext) -> ToolOutcome:
        """Run the agent on a task, alone or as the next turn of a session.

        Raises:
            ModelError: No model, or it failed; the text says what to set or do.
            AgentError: Agents call each other too deeply, a skill it names does not exist, or the session is busy.
            NotFound: The session is unknown to this caller (`kind` is `session`).
            PolicyDenied: The caller has too many sessions.
            StorageError: The session cannot be read.
        """
        messages, session_id = [Message("user", [str(arguments["task"])])], str(arguments.get("session_id") or "")
        if not session_id or self._conversations is None:
            return await self.converse(messages, (), ctx)
        progress, inner = self._inside(ctx)
        async with self._conversations.open(self._agent.file, session_id, ctx.principal.id) as conversation:
            agent = await self._build(inner, [conversation.history, *self._context_providers])
            stream = agent.run(messages, stream=True, session=conversation.session, ctx=inner, observer=progress)
            return await in_session(conversation, self._to_complete(model_of(agent), await followed(stream, ctx)))

    async def converse(self, messages: Sequence[Message], tools: Sequence[Tool], ctx: CallContext) -> ToolOutcome:
        """Run the agent on a conversation, with `tools` beside its own. A caller that is a `RunFollower` is told each part.

        Raises:
            ModelError: As `call`.
            AgentError: As `call`.
        """
        progress, inner = self._inside(ctx)
        if self._remote.agent is not None:
            return self._to_complete(None, await run_remote(self._remote.agent, messages, ctx))
        agent = await self._build(inner, self._context_providers)
        stream = agent.run(messages, stream=True, tools=[*tools], ctx=inner, observer=progress)
        return self._to_complete(model_of(agent), await followed(stream, ctx))

    def _inside(self, ctx: CallContext) -> tuple[_Progress, CallContext]:
        """The context of the run itself.

        Raises:
            AgentError: Agents call each other too deeply.
        """
        depth = ctx.meta.get(DEPTH_KEY)
        depth = depth if isinstance(depth, int) else 0
        if depth >= MAX_DEPTH:
            raise AgentError(f"Agent {self._agent.file.name!r} was not run: {depth} agents are already calling each other.")
        progress = _Progress(ctx)
        return progress, dataclasses.replace(ctx, caller=progress, meta={**ctx.meta, DEPTH_KEY: depth + 1})

    async def _build(self, ctx: CallContext, providers: Sequence[ContextProvider]) -> Agent:
        file = self._agent.file
        patterns = [*file.tools, *(SKILL_TOOLS if file.skills else ())]
        # The last of its turns is the one without tools, so an agent of one turn has none.
        tools = await self._toolbox.tools(patterns) if patterns and file.max_turns > 1 else ()
        parts = [self._agent.instructions]
        if file.narrow_to_skills and file.skills and self._skill_wishes is not None:
            own = {tool.definition.name for tool in await self._toolbox.tools(SKILL_TOOLS)}
            kept = own | narrow_tools([tool.definition.name for tool in tools], self._skill_wishes(file.skills))
            tools = [tool for tool in tools if tool.definition.name in kept]
        if file.skills:
            if self._skill_instructions is None:
                raise AgentError(f"Agent {file.name!r} names skills, but none are served; set `expose.skills`.")
            parts.append(self._skill_instructions(file.skills))
        options: ChatOptions = {"response_format": file.output} if file.output is not None else {}
        client = self._remote.client or self._models.resolve(file.model, ctx)
        return Agent(
            client,
            "\n\n".join(parts),
            name=file.name,
            description=file.description,
            tools=tools,
            default_options=options,
            function_invocation_configuration=LoopOptions(max_iterations=max(1, file.max_turns - 1)),
            context_providers=providers,
            compaction_strategy=to_strategy(file.compaction, client),
        )

    def _to_complete(self, model: str | None, response: AgentResponse) -> Complete:
        text = last_text(response.messages)
        result: JsonObject = {"content": [{"type": "text", "text": text}]}
        note: JsonObject = {"model": model} if model else {}
        if response.usage_details:
            note["usage"] = response.usage_details
        if response.finish_reason:
            note["finishReason"] = response.finish_reason
        result["_meta"] = {RESULT_META_KEY: note}
        if self._agent.file.output is not None:
            result |= _structured(text, self._agent.file.output)
        elif not text and not is_handed_back(response):
            result |= {"content": [{"type": "text", "text": "The agent gave no answer."}], "isError": True}
        return Complete(result)


def model_of(agent: Agent) -> str | None:
    """The model's name, where the client tells it."""
    return getattr(agent.client, "model", None)


def _structured(text: str, schema: JsonObject) -> JsonObject:
    """Structured content, or an error result that says what is wrong with the answer."""
    try:
        value = json.loads(text)
    except ValueError:
        value = None
    problem = "it is no JSON object" if not isinstance(value, dict) else SchemaCheck(schema).find(value, measure(value))
    if problem is None:
        return {"structuredContent": value}
    message = f"The agent's answer does not have the form it must have ({problem}). The answer was:\n{text}"
    return {"content": [{"type": "text", "text": message}], "isError": True}


class _Progress:
    """Turns the run's steps, and the progress of its tools, into one sequence of progress messages.

    It stands in for the caller inside the run: numbers of inner calls would start over, and the ones that the
    client sees must grow.
    """

    def __init__(self, ctx: CallContext) -> None:
        self._ctx = ctx
        self._step = 0

    async def model_called(self, number: int) -> None:
        """The model is thinking."""
        await self._tell("thinking" if number == 1 else f"thinking (round {number})")

    async def tools_called(self, names: Sequence[str]) -> None:
        """Tools are running."""
        await self._tell(f"using {', '.join(names[:5])}{' …' if len(names) > 5 else ''}")

    async def progress(self, progress: float, total: float | None, message: str | None) -> None:
        """A tool of the run reports; only what it says is passed on."""
        if message:
            await self._tell(message)

    async def log(self, level: LogLevel, data: JsonValue, logger: str | None) -> None:
        """Passed on."""
        await self._ctx.caller.log(level, data, logger)

    async def ask(self, request: JsonObject) -> JsonObject:
        """Passed on; the context that asks has stopped its clocks already."""
        return await self._ctx.caller.ask(request)

    async def _tell(self, message: str) -> None:
        self._step += 1
        await self._ctx.progress(self._step, None, message)

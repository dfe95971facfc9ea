"""`AgentRuns`: runs the agent of one file for its tool (`tool`). Imported with the first call of an agent."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import cast

from gateway.agents.agent import Agent
from gateway.agents.answers import to_complete
from gateway.agents.attachments import read_attachments
from gateway.agents.compaction import KeepSummary, to_strategy
from gateway.agents.context import AgentMiddleware
from gateway.agents.conversations import in_session
from gateway.agents.features import file_provider, loop_middleware, memory_provider, security_provider
from gateway.agents.following import RunFollower, followed
from gateway.agents.progress import RunProgress
from gateway.agents.recorded import RecordModelCalls
from gateway.agents.remote.run import run_remote
from gateway.agents.tool_parts import Parts, files_of
from gateway.errors import AgentError
from gateway.json_types import JsonObject
from gateway.policy.skill_tools import narrow_tools
from gateway.sessions.context import ContextProvider
from gateway.sessions.session import AgentSession
from gateway.tools.base import Complete, Tool, ToolOutcome
from gateway.tools.context import CallContext
from gateway.tools.wrappers import RenamedTool
from gateway.types.messages import Message
from gateway.types.options import ChatOptions
from gateway.types.responses import AgentResponse

MAX_DEPTH = 5
"""Agents that may call each other; a circle of agents ends here."""

SKILL_TOOLS = ("skill/search_skills", "skill/load_skill", "skill/read_skill_resource", "skill/run_skill_script")



class AgentRuns:
    """The runs of one agent."""

    def __init__(self, parts: Parts) -> None:
        self._agent = parts.definition
        self._shared = parts.shared
        self._remote = parts.remote
        self._conversations = parts.conversations
        self._context_providers = parts.context_providers
        self._middleware = parts.middleware
        self._toolbox = parts.shared.toolbox
        self._models = parts.shared.models
        self._skills = parts.shared.skills

    async def call(self, arguments: JsonObject, ctx: CallContext) -> ToolOutcome:
        """As `AgentTool.call`."""
        # An agent's file names tools, not resources: a link in the arguments of another agent must not let it read resources.
        resources = None if ctx.provenance.agent_depth else self._shared.resources
        attached = await read_attachments(arguments.get("attachments"), resources, ctx)
        messages = [Message("user", [str(arguments["task"]), *attached])]
        session_id = str(arguments.get("session_id") or "")
        options = cast("ChatOptions", {name: arguments[name] for name in self._agent.file.parameters if name in arguments})
        if not session_id or self._conversations is None:
            return await self.converse(messages, (), ctx, options)
        progress, inner = self._inside(ctx)
        async with self._conversations.hold(self._agent.file, session_id, ctx.principal.id, ctx.durable) as conversation:
            if (answer := await conversation.resuming(ctx)) is not None:
                return await in_session(conversation, answer)
            if self._remote.agent is not None:
                response = await run_remote(self._remote.agent, messages, ctx, conversation.session)
                await conversation.history.save_messages(conversation.id, [*messages, *response.messages])
                return await in_session(conversation, self._to_complete(None, response, ctx))
            providers = [conversation.history, *self._context_providers]
            agent = await self._build(inner, providers, progress, conversation.keep_summary)
            run = _Run(agent, messages, options, (), conversation.session)
            return await in_session(conversation, self._to_complete(model_of(agent), await run.followed(ctx, inner, progress), ctx))

    async def converse(
        self, messages: Sequence[Message], tools: Sequence[Tool], ctx: CallContext, options: ChatOptions | None = None
    ) -> ToolOutcome:
        """As `AgentTool.converse`."""
        progress, inner = self._inside(ctx)
        if self._remote.agent is not None:
            return self._to_complete(None, await run_remote(self._remote.agent, messages, ctx), ctx)
        agent = await self._build(inner, self._context_providers, progress)
        run = _Run(agent, messages, options or {}, tools)
        return self._to_complete(model_of(agent), await run.followed(ctx, inner, progress), ctx)

    def _inside(self, ctx: CallContext) -> tuple[RunProgress, CallContext]:
        """The context of the run itself.

        Raises:
            AgentError: Agents call each other too deeply.
        """
        depth = ctx.provenance.agent_depth
        if depth >= MAX_DEPTH:
            raise AgentError(f"Agent {self._agent.file.name!r} was not run: {depth} agents are already calling each other.")
        progress = RunProgress(ctx)
        guards = self._shared.guards
        guard = guards.guard_of(f"agent/{self._agent.file.name}") if guards is not None else None
        file = self._agent.file
        inside = ctx.inside_agent(file.skills, tells_errors=bool(file.loop.include_detailed_errors))
        return progress, dataclasses.replace(inside, caller=progress, tool_guard=guard)

    def _to_complete(self, model: str | None, response: AgentResponse, ctx: CallContext) -> Complete:
        hands_back = isinstance(ctx.caller, RunFollower)
        return to_complete(response, model=model, output=self._agent.file.output, hands_back=hands_back)

    async def _build(
        self, ctx: CallContext, providers: Sequence[ContextProvider], progress: RunProgress, keep_summary: KeepSummary | None = None
    ) -> Agent:
        file = self._agent.file
        own: list[ContextProvider] = []
        settings = self._shared.settings
        if (files := files_of(self._agent, self._shared)) is not None:
            own.append(await file_provider(*files, self._shared.roots))
        if file.memory is not None:
            own.append(memory_provider(file.memory, file.name, self._models, self._shared.conversations))
        security = file.security or settings.security
        if security is not None:
            own.append(security_provider(security))
        middleware: list[AgentMiddleware] = []
        if file.loop_until is not None:
            judge = self._models.resolve(file.loop_until.judge or file.model, ctx)
            middleware.append(loop_middleware(file.loop_until, judge, progress.tell))
        tools = await self._tools(ctx.on_behalf_of.scopes)
        parts = [self._agent.instructions]
        if file.skills:
            if self._skills is None:
                raise AgentError(f"Agent {file.name!r} names skills, but none are served; set `expose.skills`.")
            parts.append(self._skills.instructions(file.skills))
        options = cast("ChatOptions", dict(file.options))
        if file.output is not None:
            options["response_format"] = file.output
        recorded: list[RecordModelCalls] = []
        if ctx.durable is not None:
            recorded.append(RecordModelCalls(ctx, ctx.durable, is_remote_agent=self._remote.client is not None))
        client = self._remote.client or self._models.resolve(file.model, ctx)
        return Agent(
            client,
            "\n\n".join(parts),
            name=file.name,
            description=file.description,
            tools=tools,
            default_options=options,
            middleware=[*middleware, *self._middleware, *recorded],
            function_invocation_configuration={**file.loop.to_limits(), "max_iterations": max(1, file.max_turns - 1)},
            context_providers=[*providers, *own],
            compaction_strategy=to_strategy(file.compaction, client, keep_summary),
        )

    async def _tools(self, scopes: Sequence[str] | None) -> Sequence[Tool]:
        """What the file names, and the skill tools; narrowed to what its skills wish for where the file says so.

        The description of `load_skill` lists the skills that the file names or, if it names none, those for a caller with these scopes.
        """
        file = self._agent.file
        patterns = [*file.tools, *(SKILL_TOOLS if file.skills else ())]
        if not patterns or file.max_turns == 1:
            return ()  # the last of its turns is the one without tools
        tools = [
            tool.described(scopes, file.skills) if isinstance(tool, RenamedTool) else tool for tool in await self._toolbox.tools(patterns)
        ]
        if not file.narrow_to_skills or not file.skills or self._skills is None:
            return tools
        always = {tool.definition.name for tool in await self._toolbox.tools(SKILL_TOOLS)}
        kept = always | narrow_tools([tool.definition.name for tool in tools], self._skills.wishes(file.skills))
        return [tool for tool in tools if tool.definition.name in kept]


def model_of(agent: Agent) -> str | None:
    """Return the model name if the client has one."""
    return getattr(agent.client, "model", None)


@dataclass(frozen=True, slots=True)
class _Run:
    """One run, told to its caller on the way."""

    agent: Agent
    messages: Sequence[Message]
    options: ChatOptions
    tools: Sequence[Tool] = ()
    session: AgentSession | None = None

    async def followed(self, ctx: CallContext, inner: CallContext, progress: RunProgress) -> AgentResponse:
        """Return the whole response. Each part goes to a `RunFollower`; text of the agent goes to other callers that asked for progress."""
        if not ctx.wants_progress and not isinstance(ctx.caller, RunFollower):
            return await self.agent.run(
                self.messages, tools=[*self.tools], options=self.options, session=self.session, ctx=inner, observer=progress
            )
        stream = self.agent.run(
            self.messages, stream=True, tools=[*self.tools], options=self.options, session=self.session, ctx=inner, observer=progress
        )
        return await followed(stream, ctx, progress.said)

"""`AgentRuns`: runs the agent of one agent file for its tool (`AgentTool`).

The tool imports this module with its first call, so that the gateway starts quickly.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, cast

from gateway.agents.agent import Agent
from gateway.agents.agent_setup import AgentSetup, files_of
from gateway.agents.attachments import read_attachments
from gateway.agents.compaction_key import KeepSummary, to_strategy
from gateway.agents.conversations import in_session
from gateway.agents.features import file_provider, loop_middleware, memory_provider, security_provider
from gateway.agents.following import RunFollower, follow_run
from gateway.agents.model_call_recorder import RecordModelCalls
from gateway.agents.remote.remote_run import run_remote
from gateway.agents.run_context import AgentMiddleware
from gateway.agents.run_progress import RunProgress
from gateway.agents.run_results import to_complete
from gateway.auth.principal import Principal
from gateway.errors import AgentError
from gateway.gate.own_tools import admitted
from gateway.json_types import JsonObject
from gateway.policy.tool_narrowing import narrow_tools
from gateway.sessions.session_context import ContextProvider
from gateway.tools.base import Complete, Tool, ToolOutcome
from gateway.tools.context import CallContext
from gateway.tools.toolbox import ToolGuard, guard_in, guarded_by
from gateway.tools.wrappers import RenamedTool
from gateway.types.messages import Message
from gateway.types.options import ChatOptions
from gateway.types.responses import AgentResponse

MAX_DEPTH = 5
"""Maximum number of nested agent runs (an agent that calls an agent, and so on); the limit ends circular calls."""

SKILL_TOOLS = ("skill/search_skills", "skill/load_skill", "skill/read_skill_resource", "skill/run_skill_script")


class AgentRuns:
    """Runs the agent of one agent file when its tool (`AgentTool`) is called."""

    def __init__(self, setup: AgentSetup) -> None:
        self._setup = setup
        self._agent = setup.definition
        self._shared = setup.shared

    async def call(self, arguments: JsonObject, ctx: CallContext) -> ToolOutcome:
        """Run the agent on the task in `arguments`: as a new conversation, or as the next turn of a session (`session_id`).

        Raises `ModelError`, `AgentError`, `NotFound`, `PolicyDenied` or `StorageError`, each as `AgentTool.call` describes.
        """
        # An agent file permits tools, not resources: an agent must not read resources by writing links into the arguments of another agent.
        resources = None if ctx.facts.provenance.agent_depth else self._shared.resources
        attached = await read_attachments(arguments.get("attachments"), resources, ctx)
        messages = [Message("user", [str(arguments["task"]), *attached])]
        session_id = str(arguments.get("session_id") or "")
        options = cast("ChatOptions", {name: arguments[name] for name in self._agent.file.parameters if name in arguments})
        if not session_id or self._setup.conversations is None:
            return await self.converse(messages, (), ctx, options)
        progress, inner = self._inside(ctx)
        async with self._setup.conversations.hold(self._agent.file, session_id, ctx.facts.principal.id, ctx.ports.durable) as conversation:
            if (answer := await conversation.resuming(ctx)) is not None:
                return await in_session(conversation, answer)
            if self._setup.remote.agent is not None:
                response = await run_remote(self._setup.remote.agent, messages, ctx, conversation.session)
                await conversation.history.save_messages(conversation.id, [*messages, *response.messages])
                return await in_session(conversation, self._to_complete(None, response, ctx))
            providers = [conversation.history, *self._setup.context_providers]
            agent = await self._build(inner, providers, progress, conversation.keep_summary)
            run = partial(agent.run, messages, options=options, session=conversation.session, ctx=inner, observer=progress)
            return await in_session(conversation, self._to_complete(model_of(agent), await _reported(run, ctx, progress), ctx))

    async def converse(
        self, messages: Sequence[Message], tools: Sequence[Tool], ctx: CallContext, options: ChatOptions | None = None
    ) -> ToolOutcome:
        """Run the agent on the conversation `messages`. `tools`, which the caller executes itself, are added to the agent's own.

        Raises:
            ModelError: No model is available, or a model call failed; the text names the fix.
            AgentError: The agent cannot run, for example because agents call each other too deeply, or a remote agent failed.
        """
        progress, inner = self._inside(ctx)
        if self._setup.remote.agent is not None:
            return self._to_complete(None, await run_remote(self._setup.remote.agent, messages, ctx), ctx)
        agent = await self._build(inner, self._setup.context_providers, progress)
        run = partial(agent.run, messages, tools=[*tools], options=options or {}, ctx=inner, observer=progress)
        return self._to_complete(model_of(agent), await _reported(run, ctx, progress), ctx)

    def _inside(self, ctx: CallContext) -> tuple[RunProgress, CallContext]:
        """Return two objects for the run that serves the call `ctx`: the reporter of progress, and the context of the run's tool calls.

        Raises:
            AgentError: Agents call each other too deeply.
        """
        depth = ctx.facts.provenance.agent_depth
        if depth >= MAX_DEPTH:
            raise AgentError(f"Agent {self._agent.file.name!r} was not run: {depth} agents already call each other, which is the limit.")
        progress = RunProgress(ctx)
        guards = self._shared.guards
        guard = guards.guard_of(f"agent/{self._agent.file.name}") if guards is not None else None
        file = self._agent.file
        skills = file.skills if file.runs_as == "file" else ()
        inside = ctx.for_file(file.runs_as).inside_agent(skills, shows_errors=bool(file.loop.include_detailed_errors))
        return progress, guarded_by(inside.with_caller(progress), guard)

    def _to_complete(self, model: str | None, response: AgentResponse, ctx: CallContext) -> Complete:
        hands_back = isinstance(ctx.ports.caller, RunFollower)
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
            own.append(memory_provider(file.memory, file.name, self._shared.models, self._shared.conversations))
        security = file.security or settings.security
        if security is not None:
            own.append(security_provider(security))
        middleware: list[AgentMiddleware] = []
        if file.loop_until is not None:
            judge = self._shared.models.resolve(file.loop_until.judge or file.model, ctx)
            middleware.append(loop_middleware(file.loop_until, judge, progress.report))
        tools = await self._tools(ctx.facts.on_behalf_of, guard_in(ctx))
        parts = [self._agent.instructions]
        if file.skills:
            if self._shared.skills is None:
                raise AgentError(f"Agent {file.name!r} names skills, but the gateway serves none; set `expose.skills`.")
            parts.append(self._shared.skills.instructions(file.skills))
        options = cast("ChatOptions", dict(file.options))
        if file.output is not None:
            options["response_format"] = file.output
        recorded: list[RecordModelCalls] = []
        if ctx.ports.durable is not None:
            recorded.append(RecordModelCalls(ctx, ctx.ports.durable, is_remote_agent=self._setup.remote.client is not None))
        client = self._setup.remote.client or self._shared.models.resolve(file.model, ctx)
        return Agent(
            client,
            "\n\n".join(parts),
            name=file.name,
            description=file.description,
            tools=tools,
            default_options=options,
            middleware=[*middleware, *self._setup.middleware, *recorded],
            function_invocation_configuration={
                **file.loop.to_limits(),
                "max_iterations": max(1, file.max_turns - 1),
                # The model does not see these tools; if it calls one anyway, the gate refuses the call and records it.
                "additional_tools": await self._shared.toolbox.quarantined(file.tools),
            },
            context_providers=[*providers, *own],
            compaction_strategy=to_strategy(file.compaction, client, keep_summary),
        )

    async def _tools(self, caller: Principal, guard: ToolGuard | None) -> Sequence[Tool]:
        """Return the tools that the agent file names. If the file has the key `skills`, add the skill tools.

        With `max-turns: 1` there are no tools, because the last model call is made without tools. With the file's key `narrow-to-skills`,
        tools that no skill of the file allows are left out. If `guard` is given, it wraps the skill tools that the key `skills` adds, so
        that policy checks their calls. The description of the tool `load_skill` lists the skills that the file names. If the file names no
        skills, the description lists the skills that the `caller` may read. With the file's key `runs-as: caller`, the tools that the
        caller may not use are left out.
        """
        file = self._agent.file
        patterns = [*file.tools, *(SKILL_TOOLS if file.skills else ())]
        if not patterns or file.max_turns == 1:
            return ()  # the run has only one model call, and the last model call is made without tools
        found = await self._shared.toolbox.tools(patterns)
        if file.runs_as == "caller":
            found = admitted(found, caller)
        tools = [tool.described(caller.rights, file.skills) if isinstance(tool, RenamedTool) else tool for tool in found]
        if not file.skills:
            return tools
        added = {tool.definition.name for tool in await self._shared.toolbox.tools(SKILL_TOOLS)}
        if file.narrow_to_skills and self._shared.skills is not None:
            kept = added | narrow_tools([tool.definition.name for tool in tools], self._shared.skills.allowed_tools(file.skills))
            tools = [tool for tool in tools if tool.definition.name in kept]
        if guard is None:
            return tools
        return [behind for tool in tools for behind in (guard.lent([tool]) if tool.definition.name in added else [tool])]


def model_of(agent: Agent) -> str | None:
    """Return the name of the model that the agent's chat client calls, or `None` if the client has no attribute `model`."""
    return getattr(agent.client, "model", None)


async def _reported(run: Callable[..., Any], ctx: CallContext, progress: RunProgress) -> AgentResponse:
    """Start an agent's run by calling `run`, and return the response.

    A caller that streams the run (`RunFollower`) receives each update. Any other caller that requested progress receives the text in
    progress notifications.
    """
    if not ctx.facts.wants_progress and not isinstance(ctx.ports.caller, RunFollower):
        return await run()
    return await follow_run(run(stream=True), ctx, progress.text_added)

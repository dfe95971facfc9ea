"""`BackgroundAgentsProvider`: lets an agent start runs of other agents in the background and collect their results later.

Each background task is a run of another agent with a new session. The state of the starting agent's session stores the tasks and their
results. The runs exist in this process only; if the process ends, tasks that are running become `lost`. The API is agent-framework's.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Self, cast

from gateway.agents.providers.background_state import BackgroundTaskInfo, BackgroundTaskStatus
from gateway.agents.providers.background_work import BackgroundWork
from gateway.json_types import JsonObject
from gateway.sessions.session import AgentSession, SupportsAgentRun
from gateway.sessions.session_context import ContextProvider, SessionContext
from gateway.tools.function import FunctionTool
from gateway.tools.run_state_tool import RunStateTool
from gateway.types.messages import Message

DEFAULT_BACKGROUND_AGENTS_SOURCE_ID = "background_agents"

DEFAULT_BACKGROUND_AGENTS_INSTRUCTIONS = """\
## Background agents

Other agents can work for you while you go on.
- Start a task with `background_agents_start_task`; it returns at once, and several run at the same time.
- Before you finish, wait for what is still running with `background_agents_wait_for_first_completion`, and fetch each result.
- Clear a task with `background_agents_clear_completed_task` when you have its result and will not continue it.

{background_agents}"""

MAX_RUNNING = 16
"""Maximum number of background tasks of one session that run at the same time."""

MAX_TASKS = 64
"""Maximum number of background tasks that a session stores, including completed tasks."""

MAX_SESSIONS = 1000
"""Maximum number of sessions whose background runs are stored. Beyond it, the oldest sessions without running tasks are dropped."""


class BackgroundAgentsProvider(ContextProvider):
    """Context provider that gives an agent tools to start runs of other agents in the background and to collect the results.

    Closing the provider (`async with`) cancels runs that have not ended.
    """

    def __init__(
        self,
        agents: Sequence[SupportsAgentRun],
        *,
        source_id: str = DEFAULT_BACKGROUND_AGENTS_SOURCE_ID,
        instructions: str | None = None,
    ) -> None:
        """Configure the agents that can be started. In `instructions`, `{background_agents}` is replaced by a list of the agents.

        Raises:
            ValueError: `agents` is empty, or an agent has no name or the name of another agent.
        """
        super().__init__(source_id)
        if not agents:
            raise ValueError("BackgroundAgentsProvider needs at least one agent.")
        self._agents: dict[str, SupportsAgentRun] = {}
        for agent in agents:
            name = (agent.name or "").strip()
            if not name:
                raise ValueError("Every background agent needs a name.")
            if self._agents.setdefault(name.lower(), agent) is not agent:
                raise ValueError(f"Two background agents have the name {name!r}.")
        listed = [f"- {agent.name}{f': {agent.description}' if agent.description else ''}" for agent in agents]
        text = DEFAULT_BACKGROUND_AGENTS_INSTRUCTIONS if instructions is None else instructions
        self._instructions = text.replace("{background_agents}", "\n".join(["Available background agents:", *listed]))
        self._runs: dict[str, _SessionRuns] = {}

    async def __aenter__(self) -> Self:
        """Return the provider. No run is started."""
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Cancel all background runs that have not ended."""
        for runs in self._runs.values():
            await runs.work.aclose()
        self._runs.clear()

    async def before_run(self, *, agent: SupportsAgentRun, session: AgentSession, context: SessionContext, state: JsonObject) -> None:
        """Add instructions, the background tools and a list of the session's background tasks to the run."""
        tools = _BackgroundTools(self._agents, self._runs_of(session), session, self.source_id)
        context.extend_instructions(self.source_id, [self._instructions])
        context.extend_tools(self.source_id, tools.as_tools())
        if tasks := tools.refresh():
            lines = "\n".join(["### Current background tasks", *(task.line for task in tasks)])
            context.extend_messages(self.source_id, [Message("user", [lines])])

    def _runs_of(self, session: AgentSession) -> _SessionRuns:
        if session.session_id not in self._runs:
            idle = [key for key, runs in self._runs.items() if runs.work.running == 0]
            for key in idle[: max(0, len(self._runs) - MAX_SESSIONS + 1)]:
                del self._runs[key]
            self._runs[session.session_id] = _SessionRuns()
        return self._runs[session.session_id]


class _SessionRuns:
    """The background runs that one session started, and the session of each run. Both exist in this process only."""

    def __init__(self) -> None:
        self.work = BackgroundWork()
        self.sessions: dict[int, AgentSession] = {}


class _BackgroundTools:
    """The tools with which an agent starts and follows background tasks of one session. Models receive their names and docstrings."""

    def __init__(self, agents: Mapping[str, SupportsAgentRun], runs: _SessionRuns, session: AgentSession, source_id: str) -> None:
        self._agents = agents
        self._runs = runs
        self._session = session
        self._source_id = source_id

    def as_tools(self) -> list[FunctionTool[..., Any]]:
        hints = {"readOnlyHint": True}
        functions: list[tuple[Callable[..., Any], dict[str, bool] | None]] = [
            (self.background_agents_start_task, None),
            (self.background_agents_wait_for_first_completion, hints),
            (self.background_agents_get_task_results, hints),
            (self.background_agents_get_all_tasks, hints),
            (self.background_agents_continue_task, None),
            (self.background_agents_clear_completed_task, None),
        ]
        return [RunStateTool[..., Any](function, annotations=annotations) for function, annotations in functions]

    def refresh(self) -> list[BackgroundTaskInfo]:
        """Update the status and results of the session's background tasks in the session's state, and return the tasks."""
        tasks = [BackgroundTaskInfo.from_dict(task) for task in cast("list[JsonObject]", self._state.get("tasks") or [])]
        for task in tasks:
            if not task.is_running:
                continue
            if not self._runs.work.has_run(task.id):
                task.status = BackgroundTaskStatus.LOST
                continue
            outcome = self._runs.work.outcome(task.id)
            if isinstance(outcome, str):
                task.status, task.error_text = BackgroundTaskStatus.FAILED, outcome
            elif outcome is not None:
                task.status, task.result_text = BackgroundTaskStatus.COMPLETED, outcome.text
        self._save(tasks)
        return tasks

    async def background_agents_start_task(self, agent_name: str, input: str, description: str) -> str:
        """Start a task on another agent; returns the task's number at once.

        Args:
            agent_name: Name of the agent.
            input: The task, with all information that the agent needs.
            description: The task in a few words, for the list.
        """
        agent = self._agents.get(agent_name.strip().lower())
        if agent is None:
            names = ", ".join(known.name or "" for known in self._agents.values())
            return f"Error: No background agent found with name '{agent_name}'. Available agents: {names}"
        tasks = self.refresh()
        if self._runs.work.running >= MAX_RUNNING or len(tasks) >= MAX_TASKS:
            return f"Error: {MAX_RUNNING} tasks may run and {MAX_TASKS} may be kept at once; wait for a task, and clear completed ones."
        number = int(self._state.get("next_task_id", 1))
        self._state["next_task_id"] = number + 1
        session = self._runs.sessions[number] = agent.create_session()
        self._runs.work.start(number, lambda: agent.run(input, session=session))
        self._save([*tasks, BackgroundTaskInfo(number, agent.name or agent_name, description)])
        return f"Background task {number} started on agent '{agent_name}'."

    async def background_agents_wait_for_first_completion(self, task_ids: list[int]) -> str:
        """Wait until the first of these tasks has ended; returns its number.

        Args:
            task_ids: Numbers of the tasks to wait for.
        """
        if not task_ids:
            return "Error: No task IDs provided."
        before = {task.id: task for task in self.refresh() if task.id in task_ids}
        running = [number for number, task in before.items() if task.is_running]
        if not running:
            done = next(iter(before.values()), None)
            if done is None:
                return "Error: None of the specified task IDs correspond to running tasks."
            return f"Task {done.id} is not running; current status: {done.status.value}."
        await self._runs.work.first_of(running)
        ended = next((task for task in self.refresh() if task.id in running and not task.is_running), None)
        return "Error: the tasks were cleared." if ended is None else f"Task {ended.id} finished with status: {ended.status.value}."

    async def background_agents_get_task_results(self, task_id: int) -> str:
        """Get the result of a task.

        Args:
            task_id: Number of the task.
        """
        task = self._find(task_id)
        if task is None:
            return f"Error: No task found with ID {task_id}."
        match task.status:
            case BackgroundTaskStatus.COMPLETED:
                return task.result_text or "(no output)"
            case BackgroundTaskStatus.FAILED:
                return f"Task failed: {task.error_text or 'Unknown error'}"
            case BackgroundTaskStatus.LOST:
                return "The task was lost: the process it ran in has ended. Start a new one."
            case BackgroundTaskStatus.RUNNING:
                return f"Task {task_id} is still running."

    async def background_agents_get_all_tasks(self) -> str:
        """List all tasks with number, status, agent and description."""
        tasks = self.refresh()
        return "\n".join(["Tasks:", *(task.line for task in tasks)]) if tasks else "No tasks."

    async def background_agents_continue_task(self, task_id: int, text: str) -> str:
        """Continue a task that has ended, in the same conversation.

        Args:
            task_id: Number of the task.
            text: What to do next.
        """
        task = self._find(task_id)
        if task is None:
            return f"Error: No task found with ID {task_id}."
        if task.is_running:
            return f"Error: Task {task_id} is still running. Wait for it to complete before continuing."
        agent = self._agents.get(task.agent_name.lower())
        session = self._runs.sessions.get(task_id)
        if agent is None or session is None:
            return f"Error: Task {task_id} cannot be continued: its conversation is gone. Start a new task instead."
        if self._runs.work.running >= MAX_RUNNING:
            return f"Error: {MAX_RUNNING} tasks are running; wait for one to end."
        self._runs.work.start(task_id, lambda: agent.run(text, session=session))
        tasks = self.refresh()
        for one in tasks:
            if one.id == task_id:
                one.status, one.result_text, one.error_text = BackgroundTaskStatus.RUNNING, None, None
        self._save(tasks)
        return f"Task {task_id} continued with new input."

    async def background_agents_clear_completed_task(self, task_id: int) -> str:
        """Delete a task that has ended, with its conversation.

        Args:
            task_id: Number of the task.
        """
        task = self._find(task_id)
        if task is None:
            return f"Error: No task found with ID {task_id}."
        if task.is_running:
            return f"Error: Task {task_id} is still running. Wait for it to complete before clearing."
        self._save([one for one in self.refresh() if one.id != task_id])
        self._runs.work.drop(task_id)
        self._runs.sessions.pop(task_id, None)
        return f"Task {task_id} cleared."

    def _find(self, number: int) -> BackgroundTaskInfo | None:
        return next((task for task in self.refresh() if task.id == number), None)

    @property
    def _state(self) -> JsonObject:
        return cast("JsonObject", self._session.state.setdefault(self._source_id, {}))

    def _save(self, tasks: Sequence[BackgroundTaskInfo]) -> None:
        self._state["tasks"] = [task.to_dict() for task in tasks]

"""Tasks for clients: which calls become one, and what there is to know of one. The methods about them are `task_methods`'.

A task is either one of a remote server, relayed under a sealed handle, or one that runs here (`tasks.runner`): a slow
tool promoted by policy, or a call that a server of the other dialect runs as a task. Clients cannot tell which. Ids that
are unknown, expired or somebody else's get one and the same error.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Awaitable, Callable

import anyio

from gateway.auth.principal import Principal
from gateway.catalog import Catalog
from gateway.errors import NotFound, PolicyDenied
from gateway.json_types import JsonObject
from gateway.policy.decision import Reject
from gateway.policy.scopes import RULE
from gateway.protocol import TASKS_EXTENSION
from gateway.server.handles import Handle, TaskHandles
from gateway.server.task_wire import modern_state, modern_task
from gateway.tasks.attending import Work
from gateway.tasks.rights import KEY_GONE
from gateway.tasks.runner import TaskRunner
from gateway.tasks.task import Task, TaskKind
from gateway.tasks.tools import still_running
from gateway.tools.base import Complete, TaskStarted, ToolOutcome
from gateway.tools.context import CallContext
from gateway.tools.drive import drive
from gateway.tools.guard import GuardedTool
from gateway.upstream.tasks import poll_seconds

OWN_SOURCES = ("agent", "workflow")
"""Sources whose tools say themselves whether they run as tasks; what a server says of its tools is followed for it."""

CurrentCaller = Callable[[Principal], Principal | None]
"""Return a caller with the scopes that its API key has now; `None` if the key is revoked or expired. Raises `StorageError`."""

SPACING_SECONDS = 0.5
"""Between two notifications about one task (requirements 3.C2/95)."""

ENDED = frozenset({"completed", "failed", "cancelled"})
"""The states a task stays in."""


def declares_tasks(ctx: CallContext) -> bool:
    """Whether this very request declares the modern extension."""
    extensions = ctx.client.capabilities.get("extensions")
    return isinstance(extensions, dict) and TASKS_EXTENSION in extensions and ctx.era == "modern"


class TaskHandler:
    """Serves tasks of one server."""

    def __init__(self, catalog: Catalog, key: bytes) -> None:
        """`key` (32 bytes) seals the handles of relayed tasks. `run_with` follows."""
        self._catalog = catalog
        self._given: TaskRunner | None = None
        self._handles = TaskHandles(key)

    def run_with(self, runner: TaskRunner) -> None:
        """Hand over what runs tasks here."""
        self._given = runner

    @property
    def runner(self) -> TaskRunner:
        """What runs tasks here. Raises `NotFound` where nothing does."""
        if self._given is None:
            raise NotFound("task", "")
        return self._given

    async def call(self, tool: str, arguments: JsonObject, ctx: CallContext) -> Complete | TaskStarted:
        """The call inside a task.

        Raises:
            NotFound: The tool is not there (`kind` is `tool`).
        """
        return await drive(await self._catalog.seek(tool), arguments, ctx)

    async def caller_now(self, current: CurrentCaller, tool: str, principal: Principal) -> Principal:
        """Judge the caller of a task by what its API key is now (`tasks.rights.CallerNow`)."""
        now = current(principal)
        if now is None:
            raise PolicyDenied(KEY_GONE, rule=RULE, subject=tool)
        if now.scopes is not None and now.scopes != principal.scopes:
            verdict = (await self._catalog.seek(tool)).admit(now)
            if isinstance(verdict, Reject):
                raise PolicyDenied(verdict.reason, rule=verdict.rule, subject=tool)
        return now

    # -- starting ----------------------------------------------------------------------------------------------

    def starts_here(self, tool: GuardedTool, arguments: JsonObject, ctx: CallContext) -> bool:
        """Whether a call becomes a task of this gateway. A call that policy refuses does not: its refusal is the answer."""
        runs_here = self._given is not None and tool.definition.task_by == "gateway"
        return runs_here and ctx.takes_tasks and not isinstance(tool.check(arguments, ctx.principal), Reject)

    def may_take_long(self, tool: GuardedTool, arguments: JsonObject, ctx: CallContext) -> bool:
        """Whether a call of a client that has no tasks may go on as one when its client has waited long enough."""
        if self._given is None or self._given.settings.inline_seconds is None or tool.definition.task_by == "nobody":
            return False
        return not isinstance(tool.check(arguments, ctx.principal), Reject)

    async def attend(self, tool: GuardedTool, arguments: JsonObject, ctx: CallContext, work: Work) -> ToolOutcome:
        """Make a call whose client waits for it: what `work` gives, or a handle when it takes too long (`TaskRunner.attend`).

        A source whose `timeoutSeconds` is within the wait keeps to it: its calls never become tasks this way.
        """
        seconds = self.runner.settings.inline_seconds
        inner = dataclasses.replace(ctx, in_task=seconds is not None and tool.timeout_seconds > seconds)
        outcome = await self.runner.attend(tool.exposed_name, arguments, inner, work, kind=_kind(tool))
        return self.handle(outcome, tool) if isinstance(outcome, Task) else outcome

    def handle(self, task: Task, tool: GuardedTool) -> Complete:
        """What a client that has no tasks gets for one."""
        return still_running(task, has_output_schema=tool.definition.output_schema is not None)

    def must_run_here(self, tool: GuardedTool) -> bool:
        """Whether an agent or workflow of ours says that it only runs as a task."""
        return self._given is not None and tool.definition.task == "required" and tool.source in OWN_SOURCES

    async def start(self, tool: GuardedTool, arguments: JsonObject, ctx: CallContext, ttl_seconds: float | None = None) -> Task:
        """Run a call as a task of this gateway.

        Raises:
            TaskError: The caller has too many.
        """
        return await self.runner.start(tool.exposed_name, arguments, ctx, ttl_seconds=ttl_seconds, kind=_kind(tool))

    def started(self, task: Task) -> TaskStarted:
        """The create answer of a task that runs here."""
        return TaskStarted(modern_task(task))

    def relayed(self, tool: GuardedTool, outcome: TaskStarted, ctx: CallContext) -> TaskStarted:
        """The create answer of a server's task, under a handle of ours."""
        handle = Handle(tool.exposed_name, tool.source, str(outcome.task["taskId"]))
        return TaskStarted({**outcome.task, "taskId": self._handles.seal(handle, ctx.principal.id)})

    # -- following them ----------------------------------------------------------------------------------------

    async def follow(self, task_id: str, facts: CallContext, tell: Callable[[JsonObject], Awaitable[None]]) -> None:
        """Give `tell` the task's state in the words of the extension, now and after each change, until it is over.

        At most every `SPACING_SECONDS`; a change in between is told with the next.

        Raises:
            NotFound: Unknown, expired, or somebody else's.
        """
        said: JsonObject = {}
        while True:
            if "." in task_id:
                state = {**await self._state_of_relayed(task_id, facts), "taskId": task_id}
                changed = poll_seconds(state)
            else:
                task = await self.runner.find(task_id, facts.principal.id)
                state, changed = modern_state(task), 0.0
                if state == said and not task.is_over:
                    await self.runner.moved(task)
            spacing = 0.0
            if state != said:
                said, spacing = state, SPACING_SECONDS
                await tell(dict(state))
            if state.get("status") in ENDED:
                return
            await anyio.sleep(max(changed, spacing))

    async def knows(self, task_id: str, facts: CallContext) -> bool:
        """Whether the caller has such a task, as far as can be told without asking its server."""
        try:
            await (self.open(task_id, facts) if "." in task_id else self.runner.find(task_id, facts.principal.id))
        except NotFound:
            return False
        return True

    async def _state_of_relayed(self, task_id: str, facts: CallContext) -> JsonObject:
        handle, tool = await self.open(task_id, facts)
        plain = dataclasses.replace(facts, input_responses=None, request_state=None)
        return await tool.task("tasks/get", {"taskId": handle.task_id}, plain)

    async def open(self, task_id: str, facts: CallContext) -> tuple[Handle, GuardedTool]:
        """The server's own id behind a handle, and the tool to ask about it. Raises `NotFound`."""
        handle = self._handles.open(task_id, facts.principal.id)
        tool = await self._catalog.seek(handle.tool)
        if tool.source != handle.source:
            raise NotFound("task", "")
        return handle, tool


def _kind(tool: GuardedTool) -> TaskKind:
    return TaskKind(tool.task_limits, tool.resumes)

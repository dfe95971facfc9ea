"""`TaskRunner`: calls that go on behind their request, for clients that ask about them later.

Kept in memory: a record lives as long as this process, and says so nowhere else than here; the durable engine replaces
this class behind the same methods. Knows no wire and no tool: it is given the work, and keeps status, asks and outcome.
"""

from __future__ import annotations

import dataclasses
import logging
import secrets
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Literal

import anyio
import anyio.abc

from gateway.errors import GatewayError, NotFound, TaskError, UpstreamRefused
from gateway.json_types import JsonObject, JsonValue
from gateway.tasks.asks import OpenAsks
from gateway.tools.base import Complete, TaskStarted
from gateway.tools.context import CallContext, ClientProfile, LogLevel

logger = logging.getLogger(__name__)

DEFAULT_TTL_SECONDS = 3600.0
"""How long a finished task is readable where nobody says otherwise."""

MAX_TTL_SECONDS = 24 * 3600.0
"""Longest time a client may have a finished task kept."""

MAX_TASKS_PER_PRINCIPAL = 64
"""Tasks of one principal that may be unfinished at once."""

MAX_KEPT_PER_PRINCIPAL = 256
"""Finished tasks of one principal that are kept; the oldest give way."""

MESSAGE_SECONDS = 0.5
"""A task's status message changes at most this often (requirements 3.C2/95)."""

Status = Literal["working", "input_required", "completed", "failed", "cancelled"]

Work = Callable[[CallContext], Awaitable[Complete | TaskStarted]]


@dataclass(slots=True, eq=False)
class Task:
    """One call in the background. Read it; only the runner changes it."""

    id: str
    principal: str
    tool: str
    ttl_seconds: float
    client: ClientProfile
    """Who started it, and what it can be asked."""
    created: datetime = field(default_factory=lambda: datetime.now(UTC))
    updated: datetime = field(default_factory=lambda: datetime.now(UTC))
    status: Status = "working"
    message: str = ""
    result: JsonObject | None = None
    error: JsonObject | None = None
    """A JSON-RPC error (`code`, `message`), where there is no result."""
    moved: anyio.Event = field(default_factory=anyio.Event)
    """Set, and replaced, at every change."""
    scope: anyio.CancelScope = field(default_factory=anyio.CancelScope)
    gone_at: float = float("inf")
    questions: OpenAsks = field(init=False)

    def __post_init__(self) -> None:
        self.questions = OpenAsks(self.client, self._asked)

    def _asked(self) -> None:
        self.status = "input_required"
        self.touch()

    @property
    def asks(self) -> Mapping[str, JsonObject]:
        """Open asks by key; none once it is over."""
        return {} if self.is_over else self.questions.open

    @property
    def is_over(self) -> bool:
        """Whether it will not change any more."""
        return self.status in ("completed", "failed", "cancelled")

    def touch(self) -> None:
        """Note a change and wake whoever waits for one."""
        self.updated = datetime.now(UTC)
        moved, self.moved = self.moved, anyio.Event()
        moved.set()


class TaskRunner:
    """Runs and keeps tasks. `group` outlives the requests; the work dies with it."""

    def __init__(self, group: anyio.abc.TaskGroup) -> None:
        self._group = group
        self._tasks: dict[str, Task] = {}

    def start(self, work: Work, ctx: CallContext, *, tool: str, ttl_seconds: float | None = None) -> Task:
        """Run `work` in the background; the record can be read before this returns.

        Raises:
            TaskError: The principal has too many unfinished tasks.
        """
        self._sweep()
        own = [task for task in self._tasks.values() if task.principal == ctx.principal.id]
        if sum(not task.is_over for task in own) >= MAX_TASKS_PER_PRINCIPAL:
            raise TaskError(f"There are already {MAX_TASKS_PER_PRINCIPAL} unfinished tasks; wait for one to end, or cancel one.")
        finished = sorted((task for task in own if task.is_over), key=lambda task: task.gone_at)
        for task in finished[: max(0, len(finished) - MAX_KEPT_PER_PRINCIPAL + 1)]:
            del self._tasks[task.id]
        ttl = min(ttl_seconds or DEFAULT_TTL_SECONDS, MAX_TTL_SECONDS)
        task = Task(secrets.token_urlsafe(24), ctx.principal.id, tool, ttl, ctx.client)
        self._tasks[task.id] = task
        caller = _TaskCaller(task)
        inner = dataclasses.replace(ctx, caller=caller, wants_progress=True, takes_tasks=False, in_task=True, log_level=None)
        self._group.start_soon(self._run, task, work, inner)
        return task

    async def _run(self, task: Task, work: Work, ctx: CallContext) -> None:
        """The task-runner boundary: whatever happens becomes the task's end."""
        try:
            with task.scope:
                try:
                    outcome = await work(ctx)
                    if isinstance(outcome, Complete):
                        task.result = outcome.result
                        task.status = "completed"
                    else:
                        task.error, task.status = _error(-32603, "The call became a task of another server."), "failed"
                except UpstreamRefused as error:
                    task.error, task.status = _error(error.code, str(error)), "failed"
                except GatewayError as error:
                    task.error, task.status = _error(-32603, str(error)), "failed"
                except Exception:  # the task-runner boundary
                    logger.exception("task of %s failed", task.tool)
                    task.error, task.status = _error(-32603, "Internal error"), "failed"
        finally:
            if not task.is_over:
                task.status = "cancelled"
            task.gone_at = anyio.current_time() + task.ttl_seconds
            task.touch()

    def find(self, task_id: str, principal: str) -> Task:
        """A task of `principal`.

        Raises:
            NotFound: Unknown, expired, or somebody else's: the three are never told apart.
        """
        self._sweep()
        task = self._tasks.get(task_id)
        if task is None or task.principal != principal:
            raise NotFound("task", "")
        return task

    def all_of(self, principal: str) -> list[Task]:
        """The tasks of `principal`, oldest first."""
        self._sweep()
        return [task for task in self._tasks.values() if task.principal == principal]

    def answer(self, task: Task, responses: Mapping[str, JsonValue]) -> None:
        """Hand over answers to open asks; other keys are ignored."""
        task.questions.answer(responses)
        if not task.asks and task.status == "input_required":
            task.status = "working"
        task.touch()

    async def cancel(self, task: Task) -> None:
        """Stop a task and wait until it stopped; one that is over stays as it is."""
        if not task.is_over:
            task.scope.cancel()
        while not task.is_over:
            await task.moved.wait()

    def _sweep(self) -> None:
        now = anyio.current_time()
        for task in [task for task in self._tasks.values() if task.gone_at <= now]:
            del self._tasks[task.id]


class _TaskCaller:
    """The caller of a call in the background: progress becomes the status message, an ask waits for its answer."""

    def __init__(self, task: Task) -> None:
        self._task = task
        self._told_at = float("-inf")

    async def progress(self, progress: float, total: float | None, message: str | None) -> None:
        """Text becomes the status message, at most twice a second."""
        now = anyio.current_time()
        if message and message != self._task.message and now - self._told_at >= MESSAGE_SECONDS:
            self._told_at = now
            self._task.message = message
            self._task.touch()

    async def log(self, level: LogLevel, data: JsonValue, logger: str | None) -> None:
        """Dropped: a task has no channel for logs."""

    async def ask(self, request: JsonObject) -> JsonObject:
        """Show the request with the task until it is answered."""
        return await self._task.questions.ask(request)


def _error(code: int, message: str) -> JsonObject:
    return {"code": code, "message": message}

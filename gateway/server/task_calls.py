"""`TaskHandler`: decides which calls become tasks, and finds tasks for clients. Used by `calls` and by `sdk_path.task_methods`.

A task runs at a remote server or in this gateway. If a 2026 client calls a 2026 server and the call becomes a task there, the task gets an
encrypted handle as its id, and requests for it are relayed to the server. All other tasks run in this gateway (`tasks.runner`): tasks of
agents and workflows, tasks of slow tools that policy promotes to tasks, and all tasks whose client or server uses protocol 2025-11-25.
Clients cannot distinguish the two kinds. Ids that are unknown, expired, or belong to another principal cause the same error.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Awaitable, Callable

import anyio

from gateway.auth.principal import Principal
from gateway.catalog import Catalog
from gateway.errors import NotFound, PolicyDenied, TaskError
from gateway.gate.pipeline import audit_refusal
from gateway.gate.tools import GuardedTool
from gateway.json_types import JsonObject
from gateway.policy.caller_rights import ACCESS_RULE, is_hidden
from gateway.policy.decision import Reject
from gateway.policy.scopes import RULE
from gateway.protocol import INTERNAL_ERROR, MISSING_REQUIRED_CLIENT_CAPABILITY, TASKS_EXTENSION, RpcError
from gateway.server.task_handles import Handle, TaskHandles
from gateway.server.task_wire import modern_state, modern_task
from gateway.server.visible_tools import seek_visible
from gateway.tasks.inline_call import Work
from gateway.tasks.rights import KEY_GONE
from gateway.tasks.runner import TaskRunner
from gateway.tasks.stored_call import from_stored
from gateway.tasks.task import Task, TaskKind
from gateway.tasks.task_tools import still_running
from gateway.tools.base import Complete, TaskStarted, ToolOutcome
from gateway.tools.context import CallContext
from gateway.tools.drive import drive
from gateway.tools.ports import ClientProfile
from gateway.upstream.task_follower import poll_seconds

OWN_SOURCES = ("agent", "workflow")
"""Names of the sources (agents and workflows) whose tools may require that clients call them as tasks.

For tools of remote servers, the gateway decides whether a call runs as a task.
"""

CurrentCaller = Callable[[Principal], Principal | None]
"""A function that returns a caller with the current scopes of its API key, or `None` if the key is revoked or has expired.

It raises `StorageError` if the keys cannot be read.
"""

SPACING_SECONDS = 0.5
"""Minimum seconds between two notifications to a client about the same task."""

ENDED = frozenset({"completed", "failed", "cancelled"})
"""The `status` values of a task that has ended."""


def declares_tasks(client: ClientProfile) -> bool:
    """Whether a 2026 client declared the tasks extension in its request. False for 2025 clients."""
    extensions = client.capabilities.get("extensions")
    return isinstance(extensions, dict) and TASKS_EXTENSION in extensions and client.era == "modern"


def lacks_tasks(text: str) -> RpcError:
    """Return the error for a request that needs the tasks extension, although its 2026 client did not declare the extension."""
    return RpcError(MISSING_REQUIRED_CLIENT_CAPABILITY, text, {"requiredCapabilities": {"extensions": {TASKS_EXTENSION: {}}}})


ROLES_CHANGED = "The roles of this task's caller no longer allow its tool, so the task was ended."


class TaskHandler:
    """Decides which calls become tasks, starts the tasks of this gateway, and finds tasks for clients, also tasks of remote servers."""

    def __init__(self, catalog: Catalog, key: bytes, current: CurrentCaller | None = None) -> None:
        """`key` (32 bytes) encrypts the handles under which clients see the tasks of remote servers.

        `current` returns the current rights of a caller. It is used for callers of running tasks and for subscribers to tasks. `None`:
        rights never change.
        """
        self._catalog = catalog
        self._given: TaskRunner | None = None
        self._current: CurrentCaller = current or (lambda principal: principal)
        self._handles = TaskHandles(key)

    def run_with(self, runner: TaskRunner) -> None:
        """Use `runner` to run calls as tasks of this gateway. A gateway without a runner only relays tasks of remote servers."""
        self._given = runner

    @property
    def runner(self) -> TaskRunner:
        """The object that runs and stores this gateway's tasks. Raises `NotFound` if this gateway runs no tasks."""
        if self._given is None:
            raise NotFound("task", "")
        return self._given

    async def call(self, tool: str, arguments: JsonObject, ctx: CallContext) -> Complete | TaskStarted:
        """Run the tool call of a task until it is finished, and return its outcome. Requests for input go to the caller in `ctx`.

        Raises:
            NotFound: The tool does not exist (`kind` is `tool`).
        """
        return await drive(await self._catalog.seek(tool), arguments, ctx)

    async def caller_now(self, tool: str, principal: Principal) -> Principal:
        """Return the caller of a task with its current rights, to continue the task's call of `tool`.

        Raises:
            PolicyDenied: The caller's API key is no longer valid, or no longer allows the tool.
        """
        now = self._current(principal)
        if now is None:
            raise PolicyDenied(KEY_GONE, rule=RULE, subject=tool)
        await self._admit(tool, principal, now)
        return now

    async def _admit(self, tool: str, before: Principal, now: Principal) -> None:
        """Check that a caller may still use a tool.

        `before` is the caller at the start of its task, and `now` is the caller with its current rights. If the rights have changed and no
        longer include the tool, record the refusal in the audit log and raise `PolicyDenied`. Roles are always judged.
        """
        if now.rights is None or (before.rights is not None and before.rights.key == now.rights.key):
            return
        served = await self._catalog.seek(tool)
        if isinstance(verdict := served.admit(now), Reject):
            await audit_refusal(served.gate, tool, now, verdict.rule)
            reason = ROLES_CHANGED if is_hidden(verdict) else verdict.reason
            raise PolicyDenied(reason, rule=verdict.rule, subject=tool)

    # -- starting ----------------------------------------------------------------------------------------------

    def starts_here(self, tool: GuardedTool, arguments: JsonObject, ctx: CallContext) -> bool:
        """Whether a call of a 2026 client that supports tasks becomes a task of this gateway. False if policy refuses the call."""
        runs_here = self._given is not None and tool.definition.task_by == "gateway"
        return runs_here and ctx.facts.takes_tasks and not isinstance(tool.check(arguments, ctx.facts.principal), Reject)

    def may_take_long(self, tool: GuardedTool, arguments: JsonObject, ctx: CallContext) -> bool:
        """Whether a call may continue as a task of this gateway if it is slow, although its client does not support tasks."""
        if self._given is None or self._given.settings.inline_seconds is None or tool.definition.task_by == "nobody":
            return False
        return not isinstance(tool.check(arguments, ctx.facts.principal), Reject)

    async def attend(self, tool: GuardedTool, arguments: JsonObject, ctx: CallContext, work: Work) -> ToolOutcome:
        """Run a call whose client does not support tasks, and return its outcome. `work` runs the tool.

        If the call takes longer than `tasks.inlineSeconds`, it continues as a task. The outcome is then a result that tells the client how
        to follow the task. If the source's `timeoutSeconds` is shorter, the call ends at that timeout, and never becomes a task.
        """
        seconds = self.runner.settings.inline_seconds
        inner = ctx.with_facts(dataclasses.replace(ctx.facts, in_task=seconds is not None and tool.rules.timeout_seconds > seconds))
        outcome = await self.runner.run_inline(tool.exposed_name, arguments, inner, work, kind=_kind(tool))
        return self.handle(outcome, tool) if isinstance(outcome, Task) else outcome

    def handle(self, task: Task, tool: GuardedTool) -> Complete:
        """Return the tool result that tells a client without support for tasks how to follow its task."""
        return still_running(task, has_output_schema=tool.definition.output_schema is not None)

    def must_run_here(self, tool: GuardedTool) -> bool:
        """Whether `tool` is an agent or workflow of this gateway that can only be called as a task."""
        return self._given is not None and tool.definition.task == "required" and tool.source in OWN_SOURCES

    async def start(self, tool: GuardedTool, arguments: JsonObject, ctx: CallContext, ttl_seconds: float | None = None) -> Task:
        """Start a call as a task of this gateway, and return the task.

        The task is stored for `ttl_seconds`, by default for `tasks.ttlSeconds`.

        Raises:
            RpcError: The caller has too many tasks. Clients of both protocol eras get this error.
        """
        try:
            return await self.runner.start(tool.exposed_name, arguments, ctx, ttl_seconds=ttl_seconds, kind=_kind(tool))
        except TaskError as error:
            raise RpcError(INTERNAL_ERROR, str(error)) from None

    def started(self, task: Task) -> TaskStarted:
        """Return the outcome of a 2026 client's call that became `task`, a task of this gateway."""
        return TaskStarted(modern_task(task))

    def relayed(self, tool: GuardedTool, outcome: TaskStarted, ctx: CallContext) -> TaskStarted:
        """Return the outcome of a call that became a task of a remote server, with an encrypted handle in place of the server's task id."""
        handle = Handle(tool.exposed_name, tool.source, str(outcome.task["taskId"]))
        return TaskStarted({**outcome.task, "taskId": self._handles.seal(handle, ctx.facts.principal.id)})

    # -- following them ----------------------------------------------------------------------------------------

    async def find(self, task_id: str, principal: Principal) -> Task:
        """Return the task of this gateway with the id `task_id`, for a request of the caller `principal`.

        Raises:
            NotFound: The id is unknown, expired, or belongs to another principal.
            PolicyDenied: The scopes of the caller's key no longer include the tool of the task.
        """
        task = await self.runner.find(task_id, principal.id)
        try:
            await self._admit(task.tool, from_stored(task.row).facts.principal, principal)
        except PolicyDenied as error:
            if error.rule == ACCESS_RULE:
                raise NotFound("task", task_id) from None
            raise
        return task

    async def is_visible(self, task: Task, principal: Principal) -> bool:
        """Return whether a list of the caller's tasks contains `task`: its tool must not be hidden from the caller."""
        if principal.rights is None:
            return True
        try:
            await self._admit(task.tool, from_stored(task.row).facts.principal, principal)
        except NotFound:
            return False
        except PolicyDenied as error:
            return error.rule != ACCESS_RULE
        return True

    async def follow(self, task_id: str, call: CallContext, notify: Callable[[JsonObject], Awaitable[None]]) -> None:
        """Report the state of a task to `notify`, now and after each change, until the task ends.

        The state is a `DetailedTask` of the 2026 tasks extension. `notify` is called at most once per `SPACING_SECONDS`; changes in between
        are combined.

        Raises:
            NotFound: The id is unknown, expired, or belongs to another principal.
            PolicyDenied: The caller's key is no longer valid, or no longer allows the tool of the task.
            ToolFailed, Rejected: A remote server did not report the state of its task.
        """
        last: JsonObject = {}
        while True:
            now = self._current(call.facts.principal)
            if now is None:
                raise PolicyDenied(KEY_GONE, rule=RULE, subject=task_id)
            call = call.with_facts(dataclasses.replace(call.facts, principal=now))
            if "." in task_id:
                state = {**await self._state_of_relayed(task_id, call), "taskId": task_id}
                changed = poll_seconds(state)
            else:
                task = await self.find(task_id, call.facts.principal)
                state, changed = modern_state(task), 0.0
                if state == last and not task.is_over:
                    await self.runner.wait_for_change(task)
            spacing = 0.0
            if state != last:
                last, spacing = state, SPACING_SECONDS
                await notify(dict(state))
            if state.get("status") in ENDED:
                return
            await anyio.sleep(max(changed, spacing))

    async def can_follow(self, task_id: str, call: CallContext) -> bool:
        """Whether a task with this id exists and the caller in `call` may follow the task.

        For a handle of a remote server's task, the server is not asked whether the task still exists.
        """
        try:
            await (self.open(task_id, call) if "." in task_id else self.find(task_id, call.facts.principal))
        except (NotFound, PolicyDenied):
            return False
        return True

    async def _state_of_relayed(self, task_id: str, call: CallContext) -> JsonObject:
        handle, tool = await self.open(task_id, call)
        plain = call.with_answers(None, None)
        return await tool.task("tasks/get", {"taskId": handle.task_id}, plain)

    async def open(self, task_id: str, call: CallContext) -> tuple[Handle, GuardedTool]:
        """Decrypt the handle `task_id` of a remote server's task. Return its content, and the tool whose server has the task.

        Raises `NotFound` if the handle is not valid for the caller in `call`, or its source no longer has the tool.
        """
        handle = self._handles.open(task_id, call.facts.principal.id)
        tool = await seek_visible(self._catalog, handle.tool, call.facts.principal)
        if tool.source != handle.source:
            raise NotFound("task", "")
        return handle, tool


def _kind(tool: GuardedTool) -> TaskKind:
    return TaskKind(tool.task_limits, tool.rules.resumes, tool.rules.task_queue)

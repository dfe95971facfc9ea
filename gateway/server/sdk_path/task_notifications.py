"""Notifies clients of the state of their tasks: `notifications/tasks` on listen streams (SEP-2663), `notifications/tasks/status` in 2025.

A listen stream is notified of the tasks that it names, and a 2025 session of the tasks that it started, at most twice a second per task. A
client that missed a notification calls `tasks/get`. `server.task_calls` watches the tasks.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator, Callable, Coroutine
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any, cast

import anyio
import anyio.abc
from mcp_types import SubscriptionFilter, SubscriptionsAcknowledgedNotification, SubscriptionsListenRequestParams
from pydantic import BaseModel

from gateway.errors import GatewayError, NotFound, only_cause
from gateway.json_types import JsonObject
from gateway.protocol import INVALID_PARAMS, SUBSCRIPTION_ID_META_KEY, RpcError
from gateway.server.clients import Clients, LegacySession, RequestContext
from gateway.server.sdk_path.task_methods import TaskMethods
from gateway.server.sdk_path.wire_caller import WireCaller
from gateway.server.task_calls import ENDED, SPACING_SECONDS, TaskHandler, declares_tasks, lacks_tasks
from gateway.server.task_wire import legacy_task
from gateway.tasks.runner import TaskRunner
from gateway.tasks.task import Task

logger = logging.getLogger(__name__)

MAX_LISTENED = 256
"""Maximum number of tasks of whose state one listen stream is notified."""

SEND_SECONDS = 5.0
"""Timeout in seconds for sending a task notification. After a timeout, the stream or session gets no further notifications of that task."""


class _Notification(BaseModel):
    """A JSON-RPC notification with any method and parameters, for methods of which the MCP SDK has no model."""

    method: str
    params: dict[str, Any]


class _AckSession:
    """Wraps the MCP SDK's session object during a listen request, to change one notification: the acknowledgement of the subscription.

    It adds the ids of the tasks that the stream follows to the acknowledgement.
    """

    def __init__(self, session: Any, task_ids: list[str]) -> None:
        self._session = session
        self._task_ids = task_ids
        self.acknowledged = anyio.Event()

    async def send_notification(self, notification: Any, related_request_id: Any = None) -> None:
        """Send a notification through the SDK's session, then set `acknowledged`.

        To the acknowledgement of the subscription, first add the ids of the tasks that the stream follows (`taskIds`).
        """
        if isinstance(notification, SubscriptionsAcknowledgedNotification):
            honored = notification.params.notifications.model_dump(by_alias=True, exclude_none=True)
            named = SubscriptionFilter.model_validate({**honored, "taskIds": self._task_ids})
            params = notification.params.model_copy(update={"notifications": named})
            notification = notification.model_copy(update={"params": params})
        await self._session.send_notification(notification, related_request_id=related_request_id)
        self.acknowledged.set()


class TaskNotifications:
    """Notifies clients of the state of their tasks, on the listen streams of 2026 clients and in 2025 sessions.

    Notifications to 2025 sessions are sent in the task group `group`, which must outlive the requests. `runner` runs the gateway's tasks.
    """

    def __init__(
        self, handler: TaskHandler, methods: TaskMethods, clients: Clients, group: anyio.abc.TaskGroup, runner: TaskRunner | None
    ) -> None:
        self._handler = handler
        self._clients = clients
        self._group = group
        self._runner = runner
        methods.on_legacy = self._started

    # -- 2026: a listen stream ---------------------------------------------------------------------------------

    @asynccontextmanager
    async def on_stream(self, ctx: RequestContext, params: SubscriptionsListenRequestParams) -> AsyncGenerator[RequestContext]:
        """Send the states of tasks on the stream of a listen request that names them, while this context is entered.

        Yield a request context, with which the listen request must be served: its session adds the task ids to the acknowledgement.

        Raises:
            RpcError: The request names tasks without declaring the tasks extension, names too many, or has malformed `taskIds`.
        """
        wanted = (params.notifications.model_extra or {}).get("taskIds")
        if wanted is None:
            yield ctx
            return
        call = self._clients.context(ctx, WireCaller(ctx))
        if not declares_tasks(call.facts.client):
            raise lacks_tasks("`taskIds` need the tasks extension to be declared.")
        if not isinstance(wanted, list) or not all(isinstance(task_id, str) for task_id in cast("list[object]", wanted)):
            raise RpcError(INVALID_PARAMS, "`taskIds` must be a list of ids.")
        named = list(dict.fromkeys(cast("list[str]", wanted)))
        if len(named) > MAX_LISTENED:
            raise RpcError(INVALID_PARAMS, f"One stream may follow at most {MAX_LISTENED} tasks.")
        accepted = [task_id for task_id in named if await self._handler.can_follow(task_id, call)]
        session = _AckSession(ctx.session, accepted)

        def follower(task_id: str) -> Callable[[], Coroutine[Any, Any, None]]:
            async def notify(state: JsonObject) -> None:
                meta = {SUBSCRIPTION_ID_META_KEY: ctx.request_id}
                notification = _Notification(method="notifications/tasks", params={**state, "_meta": meta})
                with anyio.fail_after(SEND_SECONDS):
                    await ctx.session.send_notification(cast("Any", notification), related_request_id=ctx.request_id)

            async def follow() -> None:
                await session.acknowledged.wait()
                try:
                    await self._handler.follow(task_id, call, notify)
                except (GatewayError, TimeoutError) as error:
                    logger.debug("task notifications stopped error=%s", error)

            return follow

        try:
            async with anyio.create_task_group() as group:
                for task_id in accepted:
                    group.start_soon(follower(task_id))
                yield replace(ctx, session=cast("Any", session))
                group.cancel_scope.cancel()
        except ExceptionGroup as raised:
            raise only_cause(raised) from None

    # -- 2025: a session ---------------------------------------------------------------------------------------

    def _started(self, ctx: RequestContext, task: Task) -> None:
        if self._runner is not None:
            self._group.start_soon(self._notify_session, self._clients.session_of(ctx), task, self._runner)

    async def _notify_session(self, session: LegacySession, task: Task, runner: TaskRunner) -> None:
        """Notify the 2025 session that started a task of changes of the task's status or message, until the task or the session ends.

        A change less than `SPACING_SECONDS` after a notification is reported with the next change.
        """
        said = legacy_task(task)
        try:
            while said["status"] not in ENDED and session in self._clients.all():
                task = await runner.find((await runner.wait_for_change(task)).id, task.principal)
                state = legacy_task(task)
                if (state["status"], state.get("statusMessage")) != (said["status"], said.get("statusMessage")):
                    said = state
                    with anyio.fail_after(SEND_SECONDS):
                        await session.channel.notify("notifications/tasks/status", state)
                    await anyio.sleep(SPACING_SECONDS)
        except (NotFound, TimeoutError, anyio.BrokenResourceError, anyio.ClosedResourceError) as error:
            logger.debug("task notifications of a session stopped error=%s", error)
        except GatewayError as error:
            logger.warning("task notifications of a session failed error=%s", error)

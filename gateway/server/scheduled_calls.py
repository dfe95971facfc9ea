"""`ScheduledCalls`: starts the calls of `tasks.schedules` as tasks, with the rights of the API keys that the schedules name."""

from __future__ import annotations

import logging
from collections.abc import Mapping

from gateway import __version__
from gateway.auth.known_callers import Callers
from gateway.auth.principal import LOCAL, Principal
from gateway.catalog import Catalog
from gateway.config.schedule_settings import ScheduledCall
from gateway.errors import NotFound, StorageError
from gateway.gate.pipeline import audit_refusal
from gateway.policy.decision import Reject
from gateway.policy.metadata import IDEMPOTENCY_KEY
from gateway.protocol import RpcError
from gateway.server.task_calls import TaskHandler
from gateway.tasks.scheduled_start import LATEST_START_SECONDS, ScheduleRefused, UnknownSchedule
from gateway.tools.call_facts import CallFacts
from gateway.tools.context import CallContext
from gateway.tools.ports import ClientProfile

logger = logging.getLogger(__name__)

CLIENT = ClientProfile(name="moongate-schedule", version=__version__, capabilities={"elicitation": {"form": {}, "url": {}}})
"""The client of scheduled calls. A question of such a call is answered like the question of every other task."""

KEPT_SECONDS = LATEST_START_SECONDS + 600
"""Minimum seconds for which the task of a scheduled call stays stored after its end, so that a repeated start finds it and starts none."""


class ScheduledCalls:
    """Starts the calls of schedules. A call passes the same policies as a call of the key's owner, who also owns the task."""

    def __init__(self, schedules: Mapping[str, ScheduledCall], callers: Callers, catalog: Catalog, tasks: TaskHandler) -> None:
        """Store the arguments. `schedules` are those of the configuration, by name, and `tasks` starts the calls as tasks."""
        self._schedules = schedules
        self._callers = callers
        self._catalog = catalog
        self._tasks = tasks

    async def start(self, schedule: str, run: str) -> str:
        """Store and start the task of a schedule's call, and return its id. `run` is the id of this run of the schedule.

        With the same `run`, it returns the same task. Implements `StartScheduled`, and raises the errors that it names.
        """
        scheduled = self._schedules.get(schedule)
        if scheduled is None or not scheduled.enabled:
            raise UnknownSchedule(f"Unknown schedule {schedule!r}.")
        principal = caller_of(schedule, scheduled, self._callers)
        tool = await self._catalog.seek(scheduled.tool)
        arguments = dict(scheduled.arguments)
        if isinstance(verdict := tool.check(arguments, principal), Reject):
            await audit_refusal(tool.gate, scheduled.tool, principal, verdict.rule)
            raise ScheduleRefused(f"{verdict.rule}: {verdict.reason}", reason="A policy refuses the call; see the log of the gateway.")
        ctx = CallContext(CallFacts(principal=principal, client=CLIENT, meta={IDEMPOTENCY_KEY: f"schedule:{run}"}))
        ttl_seconds = max(self._tasks.runner.settings.ttl_seconds, KEPT_SECONDS)
        try:
            return (await self._tasks.start(tool, arguments, ctx, ttl_seconds)).id
        except RpcError as error:
            raise ScheduleRefused(str(error), reason="The gateway does not take the task; see its log.") from None


def caller_of(schedule: str, scheduled: ScheduledCall, callers: Callers) -> Principal:
    """Return the principal of a schedule's calls: the newest valid key with the configured name or id, or the local user.

    Raises:
        ScheduleRefused: The key does not exist or is not valid, or the schedule names no key although the gateway has keys.
        StorageError: The keys cannot be read.
    """
    place = f"tasks.schedules.{schedule}.key"
    if scheduled.key is None:
        if callers.keys.are_required():
            callers.keys.list()  # raises the error of keys that cannot be read
            text = f"the gateway has API keys, and the schedule names none. Set {place} to the name of a key"
            raise ScheduleRefused(text, reason="The schedule names no API key; see the log of the gateway.")
        return LOCAL
    named = [key.principal for key in callers.keys.list() if scheduled.key in (key.name, key.id)]
    valid = [current for principal in named if (current := callers.current(principal)) is not None]
    if not valid:
        problem = "has expired" if named else "does not exist or was revoked"
        text = f"the API key {scheduled.key!r} {problem}. Create one with `moongate keys add`, or correct {place}"
        raise ScheduleRefused(text, reason="The API key of the schedule is not valid; see the log of the gateway.")
    return valid[-1]


def problem_of(schedule: str, scheduled: ScheduledCall, callers: Callers, catalog: Catalog | None) -> str:
    """Return why the call of a schedule would be refused now, with the fix; empty if it would not. Without `catalog`, judge only the key.

    Raises:
        StorageError: The keys cannot be read.
    """
    try:
        principal = caller_of(schedule, scheduled, callers)
        verdict = None if catalog is None else catalog.find(scheduled.tool).check(dict(scheduled.arguments), principal)
    except ScheduleRefused as error:
        return str(error)
    except NotFound as error:
        return f"{error}. Correct tasks.schedules.{schedule}.tool"
    if isinstance(verdict, Reject):
        return f"{verdict.rule}: {verdict.reason} Correct the schedule, the policy or the scopes of its key"
    return ""


def log_key_problems(schedules: Mapping[str, ScheduledCall], callers: Callers) -> None:
    """Log a warning for each enabled schedule whose API key is not valid now. Its calls are refused until the key is."""
    try:
        for name, scheduled in schedules.items():
            if scheduled.enabled and (problem := problem_of(name, scheduled, callers, None)):
                logger.warning("schedule cannot start its calls schedule=%s reason=%s", name, problem)
    except StorageError as error:
        logger.warning("API keys of schedules not checked error=%s", error)

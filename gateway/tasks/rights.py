"""Checks whether the caller of a running task may still call the tool, and ends the task if not. Used by `task_executor` and `runner`.

The package `server` provides the `CallerNow` function, which decides by the current API keys.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Iterable

import anyio

from gateway.auth.principal import Principal
from gateway.errors import NotFound, PolicyDenied, StorageError
from gateway.storage.database_retry import RETRY_SECONDS
from gateway.tasks.stored_call import from_stored
from gateway.tasks.task import Task

logger = logging.getLogger(__name__)

KEY_GONE = "The API key or access token of this task's caller is no longer valid, so the task was ended."

CallerNow = Callable[[str, Principal], Awaitable[Principal]]
"""Function that receives the exposed name of a tool and a principal, and returns the principal with the current scopes of its API key.

Raises:
    PolicyDenied: The API key is revoked or expired, or its scopes no longer include the tool.
    NotFound: The scopes have changed, but cannot be checked because the tool is not available.
    StorageError: The API keys cannot be read.
"""


async def unchanged_caller(tool: str, principal: Principal) -> Principal:
    """Return the principal unchanged.

    This is the `CallerNow` function of a gateway without API keys, because the rights of its principals cannot change.
    """
    return principal


async def current_caller(caller_now: CallerNow, tool: str, principal: Principal) -> Principal:
    """Call `caller_now`, and return the principal with its current scopes. While the API keys cannot be read, wait and retry.

    Raises the other errors of `CallerNow`: `PolicyDenied` and `NotFound`.
    """
    is_logged = False
    while True:
        try:
            return await caller_now(tool, principal)
        except StorageError as error:
            if not is_logged:
                is_logged = True
                logger.warning("task waits, API keys not readable tool=%s error=%s", tool, error)
        await anyio.sleep(RETRY_SECONDS)


async def refuse_unadmitted(tasks: Iterable[Task], caller_now: CallerNow) -> None:
    """End each of the `tasks` whose caller may no longer call the tool.

    A task whose tool is unavailable cannot be checked now. It continues, and is checked before its next step.

    Raises:
        StorageError: The API keys cannot be read.
    """
    for task in [task for task in tasks if not task.refusal]:
        try:
            await caller_now(task.tool, from_stored(task.row).facts.principal)
        except NotFound:
            continue
        except PolicyDenied as error:
            refuse(task, error)


def refuse(task: Task, error: Exception) -> None:
    """End a task because its caller may no longer call the tool. The reason `error` is logged and becomes the error of the task."""
    logger.warning("task ended, caller lost its rights task=%s tool=%s reason=%s", task.id[:6], task.tool, error)
    task.refuse(str(error))

"""The rights of a task's caller as they are while the task runs. Used by `runner`; `server` judges them."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Iterable

import anyio

from gateway.auth.principal import Principal
from gateway.errors import NotFound, PolicyDenied, StorageError
from gateway.storage.retry import RETRY_SECONDS
from gateway.tasks.stored import from_stored
from gateway.tasks.task import Task

logger = logging.getLogger(__name__)

KEY_GONE = "The API key of this task's caller was revoked or has expired, so the task was ended."

CallerNow = Callable[[str, Principal], Awaitable[Principal]]
"""Return the caller of the tool with this exposed name, with the scopes that its API key has now.

Raises:
    PolicyDenied: The key is revoked or expired, or its scopes no longer admit the tool.
    NotFound: The scopes have changed, and the tool is not there to be judged.
    StorageError: The keys cannot be read.
"""


async def unjudged(tool: str, principal: Principal) -> Principal:
    """The `CallerNow` of a runner without API keys."""
    return principal


async def known_caller(judge: CallerNow, tool: str, principal: Principal) -> Principal:
    """Return what `judge` returns, and wait as long as the keys cannot be read: without them nobody has rights."""
    is_logged = False
    while True:
        try:
            return await judge(tool, principal)
        except StorageError as error:
            if not is_logged:
                is_logged = True
                logger.warning("a task of %s waits, because the API keys cannot be read: %s", tool, error)
        await anyio.sleep(RETRY_SECONDS)


async def refuse_unadmitted(tasks: Iterable[Task], judge: CallerNow) -> None:
    """End those of `tasks` whose caller has lost the right to them. Tasks that cannot be judged now are judged at their next step.

    Raises:
        StorageError: The keys cannot be read.
    """
    for task in [task for task in tasks if not task.refusal]:
        try:
            await judge(task.tool, from_stored(task.row).principal)
        except NotFound:
            continue
        except PolicyDenied as error:
            logger.warning("task %s of %s is ended: %s", task.id[:6], task.tool, error)
            task.refuse(str(error))

"""Functions that store in an exception the id of the workflow executor that raised it, and read this id.

The engine of graph workflows (`superstep_runner`) and that of workflows written as async functions (`functional`) use them.
"""

from __future__ import annotations

import logging

from gateway.errors import WorkflowFailed, without_exit

logger = logging.getLogger(__name__)

_EXECUTOR = "__workflow_executor__"


def failing(raised: BaseException, executor_id: str) -> Exception:
    """Store the executor's id in an exception that the executor's code raised. Return the exception to raise.

    For an `Exception`, this is the same object, because callers of `run` may catch its class. `SystemExit` and similar exceptions become a
    `WorkflowFailed`. An id that an inner executor stored is not replaced.
    """
    error = without_exit(raised, lambda text: WorkflowFailed(text, executor=executor_id))
    if failed_executor(error) is None:
        try:
            setattr(error, _EXECUTOR, executor_id)
        except AttributeError:
            logger.debug("exception cannot be marked with its executor type=%s", type(error).__name__)
    return error


def failed_executor(error: BaseException) -> str | None:
    """Return the id, stored by `failing`, of the executor that raised the exception; `None` without an id, as for errors of the engine."""
    return getattr(error, _EXECUTOR, None)


def first_failure(group: ExceptionGroup[Exception]) -> Exception:
    """Return the exception that was raised first in a task group or its nested groups.

    The other exceptions come from concurrent tasks that failed while the task group cancelled them because of the first.
    """
    first = group.exceptions[0]
    return first_failure(first) if isinstance(first, ExceptionGroup) else first  # pyright: ignore[reportUnknownArgumentType]

"""Stores in an exception which executor raised it. Used by both engines (`superstep_runner`, `functional`)."""

from __future__ import annotations

import logging

from gateway.errors import WorkflowFailed, without_exit

logger = logging.getLogger(__name__)

_EXECUTOR = "__workflow_executor__"


def failing(raised: BaseException, executor_id: str) -> Exception:
    """Store the executor's id in an error that its code raised, and return the error.

    An `Exception` keeps its class, because callers of `run` may catch that class; `SystemExit` and the like become `WorkflowFailed`.
    """
    error = without_exit(raised, lambda text: WorkflowFailed(text, executor=executor_id))
    if failed_executor(error) is None:
        try:
            setattr(error, _EXECUTOR, executor_id)
        except AttributeError:
            logger.debug("exception cannot be marked with its executor type=%s", type(error).__name__)
    return error


def failed_executor(error: BaseException) -> str | None:
    """Return the id of the executor that raised the error; `None` if the engine raised it."""
    return getattr(error, _EXECUTOR, None)


def first_failure(group: ExceptionGroup[Exception]) -> Exception:
    """Return the first exception of a group. Later exceptions come from concurrent work that the first one was about to cancel."""
    first = group.exceptions[0]
    return first_failure(first) if isinstance(first, ExceptionGroup) else first  # pyright: ignore[reportUnknownArgumentType]

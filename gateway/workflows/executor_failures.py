"""Marks exceptions with the executor that raised them. Used by both engines (`superstep_runner`, `functional`)."""

from __future__ import annotations

import logging

from gateway.errors import WorkflowFailed, without_exit

logger = logging.getLogger(__name__)

_EXECUTOR = "__workflow_executor__"


def failing(raised: BaseException, executor_id: str) -> Exception:
    """Return an error of `CODE_ERRORS` marked with its executor's id. An `Exception` keeps its class, because callers of `run` catch it."""
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
    """Return the first exception of a group. Later ones come from work that the first was about to cancel."""
    first = group.exceptions[0]
    return first_failure(first) if isinstance(first, ExceptionGroup) else first  # pyright: ignore[reportUnknownArgumentType]

"""`SparseLog`: log lines that peers can cause, at most one of a kind every few seconds."""

from __future__ import annotations

import logging
import time

SPARSE_SECONDS = 10.0
"""Between two lines of one kind; the next line says how many were left out."""


class SparseLog:
    """Logs through one logger. The format string is the kind, so a component's log cannot be flooded by its peers."""

    def __init__(self, logger: logging.Logger) -> None:
        self._logger = logger
        self._kinds: dict[str, tuple[float, int]] = {}
        """When the last line of a kind was written, and how many were left out since."""

    def warning(self, event: str, *values: object) -> None:
        """Log an event, unless one of its kind was logged a moment ago."""
        now = time.monotonic()
        last, left_out = self._kinds.get(event, (float("-inf"), 0))
        if now - last < SPARSE_SECONDS:
            self._kinds[event] = last, left_out + 1
            return
        self._kinds[event] = now, 0
        if left_out:
            self._logger.warning(event + " (and %s more like it before)", *values, left_out)
        else:
            self._logger.warning(event, *values)

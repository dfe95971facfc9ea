"""`SparseLog`: logs at most one line of each kind in `SPARSE_SECONDS`, so that clients and servers cannot flood the log."""

from __future__ import annotations

import logging
import time

SPARSE_SECONDS = 10.0
"""Minimum seconds between two log lines of one kind (format string). The next line reports how many lines were omitted."""


class SparseLog:
    """Writes at most one line of each kind in `SPARSE_SECONDS` to a logger, so that clients and servers cannot flood the log.

    Lines with the same format string are of one kind.
    """

    def __init__(self, logger: logging.Logger) -> None:
        self._logger = logger
        self._kinds: dict[str, tuple[float, int]] = {}
        """Format string of a log line → time of its last line (monotonic), and number of lines omitted since."""

    def warning(self, event: str, *values: object) -> None:
        """Log the format string `event` with `values`, unless a line with this format string was logged less than `SPARSE_SECONDS` ago."""
        now = time.monotonic()
        last, left_out = self._kinds.get(event, (float("-inf"), 0))
        if now - last < SPARSE_SECONDS:
            self._kinds[event] = last, left_out + 1
            return
        self._kinds[event] = now, 0
        if left_out:
            self._logger.warning(event + " omitted_before=%s", *values, left_out)
        else:
            self._logger.warning(event, *values)

"""`DetachedCaller`: the caller of a call that outlives its request; and the rule which log messages a client wants."""

from __future__ import annotations

from gateway.json_types import JsonValue
from gateway.tools.ports import Caller, LogLevel, severity


def wants_level(wanted: LogLevel | None, level: str) -> bool:
    """Whether a client that wants messages from level `wanted` on wants one of `level`. Unknown levels count as `info`."""
    return wanted is not None and severity(level) >= severity(wanted)


class DetachedCaller:
    """A caller that forwards to the caller of the current request. Between two requests it drops everything."""

    def __init__(self) -> None:
        self.current: Caller | None = None
        self._progress = float("-inf")

    async def progress(self, progress: float, total: float | None, message: str | None) -> None:
        """Forward a report that increases the progress."""
        if self.current is not None and progress > self._progress:
            self._progress = progress
            await self.current.progress(progress, total, message)

    async def log(self, level: LogLevel, data: JsonValue, logger: str | None) -> None:
        """Forward a log message."""
        if self.current is not None:
            await self.current.log(level, data, logger)

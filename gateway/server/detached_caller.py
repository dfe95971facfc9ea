"""`DetachedCaller`: the caller of a call that outlives its request; and `wants_level`: whether a client wants a log message."""

from __future__ import annotations

from gateway.json_types import JsonValue
from gateway.tools.ports import Caller, LogLevel, severity


def wants_level(wanted: LogLevel | None, level: str) -> bool:
    """Whether a client that set its log level to `wanted` gets messages of `level`; with `None`, it gets none.

    Unknown levels count as `info`.
    """
    return wanted is not None and severity(level) >= severity(wanted)


class DetachedCaller:
    """Implements `Caller`: forwards progress and log messages to `current`, the caller of the request that now waits for the call.

    Between two requests of a call, `current` is `None`, and messages are dropped.
    """

    def __init__(self) -> None:
        self.current: Caller | None = None
        self._progress = float("-inf")

    async def progress(self, progress: float, total: float | None, message: str | None) -> None:
        """Forward a progress report to the current request, if its value is larger than all before."""
        if self.current is not None and progress > self._progress:
            self._progress = progress
            await self.current.progress(progress, total, message)

    async def log(self, level: LogLevel, data: JsonValue, logger: str | None) -> None:
        """Forward a log message to the current request; drop the message between two requests."""
        if self.current is not None:
            await self.current.log(level, data, logger)

"""Ways back to a client that need nothing of the SDK; the one over a session of the SDK is `wire_caller`."""

from __future__ import annotations

from gateway.json_types import JsonValue
from gateway.tools.context import Caller, LogLevel, severity


def wants_level(wanted: LogLevel | None, level: str) -> bool:
    """Whether a log message of `level` reaches a client that asked for `wanted`; unknown levels count as info."""
    return wanted is not None and severity(level) >= severity(wanted)


class DetachedCaller:
    """A caller whose current request changes between legs; silent while there is none."""

    def __init__(self) -> None:
        self.current: Caller | None = None
        self._progress = float("-inf")

    async def progress(self, progress: float, total: float | None, message: str | None) -> None:
        """Pass on to the current leg; a broken leg must not fail the work."""
        if self.current is not None and progress > self._progress:
            self._progress = progress
            await self.current.progress(progress, total, message)

    async def log(self, level: LogLevel, data: JsonValue, logger: str | None) -> None:
        """Pass on to the current leg."""
        if self.current is not None:
            await self.current.log(level, data, logger)

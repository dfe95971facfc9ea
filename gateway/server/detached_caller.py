"""`DetachedCaller`: sends the progress and log messages of a call that its client continues with several requests.

`wants_level` decides whether a client receives log messages of a level.
"""

from __future__ import annotations

from gateway.json_types import JsonValue
from gateway.tools.ports import Caller, LogLevel, severity


def wants_level(wanted: LogLevel | None, level: str) -> bool:
    """Whether a client that set its log level to `wanted` receives log messages of `level`. If `wanted` is `None`, the answer is false.

    Unknown levels count as `info`.
    """
    return wanted is not None and severity(level) >= severity(wanted)


class DetachedCaller:
    """Sends the progress and log messages of a call that its client continues with several requests; implements `Caller`.

    `current` is the `Caller` of the request that now waits for the call's result, and receives the messages. Between two requests `current`
    is `None`, and messages are dropped.
    """

    def __init__(self) -> None:
        self.current: Caller | None = None
        self._progress = float("-inf")

    async def progress(self, progress: float, total: float | None, message: str | None) -> None:
        """Forward a progress report to the current request. A report whose value is not larger than all earlier ones is dropped."""
        if self.current is not None and progress > self._progress:
            self._progress = progress
            await self.current.progress(progress, total, message)

    async def log(self, level: LogLevel, data: JsonValue, logger: str | None) -> None:
        """Forward a log message to the current request. Between two requests of the client, drop the message."""
        if self.current is not None:
            await self.current.log(level, data, logger)

"""Limits how often one call sends notifications to its client: `ThrottledProgress` limits progress reports, `ThrottledLog` log messages.

With these limits, a tool that quickly reports 20,000 steps causes only a few dozen messages. Used by `wire_caller`, through which every
call that the MCP SDK handles sends its notifications.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Awaitable, Callable

import anyio
import anyio.abc

from gateway.json_types import JsonValue
from gateway.tools.ports import LogLevel

logger = logging.getLogger(__name__)

PROGRESS_BURST = 10
"""Number of progress notifications of one call that may be sent without a pause; later ones are spaced (`PROGRESS_SPACING_SECONDS`)."""

PROGRESS_SPACING_SECONDS = 0.1
"""Minimum seconds, on average, between two progress notifications of one call, after the first `PROGRESS_BURST` notifications."""

LOG_BURST = 100
"""Number of log messages of one call that may be sent without a pause. Later messages that exceed the rate are dropped
(`LOG_SPACING_SECONDS`)."""

LOG_SPACING_SECONDS = 0.01
"""Minimum seconds, on average, between two log messages of one call, after the first `LOG_BURST` messages."""

FLUSH_SECONDS = 5.0
"""Maximum seconds that the result of a call waits until the last progress notification was sent, if the client reads slowly."""

SendProgress = Callable[[float, float | None, str | None], Awaitable[None]]
SendLog = Callable[[LogLevel, JsonValue, str | None], Awaitable[None]]


class _Allowance:
    """A token bucket that limits a rate of messages: `burst` messages at once, then one message per `spacing_seconds`."""

    def __init__(self, burst: int, spacing_seconds: float) -> None:
        self._credit_seconds = (burst - 1) * spacing_seconds
        self._spacing_seconds = spacing_seconds
        self._due = float("-inf")
        """The event loop's time at which the next message would be due if all messages were evenly spaced."""

    def wait_seconds(self) -> float:
        """Return the seconds until the next message may be sent; 0 or a negative number if it may be sent now."""
        now = anyio.current_time()
        self._due = max(self._due, now - self._credit_seconds)
        return self._due - now

    def use(self) -> None:
        """Count one message, because it is being sent now."""
        self._due += self._spacing_seconds


class ThrottledProgress:
    """Sends the progress reports of one call to its client at a bounded rate.

    A report that must wait is replaced by the next report, so that the last report is not lost. A report whose value does not grow is
    dropped, because the value of a progress notification must increase (MCP, Progress).
    """

    def __init__(self, send: SendProgress, tasks: anyio.abc.TaskGroup) -> None:
        """`send` sends one report to the client. Delayed reports are sent in the task group `tasks`, which must outlive the call."""
        self._send = send
        self._tasks = tasks
        self._allowance = _Allowance(PROGRESS_BURST, PROGRESS_SPACING_SECONDS)
        self._largest = float("-inf")
        self._waiting: deque[tuple[float, float | None, str | None]] = deque(maxlen=PROGRESS_BURST)
        self._is_sending = False
        self._is_over = anyio.Event()
        self._sent = anyio.Event()
        """Event that is set when all waiting reports were sent. A new event replaces it when sending begins again."""

    async def report(self, progress: float, total: float | None, message: str | None) -> None:
        """Send a progress report. If the rate limit does not allow it yet, store the report to be sent later, and return at once."""
        if not progress > self._largest or self._is_over.is_set():
            return
        self._largest = progress
        self._waiting.append((progress, total, message))
        if self._is_sending:
            return
        self._is_sending, self._sent = True, anyio.Event()
        try:
            while self._waiting and self._allowance.wait_seconds() <= 0:
                await self._send_next()
        finally:
            self._is_sending = False
            if self._waiting:
                self._is_sending = True
                self._tasks.start_soon(self._send_later)
            else:
                self._sent.set()

    async def finish(self) -> None:
        """Wait until the last progress report was sent, for at most `FLUSH_SECONDS`. Later reports are dropped.

        Call this before the result of the call is sent.
        """
        self._is_over.set()
        if self._is_sending:
            with anyio.move_on_after(FLUSH_SECONDS):
                await self._sent.wait()

    async def _send_later(self) -> None:
        try:
            while self._waiting:
                seconds = self._allowance.wait_seconds()
                if seconds > 0:
                    with anyio.move_on_after(seconds):
                        await self._is_over.wait()
                    while len(self._waiting) > 1:
                        self._waiting.popleft()
                await self._send_next()
        finally:
            self._is_sending = False
            self._sent.set()

    async def _send_next(self) -> None:
        report = self._waiting.popleft()
        self._allowance.use()
        try:
            await self._send(*report)
        except Exception:  # the failure to reach one client must not end the task group, which all calls share
            logger.exception("progress could not be sent")


class ThrottledLog:
    """Sends the log messages of one call to its client at a bounded rate.

    Messages beyond the rate are dropped. Before the next message that is sent, the client gets a message with the number of dropped ones.
    """

    def __init__(self, send: SendLog) -> None:
        self._send = send
        self._allowance = _Allowance(LOG_BURST, LOG_SPACING_SECONDS)
        self._dropped = 0
        self._level: LogLevel = "warning"
        """Level of the last dropped message, with which the number of dropped messages is sent."""

    async def log(self, level: LogLevel, data: JsonValue, name: str | None) -> None:
        """Send a log message to the client. If the rate limit does not allow it, drop the message and count it."""
        if self._allowance.wait_seconds() > 0:
            self._dropped += 1
            self._level = level
            return
        self._allowance.use()
        await self.finish()
        await self._send(level, data, name)

    async def finish(self) -> None:
        """Send a message with the number of dropped log messages, if there are any. Call this before the result of the call is sent."""
        dropped, self._dropped = self._dropped, 0
        if dropped:
            text = f"{dropped} log messages of this call were dropped: more than {1 / LOG_SPACING_SECONDS:.0f} a second."
            await self._send(self._level, text, "moongate")

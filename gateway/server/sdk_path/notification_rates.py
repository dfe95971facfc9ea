"""Limits on how often one call sends notifications to its client: `ThrottledProgress` for progress, `ThrottledLog` for log messages.

Used by `wire_caller`, through which every call sends them, so that a tool that reports 20,000 steps costs its client and the gateway
a few dozen messages.
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
"""Progress notifications of one call that are sent without a pause."""

PROGRESS_SPACING_SECONDS = 0.1
"""Minimum time between two progress notifications of one call after the first `PROGRESS_BURST`."""

LOG_BURST = 100
"""Log messages of one call that are sent without a pause."""

LOG_SPACING_SECONDS = 0.01
"""Minimum time between two log messages of one call after the first `LOG_BURST`."""

FLUSH_SECONDS = 5.0
"""How long the result of a call waits until a client that reads slowly has taken the last progress notification."""

SendProgress = Callable[[float, float | None, str | None], Awaitable[None]]
SendLog = Callable[[LogLevel, JsonValue, str | None], Awaitable[None]]


class _Allowance:
    """A token bucket: `burst` messages at once, then one in `spacing_seconds`."""

    def __init__(self, burst: int, spacing_seconds: float) -> None:
        self._credit_seconds = (burst - 1) * spacing_seconds
        self._spacing_seconds = spacing_seconds
        self._due = float("-inf")
        """Time when the next message would be due if all messages were evenly spaced (event loop clock)."""

    def wait_seconds(self) -> float:
        """Seconds until a message may be sent; at most 0 if it may be sent now."""
        now = anyio.current_time()
        self._due = max(self._due, now - self._credit_seconds)
        return self._due - now

    def use(self) -> None:
        """Count a message that is being sent."""
        self._due += self._spacing_seconds


class ThrottledProgress:
    """Sends the progress of one call at a bounded rate. A report that must wait is replaced by the next report; the last is always sent.

    A report whose value does not grow is dropped, because the value of a progress notification must increase (MCP, Progress).
    """

    def __init__(self, send: SendProgress, tasks: anyio.abc.TaskGroup) -> None:
        """`tasks` runs the tasks that send delayed reports; it must outlive the call."""
        self._send = send
        self._tasks = tasks
        self._allowance = _Allowance(PROGRESS_BURST, PROGRESS_SPACING_SECONDS)
        self._largest = float("-inf")
        self._waiting: deque[tuple[float, float | None, str | None]] = deque(maxlen=PROGRESS_BURST)
        self._is_sending = False
        self._is_over = anyio.Event()
        self._sent = anyio.Event()
        """Set while no message is being sent; replaced when sending begins."""

    async def report(self, progress: float, total: float | None, message: str | None) -> None:
        """Send a report. If the rate does not allow it yet, keep the report to be sent later, and return at once."""
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
        """Wait at most `FLUSH_SECONDS` until the last report is sent. Later reports are dropped. Call it before the result is sent."""
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
        except Exception:  # a client that is gone must not end the task group of all calls
            logger.exception("progress could not be sent")


class ThrottledLog:
    """Sends the log messages of one call. Messages beyond the rate are dropped, and the next one that is sent says how many."""

    def __init__(self, send: SendLog) -> None:
        self._send = send
        self._allowance = _Allowance(LOG_BURST, LOG_SPACING_SECONDS)
        self._dropped = 0
        self._level: LogLevel = "warning"
        """Level of the last message that was dropped."""

    async def log(self, level: LogLevel, data: JsonValue, name: str | None) -> None:
        """Send a message, or count it as dropped."""
        if self._allowance.wait_seconds() > 0:
            self._dropped += 1
            self._level = level
            return
        self._allowance.use()
        await self.finish()
        await self._send(level, data, name)

    async def finish(self) -> None:
        """Send a message that says how many messages were dropped, if any. Call it before the result is sent."""
        dropped, self._dropped = self._dropped, 0
        if dropped:
            text = f"{dropped} log messages of this call were dropped: more than {1 / LOG_SPACING_SECONDS:.0f} a second."
            await self._send(self._level, text, "moongate")

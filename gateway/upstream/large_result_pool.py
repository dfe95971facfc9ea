"""`HelperPool`: starts and reuses helper processes, which parse large results of `tools/call` and apply the gate's rules to them.

The gate is the set of checks that every call passes; its rules for results concern hidden characters and size. `LargeResult` is one large
result. The gateway keeps the received bytes, and parses them itself only if the helper process reports that the result passes unchanged or
is unusual, or if no helper process can be started. Each result has a helper process to itself, so that a crash fails only one call.
`LargeBodies` limits the memory of large results, and `large_result_worker` is the program of the processes.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict
from functools import partial
from typing import IO, cast

import anyio
import anyio.to_thread

from gateway.errors import ToolFailed
from gateway.gate.results import Judged, ResultOrigin, ResultRules
from gateway.json_types import JsonObject, JsonValue
from gateway.storage.result_store import ResultStore
from gateway.tools.base import Received, Releasable
from gateway.upstream.gateway_chain import received
from gateway.upstream.large_result_worker import receive, send
from gateway.wire.long_text import Decoded, decode_parts
from gateway.wire.rpc_envelope import response

logger = logging.getLogger(__name__)

HELD_BYTES = 4_194_304
"""Size in bytes from which a helper process parses a result. Parsing a smaller result holds the interpreter's lock for only a few ms."""

MOST_HELPERS = 2
"""Maximum number of helper processes at once. Further large results wait until one is free."""

IDLE_SECONDS = 5.0
"""Seconds after the last result until the idle helper processes are ended."""

JUDGE_SECONDS = 60.0
"""Timeout in seconds of each order to a helper process: to parse a result, and to apply the gate's rules, which may store the result.

The deadline of the call covers the parsing, but not the rules, which are applied after the call.
"""

_HEAP = {"MALLOC_MMAP_THRESHOLD_": "262144"}
"""Environment variable that makes the C library (glibc) return a large block of memory to the system when it is freed."""

LOST = (
    "The result is large, and the process that checks large results ended or took too long. The call has run. "
    "Ask for less of it (a filter, a page, a range)."
)


class HelperProcess:
    """One helper process. The constructor, `ask` and `close` block: call them in a worker thread."""

    def __init__(self) -> None:
        paths = os.pathsep.join(path for path in sys.path if path)
        system = {name: value for name in ("SYSTEMROOT", "SYSTEMDRIVE") if (value := os.environ.get(name)) is not None}
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", "gateway.upstream.large_result_worker"],
            env={**system, "PYTHONPATH": paths, "PYTHONDONTWRITEBYTECODE": "1", **_HEAP},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,
        )

    def ask(self, fields: JsonObject, parts: Sequence[bytes] = ()) -> tuple[JsonObject, bytes]:
        """Send an order to the process, and return the reply. An order and a reply each consist of a JSON object and a body of bytes.

        `fields` is the JSON object of the order, and `parts` is the body of the order.

        Raises:
            OSError: The process ended.
            EOFError: The process ended.
        """
        send(cast("IO[bytes]", self._process.stdin), fields, parts)
        return receive(cast("IO[bytes]", self._process.stdout))

    @property
    def is_alive(self) -> bool:
        """Whether the process is still running."""
        return self._process.poll() is None

    def kill(self) -> None:
        """Kill the process, which also ends an `ask` that waits in another thread. Does not block."""
        self._process.kill()

    def close(self) -> None:
        """Kill the process, and wait until it has ended."""
        self._process.kill()
        with contextlib.suppress(OSError, ValueError):
            self._process.communicate()


def _started() -> HelperProcess | None:
    try:
        return HelperProcess()
    except OSError as error:
        logger.warning("helper process not started, large results are read in the gateway reason=%s", error.strerror)
        return None


class HelperPool:
    """The helper processes of one gateway, which parse large results and apply the gate's rules to them. The owner calls `aclose`.

    A pool belongs to one event loop.
    """

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._turns = asyncio.Semaphore(MOST_HELPERS)
        self._idle: list[HelperProcess] = []
        self._timer: asyncio.TimerHandle | None = None
        self._closing: set[asyncio.Future[None]] = set()

    async def hold(
        self, parts: list[bytes], claim: Releasable | None, is_call: Callable[[JsonValue], bool]
    ) -> tuple[Decoded, Releasable | None]:
        """Parse a message with a helper process. Takes ownership of `parts`.

        `claim` is the memory granted for the message. `is_call` returns whether an id belongs to a pending `tools/call`.

        If the message answers a pending `tools/call` with a complete and plain result (text, images, audio), return the message with an
        empty result, and the `LargeResult` that has the real result. Otherwise return the whole message, parsed in this process, and
        `claim`.

        Raises:
            ValueError: The message is not JSON.
            ToolFailed: The helper process ended, or took too long.
        """
        await self._turns.acquire()
        helper: HelperProcess | None = None
        try:
            helper = self._kept() or await anyio.to_thread.run_sync(_started)
            if helper is not None:
                with anyio.fail_after(JUDGE_SECONDS):
                    reply, _ = await self.ask(helper, {"do": "read"}, parts)
            else:
                reply: JsonObject = {"do": "whole"}
        except TimeoutError:
            self.give_back(helper, is_usable=False)
            raise ToolFailed(LOST) from None
        except BaseException:
            self.give_back(helper, is_usable=False)
            raise
        if helper is not None and reply["do"] == "held" and is_call(reply["id"]):
            result: JsonObject = {"content": []} if reply["isError"] is None else {"content": [], "isError": reply["isError"]}
            return (response(reply["id"], result), (), None), LargeResult(self, helper, parts, claim)
        self.give_back(helper, is_usable=True)
        return await anyio.to_thread.run_sync(decode_parts, parts), claim

    async def ask(self, helper: HelperProcess, fields: JsonObject, parts: Sequence[bytes] = ()) -> tuple[JsonObject, bytes]:
        """Send an order to a helper process in a worker thread, and return the reply.

        Cancelling this method kills the process. Raises `ToolFailed` if the process ended.
        """
        try:
            return await anyio.to_thread.run_sync(partial(helper.ask, fields, parts), abandon_on_cancel=True)
        except (OSError, EOFError, ValueError):
            raise ToolFailed(LOST) from None
        except BaseException:
            helper.kill()
            raise

    def give_back(self, helper: HelperProcess | None, *, is_usable: bool) -> None:
        """Return a helper process to the pool if it `is_usable`, or end it. The next waiting result can then get a helper process."""
        self._turns.release()
        if helper is None:
            return
        if not is_usable:
            self._close(helper)
            return
        self._idle.append(helper)
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._loop.call_later(IDLE_SECONDS, self._end_idle)

    def give_back_soon(self, helper: HelperProcess) -> None:
        """End a helper process whose result was dropped before the gate's rules were applied. Does not wait. Callable from any thread."""
        with contextlib.suppress(RuntimeError):  # the loop is closed
            self._loop.call_soon_threadsafe(partial(self.give_back, helper, is_usable=False))

    async def aclose(self) -> None:
        """End all idle helper processes, and wait until they have exited."""
        self._end_idle()
        for closing in list(self._closing):
            await closing

    def _kept(self) -> HelperProcess | None:
        while self._idle:
            helper = self._idle.pop()
            if helper.is_alive:
                return helper
            self._close(helper)
        return None

    def _end_idle(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        while self._idle:
            self._close(self._idle.pop())

    def _close(self, helper: HelperProcess) -> None:
        closing = self._loop.run_in_executor(None, helper.close)
        self._closing.add(closing)
        closing.add_done_callback(self._closing.discard)


class LargeResult:
    """A large result of `tools/call` in a helper process, which applies the gate's rules to it (interface `gate.results.HelperResult`)."""

    def __init__(self, helpers: HelperPool, helper: HelperProcess, parts: list[bytes], claim: Releasable | None) -> None:
        self._helpers = helpers
        self._helper: HelperProcess | None = helper
        self._parts = parts
        self._claim = claim

    async def judge(self, rules: ResultRules, store: ResultStore | None, source: ResultOrigin) -> Judged | None:
        """Apply the gate's `rules` to the result in the helper process, with the function `judge_whole`.

        Return the replacement of the result, or `None` if the result passes unchanged. The method `whole` returns the unchanged result.

        Raises:
            ToolFailed: The helper process ended, or took too long.
        """
        helper, self._helper = self._helper, None
        if helper is None:
            raise ToolFailed(LOST)
        order: JsonObject = {"do": "judge", "rules": asdict(rules), "source": asdict(source)}
        order["store"] = None if store is None else store.settings
        is_usable = False
        try:
            with anyio.fail_after(JUDGE_SECONDS):
                reply, body = await self._helpers.ask(helper, order)
            is_usable = True
        except TimeoutError:
            raise ToolFailed(LOST) from None
        finally:
            self._helpers.give_back(helper, is_usable=is_usable)
        if reply["do"] == "whole":
            return None
        self._parts.clear()
        result = await anyio.to_thread.run_sync(json.loads, body)
        return Judged(result, rule=reply["rule"], reason=reply["reason"], is_shortened=reply["shortened"])

    async def whole(self) -> Received:
        """Parse the received bytes in this process, and return the unchanged result."""
        parts = self._parts
        message, encoded, long_text = await anyio.to_thread.run_sync(decode_parts, parts)
        result = cast("JsonObject", cast("dict[str, JsonValue]", message)["result"])
        result.pop("resultType", None)
        return Received(received(result), encoded, long_text, self._claim)

    def release(self) -> None:
        """Return the memory that was granted for the result. If the gate's rules were not applied yet, also end the helper process."""
        helper, self._helper = self._helper, None
        if helper is not None:
            self._helpers.give_back_soon(helper)
        if self._claim is not None:
            self._claim.release()

    def __del__(self) -> None:
        self.release()

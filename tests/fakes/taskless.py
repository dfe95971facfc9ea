"""Sees that a call which was begun without a task uses nothing that takes one before it has one (`gateway.tools.waits`).

anyio refuses a scope, a task group or a lock where no task runs, as in the callbacks of a connection; the gate would make an internal error
of that. But where such a call is begun within somebody else's task (an ASGI application, the reader of standard input), the scope is
that task's, and all seems well until it is left. So here no step of such a call runs in a task, and what anyio refuses there is noted.
"""

from __future__ import annotations

import asyncio  # noqa: TID251  # what it calls the current task
import threading
import traceback
from collections.abc import Generator
from contextlib import contextmanager
from typing import Any

import pytest
import sniffio
from anyio._backends import _asyncio

from gateway.server.underway import Underway


@contextmanager
def taskless_steps(patch: pytest.MonkeyPatch) -> Generator[list[str]]:
    """While it is entered; where something was refused for want of a task."""
    refused: list[str] = []
    stepping: set[int] = set()
    """Threads in which a step runs without a task."""
    go_on = Underway._go_on  # pyright: ignore[reportPrivateUsage]  # the one place where such steps begin
    enter, look = _asyncio.CancelScope.__enter__, sniffio.current_async_library

    def without_task(call: Underway) -> None:
        loop, task, thread = asyncio.get_running_loop(), asyncio.current_task(), threading.get_ident()
        is_first = thread not in stepping
        stepping.add(thread)
        if task is not None:
            asyncio._leave_task(loop, task)  # which loops of others use
        try:
            go_on(call)
        finally:
            if task is not None:
                asyncio._enter_task(loop, task)
            if is_first:
                stepping.discard(thread)

    def note() -> None:
        refused.append("".join(traceback.format_stack(limit=14)[:-2]))

    def entered(scope: Any) -> Any:
        if threading.get_ident() in stepping and asyncio.current_task() is None:
            note()
        return enter(scope)

    def looked() -> str:
        try:
            return look()
        except sniffio.AsyncLibraryNotFoundError:  # nothing told it, so that it looks for a task
            if threading.get_ident() in stepping:
                note()
            raise

    patch.setattr(Underway, "_go_on", without_task)
    patch.setattr(_asyncio.CancelScope, "__enter__", entered)
    patch.setattr(sniffio, "current_async_library", looked)
    yield refused

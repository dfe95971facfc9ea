"""Work that dies: a part of a test in a forked process that kills itself with SIGKILL, as a crash would."""

from __future__ import annotations

import os
import pickle
import signal
import threading
import time
import traceback
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

import anyio

from gateway.config.models import TaskSettings
from gateway.storage.records import Records
from gateway.storage.state_folder import StateFolder
from gateway.tasks.engine_choice import choose_engine
from gateway.tasks.local_engine import LocalEngine
from gateway.tasks.rights import CallerNow, unchanged_caller
from gateway.tasks.runner import TaskRunner
from gateway.tasks.task import Task
from gateway.tasks.task_engine import MakeEngine
from gateway.tasks.task_executor import CallTool
from tests.fakes.running import TASK_ENGINE, temporal_tasks

LEASE_SECONDS = 0.5

STEADY_LEASE_SECONDS = 6.0
"""Lease of tests in which no process dies, so that a short pause of the machine does not count as a death."""


FORK_SECONDS = 5.0
"""Longest wait for ending threads before a process is forked."""


def unknown_threads() -> int:
    """Threads of this process that Python does not list: threads of C code, and threads that have just ended in Python."""
    return len(os.listdir("/proc/self/task")) - threading.active_count() if os.path.isdir("/proc/self/task") else 0


THREADS_OF_C = unknown_threads()


def wait_for_ended_threads() -> None:
    """Wait until worker threads of earlier event loops are gone.

    An ending thread holds locks of OpenSSL, and a process that is forked meanwhile would wait for these locks forever.
    """
    deadline = time.monotonic() + FORK_SECONDS
    while time.monotonic() < deadline:
        workers = [thread for thread in threading.enumerate() if thread.name.startswith("AnyIO worker")]
        if not workers and unknown_threads() <= THREADS_OF_C:
            return
        time.sleep(0.001)


def in_a_process(main: Callable[[], Awaitable[None]]) -> int:
    """Run `main` in a process of its own; the signal that ended it, or 0."""
    wait_for_ended_threads()
    pid = os.fork()
    if pid == 0:
        try:
            anyio.run(main)
            os._exit(0)
        except BaseException:
            traceback.print_exc()
            os._exit(1)
    _, status = os.waitpid(pid, 0)
    assert not os.WIFEXITED(status) or os.WEXITSTATUS(status) == 0
    return os.WTERMSIG(status) if os.WIFSIGNALED(status) else 0


def die() -> None:
    """End this process now, with nothing cleaned up."""
    os.kill(os.getpid(), signal.SIGKILL)


def last(main: Callable[[], Awaitable[Task]]) -> Task:
    """Run `main` and return its task. With Temporal, in a process of its own: threads of its client must not be there at a later fork."""
    if TASK_ENGINE not in os.environ:
        return anyio.run(main)
    read, write = os.pipe()

    async def told() -> None:
        os.write(write, pickle.dumps((await main()).row))

    async def heard() -> Task:
        return Task(pickle.loads(os.read(read, 1 << 16)))

    try:
        assert in_a_process(told) == 0
        return anyio.run(heard)
    finally:
        os.close(read)
        os.close(write)


async def engine_of(folder: Path) -> MakeEngine:
    """The engine of this test (fixture `task_engine`)."""
    if TASK_ENGINE not in os.environ:
        return LocalEngine
    settings = TaskSettings.model_validate(temporal_tasks(folder, os.environ[TASK_ENGINE]))
    return await choose_engine(settings, "")


@asynccontextmanager
async def running(
    folder: Path,
    call: CallTool,
    *,
    settings: TaskSettings | None = None,
    url: str | None = None,
    lease_seconds: float = LEASE_SECONDS,
    caller_now: CallerNow = unchanged_caller,
) -> AsyncGenerator[TaskRunner]:
    """A runner over the state folder, or the database at `url`, as a gateway has it. `caller_now` judges the callers."""
    records = Records(StateFolder(folder), audit_days=1, url=url)
    make_engine = await engine_of(folder)
    try:
        async with anyio.create_task_group() as group:
            runner = TaskRunner(
                group, records, call, caller_now, settings=settings, lease_seconds=lease_seconds, make_engine=make_engine
            )
            group.start_soon(runner.run)
            yield runner
            group.cancel_scope.cancel()
    finally:
        await records.aclose()


steady = partial(running, lease_seconds=STEADY_LEASE_SECONDS)


async def once_asked(runner: TaskRunner, task: Task) -> Task:
    """The task, once it waits for a person."""
    with anyio.fail_after(20):
        while task.status != "input_required":
            task = await runner.wait_for_change(task)
    return task


class Journal:
    """Side effects, one a line, each on disk before it counts."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def write(self, line: str) -> None:
        with self.path.open("a") as file:
            file.write(line + "\n")
            file.flush()
            os.fsync(file.fileno())

    def lines(self) -> list[str]:
        return self.path.read_text().splitlines() if self.path.exists() else []

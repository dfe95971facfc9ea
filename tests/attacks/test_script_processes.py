"""A hostile script of a skill and processes: it cannot start too many, reach others, or outlive its run, in every kind of sandbox."""

from __future__ import annotations

import os
import resource
import socket
import sys
from contextlib import suppress
from pathlib import Path

import anyio
import anyio.to_thread
import pytest

from gateway.skills.sandbox.sandbox import FinishedJob, Job, Limits, Sandbox, is_open_to_all
from tests.skills.sandboxes import KINDS, PYTHON, Kind, RestrictedSandbox, run, sandbox_of
from tests.skills.test_sandbox import gone, running_with

pytestmark = [
    pytest.mark.attack(10),
    pytest.mark.timeout(120),
    pytest.mark.skipif(not sys.platform.startswith("linux"), reason="the sandbox is for Linux"),
]

FORKS = """
import os, time
forked = 0
try:
    while forked < 3000:
        if os.fork() == 0:
            time.sleep(60)
            os._exit(0)
        forked += 1
        time.sleep(0.001)
except OSError as error:
    print(error.strerror, flush=True)
time.sleep(1)
print("forked", forked)
"""


async def forking(sandbox: Sandbox, mark: str) -> tuple[FinishedJob, int, set[int]]:
    """Run a script that forks; return its result, the peak number of its processes, and their user ids outside the sandbox."""
    ended, peak, users = list[FinishedJob](), 0, set[int]()

    async def fork() -> None:
        ended.append(await run(sandbox, FORKS, mark))

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(fork)
        while not ended:
            found = running_with(mark)
            peak = max(peak, len(found))
            with suppress(OSError):
                users.update(os.stat(f"/proc/{pid}").st_uid for pid in found[:1])
            await anyio.sleep(0.02)
    await gone(mark)
    return ended[0], peak, users


@pytest.mark.parametrize("kind", KINDS)
async def test_run_has_no_more_processes_than_its_limit(kind: Kind, tmp_path: Path) -> None:
    sandbox = await sandbox_of(kind, Limits(seconds=20))
    ran, peak, users = await forking(sandbox, f"forks-{tmp_path.name}-{os.getpid()}")
    if kind in ("own root", "no landlock"):
        assert 32 < peak <= sandbox.limits.processes and 0 not in users, (peak, users)
        assert "Resource temporarily unavailable" in ran.stdout and not ran.stopped, ran
    else:
        assert "Resource temporarily unavailable" in ran.stdout or ran.stopped == "processes", ran
        assert peak < 2000


WITHOUT_SETUID = """
import ctypes, os, sys
PR_CAPBSET_DROP, CAP_SETUID = 24, 7
assert ctypes.CDLL(None).prctl(PR_CAPBSET_DROP, CAP_SETUID, 0, 0, 0) == 0
os.execv(sys.argv[1], sys.argv[1:])
"""


class SandboxWithoutSetuid(RestrictedSandbox):
    """A sandbox whose launcher is root and may not change its user."""

    def _command(self, job: Job, folder: str) -> list[str]:
        return [PYTHON, "-I", "-S", "-c", WITHOUT_SETUID, *super()._command(job, folder)]


async def test_processes_of_root_are_counted_if_it_cannot_become_nobody(tmp_path: Path) -> None:
    await sandbox_of("own root")
    if os.geteuid() != 0 or is_open_to_all(PYTHON):
        pytest.skip("needs root, and a Python that only root can reach")
    sandbox = SandboxWithoutSetuid(Limits(seconds=20))
    assert (await sandbox.probe(), sandbox.gap) == ("", "")
    ran, peak, users = await forking(sandbox, f"forks-{tmp_path.name}-{os.getpid()}")
    assert (ran.stopped, users) == ("processes", {0}), (ran, peak)
    assert peak < 2000


OTHER_PROCESSES = """
import json, os, resource, sys
pid, at = int(sys.argv[1]), sys.argv[2]
import ctypes, socket
libc = ctypes.CDLL(None)
worked = []
def attempt(name, work):
    try:
        if work() != -1:
            worked.append(name)
    except OSError:
        pass
attempt("limit", lambda: resource.prlimit(pid, resource.RLIMIT_CORE, (1, 1)))
attempt("priority", lambda: os.setpriority(os.PRIO_PROCESS, pid, 19))
attempt("affinity", lambda: os.sched_setaffinity(pid, {0}))
attempt("scheduler", lambda: os.sched_setscheduler(pid, os.SCHED_BATCH, os.sched_param(0)))
attempt("signal", lambda: os.kill(pid, 0))
attempt("segment", lambda: libc.shmget(0, 1, 0o1600))
attempt("datagram", lambda: socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)[0].sendto(b"evil", at))
attempt("watch", lambda: libc.inotify_add_watch(libc.inotify_init(), os.path.dirname(at).encode(), 0x100))
print(json.dumps(worked))
"""


@pytest.mark.parametrize("network", [False, True], ids=["alone", "network"])
@pytest.mark.parametrize("kind", KINDS)
async def test_script_reaches_no_other_process(kind: Kind, network: bool, tmp_path: Path) -> None:
    sandbox = await sandbox_of(kind)
    before = resource.prlimit(os.getpid(), resource.RLIMIT_CORE), os.getpriority(os.PRIO_PROCESS, 0), os.sched_getaffinity(0)
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listener:
        listener.bind(str(tmp_path / "log"))
        (tmp_path / "log").chmod(0o777)
        listener.setblocking(False)
        ran = await run(sandbox, OTHER_PROCESSES, str(os.getpid()), str(tmp_path / "log"), network=network)
        assert (ran.stdout, ran.stderr) == ("[]\n", "")
        with pytest.raises(BlockingIOError):
            listener.recv(10)
    assert (resource.prlimit(os.getpid(), resource.RLIMIT_CORE), os.getpriority(os.PRIO_PROCESS, 0), os.sched_getaffinity(0)) == before


@pytest.mark.parametrize("kind", KINDS)
async def test_script_cannot_outlive_its_run(kind: Kind, tmp_path: Path) -> None:
    sandbox = await sandbox_of(kind)  # a busy machine needs longer for the trial run
    sandbox.limits = Limits(seconds=2)
    mark = f"outlives-{tmp_path.name}-{os.getpid()}"
    code = f"""
import ctypes, os, signal, time
mark = {mark!r}
ctypes.CDLL(None).prctl(1, 0, 0, 0, 0)
for number in set(signal.Signals) - {{signal.SIGKILL, signal.SIGSTOP}}:
    signal.signal(number, signal.SIG_IGN)
try:
    os.setsid()
except OSError:
    pass
time.sleep(60)
"""
    ran = await run(sandbox, code)
    assert ran.timed_out
    await gone(mark)


@pytest.mark.parametrize("kind", KINDS)
async def test_granted_variables_are_on_no_command_line(kind: Kind) -> None:
    sandbox = await sandbox_of(kind)
    secret = f"secret-{os.urandom(8).hex()}"
    code = "import os, time; time.sleep(0.5); print(os.environ['TOKEN'])"
    seen: list[str] = []

    def look() -> None:
        for place in Path("/proc").glob("[0-9]*/cmdline"):
            with suppress(OSError):
                seen.extend([place.parent.name] if secret.encode() in place.read_bytes() else [])

    async with anyio.create_task_group() as tasks:

        async def ask() -> None:
            ran = await run(sandbox, code, environment={"TOKEN": secret})
            assert ran.stdout == f"{secret}\n"
            tasks.cancel_scope.cancel()

        tasks.start_soon(ask)
        while True:
            await anyio.to_thread.run_sync(look)
            await anyio.sleep(0.01)
    assert seen == []

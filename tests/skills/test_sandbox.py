"""What a program in the sandbox can and cannot do (skills.md 3.4): real programs in the real sandbox."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import anyio
import pytest

from gateway.errors import SkillError
from gateway.skills.sandbox.run import Job, Limits, Ran, Sandbox, prefixes_of, python_path

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="the sandbox is for Linux")

PYTHON = python_path()


@pytest.fixture
async def sandbox() -> Sandbox:
    made = Sandbox(Limits(seconds=10, output_bytes=2048, memory_bytes=256 * 1024 * 1024, file_bytes=100_000))
    problem = await made.probe()
    if problem:
        pytest.skip(problem)
    return made


async def run(sandbox: Sandbox, code: str, *, shown_at: str = "", files: dict[str, bytes] | None = None, **environment: str) -> Ran:
    argv = (PYTHON, "-B", "-c", code)
    return await sandbox.run(Job(argv, files or {}, shown_at=shown_at, environment=environment, read_paths=prefixes_of(PYTHON)))


@pytest.mark.requirement(132)
async def test_it_works_on_a_copy_that_looks_like_the_folder_and_is_thrown_away(sandbox: Sandbox, tmp_path: Path) -> None:
    (tmp_path / "data.txt").write_text("stored")
    code = "import os; open('new', 'w').write('x'); print(open('sub/data.txt').read(), os.path.basename(os.getcwd()), os.listdir())"
    ran = await run(sandbox, code, shown_at=str(tmp_path), files={"sub/data.txt": b"copied"})
    assert (ran.exit_code, ran.stdout.split()[:1]) == (0, ["copied"])
    assert os.listdir(tmp_path) == ["data.txt"]
    assert not [name for name in os.listdir(os.path.dirname(ran.stdout.split()[1]) or ".") if name == "new"]


@pytest.mark.requirement(132)
async def test_its_environment_is_made_from_nothing(sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "secret")
    ran = await run(sandbox, "import os; print(sorted(os.environ))", EXTRA="1")
    assert ran.stdout.strip() == "['EXTRA', 'HOME', 'LANG', 'PATH', 'TMPDIR']"
    assert (await run(sandbox, "import sys; print(repr(sys.stdin.read()))")).stdout == "''\n"


FORBIDDEN = {
    "read a file of somebody": "open(path).read()",
    "read the password file": "open('/etc/passwd').read()",
    "list a folder of somebody": "os.listdir(os.path.dirname(path))",
    "write a file of somebody": "open(path, 'a')",
    "shorten a file of somebody": "os.truncate(path, 0)",
    "make a file beside it": "open(path + '.new', 'w')",
    "link it here and read that": "os.link(path, 'x'); open('x').read()",
    "link it here by name and read that": "os.symlink(path, 'y'); open('y').read()",
    "write to what it is to run": "open('given.txt', 'w')",
    "connect": "socket.create_connection(('127.0.0.1', port), 2)",
    "send a datagram": "socket.socket(socket.AF_INET, socket.SOCK_DGRAM).sendto(b'x', ('127.0.0.1', port))",
    "reach a local service": "socket.socket(socket.AF_UNIX).connect('/var/run/docker.sock')",
    "signal its parent": "os.kill(parent, 0)",
    "make a namespace": "(_ for _ in ()).throw(OSError()) if libc.unshare(0x10000000) else None",
    "mount something": "(_ for _ in ()).throw(OSError()) if libc.mount(b'none', b'/tmp', b'tmpfs', 0, None) else None",
    "trace something": "(_ for _ in ()).throw(OSError()) if libc.ptrace(16, parent, 0, 0) else None",
    "open many files": "[open('/dev/null') for _ in range(100)]",
    "write a large file": "signal.signal(signal.SIGXFSZ, signal.SIG_IGN); open('big', 'wb').write(b'x' * 200_000)",
}


@pytest.mark.attack(10)
async def test_nothing_outside_can_be_touched(sandbox: Sandbox, tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("secret")
    code = [
        "import ctypes, os, signal, socket",
        f"path, parent, port = {str(secret)!r}, {os.getpid()}, 9",
        "libc = ctypes.CDLL(None)",
        "done = []",
        *[
            line
            for name, work in FORBIDDEN.items()
            for line in ("try:", f"    {work}", f"    done.append({name!r})", "except OSError:", "    pass")
        ],
        "print(done)",
    ]
    ran = await run(sandbox, "\n".join(code), files={"given.txt": b"as granted"})
    assert (ran.stdout, ran.stderr, secret.read_text()) == ("[]\n", "", "secret")


@pytest.mark.attack(10)
async def test_memory_is_limited(sandbox: Sandbox) -> None:
    ran = await run(sandbox, "x = b'x' * (400 * 1024 * 1024)")
    assert ran.exit_code == 1 and "MemoryError" in ran.stderr


@pytest.mark.requirement(132)
async def test_output_is_cut_and_says_so(sandbox: Sandbox) -> None:
    ran = await run(sandbox, "import sys; print('a' * 5000); print('b' * 10, file=sys.stderr)")
    assert (ran.exit_code, ran.is_cut, ran.stdout.count("a") < 2100, ran.stderr) == (0, True, True, "b" * 10 + "\n")
    assert "cut here" in ran.stdout


@pytest.mark.requirement(132)
@pytest.mark.attack(10)
async def test_time_is_limited_and_everything_it_started_ends_with_it(tmp_path: Path) -> None:
    sandbox = Sandbox(Limits(seconds=0.7))
    mark = f"mark-{tmp_path.name}-{os.getpid()}"
    code = f"""
import os, time
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        mark = {mark!r}
        time.sleep(60)
time.sleep(60)
"""
    started = time.monotonic()
    ran = await run(sandbox, code)
    assert (ran.timed_out, ran.exit_code) == (True, 137)
    assert time.monotonic() - started < 8
    await gone(mark)


async def test_what_it_leaves_behind_ends_when_it_ends(sandbox: Sandbox, tmp_path: Path) -> None:
    mark = f"left-{tmp_path.name}-{os.getpid()}"
    with anyio.fail_after(8):
        ran = await run(sandbox, f"import os, time\nif os.fork() == 0:\n    mark = {mark!r}\n    time.sleep(60)\nprint('done')")
    assert (ran.exit_code, "done" in ran.stdout) == (0, True)
    await gone(mark)


async def gone(mark: str) -> None:
    """Until the kernel has ended them: it is told at once and takes its moment."""
    with anyio.fail_after(5):
        while running_with(mark):
            await anyio.sleep(0.02)


def running_with(mark: str) -> list[str]:
    """Processes whose command line holds `mark`."""
    found: list[str] = []
    for place in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if mark.encode() in place.read_bytes():
                found.append(place.parent.name)
        except OSError:
            continue
    return found


async def test_a_cancelled_run_ends_its_program(sandbox: Sandbox, tmp_path: Path) -> None:
    mark = f"cancelled-{tmp_path.name}-{os.getpid()}"
    with anyio.fail_after(8):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(run, sandbox, f"import time; mark = {mark!r}; time.sleep(60)")
            while not running_with(mark):
                await anyio.sleep(0.02)
            tasks.cancel_scope.cancel()
    await gone(mark)


async def test_a_program_that_is_not_there_is_an_error_that_says_so(sandbox: Sandbox) -> None:
    with pytest.raises(SkillError, match="No such file"):
        await sandbox.run(Job(("/usr/bin/no-such-program",), {}))


async def test_the_exit_code_and_both_outputs_come_apart(sandbox: Sandbox) -> None:
    ran = await run(sandbox, "import sys; print('out'); print('err', file=sys.stderr); sys.exit(3)")
    assert (ran.exit_code, ran.stdout, ran.stderr) == (3, "out\n", "err\n")

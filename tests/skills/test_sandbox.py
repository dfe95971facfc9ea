"""The sandbox: what real programs in it can and cannot do."""

from __future__ import annotations

import dataclasses
import os
import re
import sys
import time
from pathlib import Path

import anyio
import pytest

from gateway.errors import SkillError
from gateway.skills.sandbox import landlock, seccomp
from gateway.skills.sandbox.kernel import MACHINES, NEWEST, NUMBERS
from gateway.skills.sandbox.sandbox import Job, Limits, Sandbox, prefixes_of, wrapper_command
from tests.skills.sandboxes import KINDS, PYTHON, Kind, need_sandbox, run, sandbox_of

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="the sandbox is for Linux")


@pytest.fixture(params=KINDS)
async def sandbox(request: pytest.FixtureRequest) -> Sandbox:
    kind: Kind = request.param
    return await sandbox_of(kind)


@pytest.mark.requirement(132)
async def test_program_runs_in_a_temporary_copy(sandbox: Sandbox, tmp_path: Path) -> None:
    (tmp_path / "data.txt").write_text("stored")
    code = "import os; open('new', 'w').write('x'); print(open('sub/data.txt').read(), os.path.basename(os.getcwd()), os.listdir())"
    ran = await run(sandbox, code, shown_at=str(tmp_path), files={"sub/data.txt": b"copied"})
    assert (ran.exit_code, ran.stdout.split()[:1]) == (0, ["copied"])
    assert os.listdir(tmp_path) == ["data.txt"]
    assert not [name for name in os.listdir(os.path.dirname(ran.stdout.split()[1]) or ".") if name == "new"]


@pytest.mark.requirement(132)
async def test_environment_has_only_safe_variables(sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "secret")
    ran = await run(sandbox, "import os; print(sorted(os.environ))", environment={"EXTRA": "1"})
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
async def test_files_outside_are_protected(sandbox: Sandbox, tmp_path: Path) -> None:
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
async def test_long_output_is_cut_with_a_marker(sandbox: Sandbox) -> None:
    ran = await run(sandbox, "import sys; print('a' * 5000); print('b' * 10, file=sys.stderr)")
    assert (ran.exit_code, ran.is_cut, ran.stdout.count("a") < 2100, ran.stderr) == (0, True, True, "b" * 10 + "\n")
    assert "cut here" in ran.stdout


@pytest.mark.requirement(132)
@pytest.mark.attack(10)
@pytest.mark.parametrize("kind", KINDS)
async def test_timeout_ends_all_processes(tmp_path: Path, kind: Kind) -> None:
    sandbox = await sandbox_of(kind)  # a busy machine needs longer for the test run
    sandbox.limits = Limits(seconds=2)
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
    assert time.monotonic() - started < 30
    await gone(mark)


async def test_leftover_processes_end_with_the_program(sandbox: Sandbox, tmp_path: Path) -> None:
    mark = f"left-{tmp_path.name}-{os.getpid()}"
    with anyio.fail_after(20):
        ran = await run(sandbox, f"import os, time\nif os.fork() == 0:\n    mark = {mark!r}\n    time.sleep(60)\nprint('done')")
    assert (ran.exit_code, "done" in ran.stdout) == (0, True)
    await gone(mark)


async def gone(mark: str) -> None:
    """Wait until the kernel has ended the processes, which takes a moment."""
    with anyio.fail_after(20):
        while running_with(mark):
            await anyio.sleep(0.02)


def running_with(mark: str) -> list[str]:
    """Return the processes whose command line contains `mark`."""
    found: list[str] = []
    for process in Path("/proc").iterdir():  # glob would raise if a process ends meanwhile
        try:
            if process.name.isdigit() and mark.encode() in (process / "cmdline").read_bytes():
                found.append(process.name)
        except OSError:
            continue
    return found


async def test_cancelled_run_ends_program(sandbox: Sandbox, tmp_path: Path) -> None:
    mark = f"cancelled-{tmp_path.name}-{os.getpid()}"
    with anyio.fail_after(20):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(run, sandbox, f"import time; mark = {mark!r}; time.sleep(60)")
            while not running_with(mark):
                await anyio.sleep(0.02)
            tasks.cancel_scope.cancel()
    await gone(mark)


async def test_missing_program_is_an_error(sandbox: Sandbox) -> None:
    with pytest.raises(SkillError, match="No such file"):
        await sandbox.run(Job(("/usr/bin/no-such-program",), {}))


@pytest.mark.attack(42)
async def test_callers_share_slots_fairly() -> None:
    sandbox, ended = Sandbox(concurrency=1), list[str]()

    async def work(caller: str) -> None:
        with pytest.raises(SkillError, match="No such file"):
            await sandbox.run(Job(("/usr/bin/no-such-program",), {}, caller=caller))
        ended.append(caller)

    await need_sandbox()
    with anyio.fail_after(60):
        async with anyio.create_task_group() as tasks:
            for caller in ("anna", "anna", "anna", "anna", "bob"):
                tasks.start_soon(work, caller)
    assert ended == ["anna", "anna", "bob", "anna", "anna"]


async def test_exit_code_and_outputs_are_separate(sandbox: Sandbox) -> None:
    ran = await run(sandbox, "import sys; print('out'); print('err', file=sys.stderr); sys.exit(3)")
    assert (ran.exit_code, ran.stdout, ran.stderr) == (3, "out\n", "err\n")


async def test_network_grant_adds_only_the_network(sandbox: Sandbox, tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("x")
    code = f"open({str(tmp_path / 'secret')!r}).read()"
    ran = await sandbox.run(Job((PYTHON, "-B", "-c", code), {}, read_paths=prefixes_of(PYTHON), network=True))
    refused = "FileNotFoundError" if not sandbox.gap else "PermissionError"
    assert ran.exit_code != 0 and refused in ran.stderr


def test_bubblewrap_shares_only_readable_paths() -> None:
    job = Job(("/usr/bin/python3",), {}, read_paths=("/opt/tool",))
    words = wrapper_command("/usr/bin/bwrap", job, "/tmp/x", 1000)
    assert words[:5] == ["/usr/bin/bwrap", "--unshare-all", "--die-with-parent", "--new-session", "--proc"]
    assert (words[-1], words[-3:-1]) == ("--", ["--chdir", "/tmp/x/own"])
    readable = [words[at + 1] for at, word in enumerate(words) if word == "--ro-bind-try"]
    assert "--bind" not in words and words[words.index("--size") : words.index("--size") + 4] == ["--size", "1000", "--tmpfs", "/tmp/x/own"]
    assert "/opt/tool" in readable and not {"/", "/home", "/etc", "/tmp"} & set(readable)
    assert "--share-net" not in words
    assert "--share-net" in wrapper_command("/usr/bin/bwrap", dataclasses.replace(job, network=True), "/tmp/x", 1000)


async def test_failed_probe_returns_reason(tmp_path: Path) -> None:
    await need_sandbox()
    fake = tmp_path / "bwrap"
    fake.write_text("#!/bin/sh\necho 'bwrap: No permissions to create new namespace' >&2\nexit 1\n")
    fake.chmod(0o755)
    starved = Sandbox(Limits(memory_bytes=1), wrapper_path=str(tmp_path))  # no program can start with so little memory
    assert "No permissions to create new namespace" in await starved.probe()
    assert "a test run failed" in await Sandbox(Limits(memory_bytes=1), wrapper_path=str(tmp_path / "none")).probe()


HEADERS = {"x86_64": "/usr/include/x86_64-linux-gnu/asm/unistd_64.h", "aarch64": "/usr/include/asm-generic/unistd.h"}


@pytest.mark.parametrize("machine", sorted(HEADERS))
def test_system_call_numbers_match_kernel_headers(machine: str) -> None:
    header = Path(HEADERS[machine])
    if not header.exists():
        pytest.skip(f"there is no {header}")
    known = {m[1]: int(m[2]) for m in re.finditer(r"#define __NR(?:3264)?_(\w+)\s+(\d+)", header.read_text())}
    ours = {name: numbers[MACHINES.index(machine)] for name, numbers in NUMBERS.items()}
    newest = max(known.values())
    assert {name: number for name, number in ours.items() if number is not None and number <= newest and known.get(name) != number} == {}
    assert [name for name, number in ours.items() if number is None and name in known] == []


def test_refused_calls_have_numbers() -> None:
    named = {*seccomp.ATTRIBUTES, *seccomp.PRETENDED, *seccomp.UNBOUNDED, *seccomp.OTHERS}
    named |= {*seccomp.GROUPS, *seccomp.OF_PROCESSES}
    assert named <= NUMBERS.keys()
    assert max(number for numbers in NUMBERS.values() for number in numbers if number is not None) == NEWEST


def test_landlock_rights_match_kernel_headers() -> None:
    header = Path("/usr/include/linux/landlock.h")
    if not header.exists():
        pytest.skip(f"there is no {header}")
    rights = {m[1]: int(m[2]) for m in re.finditer(r"LANDLOCK_ACCESS_FS_(\w+)\s+\(1ULL << (\d+)\)", header.read_text())}
    names = ("EXECUTE", "WRITE_FILE", "READ_FILE", "READ_DIR", "TRUNCATE", "IOCTL_DEV")
    ours = {name: getattr(landlock, name) for name in names}
    assert {name: 1 << rights[name] for name in ours if name in rights} == {name: ours[name] for name in ours if name in rights}
    assert landlock.ALL_BY_ABI[1] == (1 << rights["MAKE_SYM"] + 1) - 1 and landlock.ALL_BY_ABI[3] & landlock.TRUNCATE

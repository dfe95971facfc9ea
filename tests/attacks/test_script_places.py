"""Scripts of skills under restricted gateways: run as `nobody`, in a container that refuses system calls, or killed meanwhile."""

from __future__ import annotations

import json
import os
import shutil
import signal
import site
import subprocess
import sys
import tempfile
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import anyio
import pytest

from gateway.skills.sandbox import NOBODY
from gateway.skills.sandbox.kernel import number_of
from gateway.skills.sandbox.sandbox import SAFE_PATH, is_open_to_all, python_path
from tests.cli.processes import environment
from tests.fakes.running import ROOT, child, free_port, wait_until_ready, write_config
from tests.interaction.wire import over_http
from tests.skills.on_disk import write_skill
from tests.skills.sandboxes import Kind, need_sandbox, restricted, sandbox_of
from tests.skills.test_sandbox import gone, running_with
from tests.skills.test_scripts import granted

pytestmark = [
    pytest.mark.attack(10),
    pytest.mark.timeout(120),
    pytest.mark.skipif(not sys.platform.startswith("linux"), reason="the sandbox is for Linux"),
]


def config_of(folder: Path, script: str, **grant: Any) -> dict[str, Any]:
    """Return a configuration with one script that is allowed to run."""
    write_skill(folder / "skills" / "one", files={"run.py": script})
    (found,) = granted(folder / "skills", "one", "run.py")
    allow = [found.model_copy(update=grant).model_dump(by_alias=True)]
    return {
        "expose": {"skills": [str(folder / "skills")]},
        "skills": {"scripts": {"enabled": True, "allow": allow, "approval": "never"}},
    }


async def run_script(url: str) -> dict[str, Any]:
    """Run the script and return its result."""
    async with over_http(url, "modern", tasks=False) as wire:
        done = await wire.send("tools/call", name="run_skill_script", arguments={"skill_name": "one", "script_name": "run.py"})
        return done["result"]["structuredContent"]


def python_of_everybody() -> str | None:
    """A Python of this version that any user may start, since a home folder is closed to others."""
    version = f"python{sys.version_info[0]}.{sys.version_info[1]}"
    candidates = (os.path.realpath(sys.executable), f"/usr/bin/{version}", f"/usr/local/bin/{version}")
    return next((path for path in candidates if os.access(path, os.X_OK) and is_open_to_all(path)), None)


@contextmanager
def gateway_of_nobody(folder: Path, config: dict[str, Any]) -> Generator[str]:
    """A gateway whose user is `nobody`, with a home folder that does not exist."""
    python = python_of_everybody()
    if os.geteuid() != 0 or python is None or not is_open_to_all(str(ROOT)):
        pytest.skip("needs root, and a Python and a checkout that any user may read")
    port = free_port()
    state = folder / "state"
    state.mkdir()
    os.chown(state, NOBODY, NOBODY)
    path = write_config(folder, {**config, "storage": {"dir": str(state)}})
    for place in (folder, *folder.rglob("*")):
        place.chmod(0o755)
    modules = os.pathsep.join([str(ROOT), *site.getsitepackages()])
    env = {"HOME": "/nonexistent", "PATH": "/usr/bin:/bin", "PYTHONPATH": modules, "PYTHONDONTWRITEBYTECODE": "1"}
    argv = [python, "-m", "gateway", "run", "--http", f"127.0.0.1:{port}", "--config", str(path)]
    log = folder / "gateway.log"
    with log.open("wb") as stderr:
        process = subprocess.Popen(argv, env=env, cwd="/", stderr=stderr, user=NOBODY, group=NOBODY, extra_groups=[])
    with process:
        try:
            wait_until_ready(process, f"http://127.0.0.1:{port}/ready", log)
            yield f"http://127.0.0.1:{port}/mcp"
        finally:
            process.terminate()


@pytest.mark.parametrize("network", [False, True], ids=["alone", "network"])
async def test_scripts_run_under_a_gateway_of_user_nobody(network: bool) -> None:
    await need_sandbox(network=network)
    script = "import os, subprocess\nprint(os.getuid(), subprocess.run(['/bin/echo', 'child'], capture_output=True, text=True).stdout)"
    with tempfile.TemporaryDirectory() as name:  # pytest's own folders are closed to others
        folder = Path(name)
        with gateway_of_nobody(folder, config_of(folder, script, network=network)) as url:
            ran = await run_script(url)
    assert (ran["stdout"].split(), ran["stderr"]) == ([str(NOBODY), "child"], "")


def python_for_nobody_only() -> str:
    """Return a Python that every user can start; skip the test unless the gateway is root and only root can reach its own Python."""
    python = shutil.which("python3", path=SAFE_PATH)
    if os.geteuid() != 0 or is_open_to_all(python_path()) or python is None or not is_open_to_all(python):
        pytest.skip("needs root, a Python of this gateway that only root can reach, and another one for everybody")
    return python


CONNECT = """
import os, socket
try:
    socket.create_connection(("127.0.0.1", 9), 2)
except OSError as error:
    print(os.getuid(), error.strerror)
"""


async def test_script_with_network_runs_as_nobody_under_a_root_gateway(tmp_path: Path) -> None:
    python = python_for_nobody_only()
    await need_sandbox(network=True)
    config = config_of(tmp_path, CONNECT, network=True)
    config["skills"]["scripts"]["interpreters"] = {"python": python}
    port = free_port()
    path, log = write_config(tmp_path, config), tmp_path / "gateway.log"
    with child("-m", "gateway", "run", "--http", f"127.0.0.1:{port}", "--config", str(path), log=log) as process:
        wait_until_ready(process, f"http://127.0.0.1:{port}/ready", log)
        ran = await run_script(f"http://127.0.0.1:{port}/mcp")
    assert (ran["stdout"], ran["stderr"]) == (f"{NOBODY} Permission denied\n", "")


async def test_doctor_tries_the_python_that_scripts_run_by(tmp_path: Path) -> None:
    await need_sandbox()
    broken = tmp_path / "python"
    broken.write_text("#!/bin/sh\nexit 3\n")
    broken.chmod(0o755)
    config = config_of(tmp_path, "print('ran')")
    config["skills"]["scripts"]["interpreters"] = {"python": str(broken)}
    argv = [sys.executable, "-m", "gateway", "doctor", "--json", "--config", str(write_config(tmp_path, config))]
    done = await anyio.run_process(argv, env=environment(tmp_path), cwd=ROOT, check=False)
    checks = [check for check in json.loads(done.stdout)["checks"] if check["subject"] == "scripts of skills"]
    assert [(check["status"], "exit code 3" in check["text"]) for check in checks] == [("fail", True)], checks


UNREADABLE = """
import os, sys
sys.path.append(sys.argv[1])
from sandbox import disk_usage
os.mkdir(sys.argv[2] + "/hidden", 0o300)
print(disk_usage.Usage(sys.argv[2], os.getpid(), max_bytes=10**9, max_files=10**9, max_file_bytes=1).is_exceeded())
"""


def test_folder_that_the_launcher_cannot_read_counts_as_too_much(tmp_path: Path) -> None:
    python = python_of_everybody()
    if os.geteuid() != 0 or python is None or not is_open_to_all(str(ROOT)):
        pytest.skip("needs root, and a Python and a checkout that any user may read")
    with tempfile.TemporaryDirectory() as folder:
        os.chown(folder, NOBODY, NOBODY)
        argv = [python, "-c", UNREADABLE, str(ROOT / "gateway" / "skills"), folder]
        done = subprocess.run(argv, env={}, cwd="/", capture_output=True, check=False, user=NOBODY, group=NOBODY, extra_groups=[])
    assert (done.stdout, done.stderr) == (b"True\n", b"")


REFUSALS = {
    "namespaces": (["unshare"], "scripts of skills", "warn", "names, sizes and modes", "Allow user namespaces"),
    "mounts": (["mount"], "scripts of skills", "warn", "mounts are not allowed in a user namespace", "Allow user namespaces"),
    "descriptors": (["pidfd_getfd"], "scripts with a network", "fail", "connecting to this machine", "--cap-add SYS_PTRACE"),
    "everything": (["unshare", "landlock_create_ruleset"], "scripts of skills", "fail", "Landlock is missing", "install bubblewrap"),
}


KINDS: dict[str, Kind] = {"namespaces": "no namespaces", "mounts": "no mounts", "descriptors": "own root"}


@pytest.mark.parametrize("refused", REFUSALS)
async def test_doctor_names_what_a_container_keeps_from_scripts(refused: str, tmp_path: Path) -> None:
    if refused in KINDS:
        await sandbox_of(KINDS[refused])
    names, subject, status, text, fix = REFUSALS[refused]
    path = write_config(tmp_path, config_of(tmp_path, "print('ran')", network=True))
    numbers = [number for name in names if (number := number_of(name)) is not None]
    argv = restricted(numbers, [sys.executable, "-m", "gateway", "doctor", "--json", "--config", str(path)])
    env = {**environment(tmp_path), "PATH": str(tmp_path)}  # without bubblewrap
    done = await anyio.run_process(argv, env=env, cwd=ROOT, check=False)
    checks = [check for check in json.loads(done.stdout)["checks"] if check["subject"] == subject and check["status"] != "ok"]
    assert [(check["status"], text in check["text"], fix in check["fix"]) for check in checks] == [(status, True, True)], checks


@pytest.mark.parametrize("killed", ["gateway", "launcher"])
async def test_killed_gateway_or_launcher_leaves_no_script(killed: str, tmp_path: Path) -> None:
    await need_sandbox()
    mark = f"left-{tmp_path.name}-{os.getpid()}"
    sleep = "import time; time.sleep(90)"
    script = f"import subprocess, sys\nsubprocess.Popen([sys.executable, '-c', {sleep!r}, {mark!r}])\n{sleep}"
    config = config_of(tmp_path, script)
    config["skills"]["scripts"]["timeoutSeconds"] = 90
    port = free_port()
    path, log = write_config(tmp_path, config), tmp_path / "gateway.log"
    with child("-m", "gateway", "run", "--http", f"127.0.0.1:{port}", "--config", str(path), log=log) as process:
        wait_until_ready(process, f"http://127.0.0.1:{port}/ready", log)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(attempt, f"http://127.0.0.1:{port}/mcp")
            with anyio.fail_after(30):
                while not running_with(mark):
                    await anyio.sleep(0.02)
            if killed == "launcher":
                process.send_signal(signal.SIGSTOP)  # so that the gateway cannot end the run itself
                for pid in children_of(process.pid):
                    os.kill(pid, signal.SIGKILL)
                await gone(mark)
            process.kill()
            await gone(mark)
            tasks.cancel_scope.cancel()


def children_of(pid: int) -> list[int]:
    """Processes that any thread of `pid` started."""
    return [int(word) for path in Path(f"/proc/{pid}/task").glob("*/children") for word in path.read_text().split()]


async def attempt(url: str) -> None:
    """Run the script and ignore errors, because the gateway may be killed meanwhile."""
    try:
        await run_script(url)
    except Exception:  # the client's error does not matter here
        return

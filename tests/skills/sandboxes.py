"""Sandboxes of every kind on one machine: a seccomp filter refuses the system calls that a kernel or container may refuse."""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from typing import Literal

import anyio
import pytest

from gateway.skills.sandbox import landlock
from gateway.skills.sandbox.kernel import number_of
from gateway.skills.sandbox.sandbox import FinishedJob, Job, Limits, Sandbox, prefixes_of, python_path

PYTHON = python_path()
SMALL = Limits(seconds=10, output_bytes=2048, memory_bytes=256 * 1024 * 1024, file_bytes=100_000)

Kind = Literal["own root", "no landlock", "no mounts", "no namespaces", "wrapper"]
KINDS: tuple[Kind, ...] = ("own root", "no landlock", "no mounts", "no namespaces", "wrapper")
HIDES_NAMES: tuple[Kind, ...] = ("own root", "no landlock", "wrapper")
"""Kinds of sandboxes in which a script cannot even read the attributes of files outside."""

_LANDLOCK = "landlock_create_ruleset"
_REFUSED: dict[Kind, tuple[str, ...]] = {
    "own root": (),
    "no landlock": (_LANDLOCK,),
    "no mounts": ("mount",),
    "no namespaces": ("unshare",),
    "wrapper": (_LANDLOCK,),
}
_NEEDED: dict[Kind, Sequence[str]] = {
    **dict.fromkeys(("own root", "no landlock", "no mounts"), ("unshare", "--user", "--map-root-user", "--mount", "true")),
    "wrapper": ("bwrap", "--unshare-all", "--ro-bind", "/", "/", "true"),
}
"""For each kind, a command that succeeds only if the machine supports the kind."""

_FILTER = """
import ctypes, json, os, struct, sys
code = [(0x20, 0, 0, 0)]
for number in json.loads(sys.argv[1]):
    code += [(0x15, 0, 1, number), (0x06, 0, 0, 0x00050001)]
code += [(0x06, 0, 0, 0x7FFF0000)]
packed = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *line) for line in code))
libc = ctypes.CDLL(None)
assert libc.prctl(38, 1, 0, 0, 0) == 0
assert libc.prctl(22, 2, struct.pack("HxxxxxxP", len(code), ctypes.addressof(packed)), 0, 0) == 0
os.execv(sys.argv[2], sys.argv[2:])
"""


def restricted(numbers: Sequence[int | None], command: Sequence[str]) -> list[str]:
    """Return a command that starts another command, for which these system calls fail with `EPERM`."""
    return [PYTHON, "-I", "-S", "-c", _FILTER, json.dumps(list(numbers)), *command]


class RestrictedSandbox(Sandbox):
    """A sandbox for which some system calls fail with `EPERM`, as in containers."""

    def __init__(self, limits: Limits, *refused: str, wrapper: str | None = None, start: str = "") -> None:
        super().__init__(limits, wrapper_path="")
        self._wrapper = wrapper or ""
        self._refused = [number_of(name) for name in refused]
        self._start_by = start

    def refuse(self, name: str) -> None:
        """Make one more system call fail with `EPERM` from here on."""
        self._refused.append(number_of(name))

    def with_limits(self, limits: Limits) -> RestrictedSandbox:
        """Return a sandbox that protects like this one, with other limits. It is not probed again, which would start two programs."""
        made = RestrictedSandbox(limits, wrapper=self._wrapper, start=self._start_by)
        made._refused = [*self._refused]
        made.gap, made._may_fall_back = self.gap, self._may_fall_back
        return made

    def _command(self, job: Job, folder: str) -> list[str]:
        command = super()._command(job, folder)
        if self._start_by:
            command[-1] = self._start_by
        return restricted(self._refused, command) if self._refused else command


_probed: dict[Kind, RestrictedSandbox] = {}
_problems: dict[bool, str] = {}


async def sandbox_problem(*, network: bool = False) -> str:
    """Return why this machine cannot run scripts, or scripts with a network; empty if it can."""
    if network not in _problems:
        sandbox = Sandbox()
        _problems[network] = await sandbox.probe() or (await sandbox.probe_network() if network else "")
    return _problems[network]


async def need_sandbox(*, network: bool = False) -> None:
    """Skip the test by name on a machine that cannot run scripts, or scripts with a network."""
    if problem := await sandbox_problem(network=network):
        pytest.skip(problem)


async def sandbox_of(kind: Kind, limits: Limits = SMALL) -> RestrictedSandbox:
    """Return a sandbox of this kind; skip the test by name on a machine that does not support it. Each kind is probed once per process."""
    if kind not in _probed:
        _probed[kind] = await _probed_sandbox(kind)
    return _probed[kind].with_limits(limits)


async def _probed_sandbox(kind: Kind) -> RestrictedSandbox:
    if kind in ("no mounts", "no namespaces") and landlock.version() < landlock.ENOUGH_FOR_SIGNALS:
        pytest.skip("this kernel's Landlock is too old")
    if command := _NEEDED.get(kind):
        done = await anyio.run_process([*command], check=False) if shutil.which(command[0]) else None
        if done is None or done.returncode != 0:
            pytest.skip(f"{command[0]} is not installed, or not allowed to make namespaces")
    made = RestrictedSandbox(SMALL, *_REFUSED[kind], wrapper=shutil.which("bwrap") if kind == "wrapper" else None)
    assert await made.probe() == ""
    assert bool(made.gap) == (kind not in HIDES_NAMES), made.gap
    return made


async def run(
    sandbox: Sandbox,
    code: str,
    *arguments: str,
    shown_at: str = "",
    files: dict[str, bytes] | None = None,
    network: bool = False,
    read: tuple[str, ...] = (),
    environment: dict[str, str] | None = None,
) -> FinishedJob:
    """Run Python code in a sandbox."""
    argv = (PYTHON, "-B", "-c", code, *arguments)
    job = Job(
        argv,
        files or {},
        shown_at=shown_at,
        environment=environment or {},
        read_paths=(*prefixes_of(PYTHON), *read),
        network=network,
    )
    return await sandbox.run(job)

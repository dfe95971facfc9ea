"""A pytest plugin for a copy of the tree: measures which test runs which line, or runs the fitting tests against mutants.

The session collects once. Each mutant then gets a forked process: the changed file is on disk, so that gateways started by tests have
it, and the functions of the module that is already imported get their new code. The parent never has a mutant.
"""

from __future__ import annotations

import gc
import json
import os
import signal
import time
import types
from collections.abc import Generator
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

PLAN = "MUTANTS_PLAN"
"""Environment: the file that says what the session does (`__main__`)."""

MARK = "MUTANTS_RUN"
"""Environment variable with the mutant's id, set for a mutant's tests and for the processes that they start."""

GRACE_SECONDS = 30.0
"""Seconds added to the time limit of a mutant's tests, which is their time without a mutant times `SLOWER`."""

SLOWER = 6.0
"""How much slower the machine may be than it was when the times were measured."""


@pytest.hookimpl(tryfirst=True)
def pytest_runtestloop(session: pytest.Session) -> bool | None:
    """Run what the plan says instead of all tests."""
    plan = json.loads(Path(os.environ[PLAN]).read_text())
    if "measure" in plan:
        return None
    by_id = {item.nodeid: item for item in session.items}
    until = time.monotonic() + plan["seconds"]
    with Path(plan["results"]).open("a") as results:
        for mutant in plan["mutants"]:
            if time.monotonic() > until:
                break
            items = [by_id[name] for name in mutant["tests"] if name in by_id]
            began = time.monotonic()
            verdict = _judge(session, items, mutant)
            row = {"id": mutant["id"], "verdict": verdict, "tests": len(items), "seconds": round(time.monotonic() - began, 1)}
            results.write(json.dumps(row) + "\n")
            results.flush()
    return True


def _judge(session: pytest.Session, items: list[pytest.Item], mutant: dict[str, Any]) -> str:
    path = Path(mutant["path"])
    source = path.read_text()
    path.write_text(mutant["source"])
    try:
        pid = os.fork()
        if pid == 0:
            _run_tests(session, items, mutant)
        return _outcome(pid, mutant["expected"] * SLOWER + GRACE_SECONDS)
    finally:
        path.write_text(source)
        _end(mutant["id"])


def _outcome(pid: int, seconds: float) -> str:
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        done, status = os.waitpid(pid, os.WNOHANG)
        if done:
            return "survived" if os.WIFEXITED(status) and os.WEXITSTATUS(status) == 0 else "killed"
        time.sleep(0.01)
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    return "timeout"


def _run_tests(session: pytest.Session, items: list[pytest.Item], mutant: dict[str, Any]) -> None:
    """In the forked process: never returns. Exits with 0 if all tests pass."""
    code = 1
    try:
        os.environ[MARK] = mutant["id"]
        nothing = os.open(os.devnull, os.O_RDWR)
        for number in (0, 1, 2):
            os.dup2(nothing, number)
        _replace(mutant["path"], compile(mutant["source"], mutant["path"], "exec", dont_inherit=True))
        session.items = items
        session.config.option.maxfail = 1
        from _pytest.main import pytest_runtestloop as run

        run(session)
        code = 1 if session.testsfailed else 0
    finally:
        os._exit(code)


def _replace(path: str, module: types.CodeType) -> None:
    """Give each function of the module its new code."""
    new = {(code.co_qualname, code.co_firstlineno): code for code in _codes(module)}
    for found in gc.get_objects():
        if isinstance(found, types.FunctionType) and found.__code__.co_filename == path:
            code = new.get((found.__code__.co_qualname, found.__code__.co_firstlineno))
            if code is not None and code.co_freevars == found.__code__.co_freevars:
                found.__code__ = code


def _codes(code: types.CodeType) -> list[types.CodeType]:
    inner = [constant for constant in code.co_consts if isinstance(constant, types.CodeType)]
    return [*inner, *(each for one in inner for each in _codes(one))]


def _end(mutant: str) -> None:
    """Kill the processes that a mutant's tests left behind."""
    mark = f"{MARK}={mutant}".encode()
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal() and int(entry.name) != os.getpid():
            with suppress(OSError):
                if mark in (entry / "environ").read_bytes().split(b"\0"):
                    os.kill(int(entry.name), signal.SIGKILL)


class Measure:
    """Notes for each test the lines that it runs in this process, and how long it takes."""

    def __init__(self, root: Path, packages: list[str], out: Path) -> None:
        coverage: Any = import_module("coverage")  # `make mutants` installs it, `make types` runs without it
        self._root, self._out = root, out
        self._coverage: Any = coverage.Coverage(data_file=None, include=[str(root / package) for package in packages], config_file=False)
        self._coverage.set_option("run:disable_warnings", ["no-data-collected"])
        self._seconds: dict[str, float] = {}
        self._failed: set[str] = set()

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, object, object]:
        """Record the lines and the duration of one test; each test is one coverage context."""
        self._coverage.switch_context(item.nodeid)
        began = time.monotonic()
        result = yield
        self._seconds[item.nodeid] = round(time.monotonic() - began, 3)
        return result

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Leave out a test that fails or is skipped without a mutant, because it cannot detect a mutant."""
        if report.failed or report.skipped:
            self._failed.add(report.nodeid)

    def pytest_collection_finish(self) -> None:
        """Measure from the first test on."""
        self._coverage.start()

    def pytest_sessionfinish(self) -> None:
        """Write the lines of each test."""
        self._coverage.stop()
        data: Any = self._coverage.get_data()
        lines: dict[str, dict[str, list[str]]] = {}
        for path in data.measured_files():
            by_line: dict[int, list[str]] = data.contexts_by_lineno(path)
            named = {str(line): sorted({name for name in names if name} - self._failed) for line, names in by_line.items()}
            lines[str(Path(path).relative_to(self._root))] = named
        self._out.write_text(json.dumps({"seconds": self._seconds, "lines": lines, "failed": sorted(self._failed)}))


def pytest_configure(config: pytest.Config) -> None:
    """Register the measurement if the plan asks for it."""
    plan = json.loads(Path(os.environ[PLAN]).read_text())
    if "measure" in plan:
        config.pluginmanager.register(Measure(Path.cwd(), plan["measure"], Path(plan["out"])))

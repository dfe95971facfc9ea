"""Runs the command line in a folder of its own: in this process, which is much faster, or as a process like its users do."""

from __future__ import annotations

import asyncio  # noqa: TID251  # whether a loop runs here, anyio does not say outside its own tasks
import io
import json
import logging
import os
import subprocess
import sys
from collections.abc import Generator, Mapping
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gateway.cli.main import run_command
from tests.fakes.nursery import sooner

TIMEOUT_SECONDS = 40


@dataclass(frozen=True)
class Ended:
    """Exit code and output of a finished command."""

    code: int
    out: str
    err: str

    @property
    def data(self) -> Any:
        """Parse the one line of JSON on stdout."""
        assert self.out.count("\n") == 1, self.out
        return json.loads(self.out)

    @property
    def error(self) -> dict[str, Any]:
        """Return the error that the command printed as JSON on stderr."""
        lines = [line for line in self.err.splitlines() if line.startswith('{"error"')]
        assert len(lines) == 1, self.err
        return json.loads(lines[0])["error"]


def in_event_loop() -> bool:
    """Return whether an event loop is running in this thread."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


@contextmanager
def untouched_logging() -> Generator[None]:
    """Restore the logging configuration after a command has changed it, for later tests."""
    loggers = [logging.getLogger(name) for name in (None, "gateway", "mcp.client.streamable_http")]
    before = [(logger, logger.level, logger.handlers[:]) for logger in loggers]
    try:
        yield
    finally:
        logging.captureWarnings(capture=False)
        for logger, level, handlers in before:
            logger.setLevel(level)
            logger.handlers[:] = handlers


def moongate(*arguments: str, cwd: Path, env: Mapping[str, str] | None = None, stdin: str = "") -> Ended:
    """Run one command to its end, with its state in `cwd`: here, without the time a process takes to start.

    A test that runs an event loop gets a process: a command runs one of its own.
    """
    if in_event_loop():
        return moongate_process(*arguments, cwd=cwd, env=env, stdin=stdin)
    out, err = io.StringIO(), io.StringIO()
    before, folder, typed = dict(os.environ), Path.cwd(), sys.stdin
    os.environ.clear()
    os.environ.update(environment(cwd, env, before))
    os.chdir(cwd)
    sys.stdin = io.StringIO(stdin)
    try:
        with redirect_stdout(out), redirect_stderr(err), untouched_logging():
            code = run_command(arguments)
    finally:
        sys.stdin = typed
        os.chdir(folder)
        os.environ.clear()
        os.environ.update(before)
    return Ended(code, out.getvalue(), err.getvalue())


def moongate_process(*arguments: str, cwd: Path, env: Mapping[str, str] | None = None, stdin: str = "") -> Ended:
    """As `moongate`, but run the command in a process of its own."""
    command, args = sooner("gateway", *arguments)
    done = subprocess.run(
        [command, *args],
        cwd=cwd,
        env=environment(cwd, env),
        input=stdin,
        capture_output=True,
        text=True,
        timeout=TIMEOUT_SECONDS,
        check=False,
    )
    return Ended(done.returncode, done.stdout, done.stderr)


def environment(folder: Path, extra: Mapping[str, str] | None = None, of: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Our environment without anything that would find the user's own configuration, state or model."""
    kept = {key: value for key, value in of.items() if not key.startswith(("MOONGATE_", "OPENAI_"))}
    return {**kept, "XDG_STATE_HOME": str(folder / "xdg-state"), **(extra or {})}


def write_gateway(folder: Path, **document: Any) -> Path:
    """Write `gateway.json` in `folder`."""
    path = folder / "gateway.json"
    path.write_text(json.dumps(document))
    return path

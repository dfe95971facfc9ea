"""Runs a page of the documentation from top to bottom, as a reader would.

- A paragraph that ends with a name in backticks and a colon names the file that the next block is written to.
- A block in `sh` is run by bash in the reader's folder, with the variables that the blocks before it exported. A block that is one
  `moongate run` starts the gateway, on a free port instead of the printed one, and leaves it running.
- A block in `text` has lines that the commands before it must have printed; `…` stands for any text.

Each page gets a folder, a home and a port of its own.
"""

from __future__ import annotations

import json
import os
import re
import select
import shlex
import signal
import subprocess
import sys
from collections.abc import Generator, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

from tests.fakes.nursery import sooner
from tests.fakes.running import START_SECONDS, STOP_SECONDS, free_port, until, wait_until_ready

BLOCK = re.compile(r"(?P<before>[^\n]*)\n\n```(?P<language>\w+)\n(?P<body>.*?)^```$", re.MULTILINE | re.DOTALL)
FILE = re.compile(r"`([^`]+)`:$")
PORT = "8765"
COMMAND_SECONDS = 120
END_OF_ANNOUNCEMENT = re.compile(r"^}$", re.MULTILINE)
"""Last line that a gateway prints when it has started: the end of the snippet for an IDE. It may come after `/ready` answers."""


@dataclass
class Walkthrough:
    """One reader at work in `folder`; leaving it stops the gateway that a page started."""

    folder: Path
    port: str = field(default_factory=lambda: str(free_port()))
    shown: str = ""
    """Output since the last block of commands began."""
    replaced: dict[str, str] = field(default_factory=dict[str, str])
    """Text of the page → what this machine has in its place, besides the port."""
    _stack: ExitStack = field(default_factory=ExitStack)

    def __enter__(self) -> Self:
        for name in ("home", "work", "bin"):
            (self.folder / name).mkdir()
        command, args = sooner("gateway")
        self.add_command("moongate", f'exec {shlex.join([command, *args])} "$@"')
        forked = shlex.join([command, *args[:-1]])
        self.add_command("python", f'case "$1" in *.py) exec {forked} "$@" ;; *) exec {shlex.quote(sys.executable)} "$@" ;; esac')
        return self

    def __exit__(self, *exc: object) -> None:
        self._stack.close()

    def add_command(self, name: str, script: str) -> None:
        """Write a command of the reader: a script of `sh`."""
        path = self.folder / "bin" / name
        path.write_text(f"#!/bin/sh\n{script}\n")
        path.chmod(0o755)

    @property
    def work(self) -> Path:
        """The reader's folder."""
        return self.folder / "work"

    @property
    def env(self) -> dict[str, str]:
        """Environment of the reader's commands, beside that of the tests."""
        home = str(self.folder / "home")
        path = os.pathsep.join([str(self.folder / "bin"), str(Path(sys.executable).parent), os.environ["PATH"]])
        return {"HOME": home, "XDG_STATE_HOME": home, "PATH": path, "MOONGATE_PYTHON": "python", "COLUMNS": "200", "MOONGATE_CONFIG": ""}

    def follow(self, page: str) -> Iterator[str]:
        """Do what each block of a page says; yield what was done, for a test to count."""
        for match in BLOCK.finditer(page):
            language, body = match["language"], self._localized(match["body"])
            named = FILE.search(match["before"])
            if named is not None:
                self._write(named[1], body)
            elif language == "sh":
                self._run(body)
            elif language == "text":
                self._check(body)
            else:
                raise AssertionError(f"a block in {language} that no file is named for:\n{body}")
            yield "file" if named is not None else language

    def _localized(self, body: str) -> str:
        for printed, there in {PORT: self.port, **self.replaced}.items():
            body = body.replace(printed, there)
        return body

    def _write(self, name: str, body: str) -> None:
        path = self.work / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(body, encoding="utf-8")

    @contextmanager
    def serving(self, command: str) -> Generator[str]:
        """Start a printed `moongate run …` in the reader's folder, and stop it on leaving; yields what it printed until it was ready.

        Over HTTP the gateway gets the reader's port instead of the printed one. Over stdio it is ready when it has answered `initialize`.

        Raises:
            AssertionError: The command did not serve, or SIGTERM did not end it with exit code 0.
        """
        is_stdio = "--stdio" in command
        host = re.search(r"--http (\S+):\d+", command)
        address = "" if is_stdio else f" --http {host[1] if host else '127.0.0.1'}:{self.port}"
        log = self.folder / "run.log"
        with log.open("wb") as stderr:
            process = subprocess.Popen(
                ["bash", "-c", f"exec {command}{address}"],
                cwd=self.work,
                env={**os.environ, **self.env},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=stderr,
                start_new_session=True,
            )
        try:
            if is_stdio:
                assert '"serverInfo"' in _initialize(process), log.read_text(encoding="utf-8")
            else:
                wait_until_ready(process, f"http://127.0.0.1:{self.port}/ready", log)
                until(lambda: END_OF_ANNOUNCEMENT.search(log.read_text(encoding="utf-8")) is not None)
            yield log.read_text(encoding="utf-8")
            process.terminate()
            assert process.wait(STOP_SECONDS) == 0, log.read_text(encoding="utf-8")
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.communicate()

    def _run(self, body: str) -> None:
        if body.startswith("moongate run") and body.count("\n") == 1:
            self.shown = self._stack.enter_context(self.serving(body.strip()))
            return
        exported = shlex.quote(str(self.folder / "exported"))
        kept = f"trap 'export -p > {exported}' EXIT\ntest ! -f {exported} || . {exported}\n"
        done = subprocess.run(
            ["bash", "-euo", "pipefail", "-c", kept + body],
            cwd=self.work,
            env={**os.environ, **self.env},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=COMMAND_SECONDS,
            check=False,
        )
        assert done.returncode == 0, f"{body}{done.stdout}"
        self.shown = done.stdout

    def _check(self, body: str) -> None:
        for line in filter(str.strip, body.splitlines()):
            pattern = ".*".join(map(re.escape, line.strip().split("…")))
            assert re.search(pattern, self.shown), f"not printed: {line}\n{self.shown}"


def _initialize(process: subprocess.Popen[bytes]) -> str:
    """Send `initialize` to a gateway over stdio and return the line that it answers; empty if it ends, or does not answer in time."""
    assert process.stdin is not None and process.stdout is not None
    params = {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "reader", "version": "1"}}
    request = {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": params}
    with suppress(BrokenPipeError):
        process.stdin.write(json.dumps(request).encode() + b"\n")
        process.stdin.flush()
    answered, _, _ = select.select([process.stdout], [], [], START_SECONDS)
    return process.stdout.readline().decode() if answered else ""

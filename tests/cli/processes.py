"""Runs the command line as its users do: as a process of its own, in a folder of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

TIMEOUT_SECONDS = 40


@dataclass(frozen=True)
class Ended:
    """What a command left behind."""

    code: int
    out: str
    err: str

    @property
    def data(self) -> Any:
        """Its one line of JSON on stdout."""
        assert self.out.count("\n") == 1, self.out
        return json.loads(self.out)

    @property
    def error(self) -> dict[str, Any]:
        """The error line that `--json` promises on stderr."""
        lines = [line for line in self.err.splitlines() if line.startswith('{"error"')]
        assert len(lines) == 1, self.err
        return json.loads(lines[0])["error"]


def moongate(*arguments: str, cwd: Path, env: Mapping[str, str] | None = None, stdin: str = "") -> Ended:
    """Run one command to its end, with its state in `cwd`."""
    done = subprocess.run(
        [sys.executable, "-m", "gateway", *arguments],
        cwd=cwd,
        env=environment(cwd, env),
        input=stdin,
        capture_output=True,
        text=True,
        timeout=TIMEOUT_SECONDS,
        check=False,
    )
    return Ended(done.returncode, done.stdout, done.stderr)


def environment(folder: Path, extra: Mapping[str, str] | None = None) -> dict[str, str]:
    """Our environment without anything that would find the user's own configuration, state or model."""
    kept = {key: value for key, value in os.environ.items() if not key.startswith(("MOONGATE_", "OPENAI_"))}
    return {**kept, "XDG_STATE_HOME": str(folder / "xdg-state"), **(extra or {})}


def write_gateway(folder: Path, **document: Any) -> Path:
    """A `gateway.json` in `folder`."""
    path = folder / "gateway.json"
    path.write_text(json.dumps(document))
    return path

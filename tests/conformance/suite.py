"""Runs the official conformance suite, which `setup.sh` installs, against a URL and counts its checks."""

from __future__ import annotations

import json
import os
import subprocess
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

HOME = Path(os.environ.get("CONFORMANCE_HOME") or Path.home() / ".cache" / "moongate-conformance")
NODE = HOME / "bin" / "node"
SUITE = HOME / "js/node_modules/@modelcontextprotocol/conformance/dist/index.js"
TIMEOUT_SECONDS = 120


def is_installed() -> bool:
    """Whether `setup.sh` has run."""
    return NODE.exists() and SUITE.exists()


@dataclass
class Tally:
    """Numbers of checks by status over one or more runs, and the failed checks."""

    counts: Counter[str] = field(default_factory=lambda: Counter[str]())
    failures: list[str] = field(default_factory=lambda: list[str]())
    unexercised: list[str] = field(default_factory=lambda: list[str]())
    """Scenarios without a passed check, or with a skipped one: the suite exits 0 for those."""

    @property
    def passed(self) -> int:
        """Checks that passed."""
        return self.counts["SUCCESS"]

    def add(self, results: Path) -> None:
        """Count every scenario below a result folder."""
        for file in sorted(results.rglob("checks.json")):
            checks: list[dict[str, Any]] = json.loads(file.read_text())
            statuses = Counter(str(check["status"]) for check in checks)
            self.counts += statuses
            self.failures += [f"{check['id']}: {check.get('errorMessage')}" for check in checks if check["status"] == "FAILURE"]
            if statuses["SKIPPED"] or not statuses["SUCCESS"]:
                self.unexercised.append(file.parent.name)


def run_suite(url: str, folder: Path, *options: str) -> tuple[int, str, Tally]:
    """One run of `conformance server`: its exit code, what it printed, and its checks."""
    argv = [str(NODE), str(SUITE), "server", "--url", url, "--timeout", "30000", "-o", str(folder), *options]
    done = subprocess.run(argv, cwd=HOME, capture_output=True, text=True, timeout=TIMEOUT_SECONDS, check=False)
    tally = Tally()
    tally.add(folder)
    return done.returncode, done.stdout + done.stderr, tally

"""Accepts the commands that a changed configuration makes a running gateway execute, as `moongate add` does for its own entry."""

from __future__ import annotations

from pathlib import Path

from gateway.config.load import read_runs
from gateway.gate.acceptance import Acceptance


def accept_text(path: Path, text: str) -> None:
    """Accept every entry of the text that will be written to `path`."""
    runs, state_folder = read_runs(text, path)
    acceptance = Acceptance()
    acceptance.open(path, state_folder)
    acceptance.accept(runs)

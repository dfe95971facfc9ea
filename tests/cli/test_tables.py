"""Tables and lines fit the terminal they are printed to, and empty lists say so."""

from __future__ import annotations

import fcntl
import os
import pty
import struct
import subprocess
import termios
from pathlib import Path

import pytest

from gateway.cli.text_tables import fold, table_lines
from gateway.policy.framing import BAR, columns_of
from tests.cli.processes import environment, moongate, write_gateway
from tests.fakes.nursery import sooner
from tests.fakes.running import free_port, upstream_stdio

HEADERS = ("name", "source", "description")
ROWS = [
    ["notes__add_note", "notes", "Keep a note for later, with a text and some tags"],
    ["x", "gateway", "日本語の説明" * 6],
    ["y", "-", ""],
]


@pytest.mark.parametrize("columns", [30, 40, 50, 60, 80, 200])
@pytest.mark.parametrize("wraps_last", [True, False])
def test_table_fits_and_keeps_every_name(columns: int, wraps_last: bool) -> None:
    lines = list(table_lines(HEADERS, ROWS, columns, wraps_last=wraps_last))
    assert max(map(columns_of, lines)) <= columns
    assert {"notes__add_note", "x", "y"} <= {line.split()[0] for line in lines}
    text = "".join("".join(lines).split())
    for row in ROWS:
        for value in row if wraps_last else row[:-1]:
            assert "".join(value.strip("-").split()) in text or columns >= 50  # beside other columns, parts of a text are not adjacent


def test_table_without_a_terminal_is_as_wide_as_its_text() -> None:
    lines = list(table_lines(HEADERS, ROWS, None, wraps_last=False))
    assert lines[1] == f"notes__add_note  notes    {ROWS[0][2]}"


def test_folded_lines_keep_paths_and_the_mark_of_untrusted_text() -> None:
    path = "/a/very/long/path/" + "x" * 60
    folded = fold(f"Cannot read {path} because it is a folder", 40).split("\n")
    assert f"  {path}" in folded
    quoted = fold(f"{BAR}{'word ' * 30}", 40).split("\n")
    assert len(quoted) > 1 and all(line.startswith(BAR) and columns_of(line) <= 40 for line in quoted)


@pytest.mark.parametrize("command", ["list", "doctor"])
def test_pages_fit_a_terminal_of_60_columns(tmp_path: Path, command: str) -> None:
    servers = {"a-server-with-a-long-name": {"command": "./no-such-program-here"}}
    write_gateway(tmp_path, mcpServers=servers, storage={"dir": "state"}, server={"http": {"port": free_port()}})
    lines = _printed([command], columns=60, cwd=tmp_path)
    # A path is not broken; it stands alone on its line.
    assert [line for line in lines if columns_of(line) > 60 and str(tmp_path) not in line] == []
    assert "Cannot start './no-such-program-here': No such file" in " ".join(" ".join(lines).split())


def test_explained_rules_fit_a_terminal_of_80_columns(tmp_path: Path) -> None:
    rules = {"echo": {"text": {"enum": [f"one of many allowed words, number {number}" for number in range(9)]}}}
    write_gateway(tmp_path, mcpServers={"up": upstream_stdio()}, policies={"up": {"arguments": rules}}, storage={"dir": "state"})
    lines = _printed(["policy", "explain", "up__echo", "text=other"], columns=80, cwd=tmp_path)
    assert len(lines) > 9 and max(map(columns_of, lines)) <= 80
    assert any(line.startswith("rule      policies.up.arguments.echo.text = ") for line in lines)
    labels = {line[:10].strip() for line in lines} - {""}
    assert labels == {"tool", "verdict", "rule", "rules", "leaves"}


def _printed(words: list[str], *, columns: int, cwd: Path) -> list[str]:
    """What a command prints on stdout to a terminal of so many columns."""
    ours, its = pty.openpty()
    fcntl.ioctl(its, termios.TIOCSWINSZ, struct.pack("HHHH", 40, columns, 0, 0))
    command, args = sooner("gateway", *words)
    nothing = subprocess.DEVNULL
    with subprocess.Popen([command, *args], cwd=cwd, env=environment(cwd), stdout=its, stderr=nothing, stdin=nothing) as process:
        os.close(its)
        printed = b""
        try:
            while part := os.read(ours, 65536):
                printed += part
        except OSError:  # Linux says so when the other end is closed
            pass
        process.wait(timeout=40)
    os.close(ours)
    return printed.decode().splitlines()


def test_empty_lists_print_a_note(tmp_path: Path) -> None:
    write_gateway(tmp_path, storage={"dir": "state"}, server={"statusTool": False, "http": {"port": free_port()}})
    said = {
        "list servers": "No server is configured. `moongate add NAME URL`",
        "list agents": "No agents are served. `expose.agents`",
        "list workflows": "No workflows are served.",
        "list skills": "No skills are served.",
        "list prompts": "No prompts are served.",
        "skills list": "No skills are served.",
        "skills list --tokens": "No skills are served.",
        "keys list": "No API keys",
        "approvals list": "Nothing waits for approval.",
        "approvals rules": "No call is approved for good.",
        "audit --since 2h": "No decision in the last 2h.",
        "sessions list": "No sessions are kept.",
        "tasks list": "No tasks are kept.",
        "auth status": "No server has `auth` in its policy.",
    }
    for command, text in said.items():
        done = moongate(*command.split(), cwd=tmp_path)
        assert (done.code, done.out, text in done.err) == (0, "", True), (command, done)

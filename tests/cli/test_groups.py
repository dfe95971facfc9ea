"""Commands that read only the gateway's own state: command groups without a subcommand, and no program or server is started."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from tests.cli.processes import moongate, write_gateway
from tests.fakes.running import child, free_port, upstream_stdio, wait_until_ready


@pytest.mark.parametrize("group", ["auth", "keys", "policy", "skills"])
def test_group_without_a_subcommand_shows_its_help(group: str, tmp_path: Path) -> None:
    done = moongate(group, cwd=tmp_path)
    assert (done.code, done.err) == (0, "")
    assert f"Usage: moongate {group}" in done.out


@pytest.mark.parametrize("group", ["sessions", "tasks"])
def test_group_of_kept_things_lists_them(group: str, tmp_path: Path) -> None:
    done = moongate(group, cwd=tmp_path)
    assert (done.code, done.err) == (0, f"No {group} are kept.\n")


def test_approvals_without_a_subcommand_lists_them(tmp_path: Path) -> None:
    write_gateway(tmp_path, mcpServers={}, storage={"dir": "state"})
    assert moongate("approvals", "--json", cwd=tmp_path).data == {"approvals": []}
    assert moongate("approvals", cwd=tmp_path).code == 0
    assert moongate("approvals", "list", "--json", cwd=tmp_path).data == {"approvals": []}
    assert "Usage: moongate approvals" in moongate("approvals", "--help", cwd=tmp_path).out
    assert moongate("approvals", "lists", cwd=tmp_path).code == 1


def secret_server(folder: Path) -> dict[str, Any]:
    """Return a configuration whose server gets its token from a program; the program creates the file `ran`."""
    code = f"import pathlib; pathlib.Path({str(folder / 'ran')!r}).touch(); print('canary-secret')"
    server = {**upstream_stdio(), "env": {"TOKEN": "${cmd:token}"}}
    secrets = {"token": {"command": [sys.executable, "-c", code]}}
    return {"mcpServers": {"up": server}, "secrets": secrets, "storage": {"dir": str(folder / "state")}}


def test_only_commands_that_reach_servers_run_secret_programs(tmp_path: Path) -> None:
    write_gateway(tmp_path, **secret_server(tmp_path), server={"http": {"port": free_port()}})
    for words in (["approvals"], ["audit"], ["keys", "list"], ["auth", "status"], ["list", "agents"]):
        done = moongate(*words, cwd=tmp_path)
        assert done.code == 0, done.err
        assert not (tmp_path / "ran").exists(), words
    [server] = moongate("list", "servers", "--standalone", "--json", cwd=tmp_path).data["servers"]
    assert server["state"] == "ready"
    assert (tmp_path / "ran").exists()


def test_command_to_the_running_gateway_runs_no_secret_program(tmp_path: Path) -> None:
    port = free_port()
    write_gateway(tmp_path, **secret_server(tmp_path), server={"http": {"port": port}})
    log = tmp_path / "gateway.log"
    with child("-m", "gateway", "run", "--http", f":{port}", "--config", str(tmp_path / "gateway.json"), log=log) as process:
        wait_until_ready(process, f"http://127.0.0.1:{port}/ready", log)
        (tmp_path / "ran").unlink()
        shown = moongate("call", "up__echo", "text=hi", cwd=tmp_path)
        assert (shown.code, "hi" in shown.out) == (0, True)
        assert not (tmp_path / "ran").exists()

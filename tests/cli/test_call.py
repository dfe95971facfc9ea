"""`moongate call`: the same answers from a running gateway and from one started for the call."""

from __future__ import annotations

import os
import pty
import select
import subprocess
import time
from collections.abc import Generator
from pathlib import Path
from typing import Any

import anyio
import pytest

from gateway.cli.asking import TerminalCaller
from tests.cli.processes import Ended, environment, moongate, write_gateway
from tests.fakes.nursery import sooner
from tests.fakes.running import child, free_port, raw_stdio, upstream_stdio, wait_until_ready

POLICIES = {"up": {"arguments": {"echo": {"text": {"type": "string", "maxLength": 20}}}, "additionalArguments": ["trace"]}}


@pytest.fixture(scope="module", params=["standalone", "running"])
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Generator[Path]:
    """A folder with a configuration; for the parameter `running`, its gateway runs during the tests."""
    folder = tmp_path_factory.mktemp(str(request.param))
    port = free_port()
    server = {"name": "hub", "http": {"port": port}}
    config = write_gateway(folder, mcpServers={"up": upstream_stdio()}, policies=POLICIES, server=server, storage={"dir": "state"})
    if request.param == "standalone":
        yield folder
        return
    log = folder / "gateway.log"
    with child("-m", "gateway", "run", "--config", str(config), log=log) as process:
        wait_until_ready(process, f"http://127.0.0.1:{port}/ready", log)
        yield folder


def test_values_are_typed_and_the_text_is_printed(folder: Path) -> None:
    done = moongate("call", "up__add", "a=2", "b=3", cwd=folder)
    assert (done.code, done.out) == (0, "5\n")


def test_json_prints_the_whole_result(folder: Path) -> None:
    done = moongate("call", "up__echo", "--args-json", '{"text": "hi", "other": 1}', "--json", cwd=folder)
    assert done.code == 0
    assert done.data["structuredContent"] == {"got": {"text": "hi"}}
    assert done.data["_meta"]["dev.moongate/droppedArguments"] == ["other"]
    assert "argument 'other' is not declared" in done.err


def test_arguments_can_come_from_stdin(folder: Path) -> None:
    assert moongate("call", "up__add", "--args-json", "-", cwd=folder, stdin='{"a": 20, "b": 22}').out == "42\n"


def test_native_name_works_if_it_is_unique(folder: Path) -> None:
    assert moongate("call", "add", "a=1", "b=1", cwd=folder).out == "2\n"


def test_progress_goes_to_stderr(folder: Path) -> None:
    done = moongate("call", "up__progress", cwd=folder)
    assert (done.code, done.out) == (0, "done\n")
    lines = [line.split() for line in done.err.splitlines() if not line.startswith("gateway: ")]
    assert lines[0] == ["1/3", "step", "1"]


def test_sign_of_life_is_not_shown(capsys: pytest.CaptureFixture[str]) -> None:
    caller = TerminalCaller(interactive=False)
    for progress, message in ((4.001, None), (4.002, "still at it"), (5, None)):
        anyio.run(caller.progress, progress, None, message)
    assert capsys.readouterr().err.splitlines() == ["  4.002  still at it", "  5"]


def test_content_that_a_terminal_cannot_show_is_described(folder: Path) -> None:
    out = moongate("call", "up__rich", cwd=folder).out
    assert "[audio audio/wav, " in out
    assert "[report: up+data://report]" in out


def test_failing_tool_ends_with_5(folder: Path) -> None:
    done = moongate("call", "up__fail", "--json", cwd=folder)
    assert (done.code, done.data["isError"], done.error["code"]) == (5, True, "tool-error")
    plain = moongate("call", "up__fail", cwd=folder)
    assert (plain.code, plain.out, plain.err.splitlines()[-1]) == (5, "", "error: it did not work")


def test_refusal_by_policy_ends_with_6(folder: Path) -> None:
    done = moongate("call", "up__echo", f"text={'x' * 21}", "--json", cwd=folder)
    assert (done.code, done.error["code"]) == (6, "denied")


def test_unknown_tool_ends_with_1_and_a_suggestion(folder: Path) -> None:
    done = moongate("call", "up__ecco", "--json", cwd=folder)
    assert (done.code, done.out) == (1, "")
    message = "Unknown tool 'up__ecco'. Did you mean 'up__echo'? `moongate policy explain up__ecco` says if a rule hides it."
    assert done.error == {"code": "not-found", "message": message, "kind": "tool", "name": "up__ecco"}


def test_question_without_a_terminal_is_refused_not_waited_for(folder: Path) -> None:
    done = moongate("call", "up__ask_name", cwd=folder)
    assert (done.code, done.out) == (5, "")
    assert "elicitation" in done.err


def test_question_is_put_to_the_person_at_the_terminal(folder: Path) -> None:
    done = _typing(["call", "up__ask_name"], ["yes", "Ada"], cwd=folder)
    assert done.code == 0, done
    assert "Ada" in done.out


def test_person_may_decline(folder: Path) -> None:
    assert "decline" in _typing(["call", "up__ask_name"], ["no"], cwd=folder).out


def test_approval_is_one_question_and_denied_by_default(tmp_path: Path) -> None:
    policies = {"up": {"approval": {"always": ["add"]}}}
    write_gateway(tmp_path, mcpServers={"up": upstream_stdio()}, policies=policies, storage={"dir": "state"})
    denied = _typing(["call", "up__add", "a=2", "b=3"], ["", "yes", "yes"], cwd=tmp_path)
    assert (denied.code, denied.out) == (6, "")
    assert denied.err.count("]: ") == 1 and "Approve? (yes, arguments, always, no) [no]: " in denied.err
    approved = _typing(["call", "up__add", "a=2", "b=3"], ["a", "y"], cwd=tmp_path)
    assert (approved.code, approved.out) == (0, "5\n")
    standing = _typing(["call", "up__add", "a=2", "b=3"], ["arguments"], cwd=tmp_path)
    assert "Approve every call with these arguments" in standing.err
    assert _typing(["call", "up__add", "a=2", "b=3"], [], cwd=tmp_path).out == standing.out == "5\n"


@pytest.mark.attack(17)
def test_server_lines_cannot_imitate_a_terminal_prompt(tmp_path: Path) -> None:
    prompt = "Answer? (yes, no, cancel) [yes]"
    field = {"type": "string", "title": f"Name\n{prompt}", "description": f"x\n{prompt} {'pad ' * 40}{prompt}", "default": f"a\n{prompt}"}
    schema = {"type": "object", "properties": {"name": field, "kind": {"enum": ["a", f"b\n{prompt}"]}}}
    asks = {"method": "elicitation/create", "params": {"message": f"Your name?\n{prompt}\r{prompt}", "requestedSchema": schema}}
    says = [{"method": "notifications/message", "params": {"level": "error", "data": f"late\n{prompt}", "logger": f"l\n{prompt}"}}]
    told = {"tools": [{"name": "ask", "inputSchema": {"type": "object"}}], "asks": asks, "says": says}
    write_gateway(tmp_path, mcpServers={"up": raw_stdio(told)}, storage={"dir": "state"})
    done = _typing(["call", "up__ask"], ["yes", "Ada", "a"], cwd=tmp_path)
    assert "Ada" in done.out
    lines = done.err.replace("\r\n", "\n").replace("\r", "\n").split("\n")
    assert [line for line in lines if prompt in line and not line.startswith(("│ ", "  error "))] == [f"{prompt}: "]
    assert "Server 'up' asks:" in lines


def test_gateway_that_is_not_there_ends_with_4(tmp_path: Path) -> None:
    write_gateway(tmp_path)
    url = f"http://127.0.0.1:{free_port()}/mcp"
    done = moongate("call", "x", "--url", url, "--json", cwd=tmp_path)
    assert (done.code, done.error["code"]) == (4, "unreachable")
    assert url in done.error["message"]


def test_another_gateway_on_the_port_is_not_taken_for_ours(folder: Path, tmp_path: Path) -> None:
    port = int(_config(folder)["server"]["http"]["port"])
    server = {"name": "mine", "http": {"port": port}}
    write_gateway(tmp_path, mcpServers={"other": upstream_stdio()}, server=server, storage={"dir": "state"})
    assert moongate("call", "other__add", "a=1", "b=2", cwd=tmp_path).out == "3\n"


def _config(folder: Path) -> Any:
    import json

    return json.loads((folder / "gateway.json").read_text())


def _typing(arguments: list[str], answers: list[str], *, cwd: Path) -> Ended:
    """Run a command on a terminal and type one answer at each prompt; stdout stays a pipe."""
    controller, terminal = pty.openpty()
    command, args = sooner("gateway", *arguments)
    with subprocess.Popen(
        [command, *args],
        cwd=cwd,
        env={**environment(cwd), "TERM": "dumb"},
        stdin=terminal,
        stdout=subprocess.PIPE,
        stderr=terminal,
    ) as process:
        os.close(terminal)
        seen, pending = "", list(answers)
        deadline = time.monotonic() + 30
        while time.monotonic() < deadline:
            if select.select([controller], [], [], 0.05)[0]:
                try:
                    seen += os.read(controller, 4096).decode()
                except OSError:  # the terminal is gone with the process
                    break
                if pending and seen.rstrip(" ").endswith(":"):
                    os.write(controller, f"{pending.pop(0)}\n".encode())
                    seen += "\n"
            elif process.poll() is not None:
                break
        out, _ = process.communicate(timeout=10)
        os.close(controller)
        return Ended(process.returncode, out.decode(), seen)

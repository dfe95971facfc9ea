"""A gateway over stdio that was started before answers `initialize` and list requests from a cache while it is still importing."""

from __future__ import annotations

import json
import os
import select
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from gateway import __version__
from gateway.server.startup_answers import AnsweredFilter, Answering, EarlyExchange
from gateway.storage.startup_cache import CachedAnswers, StartupCache
from tests.cli.processes import environment, write_gateway
from tests.cli.test_stdio_start import LISTS, message

HOLD = """
import os, sys, time

class Hold:
    def find_spec(self, name, path=None, target=None):
        while name == "pydantic_core" and os.path.exists(os.environ.get("HOLD", "")):
            time.sleep(0.01)

sys.meta_path.insert(0, Hold())
"""
"""`sitecustomize`: the gateway's parts are not imported while the file `$HOLD` is there."""

SERVER = """
import json, pathlib, sys, time
while pathlib.Path("hang").exists():
    time.sleep(0.05)
tools = json.loads(pathlib.Path(sys.argv[1]).read_text())
hello = {"protocolVersion": "2025-06-18", "capabilities": {"tools": {}}, "serverInfo": {"name": "s", "version": "1"}}
results = {"initialize": hello, "tools/list": {"tools": tools}, "tools/call": {"content": [{"type": "text", "text": "done"}]}}
for line in sys.stdin:
    asked = json.loads(line)
    known = asked.get("method") in results
    body = {"result": results[asked["method"]]} if known else {"error": {"code": -32601, "message": "unknown method"}}
    if "id" in asked:
        print(json.dumps({"jsonrpc": "2.0", "id": asked["id"], **body}), flush=True)
"""

AGENT = "---\nname: {name}\ndescription: An agent.\n---\nYou answer.\n"
SKILL = "---\nname: {name}\ndescription: A skill.\n---\nText.\n"
HELLO: dict[str, Any] = {"protocolVersion": "2025-06-18", "capabilities": {"roots": {}}, "clientInfo": {"name": "t", "version": "1"}}
OTHER: dict[str, Any] = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "other", "version": "2"}}
READY = message(None, "notifications/initialized")


def tool(name: str) -> dict[str, Any]:
    """Return the definition of a tool; 60 of them are larger than the buffer of a pipe."""
    return {"name": name, "description": "long " * 400, "inputSchema": {"type": "object"}}


TOOLS = [tool(f"tool_{number}") for number in range(60)]


class Running:
    """A gateway over stdio, and its client."""

    def __init__(self, folder: Path, hold: Path | None) -> None:
        env = environment(folder, {"PYTHONPATH": str(folder / "hold"), "TOKEN": "one", "HOLD": str(hold or "")})
        command = [sys.executable, "-m", "gateway", "run", "--stdio", "--json", "--config", str(folder / "gateway.json")]
        pipe = subprocess.PIPE
        self.process = subprocess.Popen(command, cwd=folder, env=env, stdin=pipe, stdout=pipe, stderr=pipe)
        assert self.process.stdin is not None and self.process.stdout is not None and self.process.stderr is not None
        self.stdin, self.stdout, self.stderr = self.process.stdin, self.process.stdout, self.process.stderr

    def send(self, *lines: bytes) -> None:
        self.stdin.write(b"".join(lines))
        self.stdin.flush()

    def read(self) -> dict[str, Any]:
        said: dict[str, Any] = json.loads(self.stdout.readline())
        return said

    def read_until(self, number: int) -> dict[str, Any]:
        while (said := self.read()).get("id") != number:
            pass
        return said

    def leave(self) -> list[dict[str, Any]]:
        """Close stdin, wait until the process exits, and return the messages that were not read yet."""
        self.stdin.close()
        rest = [json.loads(line) for line in self.stdout]
        assert self.process.wait(20) == 0
        return rest


def wait_until_kept(folder: Path) -> None:
    until = time.monotonic() + 20
    while not list(folder.glob("xdg-state/moongate/first-answers/*.json")):
        assert time.monotonic() < until, "nothing was kept"
        time.sleep(0.05)


@contextmanager
def gateway(folder: Path, hold: Path | None = None) -> Generator[Running]:
    if hold is not None:
        hold.touch()
    running = Running(folder, hold)
    try:
        yield running
    finally:
        if hold is not None:
            hold.unlink(missing_ok=True)
        running.process.kill()
        running.process.wait()
        for stream in (running.stdin, running.stdout, running.stderr):
            with suppress(BrokenPipeError):
                stream.close()


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    """A folder with a configuration that was served once, and the results of that session by method."""
    folder = tmp_path_factory.mktemp("first")
    files = {
        "hold/sitecustomize.py": HOLD,
        "server.py": SERVER,
        "tools.json": json.dumps(TOOLS),
        "agents/writer.agent.md": AGENT.format(name="writer"),
        "skills/drafts/SKILL.md": SKILL.format(name="drafts"),
    }
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    server = {"command": sys.executable, "args": ["server.py", "tools.json"], "env": {"TOKEN": "${TOKEN}"}}
    exposed = {"agents": ["agents"], "skills": ["skills"]}
    write_gateway(folder, mcpServers={"one": server}, expose=exposed, storage={"dir": "state"})
    with gateway(folder) as client:
        client.send(message(1, "initialize", **HELLO), READY)
        client.send(*(message(number, method) for number, method in enumerate(LISTS, 2)))
        answers = [client.read_until(number)["result"] for number in range(1, 6)]
        del answers[0]["instructions"]
        wait_until_kept(folder)
        client.leave()
    return folder, dict(zip(("initialize", *LISTS), answers, strict=True))


@pytest.fixture
def copied(project: tuple[Path, dict[str, Any]], tmp_path: Path) -> Generator[Path]:
    """The project; its cached answers are restored after the test."""
    folder, _ = project
    kept = {path: (path.read_bytes(), path.stat()) for path in folder.glob("xdg-state/moongate/first-answers/*.json")}
    yield folder
    for path, (data, _) in kept.items():
        path.unlink(missing_ok=True)
        path.write_bytes(data)
        path.chmod(0o600)


def names(said: dict[str, Any]) -> set[str]:
    return {found["name"] for found in said["result"]["tools"]}


def test_known_answers_come_before_the_gateway_is_imported(project: tuple[Path, dict[str, Any]], tmp_path: Path) -> None:
    folder, results = project
    with gateway(folder, tmp_path / "hold") as client:
        lists = [message(f"l{number}", method, _meta={"progressToken": number}) for number, method in enumerate(LISTS)]  # type: ignore[arg-type]
        call = message(9, "tools/call", name="one__tool_1", arguments={})
        client.send(message(1, "initialize", **OTHER), READY, message(2, "ping"), *lists, call, message(10, "ping"))
        said = [client.read() for _ in range(6)]
        assert [one["id"] for one in said] == [1, 2, "l0", "l1", "l2", "l3"]
        assert said[0]["result"].pop("instructions").count("one: 60 server tools\n") == 1  # cached after all servers had started
        assert said[0]["result"] == {**results["initialize"], "protocolVersion": "2025-11-25"}
        assert {LISTS[number]: said[number + 2]["result"] for number in range(4)} == {method: results[method] for method in LISTS}
        assert not select.select([client.stdout], [], [], 0.2)[0]
        (tmp_path / "hold").unlink()
        later = [client.read(), client.read()]
        later += client.leave()
    assert sorted(one["id"] for one in later) == [9, 10]
    assert next(one for one in later if one["id"] == 9)["result"]["content"] == [{"type": "text", "text": "done"}]


def test_client_that_reads_late_gets_each_answer_whole(project: tuple[Path, dict[str, Any]], tmp_path: Path) -> None:
    folder, results = project
    with gateway(folder, tmp_path / "hold") as client:
        client.send(message(1, "initialize", **HELLO), READY, message(2, "tools/list"), message(3, "tools/list"))
        assert client.read()["id"] == 1
        (tmp_path / "hold").unlink()
        while not client.stderr.readline().startswith(b"{"):  # this log line is printed after the gateway has taken over stdin
            pass
        said = [client.read(), client.read()]
        rest = client.leave()
    assert [(one["id"], one["result"]) for one in said] == [(2, results["tools/list"]), (3, results["tools/list"])]
    assert rest == []


def test_answers_are_kept_when_all_servers_have_started(copied: Path) -> None:
    answers_file(copied).unlink()
    (copied / "hang").touch()
    with gateway(copied) as client:
        client.send(message(1, "initialize", **HELLO), READY, message(2, "tools/list"))
        assert any(name.startswith("one__") for name in names(client.read_until(2)))  # the gateway cached the tools in an earlier session
        time.sleep(0.3)
        assert not list(copied.glob("xdg-state/moongate/first-answers/*.json"))
        (copied / "hang").unlink()
        wait_until_kept(copied)


def test_first_start_after_doctor_answers_at_once(project: tuple[Path, dict[str, Any]], tmp_path: Path, copied: Path) -> None:
    answers_file(copied).unlink()
    command = [sys.executable, "-m", "gateway", "doctor", "--config", str(copied / "gateway.json")]
    env = environment(copied, {"PYTHONPATH": str(copied / "hold"), "TOKEN": "one"})
    done = subprocess.run(command, cwd=copied, env=env, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stdout
    with gateway(copied, tmp_path / "hold") as client:
        client.send(message(1, "initialize", **HELLO), READY, *(message(number, method) for number, method in enumerate(LISTS, 2)))
        said = [client.read()["result"] for _ in range(5)]
    assert "one: 60 server tools\n" in said[0].pop("instructions")
    assert dict(zip(("initialize", *LISTS), said, strict=True)) == project[1]


def test_changed_list_of_a_server_is_announced_after_cached_one(project: tuple[Path, dict[str, Any]], tmp_path: Path, copied: Path) -> None:
    folder, _ = project
    (folder / "tools.json").write_text(json.dumps([tool("new")]))
    shutil.rmtree(folder / "state" / "catalog")
    try:
        with gateway(folder, tmp_path / "hold") as client:
            client.send(message(1, "initialize", **HELLO), READY, message(2, "tools/list"))
            assert client.read()["id"] == 1
            assert "one__tool_1" in names(client.read())
            (tmp_path / "hold").unlink()
            while client.read().get("method") != "notifications/tools/list_changed":
                pass
            client.send(message(3, "tools/list"))
            assert {"one__new"} == {name for name in names(client.read_until(3)) if name.startswith("one__")}
    finally:
        (folder / "tools.json").write_text(json.dumps(TOOLS))


def test_session_ends_while_the_gateway_starts(project: tuple[Path, dict[str, Any]], tmp_path: Path) -> None:
    folder, _ = project
    with (
        gateway(folder, tmp_path / "left") as left,
        gateway(folder, tmp_path / "ended") as ended,
        gateway(folder, tmp_path / "killed") as killed,
    ):
        for client in (left, ended, killed):
            client.send(message(1, "initialize", **HELLO))
            assert client.read()["id"] == 1
        ended.process.send_signal(signal.SIGTERM)
        assert ended.process.wait(10) == -signal.SIGTERM
        killed.process.kill()
        left.stdin.close()
        (tmp_path / "left").unlink()
        assert left.process.wait(20) == 0
        assert left.stdout.read() == b""
    assert read(folder) is not None


def test_gateway_that_cannot_start_reports_it_after_its_response(project: tuple[Path, dict[str, Any]], tmp_path: Path) -> None:
    folder, _ = project
    (folder / "state").rename(folder / "moved")
    (folder / "state").touch()
    try:
        with gateway(folder, tmp_path / "hold") as client:
            client.send(message(1, "initialize", **HELLO))
            assert client.read()["id"] == 1
            (tmp_path / "hold").unlink()
            assert client.process.wait(20) == 2
            assert b"Not a directory" in client.stderr.read()
    finally:
        (folder / "state").unlink()
        (folder / "moved").rename(folder / "state")


def read(folder: Path, **environ: str) -> CachedAnswers | None:
    """Return the cached answers that the next start would read."""
    with pytest.MonkeyPatch.context() as patch:
        for name, value in {"XDG_STATE_HOME": str(folder / "xdg-state"), "TOKEN": "one", **environ}.items():
            patch.setenv(name, value)
        return StartupCache(folder / "gateway.json", __version__).read()


def answers_file(folder: Path) -> Path:
    return next(folder.glob("xdg-state/moongate/first-answers/*.json"))


def _link(folder: Path) -> None:
    file = answers_file(folder)
    shutil.copyfile(file, folder / "copy.json")
    (folder / "copy.json").chmod(0o600)
    file.unlink()
    file.symlink_to(folder / "copy.json")


def _edit(folder: Path) -> None:
    file = answers_file(folder)
    file.write_bytes(file.read_bytes().replace(b"one__tool_1", b"one__tool_x", 1))


def _pipe(folder: Path) -> None:
    answers_file(folder).unlink()
    os.mkfifo(answers_file_name := folder / "pipe", 0o600)
    answers_file_name.rename(folder / "xdg-state/moongate/first-answers" / StartupCache(folder / "gateway.json", __version__).path.name)


SPOILED: dict[str, Callable[[Path], object]] = {
    "edited": _edit,
    "link": _link,
    "pipe": _pipe,
    "writable by others": lambda folder: answers_file(folder).chmod(0o666),
    "cut off": lambda folder: answers_file(folder).write_bytes(answers_file(folder).read_bytes()[:-9]),
    "empty": lambda folder: answers_file(folder).write_bytes(b""),
}


@pytest.mark.parametrize("way", SPOILED)
def test_spoiled_answers_are_not_used(copied: Path, way: str) -> None:
    assert read(copied) is not None
    SPOILED[way](copied)
    assert read(copied) is None


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file away")
def test_answers_of_another_user_are_not_used(copied: Path) -> None:
    os.chown(answers_file(copied), 12345, 12345)
    assert read(copied) is None


@pytest.mark.parametrize(
    "name",
    ["gateway.json", "gateway.lock.json", "state/keys.json", "agents/writer.agent.md", "agents/new.agent.md", "skills/drafts/new.md"],
)
def test_answers_are_not_used_after_a_change_of_a_file(project: tuple[Path, dict[str, Any]], tmp_path: Path, name: str) -> None:
    kept = json.loads(answers_file(project[0]).read_bytes().partition(b"\n")[2])["files"]
    folder = tmp_path / "copy"
    shutil.copytree(project[0], folder)
    assert read(folder) is None, "these are other files"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_STATE_HOME", str(folder / "xdg-state"))
        file = StartupCache(folder / "gateway.json", __version__)
        files = [folder / Path(path).relative_to(project[0]) for path in kept]
        known = CachedAnswers({"capabilities": {}}, {})
        assert not file.keep(files, time.time_ns() - 10**10, known), "they have changed since then"
        assert file.keep(files, time.time_ns() + 10**9, known)
        assert file.read() == known
        time.sleep(0.02)  # a tick of the file system's clock
        (folder / name).write_text("changed")
        assert file.read() is None


def test_cached_responses_depend_on_named_variables(project: tuple[Path, dict[str, Any]]) -> None:
    folder, _ = project
    assert read(folder, OTHER="x") is not None
    assert read(folder, TOKEN="two") is None
    assert b"two" not in answers_file(folder).read_bytes()


def test_new_agent_is_in_the_first_list_after_a_restart(project: tuple[Path, dict[str, Any]]) -> None:
    folder, _ = project
    (folder / "agents" / "late.agent.md").write_text(AGENT.format(name="late"))
    with gateway(folder) as client:
        client.send(message(1, "initialize", **HELLO), READY, message(2, "tools/list"))
        assert "agent__late" in names(client.read_until(2))


# -- lines ---------------------------------------------------------------------------------------------------------

KNOWN = CachedAnswers({"capabilities": {}}, {"tools/list": '{"tools":[]}'})
OPENED = message(1, "initialize", **HELLO)
ODD = {
    "batch": b'[{"jsonrpc":"2.0","id":2,"method":"ping"}]\n',
    "garbage": b"hello\n",
    "empty line": b"\n",
    "not UTF-8": b'{"jsonrpc":"2.0","id":"\xff","method":"ping"}\n',
    "escape": b'{"jsonrpc":"2.0","id":"\\ud800","method":"ping"}\n',
    "same id": message(1, "ping"),
    "second initialize": message(2, "initialize", **HELLO),
    "no id": message(None, "tools/list"),
    "id null": b'{"jsonrpc":"2.0","id":null,"method":"ping"}\n',
    "id true": b'{"jsonrpc":"2.0","id":true,"method":"ping"}\n',
    "id with a fraction": b'{"jsonrpc":"2.0","id":1.5,"method":"ping"}\n',
    "another member": b'{"jsonrpc":"2.0","id":2,"method":"ping","more":1}\n',
    "another version": b'{"jsonrpc":"1.0","id":2,"method":"ping"}\n',
    "cursor": message(2, "tools/list", cursor="x"),
    "metadata": message(2, "tools/list", _meta={"x": 1}),
    "unknown list": message(2, "prompts/list"),
    "call": message(2, "tools/call", name="x"),
    "deep": b'{"jsonrpc":"2.0","id":2,"method":"ping","params":' + b"[" * 200 + b"]" * 200 + b"}\n",
    "long": b" " * 70_000 + message(2, "ping"),
}


def answered(*lines: bytes) -> tuple[EarlyExchange, list[Any]]:
    """Run `Answering` on these lines; return the state that it hands over to the gateway, and the messages that it sent."""
    (wire_in, typed), (shown, wire_out) = os.pipe(), os.pipe()
    answering = Answering(KNOWN, wire_in, wire_out)
    answering.start()
    with os.fdopen(typed, "wb") as stdin:
        stdin.write(b"".join(lines))
    for thread in threading.enumerate():
        if thread.name == "first-answers":
            thread.join(10)
    taken = answering.end()
    os.close(wire_out)
    with os.fdopen(shown, "rb") as stdout:
        said = [json.loads(line) for line in stdout]
    os.close(wire_in)
    return taken, said


@pytest.mark.parametrize("way", ODD)
def test_malformed_line_and_all_after_it_go_to_the_gateway(way: str) -> None:
    taken, said = answered(OPENED, READY, ODD[way], message(7, "ping"))
    assert [one["id"] for one in said] == [1]
    assert list(taken.answered) == [1]
    assert taken.data.startswith(OPENED + READY + ODD[way][:100])


@pytest.mark.parametrize(
    "line", [message(2, "tools/list"), READY, message(1, "initialize", protocolVersion="2025-06-18"), message(1, "ping")]
)
def test_only_a_plain_initialize_is_answered_before_the_start(line: bytes) -> None:
    assert answered(line, OPENED)[1] == []


def test_plain_lines_are_answered() -> None:
    taken, said = answered(OPENED, message(2, "ping"), message("x", "tools/list", _meta={"progressToken": "p"}))  # type: ignore[arg-type]
    assert [one["result"] for one in said] == [{"capabilities": {}, "protocolVersion": "2025-06-18"}, {}, {"tools": []}]
    assert taken.unsent == b""


@pytest.mark.anyio
async def test_cached_responses_are_compared_with_the_sent_ones(caplog: pytest.LogCaptureFixture) -> None:
    sent: list[bytes] = []

    async def write(line: bytes) -> None:
        sent.append(line)

    hello = ("initialize", '{"capabilities":{"tools":{}},"protocolVersion":"2025-06-18"}')
    same, other = ("tools/list", '{"tools":[]}'), ("prompts/list", '{"prompts":[]}')
    out = AnsweredFilter(EarlyExchange(answered={1: hello, 2: same, "3": other}), write)
    await out.write(b'{"jsonrpc":"2.0","id":2,"result":{"tools":[]}}\n')
    await out.write(b'{"jsonrpc":"2.0","id":3,"result":{}}\n')
    await out.write(b'{"jsonrpc":"2.0","id":1,"method":"roots/list"}\n')
    await out.write(b'{"jsonrpc":"2.0","id":"3","result":{"prompts":[{"name":"p"}]}}\n')
    assert not caplog.records
    await out.write(b'{"jsonrpc":"2.0","id":1,"result":{"capabilities":{},"protocolVersion":"2025-06-18"}}\n')
    assert "initialize" in caplog.text
    assert [json.loads(line).get("method") or json.loads(line)["id"] for line in sent] == [3, "roots/list", CHANGED_PROMPTS]
    await out.write(b'{"jsonrpc":"2.0","id":2,"result":{}}\n')
    assert len(sent) == 4


CHANGED_PROMPTS = "notifications/prompts/list_changed"

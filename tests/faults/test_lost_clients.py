"""A client that dies while its call waits for an answer: the question and the call end, and others are served.

The gateways here wait an hour for an answer, so a question that ends within a test ended because its client was lost.
"""

from __future__ import annotations

import json
import re
import socket
import subprocess
import sys
from collections.abc import Generator, Iterable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx2
import pytest

from gateway.server.serving import bind
from tests.attacks.test_quotas import legacy, raw_post, reply, session_of
from tests.cli.processes import moongate
from tests.fakes.crowd import HELLO, META, PREFIX, Besieged, besieged, call, connections, until
from tests.fakes.running import ROOT, gateway_command, upstream_stdio, write_config

pytestmark = [pytest.mark.timeout(120), pytest.mark.fault(34)]

CAPABLE: dict[str, Any] = {"sampling": {}, "elicitation": {}, "roots": {}}
CASES: dict[str, tuple[str, str, dict[str, Any]]] = {
    "approved": ("sample", "elicitation/create", {"sampling": {"mode": "ask"}}),
    "listed": ("sample", "approvals approve", {"sampling": {"mode": "ask"}, "approval": {"by": "operator"}}),
    "elicit": ("elicit", "elicitation/create", {}),
    "roots": ("roots", "roots/list", {"roots": {"mode": "relay"}}),
    "gate": ("work", "elicitation/create", {"approval": "always"}),
    "resumed": ("elicit", "elicitation/create", {}),
    "busy": ("busy", "retry: ", {"callers": "serial", "serialAskSeconds": 0.3}),
}
"""By server: the tool that is called, the notification or request that shows that the call waits, and the policy."""

FLOW = """name: flow
description: Asks, then works.
input: {}
executors:
  question: {ask: "Go on?", output: {yes: {type: boolean}}}
  one: {tool: elicit/work, arguments: {who: flow}}
start: question
edges: [{from: question, to: one}]
output: one
"""

CLIENT = """
import json, subprocess, sys
gateway = subprocess.Popen(json.loads(sys.argv[1]), stdin=subprocess.PIPE, stdout=subprocess.PIPE)
print(gateway.pid, flush=True)
for line in json.loads(sys.argv[2]):
    gateway.stdin.write(line.encode() + b"\\n")
gateway.stdin.flush()
for line in gateway.stdout:
    sys.stdout.buffer.write(line)
    sys.stdout.flush()
"""
"""A client over stdio: starts the gateway, sends it lines, and shows the lines it receives."""


def config(folder: Path, names: Iterable[str]) -> dict[str, Any]:
    servers: dict[str, Any] = {}
    for name in names:
        (folder / name).mkdir()
        servers[name] = upstream_stdio(str(folder / name), module="tests.fakes.serial_upstream")
    policies = {name: CASES[name][2] for name in names}
    (folder / "own").mkdir()
    (folder / "own" / "flow.workflow.yaml").write_text(FLOW)
    return {"mcpServers": servers, "policies": policies, "server": {"approvalBy": "caller"}, "expose": {"agents": ["own"]}}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("lost")


@pytest.fixture(scope="module")
def at(folder: Path) -> Generator[Besieged]:
    callers = {"weak": (*CASES, "workflow"), "honest": (*CASES, "gateway"), "boss": ("admin", "gateway")}
    with besieged(folder, config(folder, CASES), callers=callers) as made:
        yield made


def heard(folder: Path, name: str) -> list[str]:
    path = folder / name / "heard"
    return path.read_text().splitlines() if path.exists() else []


def read_until(raw: socket.socket, mark: str) -> str:
    told = ""
    while mark not in told:
        part = raw.recv(65_536)
        assert part, told
        told += part.decode()
    return told


def ask(at: Besieged, raws: ExitStack, headers: dict[str, str], name: str, tool: str = "", mark: str = "") -> str:
    """Call a server's tool, or the workflow, on a new connection, and wait until the client receives the request for input.

    Returns the id of the first event in the response's stream.
    """
    default, usual, _ = CASES.get(name, ("flow", "elicitation/create", {}))
    numbers, arguments = [*CASES, "workflow"], {"who": "weak"} if name in CASES else {}
    (raw,) = raws.enter_context(connections(at, 1))
    raw_post(at, raw, legacy("tools/call", numbers.index(name) + 1, name=f"{name}__{tool or default}", arguments=arguments), headers)
    return re.findall(r"^id: (\S+)", read_until(raw, mark or usual), re.MULTILINE)[0]


def resume(at: Besieged, raw: socket.socket, headers: dict[str, str], event: str, mark: str) -> str:
    """Reconnect to a stream with `Last-Event-ID`, and return the received text up to `mark`."""
    fields = {name.replace("-", "_"): value for name, value in headers.items()}
    raw.sendall(at.head(None, 0, **fields, last_event_id=event).replace(b"POST", b"GET", 1))
    return read_until(raw, mark)


def resume_and_stay(at: Besieged, raw: socket.socket, headers: dict[str, str], event: str, mark: str) -> str:
    """Call `resume` until the stream stays open, because the gateway may not have noticed yet that the previous stream was closed."""
    patience = raw.gettimeout()
    while True:
        told = resume(at, raw, headers, event, mark)
        try:
            raw.settimeout(0.3)
            told += "" if told.endswith("0\r\n\r\n") else raw.recv(65_536).decode()
        except TimeoutError:
            return told
        finally:
            raw.settimeout(patience)
        if not told.endswith("0\r\n\r\n"):
            return told


def serves(at: Besieged, name: str) -> bool:
    """Return whether a call of another client, which supports elicitation, returns its result without a request for input."""
    body, headers = call(f"{name}__work", who="honest")
    body = body.replace('/clientCapabilities": {}', f'/clientCapabilities": {json.dumps(CAPABLE)}')
    answer = httpx2.post(at.url, content=body, headers={**headers, **at.key_of("honest")}, timeout=20)
    return reply(answer)["result"]["content"][0]["text"] == "done"


def questions(at: Besieged, caller: str) -> dict[str, str]:
    """Return each server's open question as the status page shows it to a caller, with the seconds replaced by `N`."""
    page = httpx2.get(f"{at.origin}/status.json", headers=at.key_of(caller), timeout=20).json()
    return {source["name"]: re.sub(r"\d+ s", "N s", text) for source in page["sources"] for text in source["questions"]}


def told_status(at: Besieged, caller: str) -> str:
    """Return the response to a caller's call of `gateway_status`."""
    body, headers = call("gateway_status", server="elicit")
    return httpx2.post(at.url, content=body, headers={**headers, **at.key_of(caller)}, timeout=20).text


def pending(folder: Path) -> list[str]:
    """Return the servers that have an approval pending for an operator."""
    told = moongate("approvals", "list", "--json", "--config", str(folder / "gateway.json"), cwd=folder).data
    return [entry["source"] for entry in told["approvals"]]


@pytest.mark.faults
def test_lost_client_of_session_ends_its_questions(folder: Path, at: Besieged) -> None:
    headers = {**session_of(at, "weak", capabilities=CAPABLE), "mcp-protocol-version": "2025-11-25"}
    with ExitStack() as raws:
        events = {name: ask(at, raws, headers, name) for name in (*CASES, "workflow")}
        assert pending(folder) == ["listed"]
        other = {**session_of(at, "weak", capabilities=CAPABLE), "mcp-protocol-version": "2025-11-25"}
        (queued,) = raws.enter_context(connections(at, 1))
        raw_post(at, queued, legacy("tools/call", 1, name="elicit__work", arguments={"who": "queued"}), other)
        until(lambda: "1 call of others waits" in questions(at, "boss")["elicit"])
        shown = {name: CASES[name][1] for name in ("elicit", "roots", "resumed")}
        shown |= dict.fromkeys(("approved", "listed"), "sampling/createMessage")
        told = {name: f"another caller to answer {method}" for name, method in shown.items()}
        told["listed"] = "an operator to approve sampling/createMessage for another caller"
        told = {name: f"waits N s for {text}, and N s more at most" for name, text in told.items()}
        told["elicit"] += "; 1 call of others waits for it"
        assert questions(at, "honest") == told
        assert questions(at, "boss")["elicit"].startswith("waits N s for 'weak' (client 'crowd') to answer elicitation/create, and")
        assert "for another caller to answer elicitation/create" in told_status(at, "honest")
        assert "for 'weak' (client 'crowd') to answer elicitation/create" in told_status(at, "boss")
    with connections(at, 1) as (resumed,):
        again = resume_and_stay(at, resumed, headers, events["resumed"], "elicitation/create")
        asked = json.loads(next(line[6:] for line in again.splitlines() if "elicitation/create" in line))

        (folder / "busy" / "may_finish").touch()
        assert serves(at, "busy"), "a call that asks nothing ends when others wait, and the server has reacted before the next begins"
        assert heard(folder, "busy") == ["call busy weak", "cancelled", "finished", "call work honest"]
        for name in ("approved", "listed", "elicit"):
            assert serves(at, name)
            assert heard(folder, name) == [f"call {CASES[name][0]} weak", "cancelled", "answered error", "call work honest"]
        until(lambda: heard(folder, "roots") == ["call roots weak", "cancelled", "answered error"])
        assert pending(folder) == [] and list(questions(at, "boss")) == ["resumed"]
        for name in ("gate", "workflow"):
            with connections(at, 1) as (late,):
                assert "the request was ended" in resume(at, late, headers, events[name], '"error"')
        assert heard(folder, "gate") == [] and "call work flow" not in heard(folder, "elicit")

        answer = {"jsonrpc": "2.0", "id": asked["id"], "result": {"action": "accept", "content": {"colour": "red"}}}
        assert httpx2.post(at.url, json=answer, headers=headers).status_code == 202
        assert "red" in read_until(resumed, '"result"'), "a client that opens its stream again keeps its question"
    assert "Traceback" not in at.log.read_text()


def test_deleted_session_and_lost_client_free_the_serial_server(folder: Path, at: Besieged) -> None:
    before, headers = len(heard(folder, "elicit")), session_of(at, "weak", capabilities=CAPABLE)
    away = {**session_of(at, "weak", capabilities=CAPABLE), "mcp-protocol-version": "2025-11-25"}
    with ExitStack() as raws:
        ask(at, raws, headers, "elicit")
        with ExitStack() as soon:
            event = ask(at, soon, away, "elicit", "work", mark="retry: ")
        assert httpx2.delete(at.url, headers=headers).status_code == 200
        assert serves(at, "elicit")
        assert heard(folder, "elicit")[before:] == ["call elicit weak", "cancelled", "answered error", "call work honest"]
        (back,) = raws.enter_context(connections(at, 1))
        assert "done" in resume(at, back, away, event, '"result"'), "its call is sent when it is back"


def test_question_after_a_lost_client_reaches_no_other_client(folder: Path, at: Besieged) -> None:
    """The server ignores the cancellation, and asks once more when its question is refused."""
    before, headers = len(heard(folder, "elicit")), session_of(at, "weak", capabilities=CAPABLE)
    with ExitStack() as raws:
        ask(at, raws, headers, "elicit", "again")
        assert httpx2.delete(at.url, headers=headers).status_code == 200
        assert serves(at, "elicit")
    told = ["call again weak", "cancelled", "answered error", "answered error", "call work honest"]
    assert heard(folder, "elicit")[before:] == told


def test_lost_2026_client_ends_its_approval_and_its_plain_call(folder: Path, at: Besieged) -> None:
    """A client without forms, whose approval is on the list."""
    with connections(at, 1) as (raw,):
        body, headers = call("gate__work", who="weak")
        raw_post(at, raw, body, {**headers, **at.key_of("weak")})
        until(lambda: pending(folder) == ["gate"])
        body, headers = call("busy__busy", who="weak")
        before = len(heard(folder, "busy"))
        with connections(at, 1) as (plain,):
            raw_post(at, plain, body, {**headers, **at.key_of("weak")})
            until(lambda: len(heard(folder, "busy")) > before)
        (folder / "busy" / "may_finish").unlink(missing_ok=True)
        shown = "waits N s for the end of a cancelled call of 'weak' (client 'crowd'), and N s more at most"
        until(lambda: questions(at, "boss").get("busy") == shown)
        (folder / "busy" / "may_finish").touch()
        assert serves(at, "busy") and heard(folder, "busy")[before:] == ["call busy weak", "cancelled", "finished", "call work honest"]
    until(lambda: pending(folder) == [])
    assert heard(folder, "gate") == []


@pytest.mark.parametrize("era", [pytest.param("legacy", marks=pytest.mark.faults), "modern"])
def test_lost_client_over_stdio_ends_its_question(tmp_path: Path, era: str) -> None:
    die_while_asked(write_config(tmp_path, config(tmp_path, ["elicit"])), era, "elicit__elicit")
    assert heard(tmp_path, "elicit")[:2] == ["call elicit weak", "cancelled"]
    assert "answered result" not in heard(tmp_path, "elicit")


@pytest.mark.parametrize("era", [pytest.param("legacy", marks=pytest.mark.faults), "modern"])
def test_lost_client_of_a_front_gateway_ends_its_question_behind(tmp_path: Path, folder: Path, at: Besieged, era: str) -> None:
    """In front of the gateway that has the server: one gateway, or two for the client of 2026."""
    before = len(heard(folder, "elicit"))
    path = write_config(tmp_path, {"mcpServers": {"next": {"type": "http", "url": at.url, "headers": at.key_of("weak")}}}, "near")
    tool = "next__elicit__elicit"
    if era == "modern":
        command, args = gateway_command(path)
        path = write_config(tmp_path, {"mcpServers": {"next": {"command": command, "args": args, "cwd": str(ROOT)}}})
        tool = f"next__{tool}"
    for _ in range(2):  # the second gateway has learned that the tool does not support tasks, and calls it without a task
        die_while_asked(path, era, tool)
        until(lambda: "elicit" not in questions(at, "boss"))
        assert serves(at, "elicit")
    assert heard(folder, "elicit")[before:] == ["call elicit weak", "cancelled", "answered error", "call work honest"] * 2


def die_while_asked(path: Path, era: str, tool: str) -> None:
    """Call a tool of a gateway over stdio, and end the client when the tool's question came. The gateway ends too."""
    meta: dict[str, Any] = {} if era == "legacy" else {"_meta": {**META, f"{PREFIX}/clientCapabilities": CAPABLE}}
    hello = [legacy("initialize", 0, **{**HELLO, "capabilities": CAPABLE})] if era == "legacy" else []
    asking = legacy("tools/call", 1, name=tool, arguments={"who": "weak"}, **meta)
    gateway = [sys.executable, "-m", "gateway", "run", "--stdio", "--config", str(path)]
    argv = [sys.executable, "-S", "-c", CLIENT, json.dumps(gateway), json.dumps([*hello, asking])]
    with subprocess.Popen(argv, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as client:
        try:
            assert client.stdout is not None
            pid = int(client.stdout.readline())
            assert any("elicitation/create" in line for line in client.stdout)
        finally:
            client.kill()
    until(lambda: not is_running(pid))


def test_lost_2026_client_holds_a_serial_server_for_its_set_time(folder: Path, at: Besieged) -> None:
    before = len(heard(folder, "busy"))
    body, headers = call("busy__elicit", who="weak")
    body = body.replace('/clientCapabilities": {}', f'/clientCapabilities": {json.dumps(CAPABLE)}')
    answer = httpx2.post(at.url, content=body, headers={**headers, **at.key_of("weak")}, timeout=20)
    assert reply(answer)["result"]["resultType"] == "input_required"
    page = httpx2.get(f"{at.origin}/status.json", headers=at.key_of("boss"), timeout=20).json()
    told = next(text for source in page["sources"] if source["name"] == "busy" for text in source["questions"])
    assert re.fullmatch(r"waits \d+ s for 'weak' \(client 'crowd'\) to answer elicitation/create, and 3[56]\d\d s more at most", told)
    assert serves(at, "busy")
    assert heard(folder, "busy")[before:] == ["call elicit weak", "cancelled", "answered error", "call work honest"]


def is_running(pid: int) -> bool:
    stat = Path(f"/proc/{pid}/stat")
    return stat.exists() and stat.read_text().rpartition(")")[2].split()[0] != "Z"


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux hands the options on to accepted connections")
def test_connection_of_a_vanished_machine_ends_within_two_minutes() -> None:
    with bind("127.0.0.1", 0) as listener, socket.create_connection(listener.getsockname()):
        accepted, _ = listener.accept()
        with accepted:
            assert accepted.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 1
            times = (socket.TCP_KEEPIDLE, socket.TCP_KEEPINTVL, socket.TCP_KEEPCNT)
            idle, interval, count = (accepted.getsockopt(socket.IPPROTO_TCP, option) for option in times)
            assert idle + interval * count == 120
            assert accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) == 120_000

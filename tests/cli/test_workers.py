"""`moongate run --workers N`: one gateway of several processes, seen through connections that chosen workers serve."""

from __future__ import annotations

import http.client
import json
import os
import signal
import sys
import threading
import time
from collections.abc import Generator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from gateway.app.workers import SILENT_SECONDS
from gateway.auth.keys import KeyStore
from tests.cli.processes import moongate, moongate_process
from tests.fakes.nursery import sooner
from tests.fakes.running import ROOT, upstream_http, upstream_stdio
from tests.fakes.workers import Workers, is_alive, spread, text_of, until, workers

pytestmark = [pytest.mark.timeout(90), pytest.mark.skipif(sys.platform != "linux", reason="looks at processes in /proc")]

ELICITS: dict[str, Any] = {"elicitation": {"form": {}}}


def counting(folder: Path) -> dict[str, Any]:
    """A server over stdio that writes down what it is asked, and can say which process it is."""
    command, args = sooner("tests.fakes.counting_upstream", str(folder), "near", "1")
    return {"command": command, "args": args, "cwd": str(ROOT)}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("workers")


@pytest.fixture(scope="module")
def three(folder: Path) -> Generator[Workers]:
    with upstream_http() as far:
        servers = {"far": {"type": "http", "url": far}, "near": counting(folder), "old": upstream_stdio("--legacy")}
        policies = {"old": {"tasks": {"promote": ["add"]}}}
        with workers(folder, {"mcpServers": servers, "policies": policies}) as found:
            for number in (1, 2):
                spread(found, number)
            yield found


def test_a_plain_call_of_a_modern_server_is_answered_by_whichever_worker_gets_it(three: Workers) -> None:
    for number in (0, 1, 2):
        assert three.answers_alone(number, "far__echo", text="hello")
    assert not three.answers_alone(1, "near__pid", seconds=1)


def test_a_server_process_is_started_once_and_reached_through_every_worker(three: Workers, folder: Path) -> None:
    assert len({three.through(number).text("near__pid") for number in (0, 1, 2)}) == 1
    requests = (folder / "near.requests").read_text().splitlines()
    assert requests.count("initialize") == 1


def test_every_worker_lists_the_same(three: Workers) -> None:
    first, *others = [three.through(number).send("tools/list")["result"] for number in (0, 1, 2)]
    assert others == [first, first]
    assert {"far__echo", "near__pid", "old__ask_name", "gateway_status"} <= {tool["name"] for tool in first["tools"]}


def test_a_2025_session_goes_on_over_any_connection_until_it_is_ended(three: Workers) -> None:
    lines = [three.through(number) for number in (1, 2, 0)]
    lines[0].open_session()
    for line in lines:
        line.session = lines[0].session
        assert text_of(line.legacy("tools/call", name="far__echo", arguments={"text": "hello"})) == "hello"
        assert text_of(line.legacy("tools/call", name="near__tool-0", arguments={})) == "tool-0"
    lines[1].connection.request("DELETE", "/mcp", headers=lines[1].session)
    ended = lines[1].connection.getresponse()
    ended.read()
    assert ended.status == 200
    for line in lines:
        assert line.post({"jsonrpc": "2.0", "id": 9, "method": "tools/list"})[0] == 404


@pytest.mark.parametrize("server", ["far", "old"])
def test_a_question_asked_through_one_worker_is_answered_through_another(three: Workers, server: str) -> None:
    call: dict[str, Any] = {"name": f"{server}__ask_name", "arguments": {}, "capabilities": ELICITS}
    asked = three.through(1).send("tools/call", **call)["result"]
    assert asked["resultType"] == "input_required"
    answers = {key: {"action": "accept", "content": {"name": "Ada"}} for key in asked["inputRequests"]}
    again = three.through(2).send("tools/call", **call, inputResponses=answers, requestState=asked["requestState"])
    assert "Ada" in text_of(again)


def test_a_task_begun_through_one_worker_is_seen_through_another(three: Workers) -> None:
    started = three.through(1).send("tools/call", tasks=True, name="old__add", arguments={"a": 1, "b": 2})["result"]
    assert started["resultType"] == "task"
    line = three.through(2)
    until(lambda: line.send("tasks/get", tasks=True, taskId=started["taskId"])["result"]["status"] == "completed")


@pytest.mark.parametrize(("peer", "scheme"), [("127.0.0.1", "https"), ("127.0.0.2", "http")])
def test_a_proxy_on_this_machine_and_nobody_else_is_believed_how_a_client_came(three: Workers, peer: str, scheme: str) -> None:
    for number in (0, 1):
        with three.stopped(*({0, 1, 2} - {number})):
            connection = http.client.HTTPConnection("127.0.0.1", three.port, timeout=20, source_address=(peer, 0))
            connection.request("GET", "/health")
            connection.getresponse().read()
        with closing(connection):
            connection.request("GET", "/mcp/", headers={"X-Forwarded-Proto": "https"})
            assert connection.getresponse().headers["location"] == f"{scheme}://127.0.0.1:{three.port}/mcp"


def connections_home(found: Workers) -> set[str]:
    """Those that the first worker took from others, by their inode."""
    sockets = [line.split() for line in Path("/proc/net/unix").read_text().splitlines()]
    taken = {fields[6] for fields in sockets if len(fields) == 8 and fields[5] == "03" and fields[7].endswith("/home")}
    return {inode for inode in taken if f"socket:[{inode}]" in map(os.readlink, Path(f"/proc/{found.pids()[0]}/fd").iterdir())}


def test_a_connection_home_serves_one_request_after_the_other(three: Workers) -> None:
    line = three.through(1)
    line.text("near__tool-0")
    before = connections_home(three)
    for _ in range(3):
        line.text("near__tool-0")
    assert before and before <= connections_home(three)


def test_a_request_that_is_answered_before_it_is_whole_takes_nothing_of_the_next(three: Workers) -> None:
    line, other = three.through(1), three.through(1)
    other.text("near__tool-0")
    line.connection.putrequest("POST", "/nothing")
    line.connection.putheader("Content-Length", "1000000")
    line.connection.endheaders(b"the rest never comes")
    assert line.connection.getresponse().status == 404
    for _ in range(3):
        assert other.text("near__tool-0") == "tool-0"


def test_a_client_that_leaves_in_the_middle_ends_its_call_at_home(three: Workers, folder: Path) -> None:
    line, other = three.through(1), three.through(2)
    line.begin("far__hang", _meta={"progressToken": "p"})
    until(lambda: "'hang': 1" in other.text("far__stats"))
    line.connection.close()
    until(lambda: "'cancelled': {'hang': 1}" in other.text("far__stats"))


def test_a_change_of_the_rules_holds_for_every_worker_as_soon_as_one_client_sees_it(tmp_path: Path) -> None:
    with upstream_http() as far, workers(tmp_path, {"mcpServers": {"far": {"type": "http", "url": far}}}, 2) as two:
        spread(two, 1)
        home, other = two.through(0), two.through(1)
        written = json.loads(two.config.read_text())
        two.config.write_text(json.dumps({**written, "policies": {"far": {"tools": {"deny": ["echo"]}}}}))
        two.process.send_signal(signal.SIGHUP)
        until(lambda: "error" in home.send("tools/call", name="far__echo", arguments={"text": "hello"}))
        assert "error" in other.send("tools/call", name="far__echo", arguments={"text": "hello"})
        spread(two, 1, "far__add", a=1, b=2)
        assert "error" in other.send("tools/call", name="far__echo", arguments={"text": "hello"})


def test_a_worker_that_is_killed_costs_its_own_connections_and_comes_back(tmp_path: Path) -> None:
    servers: dict[str, Any] = {"near": counting(tmp_path)}
    with upstream_http() as far, workers(tmp_path, {"mcpServers": {"far": {"type": "http", "url": far}, **servers}}) as three:
        for number in (1, 2):
            spread(three, number)
        session = three.through(1)
        session.open_session()
        first, lost = three.pids(), three.through(2)
        child_pid = session.legacy("tools/call", name="near__pid", arguments={})
        os.kill(first[2], signal.SIGKILL)
        assert session.legacy("tools/call", name="near__pid", arguments={}) == child_pid
        with pytest.raises((OSError, ValueError)):
            lost.text("far__echo", text="hello")
        until(lambda: three.pids()[2] != first[2])
        spread(three, 2)

        os.kill(first[0], signal.SIGKILL)
        assert session.text("far__echo", text="hello") == "hello"
        until(lambda: three.pids()[0] != first[0])
        assert session.post({"jsonrpc": "2.0", "id": 9, "method": "tools/list"})[0] == 404
        session.session = {}
        session.open_session()
        assert text_of(session.legacy("tools/call", name="near__pid", arguments={})) != text_of(child_pid)
        assert three.pids()[1] == first[1]


@pytest.mark.faults
def test_a_first_worker_that_stands_still_fails_what_waits_for_it_and_serves_again_when_it_goes_on(tmp_path: Path) -> None:
    near = {"near": counting(tmp_path)}
    with upstream_http() as far, workers(tmp_path, {"mcpServers": {"far": {"type": "http", "url": far}, **near}}) as two:
        spread(two, 1)
        line, other = two.through(1, seconds=60), two.through(1)
        child_pid = line.text("near__pid")
        home = two.pids()[0]
        os.kill(home, signal.SIGSTOP)
        try:
            assert line.post({"jsonrpc": "2.0", "id": 9, "method": "ping"})[0] == 502
            assert other.text("far__echo", text="hello") == "hello"
            assert line.post({"jsonrpc": "2.0", "id": 9, "method": "ping"})[0] == 503
        finally:
            os.kill(home, signal.SIGCONT)
        until(lambda: line.post({"jsonrpc": "2.0", "id": 9, "method": "ping"})[0] != 503)
        assert line.text("near__pid") == child_pid


@pytest.mark.faults
def test_workers_that_all_stood_still_go_on_where_they_were(tmp_path: Path) -> None:
    with workers(tmp_path, {"mcpServers": {"near": counting(tmp_path)}}, 2) as two, ThreadPoolExecutor() as pool:
        answer = pool.submit(two.through(1, seconds=60).text, "near__wait")
        until(lambda: "tools/call wait" in (tmp_path / "near.requests").read_text())
        with two.stopped(0):
            with two.stopped(1):
                time.sleep(SILENT_SECONDS + 1)
            time.sleep(0.5)  # the other looks for a sign of life first
        time.sleep(2)
        assert not answer.done()
        (tmp_path / "go").touch()
        assert answer.result(20) == "waited"


def test_a_stop_lets_running_calls_end_and_leaves_no_process(tmp_path: Path) -> None:
    config = {"mcpServers": {"near": counting(tmp_path)}, "server": {"http": {"drainSeconds": 20}}}
    with workers(tmp_path, config) as three:
        line, answers = three.through(1), list[str]()
        pids = [*three.pids().values(), int(line.text("near__pid"))]
        calling = threading.Thread(target=lambda: answers.append(line.text("near__wait")))
        calling.start()
        until(lambda: "tools/call wait" in (tmp_path / "near.requests").read_text())
        three.process.terminate()
        until(lambda: not is_alive(pids[2]))
        (tmp_path / "go").touch()
        calling.join(20)
        assert answers == ["waited"]
        assert three.process.wait(20) == 0
        assert [pid for pid in pids if is_alive(pid)] == []


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGKILL])
def test_nobody_is_let_in_any_more_while_the_last_calls_end(tmp_path: Path, how: signal.Signals) -> None:
    config = {"mcpServers": {"near": counting(tmp_path)}, "server": {"http": {"drainSeconds": 20}}}
    with workers(tmp_path, config, 2) as two, ThreadPoolExecutor() as pool:
        line = two.through(1)
        answer = pool.submit(line.text, "near__wait")
        until(lambda: "tools/call wait" in (tmp_path / "near.requests").read_text())
        two.process.send_signal(how)
        until(lambda: is_refused(two.port))
        assert not answer.done()
        (tmp_path / "go").touch()
        assert answer.result(20) == "waited"


def is_refused(port: int) -> bool:
    """Whether nobody listens there; whoever is taken is to be answered too."""
    try:
        with closing(http.client.HTTPConnection("127.0.0.1", port, timeout=5)) as connection:
            connection.request("GET", "/health")
            return connection.getresponse().status != 200
    except ConnectionRefusedError:
        return True
    except (ConnectionResetError, http.client.RemoteDisconnected):
        return False  # it came just before the door closed


@pytest.mark.faults
def test_requests_for_a_first_worker_that_stops_are_told_to_come_again_and_its_calls_end(tmp_path: Path) -> None:
    config = {"mcpServers": {"near": counting(tmp_path)}, "server": {"http": {"drainSeconds": 60}}}
    with workers(tmp_path, config) as three, ThreadPoolExecutor() as pool:
        line, other = three.through(1), three.through(2)
        answer = pool.submit(line.text, "near__wait")
        until(lambda: "tools/call wait" in (tmp_path / "near.requests").read_text())
        first = three.pids()[0]
        os.kill(first, signal.SIGTERM)
        until(lambda: "Stopping" in three.log.read_text())
        status, headers, _ = other.post({"jsonrpc": "2.0", "id": 9, "method": "ping"})
        assert (status, headers["retry-after"]) == (503, "1")
        (tmp_path / "go").touch()
        assert answer.result(20) == "waited"
        until(lambda: three.pids()[0] != first)
        assert other.text("near__tool-0") == "tool-0"


def test_a_worker_that_is_started_again_lets_nobody_in_whom_the_gateway_would_not(tmp_path: Path) -> None:
    keys = KeyStore(tmp_path / "gateway-state" / "keys.json")
    key = keys.add("alice")
    with upstream_http() as far, workers(tmp_path, {"mcpServers": {"far": {"type": "http", "url": far}}}, 2) as two:
        keys.revoke(key.id)
        for number in (1, 0):
            killed = two.pids()[number]
            os.kill(killed, signal.SIGKILL)
            until(lambda number=number, killed=killed: two.pids()[number] != killed)
            assert two.through(number).send("tools/call", name="far__echo", arguments={"text": "hello"})["error"] == "unauthorized"


def test_a_worker_that_is_started_again_takes_up_no_more_than_those_that_run(tmp_path: Path) -> None:
    with workers(tmp_path, {}, 2) as two:
        written = json.loads(two.config.read_text())
        two.config.write_text(
            json.dumps({**written, "server": {"http": {"path": "/elsewhere"}}, "storage": {"dir": str(tmp_path / "other")}})
        )
        for number in (1, 0):
            killed = two.pids()[number]
            os.kill(killed, signal.SIGKILL)
            until(lambda number=number, killed=killed: two.pids()[number] != killed)
            assert "gateway_status" in {tool["name"] for tool in two.through(number).send("tools/list")["result"]["tools"]}
        assert not (tmp_path / "other").exists()


def test_workers_end_with_the_process_that_watches_over_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    with workers(tmp_path, {}, 2) as two:
        assert list(tmp_path.glob("moongate-*"))
        pids = two.pids().values()
        two.process.kill()
        until(lambda: not any(is_alive(pid) for pid in pids))
        assert not list(tmp_path.glob("moongate-*"))


def test_a_gateway_that_cannot_start_says_why_once_and_ends(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    config = tmp_path / "gateway.json"
    config.write_text(json.dumps({"storage": {"dir": str(tmp_path / "file")}}))
    done = moongate_process("run", "--workers", "3", "--http", "127.0.0.1:0", "--config", str(config), cwd=tmp_path)
    assert done.code == 2
    assert done.err.count("error:") == 1


def test_workers_that_have_no_place_to_meet_say_so(tmp_path: Path) -> None:
    deep = tmp_path / ("deep" * 30)
    deep.mkdir()
    done = moongate_process("run", "--workers", "2", "--http", "127.0.0.1:0", cwd=tmp_path, env={"TMPDIR": str(deep)})
    assert done.code == 2
    assert "Set TMPDIR to a folder" in done.err
    assert not list(deep.iterdir())


def test_workers_are_for_http(tmp_path: Path) -> None:
    done = moongate("run", "--stdio", "--workers", "2", cwd=tmp_path)
    assert done.code == 1
    assert "--workers is for HTTP" in done.err

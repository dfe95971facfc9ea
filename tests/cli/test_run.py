"""`moongate run`: its output, the configurations that it rejects, and its clean exit."""

from __future__ import annotations

import fcntl
import json
import os
import shlex
import signal
import subprocess
import sys
import termios
import threading
import time
from collections.abc import Generator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from tests.cli.processes import environment, moongate, write_gateway
from tests.fakes.nursery import sooner
from tests.fakes.running import free_port, upstream_stdio

TIMEOUT_SECONDS = 30

HELLO = {
    "jsonrpc": "2.0",
    "id": 1,
    "method": "initialize",
    "params": {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "t", "version": "1"}},
}


@contextmanager
def running(*arguments: str, cwd: Path, has_own_pid: bool = False) -> Generator[subprocess.Popen[str]]:
    """`moongate run` with pipes; killed with everything it started if the test leaves it.

    With `has_own_pid` the gateway is this child process itself, otherwise a process that starts faster behind the child process.
    """
    command, args = (sys.executable, ["-m", "gateway", "run", *arguments]) if has_own_pid else sooner("gateway", "run", *arguments)
    process = subprocess.Popen(
        [command, *args],
        cwd=cwd,
        env=environment(cwd),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        yield process
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate(timeout=TIMEOUT_SECONDS)


def read_until(process: subprocess.Popen[str], mark: str) -> list[str]:
    """Lines of stderr up to the one that holds `mark`; the process ending first fails the test."""
    assert process.stderr is not None
    lines: list[str] = []
    for line in process.stderr:
        lines.append(line.rstrip("\n"))
        if mark in line:
            return lines
    raise AssertionError(f"{mark!r} was never said: {lines}")


def test_http_start_names_sources_and_address_outside_stdout(tmp_path: Path) -> None:
    servers = {
        "up": {**upstream_stdio(), "trust": True},
        "off": {"command": "x", "disabled": True},
        "unset": {"url": "${NOT_SET_URL}"},
    }
    write_gateway(tmp_path, mcpServers=servers, storage={"dir": "state"})
    with running("--http", ":0", cwd=tmp_path) as process:
        lines = read_until(process, '"url"')
        said = {line.split()[0]: line.split() for line in lines if line.strip()}
        assert said["up"][1:3] == ["stdio", "2026-07-28"] and "tools" in said["up"] and said["up"][-1] == "ms"
        assert said["off"][2] == "disabled"
        assert "NOT_SET_URL" in " ".join(said["unset"])
        assert said["note:"][1:3] == ["mcpServers.up:", "trust"]
        assert any("moongate serves http://127.0.0.1:" in line for line in lines)
        process.send_signal(signal.SIGTERM)
        out, _ = process.communicate(timeout=TIMEOUT_SECONDS)
        assert (process.returncode, out) == (0, "")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_signal_ends_it_with_0_and_takes_the_children_along(number: signal.Signals, tmp_path: Path) -> None:
    mark = tmp_path / "child.pid"
    command, args = sooner("tests.fakes.upstream", "--stdio")
    script = f"echo $$ > {mark}; exec {shlex.join([command, *args])}"
    server = {"command": "sh", "args": ["-c", script], "cwd": upstream_stdio()["cwd"]}
    write_gateway(tmp_path, mcpServers={"up": server}, storage={"dir": "state"})
    with running("--http", ":0", cwd=tmp_path) as process:
        read_until(process, '"url"')
        child = int(mark.read_text())
        os.kill(child, 0)
        process.send_signal(number)
        _, err = process.communicate(timeout=TIMEOUT_SECONDS)
        assert process.returncode == 0
        assert "Traceback" not in err
    with pytest.raises(ProcessLookupError):
        os.kill(child, 0)


def test_run_without_a_configuration_serves_what_works(tmp_path: Path) -> None:
    with running("--http", ":0", cwd=tmp_path) as process:
        lines = read_until(process, '"url"')
    said = {line.split()[0]: line for line in lines if line.strip()}
    assert {"notes", "skill", "agent", "workflow"} <= set(said) and "units" not in said
    assert not any(" down " in line or " WARNING " in line for line in lines)
    assert "  moongate add NAME URL" in lines
    assert any("Agents use the model of the connected client" in line for line in lines)


def test_run_takes_a_short_option_for_the_configuration(tmp_path: Path) -> None:
    path = write_gateway(tmp_path, storage={"dir": "state"}, server={"name": "mine"})
    (tmp_path / "elsewhere").mkdir()
    with running("-c", str(path), "--http", ":0", cwd=tmp_path / "elsewhere") as process:
        assert any(line.startswith("mine serves") for line in read_until(process, '"url"'))


def test_json_start_message_is_one_line(tmp_path: Path) -> None:
    write_gateway(tmp_path, mcpServers={"up": upstream_stdio()}, storage={"dir": "state"})
    with running("--http", ":0", "--json", cwd=tmp_path) as process:
        said = json.loads(read_until(process, '{"endpoint"')[-1])
        assert said["sources"][0]["name"] == "up"
        assert said["snippet"] == {"mcpServers": {"moongate": {"type": "http", "url": said["endpoint"]}}}
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=TIMEOUT_SECONDS)
        assert process.returncode == 0


def test_stdio_keeps_stdout_for_the_protocol_and_ends_with_client(tmp_path: Path) -> None:
    path = write_gateway(tmp_path, mcpServers={"up": upstream_stdio()}, storage={"dir": "state"})
    with running("--stdio", cwd=tmp_path) as process:
        assert process.stdin is not None and process.stdout is not None
        process.stdin.write(json.dumps(HELLO) + "\n")
        process.stdin.flush()
        assert json.loads(process.stdout.readline())["result"]["serverInfo"]["name"] == "moongate"
        lines = read_until(process, str(path) + '"')
        assert any('"command"' in line for line in lines)
        out, err = process.communicate(timeout=TIMEOUT_SECONDS)
        assert (process.returncode, out) == (0, "")
        assert "Traceback" not in err


def test_closed_stdio_finishes_in_flight_calls(tmp_path: Path) -> None:
    code = "import time\nfrom gateway import tool\n\n\n@tool\ndef slow() -> str:\n    time.sleep(2)\n    return 'done'\n"
    (tmp_path / "slow_code.py").write_text(code)  # the SDK path calls functions
    write_gateway(tmp_path, mcpServers={"up": upstream_stdio()}, expose={"functions": ["slow_code"]}, storage={"dir": "state"})
    call: dict[str, Any] = {"jsonrpc": "2.0", "id": 2, "method": "tools/call", "params": {"name": "function__slow", "arguments": {}}}
    said: list[dict[str, Any]] = [HELLO, {"jsonrpc": "2.0", "method": "notifications/initialized"}, call]
    with running("--stdio", cwd=tmp_path) as process:
        out, err = process.communicate("".join(json.dumps(message) + "\n" for message in said), timeout=TIMEOUT_SECONDS)
    answers = {message["id"]: message for message in map(json.loads, out.splitlines()) if "id" in message}
    assert answers[2].get("result", {}).get("content") == [{"type": "text", "text": "done"}], (out, err)
    assert process.returncode == 0


@pytest.mark.parametrize("era", ["2025", pytest.param("2026", marks=pytest.mark.faults)])
@pytest.mark.parametrize("how", ["it closes its end", "a signal"])
@pytest.mark.fault(25)
def test_client_that_reads_nothing_does_not_keep_it_from_ending(tmp_path: Path, era: str, how: str) -> None:
    write_gateway(tmp_path, mcpServers={"up": upstream_stdio()}, storage={"dir": "state"})
    meta: dict[str, Any] = {"io.modelcontextprotocol/protocolVersion": "2026-07-28", "io.modelcontextprotocol/clientCapabilities": {}}
    params: dict[str, Any] = {"name": "up__big", "arguments": {"bytes": 60_000}, **({"_meta": meta} if era == "2026" else {})}
    said: list[dict[str, Any]] = [] if era == "2026" else [HELLO, {"jsonrpc": "2.0", "method": "notifications/initialized"}]
    said += [{"jsonrpc": "2.0", "id": number, "method": "tools/call", "params": params} for number in range(2, 9)]
    with running("--stdio", cwd=tmp_path) as process:
        assert process.stdin is not None and process.stdout is not None
        process.stdin.writelines(json.dumps(message) + "\n" for message in said)
        process.stdin.flush()
        while unread(process.stdout.fileno()) < 50_000:
            time.sleep(0.05)
        if how == "a signal":
            process.send_signal(signal.SIGTERM)
        else:
            process.stdin.close()
        assert process.wait(timeout=TIMEOUT_SECONDS / 2) == 0
        process.stdin.close()
        process.stdin = None


def unread(descriptor: int) -> int:
    """Return the number of unread bytes in a pipe."""
    return int.from_bytes(fcntl.ioctl(descriptor, termios.FIONREAD, bytes(4)), sys.byteorder)


@pytest.mark.attack(4)
def test_bind_beyond_loopback_without_keys_is_refused(tmp_path: Path) -> None:
    write_gateway(tmp_path, storage={"dir": "state"})
    done = moongate("run", "--http", f"0.0.0.0:{free_port()}", "--json", cwd=tmp_path)
    assert (done.code, done.out) == (2, "")
    assert "moongate keys add NAME" in done.error["message"]


def test_bind_with_keys_serves_and_its_snippet_needs_a_key(tmp_path: Path) -> None:
    write_gateway(tmp_path, storage={"dir": "state"})
    assert moongate("keys", "add", "me", cwd=tmp_path).code == 0
    with running("--http", f"0.0.0.0:{free_port()}", "--json", cwd=tmp_path) as process:
        said = json.loads(read_until(process, '{"endpoint"')[-1])
        assert said["snippet"]["mcpServers"]["moongate"]["headers"] == {"Authorization": "Bearer <API key>"}


def test_taken_port_exits_with_2_and_names_the_remedy(tmp_path: Path) -> None:
    write_gateway(tmp_path, storage={"dir": "state"})
    with running("--http", ":0", "--json", cwd=tmp_path) as process:
        port = json.loads(read_until(process, '{"endpoint"')[-1])["endpoint"].split(":")[2].partition("/")[0]
        done = moongate("run", "--http", f":{port}", cwd=tmp_path)
        assert done.code == 2
        assert "choose another port" in done.err


def test_next_free_port_is_taken_and_commands_find_the_gateway(tmp_path: Path) -> None:
    with ThreadingHTTPServer(("127.0.0.1", 0), BaseHTTPRequestHandler) as stranger:
        threading.Thread(target=stranger.serve_forever, daemon=True).start()
        taken = stranger.server_port
        config = write_gateway(tmp_path, storage={"dir": "state"}, mcpServers={"up": upstream_stdio()}, server={"http": {"port": taken}})
        with running("--or-any-port", cwd=tmp_path, has_own_pid=True) as process:
            said = read_until(process, '"url"')
            [note] = [line for line in said if line.startswith("note: ")]
            assert note.startswith(f"note: a program that is not a Moongate gateway listens on 127.0.0.1:{taken}, so this gateway listens ")
            url = f"http://{note.rstrip().rstrip('.').split()[-1]}/mcp"
            assert json.dumps(url) in said[-1]
            listed = moongate("list", cwd=tmp_path)
            assert f"gateway: {url} (configuration: {config})" in listed.err
            again = moongate("run", "--or-any-port", cwd=tmp_path)
            assert again.code == 2 and f"of process {process.pid}" in again.err
            assert f"already serves this configuration at {url}" in again.err
            with running("--http", ":0", cwd=tmp_path) as second:
                read_until(second, '"url"')
                assert f"gateway: {url}" not in moongate("list", cwd=tmp_path).err
            stranger.shutdown()
            stranger.server_close()
            assert f"gateway: {url} (configuration: {config})" in moongate("list", cwd=tmp_path).err
            freed = moongate("run", "--or-any-port", cwd=tmp_path)
            assert freed.code == 2 and f"already serves this configuration at {url}" in freed.err
            process.terminate()
            assert process.wait(TIMEOUT_SECONDS) == 0
    assert not list((tmp_path / "state" / "endpoints").glob(f"*.{url.split(':')[2].partition('/')[0]}"))


def test_concurrent_gateways_share_no_port_or_configuration(tmp_path: Path) -> None:
    port = free_port()
    for name in "ab":
        (tmp_path / name).mkdir()
        write_gateway(tmp_path / name, storage={"dir": "state"}, server={"name": name, "http": {"port": port}})
    with (
        running("--or-any-port", cwd=tmp_path / "a", has_own_pid=True) as first,
        running("--or-any-port", cwd=tmp_path / "a", has_own_pid=True) as second,
        running("--or-any-port", cwd=tmp_path / "b", has_own_pid=True) as other,
    ):
        said = {process: start_of(process) for process in (first, second, other)}
        urls = {process: line.split()[2] for process, lines in said.items() for line in lines if " serves http://" in line}
        assert other in urls and len(set(urls.values())) == len(urls) == 2, said
        [winner] = urls.keys() - {other}
        loser = first if winner is second else second
        assert loser.wait(TIMEOUT_SECONDS) == 2
        assert f" of process {winner.pid} (" in said[loser][-1] and f" serves this configuration at {urls[winner]}." in said[loser][-1]
        [note] = [line for process in urls for line in said[process] if line.startswith("note: ")]
        holder = next(process for process, url in urls.items() if f":{port}/" in url)
        assert f" of process {holder.pid} (" in note or "did not" in note


def start_of(process: subprocess.Popen[str]) -> list[str]:
    """Return the lines of stderr up to the line that names the endpoint, or all lines."""
    assert process.stderr is not None
    lines: list[str] = []
    for line in process.stderr:
        lines.append(line.rstrip("\n"))
        if " serves http://" in line:
            break
    return lines


MODERN: dict[str, Any] = {"io.modelcontextprotocol/protocolVersion": "2026-07-28", "io.modelcontextprotocol/clientCapabilities": {}}
CONVERSATIONS: dict[str, list[dict[str, Any]]] = {
    "2025": [
        HELLO,
        {"jsonrpc": "2.0", "method": "notifications/initialized"},
        {"jsonrpc": "2.0", "id": 2, "method": "tools/list"},
        {"jsonrpc": "2.0", "id": 3, "method": "tools/call", "params": {"name": "up__echo", "arguments": {"text": "é"}}},
    ],
    "2026": [
        {"jsonrpc": "2.0", "id": 1, "method": "server/discover", "params": {"_meta": MODERN}},
        {"jsonrpc": "2.0", "id": 2, "method": "tools/list", "params": {"_meta": MODERN}},
        {
            "jsonrpc": "2.0",
            "id": 3,
            "method": "tools/call",
            "params": {"name": "up__echo", "arguments": {"text": "é"}, "_meta": MODERN},
        },
    ],
}


@pytest.mark.parametrize("era", CONVERSATIONS)
def test_input_from_a_file_is_answered_like_a_pipe(tmp_path: Path, era: str) -> None:
    write_gateway(tmp_path, mcpServers={"up": upstream_stdio()}, storage={"dir": "state"})
    assert moongate("call", "up__echo", "text=x", cwd=tmp_path).code == 0  # stores the server's listing for the next starts
    lines = [json.dumps(message, ensure_ascii=False).encode() for message in CONVERSATIONS[era]]
    lines.insert(-1, b'{"jsonrpc": "2.0", "id": 4, "method": "p\xffng"}')
    (tmp_path / "input").write_bytes(b"\n".join(lines))  # the last line has no line end
    argv = [sys.executable, "-m", "gateway", "run", "--stdio"]
    with (tmp_path / "input").open("rb") as file:
        from_file = subprocess.run(argv, cwd=tmp_path, env=environment(tmp_path), stdin=file, capture_output=True, timeout=60)
    piped = (tmp_path / "input").read_bytes()
    from_pipe = subprocess.run(argv, cwd=tmp_path, env=environment(tmp_path), input=piped, capture_output=True, timeout=60)
    assert (from_file.returncode, from_pipe.returncode) == (0, 0), from_file.stderr.decode()[-2000:]
    answers = responses(from_file.stdout)
    assert answers == responses(from_pipe.stdout)
    assert answers.keys() == {1, 2, 3, None}
    assert answers[3]["result"]["content"][0]["text"] == "é"
    assert "UTF-8" in answers[None]["error"]["message"]


def responses(output: bytes) -> dict[int | None, dict[str, Any]]:
    """JSON-RPC id → response, of all responses in the lines of an output."""
    messages: list[dict[str, Any]] = [json.loads(line) for line in output.splitlines()]
    found = {message.get("id"): message for message in messages if "method" not in message}
    del found[1]["result"]["instructions"]  # they name the state of the servers at the start
    return found


def test_null_device_as_input_ends_it(tmp_path: Path) -> None:
    write_gateway(tmp_path, storage={"dir": "state"})
    argv = [sys.executable, "-m", "gateway", "run", "--stdio"]
    empty = subprocess.DEVNULL
    done = subprocess.run(argv, cwd=tmp_path, env=environment(tmp_path), stdin=empty, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout) == (0, ""), done.stderr
    assert "Traceback" not in done.stderr

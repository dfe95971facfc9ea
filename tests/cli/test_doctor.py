"""`moongate doctor`: it says `ok` only of what works, and names the fix of what does not."""

from __future__ import annotations

import sys
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import httpx2
import pytest

from tests.cli.processes import Ended, moongate, write_gateway
from tests.fakes.openai_server import ScriptedServer, openai_server
from tests.fakes.running import free_port, raw_stdio

CLERK = "---\nname: clerk\ndescription: Files papers.\n{more}---\nFile it.\n"


@pytest.fixture(scope="module")
def endpoint() -> Generator[ScriptedServer]:
    with openai_server() as server:
        yield server


def play(endpoint: ScriptedServer, **script: Any) -> None:
    """Replace what the endpoint answers."""
    httpx2.post(endpoint.base_url.removesuffix("/v1") + "/script", json={"turns": [], **script}).raise_for_status()


def checked(folder: Path, env: Mapping[str, str] | None = None, *, agents: Mapping[str, str] | None = None, **document: Any) -> Ended:
    """What `doctor` says of a configuration, with these files of agents and workflows."""
    (folder / "agents").mkdir(exist_ok=True)
    for name, text in (agents or {}).items():
        (folder / "agents" / name).write_text(text)
    http = {"http": {"port": free_port()}}
    write_gateway(folder, expose={"agents": ["agents"]}, storage={"dir": "state", **document.pop("storage", {})}, server=http, **document)
    return moongate("doctor", "--json", cwd=folder, env=env)


@contextmanager
def pages(answers: Mapping[str, tuple[int, str, str]]) -> Generator[str]:
    """A web server that answers each path with its status, content type and body, whatever is asked; yields its origin."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            status, kind, body = answers.get(self.path, (404, "text/html", "<html>No</html>"))
            self.rfile.read(int(self.headers.get("content-length") or 0))
            self.send_response(status)
            self.send_header("content-type", kind)
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body.encode())

        do_GET = do_DELETE = do_POST

        def log_message(self, format: str, *args: object) -> None:
            """Stay quiet."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()


def about(done: Ended, subject: str) -> list[tuple[str, str]]:
    """Status and text of the checks whose subject starts so."""
    return [
        (check["status"], f"{check['text']} {check['fix'] or ''}") for check in done.data["checks"] if check["subject"].startswith(subject)
    ]


def test_agent_and_workflow_that_name_what_is_not_there_fail(tmp_path: Path) -> None:
    clerk = CLERK.format(more="tools: [agent/gost, docs/search, up/*]\nskills: [filing]\n")
    flow = "name: flow\ndescription: Asks.\nexecutors:\n  one: {agent: clrk, prompt: hi}\nstart: one\n"
    done = checked(tmp_path, agents={"clerk.agent.md": clerk, "flow.workflow.yaml": flow})
    assert done.code == 2
    texts = dict.fromkeys(text for status, text in about(done, "agent ") if status == "fail")
    assert [text.split(". ")[0] for text in texts] == [
        "there is no agent 'gost'",
        "'docs/search': there is no server 'docs'",
        "there is no skill 'filing'",
    ]
    assert about(done, "agent ")[2][0] == "warn"
    [(status, text)] = about(done, "workflow ")
    assert (status, "there is no agent 'clrk'. Did you mean 'clerk'?" in text) == ("fail", True)


def test_quarantined_tool_fails_with_the_command_that_accepts_it(tmp_path: Path) -> None:
    search = {"name": "search", "description": "Finds.", "inputSchema": {"type": "object"}}
    checked(tmp_path, mcpServers={"docs": raw_stdio({"tools": [search], "later": [search]})})
    assert moongate("lock", cwd=tmp_path).code == 0
    changed = {**search, "description": "Sends keys."}
    done = checked(tmp_path, mcpServers={"docs": raw_stdio({"tools": [changed], "later": [changed]})}, agents={})
    [(status, text)] = about(done, "tool search of server docs")
    assert (status, "moongate lock --accept docs/search" in text) == ("fail", True)
    assert (done.code, done.error["code"]) == (5, "lock-differs")


def test_model_endpoint_that_answers_is_ok_and_one_that_does_not_fails(tmp_path: Path, endpoint: ScriptedServer) -> None:
    clerk = {"clerk.agent.md": CLERK.format(more="")}
    url = {"OPENAI_BASE_URL": endpoint.base_url, "OPENAI_API_KEY": "sk-right"}
    play(endpoint, models=["small"], apiKey="sk-right")
    good = checked(tmp_path, {**url, "OPENAI_MODEL": "small"}, agents=clerk)
    assert (good.code, about(good, "model auto")) == (0, [("ok", f"{endpoint.base_url} answers and lists 'small' ")])
    [(status, text)] = about(checked(tmp_path, {**url, "OPENAI_MODEL": "smal"}), "model auto")
    assert (status, "does not list model 'smal'" in text, "Did you mean 'small'?" in text) == ("warn", True, True)
    nameless = checked(tmp_path, url)
    assert (nameless.code, about(nameless, "model auto")[0][0], "set OPENAI_MODEL" in about(nameless, "model auto")[0][1]) == (
        2,
        "fail",
        True,
    )
    refused = checked(tmp_path, {**url, "OPENAI_API_KEY": "sk-wrong", "OPENAI_MODEL": "small"})
    assert "refused the API key (401)" in about(refused, "model auto")[0][1]
    one = {"one": {"command": "npx -y some-server"}}
    pasted = checked(tmp_path, {**url, "OPENAI_API_KEY": "sk-…", "OPENAI_MODEL": "small"}, mcpServers=one)
    assert (pasted.code, "not the whole key" in about(pasted, "model auto")[0][1]) == (2, True)
    assert '"command": "npx", "args": ["-y", "some-server"]' in about(pasted, "program npx")[0][1]
    assert "Write its arguments as `args`" in about(pasted, "server one")[0][1]
    down = checked(tmp_path, {"OPENAI_BASE_URL": f"http://127.0.0.1:{free_port()}/v1", "OPENAI_MODEL": "small"})
    assert (down.code, "cannot be reached" in about(down, "model auto")[0][1]) == (4, True)


def test_endpoint_that_lists_no_models_is_ok(tmp_path: Path, endpoint: ScriptedServer) -> None:
    play(endpoint)
    done = checked(
        tmp_path, {"OPENAI_BASE_URL": endpoint.base_url, "OPENAI_MODEL": "small"}, agents={"clerk.agent.md": CLERK.format(more="")}
    )
    assert about(done, "model auto") == [("ok", f"{endpoint.base_url} answers, but lists no models ")]


def test_html_page_of_a_model_endpoint_is_called_that_in_doctor_and_in_a_call(tmp_path: Path, endpoint: ScriptedServer) -> None:
    play(endpoint, page="<!doctype html><title>Welcome</title>")
    env = {"OPENAI_BASE_URL": endpoint.base_url, "OPENAI_MODEL": "small"}
    done = checked(tmp_path, env, agents={"clerk.agent.md": CLERK.format(more="")})
    [(status, text)] = about(done, "model auto")
    assert (status, f"{endpoint.base_url} answered with an HTML page instead of JSON" in text) == ("fail", True)
    called = moongate("call", "agent__clerk", "task=file", "--standalone", cwd=tmp_path, env=env)
    assert "answered with an HTML page instead of JSON" in called.out + called.err


def test_database_server_that_is_down_fails(tmp_path: Path) -> None:
    done = checked(tmp_path, storage={"url": f"postgresql://moongate@127.0.0.1:{free_port()}/none"})
    assert (done.code, about(done, "database")[0][0]) == (4, "fail")


def test_remote_agent_without_its_package_fails_with_the_command_that_installs_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    far = CLERK.format(more='remote: {a2a: "http://127.0.0.1:9/"}\n')
    done = checked(tmp_path, agents={"clerk.agent.md": far})
    assert about(done, "agent ") == []
    monkeypatch.setitem(sys.modules, "a2a", None)
    done = checked(tmp_path)
    [(status, text)] = about(done, "agent ")
    assert (status, "pip install 'moongate[a2a]'" in text) == ("fail", True)


def test_url_that_answers_without_mcp_is_explained_in_doctor_and_with_url(tmp_path: Path) -> None:
    answers = {
        "html": (200, "text/html", "<html>Hi</html>", "it answered 200 with an HTML page"),
        "other-host": (421, "text/plain", "Misdirected", "it does not accept the host name"),
        "object": (200, "application/json", '{"hello": 1}', "with something that is not MCP"),
        "gone": (404, "text/plain", "", "it answered 404, so there is no MCP endpoint"),
        "text": (200, "text/plain", "ok", "it answered with text/plain"),
    }
    with pages({f"/{name}": answer[:3] for name, answer in answers.items()}) as base:
        done = checked(tmp_path, mcpServers={name: {"url": f"{base}/{name}"} for name in answers})
        asked = moongate("list", "tools", "--url", f"{base}/html", cwd=tmp_path)
    for name, answer in answers.items():
        [(status, text)] = about(done, f"server {name}")
        assert (status, answer[3] in text) == ("fail", True), text
    assert (done.code, asked.code) == (4, 4)
    assert answers["html"][3] in asked.err

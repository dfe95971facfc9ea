"""`moongate doctor`: each check is `ok` only if the checked part works, and otherwise names a fix."""

from __future__ import annotations

import json
import sys
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import httpx2
import pytest

from gateway.chat.model_resolver import ModelResolver
from gateway.errors import ModelError
from gateway.protocol import METHOD_NOT_FOUND
from tests.cli.processes import Ended, moongate, write_gateway
from tests.fakes.openai_server import ScriptedServer, openai_server
from tests.fakes.running import free_port, raw_stdio

CLERK = "---\nname: clerk\ndescription: Files papers.\n{more}---\nFile it.\n"


@pytest.fixture(scope="module")
def endpoint() -> Generator[ScriptedServer]:
    with openai_server() as server:
        yield server


def play(endpoint: ScriptedServer, **script: Any) -> None:
    """Replace the script of the model endpoint."""
    httpx2.post(endpoint.base_url.removesuffix("/v1") + "/script", json={"turns": [], **script}).raise_for_status()


def checked(folder: Path, env: Mapping[str, str] | None = None, *, agents: Mapping[str, str] | None = None, **document: Any) -> Ended:
    """Run `doctor` on a configuration with these agent and workflow files."""
    (folder / "agents").mkdir(exist_ok=True)
    for name, text in (agents or {}).items():
        (folder / "agents" / name).write_text(text)
    http = {"http": {"port": free_port()}}
    expose = {"agents": ["agents"], "functions": document.pop("functions", [])}
    write_gateway(folder, expose=expose, storage={"dir": "state", **document.pop("storage", {})}, server=http, **document)
    return moongate("doctor", "--json", cwd=folder, env=env)


@contextmanager
def pages(answers: Mapping[str, tuple[int, str, str]]) -> Generator[str]:
    """A web server that answers each path with its status, content type and body, whatever is asked; yields its origin.

    `ID` in a body stands for the id of the JSON-RPC request, and the body of a redirect is where it leads.
    """

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            status, kind, body = answers.get(self.path, (404, "text/html", "<html>No</html>"))
            asked = self.rfile.read(int(self.headers.get("content-length") or 0))
            if status == 0:
                self.close_connection = True
                return
            if asked:
                body = body.replace("ID", json.dumps(json.loads(asked).get("id")))
            self.send_response(status)
            if 300 <= status < 400:
                self.send_header("location", body)
            self.send_header("content-type", kind)
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body.encode())

        do_GET = do_DELETE = do_POST

        def log_message(self, format: str, *args: object) -> None:
            """Log nothing: stderr belongs to the test."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()


def about(done: Ended, subject: str) -> list[tuple[str, str]]:
    """Return status and text of the checks whose subject starts with `subject`."""
    return [
        (check["status"], f"{check['text']} {check['fix'] or ''}") for check in done.data["checks"] if check["subject"].startswith(subject)
    ]


def test_agent_and_workflow_with_unknown_names_fail(tmp_path: Path) -> None:
    clerk = CLERK.format(more="tools: [agent/gost, docs/search, up/*, u*/x]\nskills: [filing]\n")
    flow = "name: flow\ndescription: Asks.\nexecutors:\n  one: {agent: clrk, prompt: hi}\n  two: {tool: up/add}\n"
    flow += "start: one\nedges: [{from: one, to: two}]\n"
    done = checked(tmp_path, agents={"clerk.agent.md": clerk, "flow.workflow.yaml": flow})
    assert done.code == 2
    texts = dict.fromkeys(text for status, text in about(done, "agent ") if status == "fail")
    assert [text.split(". ")[0] for text in texts] == [
        "unknown agent 'gost'",
        "'docs/search': unknown server 'docs'",
        "'up/*': unknown server 'up'",
        "unknown skill 'filing'",
    ]
    assert about(done, "agent ")[3][0] == "warn", "a pattern of server names may match none"
    [(status, text), (_, server)] = about(done, "workflow ")
    assert (status, "unknown agent 'clrk'. Did you mean 'clerk'?" in text) == ("fail", True)
    assert "'up/add': unknown server 'up'" in server


def test_doctor_lists_every_dangling_reference_of_a_file(tmp_path: Path) -> None:
    """Files with several missing packages, names and tools: all are reported at once, without running the files."""
    optional = "try:\n    import nopkg_c\nexcept ImportError: ...\n"
    (tmp_path / "crafts.py").write_text(f"{optional}import json\nimport own_part\nimport nopkg_b.inner\n")
    (tmp_path / "own_part.py").write_text("import nopkg_a\nfrom gateway import Agent\nfrom nopkg_d import x, y\n")
    (tmp_path / "spelled.py").write_text("from gateway import tol, Agent, workflw\nimport nopkg_e\n")
    (tmp_path / "fine.py").write_text("def keep(text: str, to: str) -> str:\n    return text\n")
    named = "tools: [docs/search]\nskills: [filing]\nmiddleware: ['none_a:x', 'spelled:y']\n"
    named += "context-providers: ['none_b:z', 'fine:nothing']\n"
    flow = "name: flow\ndescription: d\nexecutors:\n  one: {python: 'nopkg_f:x'}\n  two: {agent: clrk, prompt: hi}\n"
    flow += "  three: {python: 'fine:keep', arguments: {texts: a, too: b}}\nstart: one\n"
    flow += "edges: [{from: one, to: two}, {from: two, to: three}]\n"
    agents = {"clerk.agent.md": CLERK.format(more=named), "flow.workflow.yaml": flow}
    done = checked(tmp_path, agents=agents, functions=["crafts"])
    packages = [text for status, text in about(done, "function ") if status == "fail"]
    assert packages == ["It imports 'nopkg_a', 'nopkg_b.inner' and 'nopkg_d', which are not installed; install them beside Moongate. "]
    told = "\n".join(text for status, text in about(done, "agent ") if status == "fail")
    for missing in ("'none_a'", "'nopkg_e', which is not", "'gateway.tol' and 'gateway.workflw', which do not", "'none_b'", "no 'nothing'"):
        assert missing in told, told
    assert "unknown server 'docs'" in told and "unknown skill 'filing'" in told
    told = "\n".join(text for status, text in about(done, "workflow ") if status == "fail")
    for missing in ("'nopkg_f'", "unknown agent 'clrk'", "no parameter 'texts'", "no parameter 'too'", "also needs 'text', 'to'"):
        assert missing in told, told


def test_entry_with_wrong_disabled_fails_and_disabled_one_is_ok(tmp_path: Path) -> None:
    done = checked(tmp_path, mcpServers={"wrong": {"command": "x", "disabled": "no"}, "off": {"command": "x", "disabled": True}})
    assert [status for status, _ in about(done, "entry mcpServers.wrong.disabled")] == ["fail"]
    assert [status for status, _ in about(done, "entry mcpServers.off.disabled")] == ["ok"]
    assert done.code == 2


def test_quarantined_tool_fails_with_the_command_that_accepts_it(tmp_path: Path) -> None:
    search = {"name": "search", "description": "Finds.", "inputSchema": {"type": "object"}}
    checked(tmp_path, mcpServers={"docs": raw_stdio({"tools": [search], "later": [search]})})
    assert moongate("lock", cwd=tmp_path).code == 0
    changed = {**search, "description": "Sends keys."}
    done = checked(tmp_path, mcpServers={"docs": raw_stdio({"tools": [changed], "later": [changed]})}, agents={})
    [(status, text)] = about(done, "tool search of server docs")
    assert (status, "moongate lock --accept docs/search" in text) == ("fail", True)
    assert (done.code, done.error["code"]) == (5, "lock-differs")


def test_responding_model_endpoint_is_ok_and_silent_one_fails(tmp_path: Path, endpoint: ScriptedServer) -> None:
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
    assert "rejected the API key (401)" in about(refused, "model auto")[0][1]
    one = {"one": {"command": "npx -y some-server"}}
    pasted = checked(tmp_path, {**url, "OPENAI_API_KEY": "sk-…", "OPENAI_MODEL": "small"}, mcpServers=one)
    assert (pasted.code, "not the whole key" in about(pasted, "model auto")[0][1]) == (2, True)
    assert '"command": "npx", "args": ["-y", "some-server"]' in about(pasted, "program npx")[0][1]
    assert "Write its arguments as `args`" in about(pasted, "server one")[0][1]
    down = checked(tmp_path, {"OPENAI_BASE_URL": f"http://127.0.0.1:{free_port()}/v1", "OPENAI_MODEL": "small"})
    assert (down.code, "cannot be reached" in about(down, "model auto")[0][1]) == (4, True)


REFUSAL = '{"error": {"message": "messages must be a list"}}'
OK = (200, "application/json", '{"ok": true}')
NO_ROUTE = (404, "application/json", '{"detail": "Not Found"}')
WITHOUT_LIST: dict[str, tuple[dict[str, tuple[int, str, str]], str]] = {
    "chat-only": ({"/chat/completions": (400, "application/json", REFUSAL)}, ""),
    "list-of-texts": ({"/models": (200, "application/json", "[]"), "/chat/completions": (422, "text/plain", "bad")}, ""),
    "without-routes": ({"/models": NO_ROUTE, "/chat/completions": NO_ROUTE}, "answers 404 to /chat/completions"),
    "other-api": ({"/models": OK, "/chat/completions": OK}, "answers /chat/completions with JSON that is not a model's answer"),
    "text": ({"/models": NO_ROUTE, "/chat/completions": (200, "text/plain", "ok")}, "does not answer /chat/completions with a JSON"),
    "key": ({"/chat/completions": (401, "application/json", REFUSAL)}, "rejected the API key (401); check OPENAI_API_KEY"),
    "moved": ({"/models": (302, "", "/login"), "/chat/completions": (302, "", "/login")}, "answered 302, a redirect"),
}


async def test_endpoint_without_model_list_is_probed_without_a_model_run() -> None:
    with pages({f"/{name}{path}": answer for name, (answers, _) in WITHOUT_LIST.items() for path, answer in answers.items()}) as base:
        for name, (_, problem) in WITHOUT_LIST.items():
            resolver = ModelResolver({"OPENAI_BASE_URL": f"{base}/{name}", "OPENAI_MODEL": "small"}, None)
            try:
                found = await resolver.check("auto")
            except ModelError as error:
                assert problem and problem in str(error) and f"{base}/{name}" in str(error), (name, str(error))
                assert not error.retryable, "doctor calls it unreachable"
            else:
                assert (found and found.is_listed, problem) == (None, ""), name
            finally:
                await resolver.aclose()


def test_endpoint_that_is_not_a_model_api_fails(tmp_path: Path) -> None:
    clerk = {"clerk.agent.md": CLERK.format(more="")}
    with pages({"/v1/chat/completions": WITHOUT_LIST["chat-only"][0]["/chat/completions"], "/models": OK, "/chat/completions": OK}) as base:
        for url, status, text in ((f"{base}/v1", "warn", "lists no models"), (base, "fail", "often ends in /v1")):
            done = checked(tmp_path, {"OPENAI_BASE_URL": url, "OPENAI_MODEL": "small"}, agents=clerk)
            [(found, said)] = about(done, "model auto")
            assert (done.code, found, text in said) == (0 if status == "warn" else 2, status, True), said


def test_html_page_of_a_model_endpoint_is_named_by_doctor_and_call(tmp_path: Path, endpoint: ScriptedServer) -> None:
    play(endpoint, page="<!doctype html><title>Welcome</title>")
    env = {"OPENAI_BASE_URL": endpoint.base_url, "OPENAI_MODEL": "small"}
    done = checked(tmp_path, env, agents={"clerk.agent.md": CLERK.format(more="")})
    [(status, text)] = about(done, "model auto")
    assert (status, f"{endpoint.base_url} answered with an HTML page instead of JSON" in text) == ("fail", True)
    with pages({}) as base:  # a web server without such a path
        env = {**env, "OPENAI_BASE_URL": base}
        done = checked(tmp_path, env)
        called = moongate("call", "agent__clerk", "task=file", "--standalone", cwd=tmp_path, env=env)
        nothing = checked(tmp_path, {**env, "OPENAI_BASE_URL": base.removeprefix("http://")})
    [(status, text)] = about(done, "model auto")
    assert (status, f"{base} answered with an HTML page instead of JSON" in text) == ("fail", True)
    assert "answered with an HTML page instead of JSON" in called.out + called.err
    [(status, text)] = about(nothing, "model auto")
    assert (status, "must look like http://" in text) == ("fail", True)


def test_bind_on_every_address_without_names_is_remarked_on(tmp_path: Path) -> None:
    assert moongate("keys", "add", "laptop", cwd=tmp_path).code == 0
    for names in ([], ["hub.example.com:*"]):
        write_gateway(tmp_path, server={"http": {"host": "0.0.0.0", "port": free_port(), "allowedHosts": names}})
        done = moongate("doctor", "--json", cwd=tmp_path)
        assert [(status, "server.http.allowedHosts" in text) for status, text in about(done, "bind")] == ([] if names else [("warn", True)])


def test_database_server_that_is_down_fails(tmp_path: Path) -> None:
    done = checked(tmp_path, storage={"url": f"postgresql://moongate@127.0.0.1:{free_port()}/none"})
    assert (done.code, about(done, "database")[0][0]) == (4, "fail")


def test_remote_agent_that_is_down_or_without_its_package_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    far = CLERK.format(more='remote: {a2a: "http://127.0.0.1:9/"}\n')
    done = checked(tmp_path, agents={"clerk.agent.md": far})
    [(status, text)] = about(done, "agent ")
    assert (done.code, status, "The remote agent 'clerk' cannot be used" in text) == (4, "fail", True)
    monkeypatch.setitem(sys.modules, "a2a", None)
    done = checked(tmp_path)
    [(status, text)] = about(done, "agent ")
    assert (status, "pip install 'moongate[a2a]'" in text) == ("fail", True)


def test_ag_ui_agent_is_probed_without_running_anything(tmp_path: Path) -> None:
    answers = {
        "/refuses": (422, "application/json", "{}"),
        "/streams": (200, "text/event-stream", ""),
        "/page": (200, "text/html", "<html>Hi</html>"),
        "/locked": (401, "application/json", "{}"),
        "/gone": (404, "application/json", "{}"),
    }
    with pages(answers) as base:
        urls = {name.strip("/"): f"{base}{name}" for name in answers} | {"down": f"http://127.0.0.1:{free_port()}/"}
        files = {f"{n}.agent.md": CLERK.replace("clerk", n).format(more=f'remote: {{ag-ui: "{url}"}}\n') for n, url in urls.items()}
        done = checked(tmp_path, agents=files)
    found = {Path(c["subject"]).name.partition(".")[0]: c["text"] for c in done.data["checks"] if c["status"] == "fail"}
    assert done.code == 4 and found.keys() == {"page", "locked", "gone", "down"}, found
    assert "text/html instead of a stream of events" in found["page"] and "cannot be reached" in found["down"]
    assert "answered 404" in found["gone"] and "answered 401. Set a key in `headers`." in found["locked"]


def test_url_without_mcp_is_explained_in_doctor_and_with_url(tmp_path: Path) -> None:
    refusal = json.dumps({"jsonrpc": "2.0", "id": "ID", "error": {"code": METHOD_NOT_FOUND, "message": "No such method"}})
    answers = {
        "html": (200, "text/html", "<html>Hi</html>", "it answered 200 with an HTML page"),
        "other-host": (421, "text/plain", "Misdirected", "it does not accept the host name"),
        "object": (200, "application/json", '{"hello": 1}', "with something that is not MCP"),
        "gone": (404, "text/plain", "", "it answered 404, so there is no MCP endpoint"),
        "no-route": (404, "application/json", '{"detail": "Not Found"}', "it answered 404, so there is no MCP endpoint"),
        "moved": (302, "text/html", "/login?code=secret", "/login, which is not followed"),
        "elsewhere": (307, "", "https://example.com/mcp?code=secret", "a redirect to https://example.com/mcp, which is not followed"),
        "refused": (200, "application/json", refusal.replace('"ID"', "ID"), "it refused 'initialize': No such method"),
        "forbidden": (403, "text/html", "<html>No</html>", "answered 403"),
        "cut": (0, "", "", "it closed the connection during the handshake"),
        "text": (200, "text/plain", "ok", "it answered with text/plain"),
    }
    with pages({f"/{name}": answer[:3] for name, answer in answers.items()} | {"/status.json": answers["forbidden"][:3]}) as base:
        urls = {name: f"{base}/{name}" for name in answers}
        done = checked(tmp_path, mcpServers={name: {"url": url} for name, url in urls.items()} | {"tls": {"url": f"https{base[4:]}"}})
        asked = {name: moongate("list", "tools", "--url", url, "--json", cwd=tmp_path) for name, url in urls.items()}
    for name, answer in answers.items():
        [(status, text)] = about(done, f"server {name}")
        assert (status, answer[3] in text, "secret" in text) == ("fail", True, False), text
        assert (asked[name].code, asked[name].error["code"]) == (4, "unreachable"), asked[name].err
        message = asked[name].error["message"]
        assert message.startswith(f"{urls[name]} cannot be used: ") and answer[3] in message, message
        assert "policies." not in message and "gateway: " not in asked[name].err
    down = f"http://127.0.0.1:{free_port()}/mcp"
    message = moongate("list", "tools", "--url", down, "--json", cwd=tmp_path).error["message"]
    assert message.startswith(f"No gateway at {down} (cannot connect") and message.endswith("`moongate run` starts one.")
    assert "write http:// instead of https://" in about(done, "server tls")[0][1]
    assert done.code == 3


def test_bundled_server_that_only_make_run_starts_is_not_an_error(tmp_path: Path) -> None:
    said = moongate("doctor", cwd=tmp_path)
    assert "ok    server notes" in said.out and "units" not in said.out

"""The HTTP endpoint as a protected resource: metadata, challenges, step-up, and when a token is checked."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Generator
from contextlib import ExitStack
from pathlib import Path
from typing import Any, cast

import anyio
import httpx2
import pytest

from gateway.auth import signing_keys
from gateway.auth.access_tokens import AccessTokens
from gateway.auth.api_keys import KeyStore
from gateway.auth.known_callers import Callers
from gateway.auth.principal import Principal
from gateway.auth.principal_facts import facts_of
from gateway.config.auth_settings import InboundAuthSettings
from gateway.config.load import load_config
from gateway.config.models import GatewayConfig, HttpSettings
from gateway.errors import ConfigError
from gateway.gate.approvers import Approvers
from gateway.server.forwarded_principal import forwarded_text, signed_principal
from gateway.server.head import Head
from gateway.server.key_gate import KeyGate, check_bind
from gateway.server.origins import accepted_origins
from gateway.server.replica_signature import Route, sign, verify
from tests.fakes.inside import Inside, command, gateway_inside, raw_inside
from tests.fakes.nursery import sooner
from tests.fakes.running import ROOT, free_port, until, wait_until_ready, write_config
from tests.fakes.token_issuer import CLIENT, SECRET, Issuer, token_issuer
from tests.interaction.wire import Era, over_http
from tests.server.both_paths import heads, request, standing

pytestmark = pytest.mark.timeout(60)

ERAS: tuple[Era, ...] = ("legacy", "modern")
TOOLS = [{"name": name, "inputSchema": {"type": "object"}} for name in ("read", "write", "secret")]
UP: dict[str, Any] = {
    "tools": TOOLS,
    "resources": [{"uri": "page://one", "name": "one"}],
    "prompts": [{"name": "ask"}],
    "reads": {"page://one": {"contents": [{"uri": "page://one", "text": "one"}]}},
    "rendered": {"ask": {"messages": []}},
}
SCOPES = {
    "read": ["up/read"], "pages": ["resources:up"], "asks": ["prompts:up"], "write": ["up/read", "up/write"],
    "boss": ["admin", "up/write", "gateway"],
}  # fmt: skip
ACCEPT = {"accept": "application/json, text/event-stream"}


@pytest.fixture(scope="module")
def issuer() -> Generator[Issuer]:
    with token_issuer() as made:
        yield made


def config_for(issuer: Issuer, upstream: str, path: str = "fast", **more: Any) -> dict[str, Any]:
    return {
        "mcpServers": {"up": {"type": "http", "url": upstream}},
        "policies": {"up": {"tasks": {"promote": ["write"]}}},
        "server": {
            "auth": {"issuers": [{"issuer": issuer.url, "scopes": SCOPES, **more}]},
            "http": {"directPath": "auto" if path == "fast" else "off"},
        },
    }


@pytest.fixture(scope="module")
def gateways(issuer: Issuer, tmp_path_factory: pytest.TempPathFactory) -> Generator[dict[str, Inside]]:
    folder = tmp_path_factory.mktemp("resource")
    with ExitStack() as stack:
        upstream = stack.enter_context(raw_inside(UP))
        yield {
            path: stack.enter_context(gateway_inside(folder, config_for(issuer, upstream, path), path)) for path in ("fast", "sdk")
        }


@pytest.fixture
def url(gateways: dict[str, Inside]) -> str:
    return gateways["fast"].url


# -- metadata and challenges ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("place", ["/.well-known/oauth-protected-resource", "/.well-known/oauth-protected-resource/mcp"])
def test_metadata_needs_no_token(url: str, issuer: Issuer, place: str) -> None:
    answer = httpx2.get(url.replace("/mcp", place), headers={"origin": "http://localhost:6274"})
    assert answer.status_code == 200 and answer.headers["access-control-allow-origin"] == "*"
    assert answer.json() == {
        "resource": url, "authorization_servers": [issuer.url], "bearer_methods_supported": ["header"],
        "scopes_supported": ["read", "pages", "asks", "write", "boss"],
    }  # fmt: skip
    asked = httpx2.options(url.replace("/mcp", place))
    assert (asked.status_code, asked.headers["access-control-allow-headers"]) == (200, "mcp-protocol-version")
    assert httpx2.post(url.replace("/mcp", place)).status_code == 405
    assert httpx2.get(url.replace("/mcp", place), headers={"host": "evil.example.com"}).status_code == 421


def test_other_paths_need_a_credential(url: str) -> None:
    for place in ("/.well-known/oauth-protected-resource/other", "/.well-known/oauth-authorization-server", "/", "/mcp"):
        assert httpx2.get(url.replace("/mcp", place)).status_code == 401, place
    assert httpx2.get(url.replace("/mcp", "/health")).status_code == 200


def test_local_user_needs_a_credential_as_well(url: str) -> None:
    answer = httpx2.post(url, headers=ACCEPT, json={"jsonrpc": "2.0", "id": 1, "method": "ping"})
    metadata = url.replace("/mcp", "/.well-known/oauth-protected-resource/mcp")
    assert answer.headers["www-authenticate"] == f'Bearer realm="moongate", resource_metadata="{metadata}", scope="read pages asks write"'
    assert "API key" in answer.json()["message"]


def test_status_page_names_the_missing_scope(url: str, issuer: Issuer) -> None:
    page = url.replace("/mcp", "/status.json")
    assert httpx2.get(page, headers={"authorization": f"Bearer {issuer.token(url, scope='boss')}"}).status_code == 200
    refused = httpx2.get(page, headers={"authorization": f"Bearer {issuer.token(url, scope='read')}"})
    assert refused.status_code == 403 and 'error="insufficient_scope"' in refused.headers["www-authenticate"]
    assert 'scope="boss"' in refused.headers["www-authenticate"]


@pytest.mark.parametrize("path", ["fast", "sdk"])
@pytest.mark.parametrize("era", ERAS)
@pytest.mark.attack(19)
async def test_call_without_scope_is_told_which_scope_to_ask_for(gateways: dict[str, Inside], issuer: Issuer, era: Era, path: str) -> None:
    url = gateways[path].url
    async with over_http(url, era, token=issuer.token(url, scope="read openid"), tasks=False) as wire:
        answers: list[httpx2.Response] = []

        async def keep(response: httpx2.Response) -> None:
            answers.append(response)

        wire.http.event_hooks["response"].append(keep)
        listed = (await wire.send("tools/list"))["result"]["tools"]
        assert {tool["name"] for tool in listed if tool["name"].startswith("up__")} == {"up__read"}
        assert not (await wire.send("tools/call", name="up__read", arguments={}))["result"].get("isError")
        refused = await wire.send("tools/call", name="up__write", arguments={})
        assert answers[-1].status_code == 403 and refused["error"]["data"] == {"error": "insufficient_scope"}
        assert refused["id"] == 1
        challenge = answers[-1].headers["www-authenticate"]
        assert 'error="insufficient_scope"' in challenge and 'scope="read openid write"' in challenge
        assert "/.well-known/oauth-protected-resource/mcp" in challenge
        wants: list[tuple[str, dict[str, Any], str]] = [
            ("resources/read", {"uri": "up+page://one"}, "pages"),
            ("prompts/get", {"name": "up__ask"}, "asks"),
        ]
        for method, params, scope in wants:
            assert (await wire.send(method, **params))["error"]["data"] == {"error": "insufficient_scope"}
            assert answers[-1].status_code == 403 and f'scope="read openid {scope}"' in answers[-1].headers["www-authenticate"]
        hidden = await wire.send("tools/call", name="up__secret", arguments={})
        assert answers[-1].status_code == 200 and hidden["result"]["_meta"]["dev.moongate/rule"] == "scopes"
        wire.headers["Authorization"] = f"Bearer {issuer.token(url, scope='read write')}"
        assert not (await wire.send("tools/call", name="up__write", arguments={}))["result"].get("isError")


# -- when a token is checked -----------------------------------------------------------------------------------------------


def test_body_is_not_requested_before_the_token_is_known(url: str, issuer: Issuer) -> None:
    host, port = url.removeprefix("http://").removesuffix("/mcp").split(":")
    for token, expected in ((issuer.token("https://other.example"), b"401"), (issuer.token(url, scope="read", sub="new"), b"100")):
        head = f"POST /mcp HTTP/1.1\r\nHost: {host}\r\nAuthorization: Bearer {token}\r\nContent-Length: 9\r\nExpect: 100-continue\r\n"
        with socket.create_connection((host, int(port)), 10) as connection:
            connection.sendall(f"{head}Content-Type: application/json\r\nAccept: */*\r\n\r\n".encode())
            assert connection.recv(100).split(b" ")[1] == expected


async def test_remembered_token_is_decided_on_the_fast_path(issuer: Issuer, tmp_path: Path) -> None:
    async with standing(tmp_path) as setup:
        tokens = AccessTokens(InboundAuthSettings.model_validate({"issuers": [{"issuer": issuer.url}]}))
        tokens.serve_at("http://127.0.0.1/mcp")
        places = accepted_origins("127.0.0.1", 80, [], [])
        dispatch: Any = setup.direct._app  # pyright: ignore[reportPrivateUsage]  # the fast path of the same gateway
        callers = Callers(setup.keys, tokens)
        gate = KeyGate(dispatch, callers, places, HttpSettings(), setup.server.usages, requires_key=True, fast_path=dispatch)
        token, body = issuer.token("http://127.0.0.1/mcp"), json.dumps(request()).encode()

        def head() -> Head:
            fields = {**heads(), "host": "127.0.0.1", "authorization": f"Bearer {token}", "content-length": str(len(body))}
            scope: dict[str, Any] = {"type": "http", "method": "POST", "path": "/mcp", "http_version": "1.1", "scheme": "http"}
            scope |= {"state": {}, "raw_path": b"/mcp", "query_string": b"", "root_path": "", "client": ("127.0.0.1", 1)}
            return Head({**scope, "headers": [(name.encode(), value.encode()) for name, value in fields.items()]})

        async def nothing() -> Any:
            return {"type": "http.request", "body": body, "more_body": False}

        sent: list[Any] = []

        async def keep(message: Any) -> None:
            sent.append(message)

        assert gate.take(head(), body) is None, "the token was not checked yet"
        await gate(cast("Any", head().scope()), nothing, keep)
        assert sent[0]["status"] == 200
        kept = head()
        started = gate.take(kept, body)
        assert started is not None and kept.token is not None
        started.cancel()
        assert gate.take(kept, body) is not None, "the next request of the connection computes no digest"


async def test_served_requests_do_not_wait_for_a_silent_issuer(issuer: Issuer, url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(signing_keys, "REFETCH_SECONDS", 0.0)
    token = issuer.token(url, scope="read", sub="early")
    async with over_http(url, "modern", token=token) as wire:
        await wire.send("tools/list")
        issuer.hold = threading.Event()
        try:
            asked, late = len(issuer.asked), issuer.token(url, header={"kid": "new"})
            async with httpx2.AsyncClient(timeout=20) as other, anyio.create_task_group() as tasks:
                tasks.start_soon(lambda: other.post(url, headers={**ACCEPT, "authorization": f"Bearer {late}"}, json={}))
                with anyio.fail_after(15):
                    while len(issuer.asked) == asked:
                        await anyio.sleep(0.01)
                with anyio.fail_after(5):
                    for _ in range(20):
                        assert "result" in await wire.send("tools/call", name="up__read", arguments={})
                issuer.hold.set()
        finally:
            issuer.hold = None


def test_unreachable_issuer_answers_503_until_it_is_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(signing_keys, "REFETCH_SECONDS", 0.1)
    with token_issuer() as issuer, raw_inside(UP) as upstream:
        issuer.status = 500
        with gateway_inside(tmp_path, config_for(issuer, upstream)) as inside:
            token = issuer.token(inside.url, scope="read")

            def ask() -> httpx2.Response:
                body: dict[str, Any] = {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": {}}
                return httpx2.post(inside.url, headers={**ACCEPT, "authorization": f"Bearer {token}"}, json=body, timeout=20)

            answer = ask()
            assert (answer.status_code, answer.json()["error"]) == (503, "temporarily_unavailable")
            assert int(answer.headers["retry-after"]) > 0 and "Traceback" not in answer.text
            issuer.status = 200
            until(lambda: ask().status_code != 503)


# -- state ---------------------------------------------------------------------------------------------------------------------


async def test_task_outlives_kill_and_stores_facts_but_no_token(issuer: Issuer, tmp_path: Path) -> None:
    with raw_inside(UP) as upstream:
        port = free_port()
        path, endpoint = write_config(tmp_path, config_for(issuer, upstream)), f"http://127.0.0.1:{port}/mcp"
        argv = sooner("gateway", "run", "--http", f"127.0.0.1:{port}", "--config", str(path))
        tokens = [issuer.token(endpoint, scope="write") for _ in range(2)]

        def start() -> subprocess.Popen[bytes]:
            with (tmp_path / "log").open("ab") as log:
                process = subprocess.Popen([argv[0], *argv[1]], cwd=ROOT, stdout=log, stderr=log, start_new_session=True)
            wait_until_ready(cast("Any", process), endpoint.replace("/mcp", "/ready"), tmp_path / "log")
            return process

        process = start()
        try:
            async with over_http(endpoint, "modern", token=tokens[0]) as wire:
                task = (await wire.send("tools/call", name="up__write", arguments={}))["result"]["taskId"]
                with anyio.fail_after(20):
                    while (await wire.send("tasks/get", taskId=task))["result"]["status"] != "completed":
                        await anyio.sleep(0.02)
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            process = start()
            async with over_http(endpoint, "modern", token=tokens[1]) as wire:
                assert (await wire.send("tasks/get", taskId=task))["result"]["status"] == "completed"
            async with over_http(endpoint, "modern", token=issuer.token(endpoint, scope="write", sub="bob")) as wire:
                assert "error" in await wire.send("tasks/get", taskId=task)
        finally:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    stored = content_of(tmp_path)
    assert b'"subject": "alice"' in stored or b'"subject":"alice"' in stored
    for token in tokens:
        assert token.encode() not in stored and token.rpartition(".")[2].encode() not in stored


def content_of(folder: Path) -> bytes:
    return b"".join(file.read_bytes() for file in folder.rglob("*") if file.is_file())


@pytest.mark.parametrize("user", [True, False])
def test_replicas_forward_a_user_with_its_facts(user: bool, issuer: Issuer) -> None:
    principal = Principal("key:ab12", "robot")
    if user:
        facts = {"groups": ("ö-ops",), "subject": "alice", "client": "ide", "issuer": issuer.url, "expires_at": time.time() + 9}
        principal = Principal("user:aa", "Alice", ("docs",), kind="user", owner="user:bb", **cast("Any", facts))
    route = Route.of_client("here", "there", forwarded_text(principal))
    now = time.time()
    value = sign(b"k" * 32, route, method="POST", headers=[], body=b"", now=now)
    signed = verify(b"k" * 32, value, receiver="here", method="POST", headers=[], now=now)
    assert signed is not None
    read = signed_principal(signed)
    assert read is not None and read.id == principal.id and (not user or facts_of(read) == facts_of(principal))


def test_forwarded_user_without_facts_is_refused() -> None:
    now = time.time()
    for text, scheme in (("user:aa", "v1"), ("{}", "u1"), ("no json", "u1"), ("[1]", "u1")):
        value = sign(b"k" * 32, Route("here", "there", text, scheme), method="POST", headers=[], body=b"", now=now)
        signed = verify(b"k" * 32, value, receiver="here", method="POST", headers=[], now=now)
        assert signed is not None and signed_principal(signed) is None, text


# -- configuration -------------------------------------------------------------------------------------------------------------


def test_issuer_allows_an_address_that_others_reach(tmp_path: Path) -> None:
    auth = InboundAuthSettings.model_validate({"issuers": [{"issuer": "https://login.example"}]})
    keys = KeyStore(tmp_path / "keys.json")
    assert check_bind("0.0.0.0", keys, auth) and check_bind("127.0.0.1", keys, auth)
    with pytest.raises(ConfigError):
        check_bind("0.0.0.0", keys, InboundAuthSettings())
    with pytest.raises(ConfigError, match="scopes"):
        wrong: dict[str, Any] = {"issuers": [{"issuer": "https://a.example", "scopes": {"x": []}}]}
        check_bind("127.0.0.1", keys, InboundAuthSettings.model_validate(wrong))


async def test_issuer_makes_operators_the_approvers(issuer: Issuer, tmp_path: Path) -> None:
    tokens = AccessTokens(InboundAuthSettings.model_validate({"issuers": [{"issuer": issuer.url, "scopes": SCOPES}]}))
    tokens.serve_at("http://127.0.0.1/mcp")
    keys = KeyStore(tmp_path / "keys.json")
    assert Approvers(GatewayConfig, Callers(keys)).default() == "caller"
    approvers = Approvers(GatewayConfig, Callers(keys, tokens))
    boss = (await tokens.verify(issuer.token("http://127.0.0.1/mcp", scope="boss"))).principal
    reader = (await tokens.verify(issuer.token("http://127.0.0.1/mcp", scope="read"))).principal
    assert approvers.default() == "operator" and approvers.may_review(boss) and not approvers.may_review(reader)


def test_secret_of_introspection_is_a_masked_reference(tmp_path: Path) -> None:
    client: dict[str, Any] = {"clientId": CLIENT, "clientSecret": "${INTROSPECTION}"}
    issuers = [{"issuer": "https://login.example", "introspection": client}]
    path = write_config(tmp_path, {"server": {"auth": {"issuers": issuers}}})
    loaded = load_config(path, {"INTROSPECTION": SECRET})
    read = loaded.config.server.auth.issuers[0].introspection
    assert read is not None and read.client_secret == SECRET and SECRET in loaded.secrets and not loaded.notes
    client["clientSecret"] = "written"
    noted = load_config(write_config(tmp_path, {"server": {"auth": {"issuers": issuers}}}), {})
    assert "server.auth.issuers[0].introspection.clientSecret" in noted.notes[0]
    client["clientSecret"] = "${UNSET}"
    with pytest.raises(ConfigError, match="UNSET is not set"):
        load_config(write_config(tmp_path, {"server": {"auth": {"issuers": issuers}}}), {})


@pytest.mark.parametrize(
    ("entry", "problem"),
    [
        ({"issuer": "http://login.example"}, "https"),
        ({"issuer": "https://login.example?x=1"}, "query"),
        ({"issuer": "https://user@login.example"}, "https"),
        ({"issuer": "https://login.example", "algorithms": ["HS256"]}, "algorithms"),
        ({"issuer": "https://login.example", "algorithms": ["none"]}, "algorithms"),
        ({"issuer": "https://login.example", "algorithms": []}, "algorithms"),
        ({"issuer": "https://login.example", "clockSkewSeconds": 61}, "60"),
        ({"issuer": "https://login.example", "jwksUrl": "ftp://login.example"}, "https"),
        ({"issuer": "https://login.example", "scopes": {"a b": ["docs"]}}, "OAuth scope"),
        ({"issuer": "https://login.example", "introspection": {"clientId": "x"}}, "clientSecret"),
        ({"issuer": "https://login.example", "introspection": {"clientId": "x", "clientSecret": "y", "cacheSeconds": 61}}, "60"),
    ],
)
def test_wrong_issuer_settings_stop_the_start(entry: dict[str, Any], problem: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=problem):
        load_config(write_config(tmp_path, {"server": {"auth": {"issuers": [entry]}}}), {})
    twice = [{"issuer": "https://login.example"}] * 2
    with pytest.raises(ConfigError, match="twice"):
        load_config(write_config(tmp_path, {"server": {"auth": {"issuers": twice}}}), {})


def test_doctor_reports_each_issuer(tmp_path: Path) -> None:
    with token_issuer() as issuer, token_issuer() as gone:
        gone.status = 503
        issuers = [{"issuer": one.url} for one in (issuer, gone)]
        path = write_config(tmp_path, {"server": {"auth": {"issuers": issuers}, "http": {"port": free_port()}}})
        ended = command("doctor", "--config", str(path), "--json")
    found = {check["subject"]: check for check in json.loads(ended.out)["checks"] if check["subject"].startswith("issuer")}
    assert found[f"issuer {issuer.url}"]["status"] == "ok" and "1 signing key" in found[f"issuer {issuer.url}"]["text"]
    assert found[f"issuer {gone.url}"]["status"] == "fail" and "status 503" in found[f"issuer {gone.url}"]["text"]
    assert ended.code != 0

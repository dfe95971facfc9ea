"""The gateway authenticates as itself: tokens fetched once, renewed in time, sent nowhere else."""

from __future__ import annotations

import re
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import anyio
import httpx2
import pytest

from tests.cli.processes import moongate
from tests.fakes.auth_server import CLIENT, SECRET
from tests.fakes.running import auth_server, free_port, gateway_http, upstream_stdio, write_config
from tests.interaction.ways import Way, connected
from tests.upstream.signing import ENV, config, control, credentials, everything_under, own_environment, token_requests, told

pytestmark = pytest.mark.timeout(90)
MODERN, LEGACY = Way("http", "modern", "docs"), Way("http", "legacy", "docs")


async def say(url: str, text: str = "hi", *, way: Way = MODERN) -> Any:
    async with connected(way, url) as (client, _):
        return await client.call_tool("docs__echo", {"text": text})


def text_of(result: Any) -> str:
    return result.content[0].text


def state_of(url: str) -> dict[str, Any]:
    rows = httpx2.get(url.replace("/mcp", "/status.json")).json()["sources"]
    return next(row for row in rows if row["name"] == "docs")


@pytest.mark.parametrize("options", [(), ("--legacy",), ("--sse",)], ids=["modern", "legacy", "sse"])
async def test_token_is_fetched_for_the_resource_and_sent_each_time(tmp_path: Path, options: tuple[str, ...]) -> None:
    with auth_server(*options) as origin:
        document = config(origin, credentials(origin, scopes=["read", "write"]))
        if "--sse" in options:
            document["mcpServers"]["docs"] = {"type": "sse", "url": f"{origin}/sse"}
        with gateway_http(tmp_path, document, env=ENV) as url:
            for way in (MODERN, LEGACY):
                assert (await say(url, way=way)).content[0].text == "hi"
        (asked,) = token_requests(origin)
        assert asked["basic"] == [CLIENT, SECRET]
        assert asked["resource"] == f"{origin}{'/sse' if '--sse' in options else '/mcp'}"
        assert asked["scope"] == "read write"
        sent = {call.get("authorization", "") for call in told(origin)["calls"]}
        assert len(sent) == 1
        assert sent.pop().startswith("Bearer canary-access-")


async def test_secret_goes_to_the_pinned_issuer_only(tmp_path: Path) -> None:
    """A client that trusts discovery would send its secret to an upstream that names itself as its authorization server."""
    with auth_server() as lying, auth_server() as issuer:
        control(lying, accept_any=True)
        with gateway_http(tmp_path, config(lying, credentials(issuer)), env=ENV) as url:
            assert (await say(url)).content[0].text == "hi"
        assert token_requests(lying) == []
        assert SECRET not in str(told(lying))
        assert [entry["basic"] for entry in token_requests(issuer)] == [[CLIENT, SECRET]]


@pytest.mark.parametrize(
    "metadata", [{"issuer": "https://other.example.com"}, {"token_endpoint": "http://169.254.169.254/token"}], ids=["mix-up", "ssrf"]
)
@pytest.mark.attack(3)
async def test_issuer_with_another_name_or_internal_address_gets_nothing(tmp_path: Path, metadata: dict[str, Any]) -> None:
    with auth_server() as origin:
        control(origin, metadata=metadata)
        with gateway_http(tmp_path, config(origin, credentials(origin)), env=ENV) as url:
            row = state_of(url)
            result = await say(url) if row["tools"] else None
        assert result is None
        assert row["state"] == "auth needed"
        assert ("has metadata that names the issuer" if "issuer" in metadata else "169.254.169.254") in row["error"]
        assert token_requests(origin) == []


async def test_wrong_secret_is_reported_without_its_value(tmp_path: Path) -> None:
    with auth_server() as origin:
        document = config(origin, credentials(origin))
        document["mcpServers"]["good"] = upstream_stdio()
        with gateway_http(tmp_path, document, env={"ROBOT_SECRET": "canary-wrong-secret"}) as url:
            row = state_of(url)
            async with connected(MODERN, url) as (client, _):
                assert text_of(await client.call_tool("good__echo", {"text": "fine"})) == "fine"
        assert row["state"] == "auth needed"
        assert "gives no token: invalid_client. Check `policies.docs.auth`." in row["error"]
        assert b"canary-wrong-secret" not in everything_under(tmp_path)


async def test_revoked_token_is_renewed_once_and_the_call_succeeds(tmp_path: Path) -> None:
    with auth_server() as origin, gateway_http(tmp_path, config(origin, credentials(origin)), env=ENV) as url:
        assert (await say(url)).content[0].text == "hi"
        control(origin, revoke_all=True)
        assert (await say(url)).content[0].text == "hi"
        assert len(token_requests(origin)) == 2


async def test_hundred_calls_with_a_dead_token_fetch_one_new_token(tmp_path: Path) -> None:
    with auth_server() as origin, gateway_http(tmp_path, config(origin, credentials(origin)), env=ENV) as url:
        async with connected(MODERN, url) as (client, _):
            await client.call_tool("docs__echo", {"text": "first"})
            control(origin, revoke_all=True)
            said: list[str] = []

            async def one(number: int) -> None:
                said.append(text_of(await client.call_tool("docs__echo", {"text": str(number)})))

            with anyio.fail_after(60):
                async with anyio.create_task_group() as tasks:
                    for number in range(100):
                        tasks.start_soon(one, number)
        assert sorted(said) == sorted(map(str, range(100)))
        assert len(token_requests(origin)) == 2


@pytest.mark.faults
async def test_gateways_on_one_state_folder_fetch_one_token(tmp_path: Path) -> None:
    with auth_server() as origin, ExitStack() as stack:
        document = {**config(origin, credentials(origin)), "storage": {"dir": str(tmp_path / "shared")}}
        urls = [stack.enter_context(gateway_http(tmp_path, document, name, env=ENV)) for name in ("one", "two")]
        for url in urls:
            assert (await say(url)).content[0].text == "hi"
        assert len(token_requests(origin)) == 1
        control(origin, revoke_all=True)
        async with anyio.create_task_group() as tasks:
            for url in urls:
                tasks.start_soon(say, url)
        assert len(token_requests(origin)) == 2


@pytest.mark.faults
async def test_slow_token_endpoint_delays_no_call_with_a_valid_token(tmp_path: Path) -> None:
    with auth_server() as origin:
        control(origin, expires_in=8)
        with gateway_http(tmp_path, config(origin, credentials(origin)), env=ENV) as url:
            async with connected(MODERN, url) as (client, _):
                await client.call_tool("docs__echo", {"text": "first"})
                control(origin, hold=True)
                with anyio.fail_after(20):
                    while len(token_requests(origin)) < 2:  # the renewal ahead of time has begun and hangs
                        await client.call_tool("docs__echo", {"text": "meanwhile"})
                with anyio.fail_after(20):
                    await client.call_tool("docs__echo", {"text": "still"})
                control(origin, hold=False)


async def test_call_with_an_expired_token_waits_for_a_new_one(tmp_path: Path) -> None:
    with auth_server() as origin:
        control(origin, expires_in=1)
        with gateway_http(tmp_path, config(origin, credentials(origin)), env=ENV) as url:
            await say(url)
            before = len(token_requests(origin))
            await anyio.sleep(1)
            assert (await say(url)).content[0].text == "hi"
            assert len(token_requests(origin)) > before
        assert {call[":method"] for call in told(origin)["calls"]} >= {"tools/call"}


async def test_authorization_server_failure_is_not_a_credentials_error(tmp_path: Path) -> None:
    with auth_server() as origin:
        control(origin, status=503)
        with gateway_http(tmp_path, config(origin, credentials(origin)), env=ENV) as url:
            row = state_of(url)
            assert row["state"] == "down"
            assert "answered 503" in row["error"]
            control(origin, status=None)
            with anyio.fail_after(20):
                while state_of(url)["state"] != "ready":
                    await anyio.sleep(0.1)
            assert (await say(url)).content[0].text == "hi"
        assert b"SECRET-BODY" not in everything_under(tmp_path)


@pytest.mark.fault(21)
async def test_token_rejected_twice_is_not_requested_again(tmp_path: Path) -> None:
    """The server rejects every token of this issuer: the gateway renews once, then reports an error that names the policy key."""
    with auth_server() as server, auth_server() as issuer, gateway_http(tmp_path, config(server, credentials(issuer)), env=ENV) as url:
        row = state_of(url)
        assert row["state"] == "auth needed"
        assert "refuses its token (401); check `policies.docs.auth`" in row["error"]
        assert len(token_requests(issuer)) == 2


async def test_missing_scope_is_added_to_the_old_ones_if_scopes_are_unset(tmp_path: Path) -> None:
    with auth_server() as origin, gateway_http(tmp_path, config(origin, credentials(origin)), env=ENV) as url:
        await say(url)
        control(origin, scope_for_calls="write")
        assert (await say(url)).content[0].text == "hi"
        assert [entry.get("scope") for entry in token_requests(origin)] == [None, "read write"]


async def test_configured_scopes_limit_requests_and_name_the_missing(tmp_path: Path) -> None:
    with auth_server() as origin, gateway_http(tmp_path, config(origin, credentials(origin, scopes=["read"])), env=ENV) as url:
        control(origin, scope_for_calls="write")
        result = await say(url)
        assert result.is_error
        assert "requires the scope 'write' for this request; add it to `policies.docs.auth.scopes`" in result.content[0].text
        assert state_of(url)["state"] == "ready"
        assert len(token_requests(origin)) == 1


@pytest.mark.attack(2)
async def test_clients_own_authorization_never_leaves_the_gateway(tmp_path: Path) -> None:
    """Clients and servers of both eras, with and without OAuth."""
    with auth_server() as new, auth_server("--legacy") as old, auth_server() as plain:
        for origin in (new, old, plain):
            control(origin, accept_any=True)
        document = config(new, credentials(new))
        document["mcpServers"] |= {
            "old": {"type": "http", "url": f"{old}/mcp"},
            "plain": {"type": "http", "url": f"{plain}/mcp", "headers": {"Authorization": "Bearer from-the-file"}},
        }
        document["policies"]["old"] = {"auth": credentials(old)}
        write_config(tmp_path, document)
        made = moongate("keys", "add", "alice", "--config", str(tmp_path / "gateway.json"), cwd=tmp_path, env=ENV)
        key = made.out.strip()
        with gateway_http(tmp_path, document, env={**ENV, "MOONGATE_API_KEY": key}) as url:
            for version in ("2026-07-28", "2025-11-25"):
                await raw_calls(url, key, version)
        for origin, own in ((new, "canary-access-"), (old, "canary-access-"), (plain, "from-the-file")):
            calls = told(origin)["calls"]
            assert {"tools/call", "resources/read", "prompts/get"} <= {call[":method"] for call in calls}
            assert key not in str(told(origin))
            assert all(call["authorization"].startswith(f"Bearer {own}") for call in calls)
            assert not any("cookie" in call for call in calls)


async def raw_calls(url: str, key: str, version: str) -> None:
    """Send one request of each kind with the client's API key, a cookie and `X-Forwarded-Authorization`."""
    headers = {"authorization": f"Bearer {key}", "cookie": f"session={key}", "x-forwarded-authorization": key}
    accept = {"accept": "application/json, text/event-stream", "mcp-protocol-version": version}
    async with httpx2.AsyncClient(headers={**headers, **accept}, timeout=30) as client:
        meta: dict[str, Any] = {}
        if version == "2026-07-28":
            info = {"io.modelcontextprotocol/protocolVersion": version, "io.modelcontextprotocol/clientInfo": {"name": "t", "version": "1"}}
            meta = {"_meta": {**info, "io.modelcontextprotocol/clientCapabilities": {}}}
        else:
            start = {"protocolVersion": version, "capabilities": {}, "clientInfo": {"name": "t", "version": "1"}}
            opened = await client.post(url, json={"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": start})
            client.headers["mcp-session-id"] = opened.headers["mcp-session-id"]
            await client.post(url, json={"jsonrpc": "2.0", "method": "notifications/initialized"})
        for source in ("docs", "old", "plain"):
            requests = [
                ("tools/call", {"name": f"{source}__echo", "arguments": {"text": "x"}}, f"{source}__echo"),
                ("resources/read", {"uri": f"{source}+data://report"}, f"{source}+data://report"),
                ("prompts/get", {"name": f"{source}__greet", "arguments": {"name": "x"}}, f"{source}__greet"),
            ]
            for method, params, name in requests:
                more = {"mcp-method": method, "mcp-name": name} if meta else {}
                body = {"jsonrpc": "2.0", "id": 1, "method": method, "params": {**params, **meta}}
                assert (await client.post(url, json=body, headers=more)).status_code in (200, 400, 404)


@pytest.mark.attack(28)
async def test_no_secret_shows_in_any_output_log_state_or_page(tmp_path: Path) -> None:
    """Canaries: the client secret, the access token, a header by reference and the output of a program."""
    with auth_server() as origin:
        document = config(origin, credentials(origin))
        document["mcpServers"]["more"] = {"type": "http", "url": f"http://127.0.0.1:{free_port()}/mcp", "headers": {"X-Key": "${cmd:key}"}}
        document["secrets"] = {"key": {"command": [sys.executable, "-c", "print('canary-from-program')"]}}
        path = write_config(tmp_path, document)
        shown = ""
        with gateway_http(tmp_path, document, env=ENV) as url:
            await say(url)
            control(origin, revoke_all=True, refuse="invalid_client")
            result = await say(url)
            assert result.is_error
            shown += str(result)
            base = url.removesuffix("/mcp")
            for page in ("/", "/status.json", "/health", "/ready"):
                shown += httpx2.get(f"{base}{page}").text
        for command in (["list"], ["list", "--json"], ["inspect", "docs"], ["doctor"], ["doctor", "--json"], ["auth", "status"]):
            ended = moongate(*command, "--config", str(path), cwd=tmp_path, env=ENV)
            shown += ended.out + ended.err
        path.unlink()  # the file itself names the program and its text
        shown += everything_under(tmp_path).decode("latin-1")
        assert re.findall(r"canary-[a-z]+-\S{0,30}", shown) == []


@pytest.mark.attack(29)
async def test_stored_tokens_are_encrypted_and_bound_to_their_place(tmp_path: Path) -> None:
    with auth_server() as origin, gateway_http(tmp_path, config(origin, credentials(origin)), env=ENV) as url:
        await say(url)
        (file,) = (tmp_path / "gateway-state" / "tokens").glob("*.bin")
        assert file.stat().st_mode & 0o777 == 0o600
        assert file.parent.stat().st_mode & 0o777 == 0o700
        assert b"canary" not in file.read_bytes()


async def test_changed_address_does_not_get_the_old_addresses_token(tmp_path: Path) -> None:
    with auth_server() as first, auth_server() as second:
        for origin in (first, second):
            with gateway_http(tmp_path, config(origin, credentials(first)), env=ENV) as url:
                state_of(url)
        sent = {call.get("authorization") for call in told(first)["calls"]}
        assert not sent & {call.get("authorization") for call in told(second)["calls"]}


def test_without_oauth_nothing_of_it_is_imported(tmp_path: Path) -> None:
    code = (
        "import sys, anyio; from gateway.app import Gateway; from gateway.config.load import load_config\n"
        "async def main():\n"
        "    async with Gateway.from_config(load_config('gateway.json', {})): pass\n"
        "anyio.run(main)\n"
        "heavy = ('gateway.upstream.oauth', 'gateway.egress.guarded_fetch', 'mcp.client.auth.utils', 'keyring')\n"
        "print([m for m in sys.modules if m.startswith(heavy)])"
    )
    write_config(tmp_path, {"mcpServers": {}})
    run = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, env=own_environment(), capture_output=True, text=True, timeout=30, check=True
    )
    assert run.stdout == "[]\n"

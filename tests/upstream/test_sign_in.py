"""A person signs in once: the sign-in itself, what is kept, how it is renewed, and how it ends."""

from __future__ import annotations

import json
from contextlib import ExitStack
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import anyio
import httpx2
import pytest

from tests.cli.processes import moongate
from tests.fakes.running import auth_server, free_port, gateway_http, write_config
from tests.interaction.ways import Way, connected
from tests.upstream.signing import SIGNED_IN, config, control, ended, everything_under, sign_in, signing_in, token_requests, told

pytestmark = pytest.mark.timeout(90)
MODERN = Way("http", "modern", "docs")
COMMAND = "moongate auth login docs"


async def say(url: str) -> Any:
    async with connected(MODERN, url, capable=False) as (client, _):
        return await client.call_tool("docs__echo", {"text": "hi"})


def state_of(url: str) -> dict[str, Any]:
    rows = httpx2.get(url.replace("/mcp", "/status.json")).json()["sources"]
    return next(row for row in rows if row["name"] == "docs")


def requests_of(origin: str, grant: str) -> list[dict[str, Any]]:
    return [entry for entry in token_requests(origin) if entry["grant_type"] == grant]


async def test_sign_in_registers_uses_pkce_and_serves_a_running_gateway(tmp_path: Path) -> None:
    with auth_server() as origin:
        document = config(origin, SIGNED_IN)
        file = write_config(tmp_path, document)
        with gateway_http(tmp_path, document) as url:
            row = state_of(url)
            assert row["state"] == "auth needed"
            assert row["error"] == f"Server 'docs' needs a person to sign in: {COMMAND}"
            with signing_in(file) as (process, address, lines):
                assert lines[0] == f"Signing in to 'docs' at {origin!r}"
                query = {key: values[0] for key, values in parse_qs(urlsplit(address).query).items()}
                assert query["code_challenge_method"] == "S256"
                assert query["resource"] == f"{origin}/mcp"
                assert query["scope"] == "read"
                assert query["redirect_uri"].startswith("http://127.0.0.1:")
                page = httpx2.get(address, follow_redirects=True)
                assert "You can close this window" in page.text
                code, _, err = ended(process)
            assert (code, "Signed in to 'docs'" in err) == (0, True)
            with anyio.fail_after(40):
                while state_of(url)["state"] != "ready":
                    await anyio.sleep(0.1)
            assert (await say(url)).content[0].text == "hi"
        log = told(origin)["log"]
        (registered,) = [entry for entry in log if entry["path"] == "/register"]
        assert registered["token_endpoint_auth_method"] == "none"
        (exchanged,) = token_requests(origin)
        assert exchanged["grant_type"] == "authorization_code"
        assert exchanged["resource"] == f"{origin}/mcp"
        assert exchanged["redirect_uri"] == query["redirect_uri"] == registered["redirect_uris"][0]
        assert b"canary" not in everything_under(tmp_path)


@pytest.mark.faults
async def test_rotated_refresh_token_survives_restarts(tmp_path: Path) -> None:
    with auth_server() as origin, ExitStack() as stack:
        document = {**config(origin, SIGNED_IN), "storage": {"dir": str(tmp_path / "shared")}}
        sign_in(write_config(tmp_path, document))
        urls = [stack.enter_context(gateway_http(tmp_path, document, name)) for name in ("one", "two")]
        for _ in range(3):
            control(origin, revoke_all=True)
            async with anyio.create_task_group() as tasks:
                for url in urls * 3:
                    tasks.start_soon(say, url)
        refreshed = requests_of(origin, "refresh_token")
        assert len(refreshed) == 3
        assert len({entry["refresh_token"] for entry in refreshed}) == 3
        stack.close()
        control(origin, revoke_all=True)
        with gateway_http(tmp_path, document) as url:
            assert (await say(url)).content[0].text == "hi"
        assert len(requests_of(origin, "refresh_token")) == 4


async def test_ended_sign_in_is_forgotten_and_the_call_names_the_command(tmp_path: Path) -> None:
    with auth_server() as origin:
        document = config(origin, SIGNED_IN)
        file = write_config(tmp_path, document)
        sign_in(file)
        with gateway_http(tmp_path, document) as url:
            assert (await say(url)).content[0].text == "hi"
            control(origin, revoke_all=True, forget=True)
            result = await say(url)
            assert result.is_error
            assert f"The sign-in to server 'docs' has ended (invalid_grant); sign in again: {COMMAND}" in result.content[0].text
            assert state_of(url)["state"] == "auth needed"
            await say(url)
            assert len(requests_of(origin, "refresh_token")) == 1
            assert b"SECRET-BODY" not in everything_under(tmp_path)
            listed = moongate("auth", "status", "--json", "--config", str(file), cwd=tmp_path)
            assert [row["state"] for row in listed.data["servers"]] == ["sign in"]
            sign_in(file)
            with anyio.fail_after(40):
                while (await say(url)).is_error:
                    await anyio.sleep(0.2)
        assert len([entry for entry in told(origin)["log"] if entry["path"] == "/register"]) in (1, 2)


async def test_missing_scope_is_remembered_and_requested_with_the_old_ones(tmp_path: Path) -> None:
    with auth_server() as origin:
        document = config(origin, SIGNED_IN)
        file = write_config(tmp_path, document)
        sign_in(file)
        with gateway_http(tmp_path, document) as url:
            control(origin, scope_for_calls="write")
            result = await say(url)
            assert result.is_error
            assert f"requires the scope 'write' for this request; sign in again to grant it: {COMMAND}" in result.content[0].text
            assert state_of(url)["state"] == "ready"
            with signing_in(file) as (process, address, lines):
                assert "Requested scopes: read write" in lines
                httpx2.get(address, follow_redirects=True)
                assert ended(process)[0] == 0
            with anyio.fail_after(20):
                while (await say(url)).is_error:
                    await anyio.sleep(0.2)


@pytest.mark.parametrize(
    ("callback", "said"),
    [
        ({"iss": "https://evil.example.com"}, "The authorization response is from 'https://evil.example.com'"),
        ({"iss": None}, "does not name its issuer"),
        ({"code": None, "error": "access_denied"}, "was not completed: access_denied"),
    ],
    ids=["mix-up", "no-issuer", "denied"],
)
@pytest.mark.attack(18)
def test_callback_of_another_issuer_or_a_denial_earns_no_token(tmp_path: Path, callback: dict[str, Any], said: str) -> None:
    with auth_server() as origin:
        control(origin, callback=callback)
        with signing_in(write_config(tmp_path, config(origin, SIGNED_IN))) as (process, address, _):
            httpx2.get(address, follow_redirects=True)
            code, _, err = ended(process)
        assert code == 3
        assert said in err
        assert token_requests(origin) == []


@pytest.mark.attack(18)
def test_callback_with_foreign_state_changes_nothing(tmp_path: Path) -> None:
    with auth_server() as origin, signing_in(write_config(tmp_path, config(origin, SIGNED_IN))) as (process, address, _):
        redirect = parse_qs(urlsplit(address).query)["redirect_uri"][0]
        for query in ("", "?code=x", "?code=x&state=forged", "?code=x&state=a&state=b"):
            assert httpx2.get(f"{redirect}{query}").status_code == 400
        assert httpx2.get(redirect.replace("/callback", "/other")).status_code == 404
        assert process.poll() is None
        httpx2.get(address, follow_redirects=True).raise_for_status()
        assert ended(process)[0] == 0
        assert len(token_requests(origin)) == 1


@pytest.mark.parametrize(
    ("script", "said"),
    [
        ({"metadata": {"code_challenge_methods_supported": None}}, "does not support PKCE with S256"),
        ({"metadata": {"code_challenge_methods_supported": ["plain"]}}, "does not support PKCE with S256"),
        ({"metadata": {"issuer": "https://other.example.com"}}, "has metadata that names the issuer 'https://other.example.com'"),
        ({"metadata": {"authorization_endpoint": "file:///bin/sh"}}, "is not a plain http(s) address"),
        ({"metadata": {"authorization_endpoint": "http://login.example.com/a"}}, "is not https"),
        ({"metadata": {"registration_endpoint": None}}, "registers no clients; set `auth.clientId`"),
        ({"metadata": {"registration_endpoint": "http://169.254.169.254/latest"}}, "169.254.169.254 must be reached over https"),
        ({"metadata": {"registration_endpoint": "https://169.254.169.254/latest"}}, "169.254.169.254 is not a public address"),
        ({"metadata": {"registration_endpoint": "https://0xa9fea9fe/latest"}}, "169.254.169.254 is not a public address"),
        ({"resource": {"resource": "https://bank.example.com/mcp"}}, "has metadata for 'https://bank.example.com/mcp'"),
        ({"resource": {"authorization_servers": ["https://10.0.0.1/"]}}, "10.0.0.1 is not a public address"),
    ],
)
@pytest.mark.attack(18)
def test_metadata_that_is_unsafe_stops_the_sign_in(tmp_path: Path, script: dict[str, Any], said: str) -> None:
    with auth_server() as origin:
        control(origin, **script)
        file = write_config(tmp_path, config(origin, SIGNED_IN))
        run = moongate("auth", "login", "docs", "--no-browser", "--config", str(file), cwd=tmp_path)
        assert said in run.err
        assert run.code == 3
        assert token_requests(origin) == []


@pytest.mark.attack(3)
def test_challenge_metadata_is_fetched_from_the_servers_origin_only(tmp_path: Path) -> None:
    """The MCP SDK fetches whatever address a 401 response names."""
    with auth_server() as inside, auth_server() as origin:
        control(origin, challenge=f'Bearer resource_metadata="{inside}/latest/meta-data"')
        sign_in(write_config(tmp_path, config(origin, SIGNED_IN)))
        assert told(inside)["log"] == []


@pytest.mark.attack(18)
def test_pinned_issuer_the_server_does_not_name_stops_the_sign_in(tmp_path: Path) -> None:
    with auth_server() as other, auth_server() as origin:
        file = write_config(tmp_path, config(origin, {**SIGNED_IN, "issuer": other}))
        run = moongate("auth", "login", "docs", "--no-browser", "--config", str(file), cwd=tmp_path)
        assert run.code == 3
        assert f"accepts tokens of {origin} only, but `auth.issuer` is '{other}'" in run.err


def test_configured_client_is_used_with_its_port_and_its_secret(tmp_path: Path) -> None:
    with auth_server() as origin:
        port = free_port()
        auth = {**SIGNED_IN, "clientId": "ours", "clientSecret": "${OUR_SECRET}", "redirectPort": port, "scopes": ["a", "b"]}
        file = write_config(tmp_path, config(origin, auth))
        with signing_in(file, "--json", env={"OUR_SECRET": "canary-ours"}) as (process, address, _):
            httpx2.get(address, follow_redirects=True)
            code, out, err = ended(process)
        assert code == 0, err
        shown = json.loads(out)
        assert shown["server"] == "docs"
        assert shown["scope"] == "a b"
        (exchanged,) = token_requests(origin)
        assert exchanged["basic"] == ["ours", "canary-ours"]
        assert exchanged["redirect_uri"] == f"http://127.0.0.1:{port}/callback"
        assert [entry for entry in told(origin)["log"] if entry["path"] == "/register"] == []


def test_client_id_metadata_document_requires_server_support(tmp_path: Path) -> None:
    with auth_server() as origin:
        file = write_config(tmp_path, config(origin, {**SIGNED_IN, "clientId": "https://client.example.com/moongate.json"}))
        refused = moongate("auth", "login", "docs", "--no-browser", "--config", str(file), cwd=tmp_path)
        assert "takes no address as a client id" in refused.err
        control(origin, metadata={"client_id_metadata_document_supported": True})
        sign_in(file)
        (exchanged,) = token_requests(origin)
        assert exchanged["client_id"] == "https://client.example.com/moongate.json"


def test_signing_out_forgets_and_gives_back(tmp_path: Path) -> None:
    with auth_server() as origin:
        file = write_config(tmp_path, config(origin, SIGNED_IN))
        sign_in(file)
        before = moongate("auth", "status", "--config", str(file), cwd=tmp_path)
        assert "signed in" in before.out
        run = moongate("auth", "logout", "docs", "--config", str(file), cwd=tmp_path)
        assert run.out == "signed out of docs, tokens revoked\n"
        assert [e["token_type_hint"] for e in told(origin)["log"] if e["path"] == "/revoke"] == ["refresh_token", "access_token"]
        assert list((tmp_path / "gateway-state" / "tokens").glob("*.bin")) == []
        again = moongate("auth", "logout", "docs", "--config", str(file), cwd=tmp_path)
        assert again.out == "was not signed in to docs\n"


def test_server_without_sign_in_names_the_configuration_to_write(tmp_path: Path) -> None:
    file = write_config(tmp_path, {"mcpServers": {"docs": {"url": "https://docs.example.com/mcp"}, "local": {"command": "x"}}})
    for server, said in (("docs", '"auth": {"type": "authorization-code"}'), ("local", "in `env`"), ("dosc", "Did you mean 'docs'?")):
        run = moongate("auth", "login", server, "--config", str(file), cwd=tmp_path)
        assert run.code == 1
        assert said in run.err


async def test_damaged_token_file_requires_a_new_sign_in_that_replaces_it(tmp_path: Path) -> None:
    with auth_server() as origin:
        document = config(origin, SIGNED_IN)
        file = write_config(tmp_path, document)
        sign_in(file)
        (tokens,) = (tmp_path / "gateway-state" / "tokens").glob("*.bin")
        tokens.write_bytes(tokens.read_bytes()[:-1] + b"x")
        with gateway_http(tmp_path, document) as url:
            row = state_of(url)
            assert row["state"] == "auth needed"
            assert "is not of this installation, or damaged" in row["error"]
        sign_in(file)
        with gateway_http(tmp_path, document) as url:
            assert (await say(url)).content[0].text == "hi"

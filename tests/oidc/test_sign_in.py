"""Sign-in from end to end: the MCP SDK's OAuth client, npm `oidc-provider`, and a gateway as a process of its own."""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from collections.abc import AsyncGenerator, Generator
from contextlib import ExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urljoin, urlsplit

import anyio
import httpx2
import pytest
from mcp.client.auth import OAuthClientProvider
from mcp.client.client import Client
from mcp.client.streamable_http import streamable_http_client
from mcp.shared.auth import AuthorizationCodeResult, OAuthClientInformationFull, OAuthClientMetadata, OAuthToken
from pydantic import AnyUrl

from tests.fakes.inside import raw_inside
from tests.fakes.running import free_port, gateway_http
from tests.fakes.token_issuer import Key, token_of

pytestmark = [pytest.mark.oidc, pytest.mark.timeout(120)]

FOLDER = Path(__file__).parent
INSTALLED = Path(os.environ.get("OIDC_HOME") or Path.home() / ".cache" / "moongate-oidc")
UP: dict[str, Any] = {"tools": [{"name": name, "inputSchema": {"type": "object"}} for name in ("read", "write")]}
CALLBACK = "http://127.0.0.1:33418/callback"
DOCUMENT = "https://ide.example.com/client.json"
ROBOT = ("robot", "canary-robot-secret-77aa")
EXCHANGE = "urn:ietf:params:oauth:grant-type:token-exchange"
BEARER = "urn:ietf:params:oauth:grant-type:jwt-bearer"


@dataclass
class Place:
    """A provider and a gateway that accepts its tokens, signed and opaque."""

    provider: str
    gateway: str
    log: Path

    def control(self, **settings: Any) -> None:
        httpx2.post(f"{self.provider}/control", json=settings).raise_for_status()

    def token(self, grant: str, **form: str) -> dict[str, Any]:
        answer = httpx2.post(f"{self.provider}/token", data={"grant_type": grant, **form}, auth=ROBOT)
        assert answer.status_code == 200, answer.text
        return answer.json()

    def status(self, token: str) -> int:
        """HTTP status of a request with this token."""
        headers = {"accept": "application/json, text/event-stream", "authorization": f"Bearer {token}"}
        params = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "t", "version": "1"}}
        body = {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": params}
        return httpx2.post(self.gateway, headers=headers, json=body, timeout=30).status_code


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Generator[Place]:
    node = INSTALLED / "bin" / "node"
    if not node.exists():
        pytest.skip("oidc-provider is not installed: run `make oidc`")
    folder = tmp_path_factory.mktemp("oidc")
    shutil.copy(FOLDER / "provider.mjs", folder)
    (folder / "node_modules").symlink_to(INSTALLED / "js" / "node_modules")
    port = free_port()
    with ExitStack() as stack:
        log = stack.enter_context((folder / "provider.log").open("wb"))
        process = subprocess.Popen([node, "provider.mjs", str(port)], cwd=folder, stdout=subprocess.PIPE, stderr=log)
        stack.callback(process.wait)
        stack.callback(process.terminate)
        assert process.stdout is not None
        stack.enter_context(process.stdout)
        issuer = process.stdout.readline().decode().strip()
        assert issuer, (folder / "provider.log").read_text()
        client = {"clientId": "gateway", "clientSecret": "${INTROSPECTION_SECRET}", "cacheSeconds": 1}
        entry = {"issuer": issuer, "introspection": client, "scopes": {"read": ["up/read"], "write": ["up/read", "up/write"]}}
        config = {
            "mcpServers": {"up": {"type": "http", "url": stack.enter_context(raw_inside(UP))}},
            "server": {"auth": {"issuers": [entry], "challengeScopes": ["read"]}},
        }
        env = {"INTROSPECTION_SECRET": "canary-gateway-secret-4f0b"}
        gateway = stack.enter_context(gateway_http(folder, config, env=env))
        yield Place(issuer, gateway, folder / "gateway.log")


@dataclass
class Stored:
    """Tokens and client of the SDK's OAuth client. It also is the browser in which the person signs in."""

    tokens: OAuthToken | None = None
    client: OAuthClientInformationFull | None = None
    visited: list[str] = field(default_factory=lambda: list[str]())
    answer: AuthorizationCodeResult | None = None

    async def get_tokens(self) -> OAuthToken | None:
        return self.tokens

    async def set_tokens(self, tokens: OAuthToken) -> None:
        self.tokens = tokens

    async def get_client_info(self) -> OAuthClientInformationFull | None:
        return self.client

    async def set_client_info(self, client_info: OAuthClientInformationFull) -> None:
        self.client = client_info

    async def browse(self, url: str) -> None:
        """Follow the redirects from the authorization URL to the client's callback, with cookies."""
        self.visited.append(url)
        async with httpx2.AsyncClient(timeout=30) as browser:
            for _ in range(12):
                if url.startswith(CALLBACK):
                    break
                response = await browser.get(url)
                assert response.is_redirect, response.text[-2000:]
                url = urljoin(url, response.headers["location"])
        found = {name: values[0] for name, values in parse_qs(urlsplit(url).query).items()}
        assert "code" in found, url
        self.answer = AuthorizationCodeResult(code=found["code"], state=found.get("state"), iss=found.get("iss"))

    async def callback(self) -> AuthorizationCodeResult:
        assert self.answer is not None
        return self.answer


@asynccontextmanager
async def signed_in(place: Place, stored: Stored, era: str, document: str | None = None) -> AsyncGenerator[Client]:
    """An SDK client that signs in when the gateway tells it to."""
    metadata = OAuthClientMetadata(redirect_uris=[AnyUrl(CALLBACK)], client_name="IDE", token_endpoint_auth_method="none")
    auth = OAuthClientProvider(
        place.gateway, metadata, stored, redirect_handler=stored.browse, callback_handler=stored.callback, client_metadata_url=document
    )
    async with httpx2.AsyncClient(auth=auth, timeout=30) as http:
        transport = streamable_http_client(place.gateway, http_client=http)
        async with Client(transport, mode="legacy" if era == "legacy" else "2026-07-28", cache=None) as client:
            yield client


@pytest.mark.parametrize("era", ["legacy", "modern"])
async def test_registered_client_signs_in_and_steps_up(place: Place, era: str) -> None:
    place.control(account="alice", format="jwt", ttl=300)
    stored = Stored()
    async with signed_in(place, stored, era) as client:
        assert [tool.name for tool in (await client.list_tools()).tools if tool.name.startswith("up__")] == ["up__read"]
        assert not (await client.call_tool("up__read", {})).is_error
        first = parse_qs(urlsplit(stored.visited[0]).query)
        assert (first["scope"], first["resource"], first["code_challenge_method"]) == (["read offline_access"], [place.gateway], ["S256"])
        assert len(stored.visited) == 1
        assert not (await client.call_tool("up__write", {})).is_error
        assert len(stored.visited) == 2 and set(parse_qs(urlsplit(stored.visited[1]).query)["scope"][0].split()) >= {"read", "write"}
        assert stored.tokens is not None and stored.tokens.access_token.count(".") == 2


async def test_client_with_metadata_document_signs_in(place: Place) -> None:
    document = {
        "client_id": DOCUMENT, "client_name": "IDE", "redirect_uris": [CALLBACK], "token_endpoint_auth_method": "none",
        "grant_types": ["authorization_code", "refresh_token"], "response_types": ["code"], "scope": "read write offline_access",
    }  # fmt: skip
    place.control(account="alice", format="jwt", ttl=300, documents={DOCUMENT: document})
    stored = Stored()
    async with signed_in(place, stored, "modern", DOCUMENT) as client:
        assert not (await client.call_tool("up__read", {})).is_error
    assert stored.client is not None and stored.client.client_id == DOCUMENT


async def test_opaque_token_is_introspected_and_can_be_revoked(place: Place) -> None:
    place.control(account="bob", format="opaque", ttl=300)
    stored = Stored()
    async with signed_in(place, stored, "legacy") as client:
        assert not (await client.call_tool("up__read", {})).is_error
    assert stored.tokens is not None and stored.client is not None and "." not in stored.tokens.access_token
    token = stored.tokens.access_token
    assert place.status(token) == 200
    httpx2.post(f"{place.provider}/token/revocation", data={"token": token, "client_id": stored.client.client_id or ""}).raise_for_status()
    deadline = time.monotonic() + 10
    while place.status(token) != 401:
        assert time.monotonic() < deadline, "a revoked token is refused after `cacheSeconds`"
        await anyio.sleep(0.1)


async def test_expired_token_is_refreshed_by_the_client(place: Place) -> None:
    place.control(account="alice", format="opaque", ttl=2)
    stored = Stored()
    async with signed_in(place, stored, "modern") as client:
        await client.call_tool("up__read", {})
        first = stored.tokens
        await anyio.sleep(2.5)
        assert not (await client.call_tool("up__read", {})).is_error
    assert first is not None and stored.tokens is not None and first.access_token != stored.tokens.access_token
    assert len(stored.visited) == 1, "the refresh needs no sign-in"


def test_rotated_key_is_fetched_and_the_old_one_still_counts(place: Place) -> None:
    place.control(format="jwt", ttl=300)
    old = place.token("client_credentials", resource=place.gateway, scope="read")["access_token"]
    assert place.status(old) == 200
    time.sleep(10.1)  # the gateway fetches keys for unknown key ids at most once in 10 s
    place.control(rotate=True)
    new = place.token("client_credentials", resource=place.gateway, scope="read")["access_token"]
    assert place.status(new) == 200 and place.status(old) == 200


@pytest.mark.attack(2)
def test_token_for_another_resource_is_refused(place: Place) -> None:
    for kind in ("jwt", "opaque"):
        place.control(format=kind, ttl=300)
        other = place.token("client_credentials", resource="https://other.example.com/mcp", scope="read")["access_token"]
        assert place.status(other) == 401, kind


async def test_exchanged_and_enterprise_tokens_are_ordinary_tokens(place: Place) -> None:
    """ID-JAG ends at the authorization server: the gateway sees an access token for its own audience."""
    enterprise = Key.made()
    place.control(account="alice", format="opaque", ttl=300, enterpriseKey=enterprise.jwk())
    stored = Stored()
    async with signed_in(place, stored, "modern") as client:
        await client.list_tools()
    assert stored.tokens is not None
    place.control(format="jwt")
    kind = "urn:ietf:params:oauth:token-type:access_token"
    form = {"subject_token": stored.tokens.access_token, "subject_token_type": kind, "resource": place.gateway, "scope": "read"}
    assert place.status(place.token(EXCHANGE, **form)["access_token"]) == 200
    now = int(time.time())
    claims = {
        "iss": "https://idp.corp.example", "aud": place.provider, "sub": "carol", "client_id": "robot", "resource": place.gateway,
        "scope": "read", "iat": now, "exp": now + 60, "jti": "1",
    }  # fmt: skip
    header = {"alg": "ES256", "typ": "oauth-id-jag+jwt", "kid": enterprise.kid}
    grant = token_of(header, claims, enterprise.sign)
    assert place.status(grant) == 401, "the assertion itself is no access token"
    assert place.status(place.token(BEARER, assertion=grant)["access_token"]) == 200


def test_log_of_the_gateway_has_no_secret(place: Place) -> None:
    text = place.log.read_text()
    assert "canary-" not in text and "Traceback" not in text and "eyJ" not in text

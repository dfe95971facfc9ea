"""The HTTP endpoint's own rules: Host, Origin, keys, sizes, and the versions it speaks."""

from __future__ import annotations

import subprocess
from collections.abc import Generator
from pathlib import Path
from typing import Any

import httpx2
import pytest

from tests.fakes.nursery import sooner
from tests.fakes.running import ROOT, gateway_http, upstream_stdio, write_config

pytestmark = pytest.mark.timeout(60)
ACCEPT = {"accept": "application/json, text/event-stream"}


def hello(version: str) -> dict[str, Any]:
    params = {"protocolVersion": version, "capabilities": {}, "clientInfo": {"name": "raw", "version": "1"}}
    return {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": params}


@pytest.fixture(scope="module")
def endpoint(tmp_path_factory: pytest.TempPathFactory) -> Generator[str]:
    with gateway_http(tmp_path_factory.mktemp("http"), {"mcpServers": {"up": upstream_stdio()}}) as url:
        yield url


def answer_of(response: httpx2.Response) -> str:
    return response.text


@pytest.mark.parametrize("version", ["2025-03-26", "2025-06-18", "2025-11-25"])
def test_client_of_each_handshake_revision_gets_that_revision(endpoint: str, version: str) -> None:
    response = httpx2.post(endpoint, headers=ACCEPT, json=hello(version))
    assert response.status_code == 200
    assert f'"protocolVersion":"{version}"' in answer_of(response)


@pytest.mark.parametrize("host", ["evil.example.com", "127.0.0.1.evil.example.com", "localhost.evil.example.com:80", ""])
@pytest.mark.parametrize("path", ["/mcp", "/", "/status.json"])
@pytest.mark.attack(4)
def test_foreign_host_header_is_rejected_on_every_page(endpoint: str, host: str, path: str) -> None:
    response = httpx2.get(endpoint.replace("/mcp", path), headers={"host": host})
    assert response.status_code in (400, 421)


@pytest.mark.parametrize(("peer", "scheme"), [("127.0.0.1", "https"), ("127.0.0.2", "http")])
def test_only_proxy_on_loopback_address_is_believed_about_scheme(endpoint: str, peer: str, scheme: str) -> None:
    transport = httpx2.HTTPTransport(local_address=peer)
    with httpx2.Client(transport=transport) as client:
        redirect = client.get(f"{endpoint}/", headers={"x-forwarded-proto": "https"})
    assert redirect.headers["location"] == endpoint.replace("http", scheme, 1)


@pytest.mark.parametrize("origin", ["http://evil.example.com", "null", "https://127.0.0.1.evil.example.com"])
@pytest.mark.attack(4)
def test_foreign_origin_is_rejected(endpoint: str, origin: str) -> None:
    response = httpx2.post(endpoint, headers={**ACCEPT, "origin": origin}, json=hello("2025-11-25"))
    assert response.status_code == 403


@pytest.mark.attack(21)
def test_oversized_or_unparsable_body_is_rejected(endpoint: str) -> None:
    large = httpx2.post(endpoint, headers={**ACCEPT, "content-type": "application/json"}, content=b'"' + b"x" * 5_000_000 + b'"')
    broken = httpx2.post(endpoint, headers={**ACCEPT, "content-type": "application/json"}, content=b"{")
    assert (large.status_code, broken.status_code) == (413, 400)


def test_the_overview_runs_no_script_and_names_the_sources(endpoint: str) -> None:
    page = httpx2.get(endpoint.removesuffix("mcp"))
    assert page.status_code == 200
    assert "default-src 'none'" in page.headers["content-security-policy"]
    assert "<script" not in page.text
    assert ">up <small>ready" in page.text


def keys(config: Path, *words: str) -> str:
    command, args = sooner("gateway", "keys", *words, "--config", str(config), "--json")
    return subprocess.run([command, *args], cwd=ROOT, capture_output=True, text=True, check=True, timeout=30).stdout


def test_keys_require_authentication_even_after_the_last_is_revoked(tmp_path: Path) -> None:
    import json

    settings = {"mcpServers": {"up": upstream_stdio()}}
    config = write_config(tmp_path, settings)
    made = json.loads(keys(config, "add", "laptop"))
    with gateway_http(tmp_path, settings) as url:
        token = next(value for value in made.values() if isinstance(value, str) and value.startswith("gk_"))
        bearer = {"authorization": f"Bearer {token}"}

        def challenge(**headers: str) -> str:
            refused = httpx2.post(url, headers={**ACCEPT, **headers}, json=hello("2025-11-25"))
            return refused.headers["www-authenticate"]

        def status(**headers: str) -> int:
            return httpx2.post(url, headers={**ACCEPT, **headers}, json=hello("2025-11-25")).status_code

        assert status() == 401
        assert status(authorization="Bearer gk_wrong_key") == 401
        assert challenge() == 'Bearer realm="moongate"'
        assert challenge(authorization="Bearer gk_wrong_key") == 'Bearer realm="moongate", error="invalid_token"'
        assert status(**bearer) == 200
        assert httpx2.get(url.replace("/mcp", "/status.json")).status_code == 401
        for method, wanted in {"GET": 200, "HEAD": 200, "POST": 405, "OPTIONS": 405}.items():
            assert {httpx2.request(method, url.replace("/mcp", path)).status_code for path in ("/health", "/ready")} == {wanted}, method
        keys(config, "revoke", made["id"])
        assert status(**bearer) == 401
        assert status() == 401

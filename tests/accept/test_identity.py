"""A published authorization server issues the tokens: npm `oidc-provider` (OpenID-certified)."""

from __future__ import annotations

import json
import os
import re
import subprocess
from collections.abc import Generator
from contextlib import contextmanager
from html import unescape
from pathlib import Path
from typing import Any
from urllib.parse import urljoin

import anyio
import httpx2
import jwt
import pytest

from tests.accept import clients
from tests.cli.processes import moongate
from tests.fakes.running import auth_server, gateway_http, write_config
from tests.interaction.ways import Way, connected
from tests.upstream.signing import SIGNED_IN, config, control, ended, signing_in, told

pytestmark = [pytest.mark.interop, pytest.mark.timeout(180)]

PROVIDER = clients.HOME / "js" / "node_modules" / "oidc-provider"
SECRET = "canary-robot-secret"
ENV = {"ROBOT_SECRET": SECRET}


@contextmanager
def identity_provider(resource: str) -> Generator[str]:
    """The provider for one MCP server; yields its issuer."""
    if not (clients.NODE.exists() and PROVIDER.exists()):
        pytest.skip(f"oidc-provider is not installed in {clients.HOME}; run `make accept`")
    script = Path(__file__).with_name("oidc_provider.mjs")
    environ = {**os.environ, "JS_HOME": str(clients.HOME / "js"), **ENV}
    argv = [str(clients.NODE), str(script), resource]
    with subprocess.Popen(argv, env=environ, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
        try:
            assert process.stdout is not None
            issuer = process.stdout.readline().strip()
            assert issuer.startswith("http://127.0.0.1:"), "the provider did not start"
            yield issuer
        finally:
            process.kill()


@contextmanager
def protected_server() -> Generator[tuple[str, str]]:
    """An MCP server that names the provider as its authorization server; yields its origin and the provider's issuer."""
    with auth_server() as origin, identity_provider(f"{origin}/mcp") as issuer:
        control(origin, accept_any=True, resource={"authorization_servers": [issuer], "scopes_supported": ["read"]})
        yield origin, issuer


def claims_sent(origin: str, issuer: str) -> dict[str, Any]:
    """The claims of the token that reached the server, verified with the provider's keys and for this audience."""
    sent = told(origin)["calls"][-1]["authorization"].removeprefix("Bearer ")
    keys = jwt.PyJWKSet.from_dict(httpx2.get(f"{issuer}/jwks").json())
    header = jwt.get_unverified_header(sent)
    assert header["typ"] == "at+jwt"
    return jwt.decode(sent, keys[header["kid"]].key, algorithms=[header["alg"]], audience=f"{origin}/mcp", issuer=issuer)


async def say(url: str) -> Any:
    async with connected(Way("http", "modern", "docs"), url, capable=False) as (client, _):
        return await client.call_tool("docs__echo", {"text": "hi"})


def click_through(address: str) -> str:
    """Follow the sign-in and consent forms as a person would, with any name; the last page's text."""
    with httpx2.Client(follow_redirects=True, timeout=20) as browser:
        page = browser.get(address)
        for _ in range(4):
            form = re.search(r"<form[^>]*action=\"([^\"]+)\"[^>]*>(.*?)</form>", page.text, re.DOTALL)
            if form is None:
                return page.text
            fields = dict(re.findall(r"<input[^>]*name=\"([^\"]+)\"[^>]*value=\"([^\"]*)\"", form.group(2)))
            if 'name="login"' in form.group(2):
                fields |= {"login": "ada", "password": "anything"}
            page = browser.post(urljoin(str(page.url), unescape(form.group(1))), data=fields)
        return page.text


async def test_client_credentials_earn_a_token_for_exactly_this_server(tmp_path: Path) -> None:
    with protected_server() as (origin, issuer):
        auth = {"type": "client-credentials", "issuer": issuer, "clientId": "robot", "clientSecret": "${ROBOT_SECRET}", "scopes": ["read"]}
        with gateway_http(tmp_path, config(origin, auth), env=ENV) as url:
            assert (await say(url)).content[0].text == "hi"
        claims = claims_sent(origin, issuer)
        assert claims["client_id"] == "robot"
        assert claims["scope"] == "read"


async def test_token_for_another_audience_is_rejected_with_the_reason(tmp_path: Path) -> None:
    with protected_server() as (_, issuer), auth_server() as other:
        auth = {"type": "client-credentials", "issuer": issuer, "clientId": "robot", "clientSecret": "${ROBOT_SECRET}"}
        with gateway_http(tmp_path, config(other, auth), env=ENV) as url:
            rows = httpx2.get(url.replace("/mcp", "/status.json")).json()["sources"]
            row = next(row for row in rows if row["name"] == "docs")
        assert row["state"] in ("auth needed", "down")
        assert issuer in row["error"]


async def test_sign_in_with_registration_pkce_and_consent_is_renewed(tmp_path: Path) -> None:
    with protected_server() as (origin, issuer):
        document = config(origin, SIGNED_IN)
        file = write_config(tmp_path, document)
        with signing_in(file, "--json") as (process, address, lines):
            assert lines[0] == f"Signing in to 'docs' at {issuer!r}"
            assert "You can close this window" in click_through(address)
            code, out, err = ended(process)
        assert code == 0, err
        shown = json.loads(out)
        assert shown["issuer"] == issuer
        with gateway_http(tmp_path, document) as url:
            assert (await say(url)).content[0].text == "hi"
            first = claims_sent(origin, issuer)
            assert first["sub"] == "ada"
            assert "read" in first["scope"]
            control(origin, accept_any=False)
            async with anyio.create_task_group() as tasks:  # the token is rejected, renewed once and rejected again
                for _ in range(5):
                    tasks.start_soon(say, url)
            control(origin, accept_any=True)
            with anyio.fail_after(60):
                while (await say(url)).is_error:
                    await anyio.sleep(0.3)
            second = claims_sent(origin, issuer)
            assert second["sub"] == "ada"
            assert second["jti"] != first["jti"]
        gone = moongate("auth", "logout", "docs", "--config", str(file), cwd=tmp_path)
        assert gone.out == "signed out of docs, tokens revoked\n"

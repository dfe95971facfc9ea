"""Attacks 2 and 31: forged, foreign and stale access tokens at the HTTP endpoint, in both eras and on both server paths."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Generator
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import httpx2
import pytest

from gateway.auth.api_keys import KeyStore
from tests.fakes.inside import Inside, gateway_inside, raw_inside
from tests.fakes.raw_upstream import Raw
from tests.fakes.token_issuer import CLIENT, SECRET, Issuer, Key, b64, hmac_sign, token_issuer, token_of
from tests.interaction.wire import Era, modern_params

pytestmark = [pytest.mark.attack(31), pytest.mark.timeout(60)]

ERAS: tuple[Era, ...] = ("legacy", "modern")
PATHS = ("fast", "sdk")
RESOURCE = "https://hub.example.com/mcp"
METADATA = "https://hub.example.com/.well-known/oauth-protected-resource/mcp"
UP: dict[str, Any] = {"tools": [{"name": name, "inputSchema": {"type": "object"}} for name in ("read", "write")]}


class Counting(Raw):
    """Counts the requests that arrive."""

    requests = 0

    def answer(self, method: str, params: dict[str, Any], headers: dict[str, str]) -> dict[str, Any]:
        self.requests += 1
        return super().answer(method, params, headers)


@dataclass
class Deployment:
    """Gateways on both server paths that accept tokens of one issuer with signed and one with opaque tokens, and API keys."""

    gateways: dict[str, Inside]
    issuer: Issuer
    opaque: Issuer
    upstream: Counting
    key: str

    def post(self, path: str, era: Era, token: str | None, method: str = "tools/list", **params: Any) -> httpx2.Response:
        """Send one request. A request of 2025 is `initialize`, because every other needs a session."""
        headers = {"Accept": "application/json, text/event-stream"}
        if token is not None:
            headers["Authorization"] = f"Bearer {token}"
        if era == "legacy":
            method = "initialize"
            params = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "t", "version": "1"}}
        else:
            name = params.get("name")
            headers |= {"MCP-Protocol-Version": "2026-07-28", "Mcp-Method": method, **({"Mcp-Name": name} if name else {})}
            params = modern_params(params, tasks=False, capabilities={})
        body = {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}
        return httpx2.post(self.gateways[path].url, headers=headers, json=body, timeout=20)


@pytest.fixture(scope="module")
def deployment(tmp_path_factory: pytest.TempPathFactory) -> Generator[Deployment]:
    folder = tmp_path_factory.mktemp("tokens")
    with ExitStack() as stack:
        issuer, opaque = stack.enter_context(token_issuer()), stack.enter_context(token_issuer())
        upstream = Counting(UP, modern=True)
        url = stack.enter_context(raw_inside(upstream))
        client = {"clientId": CLIENT, "clientSecret": "${INTROSPECTION_SECRET}"}
        issuers = [
            {"issuer": issuer.url, "scopes": {"read": ["up/read"], "write": ["up"], "boss": ["admin", "up"]}},
            {"issuer": opaque.url, "introspection": client},
        ]
        patch = stack.enter_context(pytest.MonkeyPatch.context())
        patch.setenv("INTROSPECTION_SECRET", SECRET)
        gateways: dict[str, Inside] = {}
        for path in PATHS:
            config = {
                "mcpServers": {"up": {"type": "http", "url": url}},
                "server": {
                    "auth": {"resource": RESOURCE, "issuers": issuers},
                    "http": {"directPath": "auto" if path == "fast" else "off"},
                },
                "storage": {"dir": str(folder / "state")},
            }
            gateways[path] = stack.enter_context(gateway_inside(folder, config, path))
        key = KeyStore(folder / "state" / "keys.json").add("robot").token
        yield Deployment(gateways, issuer, opaque, upstream, key)


def no_signature(_: bytes) -> bytes:
    return b""


def forged(issuer: Issuer) -> dict[str, Callable[[], str]]:
    """Name of a wrong token → function that makes it."""
    key = issuer.keys[0]
    stranger = Key.made(kid=key.kid)
    good: dict[str, Any] = {"alg": key.alg, "typ": "at+jwt", "kid": key.kid}
    now = int(time.time())

    def claims(**more: Any) -> dict[str, Any]:
        return issuer.claims(RESOURCE, scope="write", **more)

    def swapped() -> str:
        head, _, mac = issuer.token(RESOURCE).split(".")
        return f"{head}.{b64(json.dumps(claims(sub='root')).encode())}.{mac}"

    return {
        "expired": lambda: issuer.token(RESOURCE, exp=now - 120),
        "expiry is not a time": lambda: issuer.token(RESOURCE, exp="never"),
        "expiry is true": lambda: issuer.token(RESOURCE, exp=True),
        "no expiry": lambda: issuer.token(RESOURCE, exp=None),
        "not valid yet": lambda: issuer.token(RESOURCE, nbf=now + 600),
        "issued in the future": lambda: issuer.token(RESOURCE, iat=now + 600),
        "foreign audience": lambda: issuer.token("https://other.example.com/mcp"),
        "audience of a sibling": lambda: issuer.token("https://hub.example.com/mcp2"),
        "audience of the origin": lambda: issuer.token("https://hub.example.com"),
        "no audience": lambda: issuer.token(RESOURCE, aud=None),
        "audience is an object": lambda: issuer.token(RESOURCE, aud={RESOURCE: True}),
        "foreign issuer": lambda: issuer.token(RESOURCE, iss="https://evil.example.com"),
        "issuer with another spelling": lambda: issuer.token(RESOURCE, iss=f"{issuer.url}/"),
        "no issuer": lambda: issuer.token(RESOURCE, iss=None),
        "nobody": lambda: issuer.token(RESOURCE, sub=None, client_id=None),
        "unsigned": lambda: token_of({"alg": "none", "typ": "at+jwt"}, claims(), no_signature),
        "unsigned with a key id": lambda: token_of({**good, "alg": "None"}, claims(), no_signature),
        "shared secret is the public key": lambda: token_of({**good, "alg": "HS256"}, claims(), hmac_sign(key.pem())),
        "shared secret is the published key": lambda: token_of(
            {**good, "alg": "HS256"}, claims(), hmac_sign(json.dumps(key.jwk()).encode())
        ),
        "stranger's key": lambda: token_of(good, claims(), stranger.sign),
        "stranger's key in the header": lambda: token_of({**good, "jwk": stranger.jwk()}, claims(), stranger.sign),
        "address of keys in the header": lambda: token_of({**good, "jku": "http://127.0.0.1:1/jwks"}, claims(), stranger.sign),
        "certificate in the header": lambda: token_of({**good, "x5c": ["AAAA"]}, claims(), stranger.sign),
        "unknown key id": lambda: issuer.token(RESOURCE, header={"kid": "other"}),
        "key id is a path": lambda: issuer.token(RESOURCE, header={"kid": "../../../dev/null"}),
        "key id is a list": lambda: issuer.token(RESOURCE, header={"kid": [key.kid]}),
        "other algorithm for the key": lambda: token_of({**good, "alg": "RS256"}, claims(), key.sign),
        "algorithm that is not allowed": lambda: token_of({**good, "alg": "ES384"}, claims(), Key.made("ES384").sign),
        "ID token": lambda: issuer.token(RESOURCE, header={"typ": "JWT"}),
        "no type": lambda: issuer.token(RESOURCE, header={"typ": None}),
        "type is a number": lambda: issuer.token(RESOURCE, header={"typ": 7}),
        "logout token": lambda: issuer.token(RESOURCE, header={"typ": "logout+jwt"}),
        "critical extension": lambda: issuer.token(RESOURCE, header={"crit": ["exp"]}),
        "unencoded content": lambda: issuer.token(RESOURCE, header={"b64": False, "crit": ["b64"]}),
        "bound to a key": lambda: issuer.token(RESOURCE, cnf={"jkt": "x"}),
        "groups left out": lambda: issuer.token(RESOURCE, _claim_names={"groups": "src1"}),
        "swapped content": swapped,
        "truncated signature": lambda: issuer.token(RESOURCE)[:-10],
        "no signature": lambda: issuer.token(RESOURCE).rpartition(".")[0] + ".",
        "content is a list": lambda: token_of(good, [], key.sign),
        "header is a list": lambda: token_of([], claims(), key.sign),  # pyright: ignore[reportArgumentType]
        "deep header": lambda: f"{b64(b'[' * 9_000)}.{b64(b'{}')}.x",
        "too long": lambda: issuer.token(RESOURCE, padding="x" * 20_000),
        "encrypted": lambda: ".".join([b64(b'{"alg":"dir","enc":"A256GCM"}'), "", "AAAA", "AAAA", "AAAA"]),
        "opaque": lambda: "made-up",
        "not a token": lambda: "a b",
        "quotation marks": lambda: '"><script>',
        "dots": lambda: "..",
        "API key of nobody": lambda: "gk_aaaaaaaaaaaa_" + "x" * 43,
        "token that begins like a key": lambda: "gk_" + issuer.token(RESOURCE),
    }


WRONG = list(forged(Issuer("http://x")))


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("era", ERAS)
@pytest.mark.parametrize("wrong", WRONG)
def test_wrong_token_gets_the_challenge_and_nothing_else(deployment: Deployment, wrong: str, era: Era, path: str) -> None:
    seen = deployment.upstream.requests
    answer = deployment.post(path, era, forged(deployment.issuer)[wrong]())
    assert (answer.status_code, answer.json()["error"]) == (401, "invalid_token"), answer.text
    challenge = answer.headers["www-authenticate"]
    assert challenge.startswith('Bearer realm="moongate", error="invalid_token", error_description="')
    assert f'resource_metadata="{METADATA}"' in challenge and 'scope="read write"' in challenge
    assert challenge.count('"') == 10 and "Traceback" not in answer.text
    assert deployment.upstream.requests == seen


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("era", ERAS)
def test_valid_credentials_of_each_kind_are_served(deployment: Deployment, era: Era, path: str) -> None:
    signed = deployment.issuer.token(RESOURCE, scope="write")
    for token in (signed, signed, deployment.opaque.give_opaque(RESOURCE), deployment.key):
        answer = deployment.post(path, era, token)
        assert answer.status_code == 200 and "error" not in answer.json() if era == "modern" else answer.status_code == 200, answer.text


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("era", ERAS)
def test_request_without_credentials_is_told_where_to_sign_in(deployment: Deployment, era: Era, path: str) -> None:
    answer = deployment.post(path, era, None)
    assert answer.status_code == 401
    expected = f'Bearer realm="moongate", resource_metadata="{METADATA}", scope="read write"'
    assert answer.headers["www-authenticate"] == expected


@pytest.mark.attack(2)
@pytest.mark.parametrize("path", PATHS)
def test_inbound_token_is_never_passed_on(deployment: Deployment, path: str) -> None:
    for token in (deployment.issuer.token(RESOURCE, scope="write"), deployment.opaque.give_opaque(RESOURCE)):
        answer = deployment.post(path, "modern", token, "tools/call", name="up__read", arguments={})
        assert answer.status_code == 200 and not answer.json()["result"].get("isError"), answer.text
        headers = answer.json()["result"]["structuredContent"]["headers"]
        assert headers and token not in json.dumps(headers) and "authorization" not in {name.lower() for name in headers}

"""A scripted authorization server and an MCP server behind it, as one process at one origin.

    python -m tests.fakes.auth_server [--legacy] [--sse]

The first line on stdout is its origin; the MCP endpoint is `/mcp` (`/sse`). `POST /control` changes `Script`; `GET /log`
lists the received requests. Every person is signed in at once: `/authorize` redirects back without a page.
"""

from __future__ import annotations

import argparse
import base64
import hashlib
import json
import secrets
import socket
import sys
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qs, unquote, urlencode

import anyio
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, RedirectResponse, Response
from starlette.routing import Route

from tests.fakes.upstream import build, http_app, sse_app

Receive = Callable[[], Awaitable[Any]]
Send = Callable[[Any], Awaitable[None]]

CLIENT, SECRET = "robot", "canary-client-secret-71c4"


@dataclass
class Script:
    """Settings of the server's behaviour; `POST /control` sets every field."""

    expires_in: int | None = 3600
    rotate: bool = True
    """Whether a refresh returns a new refresh token and invalidates the old one."""
    reuse_revokes: bool = False
    """Whether a refresh token that is used twice ends the grant: all access tokens and refresh tokens become invalid."""
    refresh: bool = True
    """Whether an authorization code is exchanged for a refresh token as well."""
    refuse: str | None = None
    """OAuth error of the next token requests."""
    status: int | None = None
    """HTTP status of the next token requests."""
    hold: bool = False
    """Whether token requests wait until this field is false again."""
    drop: bool = False
    """Whether the next held token request fails with status 500 when `/control` is next called."""
    accept_any: bool = False
    """Whether the MCP server accepts any bearer token."""
    scope_for_calls: str | None = None
    """A scope that `tools/call` needs."""
    metadata: dict[str, Any] = field(default_factory=lambda: {})
    """Overrides of the issuer's metadata; null removes a key."""
    resource: dict[str, Any] = field(default_factory=lambda: {})
    """Overrides of the resource's metadata."""
    challenge: str | None = None
    """`WWW-Authenticate` header to send in place of the correct header."""
    callback: dict[str, Any] = field(default_factory=lambda: {})
    """Overrides of the parameters that `/authorize` adds to the redirect."""


@dataclass
class Token:
    scope: str
    ends: float
    resource: str


class AuthServer:
    """State and handlers."""

    def __init__(self, origin: str, endpoint: str) -> None:
        self.origin = origin
        self.endpoint = endpoint
        self.script = Script()
        self.changed = anyio.Event()
        self.log: list[dict[str, Any]] = []
        self.calls: list[dict[str, str]] = []
        self.access: dict[str, Token] = {}
        self.refresh: dict[str, str] = {}
        self.codes: dict[str, dict[str, str]] = {}
        self.clients: dict[str, list[str]] = {}

    def app(self) -> Starlette:
        return Starlette(
            routes=[
                Route("/.well-known/oauth-authorization-server", self.issuer_metadata),
                Route(f"/.well-known/oauth-protected-resource{self.endpoint}", self.resource_metadata),
                Route("/authorize", self.authorize),
                Route("/token", self.token, methods=["POST"]),
                Route("/register", self.register, methods=["POST"]),
                Route("/revoke", self.revoke, methods=["POST"]),
                Route("/control", self.control, methods=["POST"]),
                Route("/log", self.tell),
                Route("/{rest:path}", self.unknown, methods=["GET", "POST"]),
            ]
        )

    async def unknown(self, request: Request) -> Response:
        self.log.append({"path": request.url.path})
        return Response(status_code=404)

    async def control(self, request: Request) -> Response:
        body: dict[str, Any] = await request.json()
        if body.pop("revoke_all", False):
            self.access.clear()
        if body.pop("forget", False):
            self.refresh.clear()
        for key, value in body.items():
            assert hasattr(self.script, key), key
            setattr(self.script, key, value)
        self.changed.set()
        self.changed = anyio.Event()
        return JSONResponse({})

    async def tell(self, request: Request) -> Response:
        return JSONResponse({"log": self.log, "calls": self.calls})

    async def issuer_metadata(self, request: Request) -> Response:
        self.log.append({"path": request.url.path})
        base = {
            "issuer": self.origin,
            "authorization_endpoint": f"{self.origin}/authorize",
            "token_endpoint": f"{self.origin}/token",
            "registration_endpoint": f"{self.origin}/register",
            "revocation_endpoint": f"{self.origin}/revoke",
            "code_challenge_methods_supported": ["S256"],
            "response_types_supported": ["code"],
            "token_endpoint_auth_methods_supported": ["none", "client_secret_basic"],
            "authorization_response_iss_parameter_supported": True,
        }
        return JSONResponse({k: v for k, v in {**base, **self.script.metadata}.items() if v is not None})

    async def resource_metadata(self, request: Request) -> Response:
        self.log.append({"path": request.url.path})
        base = {"resource": f"{self.origin}{self.endpoint}", "authorization_servers": [self.origin], "scopes_supported": ["read"]}
        return JSONResponse({k: v for k, v in {**base, **self.script.resource}.items() if v is not None})

    async def authorize(self, request: Request) -> Response:
        query = dict(request.query_params)
        self.log.append({"path": "/authorize", **query})
        assert query["redirect_uri"] in self.clients.get(query["client_id"], [query["redirect_uri"]])
        code = secrets.token_urlsafe(16)
        self.codes[code] = query
        back: dict[str, Any] = {"code": code, "state": query["state"], "iss": self.origin, **self.script.callback}
        return RedirectResponse(f"{query['redirect_uri']}?{urlencode({k: v for k, v in back.items() if v is not None})}", 302)

    async def register(self, request: Request) -> Response:
        body = await request.json()
        self.log.append({"path": "/register", **body})
        client = f"client-{len(self.clients)}"
        self.clients[client] = body["redirect_uris"]
        return JSONResponse({**body, "client_id": client}, 201)

    async def revoke(self, request: Request) -> Response:
        form = {k: v[0] for k, v in parse_qs((await request.body()).decode()).items()}
        self.log.append({"path": "/revoke", "token_type_hint": form.get("token_type_hint")})
        self.access.pop(form["token"], None)
        self.refresh.pop(form["token"], None)
        return Response()

    async def token(self, request: Request) -> Response:
        form = {k: v[0] for k, v in parse_qs((await request.body()).decode()).items()}
        basic = request.headers.get("authorization", "").removeprefix("Basic ")
        user, _, password = base64.b64decode(basic).decode().partition(":")
        self.log.append({"path": "/token", **form, "basic": [unquote(user), unquote(password)]})
        while self.script.hold:
            await self.changed.wait()
            if self.script.drop:
                self.script.drop = False
                return Response(status_code=500)
        if self.script.status is not None:
            return Response("SECRET-BODY", self.script.status)
        if self.script.refuse is not None:
            return JSONResponse({"error": self.script.refuse, "error_description": "SECRET-BODY"}, 400)
        match form["grant_type"]:
            case "client_credentials":
                if (unquote(user), unquote(password)) != (CLIENT, SECRET):
                    return JSONResponse({"error": "invalid_client"}, 401)
                return self.give(form.get("scope", "read"), form.get("resource", ""), None)
            case "authorization_code":
                asked = self.codes.pop(form["code"], None)
                proof = base64.urlsafe_b64encode(hashlib.sha256(form["code_verifier"].encode()).digest()).decode().rstrip("=")
                if asked is None or asked["code_challenge"] != proof or asked["redirect_uri"] != form["redirect_uri"]:
                    return JSONResponse({"error": "invalid_grant"}, 400)
                return self.give(asked.get("scope", ""), form["resource"], self.new_refresh(asked.get("scope", "")))
            case _:
                scope = self.refresh.get(form["refresh_token"])
                if scope is None:
                    if self.script.reuse_revokes:
                        self.refresh.clear()
                        self.access.clear()
                    return JSONResponse({"error": "invalid_grant"}, 400)
                if self.script.rotate:
                    del self.refresh[form["refresh_token"]]
                return self.give(scope, form["resource"], self.new_refresh(scope) if self.script.rotate else None)

    def new_refresh(self, scope: str) -> str | None:
        if not self.script.refresh:
            return None
        made = f"canary-refresh-{secrets.token_urlsafe(12)}"
        self.refresh[made] = scope
        return made

    def give(self, scope: str, resource: str, refresh: str | None) -> Response:
        made = f"canary-access-{secrets.token_urlsafe(12)}"
        self.access[made] = Token(scope, time.time() + (self.script.expires_in or 1e9), resource)
        ends = self.script.expires_in
        body = {"access_token": made, "token_type": "bearer", "expires_in": ends, "scope": scope, "refresh_token": refresh}
        return JSONResponse({k: v for k, v in body.items() if v is not None})

    async def guard(self, inner: Any, scope: Any, receive: Receive, send: Send) -> None:
        """The MCP endpoint: a request passes with a good token."""
        headers = {k.decode(): v.decode() for k, v in scope["headers"]}
        body = b""
        more = scope["method"] == "POST"
        while more:
            message = await receive()
            body += message.get("body", b"")
            more = message.get("more_body", False)
        method = json.loads(body).get("method", "") if body else ""
        self.calls.append({**headers, ":method": method})
        bearer = headers.get("authorization", "").removeprefix("Bearer ")
        token = self.access.get(bearer)
        where = f'resource_metadata="{self.origin}/.well-known/oauth-protected-resource{self.endpoint}"'
        needed = self.script.scope_for_calls
        answer: Response | None = None
        if not (self.script.accept_any and bearer) and (token is None or token.ends < time.time()):
            answer = Response(status_code=401, headers={"www-authenticate": self.script.challenge or f'Bearer {where}, scope="read"'})
        elif needed and method == "tools/call" and token is not None and needed not in token.scope.split():
            lacking = f'Bearer error="insufficient_scope", scope="{needed}", {where}'
            answer = Response(status_code=403, headers={"www-authenticate": lacking})
        if answer is not None:
            await answer(scope, receive, send)
            return
        given = False

        async def replay() -> Any:
            nonlocal given
            if given or scope["method"] != "POST":
                return await receive()
            given = True
            return {"type": "http.request", "body": body, "more_body": False}

        await inner(scope, replay, send)


def main() -> None:
    cli = argparse.ArgumentParser()
    cli.add_argument("--legacy", action="store_true")
    cli.add_argument("--sse", action="store_true")
    options = cli.parse_args()
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listener.bind(("127.0.0.1", 0))
    listener.listen(128)
    origin = f"http://127.0.0.1:{listener.getsockname()[1]}"
    endpoint = "/sse" if options.sse else "/mcp"
    auth = AuthServer(origin, endpoint)
    plain = auth.app()
    server = build(0)
    inner = sse_app(server) if options.sse else http_app(server, legacy=options.legacy)

    async def app(scope: Any, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await inner(scope, receive, send)
        elif scope["path"].startswith((endpoint, "/messages/")):
            await auth.guard(inner, scope, receive, send)
        else:
            await plain(scope, receive, send)

    sys.stdout.write(f"{origin}\n")
    sys.stdout.flush()
    uvicorn.Server(uvicorn.Config(app, log_level="error")).run(sockets=[listener])


if __name__ == "__main__":
    main()

"""Serves the gateway over streamable HTTP: one URL for 2025 sessions and 2026 stateless requests.

Security is not optional here: Host and Origin are always checked, a gateway with API keys lets nobody in without
one, and a bind beyond loopback is refused without keys. `/health` says that the process lives, `/ready` whether
every source has settled. Other rooms may add routes (`console`).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from gateway.auth.keys import KeyStore
from gateway.auth.principal import LOCAL, Principal
from gateway.catalog.status import STATUS_URI
from gateway.config.models import HttpSettings
from gateway.errors import ConfigError, StorageError
from gateway.json_types import JsonObject
from gateway.policy.decision import Reject
from gateway.policy.scopes import OWN_SOURCE, is_admin, judge_scope
from gateway.protocol import PARSE_ERROR
from gateway.server.answers import LIMIT_REACHED, Refusal, json_answer, text_answer
from gateway.server.asked import Asked
from gateway.server.bodies import has_foreign_charset, too_large
from gateway.server.build import AGUI_PATH, GatewayServer
from gateway.server.clients import PRINCIPAL_SCOPE_KEY
from gateway.server.direct import Begun, DirectPath, Takes
from gateway.server.head import SURPLUS_SCOPE_KEY, Admission, Head
from gateway.server.late_site import HEALTH_PATH, READY_PATH, LateSite
from gateway.server.late_site import Probes as Probes
from gateway.server.lean import LeanSessions
from gateway.server.origins import Places, is_loopback, places_of
from gateway.server.refused import Refused
from gateway.server.session_table import SessionTable
from gateway.server.usage import RETRY_SECONDS, SMALL_BYTES, CountedBody, Usage, Usages

if TYPE_CHECKING:
    from starlette.routing import BaseRoute
    from starlette.types import ASGIApp, Receive, Scope, Send

    from gateway.server.homeward import HomeState

logger = logging.getLogger(__name__)

OPEN_PATHS = frozenset({HEALTH_PATH, READY_PATH})
"""Answered without a key: they say nothing but up or down."""


@dataclass(frozen=True, slots=True)
class Away:
    """What a worker that is not home has to know of home."""

    home_path: str
    """The socket where it takes requests."""
    home: HomeState
    takes: Takes
    """Which calls need not go there."""


@dataclass(frozen=True, slots=True)
class AsWorker:
    """What a worker is told, where there are several."""

    requires_key: bool
    """What `check_bind` said when the first of them started."""
    away: Away | None
    """At home there is none."""


def check_bind(host: str, keys: KeyStore) -> bool:
    """Refuse to listen beyond loopback without API keys; returns whether callers need one as long as this gateway runs.

    Raises:
        ConfigError: With the command that makes one.
    """
    if not is_loopback(host) and not keys.list():
        raise ConfigError(
            f"Refusing to listen on {host!r} without API keys: anybody who reaches it could use every tool. "
            f"Make one with `moongate keys add NAME`, or bind 127.0.0.1.",
            path="server.http.host",
        )
    return not is_loopback(host) or bool(keys.list())


_NO_ROOM = Refusal(503, LIMIT_REACHED, "Too many connections are busy (`server.http.maxConnections`); try again.", RETRY_SECONDS)

MAX_KNOWN_ORIGINS = 256
"""Pairs of accepted Host and Origin values remembered."""


def insufficient_scope(wanted: str, verdict: Reject) -> tuple[JsonObject, dict[str, str]]:
    """Content and headers of the refusal (403) of a page to a caller whose key has no scope `wanted` (RFC 6750, 3.1)."""
    challenge = f'Bearer realm="moongate", error="insufficient_scope", scope="{wanted}"'
    return {"error": "insufficient_scope", "message": verdict.reason}, {"WWW-Authenticate": challenge}


def _unauthorized(*, has_credentials: bool) -> tuple[JsonObject, dict[str, str]]:
    """Content and headers of the refusal (401) of a request without a key, or with a key that is unknown, expired or revoked
    (RFC 6750, 3.1: only the latter names an error)."""
    challenge = 'Bearer realm="moongate"'
    if not has_credentials:
        message = "Send `Authorization: Bearer <API key>`; make one with `moongate keys add NAME`."
        return {"error": "unauthorized", "message": message}, {"WWW-Authenticate": challenge}
    message = "The API key is unknown, expired or revoked. `moongate keys list` shows the keys; `moongate keys add NAME` makes one."
    return {"error": "invalid_token", "message": message}, {"WWW-Authenticate": f'{challenge}, error="invalid_token"'}


class KeyGate:
    """Outermost ASGI middleware: checks Host and Origin, verifies the API key, leaves the principal in the scope."""

    def __init__(
        self,
        app: ASGIApp,
        keys: KeyStore,
        places: Places,
        settings: HttpSettings,
        usages: Usages,
        *,
        requires_key: bool,
        direct: DirectPath | None = None,
    ) -> None:
        """`requires_key` holds even when the last key is revoked while the gateway runs: then nobody gets in.

        `direct` is the direct path that `app` begins with, if it does.
        """
        self._app = app
        self._path = settings.path
        self._judged = settings.path, AGUI_PATH
        """At these paths, and below those that end in a slash, scopes are judged by what a request names; other pages show everything."""
        self._direct = direct
        self._keys = keys
        self._requires_key = requires_key
        self.usages = usages
        """What each caller holds."""
        self._max_request_bytes = settings.max_request_bytes
        self._places = places
        self._known: set[tuple[bytes | None, bytes | None]] = set()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass on, or answer 401."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        head = Head(scope)
        judged = self.judge(head)
        if judged is None:
            await self._app(scope, receive, send)
        elif not isinstance(judged, Principal):
            await judged(scope, receive, send)
        elif SURPLUS_SCOPE_KEY in scope and not is_admin(judged):
            await _NO_ROOM.to_answer(is_rpc=head.path == self._path)(scope, receive, send)
        else:
            scope[PRINCIPAL_SCOPE_KEY] = judged
            await self._serve(head, self.usages.of(judged), scope, receive, send)

    async def _serve(self, head: Head, usage: Usage, scope: Scope, receive: Receive, send: Send) -> None:
        """Run the application, and count the request as long as it runs."""
        refusal = self._over_quota(head, usage)
        if refusal is not None:
            await refusal.to_answer(is_rpc=head.path == self._path)(scope, receive, send)
            return
        hold = usage.hold_stream if self._is_stream(head) else usage.hold_request
        body = CountedBody(receive, scope, usage, self._size_of(head), is_known=head.length >= 0)
        hold(1)
        try:
            await self._app(scope, body, send)
        finally:
            hold(-1)
            body.release()

    def _over_quota(self, head: Head, usage: Usage) -> Refusal | None:
        """The refusal of a request whose caller holds too much, as far as its head tells."""
        refusal = usage.refuse_stream() if self._is_stream(head) else usage.refuse_request()
        method = head.fields.get(b"mcp-method")
        if refusal is None and method is not None and not head.is_stream and not method.startswith(b"notifications/"):
            refusal = usage.refuse_call()
        return refusal or usage.refuse_bytes(self._size_of(head))

    def _size_of(self, head: Head) -> int:
        """How long the body is, or may be."""
        if head.length < 0 and b"transfer-encoding" in head.fields:
            return self._max_request_bytes
        return max(head.length, 0)

    def _is_stream(self, head: Head) -> bool:
        """Whether the answer is a stream without a set end."""
        return head.is_stream or (head.path == self._path and head.method == "GET") or head.path.startswith(AGUI_PATH)

    def admit(self, head: Head) -> Admission | ASGIApp:
        """Judge a request whose body is still coming: for whom it is, or the refusal to send instead of reading it."""
        judged = self.judge(head)
        if judged is None:
            return Admission(None, is_local=False, waits=False)
        if not isinstance(judged, Principal):
            return judged
        refusal = self._over_quota(head, self.usages.of(judged))
        if refusal is not None:
            return refusal.to_answer(is_rpc=head.path == self._path)
        return Admission(judged.id, is_local=judged is LOCAL, waits=head.path == self._path)

    def judge(self, head: Head) -> Principal | ASGIApp | None:
        """The caller of a request, by its head alone, or the refusal to send; `None` for a page that is open to everybody."""
        fields = head.fields
        if b"transfer-encoding" in fields and b"content-length" in fields:
            # A proxy before us may have cut it elsewhere (RFC 9112, 6.3).
            return json_answer({"error": "Send Content-Length or Transfer-Encoding, not both"}, 400, {"Connection": "close"})
        if head.path in OPEN_PATHS:
            return None
        refusal = self._refusal(head)
        if refusal is not None:
            return refusal
        authorization = next((value for name, value in head.headers if name == b"authorization"), b"")
        try:
            principal = self._principal(authorization)
        except StorageError:
            logger.exception("API keys cannot be read; refusing every request")
            return json_answer({"error": "the gateway cannot read its API keys"}, 503)
        if principal is None:
            content, challenge = _unauthorized(has_credentials=bool(authorization))
            return json_answer(content, 401, challenge)
        if principal.scopes is not None and not self._is_judged(head.path):
            verdict = judge_scope(principal.scopes, "resources", OWN_SOURCE, STATUS_URI)
            if isinstance(verdict, Reject):
                content, challenge = insufficient_scope(f"resources:{OWN_SOURCE}/{STATUS_URI}", verdict)
                return json_answer(content, 403, challenge)
        is_rpc = head.path == self._path
        if has_foreign_charset(fields.get(b"content-type", b"")):
            text = "The request body must be UTF-8; `Content-Type` names another charset."
            return Refusal(415, PARSE_ERROR, text).to_answer(is_rpc=is_rpc)
        if head.length > self._max_request_bytes:
            return too_large(self._max_request_bytes).to_answer(is_rpc=is_rpc)
        return principal

    def take(self, head: Head, body: bytes) -> Begun | Asked | Refused | None:
        """As `DirectPath.take`, for what this gate lets through; all else is left to the application, which says why."""
        direct = self._direct
        if direct is None or not (head.has_place or self._finds_place(head)):
            return None
        try:
            principal = self._principal(head.fields.get(b"authorization", b""), head)
        except StorageError:
            return None
        if principal is None or (principal.scopes is not None and not self._is_judged(head.path)):
            return None
        if head.length <= SMALL_BYTES:
            return direct.take(head, body, principal)
        usage = self.usages.of(principal)
        seconds = usage.seconds_of(body)
        if seconds and usage.wait_seconds():
            return None
        taken = direct.take(head, body, principal)
        if taken is not None and seconds:
            usage.read_large(seconds)
        return taken

    def _finds_place(self, head: Head) -> bool:
        """Whether a request is for behind the gate, and comes from where one was taken before."""
        fields = head.fields
        if head.path in OPEN_PATHS or not head.is_single or b"transfer-encoding" in fields:
            return False
        if has_foreign_charset(fields.get(b"content-type", b"")):
            return False
        head.has_place = (fields.get(b"host"), fields.get(b"origin")) in self._known
        return head.has_place

    def _is_judged(self, path: str) -> bool:
        return any(path == judged or (judged != "/" and judged.endswith("/") and path.startswith(judged)) for judged in self._judged)

    def _refusal(self, head: Head) -> ASGIApp | None:
        """The answer to a request for another host, or of a page of another origin. An accepted pair of them is remembered."""
        place = head.fields.get(b"host"), head.fields.get(b"origin")
        if place in self._known and head.is_single:
            return None
        refusal = self._places.refusal(head.headers)
        if refusal is not None:
            status, text = refusal
            return text_answer(text, status)
        if head.is_single and len(self._known) < MAX_KNOWN_ORIGINS:
            self._known.add(place)
        return None

    def _principal(self, authorization: bytes, head: Head | None = None) -> Principal | None:
        """Who calls; the key that a request with the same `head` was let in with is looked for in the store, but not read again."""
        key = None if head is None else head.key
        if key is None or not self._keys.holds(key):
            if not self._requires_key and not self._keys.list():
                return LOCAL
            scheme, _, token = authorization.decode("latin-1").partition(" ")
            key = self._keys.find(token.strip()) if scheme.lower() == "bearer" and token else None
            if head is not None:
                head.key = key
        return None if key is None else key.principal


def build_http_app(
    server: GatewayServer,
    settings: HttpSettings,
    keys: KeyStore,
    *,
    host: str,
    port: int,
    probes: Probes,
    routes: Callable[[], Sequence[BaseRoute]] = tuple,
    worker: AsWorker | None = None,
) -> KeyGate:
    """The ASGI application; its lifespan runs the legacy session manager. Gate and direct path are outermost: they are of every call.

    `routes` makes those of other rooms when they are needed. A `worker` that is not home hands on what is not for it.

    Raises:
        ConfigError: The bind is not safe.
    """
    requires_key, away = (check_bind(host, keys), None) if worker is None else (worker.requires_key, worker.away)
    places = places_of(host, port, settings.allowed_hosts, settings.allowed_origins)
    table = SessionTable()
    site = LateSite(server, settings, places, table, probes=probes, routes=routes)
    app: ASGIApp = site
    if away is not None:
        from gateway.server.homeward import Homeward

        app = Homeward(app, path=away.home_path, home=away.home, own_paths=frozenset({HEALTH_PATH}))
    direct = None
    if settings.direct_path == "auto":
        if away is None:  # sessions are kept at home
            app = LeanSessions(site, server, table, path=settings.path, max_request_bytes=settings.max_request_bytes)
        takes = away.takes if away is not None else None
        app = direct = DirectPath(app, server, path=settings.path, max_request_bytes=settings.max_request_bytes, takes=takes)
    return KeyGate(app, keys, places, settings, server.usages, requires_key=requires_key, direct=direct)

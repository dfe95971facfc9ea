"""`KeyGate`: the outermost ASGI application. It checks Host and Origin, authenticates API keys, and applies quotas.

Host and Origin are always checked. A gateway with API keys rejects requests without a valid key. Listening beyond loopback requires keys.
`/health` and `/ready` need no key.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Protocol

from gateway.auth.api_keys import KeyStore
from gateway.auth.principal import LOCAL, Principal
from gateway.catalog.status import STATUS_URI
from gateway.config.models import HttpSettings
from gateway.errors import ConfigError, StorageError
from gateway.json_types import JsonObject
from gateway.policy.decision import Reject
from gateway.policy.scopes import OWN_SOURCE, is_admin, judge_scope
from gateway.protocol import PARSE_ERROR
from gateway.server.bodies import has_foreign_charset, too_large
from gateway.server.clients import PRINCIPAL_SCOPE_KEY
from gateway.server.fast_path.started_requests import StartedRequest
from gateway.server.gateway_server import AGUI_PATH
from gateway.server.head import Head
from gateway.server.http_responses import LIMIT_REACHED, Refusal, insufficient_scope, json_response, text_response
from gateway.server.origins import AcceptedOrigins, is_loopback
from gateway.server.sdk_path.lazy_application import HEALTH_PATH, READY_PATH
from gateway.server.usage import RETRY_SECONDS, SMALL_BYTES, CountedBody, Usage, Usages
from gateway.wire.http1_interfaces import SURPLUS_SCOPE_KEY, Admission

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Receive, Scope, Send

logger = logging.getLogger(__name__)

OPEN_PATHS = frozenset({HEALTH_PATH, READY_PATH})
"""Pages that need no key, because they only report that the process runs and is ready."""


def check_bind(host: str, keys: KeyStore) -> bool:
    """Check that the gateway may listen at `host`. Return whether requests need an API key while this gateway runs.

    Raises:
        ConfigError: `host` is not a loopback address, and there is no API key.
    """
    if not is_loopback(host) and not keys.list():
        raise ConfigError(
            f"Refusing to listen on {host!r} without API keys: anybody who reaches it could use every tool. "
            f"Make one with `moongate keys add NAME`, or bind 127.0.0.1.",
            path="server.http.host",
        )
    return not is_loopback(host) or bool(keys.list())


_NO_ROOM = Refusal(503, LIMIT_REACHED, "Too many connections are in use (`server.http.maxConnections`). Try again.", RETRY_SECONDS)

MAX_KNOWN_ORIGINS = 256
"""Maximum number of accepted pairs of Host and Origin that are cached."""


def _unauthorized(*, has_credentials: bool) -> tuple[JsonObject, dict[str, str]]:
    """Return content and headers of a 401 response. Only a response to an invalid key names an error (RFC 6750, 3.1)."""
    challenge = 'Bearer realm="moongate"'
    if not has_credentials:
        message = "Send `Authorization: Bearer <API key>`; make one with `moongate keys add NAME`."
        return {"error": "unauthorized", "message": message}, {"WWW-Authenticate": challenge}
    message = "The API key is unknown, expired or revoked. `moongate keys list` shows the keys; `moongate keys add NAME` makes one."
    return {"error": "invalid_token", "message": message}, {"WWW-Authenticate": f'{challenge}, error="invalid_token"'}


class FastEntry(Protocol):
    """The method of the fast path that `KeyGate` calls."""

    def take(self, head: Head, body: bytes, principal: Principal) -> StartedRequest | None:
        """Start a request that arrived complete; `None` if the ASGI application must handle the request."""
        ...


class KeyGate:
    """ASGI application that authenticates a request, puts its principal into the scope, and passes it on."""

    def __init__(
        self,
        app: ASGIApp,
        keys: KeyStore,
        origins: AcceptedOrigins,
        settings: HttpSettings,
        usages: Usages,
        *,
        requires_key: bool,
        fast_path: FastEntry | None = None,
    ) -> None:
        """`requires_key` is whether requests need an API key, also after the last key was revoked while the gateway runs.

        `fast_path` is the part of `app` that starts complete requests without a task.
        """
        self._app = app
        self._path = settings.path
        self._judged = settings.path, AGUI_PATH
        """Paths whose handlers judge the scopes of keys themselves; a path that ends in a slash stands for all paths below it."""
        self._fast_path = fast_path
        self._keys = keys
        self._requires_key = requires_key
        self.usages = usages
        """Counts what each caller has in progress, for quotas."""
        self._max_request_bytes = settings.max_request_bytes
        self._origins = origins
        self._known: set[tuple[bytes | None, bytes | None]] = set()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass an authenticated request to the application, or reject the request."""
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
            await _NO_ROOM.to_response(is_rpc=head.path == self._path)(scope, receive, send)
        else:
            scope[PRINCIPAL_SCOPE_KEY] = judged
            await self._serve(head, self.usages.of(judged), scope, receive, send)

    async def _serve(self, head: Head, usage: Usage, scope: Scope, receive: Receive, send: Send) -> None:
        """Run the application, unless a quota of the caller is used up. The request and its body count for `usage` meanwhile."""
        refusal = self._over_quota(head, usage)
        if refusal is not None:
            await refusal.to_response(is_rpc=head.path == self._path)(scope, receive, send)
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
        """Return the refusal of a request if, according to its head, the request would exceed a quota of its caller."""
        refusal = usage.refuse_stream() if self._is_stream(head) else usage.refuse_request()
        method = head.fields.get(b"mcp-method")
        if refusal is None and method is not None and not head.is_stream and not method.startswith(b"notifications/"):
            refusal = usage.refuse_call()
        return refusal or usage.refuse_bytes(self._size_of(head))

    def _size_of(self, head: Head) -> int:
        """Return the length of the request body in bytes; the largest allowed length if it is unknown."""
        if head.length < 0 and b"transfer-encoding" in head.fields:
            return self._max_request_bytes
        return max(head.length, 0)

    def _is_stream(self, head: Head) -> bool:
        """Whether the response may be a stream of unlimited duration, which counts for the quota of streams."""
        return head.is_stream or (head.path == self._path and head.method == "GET") or head.path.startswith(AGUI_PATH)

    def admit(self, head: Head) -> Admission | ASGIApp:
        """Judge a request before its body is read. Return the facts of its caller, or an ASGI application that sends the rejection."""
        judged = self.judge(head)
        if judged is None:
            return Admission(None, is_local=False, waits=False)
        if not isinstance(judged, Principal):
            return judged
        refusal = self._over_quota(head, self.usages.of(judged))
        if refusal is not None:
            return refusal.to_response(is_rpc=head.path == self._path)
        return Admission(judged.id, is_local=judged is LOCAL, waits=head.path == self._path)

    def judge(self, head: Head) -> Principal | ASGIApp | None:
        """Authenticate a request by its head. Return its caller, or an ASGI application that sends the rejection.

        Return `None` for pages that need no API key.
        """
        fields = head.fields
        if b"transfer-encoding" in fields and b"content-length" in fields:
            # A proxy in front of the gateway may read another length (RFC 9112, 6.3).
            return json_response({"error": "Send Content-Length or Transfer-Encoding, not both"}, 400, {"Connection": "close"})
        if head.path in OPEN_PATHS:
            return None
        refusal = self._refusal(head)
        if refusal is not None:
            return refusal
        authorization = next((value for name, value in head.headers if name == b"authorization"), b"")
        try:
            principal = self._principal(authorization)
        except StorageError:
            logger.exception("request refused reason=api-keys-not-readable")
            return json_response({"error": "The gateway cannot read its API keys. Its log has the reason."}, 503)
        if principal is None:
            content, challenge = _unauthorized(has_credentials=bool(authorization))
            return json_response(content, 401, challenge)
        if principal.scopes is not None and not self._is_judged(head.path):
            verdict = judge_scope(principal.scopes, "resources", OWN_SOURCE, STATUS_URI)
            if isinstance(verdict, Reject):
                content, challenge = insufficient_scope(f"resources:{OWN_SOURCE}/{STATUS_URI}", verdict)
                return json_response(content, 403, challenge)
        is_rpc = head.path == self._path
        if has_foreign_charset(fields.get(b"content-type", b"")):
            text = "The request body must be UTF-8; `Content-Type` names another charset."
            return Refusal(415, PARSE_ERROR, text).to_response(is_rpc=is_rpc)
        if head.length > self._max_request_bytes:
            return too_large(self._max_request_bytes).to_response(is_rpc=is_rpc)
        return principal

    def take(self, head: Head, body: bytes) -> StartedRequest | None:
        """Authenticate a complete request and start it on the fast path; `None` if this ASGI application must be called for it."""
        fast_path = self._fast_path
        if fast_path is None or not (head.has_accepted_origin or self._has_accepted_origin(head)):
            return None
        try:
            principal = self._principal(head.fields.get(b"authorization", b""), head)
        except StorageError:
            return None
        if principal is None or (principal.scopes is not None and not self._is_judged(head.path)):
            return None
        if head.length <= SMALL_BYTES:
            return fast_path.take(head, body, principal)
        usage = self.usages.of(principal)
        seconds = usage.seconds_of(body)
        if seconds and usage.wait_seconds():
            return None
        taken = fast_path.take(head, body, principal)
        if taken is not None and seconds:
            usage.read_large(seconds)
        return taken

    def _has_accepted_origin(self, head: Head) -> bool:
        """Whether a request is not for an open page, is framed unambiguously, and has a Host and Origin that were accepted before."""
        fields = head.fields
        if head.path in OPEN_PATHS or not head.is_single or b"transfer-encoding" in fields:
            return False
        if has_foreign_charset(fields.get(b"content-type", b"")):
            return False
        head.has_accepted_origin = (fields.get(b"host"), fields.get(b"origin")) in self._known
        return head.has_accepted_origin

    def _is_judged(self, path: str) -> bool:
        return any(path == judged or (judged != "/" and judged.endswith("/") and path.startswith(judged)) for judged in self._judged)

    def _refusal(self, head: Head) -> ASGIApp | None:
        """Return the rejection of a Host or Origin that is not accepted. Accepted pairs are cached."""
        place = head.fields.get(b"host"), head.fields.get(b"origin")
        if place in self._known and head.is_single:
            return None
        refusal = self._origins.refusal(head.headers)
        if refusal is not None:
            status, text = refusal
            return text_response(text, status)
        if head.is_single and len(self._known) < MAX_KNOWN_ORIGINS:
            self._known.add(place)
        return None

    def _principal(self, authorization: bytes, head: Head | None = None) -> Principal | None:
        """Return the caller with the API key in the header `authorization`; `None` if the key is not valid.

        A key that an earlier request with the same `head` had is only checked for revocation.
        """
        key = None if head is None else head.key
        if key is None or not self._keys.holds(key):
            if not self._requires_key and not self._keys.list():
                return LOCAL
            scheme, _, token = authorization.decode("latin-1").partition(" ")
            key = self._keys.find(token.strip()) if scheme.lower() == "bearer" and token else None
            if head is not None:
                head.key = key
        return None if key is None else key.principal


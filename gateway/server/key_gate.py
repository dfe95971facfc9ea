"""`KeyGate`: the outermost ASGI application. It checks the Host and Origin headers, authenticates callers, and applies quotas.

A gateway that has API keys or issuers of access tokens rejects requests without a valid key or token. A gateway without both may only
listen on a loopback address. Requests for `/health` and `/ready` are passed on without any of these checks.

The decision about a request is synchronous, except for an access token that is not remembered: it is checked before the body is read.
"""

from __future__ import annotations

import enum
import logging
import time
from typing import TYPE_CHECKING, Literal, Protocol

from gateway.auth.api_keys import ListedKeys
from gateway.auth.known_callers import Callers
from gateway.auth.oauth_scopes import check_scopes
from gateway.auth.principal import LOCAL, Principal
from gateway.auth.token_errors import IssuerUnavailable, TokenRefused
from gateway.catalog.status import STATUS_URI
from gateway.config.auth_settings import InboundAuthSettings
from gateway.config.models import HttpSettings
from gateway.errors import ConfigError, StorageError
from gateway.json_types import JsonObject
from gateway.policy.caller_rights import is_admin, is_hidden
from gateway.policy.decision import PASS, Reject
from gateway.policy.scopes import OWN_SOURCE
from gateway.protocol import PARSE_ERROR
from gateway.server.bodies import has_foreign_charset, too_large
from gateway.server.clients import PRINCIPAL_SCOPE_KEY
from gateway.server.fast_path.started_requests import StartedRequest
from gateway.server.forwarded_principal import signed_principal
from gateway.server.gateway_server import AGUI_PATH
from gateway.server.head import Head
from gateway.server.http_responses import KEYS_UNREADABLE, LIMIT_REACHED, Refusal, insufficient_scope, json_response, text_response
from gateway.server.origins import AcceptedOrigins, is_loopback
from gateway.server.protected_resource import ProtectedResource, bearer_token, is_access_token
from gateway.server.replica_signature import HEADER, SERVER_SCHEME
from gateway.server.replicas import Replicas
from gateway.server.sdk_path.lazy_application import HEALTH_PATH, READY_PATH
from gateway.server.usage import RETRY_SECONDS, SMALL_BYTES, CountedBody, Usage, Usages
from gateway.wire.http1_interfaces import SURPLUS_SCOPE_KEY, Admission

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Receive, Scope, Send

logger = logging.getLogger(__name__)

OPEN_PATHS = frozenset({HEALTH_PATH, READY_PATH})
"""URL paths that need no API key, because they only report that the process runs and is ready."""


def check_bind(host: str, keys: ListedKeys, auth: InboundAuthSettings | None = None) -> bool:
    """Check that the gateway may listen at the address `host`. Return whether requests always need a credential.

    `auth` are the settings of access tokens; `None`: the gateway accepts none.

    Raises:
        ConfigError: `host` is not a loopback address, and there is neither an API key nor an issuer, or an issuer's settings are wrong.
        StorageError: The API keys cannot be read.
    """
    if auth is not None and auth.issuers:
        check_scopes(auth)
        return True
    if not is_loopback(host) and not keys.list():
        raise ConfigError(
            f"Refusing to listen on {host!r} without API keys: anybody who reaches it could use every tool. "
            f"Make one with `moongate keys add NAME`, or bind 127.0.0.1.",
            path="server.http.host",
        )
    return not is_loopback(host) or bool(keys.list())


_NO_ROOM = Refusal(503, LIMIT_REACHED, "Too many connections are in use (`server.http.maxConnections`). Try again.", RETRY_SECONDS)

MAX_KNOWN_ORIGINS = 256
"""Maximum number of pairs of `Host` and `Origin` headers that are cached as accepted."""

LOG_SECONDS = 2.0
"""Minimum seconds between two log lines about API keys that cannot be read."""


def _unauthorized(*, has_credentials: bool) -> tuple[JsonObject, dict[str, str]]:
    """Return the JSON content and the headers of a 401 response. `has_credentials` is whether the request had an `Authorization` header.

    The challenge in the headers names an error only if the request had credentials (RFC 6750, 3.1).
    """
    challenge = 'Bearer realm="moongate"'
    if not has_credentials:
        message = "Send `Authorization: Bearer <API key>`; make one with `moongate keys add NAME`."
        return {"error": "unauthorized", "message": message}, {"WWW-Authenticate": challenge}
    message = "The API key is unknown, expired or revoked. `moongate keys list` shows the keys; `moongate keys add NAME` makes one."
    return {"error": "invalid_token", "message": message}, {"WWW-Authenticate": f'{challenge}, error="invalid_token"'}


class Unchecked(enum.Enum):
    """What `KeyGate.judge` returns about a request with an access token that is not remembered."""

    TOKEN = enum.auto()


class FastEntry(Protocol):
    """Interface of the object to which `KeyGate` passes complete requests that may be answered without the MCP SDK (`HttpDispatch`)."""

    def take(self, head: Head, body: bytes, principal: Principal) -> StartedRequest | None:
        """Start to serve a completely received request; return `None` if the ASGI application must handle the request."""
        ...


class KeyGate:
    """ASGI application that authenticates each request, puts its principal into the scope, and passes the request to the next application.

    It rejects requests with an unaccepted Host or Origin, without a valid API key, or over a quota of their caller. Requests for `/health`
    and `/ready` are passed on unchecked, and have no principal.
    """

    def __init__(
        self,
        app: ASGIApp,
        callers: Callers,
        origins: AcceptedOrigins,
        settings: HttpSettings,
        usages: Usages,
        *,
        requires_key: bool,
        fast_path: FastEntry | None = None,
        replicas: Replicas | None = None,
    ) -> None:
        """`app` is the next ASGI application, to which authenticated requests are passed. `callers` has the API keys and access tokens.

        `replicas` verifies requests that other replicas of this gateway forward; `None` without replicas.

        `requires_key`: requests need an API key even after all keys have been revoked while the gateway runs. `fast_path` is the part of
        `app` that can start to serve a complete request without an ASGI call.
        """
        self._app = app
        self._path = settings.path
        self._judged = settings.path, AGUI_PATH
        """URL paths whose handlers check the rights of callers themselves. A path that ends in a slash includes all paths below it."""
        self._fast_path = fast_path
        self._callers = callers
        self._keys = callers.keys
        self._tokens = callers.tokens
        self._resource = None if callers.tokens is None else ProtectedResource(callers.tokens)
        self._replicas = replicas
        self._requires_key = requires_key
        self.usages = usages
        """Counts the calls, requests, streams, sessions and bytes that each caller has in progress, to apply quotas."""
        self._max_request_bytes = settings.max_request_bytes
        self._origins = origins
        self._known: set[tuple[bytes | None, bytes | None]] = set()
        self._logged_at = float("-inf")

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Authenticate a request and pass it to the next application, or reject the request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        head = Head(scope)
        judged = self.judge(head)
        if judged is Unchecked.TOKEN:
            judged = await self._judge_unchecked(head)
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
        """Pass a request to the next application, or refuse the request if a quota of its caller is used up.

        While the application runs, the request and its body count in `usage`, which belongs to the caller.
        """
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
        """Return a refusal if a request with this head would exceed a quota of its caller; `None` if the quotas allow the request."""
        refusal = usage.refuse_stream() if self._is_stream(head) else usage.refuse_request()
        method = head.fields.get(b"mcp-method")
        if refusal is None and method is not None and not head.is_stream and not method.startswith(b"notifications/"):
            refusal = usage.refuse_call(method.decode(errors="replace"))
        return refusal or usage.refuse_bytes(self._size_of(head))

    def _size_of(self, head: Head) -> int:
        """Return the length of a request's body in bytes; the largest allowed length for a chunked body, whose length is unknown."""
        if head.length < 0 and b"transfer-encoding" in head.fields:
            return self._max_request_bytes
        return max(head.length, 0)

    def _is_stream(self, head: Head) -> bool:
        """Whether the response to this request may be a stream of unlimited duration, which counts for the caller's quota of streams."""
        return head.is_stream or (head.path == self._path and head.method == "GET") or head.path.startswith(AGUI_PATH)

    def admit(self, head: Head) -> Admission | ASGIApp:
        """Decide from the head of a request whether the gateway reads the body.

        If so, return an `Admission` with facts about the caller that the HTTP server needs. Otherwise return an ASGI application that sends
        the rejection.
        """
        judged = self.judge(head)
        if judged is None or judged is Unchecked.TOKEN:  # the application starts now, and checks the token before it reads the body
            return Admission(None, is_local=False, waits=False)
        if not isinstance(judged, Principal):
            return judged
        refusal = self._over_quota(head, self.usages.of(judged))
        if refusal is not None:
            return refusal.to_response(is_rpc=head.path == self._path)
        return Admission(judged.id, is_local=judged is LOCAL, waits=head.path == self._path)

    async def _judge_unchecked(self, head: Head) -> Principal | ASGIApp:
        """Check the access token of a request, and judge the request then. The body has not been read."""
        assert self._tokens is not None and self._resource is not None
        try:
            known = await self._tokens.verify(bearer_token(_authorization(head)))
        except TokenRefused as error:
            return self._resource.unauthorized(str(error))
        except IssuerUnavailable:
            return self._resource.unavailable()
        judged = self.judge(head, known.principal)
        assert judged is not None and not isinstance(judged, Unchecked), "the path needs a caller, and the caller is known"
        return judged

    def judge(self, head: Head, verified: Principal | None = None) -> Principal | ASGIApp | Literal[Unchecked.TOKEN] | None:
        """Authenticate a request by its head. Return the caller's principal, or an ASGI application that sends the rejection.

        Return `None` if the path is `/health` or `/ready`, which need no API key, and `Unchecked.TOKEN` if the access token must be checked
        first. `verified` is the principal of a token that was just checked.
        """
        fields = head.fields
        if head.path in OPEN_PATHS:
            return None
        if self._replicas is not None and HEADER in fields:
            return self._judge_forwarded(head, self._replicas)
        refusal = self._refusal(head)
        if refusal is not None:
            return refusal
        if self._resource is not None and (metadata := self._resource.metadata(head.path, head.method)) is not None:
            return metadata
        authorization = _authorization(head)
        try:
            principal = verified or self._principal(authorization)
        except StorageError as error:
            self._log_unreadable(error)
            return json_response({"error": KEYS_UNREADABLE}, 503)
        if principal is None:
            return self._unknown(authorization)
        if self._callers.bind is not None:
            principal = self._callers.bind(principal)
        if not self._is_judged(head.path) and (refusal := self._refuse_status(principal)) is not None:
            return refusal
        is_rpc = head.path == self._path
        if has_foreign_charset(fields.get(b"content-type", b"")):
            text = "The request body must be UTF-8; `Content-Type` names another charset."
            return Refusal(415, PARSE_ERROR, text).to_response(is_rpc=is_rpc)
        if head.length > self._max_request_bytes:
            return too_large(self._max_request_bytes).to_response(is_rpc=is_rpc)
        return principal

    def _refuse_status(self, principal: Principal) -> ASGIApp | None:
        """Return the rejection of a request for a page with the gateway's status; `None` if the caller may read the status."""
        item = ("resources", OWN_SOURCE, STATUS_URI)
        verdict = PASS if principal.rights is None else principal.rights.decide(*item).verdict
        if not isinstance(verdict, Reject):
            return None
        if is_hidden(verdict):
            return text_response("Not Found", 404)
        if self._resource is not None and principal.kind == "user":
            return self._resource.forbidden(principal.issuer, item, verdict)
        content, challenge = insufficient_scope(f"resources:{OWN_SOURCE}/{STATUS_URI}", verdict)
        return json_response(content, 403, challenge)

    def _unknown(self, authorization: bytes) -> ASGIApp | Literal[Unchecked.TOKEN]:
        """Return the rejection of a request whose caller is not known, or `Unchecked.TOKEN` if its access token must be checked first."""
        if self._resource is None:
            content, challenge = _unauthorized(has_credentials=bool(authorization))
            return json_response(content, 401, challenge)
        if is_access_token(bearer_token(authorization)):
            return Unchecked.TOKEN
        return self._resource.unauthorized("The API key is unknown, expired or revoked." if authorization else "")

    def _judge_forwarded(self, head: Head, replicas: Replicas) -> Principal | ASGIApp:
        """Authenticate a request that another replica has forwarded. Return its principal, or an ASGI application that sends the rejection.

        The other replica has authenticated the client. Its principal gets the rights that its key has now. A message of the replica itself
        counts for no caller, because the replica has counted the call.
        """
        signed = replicas.verify(head) if head.path == self._path else None
        if signed is not None and signed.scheme == SERVER_SCHEME:
            return LOCAL
        try:
            forwarded = None if signed is None else signed_principal(signed)
            principal = None if forwarded is None else self._callers.current(forwarded)
            if signed is not None and signed.principal == LOCAL.id:
                principal = None if self._requires_key or self._keys.list() else LOCAL
        except StorageError as error:
            self._log_unreadable(error)
            return json_response({"error": KEYS_UNREADABLE}, 503)
        if principal is None:
            message = "The signature of this forwarded request, or the API key of its caller, is not valid at this gateway."
            return json_response({"error": "invalid_replica", "message": message}, 401)
        return principal if head.length <= self._max_request_bytes else too_large(self._max_request_bytes).to_response(is_rpc=True)

    def _log_unreadable(self, error: StorageError) -> None:
        """Log that a request was refused because the API keys cannot be read, at most once in `LOG_SECONDS`."""
        now = time.monotonic()
        if now - self._logged_at >= LOG_SECONDS:
            self._logged_at = now
            logger.error("request refused reason=api-keys-not-readable error=%r", str(error))

    def take(self, head: Head, body: bytes) -> StartedRequest | None:
        """Authenticate a completely received request, and start to serve it without the MCP SDK.

        If this ASGI application must be called for the request instead, do nothing and return `None`.
        """
        fast_path = self._fast_path
        if fast_path is None or not (head.has_accepted_origin or self._has_accepted_origin(head)):
            return None
        try:
            principal = self._principal(head.fields.get(b"authorization", b""), head)
        except StorageError:
            return None
        if principal is None:
            return None
        if self._callers.bind is not None:
            principal = self._callers.bind(principal)
        if principal.rights is not None and not self._is_judged(head.path):
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
        """Whether a request certainly passes the checks of its head. False means that the full checks must decide.

        True requires that an earlier request with the same Host and Origin was accepted, that the length and charset of the body are
        unambiguous, and that the path needs an API key.
        """
        fields = head.fields
        if head.path in OPEN_PATHS or not head.is_single or b"transfer-encoding" in fields or HEADER in fields:
            return False
        if has_foreign_charset(fields.get(b"content-type", b"")):
            return False
        head.has_accepted_origin = (fields.get(b"host"), fields.get(b"origin")) in self._known
        return head.has_accepted_origin

    def _is_judged(self, path: str) -> bool:
        return any(path == judged or (judged != "/" and judged.endswith("/") and path.startswith(judged)) for judged in self._judged)

    def _refusal(self, head: Head) -> ASGIApp | None:
        """Return an ASGI application that rejects the request because of its Host or Origin header; `None` if both are accepted.

        Accepted pairs of Host and Origin are cached.
        """
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
        """Return the principal of the API key or remembered access token in `authorization`, the value of the `Authorization` header.

        Return `None` if the key is not valid, or the token not remembered. If the gateway has no API keys and requires none, return the
        local user. If `head` contains the key or token of an earlier request on the same connection, only its revocation and expiry are
        checked, without computing a hash.
        """
        known = None if head is None else head.token
        if known is not None and known.is_usable(time.time()):
            return known.principal
        key = None if head is None else head.key
        if key is None or not self._keys.holds(key):
            if not self._requires_key and not self._keys.list():
                return LOCAL
            token = bearer_token(authorization)
            if self._tokens is not None and is_access_token(token):
                known = self._tokens.remembered(token)
                if head is not None:
                    head.token = known
                return None if known is None else known.principal
            key = self._keys.find(token) if token else None
            if head is not None:
                head.key = key
        return None if key is None else key.principal


def _authorization(head: Head) -> bytes:
    """Return the value of the first `Authorization` header of a request; empty without one."""
    return next((value for name, value in head.headers if name == b"authorization"), b"")

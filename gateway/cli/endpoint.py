"""Finds out which program listens at an address: the gateway of this configuration, another gateway, another program, or none.

Commands send API keys and calls only to a gateway that has proved that it serves the command's configuration (`auth.identity`), or to a URL
that the user gave. Used by `hub`, `run` and `checks`.
"""

from __future__ import annotations

import secrets
import ssl
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, cast
from urllib.parse import SplitResult, urlsplit

from gateway.cli.failures import NeedsAuth
from gateway.errors import Forbidden, GatewayError, NotSent, OutcomeUnknown, Unauthorized, Unreachable, UpstreamError
from gateway.json_types import JsonMapping, JsonObject, JsonValue

if TYPE_CHECKING:
    from gateway.config.load import LoadedConfig

STATUS_TIMEOUT_SECONDS = 15.0
"""Timeout in seconds for reading the status page of a running gateway."""

PROBE_TIMEOUT_SECONDS = 2.0
"""Timeout in seconds of each request that checks whether a gateway listens at an address."""

NO_ANSWER = 0
"""Value of `_Answer.code`, in place of an HTTP status, if no response arrived in time."""

DEFAULT_PORTS = {"http": 80, "https": 443}


@dataclass(frozen=True, slots=True)
class Listener:
    """A program that accepts connections at a URL, and whether it is a gateway."""

    url: str
    is_gateway: bool
    is_own: bool
    """Whether the program has proved that it is a gateway with the command's configuration and state folder."""
    about: JsonMapping = field(default_factory=lambda: cast("JsonObject", {}))
    """The gateway's status page as it is shown without an API key; empty if it is not shown."""
    is_silent: bool = False
    """Whether the program's response, or the gateway's status page, did not arrive in time."""
    tls_problem: str = ""
    """Why the TLS handshake with the program failed; empty if it did not fail."""

    def description(self) -> str:
        """Return a description for messages, such as `the gateway 'moongate' of process 71 (configuration: /srv/gateway.json)`."""
        if self.tls_problem:
            return f"a program whose TLS certificate is not the one in server.http.tls ({self.tls_problem})"
        if not self.is_gateway:
            silent = f"a program that did not answer within {PROBE_TIMEOUT_SECONDS:g} s"
            return silent if self.is_silent else "a program that is not a Moongate gateway"
        if self.is_silent:
            return f"a Moongate gateway (which did not show its status within {STATUS_TIMEOUT_SECONDS:g} s)"
        if not self.about:
            return "a Moongate gateway (with API keys, so its configuration is not shown)"
        name, pid, configuration = (self.about.get(key) for key in ("name", "pid", "configuration"))
        return f"the gateway {name!r} of process {pid} (configuration: {configuration})"


@dataclass(frozen=True, slots=True)
class Status:
    """The status page of a running gateway, or why the gateway does not show it."""

    page: JsonMapping | None = None
    """Content of the status page; `None` if it is not shown, or if the program is not a Moongate gateway."""
    denial: str | None = None
    """The gateway's message if the scopes of the API key do not include the status."""


def endpoint_of(loaded: LoadedConfig, host: str | None = None, port: int | None = None) -> str:
    """Return the URL at which this machine reaches a gateway with this configuration, or the gateway at `host` and `port`."""
    http = loaded.config.server.http
    bound = host or http.host
    reached = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(bound, bound)  # only compared: no socket is bound to these
    scheme = "http" if http.tls is None else "https"
    return f"{scheme}://{f'[{reached}]' if ':' in reached else reached}:{port or http.port}{http.path}"


def own_tls(loaded: LoadedConfig) -> ssl.SSLContext | None:
    """Return a TLS context that trusts only the certificate of this configuration's gateway. Blocks.

    Return `None` if the configuration has no certificate, or its file cannot be read.
    """
    from gateway.egress.tls import pinned_context

    tls = loaded.config.server.http.tls
    try:
        return pinned_context(Path(tls.certificate)) if tls is not None else None
    except OSError:  # the connection will fail, and the error names the reason
        return None


def tls_for(url: str, loaded: LoadedConfig) -> ssl.SSLContext | None:
    """Return the TLS context for a URL that the user gave: that of `own_tls` for the configured address, else `None` for the usual one."""
    given, own = urlsplit(url), urlsplit(endpoint_of(loaded))
    return own_tls(loaded) if (given.scheme, given.netloc) == ("https", own.netloc) else None


async def find_listener(url: str, loaded: LoadedConfig) -> Listener | None:
    """Find out which program listens at `url`, by HTTP requests; return `None` if nothing listens there.

    Raises:
        StorageError: The state folder cannot be used.
    """
    import httpx2

    from gateway.auth.identity import Identity

    parts = urlsplit(url)
    identity, tls = Identity.of(loaded), own_tls(loaded)
    challenge = secrets.token_hex(16)
    try:
        health = await _read(parts, f"/health?challenge={challenge}", tls=tls)
    except httpx2.ConnectError as error:
        problem = _tls_problem(error)
        return Listener(url, is_gateway=False, is_own=False, tls_problem=problem) if problem else None
    proof = health.page.get("proof") if health is not None and health.page is not None else None
    if not isinstance(proof, str):
        return Listener(url, is_gateway=False, is_own=False, is_silent=health is not None and health.code == NO_ANSWER)
    is_own = identity.accepts(proof, challenge, parts.port or DEFAULT_PORTS[parts.scheme])
    status = await _read(parts, "/status.json", timeout_seconds=STATUS_TIMEOUT_SECONDS, tls=tls)
    code = status.code if status is not None else NO_ANSWER
    about = status.page if status is not None and code == 200 else None
    return Listener(url, is_gateway=True, is_own=is_own, about=about or {}, is_silent=code == NO_ANSWER)


async def read_status(url: str, api_key: str | None, tls: ssl.SSLContext | None = None) -> Status:
    """Return the status page of the gateway at `url`; an empty `Status` if no Moongate gateway answers there in time.

    `tls` replaces the usual TLS context.

    Raises:
        NeedsAuth: The gateway requires an API key, or rejects `api_key`.
    """
    import httpx2

    try:
        answer = await _read(urlsplit(url), "/status.json", api_key, STATUS_TIMEOUT_SECONDS, tls)
    except httpx2.ConnectError:
        return Status()
    if answer is None:
        return Status()
    if answer.code == 401:
        raise needs_key(url, api_key)
    page = answer.page or {}
    if answer.code == 403 and "message" in page:
        return Status(denial=str(page["message"]))
    return Status(page=page) if answer.code == 200 and "sources" in page else Status()


def needs_key(url: str, api_key: str | None) -> NeedsAuth:
    """Return the error to raise if the gateway at `url` rejects `api_key`, or requires an API key and `api_key` is `None`."""
    given = "another API key" if api_key else "an API key"
    return NeedsAuth(f"The gateway at {url} requires {given}: `--api-key KEY` or $MOONGATE_API_KEY; `moongate keys add NAME` makes one.")


def not_usable(url: str, status: Status, api_key: str | None, error: UpstreamError) -> GatewayError:
    """Return the error to raise if the MCP handshake with `url` failed with `error`: it says what is wrong and what to do."""
    if isinstance(error, Unauthorized):
        return needs_key(url, api_key)
    if tls_problem := _tls_problem(error):
        text = f"The TLS certificate of {url} is not trusted ({tls_problem}). Set $SSL_CERT_FILE to the file with its issuer's certificate."
        return NotSent(text, server="moongate")
    problem = "it closed the connection during the handshake" if isinstance(error, OutcomeUnknown) else str(error)
    if isinstance(error, Forbidden):
        problem = "it answered 403, so it refuses this API key or this machine"
    endpoint = (status.page or {}).get("endpoint")
    if isinstance(endpoint, str) and urlsplit(endpoint).path != (parts := urlsplit(url)).path:
        text = f"The endpoint of the gateway at {url} is {parts.scheme}://{parts.netloc}{urlsplit(endpoint).path}; write that URL."
    elif isinstance(error, Unreachable):
        text = f"No gateway at {url} ({problem}); `moongate run` starts one."
    else:
        text = f"{url} cannot be used: {problem}."
    return NotSent(text, server="moongate")


def key_headers(api_key: str | None) -> dict[str, str]:
    """Return the HTTP headers that carry an API key; no headers without a key."""
    return {"Authorization": f"Bearer {api_key}"} if api_key else {}


@dataclass(frozen=True, slots=True)
class _Answer:
    code: int
    page: JsonMapping | None
    """The JSON object in the response's body; `None` for any other body."""


async def _read(
    parts: SplitResult,
    path: str,
    api_key: str | None = None,
    timeout_seconds: float | None = None,
    tls: ssl.SSLContext | None = None,
) -> _Answer | None:
    """Send a GET request and return the response; `None` if the connection breaks or the response is not HTTP.

    If no response arrives in time, the result has the code `NO_ANSWER`.

    Raises:
        httpx2.ConnectError: Nothing listens at the address, or the TLS handshake failed.
    """
    import httpx2

    from gateway.egress.client import build_client

    origin = f"{parts.scheme}://{parts.netloc}"
    try:
        async with build_client("moongate", origin, timeout_seconds=timeout_seconds or PROBE_TIMEOUT_SECONDS, tls=tls) as client:
            answer = await client.get(f"{origin}{path}", headers=key_headers(api_key))
    except httpx2.ConnectError:
        raise
    except httpx2.TimeoutException:
        return _Answer(NO_ANSWER, None)
    except httpx2.HTTPError:
        return None
    try:
        page: JsonValue = answer.json()
    except ValueError:
        page = None
    return _Answer(answer.status_code, cast("JsonObject", page) if isinstance(page, dict) else None)


def _tls_problem(error: BaseException) -> str:
    """Return why the TLS handshake failed, if `error` or one of its causes is an `ssl.SSLError`; else an empty string."""
    cause: BaseException | None = error
    while cause is not None and not isinstance(cause, ssl.SSLError):
        cause = cause.__cause__ or cause.__context__
    if cause is None:
        return ""
    return cause.verify_message if isinstance(cause, ssl.SSLCertVerificationError) else (cause.reason or "no TLS").lower().replace("_", " ")

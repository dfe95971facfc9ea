"""`GuardedFetch`: sends requests to URLs that a remote party may have chosen: OAuth metadata, registration and token endpoints.

It prevents requests to internal addresses (SSRF). Only https is allowed, and http to this machine or to a trusted origin. Each IP address
to which a host name resolves is checked, and the gateway connects to the checked address. The name is not resolved again, because it could
then resolve to another address. Redirects are not followed, and size and time of responses are limited. Trusted origins are those in the
operator's configuration: their addresses are not checked, and only they are reached through a proxy. MCP requests to the server itself do
not use this module, because the operator configured its URL.
"""

from __future__ import annotations

import ipaddress
import os
import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from urllib.parse import urlsplit

import anyio
import httpx2

from gateway.egress.proxies import proxy_for
from gateway.egress.tls import tls_context
from gateway.errors import GatewayError, NotSent
from gateway.policy.addresses import is_loopback_host, judge_address

FETCH_SECONDS = 15.0
"""Deadline of one fetch in seconds, from name resolution to the last byte."""

CONNECT_SECONDS = 5.0
"""Timeout in seconds for TCP and TLS to one IP address of a host. After it, the next address is tried."""

_TIMEOUT = {"connect": CONNECT_SECONDS, "read": None, "write": None, "pool": None}

MAX_BODY_BYTES = 262_144
"""Maximum bytes of a response body. Metadata and token responses have a few kB."""

MAX_ADDRESSES = 4
"""Maximum number of IP addresses of a host that are tried."""


class FetchRefused(GatewayError):
    """Raised if a request is not sent because its address is malformed or not allowed, or if its response is rejected.

    The message names the host, unless the address is malformed.
    """


class FetchFailed(GatewayError):
    """Raised if the host is unreachable or does not send a complete response. A later attempt may succeed."""


Origin = tuple[str, str, int]
"""Origin of a URL: scheme, host and port."""


def origin_of(url: str) -> Origin:
    """Return the origin (scheme, host, port) of an absolute http(s) URL.

    Raises:
        FetchRefused: The URL is malformed, has another scheme, or contains a user name or password.
    """
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        raise FetchRefused("An address in the metadata is malformed.") from None
    scheme, host = parts.scheme.lower(), (parts.hostname or "").lower()
    if scheme not in ("http", "https") or not host or parts.username is not None or parts.password is not None:
        raise FetchRefused(f"{url[:200]!r} is not a plain http(s) address.")
    return scheme, host, port if port is not None else 443 if scheme == "https" else 80


@dataclass(frozen=True, slots=True)
class GuardedFetch:
    """Sends the OAuth requests for one configured MCP server, to URLs that the server or its authorization server named.

    A request to an internal address is refused, except to `trusted` origins, and to this machine with `loopback_allowed`.
    """

    trusted: frozenset[Origin]
    """Origins of URLs in the operator's configuration: the URL of the server, and of a configured OAuth issuer. They may be internal."""
    loopback_allowed: bool
    """Whether URLs on this machine with other origins than `trusted` are allowed. True only if the configured server is on this machine."""

    @classmethod
    def for_server(cls, server_url: str, issuer: str | None) -> GuardedFetch:
        """Create a `GuardedFetch` for the OAuth requests of the MCP server at `server_url`.

        It trusts the origins of `server_url` and of `issuer`, the OAuth issuer in the server's policy (`None`: not configured).
        """
        server = origin_of(server_url)
        trusted = {server} if issuer is None else {server, origin_of(issuer)}
        return cls(frozenset(trusted), is_loopback_host(server[1]))

    async def get(self, url: str) -> httpx2.Response:
        """Send a GET request, and return the complete response with any status. Raises the errors of `send`."""
        return await self.send("GET", url)

    async def send(
        self, method: str, url: str, *, content: bytes = b"", headers: Mapping[str, str] | None = None, max_seconds: float = FETCH_SECONDS
    ) -> httpx2.Response:
        """Send a request, and return the complete response with any status. Redirects are returned, not followed.

        Raises:
            FetchRefused: The address is malformed or not allowed, or the response is too large or compressed.
            FetchFailed: The host is unknown or unreachable, the response broke off, the deadline passed, or the proxy cannot be used.
        """
        origin = origin_of(url)
        try:
            request = httpx2.Request(method, url, content=content, headers={"accept": "application/json", **(headers or {})})
        except httpx2.InvalidURL:
            raise FetchRefused(f"{url[:200]!r} is not a plain http(s) address.") from None
        try:
            with anyio.fail_after(max_seconds):
                return await self._send(request, origin)
        except TimeoutError:
            raise FetchFailed(f"{origin[1]} did not answer within {max_seconds:g} s.") from None

    async def _send(self, request: httpx2.Request, origin: Origin) -> httpx2.Response:
        proxy = self._proxy(origin, request)
        if proxy is not None:
            return await self._send_through(proxy, request, origin)
        addresses = await self._allowed_addresses(origin)
        failure = "the host is unreachable"
        async with httpx2.AsyncHTTPTransport(verify=tls_context(), http2=False, retries=0) as transport:
            for address in addresses[:MAX_ADDRESSES]:
                try:
                    response = await transport.handle_async_request(_at(request, address, origin))
                    return await _read(response, request, origin[1])
                except httpx2.ConnectTimeout:
                    failure = f"did not accept a connection within {CONNECT_SECONDS:g} s"
                except httpx2.ConnectError as error:
                    failure = f"cannot connect ({error})"
                except httpx2.HTTPError:
                    failure = "the response broke off"
                    break
        raise FetchFailed(f"{origin[1]}: {failure}.")

    def _proxy(self, origin: Origin, request: httpx2.Request) -> httpx2.Proxy | None:
        """Return the proxy for a request to a trusted origin, if the environment configures one.

        Any other origin is reached without a proxy, because the gateway must resolve and check its addresses itself.
        """
        if origin not in self.trusted:
            return None
        try:
            return proxy_for("", str(request.url), os.environ)
        except NotSent as error:
            raise FetchFailed(str(error)) from None

    async def _send_through(self, proxy: httpx2.Proxy, request: httpx2.Request, origin: Origin) -> httpx2.Response:
        request.headers["accept-encoding"] = "identity"
        request.extensions["timeout"] = _TIMEOUT
        async with httpx2.AsyncHTTPTransport(verify=tls_context(), http2=False, retries=0, proxy=proxy) as transport:
            try:
                return await _read(await transport.handle_async_request(request), request, origin[1])
            except httpx2.HTTPError:
                raise FetchFailed(f"{origin[1]}: the proxy did not return a response.") from None

    async def _allowed_addresses(self, origin: Origin) -> Sequence[str]:
        scheme, host, port = origin
        trusted = origin in self.trusted
        try:
            found = await anyio.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        except (OSError, UnicodeError):
            raise FetchFailed(f"{host} has no address in DNS.") from None
        addresses = list(dict.fromkeys(str(entry[4][0]) for entry in found))
        local = [address for address in addresses if judge_address(address, loopback_allowed=True) is None and _is_loopback(address)]
        if scheme == "http" and len(local) != len(addresses) and not trusted:
            raise FetchRefused(f"{host} must be reached over https; plain http is only for this machine.")
        if not trusted:
            for address in addresses:
                reason = judge_address(address, loopback_allowed=self.loopback_allowed)
                if reason is not None:
                    raise FetchRefused(f"No request is sent to {host}: {address} {reason}.")
        return addresses


def _is_loopback(address: str) -> bool:
    parsed = ipaddress.ip_address(address)
    mapped = parsed.ipv4_mapped if isinstance(parsed, ipaddress.IPv6Address) else None
    return (mapped or parsed).is_loopback


def _at(request: httpx2.Request, address: str, origin: Origin) -> httpx2.Request:
    """Return a copy of `request` that is sent to the IP `address`. `Host`, SNI and the certificate check still use the host's name."""
    scheme, host, port = origin
    headers = [(k, v) for k, v in request.headers.raw if k.lower() not in (b"host", b"accept-encoding", b"connection")]
    shown = f"[{host}]" if ":" in host else host
    named = shown if port == (443 if scheme == "https" else 80) else f"{shown}:{port}"
    headers += [(b"host", named.encode("idna") if named.isascii() is False else named.encode()), (b"accept-encoding", b"identity")]
    headers.append((b"connection", b"close"))
    return httpx2.Request(
        request.method,
        request.url.copy_with(host=address),
        headers=headers,
        content=request.content,
        extensions={"timeout": _TIMEOUT, "sni_hostname": host},
    )


async def _read(response: httpx2.Response, request: httpx2.Request, host: str) -> httpx2.Response:
    """Read the whole body of `response`, close it, and return a copy of the response with the body.

    The copy refers to `request`, whose URL has the host's name; the URL of the request that was sent may have an IP address instead.
    Raises `FetchRefused` if the body is compressed or too large.
    """
    body = bytearray()
    try:
        if response.headers.get("content-encoding", "identity").lower() != "identity":
            raise FetchRefused(f"{host} responded with a content coding that was not offered.")
        async for chunk in response.aiter_raw():
            body += chunk
            if len(body) > MAX_BODY_BYTES:
                raise FetchRefused(f"{host} responded with more than {MAX_BODY_BYTES} bytes.")
    finally:
        await response.aclose()
    headers = [(k, v) for k, v in response.headers.raw if k.lower() not in (b"transfer-encoding", b"content-length")]
    return httpx2.Response(response.status_code, headers=headers, content=bytes(body), request=request)

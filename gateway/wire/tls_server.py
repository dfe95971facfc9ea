"""`TlsConnection`: an HTTP/1.1 connection of uvicorn's server whose client speaks TLS. `server.http_protocol` uses it if TLS is configured.

Python's `ssl.SSLObject` (OpenSSL) does all of TLS. This module moves encrypted bytes between it and the socket's transport.

Decided: the connection itself passes the bytes to OpenSSL. Because: `create_server(ssl=…)` reports a connection only after the handshake,
so sockets that never finish the handshake would escape the limits of connections; `start_tls` of uvloop loses a handshake that began before
it is called; both wait for the client's `close_notify` when they close a connection, and asyncio has a buffer of 256 KiB for each of them.
Instead of: a proxy in front of the server. Revisit when: uvicorn reports accepted connections before the handshake.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections.abc import Callable, Iterable
from typing import Any, cast

from gateway.wire.http1_exchange import HeadT, error_response
from gateway.wire.http1_server import ServerConnection

logger = logging.getLogger(__name__)

RECORD_BYTES = 16_384
"""Maximum bytes of a TLS record. OpenSSL reads and writes one record at a time."""

_NOT_TLS = error_response(400, b"This port serves HTTPS. Use a URL that begins with https://")


class TlsTransport(asyncio.Transport):
    """Encrypts what is written to a socket's transport (`raw`), and decrypts what was read from it.

    Until the handshake is complete, no response can be sent, so `write` and `close` abort the connection.
    """

    def __init__(self, raw: asyncio.Transport, context: ssl.SSLContext) -> None:
        super().__init__()
        self._raw = raw
        self._context = context
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._incoming, self._outgoing, server_side=True)
        self._is_ready = False
        """Whether the handshake is complete."""
        self._is_shut = False
        """Whether `close_notify` was sent. Nothing can be written any more."""
        self.has_ended = False
        """Whether the client sent `close_notify`, so that it sends no further request."""

    # -- reading ---------------------------------------------------------------------------------------------------

    def receive(self, data: bytes) -> bytes:
        """Return what the client's encrypted bytes `data` decrypt to; an empty string during the handshake.

        After `write_eof` the result is `data` itself, because the connection only counts it.

        Raises:
            ssl.SSLError: The bytes are not valid TLS, or there is no common version or cipher. OpenSSL's alert has been written.
        """
        if self._is_shut:
            return data
        self._incoming.write(data)
        try:
            if not self._is_ready:
                self._tls.do_handshake()
                self._is_ready = True
            return self._decrypt()
        except ssl.SSLWantReadError:
            return b""
        finally:
            self._send()

    def _decrypt(self) -> bytes:
        tls, incoming = self._tls, self._incoming
        parts: list[bytes] = []
        try:
            # An exception costs more than the comparisons.
            while incoming.pending or tls.pending():
                part = tls.read(RECORD_BYTES)
                if not part:
                    self.has_ended = True
                    break
                parts.append(part)
        except ssl.SSLWantReadError:  # a part of a record
            pass
        return parts[0] if len(parts) == 1 else b"".join(parts)

    # -- writing ---------------------------------------------------------------------------------------------------

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """Encrypt and send bytes. Before the end of the handshake, abort the connection instead."""
        self.writelines((data,))

    def writelines(self, list_of_data: Iterable[bytes | bytearray | memoryview]) -> None:
        """Encrypt and send the parts of a response. Before the end of the handshake, abort the connection instead."""
        if not self._is_ready:
            self._raw.abort()
            return
        if self._is_shut:
            return
        tls = self._tls
        try:
            for data in list_of_data:
                if len(data) <= RECORD_BYTES:
                    if data:
                        tls.write(data)
                    continue
                view = memoryview(data)
                for start in range(0, len(view), RECORD_BYTES):
                    tls.write(view[start : start + RECORD_BYTES])
        except ssl.SSLError:  # the client ended the session with an alert
            self._raw.abort()
            return
        self._send()

    def _send(self) -> None:
        if self._outgoing.pending:
            self._raw.write(self._outgoing.read())

    def can_write_eof(self) -> bool:
        """Return whether `write_eof` has an effect: not before the end of the handshake."""
        return self._is_ready and self._raw.can_write_eof()

    def write_eof(self) -> None:
        """Send `close_notify`, and end the socket's sending side. Received bytes are not decrypted any more."""
        self._shut()
        self._raw.write_eof()

    def _shut(self) -> None:
        if self._is_shut:
            return
        self._is_shut = True
        try:
            self._tls.unwrap()
        except ssl.SSLError:  # `SSLWantReadError`: the client's `close_notify` has not arrived, and is not awaited
            pass
        self._send()

    # -- the connection --------------------------------------------------------------------------------------------

    def close(self) -> None:
        """Send `close_notify`, and close the socket when everything is sent. Before the end of the handshake, abort the connection."""
        if not self._is_ready:
            self._raw.abort()
        elif not self._raw.is_closing():
            self._shut()
            self._raw.close()

    def fail(self, response: bytes = b"") -> None:
        """Close the socket after a failure of TLS, when OpenSSL's alert and the unencrypted `response` are sent."""
        self._is_shut = True
        if response:
            self._raw.write(response)
        self._raw.close()

    def abort(self) -> None:
        """Close the socket at once."""
        self._raw.abort()

    def is_closing(self) -> bool:
        """Return whether the socket is closed or will be closed."""
        return self._raw.is_closing()

    def pause_reading(self) -> None:
        """Read no more from the socket."""
        self._raw.pause_reading()

    def resume_reading(self) -> None:
        """Read from the socket again."""
        self._raw.resume_reading()

    def get_write_buffer_size(self) -> int:
        """Return the number of encrypted bytes that wait for the socket."""
        return self._raw.get_write_buffer_size()

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        """Return `sslcontext`, `ssl_object` or information about the socket."""
        own = {"sslcontext": self._context, "ssl_object": self._tls}
        return own[name] if name in own else self._raw.get_extra_info(name, default)


class TlsConnection(ServerConnection[HeadT]):
    """One HTTP/1.1 connection over TLS. The limits of connections and `head_seconds` include the handshake."""

    __slots__ = ("_tls",)

    tls_context: Callable[[], ssl.SSLContext]
    """Function that returns the TLS context, with the certificate, of a new connection."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Register the connection, whose handshake the client begins."""
        self._tls = TlsTransport(cast("asyncio.Transport", transport), self.tls_context())
        super().connection_made(self._tls)

    def data_received(self, data: bytes) -> None:
        """Decrypt received bytes and parse the result."""
        tls = self._tls
        try:
            plain = tls.receive(data)
        except ssl.SSLError as error:
            reason = (error.reason or "unknown").lower()
            logger.info("tls failed client=%s reason=%s", self.address, reason)
            tls.fail(_NOT_TLS if reason == "http_request" else b"")
            return
        if plain:
            super().data_received(plain)
        if tls.has_ended:
            self._close()

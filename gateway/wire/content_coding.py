"""Content codings of HTTP bodies (RFC 9110, 8.4.1): decompresses bodies that a server compressed although the request forbade it.

Used by `http1_client` and `egress.bounded_transport`.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator

from gateway.errors import Malformed, TooLarge
from gateway.wire.message_sizes import too_large

PIECE_BYTES = 262_144
"""Maximum bytes that `Decompressor.pieces` yields at once, so that a compression bomb is noticed before much of it is in memory."""

_CODINGS = ("gzip", "x-gzip", "deflate")
_ZLIB_OR_GZIP = 47
"""Value of zlib's `wbits` for the largest window and automatic detection of a zlib or gzip header."""


class CodingError(ValueError):
    """Raised if a body's content coding is unsupported or its data are corrupt.

    Its message has no subject, as in "has a corrupt content coding", so that callers can put "the body" before it.
    """


class Decompressor:
    """Decompresses the gzip or deflate body of one response while it arrives."""

    def __init__(self) -> None:
        self._inflater = zlib.decompressobj(wbits=_ZLIB_OR_GZIP)

    def pieces(self, data: bytes) -> Iterator[bytes]:
        """Decompress the next bytes of the body; yield pieces of at most `PIECE_BYTES`.

        Raises:
            CodingError: The data are corrupt.
        """
        try:
            while data and not self._inflater.eof:
                if piece := self._inflater.decompress(data, PIECE_BYTES):
                    yield piece
                data = self._inflater.unconsumed_tail
        except zlib.error:
            raise CodingError("has a corrupt content coding") from None


def decompressor_for(content_encoding: str) -> Decompressor | None:
    """Return the decompressor for a `Content-Encoding` header, or `None` if the body is not compressed.

    Raises:
        CodingError: The coding is unsupported.
    """
    coding = content_encoding.strip().lower()
    if coding in ("identity", ""):
        return None
    if coding not in _CODINGS:
        raise CodingError(f"has the content coding {coding[:40]!r}, which the request does not accept")
    return Decompressor()


def decompress(parts: list[bytes], content_encoding: bytes, *, server: str, max_bytes: int) -> list[bytes]:
    """Return the body of a response, decompressed according to its `Content-Encoding` header.

    `parts` is the whole body as it arrived; the result, too, is a list of consecutive parts. `server` is the name of the server for
    error texts.

    Raises:
        Malformed: The coding is unsupported, or the data are corrupt.
        TooLarge: The decompressed body exceeds `max_bytes`.
    """
    try:
        decompressor = decompressor_for(content_encoding.decode("latin-1"))
        if decompressor is None:
            return parts
        pieces: list[bytes] = []
        size = 0
        for part in parts:
            for piece in decompressor.pieces(part):
                pieces.append(piece)
                size += len(piece)
                if size > max_bytes:
                    raise TooLarge(too_large(max_bytes), server=server)
    except CodingError as error:
        raise Malformed(f"the body {error}", server=server) from None
    return pieces

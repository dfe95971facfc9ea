"""What takes off the coding that a server put on its answer although none was asked for."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator, Mapping

from gateway.protocol import PARSE_ERROR, RpcError
from gateway.upstream.standins import TOO_LARGE, too_large

PIECE_BYTES = 1_048_576
"""What little unfolds into much is given in such pieces, so that nobody has to hold it to see that it is too much."""


def uncoding(headers: Mapping[bytes, bytes], limit: int) -> Callable[[bytes], Iterator[bytes]] | None:
    """For one answer with these headers, part by part, each of at most `limit` bytes then; `None` where there is nothing to take off.

    It raises `RpcError` where it cannot.
    """
    coding = headers.get(b"content-encoding", b"").strip().lower()
    if coding in (b"identity", b""):
        return None
    if coding not in (b"gzip", b"x-gzip", b"deflate"):
        return _refuse
    inflater = zlib.decompressobj(wbits=47 if coding != b"deflate" else 15)

    def inflate(part: bytes) -> Iterator[bytes]:
        size = 0
        while part:
            try:
                piece = inflater.decompress(part, PIECE_BYTES)
            except zlib.error:
                raise RpcError(PARSE_ERROR, "Failed to parse JSON response: its coding is broken") from None
            part, size = inflater.unconsumed_tail, size + len(piece)
            if size > limit:
                raise RpcError(TOO_LARGE, too_large(limit))
            yield piece

    return inflate


def _refuse(part: bytes) -> Iterator[bytes]:
    raise RpcError(PARSE_ERROR, "Failed to parse JSON response: its coding was not asked for")

"""`ObjectResults`: stores results of calls that were too large to return as a whole, in object storage, until they expire.

There is one object per result, written with one request. All gateways that use the bucket and prefix see the same results.

Decided: the bucket is the only record of the results. Sizes and ages for the limit per owner come from a listing of the owner's folder, and
the metadata is at the start of the object. Because: a listing shows every completed write, so all gateways see the same sum, and no second
record can differ from the bucket after a crash. Instead of: a table in the database, which not every gateway has. Revisit when: listing
takes longer than writing.
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import hmac
import logging
import re
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar, cast

import anyio
import anyio.to_thread

from gateway.errors import StorageError
from gateway.json_types import JsonObject
from gateway.storage.object_bucket import PROBE_FOLDER, Bucket, BucketPlace
from gateway.storage.result_store import RESULT_ID, KeptResult, from_line, new_result, owner_folder, to_evict, to_line, unknown

logger = logging.getLogger(__name__)

MIN_PIECE_BYTES = 1 << 20
"""Minimum bytes of the pieces of a result that have separate digests, so that a page can be verified without reading the whole result."""

MAX_PIECES = 64
"""Maximum number of pieces of a result. Larger results have larger pieces."""

MAX_LINE_BYTES = 8_192
"""Maximum size in bytes of the metadata line of an object, with the digests of its pieces."""

SWEEP_SECONDS = 300.0
"""Maximum seconds between two deletions of expired results. Each lists the whole prefix. An expired result is not readable before."""

_WORKERS = 4
"""Maximum number of results that are written or read concurrently, because each may occupy tens of megabytes of memory."""

_NAME = re.compile(rf"(?:[0-9a-f]{{32}}|{PROBE_FOLDER})/[A-Za-z0-9_-]{{22}}\Z")
"""Pattern of the names of objects that this store writes. It deletes no others."""

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class _Opened:
    """The metadata of a stored result, with the places and digests of its pieces."""

    kept: KeptResult
    name: str
    offset: int
    """Position of the first byte of the result in the object, in bytes."""
    piece_bytes: int
    digests: Sequence[str]


class ObjectResults:
    """Implementation of `ResultStore` with one object per result in a bucket of an object storage."""

    def __init__(
        self, place: BucketPlace, *, ttl_seconds: float, max_bytes_per_owner: int, clock: Callable[[], float] = time.time
    ) -> None:
        """Store the settings. The first operation imports the client library.

        Results expire after `ttl_seconds`. `clock` returns wall time, which is compared with the times of the objects.
        """
        self._bucket = Bucket(place)
        self.ttl_seconds = ttl_seconds
        self._max_bytes = max_bytes_per_owner
        self._clock = clock
        self._limiter = anyio.CapacityLimiter(_WORKERS)

    @property
    def settings(self) -> JsonObject:
        """The settings from which another process can create a store with the same results. They contain secrets."""
        place = self._bucket.place.to_settings()
        return {"place": place, "ttl_seconds": self.ttl_seconds, "max_bytes_per_owner": self._max_bytes}

    async def check(self) -> None:
        """Check whether objects can be written, read, listed and deleted. Raises `StorageError` within seconds if they cannot."""
        await self._bucket.check()

    async def work(self, job: Callable[[], T]) -> T:
        """Run a blocking method of this store in a worker thread; at most `_WORKERS` run at once."""
        return await anyio.to_thread.run_sync(job, limiter=self._limiter)

    # -- blocking: call these with `work` ----------------------------------------------------------------------

    def keep(self, owner: str, *body: bytes, mime_type: str, origin: str) -> KeptResult:
        """Store a result as an object. See `ResultStore.keep`.

        If the owner's results cannot be listed, so that the limit cannot be enforced, the new result is deleted again.
        """
        size = sum(map(len, body))
        kept = new_result(size, mime_type=mime_type, origin=origin, max_bytes=self._max_bytes)
        piece = max(MIN_PIECE_BYTES, -(-size // MAX_PIECES))
        line = to_line(kept, {"piece": piece, "digests": _digests(body, piece)})
        folder = owner_folder(owner)
        self._bucket.put(f"{folder}/{kept.id}", [line, *filter(None, body)])
        try:
            self._make_room(folder, kept.id)
        except StorageError:
            with contextlib.suppress(StorageError):
                self._bucket.delete([f"{folder}/{kept.id}"])
            raise
        return kept

    def find(self, owner: str, result_id: str) -> KeptResult:
        """Return the metadata of the stored result with this id. See `ResultStore.find`."""
        return self._open(owner, result_id).kept

    def slice(self, owner: str, result_id: str, start: int, length: int) -> bytes:
        """Return `length` bytes of a stored result, beginning at `start`. See `ResultStore.slice`.

        The pieces that contain these bytes are compared with their digests. A result with a changed piece is unknown.
        """
        return self._read(self._open(owner, result_id), start, length)

    def body(self, owner: str, result_id: str) -> bytes:
        """Return all bytes of a stored result. See `ResultStore.body`."""
        opened = self._open(owner, result_id)
        return self._read(opened, 0, opened.kept.size)

    def sweep(self) -> None:
        """Delete expired results. Several processes may do this at once. Raises `StorageError`."""
        for portion in self._bucket.list():
            self._bucket.delete([item.name for item in portion if _NAME.match(item.name) and self._is_expired(item.modified)])

    async def sweep_forever(self) -> None:
        """Delete expired results periodically, until cancelled. `Bucket` logs failures."""
        while True:
            with contextlib.suppress(StorageError):
                await self.work(self.sweep)
            await anyio.sleep(min(SWEEP_SECONDS, self.ttl_seconds / 2))

    def _open(self, owner: str, result_id: str) -> _Opened:
        if not RESULT_ID.match(result_id):
            raise unknown(result_id)
        name = f"{owner_folder(owner)}/{result_id}"
        head = self._bucket.read(name, 0, MAX_LINE_BYTES)
        if head is None or self._is_expired(head.modified):
            raise unknown(result_id)
        line = head.data[: head.data.find(b"\n") + 1]
        kept, facts = from_line(result_id, line, head.size - len(line))
        piece, digests = facts.get("piece"), facts.get("digests")
        if not isinstance(piece, int) or piece < 1 or not isinstance(digests, list):
            raise unknown(result_id)
        return _Opened(kept, name, len(line), piece, cast("list[str]", digests))

    def _read(self, opened: _Opened, start: int, length: int) -> bytes:
        kept, piece = opened.kept, opened.piece_bytes
        end = min(start + length, kept.size)
        if end <= start:
            return b""
        first, last = start // piece, (end - 1) // piece
        begin = first * piece
        wanted = min((last + 1) * piece, kept.size) - begin
        found = self._bucket.read(opened.name, opened.offset + begin, wanted)
        if found is None:  # deleted since it was opened
            raise unknown(kept.id)
        if len(found.data) != wanted or not _match(found.data, piece, opened.digests[first : last + 1]):
            logger.warning("stored result changed in the object storage name=%s", opened.name)
            raise unknown(kept.id)
        return found.data[start - begin : end - begin]

    def _is_expired(self, modified: float) -> bool:
        return self._clock() - modified >= self.ttl_seconds

    def _make_room(self, folder: str, newest: str) -> None:
        found = [item for portion in self._bucket.list(folder) for item in portion if _NAME.match(item.name)]
        found.sort(key=lambda item: item.modified)
        sizes = [(item.name, item.size) for item in found]
        self._bucket.delete(to_evict(sizes, f"{folder}/{newest}", self._max_bytes))


def _digests(body: Sequence[bytes], piece_bytes: int) -> list[str]:
    """Return the SHA-256 digests, in Base64, of the pieces of `piece_bytes` bytes into which the joined parts of `body` are divided."""
    digests: list[str] = []
    digest, room = hashlib.sha256(), piece_bytes
    for part in body:
        rest = memoryview(part)
        while rest:
            digest.update(rest[:room])
            taken = min(room, len(rest))
            rest, room = rest[taken:], room - taken
            if not room:
                digests.append(_text(digest.digest()))
                digest, room = hashlib.sha256(), piece_bytes
    return digests if room == piece_bytes else [*digests, _text(digest.digest())]


def _match(data: bytes, piece_bytes: int, digests: Sequence[str]) -> bool:
    found = _digests([data], piece_bytes)
    return len(found) == len(digests) and all(hmac.compare_digest(one, str(other)) for one, other in zip(found, digests, strict=True))


def _text(digest: bytes) -> str:
    return base64.b64encode(digest).decode()

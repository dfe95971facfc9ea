"""`ResultStore`: the interface of stores for results of calls that were too large to return as a whole. They are stored until they expire.

`result_folder` stores them as files in the state folder, and `result_objects` in a bucket of an object storage, which gateways on several
machines can share. A stored result is a line of JSON metadata, then the bytes. Its name consists of a digest of its owner's id and of a
random id, so that another principal cannot find the result. `gate.results` decides which results are stored, and what the caller receives
instead.
"""

from __future__ import annotations

import hashlib
import json
import re
import secrets
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar, cast

from gateway.errors import NotFound, TooLargeToKeep
from gateway.json_types import JsonObject

RESULT_SCHEME = "moongate://results/"
"""Prefix of the resource URI of a stored result; the id of the result follows."""

MIN_RESULT_COST = 4_096
"""Minimum size in bytes that each stored result counts towards its owner's limit, because even a small file occupies this space on disk.

The minimum also limits the number of results.
"""

MAX_SWEEP_SECONDS = 60.0
"""Maximum seconds between two deletions of expired results."""

RESULT_ID = re.compile(r"[A-Za-z0-9_-]{22}\Z")
"""Pattern of the random id of a stored result."""

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class KeptResult:
    """Metadata of a stored result of a call, which was too large to return as a whole. The content is not included."""

    id: str
    mime_type: str
    size: int
    """Size of the stored result in bytes."""
    origin: str
    """Exposed name of the tool or prompt, or URI of the resource, that produced the result."""

    @property
    def uri(self) -> str:
        """The URI by which clients read the stored result as a resource."""
        return RESULT_SCHEME + self.id


class ResultStore(Protocol):
    """Stores large results of calls, by owner (a principal's id), and deletes them when they expire.

    Run `sweep_forever` while the store is used. Call the blocking methods (`keep`, `find`, `slice`, `body`) with `work`.
    """

    @property
    def ttl_seconds(self) -> float:
        """Seconds after which a stored result expires."""
        ...

    @property
    def settings(self) -> JsonObject:
        """The settings from which another process can create a store with the same results (`open_results`). They may contain secrets."""
        ...

    async def check(self) -> None:
        """Check whether results can be stored. Raises `StorageError`."""
        ...

    async def work(self, job: Callable[[], T]) -> T:
        """Run a blocking method of this store in a worker thread; the store limits how many run at once."""
        ...

    def keep(self, owner: str, *body: bytes, mime_type: str, origin: str) -> KeptResult:
        """Store a result, given in parts, for the principal with the id `owner`, and return its metadata.

        If the owner's results exceed the limit, the oldest are deleted.

        Raises:
            TooLargeToKeep: The result alone exceeds the limit per owner.
            StorageError: The result cannot be written.
        """
        ...

    def find(self, owner: str, result_id: str) -> KeptResult:
        """Return the metadata of the stored result with this id.

        Raises:
            NotFound: The result is unknown, expired, or belongs to another owner.
            StorageError: The store does not work.
        """
        ...

    def slice(self, owner: str, result_id: str, start: int, length: int) -> bytes:
        """Return `length` bytes of a stored result, beginning at `start`, or fewer at the end of the result. Raises as `find` does."""
        ...

    def body(self, owner: str, result_id: str) -> bytes:
        """Return all bytes of a stored result. Raises as `find` does."""
        ...

    async def sweep_forever(self) -> None:
        """Delete expired results periodically, until cancelled. Several processes may do this at once."""
        ...


def new_result(size: int, *, mime_type: str, origin: str, max_bytes: int) -> KeptResult:
    """Return the metadata of a new result with a random id. `size` is its size, and `max_bytes` the limit per owner, both in bytes.

    Texts that a server or client chose are cut, so that the line of metadata is short.

    Raises:
        TooLargeToKeep: The result alone exceeds the limit per owner.
    """
    if size > max_bytes:
        raise TooLargeToKeep(f"The result exceeds the {max_bytes} bytes that `storage.maxResultBytesPerCaller` allows.")
    return KeptResult(secrets.token_urlsafe(16), mime_type[:200], size, origin[:400])


def to_line(kept: KeptResult, more: JsonObject | None = None) -> bytes:
    """Return the line of JSON metadata that precedes the bytes of a stored result. `more` are further members of the JSON object."""
    facts = {"version": 1, "mime_type": kept.mime_type, "size": kept.size, "origin": kept.origin, **(more or {})}
    return json.dumps(facts, ensure_ascii=False).encode(errors="replace") + b"\n"


def from_line(result_id: str, line: bytes, size: int) -> tuple[KeptResult, JsonObject]:
    """Parse the line of metadata of a stored result. Return the metadata, and the JSON object of the line.

    `size` is the number of bytes that are stored after the line.

    Raises:
        NotFound: The line is damaged, or does not belong to a result of this size.
    """
    try:
        facts = cast("JsonObject", json.loads(line))
        kept = KeptResult(result_id, str(facts["mime_type"]), int(facts["size"]), str(facts["origin"]))
    except (ValueError, KeyError, TypeError):
        raise unknown(result_id) from None
    if size != kept.size:
        raise unknown(result_id)
    return kept, facts


def owner_folder(owner: str) -> str:
    """Return the name of the folder with the results of a principal, a digest of its id."""
    return hashlib.sha256(owner.encode("utf-8", "surrogatepass")).hexdigest()[:32]


def to_evict(results: Sequence[tuple[str, int]], newest: str, max_bytes: int) -> list[str]:
    """Return the names of the results of one owner that must be deleted, so that the others fit in `max_bytes`.

    `results` are the name and size of each result, oldest first. The result `newest` is never deleted.
    """
    total = sum(max(MIN_RESULT_COST, size) for _, size in results)
    evicted: list[str] = []
    for name, size in results:
        if total <= max_bytes:
            break
        if name != newest:
            total -= max(MIN_RESULT_COST, size)
            evicted.append(name)
    return evicted


def unknown(result_id: str) -> NotFound:
    """Return the error for a result that is unknown, expired, damaged, or belongs to another owner."""
    return NotFound("result", result_id[:100], f"Unknown result: {result_id[:100]!r}. It may have expired or been deleted to make room.")

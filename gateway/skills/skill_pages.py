"""Builds pages of `skills/list` and `resources/directory/read` (SEP-2640) and their cursors, for `extension` and `catalog.skill_catalog`.

It imports neither the index of skills nor YAML, so that a gateway without skills starts without them.
"""

from __future__ import annotations

import base64
import binascii
from bisect import bisect_right
from collections.abc import Sequence

from gateway.errors import NotFound
from gateway.json_types import JsonMapping, JsonObject
from gateway.tools.base import cacheable

PAGE_SIZE = 100
"""Entries per page of `skills/list` and `resources/directory/read`. A page of 100 published skills has about 82 KB."""

TTL_MS = 60_000
"""`ttlMs` of all results: milliseconds for which a client may cache them. Clients are notified of changes, and notice an outdated digest
when they read the file."""

FOLDER = "inode/directory"
"""MIME type that stands for a folder in listings (SEP-2640)."""


def page_after(cursor: str | None, key: str, items: Sequence[tuple[str, JsonMapping]], limit: int = PAGE_SIZE) -> JsonObject:
    """Return one page of a result: under `key` at most `limit` of the `items` after the cursor, and `nextCursor` if more follow.

    `items` are pairs of URI and list entry, sorted by URI. The cursor encodes the last URI of the page before; `None` is the first page.
    Every cursor that can be decoded is accepted, even if no item has its URI.

    Raises:
        NotFound: The cursor cannot be decoded (kind `cursor`).
    """
    uris = [uri for uri, _ in items]
    start = bisect_right(uris, decode_cursor(cursor)) if cursor else 0
    result = cacheable({key: [dict(item) for _, item in items[start : start + limit]]}, TTL_MS)
    if start + limit < len(items):
        result["nextCursor"] = encode_cursor(uris[start + limit - 1])
    return result


def encode_cursor(text: str) -> str:
    """Return the cursor that `decode_cursor` converts back to `text`."""
    return base64.urlsafe_b64encode(text.encode()).decode().rstrip("=")


def decode_cursor(cursor: str) -> str:
    """Return the text that `encode_cursor` encoded. Raises `NotFound` with the kind `cursor` if the cursor is invalid."""
    try:
        return base64.b64decode(cursor + "=" * (-len(cursor) % 4), altchars=b"-_", validate=True).decode()
    except (binascii.Error, ValueError):
        raise NotFound("cursor", cursor) from None

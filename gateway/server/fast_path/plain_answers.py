"""`PlainAnswers`: answers `server/discover` and listing requests of 2025 and 2026 clients without the MCP SDK.

The responses equal those of the SDK. Unusual and invalid requests are left to the SDK path. Encoded pages are cached for as long as the
listing stays the same, and shared by callers that see the same entries.
"""

from __future__ import annotations

import secrets
from collections import OrderedDict
from collections.abc import Sequence, Set
from dataclasses import dataclass
from typing import Protocol, cast

import anyio
from pydantic_core import from_json, to_json

from gateway.auth.principal import LOCAL, Principal
from gateway.catalog import Catalog
from gateway.catalog.disclosure import scope_of
from gateway.json_types import JsonMapping, JsonObject, JsonValue
from gateway.policy.metadata import via_of
from gateway.protocol import SERVER_INFO_META_KEY, RpcError
from gateway.server.calls import add_server_info
from gateway.server.envelopes import ENVELOPE, is_plain_meta
from gateway.server.fast_path.plain_entries import plain_entry
from gateway.server.listings import LISTINGS, WIRE_KEY, Listed, ListingRequest, Listings
from gateway.wire.jsonrpc import has_nan
from gateway.wire.rpc_envelope import RESULT, plain_members

DISCOVER = "server/discover"

METHODS = frozenset({DISCOVER, *LISTINGS})
"""MCP methods, besides `tools/call`, that can be answered without the MCP SDK: all of them for 2026 clients, only the listing methods for
2025 clients."""

MAX_PAGES = 64
"""Maximum number of encoded pages of listings that are cached. The least recently used page is dropped first."""

WAIT_SECONDS = 10.0
"""Seconds that a listing request waits for starting sources (servers and other providers of entries). The request is then passed to the MCP
SDK, which keeps the connection alive during longer waits."""


class AnswerParts(Protocol):
    """The part of `GatewayServer`'s interface that is needed to answer `server/discover` and listing requests."""

    catalog: Catalog
    lists: Listings
    identity: JsonObject

    def discovery(self, principal: Principal) -> JsonObject:
        """Return the result of `server/discover` for a caller."""
        ...


@dataclass(frozen=True, slots=True)
class PlainRequest:
    """A valid `server/discover` or listing request that needs no MCP SDK: it has no parameter except a cursor.

    Its `_meta` requests no feature, such as progress.
    """

    number: int | str
    method: str
    via: tuple[str, ...]
    cursor: str | None

    def frame(self, result: bytes) -> bytes:
        """Return the encoded JSON-RPC response to this request. `result` is the encoded result."""
        return RESULT % (to_json(self.number), result)


def plain_request(message: JsonMapping) -> PlainRequest | None:
    """Parse a `server/discover` or listing request of a 2026 client; `None` for any other message, or if the request needs the SDK.

    The keys of `_meta` that describe the client are not validated.
    """
    return _parse(message, METHODS, is_modern=True)


def session_request(message: JsonMapping) -> PlainRequest | None:
    """Parse a listing request of a 2025 session; `None` for any other message, or if the request needs the MCP SDK."""
    return _parse(message, LISTINGS.keys(), is_modern=False)


def _parse(message: JsonMapping, methods: Set[str], *, is_modern: bool) -> PlainRequest | None:
    members = plain_members(message)
    if members is None or members[1] not in methods:
        return None
    number, method, fields = members
    if not fields.keys() <= ({"_meta"} if method == DISCOVER else {"_meta", "cursor"}):
        return None
    cursor, meta = fields.get("cursor"), fields.get("_meta", None if is_modern else {})
    if not isinstance(cursor, str | None) or (cursor is None and "cursor" in fields) or not isinstance(meta, dict):
        return None
    options = cast("JsonMapping", meta)
    if not is_modern and _is_token(options.get("progressToken")):  # listings report no progress
        options = {key: value for key, value in options.items() if key != "progressToken"}
    if not is_plain_meta(options) or not (is_modern or options.keys().isdisjoint(ENVELOPE)):
        return None
    return PlainRequest(number, method, via_of(options), cursor)


def _is_token(value: JsonValue) -> bool:
    """Whether `value` is a progress token. Listing requests ignore it, because some clients send a token with every request."""
    return isinstance(value, str | int) and not isinstance(value, bool)


class PlainAnswers:
    """Answers `server/discover` and listing requests without the MCP SDK, and caches the encoded pages of the listings."""

    def __init__(self, parts: AnswerParts) -> None:
        self._parts = parts
        self._pages: OrderedDict[tuple[object, ...], tuple[object, bytes]] = OrderedDict()

    async def answer(self, request: PlainRequest, principal: Principal) -> bytes | None:
        """Return the encoded response to a listing or `server/discover` request of a 2026 client; `None` if the MCP SDK must answer."""
        if request.method == DISCOVER:
            result = _encoded(self._parts.discovery(principal), self._parts.identity)
        else:
            result = await self._page(request, principal, None)
        return None if result is None else request.frame(result)

    async def answer_in_session(
        self, request: PlainRequest, principal: Principal, session_id: str, *, is_resumable: bool = False
    ) -> bytes | None:
        """Return the encoded response to a listing request of the 2025 session `session_id`; `None` if the MCP SDK must answer.

        The listing contains on-demand tools only if the session has loaded them. With `is_resumable`, a listing that has tools with task
        support is left to the SDK, whose streamed response the client can resume.
        """
        result = await self._page(request, principal, session_id, is_resumable=is_resumable)
        return None if result is None else request.frame(result)

    async def whole_lists(self) -> dict[str, str]:
        """Return the result of each listing method for a new 2025 session of the local user, as JSON text by method.

        The results are stored, and answer a client at the next start, while the gateway is still starting. A listing that has more than one
        page, or that only the MCP SDK can encode, is left out.
        """
        found: dict[str, str] = {}
        for method in LISTINGS:
            page = await self._page(PlainRequest("", method, (), None), LOCAL, secrets.token_hex(8))
            if page is not None and "nextCursor" not in from_json(page):
                found[method] = page.decode()
        return found

    async def _page(
        self, request: PlainRequest, principal: Principal, session_id: str | None, *, is_resumable: bool = False
    ) -> bytes | None:
        """Return the encoded result of a listing request, from the cache if possible; `None` if the MCP SDK must answer.

        `session_id` is the 2025 session of the request; `None` for a request of protocol version 2026-07-28.
        """
        catalog = self._parts.catalog
        is_loop = self._parts.lists.is_loop(request.via)
        with anyio.move_on_after(WAIT_SECONDS) as waiting:
            if not is_loop:
                await catalog.ready()
        if waiting.cancelled_caught:
            return None
        kind = LISTINGS[request.method]
        whole = catalog.wire_tools() if kind == "tools" else catalog.wire(kind)
        is_own = kind == "tools" and catalog.disclosure is not None and bool(catalog.disclosure.names)
        is_modern = session_id is None
        rights = None if principal.rights is None else principal.rights.key
        key = (kind, rights, catalog.reviews(principal), bool(request.via), is_loop, request.cursor, is_modern, is_resumable)
        kept = None if is_own else self._pages.get(key)
        if kept is not None and kept[0] is whole:
            self._pages.move_to_end(key)
            return kept[1]
        scope = scope_of(session_id, principal.id)
        listing = ListingRequest(principal, scope, is_modern=is_modern, via=request.via, cursor=request.cursor)
        try:
            page = await self._parts.lists.page(request.method, listing)
        except RpcError:
            return None
        plain = _plain_page(page, kind, is_modern=is_modern, is_resumable=is_resumable)
        encoded = None if plain is None else _encoded(plain, self._parts.identity if is_modern else None)
        if encoded is not None and not is_own:
            self._pages[key] = whole, encoded
            if len(self._pages) > MAX_PAGES:
                self._pages.popitem(last=False)
        return encoded


def _plain_page(page: JsonObject, kind: Listed, *, is_modern: bool, is_resumable: bool) -> JsonObject | None:
    """Return a page of a listing, and remove the keys of its entries (tools, resources or prompts) that the protocol does not define.

    Return `None` if an entry must be validated by the MCP SDK's models, or with `is_resumable` if a tool supports tasks.
    """
    key = WIRE_KEY[kind]
    listed = cast("Sequence[JsonObject]", page[key])
    if is_resumable and any("execution" in entry for entry in listed):
        return None
    entries = [plain_entry(kind, entry, is_modern=is_modern) for entry in listed]
    return None if None in entries else {**page, key: entries}


def _encoded(result: JsonMapping, identity: JsonMapping | None) -> bytes | None:
    """Encode a result as JSON. `identity`, the gateway's name and version, is added to `_meta` if given.

    Return `None` if the result cannot be encoded as valid JSON.
    """
    stamped = dict(result) if identity is None else add_server_info(dict(result), {SERVER_INFO_META_KEY: identity})
    try:
        encoded = to_json(stamped)
    except (ValueError, TypeError, RecursionError):
        return None
    return None if has_nan(encoded, stamped) else encoded

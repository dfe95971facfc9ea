"""`PlainAnswers`: `server/discover` and the four listings for plain 2026 requests, without the SDK.

What is asked for in the plainest way is answered with what the SDK's path would send; all else, and every request that is not
valid, is left to it. A page is made once for callers that see the same, and its bytes kept while its list stays as it is.
"""

from __future__ import annotations

import secrets
from collections import OrderedDict
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass
from typing import TYPE_CHECKING, cast

import anyio
from pydantic_core import from_json, to_json

from gateway.auth.principal import LOCAL, Principal
from gateway.catalog.disclosure import scope_of
from gateway.json_types import JsonMapping, JsonObject, JsonValue
from gateway.policy.metadata import via_of
from gateway.protocol import MODERN_PROTOCOL_VERSIONS, SERVER_INFO_META_KEY, RpcError
from gateway.server.envelopes import ENVELOPE, is_plain_meta
from gateway.server.lists import LISTINGS, WIRE_KEY, Asking, Listed
from gateway.server.plain_entries import plain_entry
from gateway.upstream.exchange import has_odd_number

if TYPE_CHECKING:
    from gateway.server.build import GatewayServer

DISCOVER = "server/discover"

METHODS = frozenset({DISCOVER, *LISTINGS})
"""What is answered here."""

MAX_PAGES = 64
"""Encoded pages kept; the one used longest ago goes first."""

WAIT_SECONDS = 10.0
"""A listing may wait for sources that are starting; after this the SDK's path waits on, which keeps the connection alive."""

_REQUEST = frozenset({"jsonrpc", "id", "method", "params"})
_CHANGES = {"listChanged": True}
_CAPABILITIES: JsonMapping = {
    "completions": {},
    "logging": {},
    "prompts": dict(_CHANGES),
    "resources": {**_CHANGES, "subscribe": True},
    "tools": dict(_CHANGES),
}
"""What the SDK derives from the methods that are bound (`sdk_server`); a test compares."""


@dataclass(frozen=True, slots=True)
class Question:
    """A plain request."""

    number: int | str
    method: str
    via: tuple[str, ...]
    cursor: str | None

    def frame(self, result: bytes) -> bytes:
        """The message that answers it."""
        return b'{"jsonrpc":"2.0","id":%s,"result":%s}' % (to_json(self.number), result)


def plain_question(message: JsonMapping) -> Question | None:
    """A valid request for what is answered here that asks for nothing else; its client's declaration is not looked at."""
    return _question(message, METHODS, is_modern=True)


def session_question(message: JsonMapping) -> Question | None:
    """A valid request for a listing in a 2025 session that asks for nothing else."""
    return _question(message, LISTINGS.keys(), is_modern=False)


def _question(message: JsonMapping, methods: Set[str], *, is_modern: bool) -> Question | None:
    number, method, params = message.get("id"), message.get("method"), message.get("params", {})
    if not message.keys() <= _REQUEST or message.get("jsonrpc") != "2.0" or not isinstance(method, str) or method not in methods:
        return None
    if isinstance(number, bool) or not isinstance(number, int | str) or not isinstance(params, dict):
        return None
    fields = cast("JsonMapping", params)
    if not fields.keys() <= ({"_meta"} if method == DISCOVER else {"_meta", "cursor"}):
        return None
    cursor, meta = fields.get("cursor"), fields.get("_meta", None if is_modern else {})
    if not isinstance(cursor, str | None) or (cursor is None and "cursor" in fields) or not isinstance(meta, dict):
        return None
    wishes = cast("JsonMapping", meta)
    if not is_modern and _is_token(wishes.get("progressToken")):  # listings report no progress
        wishes = {key: value for key, value in wishes.items() if key != "progressToken"}
    if not is_plain_meta(wishes) or not (is_modern or wishes.keys().isdisjoint(ENVELOPE)):
        return None
    return Question(number, method, via_of(wishes), cursor)


def _is_token(value: JsonValue) -> bool:
    """Whether `value` is a progress token. Some clients send one with every request."""
    return isinstance(value, str | int) and not isinstance(value, bool)


class PlainAnswers:
    """Answers of one server."""

    def __init__(self, server: GatewayServer) -> None:
        self._server = server
        self._pages: OrderedDict[tuple[object, ...], tuple[object, bytes]] = OrderedDict()

    async def answer(self, question: Question, principal: Principal) -> bytes | None:
        """The answering message; `None` where it is for the SDK's path to find."""
        if question.method == DISCOVER:
            result = _encoded(self._server.discovery(principal), self._server.identity)
        else:
            result = await self._page(question, principal, None)
        return None if result is None else question.frame(result)

    async def answer_in_session(
        self, question: Question, principal: Principal, session_id: str, *, is_resumable: bool = False
    ) -> bytes | None:
        """The same for a `session_question`; `session_id` is whose loaded tools are shown.

        With `is_resumable` the client could resume a streamed answer, so a listing of tools that can be tasks is for the SDK path, which
        streams it.
        """
        result = await self._page(question, principal, session_id, is_resumable=is_resumable)
        return None if result is None else question.frame(result)

    async def whole_lists(self) -> dict[str, str]:
        """Return the listings that a new 2025 session of the local user gets in one page, by method, as JSON texts."""
        found: dict[str, str] = {}
        for method in LISTINGS:
            page = await self._page(Question("", method, (), None), LOCAL, secrets.token_hex(8))
            if page is not None and "nextCursor" not in from_json(page):
                found[method] = page.decode()
        return found

    async def _page(
        self, question: Question, principal: Principal, session_id: str | None, *, is_resumable: bool = False
    ) -> bytes | None:
        """A page, of 2026 unless it is for a session."""
        catalog = self._server.catalog
        is_loop = self._server.lists.is_loop(question.via)
        with anyio.move_on_after(WAIT_SECONDS) as waiting:
            if not is_loop:
                await catalog.ready()
        if waiting.cancelled_caught:
            return None
        kind = LISTINGS[question.method]
        whole = catalog.wire_tools() if kind == "tools" else catalog.wire(kind)
        is_own = kind == "tools" and catalog.disclosure is not None and bool(catalog.disclosure.names)
        is_modern = session_id is None
        key = (kind, principal.scopes, catalog.reviews(principal), bool(question.via), is_loop, question.cursor, is_modern, is_resumable)
        kept = None if is_own else self._pages.get(key)
        if kept is not None and kept[0] is whole:
            self._pages.move_to_end(key)
            return kept[1]
        scope = scope_of(session_id, principal.id)
        asking = Asking(principal, scope, is_modern=is_modern, via=question.via, cursor=question.cursor)
        try:
            page = await self._server.lists.page(question.method, asking)
        except RpcError:
            return None
        sieved = _sieved(page, kind, is_modern=is_modern, is_resumable=is_resumable)
        encoded = None if sieved is None else _encoded(sieved, self._server.identity if is_modern else None)
        if encoded is not None and not is_own:
            self._pages[key] = whole, encoded
            if len(self._pages) > MAX_PAGES:
                self._pages.popitem(last=False)
        return encoded


def _sieved(page: JsonObject, kind: Listed, *, is_modern: bool, is_resumable: bool) -> JsonObject | None:
    """The page with what the protocol has of its entries; `None` where one is for the SDK's models to judge."""
    key = WIRE_KEY[kind]
    listed = cast("Sequence[JsonObject]", page[key])
    if is_resumable and any("execution" in entry for entry in listed):
        return None
    entries = [plain_entry(kind, entry, is_modern=is_modern) for entry in listed]
    return None if None in entries else {**page, key: entries}


def _encoded(result: JsonMapping, identity: JsonMapping | None) -> bytes | None:
    """A result, with the stamp of this server in it; `None` where JSON cannot say it."""
    meta = cast("JsonMapping", result.get("_meta") or {})
    stamped: JsonObject = dict(result) if identity is None else {**result, "_meta": {**meta, SERVER_INFO_META_KEY: identity}}
    try:
        encoded = to_json(stamped)
    except (ValueError, TypeError, RecursionError):
        return None
    return None if has_odd_number(encoded, stamped) else encoded


def discovery(instructions: str, extensions: Mapping[str, JsonObject]) -> JsonObject:
    """The result of `server/discover`."""
    return {
        "resultType": "complete",
        "supportedVersions": list(MODERN_PROTOCOL_VERSIONS),
        "capabilities": {**_CAPABILITIES, "extensions": dict(extensions)} if extensions else dict(_CAPABILITIES),
        "instructions": instructions,
        "ttlMs": 0,
        "cacheScope": "private",
    }


def introduction(version: str, instructions: str, identity: JsonMapping) -> JsonObject:
    """The result of `initialize`."""
    tasks: JsonObject = {"cancel": {}, "list": {}, "requests": {"tools": {"call": {}}}}
    return {
        "capabilities": {**_CAPABILITIES, "tasks": tasks},
        "instructions": instructions,
        "protocolVersion": version,
        "serverInfo": dict(identity),
    }

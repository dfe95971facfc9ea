"""Reads a server's listings completely and turns listed tools into definitions.

Bounded in pages and entries; an entry that is no object or has no name is skipped and counted. Pure but for the
requests; `source` keeps the results.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Protocol, cast

from gateway.errors import UpstreamRefused
from gateway.json_types import JsonMapping, JsonObject, JsonValue
from gateway.policy.metadata import GATEWAY_KEY, VIA_KEY, listed_meta, peer_meta
from gateway.protocol import METHOD_NOT_FOUND
from gateway.tools.base import ChangeKind, Kind, TaskSupport, ToolDefinition
from gateway.upstream.hop import received_entries
from gateway.upstream.loops import Loops
from gateway.upstream.param_headers import marked_headers
from gateway.upstream.session import Envelope, Session

logger = logging.getLogger(__name__)

MAX_PAGES = 1_000
"""Pages read of one listing; a server that never ends one is cut off here."""

MAX_ENTRIES = 50_000
"""Entries kept of one listing."""

MAX_LISTING_CHARS = 67_108_864
"""Of a listing in several pages, as JSON; one page is bounded like every message."""

_METHODS = {
    "tools": ("tools/list", "tools", "name"),
    "resources": ("resources/list", "resources", "uri"),
    "templates": ("resources/templates/list", "resourceTemplates", "uriTemplate"),
    "prompts": ("prompts/list", "prompts", "name"),
}

KINDS_OF: Mapping[ChangeKind, tuple[str, ...]] = {
    "tools": ("tools",),
    "resources": ("resources", "templates"),
    "prompts": ("prompts",),
}
"""The listings that a notification of a change is about."""

_CAPABILITY_OF = {"tools": "tools", "resources": "resources", "templates": "resources", "prompts": "prompts"}
_KNOWN_TOOL_KEYS = frozenset({"name", "title", "description", "inputSchema", "outputSchema", "annotations"})


@dataclass(frozen=True, slots=True)
class Listed:
    """A listed tool: its definition, the HTTP headers its arguments are mirrored in (`x-mcp-header`), the metadata of its calls."""

    definition: ToolDefinition
    headers: dict[tuple[str, ...], str] = field(default_factory=lambda: cast("dict[tuple[str, ...], str]", {}))
    meta: JsonObject = field(default_factory=lambda: cast("JsonObject", {}))
    """Request `_meta` that goes with every call of it, over the caller's (requirements 3.A/15)."""


@dataclass(frozen=True, slots=True)
class Listing:
    """A complete listing."""

    entries: list[JsonObject]
    gateway: str = ""
    """The id of the server, if it is itself a Moongate gateway: then entries may come from this gateway."""


class Requester(Protocol):
    """What a listing is read from."""

    server: str

    async def request(self, method: str, params: JsonMapping, envelope: Envelope) -> JsonObject:
        """One request."""
        ...


async def list_kind(session: Session, what: str, loops: Loops) -> Listing:
    """Read one listing of a server, without the entries that came through this gateway, which `loops` notes."""
    if _CAPABILITY_OF[what] not in session.negotiated.capabilities:
        return Listing([])
    listing = await list_all(session, what, Envelope(meta={VIA_KEY: [loops.own_id]}))
    return replace(listing, entries=loops.drop(what, listing.entries, listing.gateway))


async def list_all(session: Requester, what: Kind | str, envelope: Envelope) -> Listing:
    """All entries of a listing, in the server's order. A server without the method has none."""
    method, key, name_key = _METHODS[what]
    entries: list[JsonObject] = []
    seen: set[JsonValue] = set()
    gateway = ""
    cursor: JsonValue = None
    chars = 0
    for _ in range(MAX_PAGES):
        params: JsonObject = {} if cursor is None else {"cursor": cursor}
        try:
            result = await session.request(method, params, envelope)
        except UpstreamRefused as error:
            if error.code == METHOD_NOT_FOUND and not entries:
                return Listing([])
            raise
        page = result.get(key)
        meta: JsonValue = result.get("_meta")
        if isinstance(meta, dict):
            gateway = str(peer_meta(cast("JsonMapping", meta)).get(GATEWAY_KEY, gateway))
        items = cast("list[JsonValue]", page) if isinstance(page, list) else []
        objects = [cast("JsonObject", item) for item in items if isinstance(item, dict)]
        entries += received_entries([entry for entry in objects if isinstance(entry.get(name_key), str)])
        cursor = result.get("nextCursor")
        if not isinstance(cursor, str) or cursor in seen:
            return Listing(entries, gateway)
        chars += len(json.dumps(page))
        if len(entries) > MAX_ENTRIES or chars > MAX_LISTING_CHARS:
            break
        seen.add(cursor)
    logger.warning("%s: %s is longer than the limit; %d entries kept", session.server, method, len(entries))
    return Listing(entries[:MAX_ENTRIES], gateway)


def to_listed(wire: JsonMapping, *, modern: bool, may_ask: bool, has_tasks: bool = False) -> Listed | None:
    """A listed tool as definition, or `None` where the spec says to drop it (invalid `x-mcp-header`).

    `has_tasks`: a modern server with the tasks extension, which may make a task of any call.
    """
    schema = wire.get("inputSchema")
    input_schema = cast("JsonObject", schema) if isinstance(schema, dict) else {"type": "object"}
    headers = marked_headers(input_schema) if modern else {}
    if headers is None:
        return None
    extra = {k: v for k, v in wire.items() if k not in _KNOWN_TOOL_KEYS}
    support = _task_support(extra.pop("execution", None))
    if not isinstance(extra.get("_meta", {}), dict):
        del extra["_meta"]
    output = wire.get("outputSchema")
    annotations = wire.get("annotations")
    return Listed(
        ToolDefinition(
            name=str(wire["name"]),
            title=_text(wire.get("title")),
            description=_text(wire.get("description")),
            input_schema=input_schema,
            output_schema=cast("JsonObject", output) if isinstance(output, dict) else None,
            annotations=cast("JsonObject", annotations) if isinstance(annotations, dict) else None,
            extra=extra,
            may_ask=may_ask,
            task=("optional" if has_tasks else "never") if modern else support,
            task_by=("server" if has_tasks else "nobody") if modern or support == "never" else "gateway",
        ),
        headers,
        listed_meta(extra.get("_meta")),
    )


def _task_support(execution: JsonValue) -> TaskSupport:
    """Only `required` takes the task path (requirements 3.C/56); a tool that may run plainly is called plainly."""
    support = cast("JsonMapping", execution).get("taskSupport") if isinstance(execution, dict) else None
    return "required" if support == "required" else "never"


def _text(value: JsonValue) -> str | None:
    return value if isinstance(value, str) else None

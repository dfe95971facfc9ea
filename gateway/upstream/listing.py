"""Reads the complete lists of a server's tools, resources, resource templates and prompts, and converts listed tools to definitions.

The numbers of pages and entries are limited. An entry that is not an object, or has no name (a resource: no URI), is skipped.
`server_lists` stores the results.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Protocol, cast

from gateway.errors import Rejected
from gateway.json_types import JsonMapping, JsonObject, JsonValue, as_object, members_of, objects_in
from gateway.policy.metadata import GATEWAY_KEY, VIA_KEY, listed_meta, peer_meta
from gateway.protocol import METHOD_NOT_FOUND
from gateway.tools.base import ChangeKind, Kind, TaskSupport, ToolDefinition
from gateway.upstream.gateway_chain import received
from gateway.upstream.gateway_loops import GatewayLoops
from gateway.upstream.param_headers import marked_headers
from gateway.upstream.server_session import Envelope, Session

logger = logging.getLogger(__name__)

MAX_PAGES = 1_000
"""Maximum number of pages of one list. Further pages are not read."""

MAX_ENTRIES = 50_000
"""Number of entries of one list after which no further page is read. If there is a further page, entries above this number are dropped."""

MAX_LISTING_CHARS = 67_108_864
"""Characters of JSON in the pages of one list after which no further page is read. One page has only the size limit of a message."""

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
"""Kind of a change notification → names of the lists to read again. `resources` covers resources and resource templates."""

_CAPABILITY_OF = {"tools": "tools", "resources": "resources", "templates": "resources", "prompts": "prompts"}
_KNOWN_TOOL_KEYS = frozenset({"name", "title", "description", "inputSchema", "outputSchema", "annotations"})


@dataclass(frozen=True, slots=True)
class Listed:
    """A tool that a server listed. Also has the HTTP headers that repeat arguments of calls (`x-mcp-header`), and the `_meta` for calls."""

    definition: ToolDefinition
    headers: dict[tuple[str, ...], str] = field(default_factory=lambda: cast("dict[tuple[str, ...], str]", {}))
    meta: JsonObject = field(default_factory=lambda: cast("JsonObject", {}))
    """`_meta` that is sent with every call of the tool. Its keys take precedence over those of the caller."""


@dataclass(frozen=True, slots=True)
class Listing:
    """All entries of one list of a server, for example of its tools."""

    entries: list[JsonObject]
    gateway: str = ""
    """The gateway id of the server if the server is a Moongate gateway, else empty. Its entries may then originate from this gateway."""


class Requester(Protocol):
    """The interface of a session with a server that `list_all` uses to send list requests."""

    server: str

    async def request(self, method: str, params: JsonMapping, envelope: Envelope) -> JsonObject:
        """Send one list request (such as `tools/list`), and return its result."""
        ...


async def list_kind(session: Session, what: str, loops: GatewayLoops) -> Listing:
    """Read one list of a server: `what` is `tools`, `resources`, `templates` or `prompts`.

    Entries that originate from this gateway are dropped and counted in `loops`. If the server does not declare the capability for this
    list, the list is empty.
    """
    if _CAPABILITY_OF[what] not in session.negotiated.capabilities:
        return Listing([])
    listing = await list_all(session, what, Envelope(meta={VIA_KEY: [loops.own_id]}))
    return replace(listing, entries=loops.drop(what, listing.entries, listing.gateway))


async def list_all(session: Requester, what: Kind | str, envelope: Envelope) -> Listing:
    """Read all pages of one list of a server, and return the entries in the server's order.

    The list is empty if the server does not support the method.
    """
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
        except Rejected as error:
            if error.code == METHOD_NOT_FOUND and not entries:
                return Listing([])
            raise
        page = result.get(key)
        meta: JsonValue = result.get("_meta")
        if isinstance(meta, dict):
            gateway = str(peer_meta(cast("JsonMapping", meta)).get(GATEWAY_KEY, gateway))
        entries += received([entry for entry in objects_in(page) if isinstance(entry.get(name_key), str)])
        cursor = result.get("nextCursor")
        if len(entries) <= MAX_ENTRIES and (not isinstance(cursor, str) or cursor in seen):
            return Listing(entries, gateway)
        chars += len(json.dumps(page))
        if len(entries) > MAX_ENTRIES or chars > MAX_LISTING_CHARS:
            break
        seen.add(cursor)
    logger.warning("listing exceeds the limit server=%s method=%s entries=%d", session.server, method, len(entries))
    return Listing(entries[:MAX_ENTRIES], gateway)


def to_listed(wire: JsonMapping, *, modern: bool, may_request_input: bool, has_tasks: bool = False) -> Listed | None:
    """Convert an entry of `tools/list`. Return `None` if the tool must be dropped because an `x-mcp-header` in its schema is invalid.

    `modern` is true for an MCP 2026 server. `may_request_input` (whether a call may request input) becomes part of the definition.
    `has_tasks` is true if the server supports the tasks extension of MCP 2026, with which it may run any call as a task.
    """
    schema = as_object(wire.get("inputSchema"))
    input_schema: JsonObject = {"type": "object"} if schema is None else schema
    headers = marked_headers(input_schema) if modern else {}
    if headers is None:
        return None
    extra = {k: v for k, v in wire.items() if k not in _KNOWN_TOOL_KEYS}
    execution = members_of(extra.pop("execution", None))
    # An MCP 2025 tool with optional task support is called without a task.
    support: TaskSupport = "required" if execution.get("taskSupport") == "required" else "never"
    if not isinstance(extra.get("_meta", {}), dict):
        del extra["_meta"]
    return Listed(
        ToolDefinition(
            name=str(wire["name"]),
            title=_text(wire.get("title")),
            description=_text(wire.get("description")),
            input_schema=input_schema,
            output_schema=as_object(wire.get("outputSchema")),
            annotations=as_object(wire.get("annotations")),
            extra=extra,
            may_request_input=may_request_input,
            task=("optional" if has_tasks else "never") if modern else support,
            task_by=("server" if has_tasks else "nobody") if modern or support == "never" else "gateway",
        ),
        headers,
        listed_meta(extra.get("_meta")),
    )


def _text(value: JsonValue) -> str | None:
    return value if isinstance(value, str) else None

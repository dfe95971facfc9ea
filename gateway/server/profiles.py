"""What single clients cannot take, as data: one table, looked up by what a client says of itself (house rule: client differences
are data). A claim decides only how a result is shaped, never what may be done."""

from __future__ import annotations

from dataclasses import dataclass
from typing import cast

from gateway.json_types import JsonMapping, JsonValue
from gateway.tools.base import Complete
from gateway.tools.context import ClientProfile

RESOURCE_LINKS_SINCE = "2025-06-18"
"""The protocol version that brought `resource_link`; older clients do not know the block."""


@dataclass(frozen=True, slots=True)
class ClientLimits:
    """What a client cannot take."""

    resource_links: bool = True
    """`False`: a `resource_link` makes it drop the whole result; it gets the link as text."""


_CAPABLE = ClientLimits()

CLIENTS: tuple[tuple[str, ClientLimits], ...] = (
    # "Unsupported response item type: resource_link": https://github.com/kirodotdev/Kiro/issues/7983, 8960, 9439
    ("kiro", ClientLimits(resource_links=False)),
)
"""Start of the client's name in lower case → its limits."""


def limits_of(client: ClientProfile) -> ClientLimits:
    """What this client cannot take."""
    name = client.name.lower()
    for start, limits in CLIENTS:
        if name.startswith(start):
            return limits
    if client.protocol_version and client.protocol_version < RESOURCE_LINKS_SINCE:
        return ClientLimits(resource_links=False)
    return _CAPABLE


def fit_outcome(outcome: Complete, client: ClientProfile) -> Complete:
    """The result of a call as this client can take it; the same object where nothing needs to change."""
    if limits_of(client).resource_links or not any(_is_link(block) for block in outcome.content):
        return outcome
    return Complete({**outcome.result, "content": [_inlined(block) for block in outcome.content]})


def _is_link(block: JsonValue) -> bool:
    return isinstance(block, dict) and cast("JsonMapping", block).get("type") == "resource_link"


def _inlined(block: JsonValue) -> JsonValue:
    if not _is_link(block):
        return block
    link = cast("JsonMapping", block)
    facts = [str(link[key]) for key in ("title", "description", "mimeType") if link.get(key)]
    text = f"Resource {link.get('name')}: {link.get('uri')}" + (f" ({'; '.join(facts)})" if facts else "")
    kept = {key: link[key] for key in ("annotations", "_meta") if key in link}
    return {"type": "text", "text": text, **kept}

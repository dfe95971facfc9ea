"""Adapts the result of a call to the content that its client supports. A table lists, by name, clients that do not support some content.

The name of a client never decides about the client's rights.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import cast

from gateway.json_types import JsonMapping, JsonValue
from gateway.tools.base import Complete
from gateway.tools.ports import ClientProfile

RESOURCE_LINKS_SINCE = "2025-06-18"
"""First protocol version in which a tool result may contain `resource_link` blocks."""


@dataclass(frozen=True, slots=True)
class ClientLimits:
    """Says which kinds of content blocks a client supports in tool results."""

    resource_links: bool = True
    """Whether the client can show a result with a `resource_link` block. If false, the block is sent as a text block."""


_CAPABLE = ClientLimits()

CLIENTS: tuple[tuple[str, ClientLimits], ...] = (
    # "Unsupported response item type: resource_link": https://github.com/kirodotdev/Kiro/issues/7983, 8960, 9439
    ("kiro", ClientLimits(resource_links=False)),
)
"""Clients with limited support for content: the start of the client's name in lower case, and the limits of clients with such a name."""


def limits_of(client: ClientProfile) -> ClientLimits:
    """Return which content blocks a client supports, according to its name and protocol version."""
    name = client.name.lower()
    for start, limits in CLIENTS:
        if name.startswith(start):
            return limits
    if client.protocol_version and client.protocol_version < RESOURCE_LINKS_SINCE:
        return ClientLimits(resource_links=False)
    return _CAPABLE


def fit_outcome(outcome: Complete, client: ClientProfile) -> Complete:
    """Return a call's result with only content that the client supports; return `outcome` itself if nothing needs to change.

    If the client does not support `resource_link` blocks, each of them becomes a text block with the same facts.
    """
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

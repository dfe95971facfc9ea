"""Decides whether a remote server's tools still have the accepted (pinned) definitions, and whether a changed tool is still served.

A pin is the digest of the parts of a tool's definition that a model or argument rules use. The functions are pure: `upstream.pins` reads
the file of pins, and `upstream.pinning` calls this module after every listing of a server's tools.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from gateway.json_types import JsonMapping, JsonObject

PINS_RULE = "pins"
"""Rule id in the rejection of a call whose tool is quarantined, because its definition differs from the accepted one."""

PinMode = Literal["quarantine", "warn", "off"]
PinChange = Literal["changed", "added", "removed"]

PINNED_KEYS = ("name", "title", "description", "inputSchema", "outputSchema", "annotations")
"""Members of a listed tool from which its pin is computed. Icons and `_meta` are left out, because no rule uses them."""


@dataclass(frozen=True, slots=True)
class PinFinding:
    """Says how a tool differs from its pin (the digest of the accepted definition), and whether the tool is still served."""

    change: PinChange
    is_served: bool
    """Whether the tool may still be listed and called; always false for a removed tool."""


def pinned_form(wire: JsonMapping) -> JsonObject:
    """Return the members of a listed tool from which its pin is computed, in a fixed order; members with `null` are left out."""
    return {key: wire[key] for key in PINNED_KEYS if wire.get(key) is not None}


def pin_digest(form: JsonMapping) -> str:
    """Return the pin of a tool: `sha256:` and the SHA-256 of canonical JSON (sorted keys, no spaces, ASCII with escapes).

    `form` contains the pinned members of the tool, from `pinned_form`.
    """
    text = json.dumps(form, sort_keys=True, separators=(",", ":"))
    return f"sha256:{hashlib.sha256(text.encode()).hexdigest()}"


def judge_pins(
    listed: Mapping[str, str], pinned: Mapping[str, str] | None, mode: PinMode, *, first_use: bool = False
) -> dict[str, PinFinding]:
    """Return the tools that differ from their pins (digests of accepted definitions): name of the tool at the server → finding.

    `listed` maps the tools that the server lists to digests of their current definitions, and `pinned` maps tools to their pins. Nothing
    differs if `pinned` is `None` (a server without pins) or `mode` is `off`. If `mode` is `warn`, differing tools are still served.

    Without `first_use`, new tools and tools that are no longer listed also differ. With `first_use`, a new tool is pinned when it is first
    listed, and a missing tool may come back.
    """
    if pinned is None or mode == "off":
        return {}
    served = mode == "warn"
    if first_use:
        changed = [name for name, digest in listed.items() if pinned.get(name, digest) != digest]
        return {name: PinFinding("changed", served) for name in changed}
    found = {
        name: PinFinding("changed" if name in pinned else "added", served) for name, digest in listed.items() if pinned.get(name) != digest
    }
    return found | {name: PinFinding("removed", False) for name in pinned if name not in listed}

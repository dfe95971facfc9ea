"""Pins: decides whether a remote tool still has the accepted definition, and what happens to a changed one.

Plain data in, plain data out. A tool's pinned form contains everything that a model or our argument rules use. `upstream.pins` reads
the pin file; `upstream.pinning` calls this module after every listing.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from gateway.json_types import JsonMapping, JsonObject

PINS_RULE = "pins"
"""Rule id of a rejection of a quarantined tool."""

PinMode = Literal["quarantine", "warn", "off"]
PinChange = Literal["changed", "added", "removed"]

PINNED_KEYS = ("name", "title", "description", "inputSchema", "outputSchema", "annotations")
"""Pinned members of a listed tool. Icons and `_meta` are not pinned, because no rule uses them."""


@dataclass(frozen=True, slots=True)
class PinFinding:
    """A tool that differs from its pin, which is the digest of the accepted definition."""

    change: PinChange
    is_served: bool
    """Whether the tool may still be listed and called; always false for a removed tool."""


def pinned_form(wire: JsonMapping) -> JsonObject:
    """Return the pinned part of a listed tool, in a fixed order of keys; `null` counts as absent."""
    return {key: wire[key] for key in PINNED_KEYS if wire.get(key) is not None}


def pin_digest(form: JsonMapping) -> str:
    """Return `sha256:` and the SHA-256 of a pinned form as canonical JSON: sorted keys, no spaces, ASCII with escapes."""
    text = json.dumps(form, sort_keys=True, separators=(",", ":"))
    return f"sha256:{hashlib.sha256(text.encode()).hexdigest()}"


def judge_pins(
    listed: Mapping[str, str], pinned: Mapping[str, str] | None, mode: PinMode, *, first_use: bool = False
) -> dict[str, PinFinding]:
    """Return the differences between a server's listed tools and its pins, by native name; both arguments map names to digests.

    `pinned` is `None` for a server without pins, so nothing differs. With `first_use`, only a changed tool is a difference: a new tool is
    pinned when it is first listed, and a missing tool may come back. Otherwise new and missing tools are differences too.
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

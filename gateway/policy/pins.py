"""Pins: whether a remote tool is still the one that was accepted, and what becomes of one that is not.

Plain data in, plain data out. A tool's pinned form is everything of it that a model or our own argument rules act on.
Reads no file; `upstream.pins` does, and `upstream.pinning` asks here whenever a listing was read.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from gateway.json_types import JsonMapping, JsonObject

PINS_RULE = "pins"
"""The rule that refuses a quarantined tool."""

PinMode = Literal["quarantine", "warn", "off"]
PinChange = Literal["changed", "added", "removed"]

PINNED_KEYS = ("name", "title", "description", "inputSchema", "outputSchema", "annotations")
"""What is pinned of a listed tool; icons and `_meta` are not, no rule of ours reads them."""


@dataclass(frozen=True, slots=True)
class PinFinding:
    """One tool that differs from its pin."""

    change: PinChange
    is_served: bool
    """Whether it may be listed and called all the same; a removed one has nothing to serve."""


def pinned_form(wire: JsonMapping) -> JsonObject:
    """The part of a listed tool that is pinned, in a fixed order of keys; `null` counts as left out."""
    return {key: wire[key] for key in PINNED_KEYS if wire.get(key) is not None}


def pin_digest(form: JsonMapping) -> str:
    """`sha256:` and 64 hex digits over the form as canonical JSON: keys sorted at every depth, no spaces, ASCII with escapes."""
    text = json.dumps(form, sort_keys=True, separators=(",", ":"))
    return f"sha256:{hashlib.sha256(text.encode()).hexdigest()}"


def judge_pins(
    listed: Mapping[str, str], pinned: Mapping[str, str] | None, mode: PinMode, *, first_use: bool = False
) -> dict[str, PinFinding]:
    """What differs between the tools a server lists and its pins, by native name; both map names to digests.

    `pinned` is `None` for a server that has no pins, so nothing differs. With `first_use` the pins are the first listing of each tool,
    and only a changed tool differs: another tool that appears is pinned then, and one that is gone may come back.
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

"""Converts native names and URIs of sources to exposed ones, which are unique in the catalog.

Exposed names are converted back by a table, never by parsing. Tool and prompt names are `<prefix>__<native>`, within the 64 characters that
model APIs accept (minus the client's own prefix). With an empty prefix, names stay unchanged. URIs of prefixed sources are `<label>+<uri>`;
for `skill://` and `ui://` the label is the first segment instead, because clients interpret those schemes.
"""

from __future__ import annotations

import hashlib
import re

NAME_BUDGET = 64
"""Length of a function name that every model API accepts; MCP itself allows 128."""

SEPARATOR = "__"
_SAFE = re.compile(r"^[A-Za-z0-9_-]+$")
_UNSAFE = re.compile(r"[^A-Za-z0-9_-]")
_MCP_ALLOWED = re.compile(r"^[A-Za-z0-9_.-]{1,128}$")
_SEGMENT_SCHEMES = ("skill://", "ui://")


def expose_name(prefix: str, native: str, budget: int = NAME_BUDGET) -> str:
    """Return the exposed name of `native`; equal arguments always give the same name.

    Characters outside `[A-Za-z0-9_-]` become `_`. A name longer than `budget` is cut and ends with six hexadecimal digits of its digest.
    With an empty `prefix`, a name that MCP allows stays unchanged.
    """
    if not prefix:
        return native if _MCP_ALLOWED.match(native) else with_digest("", native, budget)
    name = f"{prefix}{SEPARATOR}{native if _SAFE.match(native) else _UNSAFE.sub('_', native)}"
    return name if len(name) <= budget else with_digest(prefix, native, budget)


def with_digest(prefix: str, native: str, budget: int = NAME_BUDGET) -> str:
    """Return the exposed name of `native` with part of its digest at the end, for a name that is too long or clashes within its source."""
    digest = hashlib.sha256(f"{prefix}\0{native}".encode()).hexdigest()[:6]
    stem = f"{prefix}{SEPARATOR}" if prefix else ""
    stem += _UNSAFE.sub("_", native)
    return f"{stem[: budget - 7]}_{digest}"


def expose_names(prefix: str, natives: list[str], budget: int = NAME_BUDGET) -> dict[str, str]:
    """Return the exposed name of each native name of one source. Names that would be equal get a digest at the end."""
    exposed: dict[str, str] = {}
    taken: set[str] = set()
    # Unchanged names are assigned first, so that a rewritten name can never take one of them.
    for native in sorted(natives, key=lambda n: not _SAFE.match(n)):
        name = expose_name(prefix, native, budget)
        if name in taken:
            name = with_digest(prefix, native, budget)
        taken.add(name)
        exposed[native] = name
    return {native: exposed[native] for native in natives}


def uri_label(prefix: str) -> str:
    """Return the label of a prefix in URIs: lower case and valid in a URI scheme, because URL parsers normalize it."""
    label = prefix.lower().replace("_", "-")
    return label if label[:1].isalpha() else f"s-{label}"


def expose_uri(label: str, uri: str) -> str:
    """Return the URI or URI template that clients see: the source's own, with the source's label in it; unchanged for an empty label."""
    if not label:
        return uri
    for scheme in _SEGMENT_SCHEMES:
        if uri.startswith(scheme):
            return f"{scheme}{label}/{uri[len(scheme) :]}"
    return f"{label}+{uri}"


def split_uri(uri: str) -> tuple[str, str] | None:
    """Split an exposed URI into `(label, native URI)` by its form; `None` for a URI without a label."""
    for scheme in _SEGMENT_SCHEMES:
        if uri.startswith(scheme):
            label, slash, rest = uri[len(scheme) :].partition("/")
            return (label.lower(), scheme + rest) if slash else None
    scheme, colon, _ = uri.partition(":")
    if not colon:
        return None
    label, plus, _ = scheme.partition("+")
    return (label.lower(), uri[len(label) + 1 :]) if plus else None

"""Converts the names and URIs that a source uses (native) to those that clients see (exposed), which are unique in the catalog.

The catalog converts exposed names back by a table, never by parsing. Exposed names of tools and prompts are `<prefix>__<native>`. They are
so short that they fit the 64 characters that model APIs accept, together with a prefix that the client adds. With an empty prefix, names
that MCP allows stay unchanged. Exposed URIs of a server with a prefix are `<label>+<uri>`; the label is the prefix in a form that URIs
allow. For `skill://` and `ui://` the label is the first path segment instead, because clients interpret these schemes.
"""

from __future__ import annotations

import hashlib
import re

NAME_BUDGET = 64
"""Maximum length, in characters, of an exposed name (the name of a tool or prompt that clients see) with the prefix that the client adds.

A gateway subtracts the length of this prefix, `server.clientPrefix`. Every model API accepts this length. It limits names with a source's
prefix and rewritten names. A source without a prefix keeps the names that MCP allows, which have up to 128 characters.
"""

SEPARATOR = "__"
_SAFE = re.compile(r"^[A-Za-z0-9_-]+$")
_UNSAFE = re.compile(r"[^A-Za-z0-9_-]")
_MCP_ALLOWED = re.compile(r"^[A-Za-z0-9_.-]{1,128}$")
_SEGMENT_SCHEMES = ("skill://", "ui://")


def expose_name(prefix: str, native: str, budget: int = NAME_BUDGET) -> str:
    """Return the name by which clients see the tool or prompt that its source calls `native`: `<prefix>__<native>`.

    It has at most `budget` characters.

    Characters outside `[A-Za-z0-9_-]` become `_`. A longer name is cut and ends with six hexadecimal digits of its digest. With an empty
    `prefix`, a name that MCP allows stays unchanged. Equal arguments always give the same name.
    """
    if not prefix:
        return native if _MCP_ALLOWED.match(native) else with_digest("", native, budget)
    name = f"{prefix}{SEPARATOR}{native if _SAFE.match(native) else _UNSAFE.sub('_', native)}"
    return name if len(name) <= budget else with_digest(prefix, native, budget)


def with_digest(prefix: str, native: str, budget: int = NAME_BUDGET) -> str:
    """Return the exposed name of the tool or prompt that its source calls `native`, with digits of a digest at the end.

    The name has at most `budget` characters. It is used if the normal name (`expose_name`) is too long, or if another tool of the same
    source already has the normal name.
    """
    digest = hashlib.sha256(f"{prefix}\0{native}".encode()).hexdigest()[:6]
    stem = f"{prefix}{SEPARATOR}" if prefix else ""
    stem += _UNSAFE.sub("_", native)
    return f"{stem[: budget - 7]}_{digest}"


def expose_names(prefix: str, natives: list[str], budget: int = NAME_BUDGET) -> dict[str, str]:
    """Return native name → exposed name for all native names of one source.

    If the exposed name of two native names would be the same, one of them ends with digits of the digest of its native name.
    """
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
    """Convert a source's prefix to its label, which is part of the URIs that clients see.

    The label is a valid URI scheme, in lower case, because URL parsers convert schemes to lower case.
    """
    label = prefix.lower().replace("_", "-")
    return label if label[:1].isalpha() else f"s-{label}"


def expose_uri(label: str, uri: str) -> str:
    """Return the exposed form of a source's URI or URI template: `<label>+<uri>`, or `skill://<label>/…` and `ui://<label>/…`.

    With an empty label the URI stays unchanged.
    """
    if not label:
        return uri
    for scheme in _SEGMENT_SCHEMES:
        if uri.startswith(scheme):
            return f"{scheme}{label}/{uri[len(scheme) :]}"
    return f"{label}+{uri}"


def split_uri(uri: str) -> tuple[str, str] | None:
    """Split a URI that clients see into the label (prefix) of its source and the source's own URI; `None` if it has no label.

    The label is not looked up: it may belong to no source.
    """
    for scheme in _SEGMENT_SCHEMES:
        if uri.startswith(scheme):
            label, slash, rest = uri[len(scheme) :].partition("/")
            return (label.lower(), scheme + rest) if slash else None
    scheme, colon, _ = uri.partition(":")
    if not colon:
        return None
    label, plus, _ = scheme.partition("+")
    return (label.lower(), uri[len(label) + 1 :]) if plus else None

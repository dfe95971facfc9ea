"""Matches URIs against URI templates (RFC 6570), to find the source of a resource that no source lists and whose URI has no prefix."""

from __future__ import annotations

import re
from functools import lru_cache

_EXPRESSION = re.compile(r"(?:\{([+#./;?&]?)[^{}]*\})+")

MAX_TEMPLATE_CHARS = 2_000
"""Maximum length of a URI template or URI, in characters; a longer template or URI never matches."""

MAX_EXPRESSIONS = 6
"""Maximum number of expressions (`{…}`) in a URI template; adjacent expressions count as one.

A template with more never matches, because matching could be slow.
"""


def matches_template(template: str, uri: str) -> bool:
    """Return whether `uri` matches an RFC 6570 URI template.

    The value of a simple expansion (`{x}`), together with adjacent expansions (such as `{?y}`), contains no `/`, `?` or `#`, unless one of
    them is a reserved expansion (`{+x}`, `{#x}`).
    """
    if len(template) > MAX_TEMPLATE_CHARS or len(uri) > MAX_TEMPLATE_CHARS:
        return False
    pattern = _pattern(template)
    return pattern is not None and pattern.fullmatch(uri) is not None


@lru_cache(maxsize=1024)
def _pattern(template: str) -> re.Pattern[str] | None:
    parts: list[str] = []
    end = 0
    expressions = list(_EXPRESSION.finditer(template))
    if len(expressions) > MAX_EXPRESSIONS:
        return None
    for match in expressions:
        parts.append(re.escape(template[end : match.start()]))
        run = match.group(0)
        if "{+" in run or "{#" in run:
            parts.append(".+")
        else:
            # Adjacent expressions become one pattern, because their separate values are not needed.
            parts.append("[^/?#]+" if run.count("{") > len(re.findall(r"\{[./;?&]", run)) else ".*")
        end = match.end()
    parts.append(re.escape(template[end:]))
    return re.compile("".join(parts))

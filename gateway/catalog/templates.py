"""Whether a URI can come from a URI template; only used to find the source of an unlisted, unprefixed resource."""

from __future__ import annotations

import re
from functools import lru_cache

_EXPRESSION = re.compile(r"\{([+#./;?&]?)[^{}]*\}")

MAX_TEMPLATE_CHARS = 2_000
"""Longer templates match nothing."""


def matches_template(template: str, uri: str) -> bool:
    """Whether `uri` fits an RFC 6570 template; reserved expansion (`{+x}`) may span segments."""
    if len(template) > MAX_TEMPLATE_CHARS:
        return False
    return _pattern(template).fullmatch(uri) is not None


@lru_cache(maxsize=1024)
def _pattern(template: str) -> re.Pattern[str]:
    parts: list[str] = []
    end = 0
    for match in _EXPRESSION.finditer(template):
        parts.append(re.escape(template[end : match.start()]))
        # Possessive: a server's template must not be able to make matching slow.
        parts.append(r"(?:.+)" if match.group(1) in ("+", "#") else r"(?:[^/?#]*)" if match.group(1) else r"(?:[^/?#]+)")
        end = match.end()
    parts.append(re.escape(template[end:]))
    return re.compile("".join(parts))

"""How many HTTP connections there may be; what one may cost is `http1`'s."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gateway.config.models import HttpSettings

DESCRIPTORS_KEPT_BACK = 0.5
"""Share of the process's open files that connections may not use: servers, files and the database need theirs."""


def connection_limit(settings: HttpSettings, open_files: int | None = None) -> int:
    """How many connections are served at once; one more is answered 503.

    `open_files` is the limit of this process, by default asked from the system; a low one lowers the configured bound.
    """
    limit = _open_files() if open_files is None else open_files
    return settings.max_connections if limit is None else max(1, min(settings.max_connections, int(limit * (1 - DESCRIPTORS_KEPT_BACK))))


def _open_files() -> int | None:
    """How many files this process may have open; None: as many as it likes."""
    if sys.platform == "win32":
        return None
    import resource

    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return None if soft == resource.RLIM_INFINITY else soft

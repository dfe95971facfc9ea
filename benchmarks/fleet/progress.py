"""Progress lines of the harness."""

from __future__ import annotations

import sys
import time

_BEGAN = time.monotonic()


def say(line: str) -> None:
    """Write a line to stderr with the seconds since the start."""
    sys.stderr.write(f"{time.monotonic() - _BEGAN:7.1f} s  {line}\n")
    sys.stderr.flush()

"""Where a path really is, so that two spellings of one place compare equal.

Symbolic links, bind mounts and letter case hide that two paths lead to one folder. A place is therefore the chain of identities from
the file system's root down: device and inode of what exists, and the folded name of what does not exist yet. Everything here blocks.
"""

from __future__ import annotations

import os
import unicodedata
from pathlib import Path

Place = tuple[str, ...]
"""Identities from the file system's root down to the path itself."""


def place_of(path: str | os.PathLike[str]) -> Place:
    """Return the place that `path` leads to once links are followed; the path need not exist."""
    resolved = Path(os.path.realpath(path))
    chain: list[str] = []
    exists = True
    for step in (*reversed(resolved.parents), resolved):
        if exists:
            try:
                found = os.stat(step)
            except OSError:
                exists = False
            else:
                chain.append(f"{found.st_dev}:{found.st_ino}")
                continue
        # A name that does not exist yet may be created in either case where the file system ignores case.
        chain.append(f"{chain[-1] if chain else ''}/{unicodedata.normalize('NFKC', step.name).casefold()}")
    return tuple(chain)

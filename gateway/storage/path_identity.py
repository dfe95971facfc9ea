"""`place_of`: returns the identity of a path. The identities of two different paths to the same folder have the same last part.

`gate.root_rules` compares identities to find out whether a folder that agents may use contains, or is inside, a folder with code or
configuration.

Symbolic links, bind mounts and letter case hide that two paths lead to one folder. The identity is therefore a chain from the file system's
root down: device and inode of each existing part, and the case-folded name of each missing part. Every function blocks.
"""

from __future__ import annotations

import os
import unicodedata
from pathlib import Path

Place = tuple[str, ...]
"""Identity of a path: the identities of all its parts, the file system's root first. The last part identifies the file or folder."""


def place_of(path: str | os.PathLike[str]) -> Place:
    """Return the identity of the file or folder to which `path` leads after following links. The path need not exist."""
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
        # On a file system that ignores case, a missing name may later be created in either case.
        chain.append(f"{chain[-1] if chain else ''}/{unicodedata.normalize('NFKC', step.name).casefold()}")
    return tuple(chain)

"""Detects by polling that a file was replaced or edited, which works on every file system and with every editor.

The running gateway watches its configuration file, its lock file and the record of the commands that a person accepted.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import anyio

POLL_SECONDS = 0.5
"""Seconds between two checks of a watched file. A change is noticed within twice this time, once the file stops changing."""

DEFINITION_SUFFIXES = (".md", ".yaml", ".yml")
"""Suffixes of the files of agents and workflows."""

Signature = tuple[int, int, int, int] | None
"""State of a watched file, for comparison: modification time, size, inode and device; `None` if the file cannot be examined."""


def signature_of(path: Path) -> Signature:
    """Return the state of a file (modification time, size, inode, device), which differs after a change of the file.

    It can stay the same if two changes follow each other more closely than the file system's clock ticks, and the size stays the same.
    Return `None` if the file cannot be examined, for example because it does not exist. Blocks.
    """
    try:
        found = path.stat()
    except OSError:
        return None
    return (found.st_mtime_ns, found.st_size, found.st_ino, found.st_dev)


class FileWatch:
    """Watches one file for changes. Create it before you read the file, so that no change is missed."""

    def __init__(self, path: Path) -> None:
        """Store the current state of the file, with which later states are compared. Blocks."""
        self.path = path
        self._seen = signature_of(path)

    async def changed(self) -> None:
        """Wait until the file has changed since the last call, or since this object was created, and stops changing.

        The file has stopped changing when its state stays the same for a fifth of `POLL_SECONDS`.
        """
        while True:
            await anyio.sleep(POLL_SECONDS)
            found = await anyio.to_thread.run_sync(signature_of, self.path)
            if found == self._seen:
                continue
            while True:
                await anyio.sleep(POLL_SECONDS / 5)
                again = await anyio.to_thread.run_sync(signature_of, self.path)
                if again == found:
                    self._seen = found
                    return
                found = again


def definition_files(path: Path) -> Sequence[Path]:
    """Return the files of agents and workflows in the folder `path`; an empty list if the folder cannot be read.

    If `path` is not a folder, return `path` itself.
    """
    if not path.is_dir():
        return [path]
    try:
        return [item for item in path.iterdir() if item.suffix in DEFINITION_SUFFIXES]
    except OSError:
        return []

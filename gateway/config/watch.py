"""Detects by polling that a file was replaced or edited, on every file system and with every editor.

The running gateway watches its configuration, its lock file and the record of accepted commands with it.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import anyio

POLL_SECONDS = 0.5
"""Polling interval; a change is noticed within twice this time."""

DEFINITION_SUFFIXES = (".md", ".yaml", ".yml")
"""File suffixes of agents and workflows."""

Signature = tuple[int, int, int, int] | None
"""State of a watched file: change time, size, inode and device; `None` if the file does not exist."""


def signature_of(path: Path) -> Signature:
    """Return the `Signature` of a file, which is different after every change of the file. Blocks."""
    try:
        found = path.stat()
    except OSError:
        return None
    return (found.st_mtime_ns, found.st_size, found.st_ino, found.st_dev)


class FileWatch:
    """Watches one file. Create it before you read the file, so that no change is missed."""

    def __init__(self, path: Path) -> None:
        """Read the file's signature. Blocks."""
        self.path = path
        self._seen = signature_of(path)

    async def changed(self) -> None:
        """Wait until the signature differs from the last one and has not changed for one interval."""
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
    """Return the files of agents and workflows in a folder, or the file itself; nothing if the folder cannot be read."""
    if not path.is_dir():
        return [path]
    try:
        return [item for item in path.iterdir() if item.suffix in DEFINITION_SUFFIXES]
    except OSError:
        return []

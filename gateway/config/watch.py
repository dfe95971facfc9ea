"""Notices that a file was replaced or edited, by looking at it; works with editors that rename and on every file system.

Reads no content and judges nothing. Used by the running gateway for its configuration and lock file.
"""

from __future__ import annotations

from pathlib import Path

import anyio

POLL_SECONDS = 0.5
"""Between two looks; a change is noticed within twice this time."""

Signature = tuple[int, int, int, int] | None
"""Change time, size, inode and device; `None` where there is no file."""


def signature_of(path: Path) -> Signature:
    """What tells one state of a file from another. Blocks."""
    try:
        found = path.stat()
    except OSError:
        return None
    return (found.st_mtime_ns, found.st_size, found.st_ino, found.st_dev)


class FileWatch:
    """Looks at one file. What is seen before `changed` is awaited counts as known, so take it before you read the file."""

    def __init__(self, path: Path) -> None:
        """Blocks: looks at the file once."""
        self.path = path
        self._seen = signature_of(path)

    async def changed(self) -> None:
        """Wait until the file differs from what was last seen and has stayed so for one look."""
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

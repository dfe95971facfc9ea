"""Puts the files of a restored backup in place, so that a killed `moongate db restore` leaves the old or the new state.

`restore` first prepares the new files in the folder `restoring/new` of the state folder. Then it writes a journal, which names the files to
put in place, and moves them. A process that uses the state folder after a kill finds the journal and finishes the moves (`finish_restore`).
Without a journal, nothing was moved, and the old state is valid.
"""

from __future__ import annotations

import json
import os
import shutil
import time
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Literal, cast

from gateway.errors import StorageError, StorageUnusable
from gateway.json_types import JsonObject
from gateway.storage.atomic_files import lock_file_of, read_json, sync_folder, try_lock, write_atomic

RESTORING = "restoring"
"""Name of the folder in the state folder with the prepared files, the journal and the replaced files."""

NEW = "new"

_OLD = "old"

_JOURNAL = "journal.json"

MOVE_SECONDS = 30.0
"""Seconds for which a process waits while another process puts restored files in place."""

Phase = Literal["server", "files"]
"""State of a restore in its journal: `server` while a database server commits the rows, `files` from when only moves are left."""


def finish_restore(folder: Path) -> None:
    """Finish the moves of a killed restore in a state folder. Does nothing (one `stat`) if no restore was killed.

    Raises:
        StorageError: The restore was killed while the database server committed, so only a repeated restore can complete it. Or the files
        cannot be moved.
    """
    if not (folder / RESTORING / _JOURNAL).exists():
        return
    with moving(folder):
        try:
            journal = cast("JsonObject", read_json(folder / RESTORING / _JOURNAL))
        except FileNotFoundError:
            return  # another process has just finished the restore
        if journal["phase"] != "files":
            raise StorageUnusable(
                f"A restore into the database server was interrupted, so the state folder {str(folder)!r} and the database may not fit "
                "together. Run the same `moongate db restore` command again, with `--replace`.",
                passes=False,
            )
        put_in_place(folder, cast("list[str]", journal["places"]), cast("list[str]", journal["removes"]))


@contextmanager
def moving(folder: Path) -> Generator[None]:
    """Context manager: hold the lock for moving restored files into a state folder.

    Raises:
        StorageUnusable: Another process holds the lock for longer than `MOVE_SECONDS`.
    """
    descriptor = lock_file_of(folder / RESTORING)
    try:
        deadline = time.monotonic() + MOVE_SECONDS
        while not try_lock(descriptor):
            if time.monotonic() > deadline:
                raise StorageUnusable(f"Another process is restoring the state folder {str(folder)!r}. Wait until it has finished.")
            time.sleep(0.05)
        yield
    finally:
        os.close(descriptor)  # also releases the lock


def write_journal(folder: Path, phase: Phase, places: Sequence[str], removes: Sequence[str]) -> None:
    """Store what is left to do: `places` are names in `restoring/new`, and `removes` names in the state folder that the backup lacks.

    Raises:
        StorageError: The journal cannot be written.
    """
    journal = {"phase": phase, "places": list(places), "removes": list(removes)}
    write_atomic(folder / RESTORING / _JOURNAL, json.dumps(journal).encode())


def put_in_place(folder: Path, places: Sequence[str], removes: Sequence[str]) -> None:
    """Move prepared files into the state folder and delete what they replace. May be repeated after it was killed at any point.

    Raises:
        StorageUnusable: A file cannot be moved; the next call continues.
    """
    root = folder / RESTORING
    try:
        (root / _OLD).mkdir(mode=0o700, exist_ok=True)
        for name in removes:
            _move_away(folder / name, root / _OLD)
        for name in places:
            if os.path.lexists(root / NEW / name):
                _move_away(folder / name, root / _OLD)
                os.rename(root / NEW / name, folder / name)
        sync_folder(folder)
        (root / _JOURNAL).unlink(missing_ok=True)
        sync_folder(root)
    except OSError as error:
        reason = error.strerror or str(error)
        raise StorageUnusable(f"Cannot put restored files into {str(folder)!r}: {reason}. Mend this, and run any command.") from None
    discard(folder)


def discard(folder: Path) -> None:
    """Delete the folder with prepared and replaced files. Call it only without a journal, or to abandon the restore."""
    try:
        shutil.rmtree(folder / RESTORING)
    except FileNotFoundError:
        pass
    except OSError as error:
        raise StorageError(f"Cannot delete {str(folder / RESTORING)!r}: {error.strerror or error}. Delete it.") from None


def journal_phase(folder: Path) -> Phase | None:
    """Return the state of a restore that was killed after its journal was written; `None` if there is no journal.

    Raises:
        StorageError: The journal is damaged.
    """
    try:
        journal = cast("JsonObject", read_json(folder / RESTORING / _JOURNAL))
    except FileNotFoundError:
        return None
    return "files" if journal["phase"] == "files" else "server"


def _move_away(path: Path, old: Path) -> None:
    """Move a file or folder into `old` under a free name. Does nothing if it does not exist."""
    if os.path.lexists(path):
        number = next(number for number in range(1_000_000) if not os.path.lexists(old / f"{path.name}.{number}"))
        os.rename(path, old / f"{path.name}.{number}")

"""Stores the results of `initialize` and of the listing requests, so that the next start over stdio can send them while it still loads.

`startup_answers` sends the stored results, and `storage.startup_cache` describes the file that contains them.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Collection, Iterator
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import anyio.to_thread

from gateway.auth.principal import LOCAL, Principal
from gateway.config.load import LoadedConfig
from gateway.config.watch import definition_files
from gateway.errors import GatewayError
from gateway.json_types import JsonObject
from gateway.server.startup_answers import StartupAnswers
from gateway.storage.startup_cache import MAX_FILES, CachedAnswers
from gateway.storage.state_folder import state_dir

if TYPE_CHECKING:
    from gateway.server.fast_path.plain_answers import PlainAnswers


class SnapshotParts(Protocol):
    """The part of `GatewayServer` that produces the results to store: those of `initialize` and of the listing requests."""

    plain: PlainAnswers

    def introduction(self, version: str, principal: Principal) -> JsonObject:
        """Return the result of `initialize` for a caller. `version` is the negotiated protocol version."""
        ...

logger = logging.getLogger(__name__)


async def keep_answers(loaded: LoadedConfig, server: SnapshotParts, modules: Collection[str], first: StartupAnswers) -> None:
    """Store the current results of `initialize` and of the listing requests for the next start over stdio.

    Nothing is stored if a file on which the results depend changed since this process started, or if the results depend on too many files.
    `modules` are further such files: the Python modules that agents, workflows and functions import. `first` has the cache file and the
    time of the start. Failures are logged.
    """

    def keep(known: CachedAnswers) -> bool:
        files = [*islice(_deciding(loaded), MAX_FILES + 1), *map(Path, modules)]
        return first.file.keep(files, first.since_ns, known)

    try:
        known = CachedAnswers(server.introduction("", LOCAL), await server.plain.whole_lists())
        if not await anyio.to_thread.run_sync(keep, known):
            logger.debug("startup answers not stored reason=files_changed_or_too_many")
    except (OSError, GatewayError) as error:
        logger.info("startup answers could not be stored error=%s", error)


def _deciding(loaded: LoadedConfig) -> Iterator[Path]:
    """Yield the files on which the results of listing requests depend, and the folders that may get such files.

    The configuration file and Python modules are not included.
    """
    if (lock := loaded.lock_path) is not None:
        yield lock
    yield state_dir(loaded.config.storage.dir) / "keys.json"
    for name in loaded.config.expose.agents:
        yield loaded.base_dir / name
        yield from definition_files(loaded.base_dir / name)
    for name in loaded.config.expose.skills:
        for folder, folders, files in os.walk(name):
            folders[:] = [inner for inner in folders if inner != "__pycache__"]
            yield from (Path(folder, file) for file in (".", *files))
    for rule in loaded.config.skills.signatures.values():
        yield from map(Path, rule.files)

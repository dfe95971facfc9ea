"""Keeps what a gateway over stdio answers to `initialize` and the listings for its next start (`storage.first_answers`)."""

from __future__ import annotations

import logging
import math
import os
from collections.abc import Collection, Iterator
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

import anyio.to_thread

from gateway.app.local_files import files_of
from gateway.auth.principal import LOCAL
from gateway.config.load import LoadedConfig
from gateway.errors import GatewayError
from gateway.server.first_answers import FirstAnswers
from gateway.storage.first_answers import MAX_FILES, Known
from gateway.storage.state import state_dir
from gateway.upstream.pins import lock_path

if TYPE_CHECKING:
    from gateway.app.gateway import Gateway
    from gateway.server.build import GatewayServer

logger = logging.getLogger(__name__)


async def keep_answers(gateway: Gateway, server: GatewayServer, modules: Collection[str], first: FirstAnswers | None) -> None:
    """Keep the answers as they are once every source is ready or has failed.

    `modules` are the files of Python modules that were imported for sources.
    """
    if first is None:
        return
    await gateway.ready(math.inf)
    loaded = gateway.loaded

    def keep(known: Known) -> bool:
        files = [*islice(_deciding(loaded), MAX_FILES + 1), *map(Path, modules)]
        return first.file.keep(files, first.since_ns, known)

    try:
        known = Known(server.introduction("", LOCAL), await server.plain.whole_lists())
        if not await anyio.to_thread.run_sync(keep, known):
            logger.debug("answers for the next start are not kept: files changed since this start, or there is too much")
    except (OSError, GatewayError) as error:
        logger.info("answers for the next start could not be kept error=%s", error)


def _deciding(loaded: LoadedConfig) -> Iterator[Path]:
    """The files that decide what is listed, but for Python modules, and the folders in which more may appear."""
    if (lock := lock_path(loaded)) is not None:
        yield lock
    yield state_dir(loaded.config.storage.dir) / "keys.json"
    for name in loaded.config.expose.agents:
        yield loaded.base_dir / name
        yield from files_of(loaded.base_dir / name)
    for name in loaded.config.expose.skills:
        for folder, folders, files in os.walk(name):
            folders[:] = [inner for inner in folders if inner != "__pycache__"]
            yield from (Path(folder, file) for file in (".", *files))
    for rule in loaded.config.skills.signatures.values():
        yield from (Path(file) for file in (rule.public_key, rule.trust_config, *rule.certificates) if file is not None)

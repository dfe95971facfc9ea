"""Finds the running gateway of a configuration, also on another port than the configured one. Used by `run` and `hub`.

A gateway on another port leaves its URL in the state folder. The URL is only where to look: what listens there has to prove that it
serves the configuration, like a gateway on the configured port.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from gateway.cli.endpoint import endpoint_of, find_listener

if TYPE_CHECKING:
    from gateway.cli.endpoint import Listener
    from gateway.config.load import LoadedConfig

FOLDER = "endpoints"

MAX_BYTES = 2_048


async def find_running(loaded: LoadedConfig) -> Listener | None:
    """Return the running gateway of this configuration, else what listens on the configured port, if anything.

    Raises:
        StorageError: The state folder cannot be used.
    """
    configured = await find_listener(endpoint_of(loaded), loaded)
    if configured is not None and configured.is_own:
        return configured
    elsewhere = _read(_file(loaded))
    found = await find_listener(elsewhere, loaded) if elsewhere is not None else None
    return found if found is not None and found.is_own else configured


@contextmanager
def findable_at(url: str | None, loaded: LoadedConfig) -> Generator[None, None, None]:
    """Have `find_running` find the gateway at `url` until the block ends. The configured port needs no note of it.

    Of several gateways of one configuration the last one is found. Errors of the file system do not matter: commands take `--url` too.
    """
    if url is None or url == endpoint_of(loaded):
        yield
        return
    from gateway.errors import StorageError
    from gateway.storage.files import make_private_folder, write_atomic

    file = _file(loaded)
    with contextlib.suppress(OSError, StorageError):
        make_private_folder(file.parent)
        write_atomic(file, url.encode())
    try:
        yield
    finally:
        if _read(file) == url:
            with contextlib.suppress(OSError):
                file.unlink()


def _file(loaded: LoadedConfig) -> Path:
    from gateway.storage.state import state_dir

    name = hashlib.sha256(os.fsencode(os.path.normpath(loaded.path or loaded.base_dir))).hexdigest()[:32]
    return state_dir(loaded.config.storage.dir) / FOLDER / name


def _read(file: Path) -> str | None:
    """Return the URL in a file; `None` if there is none."""
    try:
        with file.open("rb") as opened:
            url = opened.read(MAX_BYTES).decode("ascii")
        parts = urlsplit(url)
        return url if parts.scheme == "http" and parts.hostname and parts.port else None
    except (OSError, ValueError):
        return None

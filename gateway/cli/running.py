"""Finds the running gateway of a configuration, even if it does not listen on the configured port. Used by `run` and `hub`.

A gateway on another port stores its URL in a file in the state folder. The program that listens at this URL must prove that it is a gateway
of the configuration.
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
from gateway.errors import ConfigError, StorageError

if TYPE_CHECKING:
    from gateway.cli.endpoint import Listener
    from gateway.config.load import LoadedConfig

FOLDER = "endpoints"

MAX_BYTES = 2_048

START_SECONDS = 60.0
"""Seconds for which a starting gateway waits for another process that is starting a gateway of the same configuration."""

MAX_FILES = 8
"""Maximum number of URL files that are read. A killed gateway does not delete its file."""


async def find_running(loaded: LoadedConfig) -> Listener | None:
    """Return the running gateway of this configuration, else the program that listens on the configured port, else `None`.

    Raises:
        StorageError: The state folder cannot be used.
    """
    configured = await find_listener(endpoint_of(loaded), loaded)
    if configured is not None and configured.is_own:
        return configured
    for file in _files(loaded):
        url = _read(file)
        found = await find_listener(url, loaded) if url is not None else None
        if found is not None and found.is_own:
            return found
    return configured


async def sole_start(loaded: LoadedConfig) -> Listener | None:
    """Become the only process that is starting a gateway of this configuration, and return the result of `find_running`.

    Waits while another process is starting a gateway, and returns that gateway once it responds. Other processes wait in this function
    until this process's gateway responds or the process ends.

    Raises:
        ConfigError: Another process does not finish its start.
        StorageError: The state folder cannot be used.
    """
    import anyio

    from gateway.storage.atomic_files import lock_file_of, make_private_folder, try_lock

    file = _base(loaded)
    make_private_folder(file.parent)
    descriptor = lock_file_of(file.with_name(f"start-{file.name}"))
    deadline = anyio.current_time() + START_SECONDS
    while not try_lock(descriptor):
        found = await find_running(loaded)
        is_late = anyio.current_time() > deadline
        if is_late or (found is not None and found.is_own):
            holder = os.pread(descriptor, 20, 0).decode("ascii", "replace") or "another process"
            os.close(descriptor)
            if not is_late:
                return found
            text = f"{holder} started the gateway of this configuration, which does not answer. Wait for it or stop it, then start again."
            raise ConfigError(f"No second gateway was started: {text}")
        await anyio.sleep(0.1)
    # The file stays open: the lock is held until the process ends.
    os.ftruncate(descriptor, 0)
    os.pwrite(descriptor, f"process {os.getpid()}".encode("ascii"), 0)
    return await find_running(loaded)


@contextmanager
def findable_at(url: str | None, loaded: LoadedConfig) -> Generator[None, None, None]:
    """Store the URL of a running gateway until the block ends, so that `find_running` finds the gateway.

    Nothing is stored if `url` is `None` or the configured URL, which `find_running` tries anyway. If several gateways of one
    configuration run, `find_running` returns the one at the configured URL, else the latest. File system errors are ignored, because
    commands also accept `--url`.
    """
    if url is None or url == endpoint_of(loaded):
        yield
        return
    from gateway.storage.atomic_files import make_private_folder, write_atomic

    file = _base(loaded).with_suffix(f".{urlsplit(url).port}")
    with contextlib.suppress(OSError, StorageError):
        make_private_folder(file.parent)
        write_atomic(file, url.encode())
    try:
        yield
    finally:
        if _read(file) == url:
            with contextlib.suppress(OSError):
                file.unlink()


def _base(loaded: LoadedConfig) -> Path:
    """Return the path of this configuration's URL files, without their suffix, which is the port of the URL."""
    from gateway.cli.common import state_folder_of

    # As in `auth.identity`: a link to the folder stands for the same configuration, a link to the file does not.
    folder, name = os.path.split(os.path.normpath(loaded.path or loaded.base_dir))
    digest = hashlib.sha256(os.fsencode(os.path.join(os.path.realpath(folder), name))).hexdigest()[:32]
    return state_folder_of(loaded).path / FOLDER / digest


def _files(loaded: LoadedConfig) -> list[Path]:
    """Return the newest URL files of this configuration, at most `MAX_FILES`, newest first."""
    base = _base(loaded)
    try:
        found = [(file.stat().st_mtime_ns, file) for file in base.parent.glob(f"{base.name}.*")]
    except OSError:
        return []
    return [file for _, file in sorted(found, reverse=True)[:MAX_FILES]]


def _read(file: Path) -> str | None:
    """Return the gateway's URL that is stored in a file; `None` if the file is missing or its content is not a URL."""
    try:
        with file.open("rb") as opened:
            url = opened.read(MAX_BYTES).decode("ascii")
        parts = urlsplit(url)
        return url if parts.scheme in ("http", "https") and parts.hostname and parts.port else None
    except (OSError, ValueError):
        return None

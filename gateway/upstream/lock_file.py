"""`LockFile`: reads a configuration's accepted tool definitions (pins) from its lock file, and reads them again when the file changes."""

from __future__ import annotations

import logging
from collections.abc import Callable

import anyio

from gateway.config.load import LoadedConfig
from gateway.config.watch import FileWatch
from gateway.errors import ConfigError
from gateway.upstream.pins import Pins, read_pins

logger = logging.getLogger(__name__)


class LockFile:
    """Reads and watches the lock file of one gateway, which contains the accepted tool definitions. `run` applies changes of the file."""

    def __init__(self, apply: Callable[[Pins], None]) -> None:
        """`apply` receives the pins (accepted definitions) each time the file changes."""
        self._apply = apply
        self._watch: FileWatch | None = None
        self._moved = anyio.Event()
        self.problem: str | None = None
        """Why the gateway does not apply the current content of the lock file; `None` if the gateway applies it."""

    async def read(self, loaded: LoadedConfig) -> Pins:
        """Return the accepted definitions (pins) in the lock file of a configuration, and watch this file from now on.

        If policy turns pins off for every server, return no pins and watch no file. `run` must be running to notice changes.

        Raises:
            ConfigError: The file cannot be read. The previous configuration's file is still watched.
        """
        config = loaded.config
        path = loaded.lock_path if any(config.policy(name).pins != "off" for name in config.mcp_servers) else None
        # The watch begins before the file is read, so that no change is missed.
        watch = self._watch
        if path is None or watch is None or watch.path != path:
            watch = await anyio.to_thread.run_sync(FileWatch, path) if path is not None else None
        pins = await anyio.to_thread.run_sync(read_pins, path)
        self.problem = None
        if watch is not self._watch:
            self._watch = watch
            self._moved.set()
        return pins

    async def run(self) -> None:
        """Read the file after each change and pass its pins (accepted definitions) to `apply`, until cancelled.

        If the file cannot be read, set `problem` and do not call `apply`, so that the earlier pins stay in force.
        """
        while True:
            self._moved = anyio.Event()
            async with anyio.create_task_group() as tasks:
                if self._watch is not None:
                    tasks.start_soon(self._follow, self._watch)
                await self._moved.wait()
                tasks.cancel_scope.cancel()

    async def _follow(self, watch: FileWatch) -> None:
        while True:
            await watch.changed()
            try:
                pins = await anyio.to_thread.run_sync(read_pins, watch.path)
            except ConfigError as error:
                self.problem = f"The lock file is not applied, the earlier pins stay: {error}"
                logger.error("lock file not applied, earlier pins stay file=%s error=%s", watch.path, error)
                continue
            self.problem = None
            self._apply(pins)
            logger.info("lock file applied again file=%s", watch.path)

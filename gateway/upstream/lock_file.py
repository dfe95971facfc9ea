"""`LockFile`: reads the pinned tool definitions of a configuration from its lock file, again whenever the file changes."""

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
    """The lock file of one gateway. Changes are followed while `run` runs."""

    def __init__(self, apply: Callable[[Pins], None]) -> None:
        """`apply` receives the pins each time the file changes."""
        self._apply = apply
        self._watch: FileWatch | None = None
        self._moved = anyio.Event()
        self.problem: str | None = None
        """Why the lock file in its present state is not in use; `None` if it is in use."""

    async def read(self, loaded: LoadedConfig) -> Pins:
        """Return the pins for a configuration, and follow the lock file of this configuration from now on.

        Raises:
            ConfigError: The file cannot be read; the previous file is still followed.
        """
        config = loaded.config
        path = loaded.lock_path if any(config.policy(name).pins != "off" for name in config.mcp_servers) else None
        # The watch is made before the file is read, so that no change is missed.
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
        """Call `apply` after each change of the file, until cancelled.

        An unreadable file sets `problem` and leaves the pins as they are.
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
                logger.error("%s", self.problem)
                continue
            self.problem = None
            self._apply(pins)
            logger.info("lock file applied again: %s", watch.path)

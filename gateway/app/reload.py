"""`Reloader`: reads the configuration file again when it changes, and at SIGHUP.

Logs which settings need a restart. A file that cannot be used changes nothing; its problem is reported until it is fixed. `Gateway` applies
a configuration.
"""

from __future__ import annotations

import dataclasses
import logging
import signal
from collections.abc import Awaitable, Callable

import anyio

from gateway.config.base_models import Model
from gateway.config.load import LoadedConfig
from gateway.config.models import GatewayConfig
from gateway.config.watch import FileWatch
from gateway.errors import GatewayError

logger = logging.getLogger(__name__)

FIXED_SECTIONS = ("storage", "sessions", "tasks", "defaults")
"""Sections that are read at the start only."""

FOLLOWED_SETTINGS = frozenset({"approval_by", "instructions", "reload", "lock_file", "log_level"})
"""Keys of `server` that a reload applies; the others are fixed at the start."""


def fixed_changes(running: GatewayConfig, written: GatewayConfig) -> list[str]:
    """Return the JSON paths of changes that need a restart."""
    found: list[str] = []
    for section in FIXED_SECTIONS:
        found += _differences(section, getattr(running, section), getattr(written, section), frozenset())
    return found + _differences("server", running.server, written.server, FOLLOWED_SETTINGS)


def _differences(path: str, running: Model, written: Model, followed: frozenset[str]) -> list[str]:
    found: list[str] = []
    for name, field in type(running).model_fields.items():
        before, after = getattr(running, name), getattr(written, name)
        if name in followed or before == after:
            continue
        place = f"{path}.{field.alias or name}"
        both = isinstance(before, Model) and isinstance(after, Model)
        found += _differences(place, before, after, frozenset()) if both else [place]
    return found


def with_fixed(running: LoadedConfig, written: LoadedConfig) -> LoadedConfig:
    """Return `written` with the settings of `running` that need a restart."""
    before, after = running.config, written.config
    server = before.server.model_copy(update={name: getattr(after.server, name) for name in FOLLOWED_SETTINGS})
    kept = {section: getattr(before, section) for section in FIXED_SECTIONS}
    config = after.model_copy(update={**kept, "server": server})
    return dataclasses.replace(written, config=config, secrets=running.secrets | written.secrets)


class Reloader:
    """Reads the file again whenever there is reason to, one reading at a time."""

    def __init__(
        self, read: Callable[[], LoadedConfig], apply: Callable[[LoadedConfig], Awaitable[bool]], watch: FileWatch | None, *, follows: bool
    ) -> None:
        """`read` may block; `apply` tells whether the file shall be followed. Both may raise `GatewayError` and then change nothing.

        `watch` was begun before the running configuration was read; without one, or unless it `follows`, only SIGHUP is heard.
        """
        self._read = read
        self._apply = apply
        self._watch = watch
        self._follows = follows
        self._wanted = anyio.Event()
        self.problem: str | None = None
        """Why the file as it is now is not in use."""

    def read_again(self) -> None:
        """Read the file again, whether or not it changed."""
        self._wanted.set()

    def try_again(self) -> None:
        """Read the file again if it could not be used: something that it needs was mended."""
        if self.problem is not None:
            self._wanted.set()

    async def run(self) -> None:
        """Reload until cancelled."""
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._hear_signals)
            if self._watch is not None:
                tasks.start_soon(self._look, self._watch)
            while True:
                await self._wanted.wait()
                self._wanted = anyio.Event()
                await self._reload()

    async def _hear_signals(self) -> None:
        if hangup := getattr(signal, "SIGHUP", None):  # not on Windows
            with anyio.open_signal_receiver(hangup) as signals:
                async for _ in signals:
                    self._wanted.set()

    async def _look(self, watch: FileWatch) -> None:
        while True:
            await watch.changed()
            if self._follows:
                self._wanted.set()

    async def _reload(self) -> None:
        try:
            # A program behind `${cmd:…}` may hang; it must not hold up the end of the gateway.
            loaded = await anyio.to_thread.run_sync(self._read, abandon_on_cancel=True)
            self._follows = await self._apply(loaded)
        except GatewayError as error:
            self.problem = f"The configuration file is not applied, the earlier one stays in use: {error}"
            logger.error("%s", self.problem)
            return
        self.problem = None

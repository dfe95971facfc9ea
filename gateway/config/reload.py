"""`Reloader`: reads the configuration file again when the file changes or the process receives SIGHUP.

If the file cannot be used, the running configuration stays in use and the status page shows the reason. `catalog.configured_sources`
applies the new configuration.
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

FIXED_SECTIONS = ("storage", "sessions", "tasks", "audit", "defaults", "telemetry")
"""Sections of the configuration whose changes are applied only by a restart of the gateway."""

FOLLOWED_SETTINGS = frozenset({"approval_by", "instructions", "reload", "lock_file", "log_level"})
"""Keys of the section `server` whose changes a reload applies. Changes of other keys of `server` need a restart of the gateway."""


def fixed_changes(running: GatewayConfig, written: GatewayConfig) -> list[str]:
    """Return the JSON paths of the settings that differ between two configurations, and that only a restart can apply."""
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
    """Return the configuration that a reload applies: `written`, but with the values of `running` for settings that need a restart."""
    before, after = running.config, written.config
    server = before.server.model_copy(update={name: getattr(after.server, name) for name in FOLLOWED_SETTINGS})
    kept = {section: getattr(before, section) for section in FIXED_SECTIONS}
    config = after.model_copy(update={**kept, "server": server})
    return dataclasses.replace(written, config=config, secrets=running.secrets | written.secrets)


class Reloader:
    """Reads and applies the configuration again after changes of its file, SIGHUP and calls of `read_again`, one reload at a time."""

    def __init__(
        self, read: Callable[[], LoadedConfig], apply: Callable[[LoadedConfig], Awaitable[bool]], watch: FileWatch | None, *, follows: bool
    ) -> None:
        """Create a reloader; `run` starts it.

        `read` loads the configuration and runs in a worker thread; `apply` applies the result. Both may raise `GatewayError`.

        If `follows` is true, changes of the file that `watch` watches cause reloads; otherwise only SIGHUP, `read_again` and `try_again`
        do. Each call of `apply` returns the new value of `follows`. Create `watch` before the running configuration is read, so that no
        change is missed; `None` watches no file.
        """
        self._read = read
        self._apply = apply
        self._watch = watch
        self._follows = follows
        self._wanted = anyio.Event()
        self.problem: str | None = None
        """Why the current content of the configuration file is not in use, or `None` if it is in use. Set by each reload."""
        self.on_hangup: Callable[[], None] = lambda: None
        """Function that is called at each SIGHUP, also if the configuration file cannot be used."""

    def read_again(self) -> None:
        """Request a reload by `run`, even if the configuration file did not change. Returns at once."""
        self._wanted.set()

    def try_again(self) -> None:
        """Request a reload by `run` if the last reload failed. Call it when a file on which the configuration depends has changed."""
        if self.problem is not None:
            self._wanted.set()

    async def run(self) -> None:
        """Reload the configuration after changes of its file (with `follows`), SIGHUP, and requests. Runs until it is cancelled.

        All changes and requests during a reload cause one further reload.
        """
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._follow_signals)
            if self._watch is not None:
                tasks.start_soon(self._follow_file, self._watch)
            while True:
                await self._wanted.wait()
                self._wanted = anyio.Event()
                await self._reload()

    async def _follow_signals(self) -> None:
        if hangup := getattr(signal, "SIGHUP", None):  # not on Windows
            with anyio.open_signal_receiver(hangup) as signals:
                async for _ in signals:
                    self.on_hangup()
                    self._wanted.set()

    async def _follow_file(self, watch: FileWatch) -> None:
        while True:
            await watch.changed()
            if self._follows:
                self._wanted.set()

    async def _reload(self) -> None:
        try:
            # A program for a `${cmd:…}` reference may hang, and the gateway must be able to stop in the meantime.
            loaded = await anyio.to_thread.run_sync(self._read, abandon_on_cancel=True)
            self._follows = await self._apply(loaded)
        except GatewayError as error:
            self.problem = f"The configuration file is not applied, the earlier one stays in use: {error}"
            logger.error("configuration not applied error=%s", error)
            return
        self.problem = None

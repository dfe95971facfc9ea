"""`LocalFiles`: detects changes of the files that define agents, workflows and functions.

Polls the modification times of the files in `expose.agents`, and of the Python modules that were imported for agents, workflows and
functions. Used by `local_sources`.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import anyio
import anyio.to_thread

from gateway.config.load import LoadedConfig
from gateway.config.watch import POLL_SECONDS, Signature, definition_files, signature_of
from gateway.errors import GatewayError
from gateway.tools.modules import OwnModules

logger = logging.getLogger(__name__)

SETTLE_SECONDS = 0.1
"""Seconds for which the files must stay unchanged before they are read, because editors write in several steps."""

Look = tuple[tuple[str, Signature], ...]

FileState = tuple[Look, int]
"""The part of `Files` that one source depends on: its files, and the generation of the modules."""


@dataclass(frozen=True, slots=True)
class Files:
    """The state of all files at one moment."""

    written: Look = ()
    """The files of agents and workflows, each with size and times (`Signature`), which show whether the file has changed."""
    imported: Look = ()
    """Imported Python modules, in the same form."""
    generation: int = 0
    """How often imported modules were dropped so that they are imported again (`OwnModules`)."""

    def of(self, kind: str) -> FileState:
        """Return the part of the state that the source `kind` depends on; compare two of them with `==`."""
        return (self.written if kind in ("agent", "workflow") else (), self.generation if kind != "skill" else 0)


class LocalFiles:
    """The watched files of one gateway."""

    def __init__(self) -> None:
        self._modules: OwnModules | None = None
        self._taken = Files()

    @property
    def modules(self) -> Mapping[str, Signature]:
        """The files of imported Python modules, including those that a change has broken."""
        return self._modules.files if self._modules is not None else {}

    @contextmanager
    def importing(self, base_dir: Path) -> Generator[None]:
        """Watch the modules that are imported inside the block. Relative module names start at `base_dir`."""
        self._modules = self._modules or OwnModules(base_dir)
        known = set(self._modules.files)
        with self._modules.current():
            yield
        added = [path for path in self._modules.files if path not in known]
        if added:
            signatures = dict(self._taken.imported) | {path: self._modules.files[path] for path in added}
            self._taken = Files(self._taken.written, tuple(sorted(signatures.items())), self._taken.generation)

    async def take(self, loaded: LoadedConfig) -> Files:
        """Return the current state and remember it for `changed`.

        If a module's file changed, drop the modules so that they are imported again.
        """
        now = await anyio.to_thread.run_sync(self._look, loaded)
        generation = self._taken.generation
        if self._modules is not None and now.imported != self._taken.imported:
            await anyio.to_thread.run_sync(self._modules.drop)
            generation = self._modules.generation
        self._taken = Files(now.written, now.imported, generation)
        return self._taken

    async def follow(self, loaded: Callable[[], LoadedConfig], take_up: Callable[[], Awaitable[None]]) -> None:
        """Call `take_up` after each change until cancelled. While `server.reload` of the configuration is false, ignore changes."""
        while True:
            await anyio.sleep(max(POLL_SECONDS, loaded().config.skills.refresh_seconds))
            try:
                if loaded().config.server.reload and await self.changed(loaded()):
                    await take_up()
            except (GatewayError, OSError) as error:
                logger.error("changed files not in use error=%s", error)

    async def changed(self, loaded: LoadedConfig) -> bool:
        """Return whether the files differ from the last `take`, and have not changed for `SETTLE_SECONDS`."""
        now = await anyio.to_thread.run_sync(self._look, loaded)
        if self._is_taken(now):
            return False
        while True:
            await anyio.sleep(SETTLE_SECONDS)
            again = await anyio.to_thread.run_sync(self._look, loaded)
            if again == now:
                return not self._is_taken(now)
            now = again

    def _is_taken(self, now: Files) -> bool:
        return (now.written, now.imported) == (self._taken.written, self._taken.imported)

    def _look(self, loaded: LoadedConfig) -> Files:
        found: dict[str, Signature] = {}
        for name in loaded.config.expose.agents:
            path = loaded.base_dir / name
            found |= {str(file): signature_of(file) for file in definition_files(path)}
        modules = sorted(self._modules.files) if self._modules is not None else []
        return Files(tuple(sorted(found.items())), tuple((path, signature_of(Path(path))) for path in modules))

"""`LocalFiles`: detects changes of the files that define agents, workflows and functions, so that the gateway can load them again.

It polls the size and times of two kinds of files: the agent and workflow files that the configuration key `expose.agents` names, and the
Python modules that were imported for agents, workflows and functions.
The module `local_sources` uses it.
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
"""Seconds for which the watched files must stay unchanged before they are read again, because editors write a file in several steps."""

Look = tuple[tuple[str, Signature], ...]

FileState = tuple[Look, int]
"""State of the files that one source depends on; if the state is equal to an earlier one, the source need not be built again.

It has the source's files with their signatures, and how often Python modules were dropped from `sys.modules` to import them again.
"""


@dataclass(frozen=True, slots=True)
class Files:
    """A snapshot of all watched files: the files of agents and workflows, and the imported Python modules."""

    written: Look = ()
    """Path of each file of agents and workflows, with size and times (`Signature`), by which a change of the file is detected."""
    imported: Look = ()
    """Path of each imported Python module, with size and times (`Signature`)."""
    generation: int = 0
    """How often the imported Python modules were dropped from `sys.modules`, so that they are imported again."""

    def of(self, kind: str) -> FileState:
        """Return the state of the files on which the source `kind` (`skill`, `function`, `agent` or `workflow`) depends.

        If the states of two snapshots are equal, the source need not be built again.
        """
        return (self.written if kind in ("agent", "workflow") else (), self.generation if kind != "skill" else 0)


class LocalFiles:
    """Watches the files that define a gateway's agents, workflows and functions, by polling."""

    def __init__(self) -> None:
        self._modules: OwnModules | None = None
        self._taken = Files()

    @property
    def modules(self) -> Mapping[str, Signature]:
        """Path → signature of each imported Python module, including modules that fail to import since a change."""
        return self._modules.files if self._modules is not None else {}

    @contextmanager
    def importing(self, base_dir: Path) -> Generator[None]:
        """Context manager that adds the files of the Python modules imported inside the `with` block to the watched files.

        Only modules in `base_dir`, the folder of the configuration, are added, without installed packages (`OwnModules`).
        """
        self._modules = self._modules or OwnModules(base_dir)
        known = set(self._modules.files)
        with self._modules.current():
            yield
        added = [path for path in self._modules.files if path not in known]
        if added:
            signatures = dict(self._taken.imported) | {path: self._modules.files[path] for path in added}
            self._taken = Files(self._taken.written, tuple(sorted(signatures.items())), self._taken.generation)

    async def take(self, loaded: LoadedConfig) -> Files:
        """Return a snapshot of the watched files, and store it, so that `changed` compares later states with it.

        If the file of an imported Python module has changed, drop all watched modules, so that they are imported again.
        """
        now = await anyio.to_thread.run_sync(self._look, loaded)
        generation = self._taken.generation
        if self._modules is not None and now.imported != self._taken.imported:
            await anyio.to_thread.run_sync(self._modules.drop)
            generation = self._modules.generation
        self._taken = Files(now.written, now.imported, generation)
        return self._taken

    async def follow(self, loaded: Callable[[], LoadedConfig], take_up: Callable[[], Awaitable[None]]) -> None:
        """Poll the watched files until cancelled. After each change, call `take_up`, which loads the files again.

        `loaded` returns the current configuration. Changes are ignored while its `server.reload` is false. If `take_up` fails, the error is
        logged and polling continues.
        """
        while True:
            await anyio.sleep(max(POLL_SECONDS, loaded().config.skills.refresh_seconds))
            try:
                if loaded().config.server.reload and await self.changed(loaded()):
                    await take_up()
            except (GatewayError, OSError) as error:
                logger.error("changed files not in use error=%s", error)

    async def changed(self, loaded: LoadedConfig) -> bool:
        """Return whether the watched files differ from the snapshot of the last `take`.

        If they do, first wait until they have been unchanged for `SETTLE_SECONDS`.
        """
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

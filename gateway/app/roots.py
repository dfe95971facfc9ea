"""`RootRules`: what a folder that a model gets may not touch, named from the configuration and from what this process has loaded.

`policy.roots` decides; this module collects the places: the configuration, its lock file, the state folder, agents, skills, modules,
the programs of servers, and the folders in which Python and the system look for code. Used by `local`, and by `moongate doctor`.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Literal, cast

from gateway.config.agents import reference_of
from gateway.config.load import LoadedConfig
from gateway.config.models import StdioServer
from gateway.errors import StorageError
from gateway.policy.decision import Reject
from gateway.policy.roots import Access, Protected, judge_root, remark_root
from gateway.storage.places import Place, place_of
from gateway.storage.state import default_state_dir, state_dir
from gateway.upstream.pins import lock_path

_CODE_SUFFIXES = frozenset(
    (".py", ".pyz", ".js", ".mjs", ".cjs", ".ts", ".sh", ".bash", ".rb", ".pl", ".php", ".lua", ".jar", ".wasm", ".exe", ".dll", ".so")
)
"""An argument of a server's command that ends so is taken for a program, even if it cannot be executed by itself."""


class RootRules:
    """The rules of one configuration; `refusal` is asked when agents are loaded and before each run, because folders change."""

    def __init__(self, loaded: LoadedConfig) -> None:
        """No side effects."""
        self._loaded = loaded
        self._fixed: list[Protected] | None = None
        self._modules: set[str] = set()
        self._code: dict[str, Place] = {}

    def protect(self, references: Iterable[str]) -> None:
        """Protect what files name in Python too: `package.module:name`."""
        self._modules.update(references)

    def refusal(self, root: Path, access: Access) -> str | None:
        """Return why a model may not have `root`, and what to do; `None` if it may. Blocks."""
        verdict = judge_root(str(root), place_of(root), access, self._protected())
        return verdict.reason if isinstance(verdict, Reject) else None

    def remark(self, root: Path) -> str | None:
        """Return what an operator should know of a folder that a model may read. Blocks."""
        return remark_root(str(root), place_of(root), self._protected())

    def _protected(self) -> list[Protected]:
        if self._fixed is None:
            self._fixed = list(_configured(self._loaded))
        named = [p for module in self._modules for p in _module_places(module, self._loaded.base_dir)]
        return [*self._fixed, *named, *self._loaded_code()]

    def _loaded_code(self) -> Iterator[Protected]:
        """The folders of modules that this process has imported; inside a package's folder nothing may be written either."""
        folders: dict[str, bool] = {}
        for module in list(sys.modules.values()):
            facts = cast("Mapping[str, object]", getattr(module, "__dict__", {}))
            file = facts.get("__file__")
            if isinstance(file, str):
                folder = os.path.dirname(file)
                folders[folder] = folders.get(folder, False) or "__path__" in facts
        for folder, is_package in folders.items():
            place = self._code.get(folder)
            if place is None:
                place = self._code[folder] = place_of(folder)
            yield Protected("Python code in use", folder, place, reach="both" if is_package else "around")


def _configured(loaded: LoadedConfig) -> Iterator[Protected]:
    yield from _own_files(loaded)
    base = loaded.base_dir
    for module in _configured_modules(loaded):
        yield from _module_places(module, base)
    for name, entry in loaded.config.mcp_servers.items():
        if isinstance(entry, StdioServer):
            folder = base / Path(entry.cwd).expanduser() if entry.cwd else base
            yield from _command_places(f"the program of server {name!r}", [entry.command, *entry.args], folder)
            yield _of(f"the working directory of server {name!r}", folder, reach="around")
    for name, secret in loaded.config.secrets.items():
        yield from _command_places(f"the program of secrets.{name}", secret.command, base)
    for place in (*sys.path, *os.environ.get("PATH", "").split(os.pathsep)):
        yield _of("a folder in which programs are looked for,", Path(place or "."), reach="around")


def _own_files(loaded: LoadedConfig) -> Iterator[Protected]:
    """The configuration and what stands in files beside it."""
    config, base = loaded.config, loaded.base_dir
    if loaded.path is not None:
        yield _of("the configuration file", loaded.path, is_remarked=True)
    if (lock := lock_path(loaded)) is not None:
        yield _of("the lock file", lock, is_remarked=True)
    for folder in dict.fromkeys((state_dir(config.storage.dir), _default_state())):
        if folder is not None:
            yield _of("the state folder", folder, refuses="reading")
    for path in config.expose.agents:
        yield _of("agents and workflows", base / path)
    for path in config.expose.skills:
        yield _of("skills", base / path)
    for rule in config.skills.signatures.values():
        for file in (rule.public_key, rule.trust_config, *rule.certificates):
            if file is not None:
                yield _of("a key for signatures of skills", base / file)


def _of(
    what: str,
    path: Path,
    *,
    refuses: Literal["writing", "reading"] = "writing",
    reach: Literal["both", "around"] = "both",
    is_remarked: bool = False,
) -> Protected:
    return Protected(what, str(path), place_of(path), refuses, reach, is_remarked)


def _default_state() -> Path | None:
    try:
        return default_state_dir()
    except StorageError:
        return None


def _configured_modules(loaded: LoadedConfig) -> list[str]:
    config = loaded.config
    return [*config.expose.functions, *config.skills.objects, *map(reference_of, config.agents.middleware)]


def _module_places(reference: str, base: Path) -> Iterator[Protected]:
    """Where `package.module` or `package.module:name` is looked for first, whether or not it is there yet."""
    top = reference.partition(":")[0].partition(".")[0]
    if top:
        for path in (base / f"{top}.py", base / top):
            yield _of(f"module {top!r}", path)


def _command_places(what: str, command: Sequence[str], folder: Path) -> Iterator[Protected]:
    """The files of a command: its program, if it is named by a path, and arguments that are programs or modules."""
    program, *arguments = command
    if os.sep in program or (os.altsep and os.altsep in program):
        yield _of(what, folder / Path(program).expanduser())
    for before, argument in zip(command, arguments, strict=False):
        if before == "-m":
            for path in (folder / f"{argument.partition('.')[0]}.py", folder / argument.partition(".")[0]):
                yield _of(what, path)
            continue
        path = folder / Path(argument)
        if "\0" not in argument and (path.suffix.lower() in _CODE_SUFFIXES or (path.is_file() and os.access(path, os.X_OK))):
            yield _of(what, path)

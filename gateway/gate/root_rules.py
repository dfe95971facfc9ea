"""`RootRules`: decides which folders an agent may read and write. An agent's file names these folders in `files` and `memory`.

A folder is refused if the agent could change code or settings that the gateway executes, or read the state folder. This module collects the
protected files and folders: the configuration, its lock file, the state folder, agents, skills, modules, the programs of servers, and the
folders in which Python and the operating system look for code. `policy.root_policy` compares a folder with them. Used by `local_sources`.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Literal, cast

from gateway.config.agents import reference_of
from gateway.config.command_places import places_of_command
from gateway.config.load import LoadedConfig
from gateway.config.models import StdioServer
from gateway.errors import StorageError
from gateway.policy.decision import Reject
from gateway.policy.root_policy import Access, Protected, judge_root, remark_root
from gateway.storage.path_identity import Place, place_of
from gateway.storage.state_folder import default_state_dir, state_dir


class RootRules:
    """Decides which folders agents may read and write, to protect the files that the gateway executes or reads its settings from.

    Agents call `refusal` when they are loaded and before each run, because folders may change.
    """

    def __init__(self, loaded: LoadedConfig) -> None:
        self._loaded = loaded
        self._fixed: list[Protected] | None = None
        self._modules: set[str] = set()
        self._code: dict[str, Place] = {}
        self.files: Mapping[str, object] = {}
        """Python files whose folders are also protected: the keys of this mapping, which `local_sources` owns and changes."""

    def protect(self, references: Iterable[str]) -> None:
        """Protect the files of these Python modules, too: from now on, agents get no folder in which they could change them.

        Files of agents and workflows refer to the modules as `package.module:name`.
        """
        self._modules.update(references)

    def refusal(self, root: Path, access: Access) -> str | None:
        """Return why an agent must not have `access` to the folder `root`, and what to do; `None` if access is allowed.

        `access` is reading or writing. This method blocks.
        """
        verdict = judge_root(str(root), place_of(root), access, self._protected())
        return verdict.reason if isinstance(verdict, Reject) else None

    def remark(self, root: Path) -> str | None:
        """Return a warning if an agent that may read `root` can read the configuration or its lock file there; else `None`. Blocks."""
        return remark_root(str(root), place_of(root), self._protected())

    def _protected(self) -> list[Protected]:
        if self._fixed is None:
            self._fixed = list(_configured(self._loaded))
        named = [p for module in self._modules for p in _module_places(module, self._loaded.base_dir)]
        return [*self._fixed, *named, *self._loaded_code()]

    def _loaded_code(self) -> Iterator[Protected]:
        """Yield the folders of `files` and of the Python modules that this process has imported: agents must not be able to change them.

        The folder of a package is protected with everything below it.
        """
        folders = {os.path.dirname(file): False for file in self.files}
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
            yield from _command_places(f"the program of server {name!r}", [entry.command, *entry.args], entry.env, folder)
            yield _of(f"the working directory of server {name!r}", folder, reach="around")
    for name, secret in loaded.config.secrets.items():
        yield from _command_places(f"the program of secrets.{name}", secret.command, {}, base)
    for place in (*sys.path, *os.environ.get("PATH", "").split(os.pathsep)):
        yield _of("a folder in which programs are looked for,", Path(place or "."), reach="around")


def _own_files(loaded: LoadedConfig) -> Iterator[Protected]:
    """Yield the configuration file, and the files and folders that it names, which agents must not be able to change (or even read).

    Python modules and programs are not included.
    """
    config, base = loaded.config, loaded.base_dir
    if loaded.path is not None:
        yield _of("the configuration file", loaded.path, is_remarked=True)
    if (lock := loaded.lock_path) is not None:
        yield _of("the lock file", lock, is_remarked=True)
    for folder in dict.fromkeys((state_dir(config.storage.dir), _default_state())):
        if folder is not None:
            yield _of("the state folder", folder, refuses="reading")
    for path in config.expose.agents:
        yield _of("agents and workflows", base / path)
    for path in config.expose.skills:
        yield _of("skills", base / path)
    for rule in config.skills.signatures.values():
        for file in rule.files:
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
    """Yield the paths in folder `base` from which Python would import the module of `reference`, as files and folders to protect.

    A reference is `package.module:name`. Paths that do not exist are included, because an agent could create a file there.
    """
    top = reference.partition(":")[0].partition(".")[0]
    if top:
        for path in (base / f"{top}.py", base / top):
            yield _of(f"module {top!r}", path)


def _command_places(what: str, command: Sequence[str], env: Mapping[str, str], folder: Path) -> Iterator[Protected]:
    """Yield the files that a command executes, and each symbolic link on their paths, because agents must not be able to change them.

    `what` describes the command in messages. `env` and `folder` are its environment variables and working directory.
    """
    for path, is_inner in dict.fromkeys(places_of_command(command, env, folder)):
        yield _of(what, path, reach="both" if is_inner else "around")
        for link in (step for step in (path, *path.parents) if os.path.islink(step)):
            yield Protected(what, str(link), (*place_of(link.parent), f"link {link.name}"), reach="around")

"""Finds the files and folders that a command executes, if its arguments or environment variables contain their paths.

`gate.root_rules` uses `places_of_command` so that agents may not write in folders with programs. Arguments are compared with the file
system instead of being interpreted, because every program reads its arguments differently. `docs/trust.md` lists what is not found.
"""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import Path

_CODE_SUFFIXES = frozenset(
    (".py", ".pyz", ".js", ".mjs", ".cjs", ".ts", ".sh", ".bash", ".rb", ".pl", ".php", ".lua", ".jar", ".wasm", ".exe", ".dll", ".so")
)
"""Suffixes of code files. A word of a command with such a suffix is the path of a program, even if the file does not exist yet."""

_PROGRAM_STEMS = frozenset(("__main__", "__init__", "index", "main", "server"))
_PROGRAM_FILES = frozenset(("package.json", "pyproject.toml", "setup.py", "deno.json", "deno.jsonc", "Cargo.toml", "go.mod", "main.go"))
"""Names of files by which a folder is recognized as a program.

A folder also counts as a program if it contains a code file whose name without suffix is in `_PROGRAM_STEMS`. All other folders count as
data.
"""

_FOLDER_WORDS = frozenset(("-C", "--chdir", "--directory", "--cwd", "--project", "--prefix", "--dir", "cd", "pushd"))
"""Options and shell commands, such as `cd`, that are followed by the working directory of a program."""

_SEARCHED = re.compile(
    r"PATH|(?:PYTHON|NODE_|LD_LIBRARY_|DYLD_\w+_|CLASS|GEM_|LUA_|GO|NIX_)PATH|PYTHON(?:HOME|USERBASE|STARTUP)|RUBYLIB|PERL5LIB|GEM_HOME"
    r"|VIRTUAL_ENV|UV_PROJECT|LD_PRELOAD|DYLD_INSERT_LIBRARIES|BASH_ENV|ENV|HOME|XDG_CONFIG_HOME"
)
"""Matches names of environment variables that contain paths of files or folders that programs execute or read settings from."""

_SEPARATORS = re.compile(r"[\s'\"`;|&<>(){}\[\],=:@]+")
_MODULE = re.compile(r"[A-Za-z_]\w*(?:\.\w+)*")
_MAX_WORDS = 2_000
"""Maximum number of words of a command that are examined. Only a command with long JSON as an argument has more."""


def places_of_command(command: Sequence[str], env: Mapping[str, str], folder: Path) -> Iterator[tuple[Path, bool]]:
    """Yield `(path, is_inner)` for each file or folder that a command executes. Blocks, because it reads the file system.

    `env` are the environment variables and `folder` is the working directory of `command`. `is_inner` is true if everything below the path
    is executed too. A path need not exist.
    """
    pairs = list(dict.fromkeys(_pairs(command)))[:_MAX_WORDS]
    bases = [folder, *_work_folders(pairs, folder)]
    searched = [base / part for name, value in env.items() if _SEARCHED.fullmatch(name) for part in _parts(value) for base in bases]
    program = command[0]
    if os.sep in program or (os.altsep and os.altsep in program):
        yield folder / Path(program).expanduser(), True
    for base in bases[1:]:
        yield base, _is_program_folder(base) and not _is_around(base, folder)
    for path in searched:
        yield path, not _is_around(path, folder)
    for before, word in pairs:
        if before == "-m":
            top = word.partition(".")[0]
            yield from ((base / name, True) for base in [*bases, *searched] for name in (f"{top}.py", top))
        for base in bases:
            yield from _executed(base / word, folder, any_file=True)
        if _MODULE.fullmatch(word):
            top = word.partition(".")[0]
            files = (base / name for base in [*bases, *searched] for name in (f"{top}.py", f"{top}/__init__.py"))
            yield from ((file, True) for file in files if os.path.isfile(file))
    for value in env.values():
        for word in {word for _, word in _pairs([value])}:
            for base in bases:
                yield from _executed(base / word, folder, any_file=False)


def _executed(path: Path, folder: Path, *, any_file: bool) -> Iterator[tuple[Path, bool]]:
    """Yield `(path, is_inner)` if a command that contains `path` executes this path.

    Commands execute the folders of programs, code files and executable files. With `any_file`, they also execute any other existing file
    and, if `path` does not exist, the files whose names are `path` and a suffix of code files.

    `is_inner` is true if everything below `path` is executed too. It is false for a folder that is or contains the command's working
    directory `folder`.
    """
    # `os.path` returns false, and does not raise, for a name that no file can have.
    if os.path.isdir(path):
        if _is_program_folder(path):
            yield path, not _is_around(path, folder)
    elif path.suffix.lower() in _CODE_SUFFIXES or (os.path.isfile(path) and (any_file or os.access(path, os.X_OK))):
        yield path, True
    elif any_file and not os.path.exists(path):  # Node executes `build/main.js` for the argument `build/main`.
        yield from ((found, True) for suffix in _CODE_SUFFIXES if os.path.isfile(found := path.with_name(f"{path.name}{suffix}")))


def _is_program_folder(folder: Path) -> bool:
    try:
        names = os.listdir(folder)
    except OSError:
        return False
    return any(name in _PROGRAM_FILES or (Path(name).stem in _PROGRAM_STEMS and Path(name).suffix in _CODE_SUFFIXES) for name in names)


def _is_around(path: Path, folder: Path) -> bool:
    """Return whether `path` is, or contains, the command's working directory `folder`.

    A command whose arguments contain such a path uses it, but does not execute every file below it.
    """
    return Path(os.path.realpath(folder)).is_relative_to(os.path.realpath(path))


def _work_folders(pairs: Iterable[tuple[str, str]], folder: Path) -> list[Path]:
    found: list[Path] = []
    for before, word in pairs:
        if before in _FOLDER_WORDS:
            found += [path for base in (folder, *found) if os.path.isdir(path := base / word)]
        elif word.startswith("-C") and len(word) > 2 and os.path.isdir(path := folder / word[2:]):
            found.append(path)
    return list(dict.fromkeys(found))[:16]


def _pairs(command: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Yield `(previous word, word)` for each word of a command.

    The words are the arguments, and the parts of each argument. Each argument is split in three ways: at its first `=`, as a shell splits
    it, and at separators. A word such as `-Ifolder` is also yielded without its option `-I`.
    """
    for words in (command, *(pieces for argument in command for pieces in _pieces(argument))):
        for before, word in pairwise(("", *words)):
            for form in (word, word[2:] if word.startswith("-") and not word.startswith("--") else ""):
                if form and "\0" not in form and len(form) < 1024:
                    yield before, os.path.expanduser(form)


def _pieces(argument: str) -> Iterator[Sequence[str]]:
    yield argument.partition("=")[::2]
    try:
        yield shlex.split(argument)
    except ValueError:
        pass  # unbalanced quotes: the argument is not a shell command
    yield _SEPARATORS.split(argument)


def _parts(value: str) -> list[str]:
    return [os.path.expanduser(part) for part in value.split(os.pathsep) if part and "\0" not in part]

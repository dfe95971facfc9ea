"""Finds packages without a fixed version that the start command of a server fetches from a registry (npm, PyPI).

`npx -y some-server@latest` runs whatever the registry serves on the day of the start, so a server may run another program although its
configuration is unchanged. `moongate doctor` and `moongate lock` report these packages; nothing rejects them. The functions are pure.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePath
from typing import Literal

Registry = Literal["npm", "PyPI"]

_NPM = re.compile(r"(?P<name>(@[\w.~-]+/)?[\w.~-]+)(@(?P<version>.*))?")
_PYPI = re.compile(r"(?P<name>[A-Za-z0-9][\w.-]*)(\[[^\]]*\])?\s*(@|==)?\s*(?P<version>.*)")
_EXACT_NPM = re.compile(r"[v=]?\d+\.\d+\.\d+([-+][\w.+-]+)?")
_EXACT_PYPI = re.compile(r"v?\d+(\.\d+)*([-.+]?[\w.+-]+)?")
"""Both match an exact version of a package, but not a range, tag or wildcard. npm reads `1` and `1.2` as ranges."""


@dataclass(frozen=True, slots=True)
class _Starter:
    """Describes the command line of a program such as `npx`, which fetches packages and runs one of them."""

    registry: Registry
    verbs: tuple[str, ...] = ()
    """First arguments that make the program run a package, such as `dlx`; empty for a program that always runs a package."""
    packages: frozenset[str] = frozenset()
    """Options whose value is a package to fetch."""
    instead: frozenset[str] = frozenset()
    """Options that change the meaning of the first argument that is not an option: it is the command to run, not the name of a package."""
    others: frozenset[str] = frozenset()
    """Options with a value that is not a package, so that the value is not taken for the package to run."""
    asks: bool = False
    """Whether the program prefers an installed package if the name has no version and `-y` is not given, as `npx` does."""


_NPX = _Starter(
    "npm",
    packages=frozenset({"-p", "--package"}),
    instead=frozenset({"-p", "--package", "-c", "--call"}),
    others=frozenset({"-c", "--call", "-w", "--workspace", "--registry", "--cache", "--prefix", "--userconfig", "--loglevel"}),
    asks=True,
)
_UVX = _Starter(
    "PyPI",
    packages=frozenset({"--from", "--with", "-w"}),
    instead=frozenset({"--from"}),
    others=frozenset({
        "-p", "--python", "-i", "--index-url", "--index", "--default-index", "--extra-index-url", "-f", "--find-links", "--with-editable",
        "--with-requirements", "-c", "--constraints", "--overrides", "--directory", "--project", "--cache-dir", "--config-file",
        "--env-file", "--refresh-package", "--reinstall-package",
        "-P", "--upgrade-package", "--prerelease", "--resolution", "--exclude-newer", "--color",
    }),
)  # fmt: skip
_PIPX = _Starter("PyPI", ("run",), frozenset({"--spec"}), frozenset({"--spec"}), frozenset({"--python", "--pip-args", "-i", "--index-url"}))
_STARTERS: Mapping[str, tuple[_Starter, ...]] = {
    "npx": (_NPX,),
    "bunx": (_NPX,),
    "pnpx": (_NPX,),
    "npm": (_Starter("npm", ("exec",), _NPX.packages, _NPX.instead, _NPX.others, asks=True),
            _Starter("npm", ("x",), _NPX.packages, _NPX.instead, _NPX.others, asks=True)),
    "pnpm": (_Starter("npm", ("dlx",), frozenset({"--package"}), frozenset({"--package"})),),
    "yarn": (_Starter("npm", ("dlx",), _NPX.packages, frozenset()),),
    "bun": (_Starter("npm", ("x",), _NPX.packages, _NPX.instead),),
    "uvx": (_UVX,),
    "uv": (_Starter("PyPI", ("tool", "run"), _UVX.packages, _UVX.instead, _UVX.others),),
    "pipx": (_PIPX,),
}  # fmt: skip


def floating_packages(command: str, args: Sequence[str]) -> list[str]:
    """Return the packages without a fixed version that a start command fetches, each with the reason, as text for a person."""
    words = [command, *args]
    name = _program(words)
    if name == "cmd":  # `cmd /c npx …`, common on Windows
        while words and (words[0].startswith("/") or _program(words) == "cmd"):
            words = words[1:]
        name = _program(words)
    found: list[str] = []
    for starter in _STARTERS.get(name, ()):
        rest = words[1:]
        if tuple(rest[: len(starter.verbs)]) == starter.verbs:
            rest = rest[len(starter.verbs) :]
            is_sure = not starter.asks or bool({"-y", "--yes"} & set(rest))
            found += [finding for spec in _specs(starter, rest) if (finding := _judge(starter.registry, spec, is_sure))]
    return found


def _program(words: Sequence[str]) -> str:
    name = PurePath(words[0].replace("\\", "/")).name.lower() if words else ""
    return re.sub(r"\.(cmd|exe|bat|ps1)$", "", name)


def _specs(starter: _Starter, words: Sequence[str]) -> Iterator[str]:
    """Yield the packages in `words`, the arguments of the program `starter` (such as `npx`), up to the arguments of the started command."""
    names_command = False
    rest = iter(words)
    for word in rest:
        option, is_joined, value = word.partition("=")
        if word == "--":
            continue
        if word.startswith("-"):
            names_command |= option in starter.instead
            if option in starter.packages | starter.others and not is_joined:
                value = next(rest, "")
            if option in starter.packages:
                yield from value.split(",") if starter.registry == "PyPI" else (value,)
            continue
        if not names_command:
            yield word
        return


def _judge(registry: Registry, spec: str, is_sure: bool) -> str | None:
    """Return why the registry may serve another version of the package `spec`, or `None` if `spec` fixes the version.

    Also return `None` if `spec` is a path or a repository instead of a package of the registry. `is_sure`: the program fetches a package
    without a version even if the package is installed. Only then is a package without a version reported.
    """
    spec = spec.strip()
    match = (_NPM if registry == "npm" else _PYPI).fullmatch(spec)
    if match is None or spec.startswith((".", "/")) or "://" in spec:
        return None
    version = (match["version"] or "").strip()
    if not version:
        return f"{spec[:200]!r} names no version" if is_sure else None
    is_exact = (_EXACT_NPM if registry == "npm" else _EXACT_PYPI).fullmatch(version)
    return None if is_exact else f"{spec[:200]!r} changes whenever {registry} has a new version"

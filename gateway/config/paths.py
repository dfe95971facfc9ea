"""Finds the configuration file, and the folders that ship with Moongate. Used by `load` and the CLI. No file is read here."""

from __future__ import annotations

import os
from collections.abc import Mapping
from importlib.resources import files
from pathlib import Path
from typing import Literal, cast

from gateway.config.suggest import closest
from gateway.errors import ConfigError

BundledKind = Literal["config", "agents", "skills"]

CONFIG_VARIABLE = "MOONGATE_CONFIG"
"""Environment variable with the path of the configuration file."""

SEARCHED = ("gateway.json", "config/gateway.json")
"""Paths, relative to the working directory, at which the configuration file is searched, in this order."""


def bundled(kind: BundledKind) -> Path:
    """Return the path of a folder that ships with Moongate: in the installed package or, in a clone, at the root of the repository."""
    packaged = Path(str(files("gateway"))) / "_bundled" / kind
    return packaged if packaged.is_dir() else Path(__file__).resolve().parents[2] / kind


def is_bundled_config(file: Path) -> bool:
    """Return whether `file` is the configuration that ships with Moongate, installed or in a clone of the repository."""
    return file.resolve() == (bundled("config") / "gateway.json").resolve()


def find_config(explicit: str | Path | None, environ: Mapping[str, str]) -> Path | None:
    """Return the path of the configuration file to read; `None` if not even the file that ships with Moongate exists.

    The file is the first of these that exists: `explicit`, `$MOONGATE_CONFIG` in `environ`, `./gateway.json`, `./config/gateway.json`, and
    the file that ships with Moongate. If `explicit` or `$MOONGATE_CONFIG` is given, it must exist.

    Raises:
        ConfigError: `explicit`, or the path in `$MOONGATE_CONFIG`, is not a file.
    """
    here = Path.cwd()
    named = ((explicit, "--config"), (environ.get(CONFIG_VARIABLE) or None, f"${CONFIG_VARIABLE}"))
    for value, origin in named:
        if value is not None:
            path = (here / Path(value).expanduser()).absolute()
            if path.is_file():
                return path
            if path.is_dir():
                inside = Path(value) / SEARCHED[0]
                kind, hint = "is a folder, not a file", f"Did you mean {str(inside)!r}?" if (here / inside).is_file() else ""
            else:
                kind, hint = "does not exist", did_you_mean_path(value, here)
            text = f"Configuration file {str(value)!r} (from {origin}) {kind}. {hint}".rstrip()
            raise ConfigError(text, path=str(value))
    candidates = [*(here / name for name in SEARCHED), bundled("config") / "gateway.json"]
    return next((path.absolute() for path in candidates if path.is_file()), None)


def did_you_mean_path(written: str | Path, working_dir: Path | None = None) -> str:
    """Return `Did you mean 'x'?` with the existing path most similar to `written`; an empty string if no path is similar."""
    path = Path(written).expanduser()
    base = working_dir or Path()
    folder, names = path, cast("list[str]", [])
    while not (base / folder).is_dir() and folder.name:
        folder, names = folder.parent, [folder.name, *names]
    near = folder
    for name in names:
        try:
            there = os.listdir(base / near)
        except OSError:
            return ""
        match = name if name in there else closest(name, there)
        if match is None:
            return ""
        near /= match
    return f"Did you mean {str(near)!r}?" if near != path else ""

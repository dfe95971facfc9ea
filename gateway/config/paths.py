"""Paths of the configuration and of files that ship with the package.

Only computes paths and checks whether they exist. Used by `load` and the CLI.
"""

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
"""Configuration files that are looked up in the working directory, in this order."""


def bundled(kind: BundledKind) -> Path:
    """Return the path of a folder that ships with Moongate, in the installed package or else at the repository root."""
    packaged = Path(str(files("gateway"))) / "_bundled" / kind
    return packaged if packaged.is_dir() else Path(__file__).resolve().parents[2] / kind


def is_bundled_config(file: Path) -> bool:
    """Return whether `file` is the configuration that ships with Moongate, installed or in a clone of the repository."""
    return file.resolve() == (bundled("config") / "gateway.json").resolve()


def find_config(explicit: str | Path | None, environ: Mapping[str, str], *, working_dir: Path | None = None) -> Path | None:
    """Return the configuration file to read; `None` if not even the bundled file exists.

    Order: `explicit`, `$MOONGATE_CONFIG`, `./gateway.json`, `./config/gateway.json`, the bundled file.

    Raises:
        ConfigError: `explicit`, or the file that the variable names, does not exist.
    """
    here = working_dir or Path.cwd()
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
    """Return `Did you mean 'x'?` with the existing path closest to the path `written`; an empty string if none is close."""
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

"""Where files are found: the configuration, and what ships with the package.

Only computes paths and looks whether they exist; reads and writes nothing. Used by `load` and the CLI.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib.resources import files
from pathlib import Path
from typing import Literal

from gateway.errors import ConfigError

BundledKind = Literal["config", "agents", "skills"]

CONFIG_VARIABLE = "MOONGATE_CONFIG"
"""Environment variable naming the configuration file."""

SEARCHED = ("gateway.json", "config/gateway.json")
"""Looked for in the working directory, in this order."""


def bundled(kind: BundledKind) -> Path:
    """The folder that ships with Moongate: in the installed package, else at the repository root."""
    packaged = Path(str(files("gateway"))) / "_bundled" / kind
    return packaged if packaged.is_dir() else Path(__file__).resolve().parents[2] / kind


def is_bundled_config(file: Path) -> bool:
    """Whether `file` is the configuration that ships with Moongate, in a clone too."""
    return file.resolve() == (bundled("config") / "gateway.json").resolve()


def find_config(explicit: str | Path | None, environ: Mapping[str, str], *, working_dir: Path | None = None) -> Path | None:
    """The configuration file to read; `None` when there is none at all, not even the bundled one.

    Order: `explicit`, `$MOONGATE_CONFIG`, `./gateway.json`, `./config/gateway.json`, the bundled file.

    Raises:
        ConfigError: A file that was asked for by name does not exist.
    """
    here = working_dir or Path.cwd()
    named = ((explicit, "--config"), (environ.get(CONFIG_VARIABLE) or None, f"${CONFIG_VARIABLE}"))
    for value, origin in named:
        if value is not None:
            path = (here / Path(value).expanduser()).absolute()
            if path.is_file():
                return path
            kind = "is a folder, not a file" if path.is_dir() else "does not exist"
            raise ConfigError(f"Configuration file {str(value)!r} (from {origin}) {kind}.", path=str(value))
    candidates = [*(here / name for name in SEARCHED), bundled("config") / "gateway.json"]
    return next((path.absolute() for path in candidates if path.is_file()), None)

"""Reads `.env` files, from which Python programs that use Moongate as a library take settings and telemetry variables."""

from __future__ import annotations

import os
from pathlib import Path


def read_env_file(path: str | os.PathLike[str], encoding: str | None = None) -> dict[str, str]:
    """Return the variables of a `.env` file; the default encoding is UTF-8.

    Raises:
        FileNotFoundError: The file does not exist.
    """
    if not Path(path).exists():
        raise FileNotFoundError(str(path))
    from dotenv import dotenv_values  # not loaded unless such a file is read

    return {name: value for name, value in dotenv_values(path, encoding=encoding or "utf-8").items() if value is not None}

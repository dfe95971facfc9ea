"""`.env` files of programs that use Moongate as a library: their settings and their telemetry read them."""

from __future__ import annotations

import os
from pathlib import Path


def read_env_file(path: str | os.PathLike[str], encoding: str | None = None) -> dict[str, str]:
    """The variables of a `.env` file, UTF-8 where nothing else is said.

    Raises:
        FileNotFoundError: There is no such file.
    """
    if not Path(path).exists():
        raise FileNotFoundError(str(path))
    from dotenv import dotenv_values  # loaded only by who reads such a file

    return {name: value for name, value in dotenv_values(path, encoding=encoding or "utf-8").items() if value is not None}

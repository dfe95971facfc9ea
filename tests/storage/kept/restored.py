"""Makes a working folder of a kept state folder and configuration."""

from __future__ import annotations

import json
import os
import shutil
import sqlite3
import time
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gateway.config.load import load_config
from gateway.storage.file_names import DATABASE_FILE
from gateway.storage.state_folder import StateFolder
from gateway.upstream.hop_id import configuration_id

HERE = Path(__file__).parent
VERSIONS = sorted(path.parent.name for path in HERE.glob("*/facts.json"))

_UNMOVED = ("audit", "audit_chain", "schema_version")
"""Tables whose times do not move along: digests cover those of the audit log."""


@dataclass(frozen=True)
class Kept:
    """A folder with the configuration and the state of a version, and the ids of what is in it."""

    folder: Path
    facts: dict[str, Any]

    @property
    def path(self) -> Path:
        """Path of the configuration file."""
        return self.folder / "gateway.json"


def restored(version: str, folder: Path) -> Kept:
    """Copy the files of a version to the new folder `folder`, and build its database.

    Times move along to today, so that nothing has expired. The rows are given to the configuration at its new path.
    """
    shutil.copytree(HERE / version, folder, ignore=shutil.ignore_patterns("__pycache__", "facts.json", "database.sql"))
    facts: dict[str, Any] = json.loads((HERE / version / "facts.json").read_text())
    (folder / "state").chmod(0o700)
    for path in (folder / "state").rglob("*"):
        path.chmod(0o700 if path.is_dir() else 0o600)
    environ = {**os.environ, "MOONGATE_PYTHON": "python"}
    own = configuration_id(StateFolder(folder / "state"), load_config(folder / "gateway.json", environ))
    with closing(sqlite3.connect(folder / "state" / DATABASE_FILE)) as database:
        database.executescript((HERE / version / "database.sql").read_text(encoding="utf-8"))
        for (table,) in database.execute("SELECT name FROM sqlite_master WHERE type = 'table'").fetchall():
            columns = [(name, kind) for _, name, kind, *_ in database.execute(f"PRAGMA table_info({table})")]
            for name, kind in columns:
                if kind == "FLOAT" and table not in _UNMOVED:
                    since = time.time() - facts["at"]
                    database.execute(f"UPDATE {table} SET {name} = {name} + ? WHERE {name} > 1e9", (since,))
                if name == "gateway":
                    database.execute(f"UPDATE {table} SET gateway = ? WHERE gateway = ?", (own, facts["configuration"]))
        database.execute("UPDATE task_owners SET until = 0")  # the process is dead
        database.commit()
    (folder / "state" / DATABASE_FILE).chmod(0o600)
    return Kept(folder, facts)

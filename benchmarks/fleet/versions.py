"""Versions of the gateway for a rolling upgrade: this checkout or an earlier revision, then an expanding step, then a contracting one.

An earlier revision is an archive of the repository's history. No release contracts the newest schema yet, so the harness appends two
migration steps to copies of this checkout: the first adds a column to the tables that every call and task uses, the second removes the
column and refuses programs that do not know the first.
"""

from __future__ import annotations

import compileall
import io
import re
import shutil
import subprocess
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import cast

from benchmarks.machine import ROOT
from gateway.storage.migrations import STEPS

MIGRATIONS = "gateway/storage/migrations.py"
TABLES = ("api_keys", "audit", "client_sessions", "replicas", "tasks", "task_steps")
"""Tables that the added steps change."""


@dataclass(frozen=True)
class Version:
    """A version of the gateway that replicas can run."""

    name: str
    checkout: Path
    """The folder with the package `gateway`."""
    schema: int
    """The newest schema version that it knows."""


@dataclass(frozen=True)
class Upgrade:
    """The versions of a rolling upgrade, in order: each is one schema step or more later than the one before."""

    earlier: Version
    expanded: Version
    contracted: Version


def this_checkout() -> Version:
    """Return the version of this checkout."""
    return Version("this checkout", ROOT, len(STEPS))


def prepare(folder: Path, revision: str | None) -> Upgrade:
    """Make the versions of an upgrade below `folder`.

    `revision` is the earlier version: a revision of the repository, or this checkout if it is `None`.

    Raises:
        SystemExit: The repository does not have the revision.
    """
    earlier = _archived(folder / "earlier", revision) if revision else ROOT
    first = Version(revision or "this checkout", earlier, _schema_of((earlier / MIGRATIONS).read_text()))
    number = len(STEPS)
    expand = "".join(f"ALTER TABLE {table} ADD COLUMN fleet_form TEXT NOT NULL DEFAULT '';\n" for table in TABLES)
    contract = "".join(f"ALTER TABLE {table} DROP COLUMN fleet_form;\n" for table in TABLES)
    steps = [f"Step({expand!r}, oldest={STEPS[-1].oldest})", f"Step({contract!r}, oldest={number + 1})"]
    expanded = Version("this checkout and an expanding step", _copied(folder / "expanded", steps[:1]), number + 1)
    contracted = Version("the same and a contracting step", _copied(folder / "contracted", steps), number + 2)
    return Upgrade(first, expanded, contracted)


def _copied(place: Path, steps: list[str]) -> Path:
    """Copy this checkout's package to `place`, with more migration steps."""
    ignored = shutil.ignore_patterns("__pycache__", "_bundled")
    shutil.copytree(ROOT / "gateway", place / "gateway", ignore=ignored)
    path = place / MIGRATIONS
    text = path.read_text()
    added = f"STEPS = (*STEPS, {', '.join(steps)})\n\n_WORDS = {{"
    assert text.count("\n_WORDS = {") == 1, f"{MIGRATIONS} has another form"
    path.write_text(text.replace("\n_WORDS = {", f"\n{added}", 1))
    compileall.compile_dir(str(place / "gateway"), quiet=2)
    return place


def _archived(place: Path, revision: str) -> Path:
    """Extract a revision of the repository to `place`."""
    found = subprocess.run(["git", "-C", str(ROOT), "archive", "--format=zip", revision, "gateway"], capture_output=True)
    if found.returncode:
        raise SystemExit(f"fleet: git has no revision {revision!r}. Name a commit of this repository with --from.")
    with zipfile.ZipFile(io.BytesIO(found.stdout)) as archive:
        archive.extractall(place)
    compileall.compile_dir(str(place / "gateway"), quiet=2)
    return place


def _schema_of(source: str) -> int:
    """Return the newest schema version that the text of a module of migrations knows."""
    scope: dict[str, object] = {"__name__": "gateway.storage.migrations"}
    match = re.search(r"^STEPS\b", source, re.MULTILINE)
    if match is None:
        return 0
    try:
        exec(compile(source, MIGRATIONS, "exec", dont_inherit=True), scope)  # the source is a revision of this repository
    except Exception:
        return 0
    steps = scope.get("STEPS")
    return len(cast("tuple[object, ...]", steps)) if isinstance(steps, tuple) else 0

"""`Spec`: the description of one run, which `sandbox` sends to the launcher."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Spec:
    """The program of a run and its limits. Paths are absolute and exist, except `own` and paths in `read`."""

    argv: Sequence[str]
    env: dict[str, str]
    given: str
    """Folder with the files that are copied to the script's working folder."""
    own: str
    """Folder that will contain the working folder `work` and the home `home`, on a file system of limited size if possible."""
    top: str
    """An empty folder on which the launcher mounts the new root file system."""
    shown: str
    """Path at which the working folder also appears if the machine allows it; empty for no other path."""
    read: Sequence[str]
    """Paths that the script may read; missing paths are left out."""
    limits: dict[str, int]
    """Resource limits, by the names of module `resource` without `RLIMIT_`."""
    max_bytes: int
    """Maximum bytes that the script may write in all files together."""
    max_files: int
    """Maximum number of files and folders that the script may create."""
    network: bool
    nobody: bool
    """Whether the launcher, which in this case runs as root, must change to the user `nobody` first."""
    nobody_inside: bool
    """Whether the script's process becomes `nobody` in its namespaces, if it has its own root file system; the launcher stays root."""
    may_fall_back: bool
    """Whether the script may be started although names and attributes of files outside cannot be hidden from it."""
    wrapped: bool
    """Whether a wrapper has already made namespaces, a root, and a limited file system at `own`."""

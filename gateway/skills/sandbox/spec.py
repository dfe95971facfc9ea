"""`Spec`: the description of one run of a script, which `sandbox` sends to the launcher, the program that confines the script."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Spec:
    """The program of a run, its files and its limits, for the launcher, which confines and starts it.

    All paths are absolute. They exist, except that `own` and paths in `read` may be missing.
    """

    argv: Sequence[str]
    env: dict[str, str]
    given: str
    """Folder with the files that are copied to the script's working folder."""
    own: str
    """Folder in which the script's working folder `work` and home folder `home` are created, on a file system of limited size if
    possible."""
    top: str
    """An empty folder on which the script's root file system is mounted."""
    shown: str
    """Second path at which the working folder is available, if the machine allows it; empty for none."""
    read: Sequence[str]
    """Paths that the script may read. Missing paths are skipped."""
    limits: dict[str, int]
    """Resource limits: names of constants of the module `resource` without `RLIMIT_` → values."""
    max_bytes: int
    """Maximum bytes that the script may write in all files together."""
    max_files: int
    """Maximum number of files and folders that the script may create."""
    network: bool
    nobody: bool
    """Whether the launcher, which confines and starts the script, must change to the user `nobody` first. The launcher must run as root for
    this."""
    nobody_inside: bool
    """Whether the script's process changes to the user `nobody` after it entered its namespaces, while the launcher stays root. The
    process becomes root again if it cannot get a root file system of its own."""
    may_fall_back: bool
    """Whether the script may run even if names and attributes of files outside the sandbox cannot be hidden from it."""
    wrapped: bool
    """Whether bubblewrap has already created the namespaces, the root file system, and a file system of limited size at `own`."""

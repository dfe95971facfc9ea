"""`Spec`: what `run` tells the launcher to start and how to shut it in."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Spec:
    """One run. Paths are absolute, and exist unless it says otherwise."""

    argv: Sequence[str]
    env: dict[str, str]
    given: str
    """Folder with the files of the script's working folder, which are copied."""
    own: str
    """Where the working folder `work` and the home `home` are made, on a file system of limited size if possible; not there yet."""
    top: str
    """An empty folder to mount the new root on."""
    shown: str
    """Where the working folder is to appear, if that can be done; empty if nowhere else."""
    read: Sequence[str]
    """What may be read; missing paths are left out."""
    limits: dict[str, int]
    """By names of `resource` without `RLIMIT_`."""
    max_bytes: int
    """Of everything it writes."""
    max_files: int
    """Files and folders that it makes."""
    network: bool
    nobody: bool
    """Whether the launcher is to become `nobody` first; it is root then."""
    nobody_inside: bool
    """Whether the script's process is to become `nobody` in its namespaces, if it has a root of its own; the launcher stays root."""
    may_fall_back: bool
    """Whether the script may be started although names and attributes of files outside cannot be hidden from it."""
    wrapped: bool
    """Whether a wrapper has already made namespaces, a root, and a limited file system at `own`."""

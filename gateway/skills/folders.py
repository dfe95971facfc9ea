"""Safe access to skill folders on disk: finds skills below a root folder, lists their files, and reads the files.

Authors of skills are not trusted. Listing therefore checks links and file types. Reading opens one path segment after the other below the
root folder, follows no link, does not block on a FIFO, and fails if the file changes meanwhile. A file with a second name (hard link) is
refused (`config.documents`). Paths come from a listing, never from a client. `reader` and `objects` use this module. Its functions block;
call them in a worker thread.
"""

from __future__ import annotations

import os
import re
import stat
import unicodedata
from collections.abc import Iterator
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import cast

from gateway.config.documents import HAS_SECOND_NAME, has_second_name
from gateway.diagnostics import Diagnostic, Level
from gateway.skills.model import MANIFEST, MAX_SKILL_BYTES, Stamp

_UNNAMEABLE = re.compile(r"[\x00-\x1f\x7f-\x9f\\\ud800-\udfff]")
"""Characters in file names that no client can send: control characters, backslashes and undecodable bytes."""

JUNK = (".git", "node_modules", "__pycache__", ".venv", ".DS_Store", "*.pyc", ".env*")
"""Name patterns of files and folders that are never served: caches, dependencies, secrets. One published skill has 48 MB of these."""

MAX_ENTRIES = 20_000
"""Maximum number of directory entries listed per skill; further entries are not served. The largest published skill has 1,104 files."""

MAX_DEPTH = 16
"""Maximum levels of folders in a skill, counting its own folder; deeper ones are not served. The deepest published skill has 7 levels."""

MAX_SEARCH_DEPTH = 6
"""Levels of folders below a root folder that are searched for skills (Agent Skills client guide, scan bounds)."""

MAX_SEARCH_FOLDERS = 20_000
"""Maximum number of folders searched per root folder, so that the search ends if the root is `/` by mistake."""


class Changed(Exception):
    """Raised if a file can no longer be read as it was listed. It is handled inside the package `skills`."""


@dataclass(frozen=True, slots=True)
class FoundFile:
    """A regular file that was found when a skill's folder was listed."""

    path: str
    """Path of the file relative to the skill's folder, as clients see it."""
    segments: tuple[str, ...]
    """Real location of the file below the root folder (the folder searched for skills), as path segments with links resolved."""
    stamp: Stamp


@dataclass(slots=True)
class Listing:
    """All files of one skill, sorted by path, and the problems found while listing them."""

    files: list[FoundFile] = field(default_factory=lambda: cast("list[FoundFile]", []))
    problems: list[Diagnostic] = field(default_factory=lambda: cast("list[Diagnostic]", []))
    manifest_name: str = MANIFEST
    """Name of the skill's own `SKILL.md` as the disk spells it, such as `skill.md`."""
    nested: list[tuple[str, ...]] = field(default_factory=lambda: cast("list[tuple[str, ...]]", []))
    """Folders inside the skill that are skills themselves, because they have a `SKILL.md`. Each is given as path segments below the root
    folder (the folder searched for skills)."""


def is_junk(name: str) -> bool:
    """Return whether a file or folder with this name is never served: a cache, a dependency or a secret by the patterns in `JUNK`."""
    return any(fnmatchcase(name, pattern) for pattern in JUNK)


def stamp_of(status: os.stat_result) -> Stamp:
    """Return size, mtime, inode and ctime of a file. A later change of the content changes them, except within two seconds of the last."""
    return (status.st_size, status.st_mtime_ns, status.st_ino, status.st_ctime_ns)


Problems = list[tuple[str, Diagnostic]]
"""Pairs of path and diagnostic, about folders that cannot be searched and links that cannot be followed."""


def find_skills(
    root: str, roots: tuple[str, ...], problems: Problems, max_depth: int = MAX_SEARCH_DEPTH
) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Yield each skill folder at or below `root` as `(root, segments)`, in path order.

    A skill folder has a `SKILL.md`. Folders inside a skill, folders whose names begin with a dot, and those in `JUNK` are not searched,
    nor are folders more than `max_depth` levels below `root`. `roots` are the real paths of all configured folders. For a symbolic link to
    a skill folder, the link's target is yielded, with the one of `roots` that contains the target. If no configured folder contains the
    target, the link is skipped and added to `problems`.
    """
    stack: list[tuple[str, ...]] = [()]
    looked = 0
    while stack:
        segments = stack.pop()
        looked += 1
        if looked > MAX_SEARCH_FOLDERS:
            text = f"More than {MAX_SEARCH_FOLDERS} folders; the rest is not searched. Name a folder further down."
            problems.append((root, Diagnostic("too-many-folders", "warning", text)))
            return
        folders: list[tuple[str, ...]] = []
        is_skill = False
        place = os.path.join(root, *segments)
        entries = _entries(place)
        if entries is None:
            text = "The folder cannot be read and is not searched. Correct its rights."
            problems.append((place, Diagnostic("folder-unreadable", "warning", text)))
            continue
        for entry in entries:
            if _UNNAMEABLE.search(entry.name):
                text = f"{entry.name!r} has characters that no client can name; not searched. Rename it."
                problems.append((place, Diagnostic("file-name", "warning", text)))
            elif entry.is_symlink():
                linked = None if is_junk(entry.name) else _linked_skill(entry.path, roots, problems)
                if linked is not None:
                    yield linked
                is_skill = is_skill or entry.name == MANIFEST
            elif entry.name.lower() == MANIFEST.lower() and (entry.name == MANIFEST or not entry.is_dir(follow_symlinks=False)):
                is_skill = True
            elif entry.is_dir(follow_symlinks=False):
                folders.append((*segments, entry.name))
        if is_skill:
            yield root, segments
        elif len(segments) < max_depth:
            stack.extend(f for f in reversed(folders) if not f[-1].startswith(".") and not is_junk(f[-1]))


def _linked_skill(path: str, roots: tuple[str, ...], problems: Problems) -> tuple[str, tuple[str, ...]] | None:
    try:
        real = os.path.realpath(path, strict=True)
        if not os.path.isdir(real) or not any(name.lower() == MANIFEST.lower() for name in os.listdir(real)):
            return None
    except OSError:
        return None
    for root in roots:
        segments = segments_below(root, real)
        if segments is not None:
            return root, segments
    text = f"{os.path.basename(path)!r} links to a skill outside the configured folders; add that folder to `expose.skills`."
    problems.append((path, Diagnostic("link-outside-roots", "error", text)))
    return None


def segments_below(folder: str, path: str) -> tuple[str, ...] | None:
    """Return the path segments of `path` below `folder`, or `None` if `path` is outside. Both are real paths, without links."""
    if path == folder:
        return ()
    prefix = folder.rstrip(os.sep) + os.sep
    return tuple(path[len(prefix) :].split(os.sep)) if path.startswith(prefix) else None


def _entries(folder: str) -> list[os.DirEntry[str]] | None:
    """Return a folder's directory entries, sorted by name; `None` if the folder cannot be read, an empty list if it no longer exists."""
    try:
        with os.scandir(folder) as entries:
            return sorted(entries, key=lambda e: e.name)
    except (FileNotFoundError, NotADirectoryError):
        return []
    except OSError:
        return None


class _Walk:
    """One pass over a skill folder, which collects its files and problems in `listing`. A problem of level `error` refuses the skill."""

    def __init__(self, root: str, segments: tuple[str, ...]) -> None:
        self.root = root
        self.top = segments
        self.listing = Listing()
        self.seen = 0

    def folder(self, path: str, segments: tuple[str, ...], parents: tuple[tuple[str, ...], ...]) -> None:
        """Add the files of one folder, and of the folders inside it, to the listing.

        `path` is the folder's path as clients see it, `segments` its real location below the root folder, `parents` the locations of the
        folders around it.
        """
        if len(parents) > MAX_DEPTH:
            self.problem("too-deep", "warning", f"{path!r} is deeper than {MAX_DEPTH} folders; left out. Move it up.")
            return
        spellings: dict[str, str] = {}
        entries = _entries(os.path.join(self.root, *segments))
        if entries is None:
            self.problem("unreadable", "warning", f"{path or 'The folder'!r} cannot be read; left out. Correct its rights.")
        for entry in entries or ():
            if is_junk(entry.name):
                continue
            self.seen += 1
            if self.seen > MAX_ENTRIES:
                return
            if _UNNAMEABLE.search(entry.name):
                self.problem("file-name", "warning", f"{entry.name!r} has characters that no client can name; left out. Rename it.")
                continue
            folded = unicodedata.normalize("NFC", unicodedata.normalize("NFC", entry.name).casefold())
            if folded in spellings:
                text = f"{entry.name!r} and {spellings[folded]!r} are the same name on some systems; rename one."
                self.problem("path-collision", "error", text)
            spellings[folded] = entry.name
            name = MANIFEST if not path and folded == MANIFEST.casefold() else entry.name
            self.entry(entry, f"{path}/{name}" if path else name, (*segments, entry.name), parents)

    def entry(self, entry: os.DirEntry[str], path: str, segments: tuple[str, ...], parents: tuple[tuple[str, ...], ...]) -> None:
        """Add one directory entry, which is a file, a folder or a link, to the listing."""
        try:
            status = entry.stat(follow_symlinks=False)
        except OSError:
            return  # the file was removed after the folder was listed
        if path == MANIFEST:
            self.listing.manifest_name = entry.name
        if stat.S_ISLNK(status.st_mode):
            self.link(entry.path, path, parents)
        elif path == MANIFEST and not stat.S_ISREG(status.st_mode):
            self.problem("special-file", "error", f"{MANIFEST} is not a regular file; put the file itself there.")
        elif stat.S_ISDIR(status.st_mode):
            self.folder(path, segments, (*parents, segments))
        elif stat.S_ISREG(status.st_mode):
            if has_second_name(status, self.root):
                self.problem("hard-link", "error", f"{path!r} {HAS_SECOND_NAME}")
                return
            if path != MANIFEST and entry.name == MANIFEST:
                self.listing.nested.append(segments[:-1])
            self.listing.files.append(FoundFile(path, segments, stamp_of(status)))
        else:
            self.problem("special-file", "error", f"{path!r} is not a regular file; remove it.")

    def link(self, full: str, path: str, parents: tuple[tuple[str, ...], ...]) -> None:
        """Add the target of a symbolic link to the listing, or an error, which refuses the skill.

        A link is an error if it is absolute or the skill's `SKILL.md`, or if its target is missing, outside the skill, never served
        (`JUNK`), a folder that contains the link, or neither a file nor a folder.
        """
        if path == MANIFEST:
            self.problem("symlink-manifest", "error", f"{MANIFEST} is a link; put the file itself there.")
            return
        try:
            target = os.readlink(full)
            real = os.path.realpath(full, strict=True)
            status = os.lstat(real)
        except OSError:
            self.problem("symlink-dangling", "error", f"{path!r} links to a missing file; remove it.")
            return
        below = segments_below(os.path.join(self.root, *self.top), real)
        if os.path.isabs(target) or below is None or any(is_junk(part) for part in below):
            self.problem("symlink-escape", "error", f"{path!r} links to {target!r}; links must be relative and stay in the skill.")
            return
        segments = (*self.top, *below)
        if stat.S_ISDIR(status.st_mode):
            if segments in parents:
                self.problem("symlink-cycle", "error", f"{path!r} links to a folder that contains it; remove it.")
                return
            self.folder(path, segments, (*parents, segments))
        elif stat.S_ISREG(status.st_mode):
            self.listing.files.append(FoundFile(path, segments, stamp_of(status)))
        else:
            self.problem("special-file", "error", f"{path!r} is not a regular file; remove it.")
            return
        self.problem("symlink-copied", "warning", f"{path!r} is a link; clients get a copy of its target.")

    def problem(self, code: str, level: Level, message: str) -> None:
        """Add a problem of the skill to the listing, as a diagnostic."""
        self.listing.problems.append(Diagnostic(code, level, message))


def list_files(root: str, segments: tuple[str, ...]) -> Listing:
    """List the files of the skill folder at `segments` below `root`, without reading them. `root` is a path without links."""
    walk = _Walk(root, segments)
    walk.folder("", segments, (segments,))
    if walk.seen > MAX_ENTRIES:
        walk.problem("too-many-files", "warning", f"More than {MAX_ENTRIES} entries; the rest is not served. Remove some.")
    walk.listing.files.sort(key=lambda found: found.path)
    return walk.listing


_FLAGS = os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_NONBLOCK", 0)
_FOLDER_FLAGS = _FLAGS | getattr(os, "O_DIRECTORY", 0)


def read_file(root: str, segments: tuple[str, ...], max_bytes: int = MAX_SKILL_BYTES) -> tuple[bytes, Stamp]:
    """Read a regular file below `root` without following any link. Return its bytes, and its `Stamp` (size, times and inode).

    Raises:
        Changed: The file is gone, not a regular file, a hard link, larger than `max_bytes`, or changed while it was read.
    """
    try:
        handle = _open_below(root, segments)
    except OSError as error:
        raise Changed from error
    try:
        before = os.fstat(handle)
        if not stat.S_ISREG(before.st_mode) or before.st_size > max_bytes or has_second_name(before, root):
            raise Changed
        chunks: list[bytes] = []
        left = before.st_size + 1  # one more byte, to notice a file that grows
        while left > 0 and (chunk := os.read(handle, min(left, 1 << 20))):
            chunks.append(chunk)
            left -= len(chunk)
        data = b"".join(chunks)
        if len(data) != before.st_size or stamp_of(os.fstat(handle)) != stamp_of(before):
            raise Changed
        return data, stamp_of(before)
    except OSError as error:
        raise Changed from error
    finally:
        os.close(handle)


def _open_below(root: str, segments: tuple[str, ...]) -> int:
    """Open a file below `root` and return its descriptor. Opens one segment after the other, so that no link is followed."""
    if os.open not in os.supports_dir_fd:
        path = root
        for segment in segments:
            path = os.path.join(path, segment)
            if os.path.islink(path):
                raise OSError
        return os.open(path, _FLAGS | getattr(os, "O_BINARY", 0))
    folder = os.open(root, _FOLDER_FLAGS)
    try:
        for segment in segments[:-1]:
            inner = os.open(segment, _FOLDER_FLAGS, dir_fd=folder)
            os.close(folder)
            folder = inner
        return os.open(segments[-1], _FLAGS, dir_fd=folder)
    finally:
        os.close(folder)

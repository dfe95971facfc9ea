"""`ContainedFolder`: accesses files below one folder, so that no path and no link leads outside of it. Used by the file stores of agents.

Each part of a path is opened relative to its parent folder, without following links (`openat` with `O_NOFOLLOW`), so that replacing a
folder by a link between check and use has no effect. On platforms without `openat` (Windows), each part is checked immediately before use,
so a race remains. A hard link may refer to a file outside the folder, so its content is not read. It can be replaced or deleted, because
this does not change the other file. Every method blocks, so async code calls it in a worker thread.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import secrets
import stat
from collections.abc import Generator, Iterator
from dataclasses import dataclass
from pathlib import Path

from gateway.errors import StorageUnusable

logger = logging.getLogger(__name__)

IS_LINK = "Invalid path: {name!r} is a symbolic link or leads through one; links are not followed."

IS_HARD_LINK = "{name!r} is not read: it has a second name in another folder (hard link). Replace it by a copy."

_OPENS_RELATIVE = os.open in os.supports_dir_fd and hasattr(os, "O_NOFOLLOW")
_NOFOLLOW = getattr(os, "O_NOFOLLOW", 0)
_NONBLOCK = getattr(os, "O_NONBLOCK", 0)
_FOLDER = os.O_RDONLY | _NOFOLLOW | getattr(os, "O_DIRECTORY", 0) | getattr(os, "O_CLOEXEC", 0)
_TEMPORARY_PREFIX = ".moongate-"
_MAX_DEPTH = 64
_MISSING = (FileNotFoundError, NotADirectoryError)


def split_path(path: str, *, is_folder: bool = False) -> list[str]:
    """Check a relative path, and split it at forward and backward slashes into the names of its folders and its file.

    The empty path (the folder itself) and a path with a trailing slash are valid only with `is_folder`.

    Raises:
        ValueError: The path is absolute, has a drive, `.`, `..`, a control character or more than 64 parts, or is empty for a file.
    """
    given = path.strip().replace("\\", "/")
    if given.startswith("/") or (len(given) > 1 and given[0].isalpha() and given[1] == ":"):
        raise ValueError(f"Invalid path: {path!r}. Use a path relative to the store, without a leading slash or drive.")
    if given.endswith("/") and not is_folder:
        raise ValueError(f"Invalid path: {path!r}. A file's path must not end with a slash.")
    parts = [part for part in given.split("/") if part]
    if not parts and not is_folder:
        raise ValueError("Invalid path: a file needs a name.")
    if any(part in (".", "..") for part in parts):
        raise ValueError(f"Invalid path: {path!r}. '.' and '..' are not allowed.")
    if any(ord(char) < 32 or ord(char) == 127 for char in given) or (os.name == "nt" and ":" in given):
        raise ValueError(f"Invalid path: {path!r}. It has a character that is not allowed in file names.")
    if len(parts) > _MAX_DEPTH:
        raise ValueError(f"Invalid path: it has more than {_MAX_DEPTH} folders.")
    return parts


@dataclass(slots=True)
class _Place:
    """A folder in a path to a file: an open descriptor if the platform supports access relative to descriptors, otherwise only its path."""

    path: str
    descriptor: int | None

    def at(self, name: str) -> tuple[str, int | None]:
        """Return the arguments `path` and `dir_fd` with which functions of `os` access the entry `name` of this folder."""
        return (name, self.descriptor) if self.descriptor is not None else (os.path.join(self.path, name), None)

    def kind(self, name: str, shown: str) -> os.stat_result | None:
        """Return the file status of the entry `name` of this folder, or `None` if it does not exist. Error texts call the entry `shown`.

        Raises:
            ValueError: The entry is a link.
        """
        path, at = self.at(name)
        try:
            found = os.stat(path, dir_fd=at, follow_symlinks=False)
        except FileNotFoundError:
            return None
        if _is_link(found):
            raise ValueError(IS_LINK.format(name=shown))
        return found

    def close(self) -> None:
        if self.descriptor is not None:
            os.close(self.descriptor)


class ContainedFolder:
    """Reads, writes, lists and deletes files below one folder; paths and links that lead outside of it are refused.

    No file stays open between calls. Calls may run concurrently.
    """

    def __init__(self, root: str | os.PathLike[str]) -> None:
        """Set the folder to `root`, and create it if it is missing. `root` itself may be a link, because the operator chose it.

        Raises:
            ValueError: The path is empty.
            StorageError: The folder cannot be created.
        """
        if not os.fspath(root).strip():
            raise ValueError("The root folder's path is empty.")
        self.root = Path(root).resolve()
        try:
            self.root.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise StorageUnusable(f"Cannot create the folder {str(self.root)!r}: {error.strerror or error}.") from None

    def read(self, path: str, *, max_bytes: int) -> bytes | None:
        """Return the content of a file, or `None` if the file does not exist.

        Raises:
            ValueError: The path is invalid or contains a link; or the file is not a regular file, has a second name (hard link) in another
                folder, or exceeds `max_bytes`.
            OSError: The file cannot be read.
        """
        *folders, name = split_path(path)
        with contextlib.suppress(*_MISSING), self._open(folders) as place:
            return _read(place, name, max_bytes)
        return None

    def write(self, path: str, data: bytes, *, overwrite: bool, new_mode: int = 0o644) -> None:
        """Write a file atomically (readers see either the old or the new bytes), and create missing folders.

        An existing file keeps its mode, and a new file gets `new_mode`, both without the bits of the process's umask.

        Raises:
            FileExistsError: The file exists and `overwrite` is false. If two writers create the file at the same time, one of them gets
            this error.
            ValueError: The path is invalid or contains a link.
            OSError: The file cannot be written.
        """
        *folders, name = split_path(path)
        with self._open(folders, create=True) as place:
            existing = place.kind(name, path)
            if existing is not None and not overwrite:
                raise FileExistsError(errno.EEXIST, "File exists", path)
            temporary, at = place.at(f"{_TEMPORARY_PREFIX}{secrets.token_hex(8)}.tmp")
            mode = new_mode if existing is None else stat.S_IMODE(existing.st_mode)
            descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | _NOFOLLOW, mode, dir_fd=at)
            try:
                with os.fdopen(descriptor, "wb") as file:
                    file.write(data)
                    file.flush()
                    os.fsync(file.fileno())
                target, _ = place.at(name)
                if overwrite:
                    os.replace(temporary, target, src_dir_fd=at, dst_dir_fd=at)
                else:  # creating a link fails if the name exists, unlike a rename
                    os.link(temporary, target, src_dir_fd=at, dst_dir_fd=at)
            finally:
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(temporary, dir_fd=at)

    def delete(self, path: str) -> bool:
        """Delete a file; return whether it existed.

        Raises:
            ValueError: The path is invalid or contains a link, or is not a regular file.
            OSError: The file cannot be deleted.
        """
        *folders, name = split_path(path)
        with contextlib.suppress(*_MISSING), self._open(folders) as place:
            found = place.kind(name, path)
            if found is None:
                return False
            if not stat.S_ISREG(found.st_mode):
                raise ValueError(f"{path!r} is not a file.")
            target, at = place.at(name)
            os.unlink(target, dir_fd=at)
            return True
        return False

    def exists(self, path: str) -> bool:
        """Return whether a regular file with this path exists.

        Raises:
            ValueError: The path is invalid or contains a link.
            OSError: A folder of the path cannot be read.
        """
        *folders, name = split_path(path)
        with contextlib.suppress(*_MISSING), self._open(folders) as place:
            found = place.kind(name, path)
            return found is not None and stat.S_ISREG(found.st_mode)
        return False

    def children(self, path: str = "") -> tuple[list[str], list[str]]:
        """Return the sorted names of the files, and of the folders, that a folder contains directly. Links are left out.

        Both lists are empty if the folder does not exist.

        Raises:
            ValueError: The path is invalid or contains a link.
            OSError: The folder cannot be read.
        """
        with contextlib.suppress(*_MISSING), self._open(split_path(path, is_folder=True)) as place:
            return _children(place)
        return [], []

    def make_folder(self, path: str) -> None:
        """Create a folder and its missing parents. An existing folder is not an error.

        Raises:
            ValueError: The path is invalid or contains a link.
            OSError: The folder cannot be created.
        """
        with self._open(split_path(path, is_folder=True), create=True):
            pass

    def files(self, path: str = "", *, recursive: bool) -> Iterator[str]:
        """Yield the paths of the files in a folder, relative to the folder; with `recursive`, also those in subfolders. Links are left out.

        Folders that are deleted or replaced by a link in the meantime are skipped.

        Raises:
            ValueError: The path is invalid or contains a link.
            OSError: A folder cannot be read.
        """
        base = "/".join(split_path(path, is_folder=True))
        waiting = [""]
        while waiting:
            current = waiting.pop()
            try:
                files, folders = self.children("/".join(part for part in (base, current) if part))
            except ValueError:
                if current:  # the folder was replaced by a link in the meantime
                    continue
                raise
            yield from (f"{current}/{name}" if current else name for name in files)
            if recursive and current.count("/") < _MAX_DEPTH:
                waiting += [f"{current}/{name}" if current else name for name in reversed(folders)]

    @contextlib.contextmanager
    def _open(self, folders: list[str], *, create: bool = False) -> Generator[_Place, None, None]:
        """Context manager: open the folders of a path one after the other, from the root; yield the last folder.

        With `create`, missing folders are created.
        """
        flags = _FOLDER & ~_NOFOLLOW
        place = _Place(str(self.root), os.open(self.root, flags) if _OPENS_RELATIVE else None)
        try:
            for name in folders:
                if create:
                    path, at = place.at(name)
                    with contextlib.suppress(FileExistsError):
                        os.mkdir(path, dir_fd=at)
                inner = _enter(place, name)
                place.close()
                place = inner
            yield place
        finally:
            place.close()


def _enter(place: _Place, name: str) -> _Place:
    path = os.path.join(place.path, name)
    try:
        if _OPENS_RELATIVE:
            return _Place(path, os.open(name, _FOLDER, dir_fd=place.descriptor))
        found = os.stat(path, follow_symlinks=False)
        if stat.S_ISDIR(found.st_mode) and not _is_link(found):
            return _Place(path, None)
        raise NotADirectoryError(errno.ENOTDIR, "Not a folder", name)
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.ENOTDIR, errno.EMLINK):
            place.kind(name, name)
        raise


def _read(place: _Place, name: str, max_bytes: int) -> bytes | None:
    path, at = place.at(name)
    if at is None:
        place.kind(name, name)
    try:
        descriptor = os.open(path, os.O_RDONLY | _NOFOLLOW | _NONBLOCK | getattr(os, "O_BINARY", 0), dir_fd=at)
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.EMLINK):
            raise ValueError(IS_LINK.format(name=name)) from None
        raise
    with os.fdopen(descriptor, "rb") as file:  # opened non-blocking, so that a pipe cannot block
        found = os.fstat(file.fileno())
        if not stat.S_ISREG(found.st_mode):
            raise ValueError(f"{name!r} is not a file.")
        if found.st_nlink > 1 and _has_name_elsewhere(place, file.fileno()):
            logger.warning("hard-linked file not read folder=%r name=%r", place.path, name)
            raise ValueError(IS_HARD_LINK.format(name=name))
        data = file.read(max_bytes + 1)
    if len(data) > max_bytes:
        raise ValueError(f"{name!r} is larger than {max_bytes} bytes.")
    return data


def _has_name_elsewhere(place: _Place, descriptor: int) -> bool:
    """Return whether the open file `descriptor` also has a name (hard link) outside the folder `place`.

    That is so if the file has more links than names in the folder. It may have two names there: `write` briefly gives a new file two.
    """
    number = os.fstat(descriptor).st_ino
    with os.scandir(place.descriptor if place.descriptor is not None else place.path) as entries:
        names = sum(entry.inode() == number for entry in entries)
    return os.fstat(descriptor).st_nlink > names


def _children(place: _Place) -> tuple[list[str], list[str]]:
    files: list[str] = []
    folders: list[str] = []
    with os.scandir(place.descriptor if place.descriptor is not None else place.path) as entries:
        for entry in entries:
            if entry.is_symlink() or entry.name.startswith(_TEMPORARY_PREFIX):
                continue
            if entry.is_dir(follow_symlinks=False):
                folders.append(entry.name)
            elif entry.is_file(follow_symlinks=False):
                files.append(entry.name)
    return sorted(files), sorted(folders)


def _is_link(found: os.stat_result) -> bool:
    """Return whether a file status belongs to a symbolic link or, on Windows, to any reparse point."""
    redirects = getattr(found, "st_file_attributes", 0) & getattr(stat, "FILE_ATTRIBUTE_REPARSE_POINT", 0)
    return stat.S_ISLNK(found.st_mode) or bool(redirects)

"""`FileSystemAgentFileStore`: stores an agent's files in a folder on disk. No path and no symbolic link leads out of the folder."""

from __future__ import annotations

import logging
import os
import time
from functools import partial
from pathlib import Path

import anyio.to_thread

from gateway.agents.files.store import MAX_FILE_BYTES, AgentFileStore
from gateway.agents.files.text_search import MAX_SEARCHED_CHARS, SEARCH_SECONDS, FileSearchResult, check_pattern, matches_glob, search_texts
from gateway.storage.contained_folder import ContainedFolder, split_path

logger = logging.getLogger(__name__)


class FileSystemAgentFileStore(AgentFileStore):
    """Store of text files below one folder on disk, for agents. Symbolic links are neither followed nor listed."""

    def __init__(self, root_directory: str | os.PathLike[str], *, search_timeout_seconds: float = SEARCH_SECONDS) -> None:
        """Use the folder `root_directory`, and create it if it does not exist.

        Raises:
            ValueError: The path is empty.
            StorageError: The folder cannot be created.
        """
        self._folder = ContainedFolder(root_directory)
        self._search_timeout_seconds = search_timeout_seconds

    @property
    def folder(self) -> Path:
        """The absolute path of the folder with the files; equal to `root_path`."""
        return self._folder.root

    @property
    def root_path(self) -> Path:
        """The absolute path of the folder with the files."""
        return self._folder.root

    async def write_file(self, path: str, content: str, *, overwrite: bool = True) -> None:
        """Create a text file, or replace it atomically if `overwrite` is true."""
        data = content.encode()
        if len(data) > MAX_FILE_BYTES:
            raise ValueError(f"The text has {len(data)} bytes; the limit per file is {MAX_FILE_BYTES}.")
        await anyio.to_thread.run_sync(partial(self._folder.write, path, data, overwrite=overwrite))

    async def read_file(self, path: str) -> str | None:
        """Return a file's text; `None` if it does not exist."""
        data = await anyio.to_thread.run_sync(partial(self._folder.read, path, max_bytes=MAX_FILE_BYTES))
        if data is None:
            return None
        try:
            return data.decode()
        except UnicodeDecodeError:
            raise ValueError(f"{path!r} is not UTF-8 text.") from None

    async def delete_file(self, path: str) -> bool:
        """Delete a file; return false if it does not exist."""
        return await anyio.to_thread.run_sync(self._folder.delete, path)

    async def list_files(self, directory: str = "") -> list[str]:
        """Return the names of the files directly in `directory`."""
        return (await anyio.to_thread.run_sync(self._folder.children, directory))[0]

    async def list_directories(self, directory: str = "") -> list[str]:
        """Return the names of the folders directly in `directory`."""
        return (await anyio.to_thread.run_sync(self._folder.children, directory))[1]

    async def file_exists(self, path: str) -> bool:
        """Return whether the file exists."""
        return await anyio.to_thread.run_sync(self._folder.exists, path)

    async def search_files(
        self, directory: str, regex_pattern: str, file_pattern: str | None = None, *, recursive: bool = False
    ) -> list[FileSearchResult]:
        """Return the files with a line that matches the regular expression. The time limit includes reading the files."""
        check_pattern(regex_pattern)
        deadline = time.monotonic() + self._search_timeout_seconds
        collect = partial(self._collect, directory, file_pattern, recursive, deadline)
        files = await anyio.to_thread.run_sync(collect)
        return await search_texts(regex_pattern, files, timeout_seconds=max(0.0, deadline - time.monotonic()))

    async def create_directory(self, path: str) -> None:
        """Create a folder below the store's folder, if it does not exist."""
        await anyio.to_thread.run_sync(self._folder.make_folder, path)

    def _collect(self, directory: str, glob: str | None, recursive: bool, deadline: float) -> list[tuple[str, str]]:
        """Return the names and texts of the files to search. This blocks and must run in a worker thread."""
        found: list[tuple[str, str]] = []
        total = 0
        base = split_path(directory, is_folder=True)
        for name in self._folder.files(directory, recursive=recursive):
            if time.monotonic() > deadline:
                raise ValueError("reading the files took too long; narrow the search with a file pattern")
            if not matches_glob(name, glob):
                continue
            try:
                data = self._folder.read("/".join([*base, name]), max_bytes=MAX_FILE_BYTES)
                text = None if data is None else data.decode()
            except (ValueError, OSError) as error:  # not UTF-8, too large, or replaced by a link
                logger.info("file not searched file=%s error=%s", name, error)
                continue
            if text is None:
                continue
            total += len(text)
            if total > MAX_SEARCHED_CHARS:
                raise ValueError(f"more than {MAX_SEARCHED_CHARS} characters would be searched; narrow the search with a file pattern")
            found.append((name, text))
        return found

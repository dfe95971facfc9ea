"""`AgentFileStore`: where an agent's files are kept; and the store in memory. Names and calls are agent-framework's.

A store is one folder of text files that is shared on purpose: by all sessions and agents that are given it
(requirements FA5). Paths are relative, with forward slashes.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from pathlib import Path

from gateway.agents.files.search import SEARCH_SECONDS, FileSearchResult, check_pattern, matches_glob, search_texts
from gateway.storage.contained import split_path

MAX_FILE_BYTES = 8_388_608
"""Largest file that is written, read or searched: text for a model is far smaller."""

MAX_STORE_BYTES = 67_108_864
"""What a store in memory holds at most."""


class AgentFileStore(ABC):
    """A folder of text files. Every method raises `ValueError` for a path that is not relative or leads out of it."""

    @property
    def folder(self) -> Path | None:
        """The folder on disk, if the files are in one."""
        return None

    @abstractmethod
    async def write_file(self, path: str, content: str, *, overwrite: bool = True) -> None:
        """Write a whole file, with the folders above it.

        Raises:
            FileExistsError: It exists and `overwrite` is off; of two concurrent writers one gets this.
        """

    @abstractmethod
    async def read_file(self, path: str) -> str | None:
        """A file's text; `None` where there is no such file.

        Raises:
            ValueError: It is not UTF-8 text, or too large.
        """

    @abstractmethod
    async def delete_file(self, path: str) -> bool:
        """Delete a file; false where there is none."""

    @abstractmethod
    async def list_files(self, directory: str = "") -> list[str]:
        """Names of the files directly in a folder (`""` is the root); empty where there is no such folder."""

    @abstractmethod
    async def list_directories(self, directory: str = "") -> list[str]:
        """Names of the folders directly in a folder; empty where there is no such folder."""

    @abstractmethod
    async def file_exists(self, path: str) -> bool:
        """Whether there is such a file."""

    @abstractmethod
    async def search_files(
        self, directory: str, regex_pattern: str, file_pattern: str | None = None, *, recursive: bool = False
    ) -> list[FileSearchResult]:
        """Files in `directory` with a line that matches, ignoring case; with everything below it where `recursive`.

        `file_pattern` is a glob over paths relative to `directory`, which the results' names are too; its `*` also
        matches slashes. Files that are not UTF-8 text are left out.

        Raises:
            ValueError: The expression is bad, too much would be searched or found, or the time for it is over.
        """

    @abstractmethod
    async def create_directory(self, path: str) -> None:
        """Make sure that a folder exists."""


class InMemoryAgentFileStore(AgentFileStore):
    """Files in memory, gone with the process. Names are kept as written and found whatever their case."""

    def __init__(self, *, search_timeout_seconds: float = SEARCH_SECONDS) -> None:
        """An empty store."""
        self._files: dict[str, tuple[str, str]] = {}
        self._search_timeout_seconds = search_timeout_seconds

    async def write_file(self, path: str, content: str, *, overwrite: bool = True) -> None:
        """Write a whole file."""
        name = "/".join(split_path(path))
        if not overwrite and name.lower() in self._files:
            raise FileExistsError(f"File already exists: {path!r}")
        others = sum(len(text) for key, (_, text) in self._files.items() if key != name.lower())
        if len(content) > MAX_FILE_BYTES or others + len(content) > MAX_STORE_BYTES:
            raise ValueError(
                f"The store holds {MAX_STORE_BYTES} characters, {MAX_FILE_BYTES} in one file; delete files you no longer need."
            )
        self._files[name.lower()] = (name, content)

    async def read_file(self, path: str) -> str | None:
        """A file's text."""
        found = self._files.get("/".join(split_path(path)).lower())
        return None if found is None else found[1]

    async def delete_file(self, path: str) -> bool:
        """Delete a file."""
        return self._files.pop("/".join(split_path(path)).lower(), None) is not None

    async def list_files(self, directory: str = "") -> list[str]:
        """Names of the files directly in a folder."""
        return sorted(rest for rest, _ in self._below(directory) if "/" not in rest)

    async def list_directories(self, directory: str = "") -> list[str]:
        """Names of the folders directly in a folder: what stands before a slash."""
        by_key = {rest.split("/", 1)[0].lower(): rest.split("/", 1)[0] for rest, _ in self._below(directory) if "/" in rest}
        return sorted(by_key.values())

    async def file_exists(self, path: str) -> bool:
        """Whether there is such a file."""
        return "/".join(split_path(path)).lower() in self._files

    async def search_files(
        self, directory: str, regex_pattern: str, file_pattern: str | None = None, *, recursive: bool = False
    ) -> list[FileSearchResult]:
        """Files with a line that matches."""
        check_pattern(regex_pattern)
        chosen = [
            (rest, text) for rest, text in self._below(directory) if (recursive or "/" not in rest) and matches_glob(rest, file_pattern)
        ]
        return await search_texts(regex_pattern, chosen, timeout_seconds=self._search_timeout_seconds)

    async def create_directory(self, path: str) -> None:
        """Folders are only parts of names here; checks the path."""
        split_path(path, is_folder=True)

    def _below(self, directory: str) -> list[tuple[str, str]]:
        """Paths relative to a folder, with the texts."""
        prefix = "".join(f"{part}/" for part in split_path(directory, is_folder=True))
        return [(name[len(prefix) :], text) for key, (name, text) in sorted(self._files.items()) if key.startswith(prefix.lower())]

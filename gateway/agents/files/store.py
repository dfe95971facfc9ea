"""`AgentFileStore`: interface for storing the files of agents, and an implementation in memory. The API is agent-framework's.

A store is one folder of text files, which all agents and sessions that use the store share. Paths are relative, with forward slashes.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from pathlib import Path

from gateway.agents.files.text_search import SEARCH_SECONDS, FileSearchResult, check_pattern, matches_glob, search_texts
from gateway.storage.contained_folder import split_path

MAX_FILE_BYTES = 8_388_608
"""Maximum size of a file that agents may write, read or search, in bytes (in memory: characters); texts for a model are far smaller."""

MAX_STORE_BYTES = 67_108_864
"""Maximum total size of the files of an `InMemoryAgentFileStore`, in characters."""


class AgentFileStore(ABC):
    """Interface of stores. A store is one folder of text files for agents.

    Every method raises `ValueError` for a path that is absolute or leads out of the folder.
    """

    @property
    def folder(self) -> Path | None:
        """The folder on disk that contains the files; `None` if they are not on disk."""
        return None

    @abstractmethod
    async def write_file(self, path: str, content: str, *, overwrite: bool = True) -> None:
        """Write a text file, and create its folders if necessary.

        Raises:
            FileExistsError: The file exists and `overwrite` is false. Of two concurrent writers, one gets this error.
            ValueError: The text is too large.
        """

    @abstractmethod
    async def read_file(self, path: str) -> str | None:
        """Return a file's text; `None` if it does not exist.

        Raises:
            ValueError: The file is not UTF-8 text, or too large.
        """

    @abstractmethod
    async def delete_file(self, path: str) -> bool:
        """Delete a file; return false if it does not exist."""

    @abstractmethod
    async def list_files(self, directory: str = "") -> list[str]:
        """Return the names of the files directly in a folder (`""` is the root); empty if the folder does not exist."""

    @abstractmethod
    async def list_directories(self, directory: str = "") -> list[str]:
        """Return the names of the folders directly in a folder; empty if the folder does not exist."""

    @abstractmethod
    async def file_exists(self, path: str) -> bool:
        """Return whether the file exists."""

    @abstractmethod
    async def search_files(
        self, directory: str, regex_pattern: str, file_pattern: str | None = None, *, recursive: bool = False
    ) -> list[FileSearchResult]:
        """Return the files in `directory` with a line that matches the regular expression, ignoring case.

        With `recursive`, files in folders below `directory` are searched, too. `file_pattern` is a glob that paths relative to `directory`
        must match; its `*` also matches slashes. Names in the results are relative to `directory`. Files that are not UTF-8 text or
        exceed `MAX_FILE_BYTES` are skipped.

        Raises:
            ValueError: The expression is invalid, the searched or the matching text is too large, or the time limit has passed.
        """

    @abstractmethod
    async def create_directory(self, path: str) -> None:
        """Create a folder if it does not exist."""


class InMemoryAgentFileStore(AgentFileStore):
    """Store of text files in memory, for agents. The files are lost when the process ends.

    Listed names keep their case; paths are compared ignoring case.
    """

    def __init__(self, *, search_timeout_seconds: float = SEARCH_SECONDS) -> None:
        """Create an empty store. `search_timeout_seconds` limits each search."""
        self._files: dict[str, tuple[str, str]] = {}
        self._search_timeout_seconds = search_timeout_seconds

    async def write_file(self, path: str, content: str, *, overwrite: bool = True) -> None:
        """Create a text file, or replace it if `overwrite` is true."""
        name = "/".join(split_path(path))
        if not overwrite and name.lower() in self._files:
            raise FileExistsError(f"File already exists: {path!r}")
        others = sum(len(text) for key, (_, text) in self._files.items() if key != name.lower())
        if len(content) > MAX_FILE_BYTES or others + len(content) > MAX_STORE_BYTES:
            raise ValueError(
                f"The store holds {MAX_STORE_BYTES} characters, and {MAX_FILE_BYTES} per file; delete files that are not needed."
            )
        self._files[name.lower()] = (name, content)

    async def read_file(self, path: str) -> str | None:
        """Return a file's text; `None` if it does not exist."""
        found = self._files.get("/".join(split_path(path)).lower())
        return None if found is None else found[1]

    async def delete_file(self, path: str) -> bool:
        """Delete a file; return false if it does not exist."""
        return self._files.pop("/".join(split_path(path)).lower(), None) is not None

    async def list_files(self, directory: str = "") -> list[str]:
        """Return the names of the files directly in `directory`, sorted."""
        return sorted(rest for rest, _ in self._below(directory) if "/" not in rest)

    async def list_directories(self, directory: str = "") -> list[str]:
        """Return the names of the folders directly in `directory`, sorted."""
        by_key = {rest.split("/", 1)[0].lower(): rest.split("/", 1)[0] for rest, _ in self._below(directory) if "/" in rest}
        return sorted(by_key.values())

    async def file_exists(self, path: str) -> bool:
        """Return whether the file exists."""
        return "/".join(split_path(path)).lower() in self._files

    async def search_files(
        self, directory: str, regex_pattern: str, file_pattern: str | None = None, *, recursive: bool = False
    ) -> list[FileSearchResult]:
        """Return the files with a line that matches the regular expression, ignoring case."""
        check_pattern(regex_pattern)
        chosen = [
            (rest, text) for rest, text in self._below(directory) if (recursive or "/" not in rest) and matches_glob(rest, file_pattern)
        ]
        return await search_texts(regex_pattern, chosen, timeout_seconds=self._search_timeout_seconds)

    async def create_directory(self, path: str) -> None:
        """Check the path and do nothing else, because in memory folders exist only as parts of file names."""
        split_path(path, is_folder=True)

    def _below(self, directory: str) -> list[tuple[str, str]]:
        """Return the files below a folder, as pairs of relative path and text."""
        prefix = "".join(f"{part}/" for part in split_path(directory, is_folder=True))
        return [(name[len(prefix) :], text) for key, (name, text) in sorted(self._files.items()) if key.startswith(prefix.lower())]

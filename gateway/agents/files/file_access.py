"""`FileAccessProvider`: adds tools with which an agent reads and writes files of a store. The API is that of agent-framework 1.9."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Literal

from gateway.agents.files.store import AgentFileStore
from gateway.json_types import JsonObject, JsonValue
from gateway.sessions.session import AgentSession, SupportsAgentRun
from gateway.sessions.session_context import ContextProvider, SessionContext
from gateway.storage.contained_folder import split_path
from gateway.tools.function import FunctionTool

Access = Literal["read", "write", "delete"]

DEFAULT_FILE_ACCESS_SOURCE_ID = "file_access"

DEFAULT_FILE_ACCESS_INSTRUCTIONS = """\
## Files

The `file_access_*` tools read and write files in a folder that is kept between conversations and may be shared with others.
- Browse with `file_access_list_files` and `file_access_list_subdirectories`, one folder at a time, or search the text of all files with
  `file_access_search_files`.
- Replace or delete a file only if the user asked for it."""
"""Default instructions of `FileAccessProvider`, as Markdown."""


class FileAccessProvider(ContextProvider):
    """Context provider that gives an agent up to six tools for the files of a store.

    Errors such as bad paths and missing files are returned as text for the model.
    """

    def __init__(
        self,
        store: AgentFileStore,
        *,
        source_id: str = DEFAULT_FILE_ACCESS_SOURCE_ID,
        instructions: str | None = None,
        require_delete_approval: bool = True,
        access: Access = "delete",
    ) -> None:
        """Create the provider. `access` selects the tools: `read` for reading only, `write` for reading and saving, `delete` for all.

        Deleting needs a person's approval unless `require_delete_approval` is false.
        """
        super().__init__(source_id)
        self.store = store
        self.instructions = instructions or DEFAULT_FILE_ACCESS_INSTRUCTIONS
        self.require_delete_approval = require_delete_approval
        self.access: Access = access

    @property
    def written_folders(self) -> Sequence[Path]:
        """The folders on disk to which the model can write: the store's folder, if the store is on disk and `access` permits saving.

        A gateway rejects a folder that contains code or configuration that the gateway runs.
        """
        return () if self.store.folder is None or self.access == "read" else (self.store.folder,)

    async def before_run(self, *, agent: SupportsAgentRun, session: AgentSession, context: SessionContext, state: JsonObject) -> None:
        """Add the instructions and the file tools to the run."""
        context.extend_instructions(self.source_id, [self.instructions])
        context.extend_tools(
            self.source_id, file_tools(self.store, access=self.access, require_delete_approval=self.require_delete_approval)
        )


def file_tools(store: AgentFileStore, *, access: Access = "delete", require_delete_approval: bool = True) -> list[FunctionTool[..., Any]]:
    """Return the tools for the files of a store that `access` permits."""
    tools = _FileTools(store)
    reading: list[Callable[..., Any]] = [
        tools.file_access_read_file,
        tools.file_access_list_files,
        tools.file_access_list_subdirectories,
        tools.file_access_search_files,
    ]
    made = [FunctionTool[..., Any](function, annotations={"readOnlyHint": True}) for function in reading]
    if access != "read":
        made.insert(0, FunctionTool[..., Any](tools.file_access_save_file))
    if access == "delete":
        mode = "always_require" if require_delete_approval else "never_require"
        made.insert(2, FunctionTool[..., Any](tools.file_access_delete_file, approval_mode=mode, annotations={"destructiveHint": True}))
    return made


class _FileTools:
    """The functions of the file tools. Models receive their names and docstrings."""

    def __init__(self, store: AgentFileStore) -> None:
        self._store = store

    async def file_access_save_file(self, file_name: str, content: str, overwrite: bool = False) -> str:
        """Save a text file. An existing file is only replaced if overwrite is true.

        Args:
            file_name: Path relative to the folder, such as notes.md or reports/may.md.
            content: The whole text of the file.
            overwrite: Replace the file if it exists.
        """
        try:
            await self._store.write_file("/".join(split_path(file_name)), content, overwrite=overwrite)
        except FileExistsError:
            return f"File '{file_name}' already exists. To replace it, save again with overwrite set to true."
        except (ValueError, OSError) as error:
            return f"Could not save file '{file_name}': {_reason(error)}"
        return f"File '{file_name}' saved."

    async def file_access_read_file(self, file_name: str) -> str:
        """Read a text file.

        Args:
            file_name: Path relative to the folder.
        """
        try:
            content = await self._store.read_file("/".join(split_path(file_name)))
        except (ValueError, OSError) as error:
            return f"Could not read file '{file_name}': {_reason(error)}"
        return content if content is not None else f"File '{file_name}' not found."

    async def file_access_delete_file(self, file_name: str) -> str:
        """Delete a file.

        Args:
            file_name: Path relative to the folder.
        """
        try:
            deleted = await self._store.delete_file("/".join(split_path(file_name)))
        except (ValueError, OSError) as error:
            return f"Could not delete file '{file_name}': {_reason(error)}"
        return f"File '{file_name}' deleted." if deleted else f"File '{file_name}' not found."

    async def file_access_list_files(self, directory: str | None = None) -> JsonValue:
        """List the names of the files directly in a folder.

        Args:
            directory: Folder relative to the root, such as reports/2026; leave it out for the root.
        """
        try:
            return await self._store.list_files((directory or "").strip())
        except (ValueError, OSError) as error:
            return f"Could not list directory '{directory or ''}': {_reason(error)}"

    async def file_access_list_subdirectories(self, directory: str | None = None) -> JsonValue:
        """List the names of the folders directly in a folder.

        Args:
            directory: Folder relative to the root; leave it out for the root.
        """
        try:
            return await self._store.list_directories((directory or "").strip())
        except (ValueError, OSError) as error:
            return f"Could not list directory '{directory or ''}': {_reason(error)}"

    async def file_access_search_files(self, regex_pattern: str, file_pattern: str | None = None) -> JsonValue:
        """Search the text of all files, in all folders, with a regular expression that ignores case.

        Returns the files with a matching line, by paths for file_access_read_file, with a snippet and the lines.

        Args:
            regex_pattern: At most 256 characters.
            file_pattern: Only files whose path matches this glob; * also matches slashes, so *.md is every Markdown file.
        """
        glob = file_pattern if file_pattern and file_pattern.strip() else None
        try:
            found = await self._store.search_files("", regex_pattern, glob, recursive=True)
        except (ValueError, OSError) as error:
            return f"Could not search files: {_reason(error)}"
        return [result.to_dict() for result in found]


def _reason(error: Exception) -> str:
    """Return the text of an error for the model, without paths of this machine."""
    return (error.strerror or type(error).__name__) if isinstance(error, OSError) else str(error)

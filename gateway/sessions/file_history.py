"""`FileHistoryProvider`: stores conversations with agents as JSON Lines, with one file per session and one message per line.

The files are plain text and contain full messages, so choose a folder whose readers may see these messages. File names are those of
agent-framework, so that folders with conversations of agent-framework can be used.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import ClassVar, Unpack, cast

import anyio.to_thread

from gateway.errors import StorageError, StorageUnusable
from gateway.json_types import JsonMapping, JsonObject, JsonValue
from gateway.sessions.history import HistoryOptions, HistoryProvider, included
from gateway.storage.file_names import file_stem, id_of_stem
from gateway.storage.line_file import LineFile
from gateway.types.messages import Message


class FileHistoryProvider(HistoryProvider):
    """History provider that stores conversations as files in a folder, which several processes may share."""

    DEFAULT_SOURCE_ID: ClassVar[str] = "file_history"
    DEFAULT_SESSION_FILE_STEM: ClassVar[str] = "default"
    FILE_EXTENSION: ClassVar[str] = ".jsonl"
    SESSION_PREFIX: ClassVar[str] = "~session-"
    """Prefix of file names that contain an encoded session id, because the id itself is not a valid file name."""

    def __init__(
        self,
        storage_path: str | Path,
        *,
        source_id: str = DEFAULT_SOURCE_ID,
        skip_excluded: bool = False,
        dumps: Callable[[JsonValue], str | bytes] | None = None,
        loads: Callable[[str | bytes], JsonValue] | None = None,
        **options: Unpack[HistoryOptions],
    ) -> None:
        """Store the settings. The folder `storage_path` is created on first use.

        With `skip_excluded`, messages that compaction has excluded are not loaded. `dumps` and `loads` replace `json.dumps` and
        `json.loads`; `dumps` must return a single line.
        """
        super().__init__(source_id, **options)
        self.storage_path = Path(storage_path)
        self.skip_excluded = skip_excluded
        self.dumps = dumps or partial(json.dumps, ensure_ascii=False)
        self.loads = loads or json.loads

    @property
    def written_folders(self) -> Sequence[Path]:
        """The folders to which this provider writes: the folder with the conversations."""
        return (self.storage_path,)

    async def get_messages(self, session_id: str | None, *, state: JsonObject | None = None, **kwargs: JsonValue) -> list[Message]:
        """Return the stored messages of the session, oldest first; an empty list if its file does not exist.

        Raises:
            StorageError: The file is damaged (the text names the line), unreadable, or locked for too long.
        """
        path = self._path_of(session_id)
        lines = await LineFile(path).read()
        numbered = [(number, line) for number, line in enumerate(lines, 1) if line.strip()]
        messages = await anyio.to_thread.run_sync(lambda: [self._decode(path, number, line) for number, line in numbered])
        return included(messages) if self.skip_excluded else messages

    async def save_messages(
        self, session_id: str | None, messages: Sequence[Message], *, state: JsonObject | None = None, **kwargs: JsonValue
    ) -> None:
        """Append messages to the file of the session: all of them, or none if writing fails.

        Raises:
            StorageError: The file cannot be written, or is locked for too long.
            ValueError: `dumps` returned more than one line.
        """
        if not messages:
            return
        path = self._path_of(session_id)
        lines = [self._encode(message) for message in messages]
        await anyio.to_thread.run_sync(self._make_folder)
        await LineFile(path).append(lines)

    @classmethod
    def session_of(cls, file_name: str) -> str | None:
        """Return the session id for a file name; `None` for the default session. If a long id is not in the name, return its stem."""
        stem = file_name.removesuffix(cls.FILE_EXTENSION)
        return None if stem == cls.DEFAULT_SESSION_FILE_STEM else id_of_stem(stem, prefix=cls.SESSION_PREFIX)

    def _make_folder(self) -> None:
        try:
            self.storage_path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise StorageUnusable(f"Cannot create the history folder {str(self.storage_path)!r}: {error.strerror or error}.") from None

    def _encode(self, message: Message) -> bytes:
        text = self.dumps(message.to_dict())
        line = text.encode() if isinstance(text, str) else text
        if b"\n" in line or b"\r" in line:
            raise ValueError("`dumps` must return JSON on a single line: the history file has one message per line")
        return line

    def _decode(self, path: Path, number: int, line: bytes) -> Message:
        try:
            decoded = self.loads(line.decode())
            if not isinstance(decoded, Mapping):
                raise ValueError("not an object")
            return Message.from_dict(dict(cast("JsonMapping", decoded)))
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
            raise StorageError(
                f"Line {number} of the history {str(path)!r} is damaged: it is not a message. "
                "Repair or remove that line, or move the file away to start afresh; nothing was changed."
            ) from None

    def _path_of(self, session_id: str | None) -> Path:
        root = self.storage_path.resolve()
        path = root / f"{file_stem(session_id or self.DEFAULT_SESSION_FILE_STEM, prefix=self.SESSION_PREFIX)}{self.FILE_EXTENSION}"
        if path.parent != root:
            raise ValueError(f"the session id {session_id!r} leads outside the history folder")
        return path

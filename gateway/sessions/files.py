"""`FileHistoryProvider`: conversations as JSON Lines, one file per session, one message per line.

The files are plain text and hold what was said: the folder is the user's own, and what may be kept there is the user's choice.
File names are agent-framework's, so that a folder can be taken over.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import ClassVar, cast

import anyio.to_thread

from gateway.errors import StorageError, StorageUnusable
from gateway.json_types import JsonMapping, JsonObject, JsonValue
from gateway.sessions.history import HistoryProvider, included
from gateway.storage.lines import LineFile
from gateway.storage.names import file_stem, id_of_stem
from gateway.types.messages import Message


class FileHistoryProvider(HistoryProvider):
    """Keeps conversations in a folder. Several processes may use one folder."""

    DEFAULT_SOURCE_ID: ClassVar[str] = "file_history"
    DEFAULT_SESSION_FILE_STEM: ClassVar[str] = "default"
    FILE_EXTENSION: ClassVar[str] = ".jsonl"
    SESSION_PREFIX: ClassVar[str] = "~session-"
    """Before a session's id where that is encoded in its file's name."""

    def __init__(
        self,
        storage_path: str | Path,
        *,
        source_id: str = DEFAULT_SOURCE_ID,
        load_messages: bool = True,
        store_inputs: bool = True,
        store_context_messages: bool = False,
        store_context_from: Collection[str] | None = None,
        store_outputs: bool = True,
        skip_excluded: bool = False,
        dumps: Callable[[JsonValue], str | bytes] | None = None,
        loads: Callable[[str | bytes], JsonValue] | None = None,
    ) -> None:
        """The folder is made on first use. `dumps` and `loads` replace the `json` module's; a message must stay one line."""
        super().__init__(
            source_id,
            load_messages=load_messages,
            store_inputs=store_inputs,
            store_context_messages=store_context_messages,
            store_context_from=store_context_from,
            store_outputs=store_outputs,
        )
        self.storage_path = Path(storage_path)
        self.skip_excluded = skip_excluded
        self.dumps = dumps or _dumps
        self.loads = loads or json.loads

    @property
    def written_folders(self) -> Sequence[Path]:
        """The folder of the conversations."""
        return (self.storage_path,)

    async def get_messages(self, session_id: str | None, *, state: JsonObject | None = None, **kwargs: JsonValue) -> list[Message]:
        """The session's messages, oldest first; none where there is no file.

        Raises:
            StorageError: The file is damaged (the text names the line), cannot be read, or stays locked.
        """
        path = self._path_of(session_id)
        lines = await LineFile(path).read()
        numbered = [(number, line) for number, line in enumerate(lines, 1) if line.strip()]
        messages = await anyio.to_thread.run_sync(lambda: [self._decode(path, number, line) for number, line in numbered])
        return included(messages) if self.skip_excluded else messages

    async def save_messages(
        self, session_id: str | None, messages: Sequence[Message], *, state: JsonObject | None = None, **kwargs: JsonValue
    ) -> None:
        """Append the messages, all or none.

        Raises:
            StorageError: The file cannot be written, or stays locked.
            ValueError: `dumps` gave more than one line.
        """
        if not messages:
            return
        path = self._path_of(session_id)
        lines = [self._encode(message) for message in messages]
        await anyio.to_thread.run_sync(self._make_folder)
        await LineFile(path).append(lines)

    @classmethod
    def session_of(cls, file_name: str) -> str | None:
        """The session whose file has this name; of a very long id only its digest is known."""
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
            raise ValueError("`dumps` must give JSON on a single line: the history file has one message per line")
        return line

    def _decode(self, path: Path, number: int, line: bytes) -> Message:
        try:
            decoded = self.loads(line.decode())
            if not isinstance(decoded, Mapping):
                raise ValueError("no object")
            return Message.from_dict(dict(cast("JsonMapping", decoded)))
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
            raise StorageError(
                f"Line {number} of the history {str(path)!r} is damaged: it is no message. "
                "Mend or remove that line, or move the file away to start anew; nothing was changed."
            ) from None

    def _path_of(self, session_id: str | None) -> Path:
        root = self.storage_path.resolve()
        path = root / f"{file_stem(session_id or self.DEFAULT_SESSION_FILE_STEM, prefix=self.SESSION_PREFIX)}{self.FILE_EXTENSION}"
        if path.parent != root:
            raise ValueError(f"the session id {session_id!r} leads out of the history folder")
        return path


def _dumps(value: JsonValue) -> str:
    return json.dumps(value, ensure_ascii=False)

"""Todo items and where they are kept: in the session's state, or in one JSON file per session."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, cast

import anyio.to_thread

from gateway.errors import StorageError
from gateway.json_types import JsonMapping, JsonObject, JsonValue
from gateway.sessions.session import AgentSession
from gateway.storage.files import read_json, write_atomic
from gateway.storage.names import file_stem

_PREFIX = "~todo-"


@dataclass(slots=True)
class TodoItem:
    """One item of a list."""

    id: int
    """From 1, never used again in the same list."""
    title: str
    description: str | None = None
    is_complete: bool = False

    def to_dict(self, *, exclude_none: bool = True) -> JsonObject:
        """JSON form."""
        data: JsonObject = {"id": self.id, "title": self.title, "description": self.description, "is_complete": self.is_complete}
        return {key: value for key, value in data.items() if value is not None or not exclude_none}

    @classmethod
    def from_dict(cls, data: JsonMapping) -> TodoItem:
        """The inverse of `to_dict`.

        Raises:
            ValueError: A value is missing or of another type.
        """
        number, title, description, done = data.get("id"), data.get("title"), data.get("description"), data.get("is_complete", False)
        if not isinstance(number, int) or isinstance(number, bool):
            raise ValueError("A todo item's id must be an integer.")
        if not isinstance(title, str) or not title.strip():
            raise ValueError("A todo item's title must be text.")
        if not isinstance(description, str | None) or not isinstance(done, bool):
            raise ValueError("A todo item's description must be text or null, and is_complete true or false.")
        return cls(number, title, description, done)


class TodoInput:
    """An item to add."""

    __slots__ = ("description", "title")

    def __init__(self, title: str, description: str | None = None) -> None:
        """Raises `ValueError` for an empty title."""
        if not title.strip():
            raise ValueError("A todo item's title must not be empty.")
        self.title = title.strip()
        self.description = description

    def to_dict(self) -> JsonObject:
        """JSON form."""
        return {"title": self.title} if self.description is None else {"title": self.title, "description": self.description}

    @classmethod
    def from_dict(cls, data: JsonMapping) -> TodoInput:
        """The inverse of `to_dict`.

        Raises:
            ValueError: A value is missing or of another type.
        """
        title, description = data.get("title"), data.get("description")
        if not isinstance(title, str) or not isinstance(description, str | None):
            raise ValueError("A todo item needs a title and may have a description, both text.")
        return cls(title, description)


class TodoCompleteInput:
    """An item that is done, and why it counts as done."""

    __slots__ = ("id", "reason")

    def __init__(self, id: int, reason: str) -> None:
        """Raises `ValueError` for an id that is no integer or an empty reason."""
        if isinstance(id, bool) or not isinstance(cast("object", id), int):
            raise ValueError("The id of a completed todo item must be an integer.")
        if not reason.strip():
            raise ValueError("Say in `reason` how the item was done.")
        self.id = id
        self.reason = reason.strip()

    @classmethod
    def from_dict(cls, data: JsonMapping) -> TodoCompleteInput:
        """Read a tool's argument.

        Raises:
            ValueError: A value is missing or of another type.
        """
        reason = data.get("reason")
        if not isinstance(reason, str):
            raise ValueError("Say in `reason` how the item was done.")
        return cls(cast("int", data.get("id")), reason)


class TodoStore(ABC):
    """Where lists are kept, one per session and source."""

    @property
    def folder(self) -> Path | None:
        """The folder on disk that lists are written to, if there is one."""
        return None

    @abstractmethod
    async def load_state(self, session: AgentSession, *, source_id: str) -> tuple[list[TodoItem], int]:
        """The items, and the next id to give.

        Raises:
            ValueError: What is stored is no list.
        """

    @abstractmethod
    async def save_state(self, session: AgentSession, items: list[TodoItem], *, next_id: int, source_id: str) -> None:
        """Keep the list."""

    async def load_items(self, session: AgentSession, *, source_id: str) -> list[TodoItem]:
        """The items."""
        return (await self.load_state(session, source_id=source_id))[0]


class TodoSessionStore(TodoStore):
    """In the session's state, under the source id."""

    async def load_state(self, session: AgentSession, *, source_id: str) -> tuple[list[TodoItem], int]:
        """The items, and the next id to give."""
        return _parse(session.state.setdefault(source_id, {}), f"state {source_id!r} of the session")

    async def save_state(self, session: AgentSession, items: list[TodoItem], *, next_id: int, source_id: str) -> None:
        """Keep the list."""
        state: JsonObject = session.state.setdefault(source_id, {})
        state.update(_dump(items, next_id))


class TodoFileStore(TodoStore):
    """In a JSON file per session and source, below a folder; file names are agent-framework's."""

    def __init__(
        self,
        base_path: str | Path,
        *,
        kind: str = "todos",
        owner_prefix: str = "",
        owner_state_key: str | None = None,
        state_filename: str = "todos.json",
    ) -> None:
        """With `owner_state_key` each owner, named by `session.state[owner_state_key]`, has a folder of its own."""
        self.base_path = Path(base_path)
        self.kind = kind
        self.owner_prefix = owner_prefix
        self.owner_state_key = owner_state_key
        self.state_filename = state_filename

    @property
    def folder(self) -> Path:
        """`base_path`."""
        return self.base_path

    async def load_state(self, session: AgentSession, *, source_id: str) -> tuple[list[TodoItem], int]:
        """The items, and the next id to give.

        Raises:
            StorageError: The file is damaged or cannot be read.
            RuntimeError: The session does not say whose list it is.
        """
        path = self._path(session, source_id)
        try:
            data = await anyio.to_thread.run_sync(read_json, path)
        except FileNotFoundError:
            return [], 1
        try:
            return _parse(data, f"the file {str(path)!r}")
        except ValueError as error:
            raise StorageError(f"{error} Mend it, or move it away to start anew.") from None

    async def save_state(self, session: AgentSession, items: list[TodoItem], *, next_id: int, source_id: str) -> None:
        """Write the file, whole or not at all."""
        path = self._path(session, source_id)
        data = f"{json.dumps(_dump(items, next_id), ensure_ascii=False)}\n".encode()
        await anyio.to_thread.run_sync(partial(_write, path, data))

    def _path(self, session: AgentSession, source_id: str) -> Path:
        folder = self.base_path
        if self.owner_state_key is not None:
            owner = session.state.get(self.owner_state_key)
            if owner is None:
                raise RuntimeError(f"The todo list has no owner: set session.state[{self.owner_state_key!r}].")
            folder = folder / f"{self.owner_prefix}{file_stem(str(owner), prefix=_PREFIX)}" / self.kind
        if "/" in session.session_id or "\\" in session.session_id:
            raise ValueError(f"The session id {session.session_id!r} has a slash; a todo file cannot be named by it.")
        name = Path(self.state_filename)
        file = f"{name.stem}.{file_stem(source_id, prefix=_PREFIX)}{name.suffix or '.json'}"
        return folder / file_stem(session.session_id, prefix=_PREFIX) / file


def _write(path: Path, data: bytes) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise StorageError(f"Cannot create the folder {str(path.parent)!r}: {error.strerror or error}.") from None
    write_atomic(path, data)


def _parse(data: JsonValue, where: str) -> tuple[list[TodoItem], int]:
    if not isinstance(data, dict):
        raise ValueError(f"The todo list in {where} is damaged: it is no object.")
    state = cast("dict[str, Any]", data)
    items, next_id = state.get("items", []), state.get("next_id", 1)
    if not isinstance(items, list) or not isinstance(next_id, int):
        raise ValueError(f"The todo list in {where} is damaged: `items` must be a list and `next_id` an integer.")
    entries = cast("list[Any]", items)
    if not all(isinstance(entry, dict) for entry in entries):
        raise ValueError(f"The todo list in {where} is damaged: an item is no object.")
    parsed = [TodoItem.from_dict(entry) for entry in entries]
    return parsed, max([next_id, *(item.id + 1 for item in parsed)])


def _dump(items: Sequence[TodoItem], next_id: int) -> JsonObject:
    return {"items": [item.to_dict(exclude_none=False) for item in items], "next_id": max([next_id, *(item.id + 1 for item in items)])}

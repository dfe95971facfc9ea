"""Items of agents' todo lists, and stores for the lists: in the session's state, or in one JSON file per session."""

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
from gateway.storage.atomic_files import read_json, write_atomic
from gateway.storage.file_names import file_stem

_PREFIX = "~todo-"


@dataclass(slots=True)
class TodoItem:
    """One item of an agent's todo list."""

    id: int
    """Number of the item, from 1; numbers are not reused within a list."""
    title: str
    description: str | None = None
    is_complete: bool = False

    def to_dict(self, *, exclude_none: bool = True) -> JsonObject:
        """Return the item as a JSON object; a missing description is omitted unless `exclude_none` is false."""
        data: JsonObject = {"id": self.id, "title": self.title, "description": self.description, "is_complete": self.is_complete}
        return {key: value for key, value in data.items() if value is not None or not exclude_none}

    @classmethod
    def from_dict(cls, data: JsonMapping) -> TodoItem:
        """Create an item from the JSON object that `to_dict` returned.

        Raises:
            ValueError: A value is missing or has a wrong type.
        """
        number, title, description, done = data.get("id"), data.get("title"), data.get("description"), data.get("is_complete", False)
        if not isinstance(number, int) or isinstance(number, bool):
            raise ValueError("A todo item's id must be an integer.")
        if not isinstance(title, str) or not title.strip():
            raise ValueError("A todo item's title must be text.")
        if not isinstance(description, str | None) or not isinstance(done, bool):
            raise ValueError("A todo item's description must be text or null, and is_complete true or false.")
        return cls(number, title, description, done)


@dataclass(slots=True)
class TodoInput:
    """Title and description of a new item for a todo list.

    Raises:
        ValueError: The title is empty.
    """

    title: str
    description: str | None = None

    def __post_init__(self) -> None:
        self.title = self.title.strip()
        if not self.title:
            raise ValueError("A todo item's title must not be empty.")

    def to_dict(self) -> JsonObject:
        """Return the new item as a JSON object."""
        return {"title": self.title} if self.description is None else {"title": self.title, "description": self.description}

    @classmethod
    def from_dict(cls, data: JsonMapping) -> TodoInput:
        """Create a new item from one entry of the list that a model passes to the tool that adds items.

        Raises:
            ValueError: A value is missing or has a wrong type.
        """
        title, description = data.get("title"), data.get("description")
        if not isinstance(title, str) or not isinstance(description, str | None):
            raise ValueError("A todo item needs a title and may have a description, both text.")
        return cls(title, description)


@dataclass(slots=True)
class TodoCompleteInput:
    """The id of a todo item to mark as complete, and the reason, which says how it was done.

    Raises:
        ValueError: The id is not an integer, or the reason is empty.
    """

    id: int
    reason: str

    def __post_init__(self) -> None:
        if isinstance(self.id, bool) or not isinstance(cast("object", self.id), int):
            raise ValueError("The id of a completed todo item must be an integer.")
        self.reason = self.reason.strip()
        if not self.reason:
            raise ValueError("Say in `reason` how the item was done.")

    @classmethod
    def from_dict(cls, data: JsonMapping) -> TodoCompleteInput:
        """Create the input from one entry of the list that a model passes to the tool that completes items.

        Raises:
            ValueError: A value is missing or has a wrong type.
        """
        reason = data.get("reason")
        if not isinstance(reason, str):
            raise ValueError("Say in `reason` how the item was done.")
        return cls(cast("int", data.get("id")), reason)


class TodoStore(ABC):
    """Interface for storing agents' todo lists: one list per session and `source_id` (the id of a `TodoProvider`)."""

    @property
    def folder(self) -> Path | None:
        """The folder on disk to which lists are written; `None` if they are not on disk."""
        return None

    @abstractmethod
    async def load_state(self, session: AgentSession, *, source_id: str) -> tuple[list[TodoItem], int]:
        """Return the items of a session's todo list, and the id for the next new item.

        Raises:
            ValueError: The stored value is not a todo list.
        """

    @abstractmethod
    async def save_state(self, session: AgentSession, items: list[TodoItem], *, next_id: int, source_id: str) -> None:
        """Store the items of a session's todo list, and the id for the next new item."""

    async def load_items(self, session: AgentSession, *, source_id: str) -> list[TodoItem]:
        """Return the items of a session's todo list."""
        return (await self.load_state(session, source_id=source_id))[0]


class TodoSessionStore(TodoStore):
    """Stores an agent's todo list in the session's state, under the id of the `TodoProvider` (`source_id`)."""

    async def load_state(self, session: AgentSession, *, source_id: str) -> tuple[list[TodoItem], int]:
        """Return the items of the session's todo list, and the id for the next new item.

        Raises:
            ValueError: The stored value is not a todo list.
        """
        return _parse(session.state.setdefault(source_id, {}), f"state {source_id!r} of the session")

    async def save_state(self, session: AgentSession, items: list[TodoItem], *, next_id: int, source_id: str) -> None:
        """Store the items of the todo list, and the id for the next new item, in the session's state."""
        state: JsonObject = session.state.setdefault(source_id, {})
        state.update(_dump(items, next_id))


class TodoFileStore(TodoStore):
    """Stores agents' todo lists in JSON files, one file per session and `source_id` (the id of a `TodoProvider`).

    The files have the same names as in agent-framework.
    """

    def __init__(
        self,
        base_path: str | Path,
        *,
        kind: str = "todos",
        owner_prefix: str = "",
        owner_state_key: str | None = None,
        state_filename: str = "todos.json",
    ) -> None:
        """Use the folder `base_path`. With `owner_state_key`, the folder has a subfolder per owner (`session.state[owner_state_key]`)."""
        self.base_path = Path(base_path)
        self.kind = kind
        self.owner_prefix = owner_prefix
        self.owner_state_key = owner_state_key
        self.state_filename = state_filename

    @property
    def folder(self) -> Path:
        """The folder that contains all todo lists: `base_path`."""
        return self.base_path

    async def load_state(self, session: AgentSession, *, source_id: str) -> tuple[list[TodoItem], int]:
        """Return the items of a session's todo list, and the id for the next new item.

        Raises:
            StorageError: The file is damaged or cannot be read.
            RuntimeError: `owner_state_key` is set, and the session has no owner.
            ValueError: The session's id contains a slash.
        """
        path = self._path(session, source_id)
        try:
            data = await anyio.to_thread.run_sync(read_json, path)
        except FileNotFoundError:
            return [], 1
        try:
            return _parse(data, f"the file {str(path)!r}")
        except ValueError as error:
            raise StorageError(f"{error} Repair the file, or move it to start a new list.") from None

    async def save_state(self, session: AgentSession, items: list[TodoItem], *, next_id: int, source_id: str) -> None:
        """Write the todo list of a session, with the id for the next new item, to its file, atomically."""
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
            raise ValueError(f"The session id {session.session_id!r} contains a slash and cannot be used as a file name.")
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
        raise ValueError(f"The todo list in {where} is damaged: it is not an object.")
    state = cast("dict[str, Any]", data)
    items, next_id = state.get("items", []), state.get("next_id", 1)
    if not isinstance(items, list) or not isinstance(next_id, int):
        raise ValueError(f"The todo list in {where} is damaged: `items` must be a list and `next_id` an integer.")
    entries = cast("list[Any]", items)
    if not all(isinstance(entry, dict) for entry in entries):
        raise ValueError(f"The todo list in {where} is damaged: an item is not an object.")
    parsed = [TodoItem.from_dict(entry) for entry in entries]
    return parsed, max([next_id, *(item.id + 1 for item in parsed)])


def _dump(items: Sequence[TodoItem], next_id: int) -> JsonObject:
    return {"items": [item.to_dict(exclude_none=False) for item in items], "next_id": max([next_id, *(item.id + 1 for item in items)])}

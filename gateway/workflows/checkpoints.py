"""`WorkflowCheckpoint` and where checkpoints are kept: in memory, or in files (`sql_checkpoints`: in a database). Names are
agent-framework's.

A checkpoint is everything a run carries from one round to the next, taken at the boundary: messages, shared state,
executors' own state, open requests. Written as JSON with a version (`encoding`); a graph takes back only checkpoints of
its own signature (`workflow`).
"""

from __future__ import annotations

import json
import re
import uuid
from collections.abc import Sequence
from copy import deepcopy
from dataclasses import dataclass, field, fields
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any, Protocol, cast, runtime_checkable

import anyio.to_thread

from gateway.errors import WorkflowCheckpointException
from gateway.json_types import JsonMapping, JsonObject
from gateway.storage.files import write_atomic
from gateway.workflows.encoding import TypeBook, decode, encode
from gateway.workflows.events import WorkflowEvent
from gateway.workflows.messages import WorkflowMessage

VERSION = "1.0"
"""Version of the format; another one is refused."""

CheckpointID = str

_FILE_ID = re.compile(r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,127}$")


_LONE = re.compile("[\ud800-\udfff]")


def _now() -> str:
    return datetime.now(UTC).isoformat()


@dataclass(slots=True)
class WorkflowCheckpoint:
    """A run between two rounds."""

    workflow_name: str
    graph_signature_hash: str
    checkpoint_id: CheckpointID = field(default_factory=lambda: str(uuid.uuid4()))
    previous_checkpoint_id: CheckpointID | None = None
    timestamp: str = field(default_factory=_now)
    """ISO 8601."""
    messages: dict[str, list[WorkflowMessage]] = field(default_factory=dict[str, list[WorkflowMessage]])
    """In transit, by sender."""
    state: dict[str, Any] = field(default_factory=dict[str, Any])
    """Shared state; keys that begin with `_` are the engine's."""
    pending_request_info_events: dict[str, WorkflowEvent[Any]] = field(default_factory=dict[str, WorkflowEvent[Any]])
    """Requests without a response, by id."""
    iteration_count: int = 0
    metadata: dict[str, Any] = field(default_factory=dict[str, Any])
    version: str = VERSION

    def to_dict(self) -> dict[str, Any]:
        """The fields, not converted further."""
        return {item.name: getattr(self, item.name) for item in fields(self)}

    @classmethod
    def from_dict(cls, data: JsonMapping) -> WorkflowCheckpoint:
        """The inverse of `to_dict`.

        Raises:
            WorkflowCheckpointException: A field is missing or unknown.
        """
        try:
            return cls(**data)
        except TypeError as error:
            raise WorkflowCheckpointException(f"This is no checkpoint: {error}.") from error


def to_json(checkpoint: WorkflowCheckpoint) -> str:
    """A checkpoint as JSON text.

    Raises:
        WorkflowCheckpointException: Something in it cannot be written.
    """
    form = {name: encode(value) for name, value in checkpoint.to_dict().items()}
    text = json.dumps(form, ensure_ascii=False)
    # Half a surrogate pair is no UTF-8; escaped it comes through.
    return text if text.isascii() or not _LONE.search(text) else json.dumps(form)


def from_json(text: str, book: TypeBook) -> WorkflowCheckpoint:
    """The inverse of `to_json`; values of classes that `book` does not know stay `Foreign`.

    Raises:
        WorkflowCheckpointException: The text is no checkpoint of this version.
    """
    try:
        data: Any = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise WorkflowCheckpointException(f"This is no checkpoint: {error}.") from error
    if not isinstance(data, dict):
        raise WorkflowCheckpointException("This is no checkpoint: it is not a JSON object.")
    version = cast("JsonObject", data).get("version")
    if version != VERSION:
        raise WorkflowCheckpointException(f"The checkpoint has the version {version!r}, and this release reads {VERSION!r}.")
    return WorkflowCheckpoint.from_dict({name: decode(value, book) for name, value in cast("JsonObject", data).items()})


def latest(checkpoints: Sequence[WorkflowCheckpoint]) -> WorkflowCheckpoint | None:
    """The newest of them."""
    return max(checkpoints, key=lambda item: (datetime.fromisoformat(item.timestamp), item.iteration_count), default=None)


@runtime_checkable
class CheckpointStorage(Protocol):
    """Where checkpoints are kept."""

    async def save(self, checkpoint: WorkflowCheckpoint) -> CheckpointID:
        """Keep it and return its id."""
        ...

    async def load(self, checkpoint_id: CheckpointID) -> WorkflowCheckpoint:
        """One checkpoint.

        Raises:
            WorkflowCheckpointException: There is none of that id, or it cannot be read.
        """
        ...

    async def list_checkpoints(self, *, workflow_name: str) -> list[WorkflowCheckpoint]:
        """Those of a workflow, oldest first."""
        ...

    async def delete(self, checkpoint_id: CheckpointID) -> bool:
        """Remove it; whether it was there."""
        ...

    async def get_latest(self, *, workflow_name: str) -> WorkflowCheckpoint | None:
        """The newest of a workflow."""
        ...

    async def list_checkpoint_ids(self, *, workflow_name: str) -> list[CheckpointID]:
        """The ids of a workflow's, oldest first."""
        ...


class InMemoryCheckpointStorage:
    """Checkpoints in this process; they hold copies of the values themselves, so any type will do."""

    def __init__(self) -> None:
        self._checkpoints: dict[CheckpointID, WorkflowCheckpoint] = {}

    async def save(self, checkpoint: WorkflowCheckpoint) -> CheckpointID:
        """Keep a copy."""
        self._checkpoints[checkpoint.checkpoint_id] = deepcopy(checkpoint)
        return checkpoint.checkpoint_id

    async def load(self, checkpoint_id: CheckpointID) -> WorkflowCheckpoint:
        """A copy.

        Raises:
            WorkflowCheckpointException: There is none of that id.
        """
        found = self._checkpoints.get(checkpoint_id)
        if found is None:
            raise WorkflowCheckpointException(f"No checkpoint found with ID {checkpoint_id}")
        return deepcopy(found)

    async def list_checkpoints(self, *, workflow_name: str) -> list[WorkflowCheckpoint]:
        """Those of a workflow, oldest first."""
        return [item for item in self._checkpoints.values() if item.workflow_name == workflow_name]

    async def delete(self, checkpoint_id: CheckpointID) -> bool:
        """Remove it; whether it was there."""
        return self._checkpoints.pop(checkpoint_id, None) is not None

    async def get_latest(self, *, workflow_name: str) -> WorkflowCheckpoint | None:
        """The newest of a workflow."""
        return latest(await self.list_checkpoints(workflow_name=workflow_name))

    async def list_checkpoint_ids(self, *, workflow_name: str) -> list[CheckpointID]:
        """The ids of a workflow's, oldest first."""
        return [item.checkpoint_id for item in await self.list_checkpoints(workflow_name=workflow_name)]


class FileCheckpointStorage:
    """Checkpoints as JSON files in one folder, `<id>.json` each."""

    def __init__(self, storage_path: str | Path, *, allowed_checkpoint_types: Sequence[str] | None = None) -> None:
        """`allowed_checkpoint_types` are classes, as `module:qualname`, that checkpoints may hold beside those that the
        workflow's own handlers and modules name."""
        self.storage_path = Path(storage_path)
        self.storage_path.mkdir(parents=True, exist_ok=True)
        self._book = TypeBook(allowed=allowed_checkpoint_types or ())

    async def save(self, checkpoint: WorkflowCheckpoint) -> CheckpointID:
        """Write the file.

        Raises:
            WorkflowCheckpointException: Something in it cannot be written as JSON.
        """
        path = self._path(checkpoint.checkpoint_id)
        await anyio.to_thread.run_sync(partial(write_atomic, path, to_json(checkpoint).encode()))
        return checkpoint.checkpoint_id

    async def load(self, checkpoint_id: CheckpointID) -> WorkflowCheckpoint:
        """Read the file.

        Raises:
            WorkflowCheckpointException: There is none, or it is no checkpoint.
        """
        path = self._path(checkpoint_id)
        try:
            text = await anyio.to_thread.run_sync(partial(path.read_text, encoding="utf-8"))
        except FileNotFoundError:
            raise WorkflowCheckpointException(f"No checkpoint found with ID {checkpoint_id}") from None
        except (OSError, UnicodeDecodeError) as error:
            raise WorkflowCheckpointException(f"Checkpoint {checkpoint_id} cannot be read: {error}.") from error
        return from_json(text, self._book)

    async def list_checkpoints(self, *, workflow_name: str) -> list[WorkflowCheckpoint]:
        """Those of a workflow, oldest first; files that are no checkpoints are passed over."""
        found: list[WorkflowCheckpoint] = []
        for path in await anyio.to_thread.run_sync(lambda: sorted(self.storage_path.glob("*.json"))):
            try:
                checkpoint = await self.load(path.stem)
            except WorkflowCheckpointException:
                continue
            if checkpoint.workflow_name == workflow_name:
                found.append(checkpoint)
        return sorted(found, key=lambda item: (item.timestamp, item.iteration_count))

    async def delete(self, checkpoint_id: CheckpointID) -> bool:
        """Remove the file; whether it was there."""
        path = self._path(checkpoint_id)
        try:
            await anyio.to_thread.run_sync(path.unlink)
        except FileNotFoundError:
            return False
        return True

    async def get_latest(self, *, workflow_name: str) -> WorkflowCheckpoint | None:
        """The newest of a workflow."""
        return latest(await self.list_checkpoints(workflow_name=workflow_name))

    async def list_checkpoint_ids(self, *, workflow_name: str) -> list[CheckpointID]:
        """The ids of a workflow's, oldest first."""
        return [item.checkpoint_id for item in await self.list_checkpoints(workflow_name=workflow_name)]

    def _path(self, checkpoint_id: CheckpointID) -> Path:
        """Ids come from callers, so none may lead out of the folder."""
        if not _FILE_ID.match(checkpoint_id):
            raise WorkflowCheckpointException(f"Invalid checkpoint ID: {checkpoint_id!r}")
        return self.storage_path / f"{checkpoint_id}.json"

"""`WorkflowCheckpoint`, and storage of checkpoints in memory and in files. `sql_checkpoints` has the storage in a database.

A workflow run is a sequence of supersteps, in each of which all waiting messages are handled. A checkpoint contains everything that the run
carries from one superstep to the next: messages, shared state, the state of each executor, and open requests. It is stored as JSON with a
version number (`encoding`). A workflow restores only checkpoints whose graph signature, a digest of executors and edges, equals the
signature of the workflow's graph. Public names are those of Microsoft's agent-framework.
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
from gateway.storage.atomic_files import write_atomic
from gateway.workflows.encoding import TypeBook, decode, encode
from gateway.workflows.events import WorkflowEvent
from gateway.workflows.messages import WorkflowMessage

VERSION = "1.0"
"""Version of the JSON format of checkpoints. Checkpoints with another version are rejected."""

CheckpointID = str

_FILE_ID = re.compile(r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,127}$")


_LONE_SURROGATE = re.compile("[\ud800-\udfff]")


@dataclass(slots=True)
class WorkflowCheckpoint:
    """The state of a workflow run between two supersteps (rounds of the run), from which it can continue, also in another process."""

    workflow_name: str
    graph_signature_hash: str
    checkpoint_id: CheckpointID = field(default_factory=lambda: str(uuid.uuid4()))
    previous_checkpoint_id: CheckpointID | None = None
    timestamp: str = field(default_factory=lambda: datetime.now(UTC).isoformat())
    """Time of creation, ISO 8601."""
    messages: dict[str, list[WorkflowMessage]] = field(default_factory=dict[str, list[WorkflowMessage]])
    """Messages to deliver in the next superstep (round of the run), by id of the sending executor."""
    state: dict[str, Any] = field(default_factory=dict[str, Any])
    """The state that the executors share. Keys that begin with `_` contain state of the workflow engine."""
    pending_request_info_events: dict[str, WorkflowEvent[Any]] = field(default_factory=dict[str, WorkflowEvent[Any]])
    """The run's requests to its caller that have no response yet, by request id."""
    iteration_count: int = 0
    metadata: dict[str, Any] = field(default_factory=dict[str, Any])
    version: str = VERSION

    def to_dict(self) -> dict[str, Any]:
        """Return the fields of the checkpoint as a dict. The values are not copied or encoded."""
        return {item.name: getattr(self, item.name) for item in fields(self)}

    @classmethod
    def from_dict(cls, data: JsonMapping) -> WorkflowCheckpoint:
        """Create a checkpoint from the result of `to_dict`.

        Raises:
            WorkflowCheckpointException: A field is missing or unknown.
        """
        try:
            return cls(**data)
        except TypeError as error:
            raise WorkflowCheckpointException(f"This is not a checkpoint: {error}.") from error


def to_json(checkpoint: WorkflowCheckpoint) -> str:
    """Return a workflow checkpoint as JSON text.

    Raises:
        WorkflowCheckpointException: A value cannot be written as JSON, such as a lock or an open file.
    """
    form = {name: encode(value) for name, value in checkpoint.to_dict().items()}
    text = json.dumps(form, ensure_ascii=False)
    # UTF-8 cannot encode a lone surrogate, but a JSON escape sequence can.
    return text if text.isascii() or not _LONE_SURROGATE.search(text) else json.dumps(form)


def from_json(text: str, book: TypeBook) -> WorkflowCheckpoint:
    """Parse a workflow checkpoint from the result of `to_json`.

    `book` is the set of classes that may be decoded. A value of another class stays encoded, as a `Foreign` object.

    Raises:
        WorkflowCheckpointException: The text is not a checkpoint, or has another format version.
    """
    try:
        data: Any = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise WorkflowCheckpointException(f"This is not a checkpoint: {error}.") from error
    if not isinstance(data, dict):
        raise WorkflowCheckpointException("This is not a checkpoint: it is not a JSON object.")
    version = cast("JsonObject", data).get("version")
    if version != VERSION:
        raise WorkflowCheckpointException(f"The checkpoint has the version {version!r}, and this release reads {VERSION!r}.")
    return WorkflowCheckpoint.from_dict({name: decode(value, book) for name, value in cast("JsonObject", data).items()})


def latest(checkpoints: Sequence[WorkflowCheckpoint]) -> WorkflowCheckpoint | None:
    """Return the newest of the checkpoints, or `None` for an empty list. If timestamps are equal, the higher `iteration_count` decides."""
    return max(checkpoints, key=lambda item: (datetime.fromisoformat(item.timestamp), item.iteration_count), default=None)


@runtime_checkable
class CheckpointStorage(Protocol):
    """Interface of storage for workflow checkpoints, such as memory, files or a database.

    A subclass inherits implementations of `get_latest` and `list_checkpoint_ids`, and must implement the other methods.
    """

    async def save(self, checkpoint: WorkflowCheckpoint) -> CheckpointID:
        """Store a checkpoint and return its id."""
        ...

    async def load(self, checkpoint_id: CheckpointID) -> WorkflowCheckpoint:
        """Return the checkpoint with this id.

        Raises:
            WorkflowCheckpointException: The checkpoint does not exist or cannot be read.
        """
        ...

    async def list_checkpoints(self, *, workflow_name: str) -> list[WorkflowCheckpoint]:
        """Return the checkpoints of a workflow, oldest first."""
        ...

    async def delete(self, checkpoint_id: CheckpointID) -> bool:
        """Delete a checkpoint. Return whether it existed."""
        ...

    async def get_latest(self, *, workflow_name: str) -> WorkflowCheckpoint | None:
        """Return the newest checkpoint of a workflow, or `None`. By default, this loads all checkpoints of the workflow."""
        return latest(await self.list_checkpoints(workflow_name=workflow_name))

    async def list_checkpoint_ids(self, *, workflow_name: str) -> list[CheckpointID]:
        """Return the ids of a workflow's checkpoints, oldest first. By default, this loads all checkpoints of the workflow."""
        return [item.checkpoint_id for item in await self.list_checkpoints(workflow_name=workflow_name)]


class InMemoryCheckpointStorage(CheckpointStorage):
    """Stores copies of workflow checkpoints in the memory of this process. Values of any type that `deepcopy` can copy are allowed."""

    def __init__(self) -> None:
        self._checkpoints: dict[CheckpointID, WorkflowCheckpoint] = {}

    async def save(self, checkpoint: WorkflowCheckpoint) -> CheckpointID:
        """Store a deep copy of the checkpoint, and return its id."""
        self._checkpoints[checkpoint.checkpoint_id] = deepcopy(checkpoint)
        return checkpoint.checkpoint_id

    async def load(self, checkpoint_id: CheckpointID) -> WorkflowCheckpoint:
        """Return a deep copy of the stored checkpoint with this id.

        Raises:
            WorkflowCheckpointException: The checkpoint does not exist.
        """
        found = self._checkpoints.get(checkpoint_id)
        if found is None:
            raise WorkflowCheckpointException(f"No checkpoint found with ID {checkpoint_id}")
        return deepcopy(found)

    async def list_checkpoints(self, *, workflow_name: str) -> list[WorkflowCheckpoint]:
        """Return deep copies of the checkpoints of a workflow, oldest first."""
        return [deepcopy(item) for item in self._checkpoints.values() if item.workflow_name == workflow_name]

    async def delete(self, checkpoint_id: CheckpointID) -> bool:
        """Delete a checkpoint. Return whether it existed."""
        return self._checkpoints.pop(checkpoint_id, None) is not None


class FileCheckpointStorage(CheckpointStorage):
    """Stores workflow checkpoints as JSON files in one folder, each as `<id>.json`."""

    def __init__(self, storage_path: str | Path, *, allowed_checkpoint_types: Sequence[str] | None = None) -> None:
        """Use the folder `storage_path`, which is created if it does not exist.

        When a workflow continues from a checkpoint, objects of its handlers' types, and of all classes in the modules of these types, are
        decoded. `allowed_checkpoint_types` names further classes, as `module:qualname`, whose objects are decoded.
        """
        self.storage_path = Path(storage_path)
        self.storage_path.mkdir(parents=True, exist_ok=True)
        self._book = TypeBook(allowed=allowed_checkpoint_types or ())

    async def save(self, checkpoint: WorkflowCheckpoint) -> CheckpointID:
        """Write the checkpoint to its file, and return its id.

        Raises:
            WorkflowCheckpointException: A value cannot be written as JSON, or the id is not allowed as a file name.
        """
        path = self._path(checkpoint.checkpoint_id)
        await anyio.to_thread.run_sync(partial(write_atomic, path, to_json(checkpoint).encode()))
        return checkpoint.checkpoint_id

    async def load(self, checkpoint_id: CheckpointID) -> WorkflowCheckpoint:
        """Read the checkpoint from its file.

        Raises:
            WorkflowCheckpointException: The file does not exist, cannot be read or is not a checkpoint.
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
        """Return the checkpoints of a workflow, oldest first. Files that are not checkpoints are skipped."""
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
        """Delete the file of a checkpoint. Return whether the file existed."""
        path = self._path(checkpoint_id)
        try:
            await anyio.to_thread.run_sync(path.unlink)
        except FileNotFoundError:
            return False
        return True

    def _path(self, checkpoint_id: CheckpointID) -> Path:
        """Return the path of the file with this checkpoint.

        Raises:
            WorkflowCheckpointException: The id has characters that could lead out of the folder; ids come from callers.
        """
        if not _FILE_ID.match(checkpoint_id):
            raise WorkflowCheckpointException(f"Invalid checkpoint ID: {checkpoint_id!r}")
        return self.storage_path / f"{checkpoint_id}.json"

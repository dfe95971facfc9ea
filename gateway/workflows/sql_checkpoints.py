"""`SqlCheckpointStorage`: stores workflow checkpoints in SQLite or PostgreSQL, in the tables of the gateway's database schema.

The checkpoints are stored as JSON, in the format of `FileCheckpointStorage`. Several processes may use one database.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

from gateway.errors import WorkflowCheckpointException
from gateway.sessions.sql_history import LazyDatabase
from gateway.workflows.checkpoints import CheckpointID, WorkflowCheckpoint, from_json, to_json
from gateway.workflows.encoding import TypeBook

if TYPE_CHECKING:
    from gateway.storage.checkpoint_rows import Checkpoints

MAX_PER_WORKFLOW = 1_000
"""Default maximum number of stored checkpoints per owner and workflow; the oldest are deleted.

A run stores a checkpoint after each superstep (round in which all waiting messages are handled). By default, a run has at most 100
supersteps.
"""


class SqlCheckpointStorage:
    """Stores workflow checkpoints in SQLite or PostgreSQL; an implementation of `CheckpointStorage`.

    The database is opened on first use, and each call of a method has its own connection, so the storage needs no `close`.
    """

    def __init__(
        self,
        url: str | Path | None = None,
        *,
        owner: str = "local",
        allowed_checkpoint_types: Sequence[str] | None = None,
        max_per_workflow: int = MAX_PER_WORKFLOW,
    ) -> None:
        """Use the database at `url`: `postgresql://…` (with the extra `postgres`), `sqlite:///…` or a file path.

        The default is the file `gateway.db` in the current user's state folder. `owner` separates users of one database: checkpoints are
        only visible to the `owner` that stored them. `allowed_checkpoint_types` are additional classes, as `module:qualname`, that are
        decoded when a workflow continues from a checkpoint. `max_per_workflow` is the maximum number of stored checkpoints per owner and
        workflow; the oldest are deleted.

        Raises:
            ValueError: `max_per_workflow` is less than 1.
        """
        if max_per_workflow < 1:
            raise ValueError("max_per_workflow must be at least 1.")
        self.owner = owner
        self._keep = max_per_workflow
        self._database = LazyDatabase(url)
        self._book = TypeBook(allowed=allowed_checkpoint_types or ())

    async def save(self, checkpoint: WorkflowCheckpoint) -> CheckpointID:
        """Store a checkpoint and return its id. The transaction is committed when the method returns.

        Raises:
            WorkflowCheckpointException: A value cannot be written as JSON, or the checkpoint is too large.
            StorageError: The database cannot be used.
        """
        rows = await self._rows()

        from gateway.storage.checkpoint_rows import MAX_CHECKPOINT_BYTES, CheckpointRow

        form = to_json(checkpoint)
        if len(form) > MAX_CHECKPOINT_BYTES:
            raise WorkflowCheckpointException(
                f"The checkpoint has {len(form)} characters, more than {MAX_CHECKPOINT_BYTES}; keep less in the state of the workflow."
            )
        at = datetime.fromisoformat(checkpoint.timestamp).timestamp()
        name, graph = checkpoint.workflow_name, checkpoint.graph_signature_hash
        row = CheckpointRow(checkpoint.checkpoint_id, name, graph, checkpoint.iteration_count, at, form)
        await rows.save(self.owner, row, keep=self._keep)
        return checkpoint.checkpoint_id

    async def load(self, checkpoint_id: CheckpointID) -> WorkflowCheckpoint:
        """Return the checkpoint with this id.

        Raises:
            WorkflowCheckpointException: The checkpoint does not exist or cannot be read.
            StorageError: The database cannot be used.
        """
        text = await (await self._rows()).load(self.owner, checkpoint_id)
        if text is None:
            raise WorkflowCheckpointException(f"No checkpoint found with ID {checkpoint_id}")
        return from_json(text, self._book)

    async def list_checkpoints(self, *, workflow_name: str) -> list[WorkflowCheckpoint]:
        """Return the checkpoints of a workflow, oldest first. Checkpoints that cannot be read are skipped.

        Raises:
            StorageError: The database cannot be used.
        """
        found: list[WorkflowCheckpoint] = []
        for text in await (await self._rows()).texts(self.owner, workflow_name):
            try:
                found.append(from_json(text, self._book))
            except WorkflowCheckpointException:
                continue
        return found

    async def delete(self, checkpoint_id: CheckpointID) -> bool:
        """Delete a checkpoint. Return whether it existed.

        Raises:
            StorageError: The database cannot be used.
        """
        return await (await self._rows()).delete(self.owner, checkpoint_id)

    async def get_latest(self, *, workflow_name: str) -> WorkflowCheckpoint | None:
        """Return the newest checkpoint of a workflow, or `None`.

        Raises:
            WorkflowCheckpointException: The checkpoint cannot be read.
            StorageError: The database cannot be used.
        """
        text = await (await self._rows()).latest(self.owner, workflow_name)
        return from_json(text, self._book) if text is not None else None

    async def list_checkpoint_ids(self, *, workflow_name: str) -> list[CheckpointID]:
        """Return the ids of a workflow's checkpoints, oldest first.

        Raises:
            StorageError: The database cannot be used.
        """
        return await (await self._rows()).ids(self.owner, workflow_name)

    async def _rows(self) -> Checkpoints:
        database = await self._database.open()

        from gateway.storage.checkpoint_rows import Checkpoints

        return Checkpoints(database)

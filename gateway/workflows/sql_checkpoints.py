"""`SqlCheckpointStorage`: checkpoints in a database, SQLite or PostgreSQL, in the gateway's own tables.

The same JSON as in files (`checkpoints`). Several processes may use one database; a checkpoint is whole or not there.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

from gateway.errors import WorkflowCheckpointException
from gateway.sessions.sql import LazyDatabase
from gateway.workflows.checkpoints import CheckpointID, WorkflowCheckpoint, from_json, to_json
from gateway.workflows.encoding import TypeBook

if TYPE_CHECKING:
    from gateway.storage.checkpoints import Checkpoints

MAX_PER_WORKFLOW = 1_000
"""Checkpoints of one workflow; the oldest make room. A run keeps one a round, and ends after 100 unless told otherwise."""


class SqlCheckpointStorage:
    """Implements `CheckpointStorage`. The database is opened on first use; connections last as long as a statement: nothing to close."""

    def __init__(
        self,
        url: str | Path | None = None,
        *,
        owner: str = "local",
        allowed_checkpoint_types: Sequence[str] | None = None,
        max_per_workflow: int = MAX_PER_WORKFLOW,
    ) -> None:
        """`url` is `postgresql://…` (with the extra `postgres`), `sqlite:///…` or a file's path; without one, the user's own
        `gateway.db`. `owner` keeps the checkpoints of several users apart: an id is only known to its owner.
        `allowed_checkpoint_types` are classes, as `module:qualname`, that checkpoints may hold beside those that the workflow's own
        handlers and modules name.

        Raises:
            ValueError: `max_per_workflow` is not at least 1.
        """
        if max_per_workflow < 1:
            raise ValueError("max_per_workflow must be at least 1.")
        self.owner = owner
        self._keep = max_per_workflow
        self._database = LazyDatabase(url)
        self._book = TypeBook(allowed=allowed_checkpoint_types or ())

    async def save(self, checkpoint: WorkflowCheckpoint) -> CheckpointID:
        """Write it; committed when this returns.

        Raises:
            WorkflowCheckpointException: Something in it cannot be written as JSON, or it is too large.
            StorageError: The database cannot be used.
        """
        rows = await self._rows()

        from gateway.storage.checkpoints import MAX_CHECKPOINT_BYTES, CheckpointRow

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
        """Read it.

        Raises:
            WorkflowCheckpointException: There is none of that id, or it cannot be read.
            StorageError: The database cannot be used.
        """
        text = await (await self._rows()).load(self.owner, checkpoint_id)
        if text is None:
            raise WorkflowCheckpointException(f"No checkpoint found with ID {checkpoint_id}")
        return from_json(text, self._book)

    async def list_checkpoints(self, *, workflow_name: str) -> list[WorkflowCheckpoint]:
        """Those of a workflow, oldest first; what cannot be read is passed over. Raises `StorageError`."""
        found: list[WorkflowCheckpoint] = []
        for text in await (await self._rows()).texts(self.owner, workflow_name):
            try:
                found.append(from_json(text, self._book))
            except WorkflowCheckpointException:
                continue
        return found

    async def delete(self, checkpoint_id: CheckpointID) -> bool:
        """Remove it; whether it was there. Raises `StorageError`."""
        return await (await self._rows()).delete(self.owner, checkpoint_id)

    async def get_latest(self, *, workflow_name: str) -> WorkflowCheckpoint | None:
        """The newest of a workflow.

        Raises:
            WorkflowCheckpointException: It cannot be read.
            StorageError: The database cannot be used.
        """
        text = await (await self._rows()).latest(self.owner, workflow_name)
        return from_json(text, self._book) if text is not None else None

    async def list_checkpoint_ids(self, *, workflow_name: str) -> list[CheckpointID]:
        """The ids of a workflow's, oldest first. Raises `StorageError`."""
        return await (await self._rows()).ids(self.owner, workflow_name)

    async def _rows(self) -> Checkpoints:
        database = await self._database.open()

        from gateway.storage.checkpoints import Checkpoints

        return Checkpoints(database)

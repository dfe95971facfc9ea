"""`TaskCheckpoints`: keeps a run's latest checkpoint with its durable task, so that the workflow continues from its last round.

A checkpoint contains what remains to be done. The outputs so far are kept with it, so that the result is complete.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Sequence
from typing import Any, cast

from gateway.errors import WorkflowCheckpointException
from gateway.json_types import JsonObject
from gateway.tools.context import DurablePort
from gateway.workflows.checkpoints import CheckpointID, WorkflowCheckpoint, from_json, to_json
from gateway.workflows.encoding import TypeBook, decode, encode, settle
from gateway.workflows.events import WorkflowEvent

logger = logging.getLogger(__name__)

_NAME = "checkpoint"


class TaskCheckpoints:
    """Implements `CheckpointStorage` for one run in a durable task. Only the latest checkpoint is kept."""

    def __init__(self, durable: DurablePort, events: Sequence[WorkflowEvent[Any]]) -> None:
        """`events` is the list to which the run appends its events."""
        self._durable = durable
        self._events = events

    @property
    def _kept(self) -> JsonObject | None:
        """The value that `save` last stored with the task: `checkpoint` and `outputs`. Earlier versions stored only the checkpoint."""
        kept = cast("JsonObject | None", self._durable.kept(_NAME))
        return kept if kept is None or "checkpoint" in kept else {"checkpoint": kept, "outputs": []}

    @property
    def latest_id(self) -> CheckpointID | None:
        """The id of the checkpoint to continue from; `None` at the first attempt."""
        kept = self._kept
        return str(kept["checkpoint"]["checkpoint_id"]) if kept is not None else None

    def outputs(self, book: TypeBook) -> list[WorkflowEvent[Any]]:
        """Return the outputs of the run up to the latest checkpoint.

        Raises:
            WorkflowCheckpointException: An output has a class that `book` does not contain.
        """
        kept = self._kept or {"outputs": []}
        given: list[tuple[str, Any]] = [(str(item["from"]), settle(decode(item["data"], TypeBook()), book)) for item in kept["outputs"]]
        return [WorkflowEvent("output", data, executor) for executor, data in given]

    async def save(self, checkpoint: WorkflowCheckpoint) -> CheckpointID:
        """Store a checkpoint with the task.

        If the checkpoint cannot be written as JSON, a resumed task starts again, with the results of its recorded steps.
        """
        try:
            form = json.loads(to_json(checkpoint))
            given = [{"from": event.executor_id, "data": encode(event.data)} for event in self._events if event.type == "output"]
        except WorkflowCheckpointException as error:
            logger.warning("workflow checkpoint not kept workflow=%s error=%s", checkpoint.workflow_name, error)
        else:
            await self._durable.keep(_NAME, {"checkpoint": form, "outputs": given})
        return checkpoint.checkpoint_id

    async def load(self, checkpoint_id: CheckpointID) -> WorkflowCheckpoint:
        """Return the latest checkpoint."""
        kept = cast("JsonObject", self._kept)
        return from_json(json.dumps(kept["checkpoint"]), TypeBook())

    async def list_checkpoints(self, *, workflow_name: str) -> list[WorkflowCheckpoint]:
        """Return a list with the latest checkpoint, or an empty list."""
        return [await self.load(self.latest_id)] if self.latest_id is not None else []

    async def delete(self, checkpoint_id: CheckpointID) -> bool:
        """Do nothing: the checkpoint is deleted with the task."""
        return False

    async def get_latest(self, *, workflow_name: str) -> WorkflowCheckpoint | None:
        """Return the latest checkpoint, or `None`."""
        return await self.load(self.latest_id) if self.latest_id is not None else None

    async def list_checkpoint_ids(self, *, workflow_name: str) -> list[CheckpointID]:
        """Return a list with the latest id, or an empty list."""
        return [self.latest_id] if self.latest_id is not None else []

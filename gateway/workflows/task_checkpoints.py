"""`TaskCheckpoints`: stores a run's latest checkpoint with its durable task (background call that resumes after a restart).

A resumed task continues the workflow from this checkpoint. A checkpoint does not contain the outputs so far; they are stored with it, so
that the resumed task has a complete result.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Sequence
from typing import Any, cast

from gateway.errors import WorkflowCheckpointException
from gateway.json_types import JsonObject
from gateway.tools.context import DurablePort
from gateway.workflows.checkpoints import CheckpointID, CheckpointStorage, WorkflowCheckpoint, from_json, to_json
from gateway.workflows.encoding import TypeBook, decode, encode, settle
from gateway.workflows.events import WorkflowEvent

logger = logging.getLogger(__name__)

_NAME = "checkpoint"


class TaskCheckpoints(CheckpointStorage):
    """Checkpoint storage for one workflow run in a durable task (background call that resumes after a restart).

    It stores only the latest checkpoint, with the data of the task.
    """

    def __init__(self, durable: DurablePort, events: Sequence[WorkflowEvent[Any]]) -> None:
        """Store checkpoints in the task `durable`. The run appends its events to the list `events`, from which the outputs are stored."""
        self._durable = durable
        self._events = events

    @property
    def _kept(self) -> JsonObject | None:
        """The object that `save` last stored with the task, with the keys `checkpoint` and `outputs`; `None` if nothing is stored.

        Earlier versions stored only the checkpoint; for such data, `outputs` is an empty list.
        """
        kept = cast("JsonObject | None", self._durable.kept(_NAME))
        return kept if kept is None or "checkpoint" in kept else {"checkpoint": kept, "outputs": []}

    @property
    def latest_id(self) -> CheckpointID | None:
        """Id of the stored checkpoint, from which a resumed task continues; `None` if the task has stored no checkpoint yet."""
        kept = self._kept
        return str(kept["checkpoint"]["checkpoint_id"]) if kept is not None else None

    def outputs(self, book: TypeBook) -> list[WorkflowEvent[Any]]:
        """Return the outputs of the run up to the latest checkpoint, as `output` events. `book` is the set of classes that may be decoded.

        Raises:
            WorkflowCheckpointException: An output has a class that `book` does not contain.
        """
        kept = self._kept or {"outputs": []}
        given: list[tuple[str, Any]] = [(str(item["from"]), settle(decode(item["data"], TypeBook()), book)) for item in kept["outputs"]]
        return [WorkflowEvent("output", data, executor) for executor, data in given]

    async def save(self, checkpoint: WorkflowCheckpoint) -> CheckpointID:
        """Store a checkpoint and the run's outputs so far with the task, in place of the previous checkpoint. Return the checkpoint's id.

        A checkpoint that cannot be written as JSON is not stored, and a warning is logged. A resumed task then continues from the previous
        checkpoint or, without one, from the start. Steps that the task has recorded do not run again.
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
        """Return the latest checkpoint. It must exist; `checkpoint_id` is ignored, because only one checkpoint is stored."""
        kept = cast("JsonObject", self._kept)
        return from_json(json.dumps(kept["checkpoint"]), TypeBook())

    async def list_checkpoints(self, *, workflow_name: str) -> list[WorkflowCheckpoint]:
        """Return a list with the latest checkpoint, or an empty list if no checkpoint is stored."""
        return [await self.load(self.latest_id)] if self.latest_id is not None else []

    async def delete(self, checkpoint_id: CheckpointID) -> bool:
        """Do nothing and return false, because the checkpoint is deleted together with the task."""
        return False

"""A workflow inside a durable task: its latest checkpoint is kept with the task, so that it goes on from its last round.

A checkpoint knows what is still to be done; what the run has given by then is kept beside it, or its result would lack it.
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
    """Implements `CheckpointStorage` for one run: only the latest checkpoint is kept."""

    def __init__(self, durable: DurablePort, events: Sequence[WorkflowEvent[Any]]) -> None:
        """`events` is the list that the run fills."""
        self._durable = durable
        self._events = events

    @property
    def _kept(self) -> JsonObject | None:
        """What was kept last: `checkpoint` and `outputs`. Earlier versions kept the checkpoint alone."""
        kept = cast("JsonObject | None", self._durable.kept(_NAME))
        return kept if kept is None or "checkpoint" in kept else {"checkpoint": kept, "outputs": []}

    @property
    def latest_id(self) -> CheckpointID | None:
        """The checkpoint to go on from; `None` at the first attempt."""
        kept = self._kept
        return str(kept["checkpoint"]["checkpoint_id"]) if kept is not None else None

    def outputs(self, book: TypeBook) -> list[WorkflowEvent[Any]]:
        """What the run had given by the latest checkpoint.

        Raises:
            WorkflowCheckpointException: `book` does not know a class of it.
        """
        kept = self._kept or {"outputs": []}
        given: list[tuple[str, Any]] = [(str(item["from"]), settle(decode(item["data"], TypeBook()), book)) for item in kept["outputs"]]
        return [WorkflowEvent("output", data, executor) for executor, data in given]

    async def save(self, checkpoint: WorkflowCheckpoint) -> CheckpointID:
        """Keep it. State that cannot be written makes the task begin again from its start, with the steps on record."""
        try:
            form = json.loads(to_json(checkpoint))
            given = [{"from": event.executor_id, "data": encode(event.data)} for event in self._events if event.type == "output"]
        except WorkflowCheckpointException as error:
            logger.warning("workflow %s: no checkpoint: %s", checkpoint.workflow_name, error)
        else:
            await self._durable.keep(_NAME, {"checkpoint": form, "outputs": given})
        return checkpoint.checkpoint_id

    async def load(self, checkpoint_id: CheckpointID) -> WorkflowCheckpoint:
        """The latest."""
        kept = cast("JsonObject", self._kept)
        return from_json(json.dumps(kept["checkpoint"]), TypeBook())

    async def list_checkpoints(self, *, workflow_name: str) -> list[WorkflowCheckpoint]:
        """The latest, if there is one."""
        return [await self.load(self.latest_id)] if self.latest_id is not None else []

    async def delete(self, checkpoint_id: CheckpointID) -> bool:
        """Goes with the task."""
        return False

    async def get_latest(self, *, workflow_name: str) -> WorkflowCheckpoint | None:
        """The latest."""
        return await self.load(self.latest_id) if self.latest_id is not None else None

    async def list_checkpoint_ids(self, *, workflow_name: str) -> list[CheckpointID]:
        """The latest, if there is one."""
        return [self.latest_id] if self.latest_id is not None else []

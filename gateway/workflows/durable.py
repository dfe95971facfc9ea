"""A workflow inside a durable task: its latest checkpoint is kept with the task, so that it goes on from its last round."""

from __future__ import annotations

import json
import logging
from typing import cast

from gateway.errors import WorkflowCheckpointException
from gateway.json_types import JsonObject
from gateway.tools.context import DurablePort
from gateway.workflows.checkpoints import CheckpointID, WorkflowCheckpoint, from_json, to_json
from gateway.workflows.encoding import TypeBook

logger = logging.getLogger(__name__)

_NAME = "checkpoint"


class TaskCheckpoints:
    """Implements `CheckpointStorage` for one run: only the latest checkpoint is kept."""

    def __init__(self, durable: DurablePort) -> None:
        self._durable = durable

    @property
    def latest_id(self) -> CheckpointID | None:
        """The checkpoint to go on from; `None` at the first attempt."""
        kept = self._durable.kept(_NAME)
        return str(cast("JsonObject", kept)["checkpoint_id"]) if kept is not None else None

    async def save(self, checkpoint: WorkflowCheckpoint) -> CheckpointID:
        """Keep it. State that cannot be written makes the task begin again from its start, with the steps on record."""
        try:
            form = json.loads(to_json(checkpoint))
        except WorkflowCheckpointException as error:
            logger.warning("workflow %s: no checkpoint: %s", checkpoint.workflow_name, error)
        else:
            await self._durable.keep(_NAME, form)
        return checkpoint.checkpoint_id

    async def load(self, checkpoint_id: CheckpointID) -> WorkflowCheckpoint:
        """The latest."""
        return from_json(json.dumps(self._durable.kept(_NAME)), TypeBook())

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

"""`RunRequest`: what a run of a workflow begins with."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from gateway.tools.context import CallContext
from gateway.workflows.checkpoints import CheckpointStorage


@dataclass(frozen=True, slots=True)
class RunRequest:
    """What a run begins with: a message, answers, a checkpoint, or a checkpoint and answers."""

    message: Any = None
    responses: Mapping[str, Any] | None = None
    checkpoint_id: str | None = None
    checkpoint_storage: CheckpointStorage | None = None
    run_kwargs: Mapping[str, Any] | None = None
    """Keyword arguments for agents in the graph, by kind; `None` keeps those of the run that goes on."""
    ctx: CallContext | None = None

    def check(self) -> None:
        """
        Raises:
            ValueError: The combination makes no sense.
        """
        if self.message is not None and self.responses is not None:
            raise ValueError("Cannot provide both 'message' and 'responses': a run begins or goes on.")
        if self.message is not None and self.checkpoint_id is not None:
            raise ValueError("Cannot provide both 'message' and 'checkpoint_id': a run begins or goes on.")
        if self.message is None and self.responses is None and self.checkpoint_id is None:
            raise ValueError("Must provide at least one of 'message' (new run), 'responses' (answers) or 'checkpoint_id' (go on from it).")

"""`RunRequest`: the input of one run of a workflow."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from gateway.tools.context import CallContext
from gateway.workflows.checkpoints import CheckpointStorage


@dataclass(frozen=True, slots=True)
class RunRequest:
    """A message, responses, a checkpoint, or a checkpoint with responses."""

    message: Any = None
    responses: Mapping[str, Any] | None = None
    checkpoint_id: str | None = None
    checkpoint_storage: CheckpointStorage | None = None
    run_kwargs: Mapping[str, Any] | None = None
    """Keyword arguments for the graph's agents, by kind; `None` keeps those of the run that continues."""
    ctx: CallContext | None = None

    def check(self) -> None:
        """
        Raises:
            ValueError: The fields do not go together.
        """
        if self.message is not None and self.responses is not None:
            raise ValueError("Cannot provide both 'message' and 'responses': a run either begins or continues.")
        if self.message is not None and self.checkpoint_id is not None:
            raise ValueError("Cannot provide both 'message' and 'checkpoint_id': a run either begins or continues.")
        if self.message is None and self.responses is None and self.checkpoint_id is None:
            raise ValueError(
                "Must provide at least one of 'message' (begin a run), 'responses' (answer requests) or 'checkpoint_id' (restore a run)."
            )

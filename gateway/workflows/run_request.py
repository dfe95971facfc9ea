"""`RunRequest`: the input of one run of a workflow, and the keyword arguments of the `run` methods of workflows and their agents."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypedDict, Unpack

from gateway.tools.context import CallContext
from gateway.workflows.checkpoints import CheckpointStorage


class RestoreOptions(TypedDict, total=False):
    """Keyword arguments that every `run` method of a workflow or its agent accepts."""

    checkpoint_id: str | None
    """Checkpoint from which the run continues."""
    checkpoint_storage: CheckpointStorage | None
    """Storage of this run's checkpoints, instead of the workflow's own."""
    ctx: CallContext | None
    """The tool call that the run serves."""


class RunOptions(RestoreOptions, total=False):
    """Keyword arguments of runs that take responses by request id."""

    responses: Mapping[str, Any] | None
    """Responses to open requests, by request id."""


class AgentKwargs(TypedDict, total=False):
    """Keyword arguments that a graph passes to its agents: to all of them, or by executor id."""

    function_invocation_kwargs: Mapping[str, Any] | None
    client_kwargs: Mapping[str, Any] | None


class AgentOptions(RestoreOptions, AgentKwargs, total=False):
    """Keyword arguments of `WorkflowAgent.run`."""


class GraphOptions(RunOptions, AgentKwargs, total=False):
    """Keyword arguments of `Workflow.run`."""


@dataclass(frozen=True, slots=True)
class RunRequest:
    """The input of one run: a message, responses, a checkpoint, or a checkpoint with responses."""

    message: Any = None
    responses: Mapping[str, Any] | None = None
    checkpoint_id: str | None = None
    checkpoint_storage: CheckpointStorage | None = None
    run_kwargs: Mapping[str, Any] | None = None
    """Keyword arguments for the agents of the graph, by kind (such as `client_kwargs`); `None` keeps those of the run that continues."""
    ctx: CallContext | None = None

    @classmethod
    def of_graph(
        cls,
        message: Any,
        *,
        function_invocation_kwargs: Mapping[str, Any] | None = None,
        client_kwargs: Mapping[str, Any] | None = None,
        **options: Unpack[RunOptions],
    ) -> RunRequest:
        """Return the request for a run of a graph, with keyword arguments for its agents."""
        kwargs = {"function_invocation_kwargs": function_invocation_kwargs, "client_kwargs": client_kwargs}
        given = {key: dict(value) for key, value in kwargs.items() if value is not None}
        return cls(message, run_kwargs=given or None, **options)

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

"""`RunRequest`: the input of one run of a workflow. Also the types of the keyword arguments of `run` of workflows and workflow agents."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypedDict, Unpack

from gateway.tools.context import CallContext
from gateway.workflows.checkpoints import CheckpointStorage


class RestoreOptions(TypedDict, total=False):
    """Keyword arguments that the `run` methods of all workflows, and of agents that run a workflow, accept."""

    checkpoint_id: str | None
    """Id of the checkpoint from which the run continues."""
    checkpoint_storage: CheckpointStorage | None
    """Storage for this run's checkpoints, instead of the storage that was passed when the workflow was built."""
    ctx: CallContext | None
    """Context of the tool call that the run serves: its client, rights and deadline."""


class RunOptions(RestoreOptions, total=False):
    """Keyword arguments of `run` methods that accept responses to a workflow's requests."""

    responses: Mapping[str, Any] | None
    """Responses to open requests of the workflow, by request id."""


class AgentKwargs(TypedDict, total=False):
    """Keyword arguments of `run` that a graph workflow passes to its agents: to all agents, or by executor id."""

    function_invocation_kwargs: Mapping[str, Any] | None
    client_kwargs: Mapping[str, Any] | None


class AgentOptions(RestoreOptions, AgentKwargs, total=False):
    """Keyword arguments of the `run` method of agents that run a graph workflow (`WorkflowAgent.run`)."""


class GraphOptions(RunOptions, AgentKwargs, total=False):
    """Keyword arguments of the `run` method of graph workflows (`Workflow.run`)."""


@dataclass(frozen=True, slots=True)
class RunRequest:
    """The input of one workflow run: a message to begin with; or responses to requests, a checkpoint, or both, to continue."""

    message: Any = None
    responses: Mapping[str, Any] | None = None
    checkpoint_id: str | None = None
    checkpoint_storage: CheckpointStorage | None = None
    run_kwargs: Mapping[str, Any] | None = None
    """Keyword arguments for the agents of the graph, by kind (such as `client_kwargs`).

    With `None`, a run that continues passes the same keyword arguments as before."""
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
        """Create the request for a run of a graph workflow from the arguments of its `run` method.

        `function_invocation_kwargs` and `client_kwargs` are keyword arguments for the agents of the graph.
        """
        kwargs = {"function_invocation_kwargs": function_invocation_kwargs, "client_kwargs": client_kwargs}
        given = {key: dict(value) for key, value in kwargs.items() if value is not None}
        return cls(message, run_kwargs=given or None, **options)

    def check(self) -> None:
        """Check that the request either begins a run (`message`) or continues one (`responses`, `checkpoint_id`).

        Raises:
            ValueError: The fields cannot be combined, or all three are missing.
        """
        if self.message is not None and self.responses is not None:
            raise ValueError("Cannot provide both 'message' and 'responses': a run either begins or continues.")
        if self.message is not None and self.checkpoint_id is not None:
            raise ValueError("Cannot provide both 'message' and 'checkpoint_id': a run either begins or continues.")
        if self.message is None and self.responses is None and self.checkpoint_id is None:
            raise ValueError(
                "Must provide at least one of 'message' (begin a run), 'responses' (answer requests) or 'checkpoint_id' (restore a run)."
            )

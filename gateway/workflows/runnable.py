"""`Runnable`: what a workflow must offer to be run to its end for one call, and published as a tool.

A graph (`workflow`) and a function with steps (`functional`) both are. Used by `asking`, `typed`, `plan` and `tool`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from gateway.workflows.encoding import TypeBook
from gateway.workflows.events import WorkflowEvent
from gateway.workflows.request import RunRequest
from gateway.workflows.runner import OnEvent


class Runnable(Protocol):
    """A workflow of either kind. Keeps what it needs to go on between runs, so it does one at a time."""

    @property
    def entry_id(self) -> str:
        """Who gets the message: an executor, or the function itself."""
        ...

    @property
    def input_types(self) -> list[Any]:
        """What the message may be."""
        ...

    @property
    def result_types(self) -> list[Any]:
        """What may be put out, by annotations; empty when they do not say."""
        ...

    @property
    def pending(self) -> Mapping[str, WorkflowEvent[Any]]:
        """Requests without an answer, by id."""
        ...

    def takes(self, message: object) -> bool:
        """Whether a run may begin with this message."""
        ...

    def book(self) -> TypeBook:
        """The classes that its checkpoints may hold."""
        ...

    def reset(self) -> None:
        """Forget earlier runs."""
        ...

    async def perform(
        self, request: RunRequest, emit: OnEvent | None, *, events: list[WorkflowEvent[Any]], is_streaming: bool = False
    ) -> None:
        """Run; every event is put into `events` and told to `emit`."""
        ...

"""`Workflow`: a built graph that can be run, and `WorkflowStream`: a run seen event by event.

How a round works is `runner`'s. Made by `WorkflowBuilder`; run by people's code and by `WorkflowTool`.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Coroutine
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Literal, overload

import anyio

from gateway.errors import WorkflowFailed
from gateway.tools.context import CallContext
from gateway.workflows.events import WorkflowEvent, WorkflowRunResult
from gateway.workflows.graph import Graph
from gateway.workflows.runner import MAX_ITERATIONS, OnEvent, Runner

if TYPE_CHECKING:
    from collections.abc import Generator


class Workflow:
    """A graph ready to run. Its executors may keep state, so it handles one message at a time (WF10)."""

    def __init__(self, graph: Graph, *, name: str = "", description: str = "", max_iterations: int = MAX_ITERATIONS) -> None:
        """Use `WorkflowBuilder`, which checks the graph."""
        self.name = name
        self.description = description
        self.graph = graph
        self.max_iterations = max_iterations
        self._is_running = False

    @overload
    def run(
        self, message: object = None, *, stream: Literal[False] = False, ctx: CallContext | None = None, on_event: OnEvent | None = None
    ) -> Coroutine[Any, Any, WorkflowRunResult]: ...

    @overload
    def run(
        self, message: object = None, *, stream: Literal[True], ctx: CallContext | None = None, on_event: OnEvent | None = None
    ) -> WorkflowStream: ...

    def run(
        self, message: object = None, *, stream: bool = False, ctx: CallContext | None = None, on_event: OnEvent | None = None
    ) -> Coroutine[Any, Any, WorkflowRunResult] | WorkflowStream:
        """Run until no messages are left: await the result, or iterate the events with `stream=True`.

        `ctx` is the call it serves, handed to executors. `on_event` hears events at once, while a stream yields
        those of a round when the round has ended.

        Raises:
            ValueError: There is no message.
            RuntimeError: A run is going on. Raised, like the next, when the run begins.
            WorkflowFailed: An executor failed (`__cause__` is its exception) or the run did not come to rest.
        """
        if message is None:
            raise ValueError("A workflow needs a message to start with.")
        runner = Runner(self.graph, message, max_iterations=self.max_iterations, call=ctx or CallContext(), on_event=on_event)
        run = WorkflowStream(self, runner)
        return run if stream else run.get_final_response()

    @contextmanager
    def exclusively(self) -> Generator[None]:
        """Held by a run from its first to its last round.

        Raises:
            RuntimeError: Another run holds it.
        """
        if self._is_running:
            raise RuntimeError(f"Workflow {self.name!r} is already running; build another one to run two at once.")
        self._is_running = True
        try:
            yield
        finally:
            self._is_running = False


class WorkflowStream:
    """The events of one run. Iterate once; it runs only while it is iterated or awaited for its result."""

    def __init__(self, workflow: Workflow, runner: Runner) -> None:
        self._workflow = workflow
        self._runner = runner
        self._events = self._iterate()

    def __aiter__(self) -> WorkflowStream:
        return self

    async def __anext__(self) -> WorkflowEvent:
        return await anext(self._events)

    async def get_final_response(self) -> WorkflowRunResult:
        """The result; consumes what is left of the stream.

        Raises:
            WorkflowFailed: As `run` does.
        """
        async for _ in self._events:
            pass
        return self._runner.result

    async def aclose(self) -> None:
        """Stop early: no further round runs."""
        await self._events.aclose()

    async def _iterate(self) -> AsyncGenerator[WorkflowEvent]:
        cancelled = anyio.get_cancelled_exc_class()
        seen = 0
        failure: WorkflowFailed | None = None
        has_more = True
        with self._workflow.exclusively():
            try:
                while has_more:
                    try:
                        has_more = await self._runner.advance()
                    except WorkflowFailed as error:
                        failure, has_more = error, False
                    fresh, seen = self._runner.events[seen:], len(self._runner.events)
                    for event in fresh:
                        yield event
            except (GeneratorExit, cancelled):
                self._runner.cancelled()
                raise
        if failure is not None:
            raise failure

"""Functions that make a checkpoint of a graph workflow's state, and restore the state from a checkpoint.

A sub-workflow's checkpoint, which is part of its parent's checkpoint, is made with the same functions.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from itertools import groupby
from typing import Any, cast

from gateway.errors import WorkflowCheckpointException
from gateway.workflows.checkpoints import CheckpointID, WorkflowCheckpoint
from gateway.workflows.encoding import TypeBook, settle
from gateway.workflows.graph import WorkflowGraph
from gateway.workflows.messages import WorkflowMessage
from gateway.workflows.run_state import State
from gateway.workflows.type_hints import types_in

EXECUTOR_STATE_KEY = "_executor_state"
"""Key in the state of a checkpoint. The value contains the result of each executor's `on_checkpoint_save`, by executor id."""

ENGINE_KEY = "_engine_state"
"""Key, in the state of a checkpoint, of the state of the workflow engine.

It contains the messages that fan-ins (edges that wait for messages of several executors) have collected, the number of uses of edges with
a limit, and the order of the messages if it cannot be derived from their senders."""


async def take_snapshot(graph: WorkflowGraph, *, previous: CheckpointID | None = None) -> WorkflowCheckpoint:
    """Return a checkpoint of the workflow's state. `previous` is the id of the run's previous checkpoint.

    Call it between two supersteps (steps of a run in which all waiting messages are handled).

    Raises:
        WorkflowCheckpointException: The method `on_checkpoint_save` of an executor failed.
    """
    run = graph.run_state
    own: dict[str, Any] = {}
    for name, executor in graph.executors.items():
        with _executor_errors(f"Executor {name!r} could not save its state"):
            if kept := await executor.on_checkpoint_save():
                own[name] = kept
    messages: dict[str, list[WorkflowMessage]] = {}
    for message in run.messages:
        messages.setdefault(message.source_id, []).append(message)
    engine = {
        "waiting": [[index, collected] for index, collected in run.waiting.items()],
        "traversals": [[index, used] for index, used in run.traversals.items()],
        "order": [] if _is_by_sender(run.messages) else [message.source_id for message in run.messages],
    }
    state = run.shared.export_state()
    if own:
        state[EXECUTOR_STATE_KEY] = own
    if any(engine.values()):
        state[ENGINE_KEY] = engine
    return WorkflowCheckpoint(
        graph.name,
        graph.graph_signature_hash,
        previous_checkpoint_id=previous,
        messages=messages,
        state=state,
        pending_request_info_events=dict(run.pending),
        iteration_count=run.iteration,
    )


async def restore_snapshot(graph: WorkflowGraph, checkpoint: WorkflowCheckpoint) -> None:
    """Replace the state of the workflow by the state in the checkpoint.

    Raises:
        WorkflowCheckpointException: The checkpoint was made by another graph, contains values of classes that may not be decoded, or the
            method `on_checkpoint_restore` of an executor failed.
    """
    if checkpoint.graph_signature_hash != graph.graph_signature_hash:
        raise WorkflowCheckpointException(
            "Workflow graph has changed since the checkpoint was created; build the original workflow to continue from it."
        )
    book = book_of(graph)
    state: dict[str, Any] = settle(dict(checkpoint.state), book)
    own = cast("dict[str, dict[str, Any]]", state.pop(EXECUTOR_STATE_KEY, {}))
    engine = cast("dict[str, Any]", state.pop(ENGINE_KEY, {}))
    run = graph.run_state
    run.shared = State(state)
    run.messages = _in_order(settle(checkpoint.messages, book), engine.get("order", ()))
    run.pending.clear()
    run.pending.update(settle(checkpoint.pending_request_info_events, book))
    run.waiting = dict(engine.get("waiting", ()))
    run.traversals = dict(engine.get("traversals", ()))
    run.iteration = checkpoint.iteration_count
    unknown = [name for name in own if name not in graph.executors]
    if unknown:
        raise WorkflowCheckpointException(f"The checkpoint has state of executor {unknown[0]!r}, which this workflow does not have.")
    for name, executor in graph.executors.items():
        if name in own:
            with _executor_errors(f"Executor {name!r} could not restore its state"):
                await executor.on_checkpoint_restore(own[name])


@contextmanager
def _executor_errors(failed: str) -> Generator[None]:
    try:
        yield
    except WorkflowCheckpointException:
        raise
    except Exception as error:  # executors are user code
        raise WorkflowCheckpointException(f"{failed}: {error}") from error


def _is_by_sender(messages: Sequence[WorkflowMessage]) -> bool:
    """Return whether the messages of each sender are adjacent. A checkpoint groups messages by sender, which then preserves their order."""
    senders = [sender for sender, _ in groupby(message.source_id for message in messages)]
    return len(senders) == len(set(senders))


def _in_order(batches: Mapping[str, Sequence[WorkflowMessage]], order: Sequence[str]) -> list[WorkflowMessage]:
    """Return the messages of a checkpoint in the order in which they were sent.

    `batches` are the messages by id of their sender. `order` has the sender of each message; if it is empty, the messages were sent in the
    order of `batches`.
    """
    if not order:
        return [message for batch in batches.values() for message in batch]
    rest = {sender: iter(batch) for sender, batch in batches.items()}
    return [next(rest[sender]) for sender in order]


def book_of(graph: WorkflowGraph) -> TypeBook:
    """Return the set of classes that may be decoded from checkpoints of this graph.

    It contains the classes in the annotations of the handlers of the executors, also of those in a sub-workflow, and all classes in the
    modules of these classes and of the executors.
    """
    classes: set[type] = set()
    modules: set[str] = set()
    for executor in graph.executors.values():
        pairs = [kind for pair in executor.request_types for kind in pair]
        classes |= types_in([*executor.input_types, *executor.output_types, *executor.workflow_output_types, *pairs])
        modules.add(type(executor).__module__)
        for child in getattr(getattr(executor, "workflow", None), "executors", {}).values():
            classes |= types_in([*child.input_types, *child.output_types, *child.workflow_output_types])
    modules |= {kind.__module__ for kind in classes} - {"builtins"}
    return TypeBook(known=classes, modules=modules)

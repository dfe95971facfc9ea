"""Taking a checkpoint of a workflow and giving one back to it.

Between the values of `checkpoints` and the run state of `runner`; also used for a sub-workflow inside its parent's
checkpoint (`sub_workflow`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby
from typing import TYPE_CHECKING, Any, cast

from gateway.errors import WorkflowCheckpointException
from gateway.workflows.annotations import types_in
from gateway.workflows.checkpoints import CheckpointID, WorkflowCheckpoint
from gateway.workflows.encoding import TypeBook, settle
from gateway.workflows.messages import State, WorkflowMessage

if TYPE_CHECKING:
    from gateway.workflows.workflow import Workflow

EXECUTOR_STATE_KEY = "_executor_state"
"""Where executors' own state is kept in a checkpoint's state."""

ENGINE_KEY = "_engine_state"
"""Key of the engine's state: messages that fan-ins collected, uses of edges, and the order of messages unless it is by sender."""


async def take(workflow: Workflow, *, previous: CheckpointID | None = None) -> WorkflowCheckpoint:
    """Everything that the next round needs, as it is now.

    Raises:
        WorkflowCheckpointException: An executor could not say what it keeps.
    """
    run = workflow.run_state
    own: dict[str, Any] = {}
    for name, executor in workflow.executors.items():
        try:
            kept = await executor.on_checkpoint_save()
        except WorkflowCheckpointException:
            raise
        except Exception as error:  # the boundary to an executor's code
            raise WorkflowCheckpointException(f"Executor {name!r} could not save its state: {error}") from error
        if kept:
            own[name] = kept
    messages: dict[str, list[WorkflowMessage]] = {}
    for message in run.messages:
        messages.setdefault(message.source_id, []).append(message)
    engine = {
        "waiting": [[index, box] for index, box in run.waiting.items()],
        "traversals": [[index, used] for index, used in run.traversals.items()],
        "order": [] if _is_by_sender(run.messages) else [message.source_id for message in run.messages],
    }
    state = run.shared.export_state()
    if own:
        state[EXECUTOR_STATE_KEY] = own
    if any(engine.values()):
        state[ENGINE_KEY] = engine
    return WorkflowCheckpoint(
        workflow.name,
        workflow.graph_signature_hash,
        previous_checkpoint_id=previous,
        messages=messages,
        state=state,
        pending_request_info_events=dict(run.pending),
        iteration_count=run.iteration,
    )


async def give_back(workflow: Workflow, checkpoint: WorkflowCheckpoint) -> None:
    """Put the workflow where it was.

    Raises:
        WorkflowCheckpointException: The checkpoint is another graph's, or holds values that this one does not know.
    """
    if checkpoint.graph_signature_hash != workflow.graph_signature_hash:
        raise WorkflowCheckpointException(
            "Workflow graph has changed since the checkpoint was created; build the original workflow to go on from it."
        )
    book = book_of(workflow)
    state: dict[str, Any] = settle(dict(checkpoint.state), book)
    own = cast("dict[str, dict[str, Any]]", state.pop(EXECUTOR_STATE_KEY, {}))
    engine = cast("dict[str, Any]", state.pop(ENGINE_KEY, {}))
    run = workflow.run_state
    run.shared = State(state)
    run.messages = _in_order(settle(checkpoint.messages, book), engine.get("order", ()))
    run.pending.clear()
    run.pending.update(settle(checkpoint.pending_request_info_events, book))
    run.waiting = dict(engine.get("waiting", ()))
    run.traversals = dict(engine.get("traversals", ()))
    run.iteration = checkpoint.iteration_count
    unknown = [name for name in own if name not in workflow.executors]
    if unknown:
        raise WorkflowCheckpointException(f"The checkpoint has state of executor {unknown[0]!r}, which this workflow does not have.")
    for name, executor in workflow.executors.items():
        if name in own:
            try:
                await executor.on_checkpoint_restore(own[name])
            except WorkflowCheckpointException:
                raise
            except Exception as error:  # the boundary to an executor's code
                raise WorkflowCheckpointException(f"Executor {name!r} could not take back its state: {error}") from error


def _is_by_sender(messages: Sequence[WorkflowMessage]) -> bool:
    """Whether the messages of each sender are adjacent: a checkpoint groups them so."""
    senders = [sender for sender, _ in groupby(message.source_id for message in messages)]
    return len(senders) == len(set(senders))


def _in_order(batches: Mapping[str, Sequence[WorkflowMessage]], order: Sequence[str]) -> list[WorkflowMessage]:
    """Return the messages in the order of sending. `order` names the sender of each; it is empty if they are grouped by sender."""
    if not order:
        return [message for batch in batches.values() for message in batch]
    rest = {sender: iter(batch) for sender, batch in batches.items()}
    return [next(rest[sender]) for sender in order]


def book_of(workflow: Workflow) -> TypeBook:
    """The classes that this graph's checkpoints may hold: those its handlers name, and all of the modules they come from."""
    classes: set[type] = set()
    modules: set[str] = set()
    for executor in workflow.executors.values():
        pairs = [kind for pair in executor.request_types for kind in pair]
        classes |= types_in([*executor.input_types, *executor.output_types, *executor.workflow_output_types, *pairs])
        modules |= _modules_of(executor)
        classes |= {kind for inner in _inner(executor) for kind in inner}
    modules |= {kind.__module__ for kind in classes} - {"builtins"}
    return TypeBook(known=classes, modules=modules)


def _modules_of(executor: Any) -> set[str]:
    function = getattr(executor, "wrapped_function", None)
    found = {type(executor).__module__}
    if function is not None:
        found.add(function.__module__)
    return found


def _inner(executor: Any) -> Iterable[set[type]]:
    """Classes of a workflow inside."""
    inner = getattr(executor, "workflow", None)
    if inner is None or not hasattr(inner, "executors"):
        return
    for child in inner.executors.values():
        yield types_in([*child.input_types, *child.output_types, *child.workflow_output_types])

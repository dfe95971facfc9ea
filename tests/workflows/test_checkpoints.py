"""Checkpoints: taken at every boundary between rounds, stored in memory or in JSON files, and restored only by the same graph."""

from __future__ import annotations

import json
import subprocess
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from enum import Enum
from pathlib import Path
from typing import Any, Never

import pytest
from pydantic import BaseModel

from gateway.errors import WorkflowCheckpointException
from gateway.types.messages import Message
from gateway.workflows.builder import WorkflowBuilder
from gateway.workflows.checkpoints import (
    CheckpointStorage,
    FileCheckpointStorage,
    InMemoryCheckpointStorage,
    WorkflowCheckpoint,
    from_json,
    to_json,
)
from gateway.workflows.encoding import TypeBook
from gateway.workflows.events import WorkflowRunState
from gateway.workflows.executor import Executor, handler, response_handler
from gateway.workflows.sql_checkpoints import SqlCheckpointStorage
from gateway.workflows.workflow import Workflow
from gateway.workflows.workflow_context import WorkflowContext


class Colour(Enum):
    RED = "red"


class Model(BaseModel):
    number: int = 1


@dataclass
class Parcel:
    text: str
    tags: set[str] = field(default_factory=set[str])
    when: datetime = field(default_factory=lambda: datetime(2026, 1, 2, tzinfo=UTC))
    colour: Colour = Colour.RED
    model: Model = field(default_factory=Model)
    said: list[Message] = field(default_factory=list[Message])
    raw: bytes = b"\x00\xff"
    pair: tuple[int, float] = (1, float("inf"))
    table: dict[int, str] = field(default_factory=lambda: {1: "one"})


class Counting(Executor):
    """An executor that counts its messages in its own state and in the workflow's shared state."""

    def __init__(self, id: str) -> None:
        super().__init__(id)
        self.handled = 0

    @handler
    async def run(self, message: Parcel, ctx: WorkflowContext[Parcel, Parcel]) -> None:
        self.handled += 1
        ctx.set_state("sum", ctx.get_state("sum", 0) + 1)
        message.tags.add(self.id)
        if self.id == "c" and self.handled < 2:
            await ctx.request_info(message, bool, request_id="go")
            return
        await ctx.send_message(message)
        await ctx.yield_output(message)

    @response_handler
    async def go(self, original_request: Parcel, response: bool, ctx: WorkflowContext[Parcel, Parcel]) -> None:
        await ctx.yield_output(Parcel(f"{original_request.text} {response} {self.handled} {ctx.get_state('sum')}"))

    async def on_checkpoint_save(self) -> dict[str, Any]:
        return {"handled": self.handled}

    async def on_checkpoint_restore(self, state: dict[str, Any]) -> None:
        self.handled = state["handled"]


def build(storage: CheckpointStorage | None = None, *, more: bool = False) -> Workflow:
    a, b, c = Counting("a"), Counting("b"), Counting("c")
    builder = WorkflowBuilder(name="counting", start_executor=a, checkpoint_storage=storage).add_edge(a, b).add_edge(b, c)
    return (builder.add_edge(c, Counting("d")) if more else builder).build()


def parcel() -> Parcel:
    return Parcel("p", said=[Message("user", ["hello"])])


Make = Callable[[Path], CheckpointStorage]


def in_memory(folder: Path) -> CheckpointStorage:
    return InMemoryCheckpointStorage()


def in_a_database(folder: Path) -> CheckpointStorage:
    return SqlCheckpointStorage(folder / "checkpoints.db")


STORES = pytest.mark.parametrize("make", [in_memory, FileCheckpointStorage, in_a_database])


@STORES
@pytest.mark.requirement("WF12")
@pytest.mark.requirement("WF2")
async def test_checkpoint_at_every_boundary_can_be_resumed(make: Make, tmp_path: Path) -> None:
    storage = make(tmp_path)
    await build(storage).run(parcel())
    checkpoints = await storage.list_checkpoints(workflow_name="counting")
    assert [item.iteration_count for item in checkpoints] == [0, 1, 2]
    assert [item.previous_checkpoint_id for item in checkpoints] == [None, *(item.checkpoint_id for item in checkpoints[:-1])]
    assert list(checkpoints[-1].pending_request_info_events) == ["go"]
    latest = await storage.get_latest(workflow_name="counting")
    assert latest is not None
    assert latest.checkpoint_id == checkpoints[-1].checkpoint_id
    for checkpoint in checkpoints:
        workflow = build()
        result = await workflow.run(checkpoint_id=checkpoint.checkpoint_id, checkpoint_storage=storage)
        assert result.get_final_state() is WorkflowRunState.IDLE_WITH_PENDING_REQUESTS
        (event,) = result.get_request_info_events()
        assert event.data == Parcel("p", {"a", "b", "c"}, said=[Message("user", ["hello"])])
        result = await workflow.run(responses={"go": True})
        assert [output.text for output in result.get_outputs()] == ["p True 1 3"]


@STORES
@pytest.mark.requirement("WF10")
@pytest.mark.requirement("WF12")
async def test_checkpoint_and_answers_may_be_given_together(make: Make, tmp_path: Path) -> None:
    storage = make(tmp_path)
    await build(storage).run(parcel())
    latest = await storage.get_latest(workflow_name="counting")
    assert latest is not None
    result = await build(storage).run(checkpoint_id=latest.checkpoint_id, responses={"go": False})
    assert [output.text for output in result.get_outputs()] == ["p False 1 3"]
    assert result.get_request_info_events() == []


@STORES
@pytest.mark.requirement("WF12")
async def test_checkpoints_are_listed_by_workflow_and_deleted_by_id(make: Make, tmp_path: Path) -> None:
    storage = make(tmp_path)
    one, two = WorkflowCheckpoint("w", "h"), WorkflowCheckpoint("other", "h")
    for item in (one, two):
        assert await storage.save(item) == item.checkpoint_id
    assert await storage.list_checkpoint_ids(workflow_name="w") == [one.checkpoint_id]
    assert await storage.load(one.checkpoint_id) == one
    assert [await storage.delete(one.checkpoint_id) for _ in range(2)] == [True, False]
    with pytest.raises(WorkflowCheckpointException, match=f"No checkpoint found with ID {one.checkpoint_id}"):
        await storage.load(one.checkpoint_id)
    assert await storage.get_latest(workflow_name="w") is None


@STORES
@pytest.mark.requirement("WF12")
async def test_changing_a_listed_checkpoint_leaves_the_stored_one_unchanged(make: Make, tmp_path: Path) -> None:
    storage = make(tmp_path)
    saved = WorkflowCheckpoint("w", "h", state={"items": [1]})
    await storage.save(saved)
    newest = await storage.get_latest(workflow_name="w")
    assert newest is not None
    for given in (newest, *await storage.list_checkpoints(workflow_name="w")):
        given.state["items"].append(2)
    assert (await storage.load(saved.checkpoint_id)).state == {"items": [1]}


@pytest.mark.requirement("WF12")
async def test_another_graph_does_not_take_the_checkpoint() -> None:
    storage = InMemoryCheckpointStorage()
    await build(storage).run(parcel())
    (first, *_) = await storage.list_checkpoint_ids(workflow_name="counting")
    with pytest.raises(WorkflowCheckpointException, match="graph has changed"):
        await build(storage, more=True).run(checkpoint_id=first)
    with pytest.raises(ValueError, match="provide checkpoint_storage"):
        await build().run(checkpoint_id=first)


@pytest.mark.requirement("WF12")
@pytest.mark.attack(30)
async def test_files_are_versioned_json_and_ids_never_leave_the_folder(tmp_path: Path) -> None:
    storage = FileCheckpointStorage(tmp_path / "checkpoints")
    await build(storage).run(parcel())
    (path, *_) = (tmp_path / "checkpoints").glob("*.json")
    data = json.loads(path.read_text())
    assert data["version"] == "1.0"
    path.write_text(json.dumps({**data, "version": "0.9"}))
    with pytest.raises(WorkflowCheckpointException, match=r"version '0\.9'"):
        await storage.load(path.stem)
    path.write_text("{")
    with pytest.raises(WorkflowCheckpointException, match="is not a checkpoint"):
        await storage.load(path.stem)
    (tmp_path / "secret.json").write_text("{}")
    for bad in ("../secret", "/etc/passwd", "", "a/b"):
        with pytest.raises(WorkflowCheckpointException, match="Invalid checkpoint ID"):
            await storage.load(bad)


@pytest.mark.requirement("WF12")
@pytest.mark.attack(33)
async def test_class_unknown_to_the_graph_is_not_created_unless_allowed(tmp_path: Path) -> None:
    storage = FileCheckpointStorage(tmp_path)
    checkpoint = WorkflowCheckpoint("counting", build().graph_signature_hash, state={"x": subprocess.CalledProcessError(1, "x")})
    await storage.save(checkpoint)
    with pytest.raises(WorkflowCheckpointException, match=r"subprocess:CalledProcessError.*allowed_checkpoint_types"):
        await build().run(checkpoint_id=checkpoint.checkpoint_id, checkpoint_storage=storage)
    assert (await storage.load(checkpoint.checkpoint_id)).state["x"].type_name == "subprocess:CalledProcessError"
    allowed = FileCheckpointStorage(tmp_path, allowed_checkpoint_types=["subprocess:CalledProcessError"])
    await build().run(checkpoint_id=checkpoint.checkpoint_id, checkpoint_storage=allowed)


@pytest.mark.requirement("WF12")
async def test_unserializable_value_fails_the_run_and_is_named(tmp_path: Path) -> None:
    class Holder(Executor):
        @handler
        async def run(self, message: str, ctx: WorkflowContext[Never, Never]) -> None:
            ctx.set_state("lock", threading.Lock())

    workflow = WorkflowBuilder(start_executor=Holder("h")).build()
    with pytest.raises(WorkflowCheckpointException, match="cannot be written into a checkpoint"):
        await workflow.run("x", checkpoint_storage=FileCheckpointStorage(tmp_path))


@pytest.mark.requirement("WF12")
async def test_fan_in_that_waits_is_part_of_the_checkpoint() -> None:
    class Split(Executor):
        @handler
        async def run(self, message: str, ctx: WorkflowContext[str]) -> None:
            await ctx.send_message(message)

    class Join(Executor):
        @handler
        async def run(self, message: list[str], ctx: WorkflowContext[Never, list[str]]) -> None:
            await ctx.yield_output(message)

    def graph() -> Workflow:
        s, x, y, z, j = Split("s"), Split("x"), Split("y"), Split("z"), Join("j")
        builder = WorkflowBuilder(name="w", start_executor=s, output_from=[j]).add_fan_out_edges(s, [x, y])
        return builder.add_edge(y, z).add_fan_in_edges([x, z], j).build()

    storage = InMemoryCheckpointStorage()
    await graph().run("m", checkpoint_storage=storage)
    for checkpoint in (await storage.list_checkpoints(workflow_name="w"))[:-1]:
        restored = from_json(to_json(checkpoint), TypeBook())
        await storage.save(restored)
        result = await graph().run(checkpoint_id=restored.checkpoint_id, checkpoint_storage=storage)
        assert result.get_outputs() == [["m", "m"]]

"""Spans of building and running workflows, under agent-framework's names."""

from __future__ import annotations

from typing import Any

import pytest
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.trace import SpanKind, StatusCode

from gateway import Executor, WorkflowBuilder, WorkflowContext, WorkflowValidationError, disable_instrumentation, handler, workflow
from tests.telemetry.conftest import Recorded

pytestmark = pytest.mark.requirement("OT1", "WF6")


class Adds(Executor):
    """Sends the text with a mark appended."""

    @handler
    async def add(self, text: str, ctx: WorkflowContext[str]) -> None:
        await ctx.send_message(text + "!")


class AddsFor(Executor):
    """Sends the text to one executor."""

    @handler
    async def add(self, text: str, ctx: WorkflowContext[str]) -> None:
        await ctx.send_message(text, target_id="ends")


class Ends(Executor):
    """Yields the text."""

    @handler
    async def end(self, text: str, ctx: WorkflowContext[str, str]) -> None:
        if "SECRET" in text:
            raise ValueError(text)
        await ctx.yield_output(text)


class Joins(Executor):
    """Yields texts of several senders."""

    @handler
    async def join(self, texts: list[str], ctx: WorkflowContext[str, str]) -> None:
        await ctx.yield_output(" ".join(texts))


def told(recorded: Recorded, *, below: str = "") -> list[ReadableSpan]:
    """Return spans whose names have this prefix, in order of their start."""
    found = sorted(recorded.exporter.get_finished_spans(), key=lambda span: span.start_time or 0)
    return [span for span in found if span.name.startswith(below)]


def attributes(span: ReadableSpan, *left_out: str) -> dict[str, Any]:
    return {key: value for key, value in (span.attributes or {}).items() if key not in left_out}


def parent(span: ReadableSpan, recorded: Recorded) -> str | None:
    names = {s.context.span_id: s.name for s in recorded.exporter.get_finished_spans() if s.context is not None}
    return names[span.parent.span_id] if span.parent is not None else None


def linked(span: ReadableSpan, recorded: Recorded) -> list[str]:
    names = {s.context.span_id: s.name for s in recorded.exporter.get_finished_spans() if s.context is not None}
    return [names[link.context.span_id] for link in span.links]


async def test_run_has_linked_spans_of_steps_edges_and_messages(recorded: Recorded) -> None:
    first, last = Adds("first"), Ends("last")
    built = WorkflowBuilder(start_executor=first, name="flow", description="Goes on.").add_edge(first, last).build()
    await built.run("x")
    assert [(span.name, parent(span, recorded), linked(span, recorded)) for span in told(recorded)] == [
        ("workflow.build", None, []),
        ("workflow.run", None, []),
        ("edge_group.process InternalEdgeGroup", "workflow.run", []),
        ("executor.process first", "workflow.run", []),
        ("message.send", "executor.process first", []),
        ("edge_group.process SingleEdgeGroup", "workflow.run", ["message.send"]),
        ("executor.process last", "workflow.run", ["message.send"]),
    ]
    build, run, _, step, send, edge, _ = told(recorded)
    assert attributes(build) == {
        "workflow_builder.name": "flow",
        "workflow_builder.description": "Goes on.",
        "workflow.id": built.id,
        "workflow.definition": built.to_json(),
    }
    assert [event.name for event in build.events] == ["build.started", "build.validation_completed", "build.completed"]
    assert attributes(run, "gen_ai.operation.name", "gen_ai.workflow.name") == {
        "workflow.id": built.id,
        "workflow.name": "flow",
        "workflow.description": "Goes on.",
    }
    assert [event.name for event in run.events] == ["workflow.started", "workflow.completed"]
    assert attributes(step) == {
        "executor.id": "first",
        "executor.type": "Adds",
        "message.type": "standard",
        "message.payload_type": "str",
    }
    assert (send.kind, attributes(send)) == (SpanKind.PRODUCER, {"message.type": "str"})
    assert attributes(edge, "edge_group.id") == {
        "edge_group.type": "SingleEdgeGroup",
        "message.source_id": "first",
        "edge_group.delivered": True,
        "edge_group.delivery_status": "delivered",
    }
    assert recorded.points("gen_ai.client.operation.duration")[0][0]["gen_ai.workflow.name"] == "flow"


async def test_fan_in_is_linked_to_every_message_it_waited_for(recorded: Recorded) -> None:
    start, left, right, join = Adds("start"), Adds("left"), Adds("right"), Joins("join")
    builder = WorkflowBuilder(start_executor=start).add_fan_out_edges(start, [left, right]).add_fan_in_edges([left, right], join)
    await builder.build().run("x")
    groups = told(recorded, below="edge_group.process Fan")
    assert [attributes(span)["edge_group.delivery_status"] for span in groups] == ["delivered", "buffered", "delivered"]
    [joined] = told(recorded, below="executor.process join")
    assert linked(joined, recorded) == ["message.send", "message.send"]


@pytest.mark.parametrize("why", ["dropped condition evaluated to false", "dropped target mismatch", "dropped type mismatch", "exception"])
async def test_reason_for_an_undelivered_message_is_recorded(why: str, recorded: Recorded) -> None:
    ends, other = Ends("ends"), Ends("other")
    match why:
        case "dropped target mismatch":
            start: Executor = AddsFor("start")
            builder = WorkflowBuilder(start_executor=start).add_edge(start, ends).add_edge(start, other)
        case "dropped type mismatch":
            start = Numbers("start")
            builder = WorkflowBuilder(start_executor=start).add_edge(start, other)
        case _:
            start = Adds("start")
            builder = WorkflowBuilder(start_executor=start).add_edge(start, other, condition=broken if why == "exception" else refuses)
    built = builder.build()
    if why == "exception":
        with pytest.raises(ZeroDivisionError):
            await built.run("x")
    else:
        await built.run("x")
    edge = told(recorded, below="edge_group.process SingleEdgeGroup")[-1]
    assert (attributes(edge)["edge_group.delivered"], attributes(edge)["edge_group.delivery_status"]) == (False, why)
    if why == "dropped target mismatch":
        [send] = told(recorded, below="message.send")
        assert attributes(send)["message.destination_executor_id"] == attributes(edge)["message.target_id"] == "ends"


class Numbers(Executor):
    """Sends strings or numbers to an executor that accepts strings."""

    @handler
    async def count(self, text: str, ctx: WorkflowContext[str | int]) -> None:
        await ctx.send_message(len(text))


def refuses(text: str) -> bool:
    return False


def broken(text: str) -> bool:
    return bool(1 / 0)


async def test_failure_is_recorded_by_its_class_alone(recorded: Recorded) -> None:
    start, ends = Adds("start"), Ends("ends")
    with pytest.raises(ValueError, match="SECRET"):
        await WorkflowBuilder(start_executor=start).add_edge(start, ends).build().run("SECRET")
    [run], [step] = told(recorded, below="workflow.run"), told(recorded, below="executor.process ends")
    assert [span.status.status_code for span in (run, step)] == [StatusCode.ERROR, StatusCode.ERROR]
    assert attributes(run)["error.type"] == attributes(step)["error.type"] == "ValueError"
    assert [(event.name, dict(event.attributes or {})) for event in run.events][1:] == [
        ("workflow.error", {"error.type": "ValueError"}),
        ("exception", {"exception.type": "ValueError"}),
    ]
    assert not any("SECRET" in span.to_json() for span in told(recorded))


async def test_invalid_graph_is_recorded_with_the_mistake(recorded: Recorded) -> None:
    start = Adds("start")
    with pytest.raises(WorkflowValidationError):
        WorkflowBuilder(start_executor=start).add_edge(start, Joins("join")).build()
    [build] = told(recorded)
    failed = build.events[1]
    assert (failed.name, (failed.attributes or {})["build.error.type"]) == ("build.error", "TypeCompatibilityError")
    assert "'start' -> 'join'" in str((failed.attributes or {})["build.error.message"])


@pytest.mark.requirement("WF15")
async def test_functional_workflow_is_a_run_as_well(recorded: Recorded) -> None:
    @workflow
    async def doubles(text: str) -> str:
        return text * 2

    await doubles.run("x")
    [run] = told(recorded)
    assert (run.name, attributes(run)["workflow.name"]) == ("workflow.run", "doubles")


async def test_disabled_telemetry_records_and_sends_nothing(recorded: Recorded) -> None:
    disable_instrumentation()
    start, ends = Adds("start"), Ends("ends")
    await WorkflowBuilder(start_executor=start).add_edge(start, ends).build().run("x")
    assert told(recorded) == []

"""`WorkflowBuilder.build` refuses graphs that cannot work, naming the executor or edge."""

from __future__ import annotations

import json
from typing import Any, TypeVar

import pytest

from gateway.workflows.builder import WorkflowBuilder
from gateway.workflows.edges import Case, Default, SingleEdgeGroup
from gateway.workflows.events import WorkflowRunResult
from gateway.workflows.executor import Executor, handler, response_handler
from gateway.workflows.function_executor import FunctionExecutor, executor
from gateway.workflows.sub_workflow import WorkflowExecutor
from gateway.workflows.validation import (
    EdgeDuplicationError,
    GraphConnectivityError,
    TypeCompatibilityError,
    ValidationTypeEnum,
    WorkflowValidationError,
    validate_workflow_graph,
)
from gateway.workflows.workflow_context import WorkflowContext

Other = TypeVar("Other")


class Node(Executor):
    @handler
    async def run(self, message: Any, ctx: WorkflowContext[Any, Any]) -> None:
        await ctx.yield_output(self.id)


def invalid(builder: WorkflowBuilder) -> str:
    with pytest.raises(WorkflowValidationError) as caught:
        builder.build()
    return str(caught.value)


@pytest.mark.requirement("WF1")
def test_start_is_required() -> None:
    with pytest.raises(TypeError, match="start_executor"):
        WorkflowBuilder()  # pyright: ignore[reportCallIssue]  # the point of the test
    assert "No executor has the id 'a'" in invalid(WorkflowBuilder(start_executor="a").add_edge(Node("b"), Node("c")))


@pytest.mark.requirement("WF3")
def test_two_executors_of_one_id_are_refused() -> None:
    a = Node("a")
    with pytest.raises(ValueError, match="Duplicate executor ID 'a'"):
        WorkflowBuilder(start_executor=a).add_edge(a, Node("a"))


@pytest.mark.requirement("WF3")
def test_the_same_edge_twice_is_refused() -> None:
    a, b = Node("a"), Node("b")
    with pytest.raises(EdgeDuplicationError, match="There are two edges from 'a' to 'b'") as caught:
        WorkflowBuilder(start_executor=a).add_edge(a, b).add_edge(a, b, lambda message: True).build()
    assert (caught.value.validation_type, caught.value.edge_id) == (ValidationTypeEnum.EDGE_DUPLICATION, "a->b")


@pytest.mark.requirement("WF3")
def test_all_unreachable_executors_are_rejected() -> None:
    a = Node("a")
    builder = WorkflowBuilder(start_executor=a).add_edge(a, Node("b")).add_edge(Node("c"), Node("d")).add_edge("d", "c")
    with pytest.raises(GraphConnectivityError) as caught:
        builder.build()
    assert [line.split(":")[0] for line in str(caught.value).splitlines()] == [
        "Executor 'c' cannot be reached from 'a'",
        "Executor 'd' cannot be reached from 'a'",
    ]


class Number(Executor):
    @handler
    async def run(self, message: str, ctx: WorkflowContext[int]) -> None:
        await ctx.send_message(len(message))


class Mute(Executor):
    @handler
    async def run(self, message: str, ctx: WorkflowContext[int]) -> None: ...


class Text(Executor):
    @handler
    async def run(self, message: str, ctx: WorkflowContext[Any, str]) -> None: ...


class Numbers(Executor):
    @handler
    async def run(self, message: list[int], ctx: WorkflowContext[Any, Any]) -> None:
        await ctx.yield_output(sum(message))


@pytest.mark.requirement("WF3")
def test_edge_that_can_never_carry_anything_is_refused() -> None:
    number = Number("n")
    with pytest.raises(TypeCompatibilityError, match="'n' sends int, and 't' takes str") as caught:
        WorkflowBuilder(start_executor=number).add_edge(number, Text("t")).build()
    error = caught.value
    assert (error.source_executor_id, error.source_types, error.target_executor_id, error.target_types) == ("n", [int], "t", [str])
    with pytest.raises(TypeCompatibilityError):
        WorkflowBuilder(start_executor=number).add_edge(number, Numbers("l")).build()


def strip(text: str) -> str:
    return text.strip()


@pytest.mark.requirement("WF3")
async def test_fan_in_sends_lists_and_its_types_are_list_types() -> None:
    start = FunctionExecutor(strip, "s")
    one, two, total = Number("one"), Number("two"), Numbers("total")
    builder = WorkflowBuilder(start_executor=start, output_from=[total]).add_fan_out_edges(start, [one, two])
    assert (await builder.add_fan_in_edges([one, two], total).build().run("abc")).get_outputs() == [6]
    with pytest.raises(TypeCompatibilityError):
        fresh = WorkflowBuilder(start_executor=start).add_fan_out_edges(start, [one, two])
        fresh.add_fan_in_edges([one, two], FunctionExecutor(abs, "abs", input=int)).build()


@pytest.mark.requirement("WF3")
def test_groups_that_are_too_small_are_refused() -> None:
    a, b = Node("a"), Node("b")
    with pytest.raises(ValueError, match="at least two targets"):
        WorkflowBuilder(start_executor=a).add_fan_out_edges(a, [b])
    with pytest.raises(ValueError, match="at least two sources"):
        WorkflowBuilder(start_executor=a).add_fan_in_edges([a], b)
    with pytest.raises(ValueError, match="exactly one default"):
        WorkflowBuilder(start_executor=a).add_switch_case_edge_group(a, [Default(b), Default(b)])
    with pytest.raises(ValueError, match="at least two cases"):
        WorkflowBuilder(start_executor=a).add_switch_case_edge_group(a, [Case(bool, b)])
    with pytest.raises(ValueError, match="At least two executors"):
        WorkflowBuilder(start_executor=a).add_chain([a])
    with pytest.raises(TypeError, match="got int"):
        WorkflowBuilder(start_executor=a).add_edge(a, 7)


def test_unknown_id_is_refused_with_a_suggestion() -> None:
    builder = WorkflowBuilder(start_executor=Node("research")).add_edge("reserch", Node("draft"))
    assert "No executor has the id 'reserch'" in invalid(builder)
    assert "Did you mean 'research'?" in invalid(builder)


@pytest.mark.requirement("WF7")
@pytest.mark.parametrize(
    ("selection", "text"),
    [
        ({"output_from": ["b"]}, "output_from: No executor has the id 'b'"),
        ({"output_from": ["a", "a"]}, "output_from names 'a' twice"),
        ({"output_from": []}, "select at least one output or intermediate executor"),
        ({"output_from": [], "intermediate_output_from": []}, "output_from is empty"),
        ({"output_from": ["a"], "intermediate_output_from": ["a"]}, "'a' is selected as both output and intermediate"),
        ({"intermediate_output_from": ["b"]}, "intermediate_output_from: No executor has the id 'b'"),
        ({"output_from": ["mute"]}, "Executor 'mute' is selected for its outputs, and no handler of it yields any"),
        ({"intermediate_output_from": ["mute"]}, "Executor 'mute' is selected for its outputs"),
    ],
)
def test_selection_of_outputs_that_cannot_be_meant_is_refused(selection: dict[str, Any], text: str) -> None:
    assert text in invalid(WorkflowBuilder(start_executor=Node("a"), **selection).add_edge("a", Mute("mute")))


@pytest.mark.requirement("WF7")
def test_selection_by_an_unknown_keyword_is_rejected() -> None:
    for selection in ({"output_from": "a"}, {"output_from": "all_other"}, {"intermediate_output_from": "some"}):
        with pytest.raises(ValueError, match="give a list of executors, or 'all'"):
            WorkflowBuilder(start_executor=Node("a"), **selection)  # pyright: ignore[reportArgumentType]  # the point of the test


@pytest.mark.requirement("WF7")
@pytest.mark.parametrize(
    ("selection", "outputs", "intermediates"),
    [
        ({}, ["from start", "end"], []),
        ({"output_from": "all"}, ["from start", "end"], []),
        ({"output_from": ["end"]}, ["end"], []),
        ({"output_from": ["end"], "intermediate_output_from": "all_other"}, ["end"], ["from start"]),
        ({"intermediate_output_from": ["forward"]}, [], ["from start"]),
        ({"intermediate_output_from": "all"}, [], ["from start", "end"]),
    ],
)
async def test_outputs_are_final_intermediate_or_hidden_as_selected(
    selection: dict[str, Any], outputs: list[str], intermediates: list[str]
) -> None:
    @executor
    async def forward(message: str) -> str:
        return "from start"

    workflow = WorkflowBuilder(start_executor=forward, **selection).add_edge(forward, Node("end")).build()
    result: WorkflowRunResult = await workflow.run("x")
    assert (result.get_outputs(), result.get_intermediate_outputs()) == (outputs, intermediates)
    named = [item.id for item in workflow.get_output_executors()]
    assert named == [name for name in ("forward", "end") if workflow.is_terminal_executor(name)]


def test_limit_below_one_is_refused() -> None:
    a = Node("a")
    assert "max_traversals must be at least 1" in invalid(WorkflowBuilder(start_executor=a).add_edge(a, a, max_traversals=0))


def test_executors_that_cannot_handle_anything_are_refused() -> None:
    class Empty(Executor):
        pass

    with pytest.raises(ValueError, match="has no handlers"):
        Empty("e")
    with pytest.raises(ValueError, match="non-empty id"):
        Node("")
    with pytest.raises(ValueError, match="Got 0 parameters"):
        FunctionExecutor(lambda: None, "f")


def test_handlers_of_the_wrong_shape_are_rejected_at_definition() -> None:
    async def few(self: Any, message: str) -> None: ...
    async def untyped(self: Any, message, ctx: WorkflowContext) -> None: ...  # pyright: ignore[reportMissingParameterType, reportUnknownParameterType]
    async def open_type(self: Any, message: Other, ctx: WorkflowContext[str]) -> None: ...  # pyright: ignore[reportInvalidTypeVarUse]
    async def other_context(self: Any, message: str, ctx: int) -> None: ...
    async def no_context(self: Any, message: str, ctx) -> None: ...  # pyright: ignore[reportMissingParameterType, reportUnknownParameterType]
    async def no_type(self: Any, message: str, ctx: WorkflowContext[7]) -> None: ...  # pyright: ignore[reportGeneralTypeIssues, reportUnknownParameterType]
    def plain(self: Any, message: str, ctx: WorkflowContext[str]) -> None: ...

    wrong: list[tuple[Any, str]] = [
        (few, "Got 2 parameters"),
        (untyped, "must have a type annotation"),
        (open_type, "unresolved TypeVar"),
        (other_context, "as WorkflowContext, not as int"),
        (no_context, "must have a WorkflowContext annotation"),
        (no_type, "invalid type entry 7"),
        (plain, "async def"),
    ]
    for method, text in wrong:
        with pytest.raises(ValueError, match=text):
            handler(method)
    with pytest.raises(ValueError, match="must specify 'input'"):
        handler(output=int)(open_type)
    with pytest.raises(ValueError, match="Got 2 parameters"):
        response_handler(few)
    with pytest.raises(ValueError, match="@staticmethod"):
        executor(staticmethod(print))


def test_two_handlers_of_one_type_are_refused() -> None:
    class Two(Executor):
        @handler
        async def one(self, message: str, ctx: WorkflowContext[str]) -> None: ...

        @handler
        async def two(self, message: str, ctx: WorkflowContext[str]) -> None: ...

    with pytest.raises(ValueError, match="Duplicate handler for type str in Two"):
        Two("t")


@pytest.mark.requirement("WF3")
def test_hand_built_graph_is_checked_the_same_way() -> None:
    a, b, mute = Node("a"), Node("b"), Mute("mute")
    executors = {item.id: item for item in (a, b, mute)}
    edges = [SingleEdgeGroup("a", "b"), SingleEdgeGroup("b", "mute")]
    validate_workflow_graph(edges, executors, a, ["b"])
    validate_workflow_graph(edges, executors, a, [])
    with pytest.raises(WorkflowValidationError, match="no handler of it yields any"):
        validate_workflow_graph(edges, executors, a, ["mute"])
    with pytest.raises(GraphConnectivityError, match="'a' cannot be reached"):
        validate_workflow_graph(edges, executors, b, [])
    with pytest.raises(GraphConnectivityError, match="No executor has the id 'c'"):
        validate_workflow_graph([SingleEdgeGroup("a", "c")], executors, a, [])


def test_graph_is_data() -> None:
    def is_long(message: str) -> bool:
        return len(message) > 3

    a, b, c, inner = Node("a"), Node("b"), Node("c"), WorkflowBuilder(start_executor=Node("d"), name="inner").build()
    builder = WorkflowBuilder(start_executor=a, name="w", output_from=[b]).add_switch_case_edge_group(a, [Case(is_long, b), Default(c)])
    data = json.loads(builder.add_edge(b, WorkflowExecutor(inner), is_long).build().to_json())
    groups = {group["type"]: group for group in data["edge_groups"]}
    assert groups["SwitchCaseEdgeGroup"]["cases"] == [
        {"target_id": "b", "type": "Case", "condition_name": "is_long"},
        {"target_id": "c", "type": "Default"},
    ]
    assert groups["SingleEdgeGroup"]["edges"] == [{"source_id": "b", "target_id": "inner", "condition_name": "is_long"}]
    assert data["executors"]["inner"]["workflow"]["executors"] == {"d": {"id": "d", "type": "Node"}}
    assert (data["start_executor_id"], data["output_executors"], data["intermediate_executors"]) == ("a", ["b"], [])

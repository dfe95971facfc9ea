"""`WorkflowBuilder.build` refuses graphs that cannot work, naming the executor or edge."""

from __future__ import annotations

from typing import Any

import pytest

from gateway.errors import WorkflowInvalid
from gateway.workflows.builder import WorkflowBuilder
from gateway.workflows.executor import Executor, FunctionExecutor, WorkflowContext, handler


class Node(Executor):
    @handler
    async def run(self, message: Any, ctx: WorkflowContext[Any, Any]) -> None:
        await ctx.yield_output(self.id)


def invalid(builder: WorkflowBuilder) -> str:
    with pytest.raises(WorkflowInvalid) as caught:
        builder.build()
    return str(caught.value)


@pytest.mark.requirement("WF1")
def test_a_start_is_required() -> None:
    assert "start_executor" in invalid(WorkflowBuilder().add_edge(Node("a"), Node("b")))


@pytest.mark.requirement("WF3")
def test_two_executors_of_one_id_are_refused() -> None:
    a = Node("a")
    assert invalid(WorkflowBuilder(start_executor=a).add_edge(a, Node("a"))).startswith("Two executors have the id 'a'")


@pytest.mark.requirement("WF3")
def test_the_same_edge_twice_is_refused() -> None:
    a, b = Node("a"), Node("b")
    text = invalid(WorkflowBuilder(start_executor=a).add_edge(a, b).add_edge(a, b, lambda message: True))
    assert text == "There are two edges from 'a' to 'b'; join their conditions."


@pytest.mark.requirement("WF3")
def test_an_executor_that_cannot_be_reached_is_refused() -> None:
    a = Node("a")
    builder = WorkflowBuilder(start_executor=a).add_edge(a, Node("b")).add_edge(Node("c"), Node("d")).add_edge("d", "c")
    assert invalid(builder) == "Executor 'c' cannot be reached from 'a'.\nExecutor 'd' cannot be reached from 'a'."


def test_an_unknown_id_is_refused_with_a_suggestion() -> None:
    builder = WorkflowBuilder(start_executor=Node("research")).add_edge("reserch", Node("draft"))
    assert "No executor has the id 'reserch'. Did you mean 'research'?" in invalid(builder)


@pytest.mark.requirement("WF7")
@pytest.mark.parametrize(
    ("selection", "text"),
    [
        (["b"], "output_from: No executor has the id 'b'."),
        (["a", "a"], "output_from names 'a' twice."),
        ([], "output_from is empty"),
        ("a", "give a list of executors, or 'all'"),
    ],
)
def test_a_selection_of_outputs_that_cannot_be_meant_is_refused(selection: Any, text: str) -> None:
    assert text in invalid(WorkflowBuilder(start_executor=Node("a"), output_from=selection))


@pytest.mark.requirement("WF7")
async def test_outputs_of_unselected_executors_are_hidden_and_all_count_when_nothing_is_selected() -> None:
    def build(**selection: Any) -> WorkflowBuilder:
        async def forward(message: Any) -> str:
            return "from start"

        return WorkflowBuilder(start_executor=FunctionExecutor(forward), **selection).add_edge("forward", Node("end"))

    assert (await build().build().run("x")).get_outputs() == ["from start", "end"]
    assert (await build(output_from="all").build().run("x")).get_outputs() == ["from start", "end"]
    result = await build(output_from=["end"]).build().run("x")
    assert result.get_outputs() == ["end"]
    assert [event.executor_id for event in result.events if event.type == "output"] == ["end"]


def test_a_limit_below_one_is_refused() -> None:
    a = Node("a")
    assert "max_traversals must be at least 1" in invalid(WorkflowBuilder(start_executor=a).add_edge(a, a, max_traversals=0))


def test_executors_that_cannot_handle_anything_are_refused() -> None:
    class Empty(Executor):
        pass

    class NotAsync(Executor):
        @handler  # pyright: ignore[reportArgumentType, reportUntypedFunctionDecorator]  # the point of the test
        def run(self, message: Any, ctx: Any) -> None: ...

    with pytest.raises(WorkflowInvalid, match="handles nothing"):
        Empty("e")
    with pytest.raises(WorkflowInvalid, match="must be `async def run"):
        NotAsync("n")
    with pytest.raises(WorkflowInvalid, match="needs an id"):
        Node("")
    with pytest.raises(WorkflowInvalid, match="first parameter"):
        FunctionExecutor(lambda: None, "f")

"""The arguments that function middleware receives: checked, converted, with defaults; invalid arguments can be repaired."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from datetime import date
from typing import Annotated, Any

import pytest
from pydantic import AliasChoices, BaseModel, Field

from gateway import CallContext, FunctionInvocationContext, FunctionTool, function_middleware, tool
from gateway.tools.base import Complete, ToolDefinition
from gateway.tools.wrappers import RenamedTool
from tests.agents.building import agent_of, both_ways, call, results_of, run

CallNext = Callable[[], Awaitable[None]]


def forecast(
    city: str, on: date, days: int = 3, unit: Annotated[str, Field(description="C or F")] = "C", note: str | None = None
) -> str:
    return f"{city} {on!r} {days!r} {unit} {note!r}"


class Place(BaseModel):
    """A Pydantic schema whose fields have aliases in the JSON."""

    name: str = Field(alias="placeName")
    size: int = Field(1, validation_alias=AliasChoices("n", "size"))


def looking(seen: list[dict[str, Any]]) -> Any:
    @function_middleware
    async def look(context: FunctionInvocationContext, call_next: CallNext) -> None:
        seen.append(dict(context.arguments))
        await call_next()

    return look


class Bare:
    """A tool with only a definition and `call`."""

    definition = ToolDefinition("look", "Looks around.")

    async def call(self, arguments: Any, ctx: CallContext) -> Complete:
        return Complete.text("seen")


@pytest.mark.requirement("MW4", "TL1")
@pytest.mark.parametrize(
    "given",
    [Bare(), RenamedTool(Bare(), "look"), FunctionTool(lambda: "seen", name="look", description="Looks around.")],
    ids=["bare", "of a gateway", "function"],
)
async def test_middleware_reads_name_and_description_of_any_tool(given: Any) -> None:
    seen: list[tuple[str, str]] = []

    @function_middleware
    async def look(context: FunctionInvocationContext, call_next: CallNext) -> None:
        seen.append((context.function.name, context.function.description))
        await call_next()

    agent, _ = agent_of([call("look"), "ok"], [given], middleware=[look])
    assert results_of(await run(agent, False)) == ["seen"]
    assert seen == [("look", "Looks around.")]


UNANNOTATED = """
def place(item, ctx):
    return f"{item} {ctx.kwargs.get('tenant') if hasattr(ctx, 'kwargs') else type(ctx).__name__}"

def own(ctx):
    return ctx
"""


@both_ways
@pytest.mark.requirement("TL13", "TL14")
async def test_unannotated_ctx_beside_a_given_schema_is_the_context(stream: bool) -> None:
    functions: dict[str, Any] = {}
    exec(UNANNOTATED, functions)  # a type checker would reject this code
    shape = {"type": "object", "properties": {"item": {"type": "string"}}}
    placed = FunctionTool[..., Any](functions["place"], schema=shape)
    given = FunctionTool[..., Any](functions["own"], schema={"type": "object", "properties": {"ctx": {"type": "string"}}})
    agent, _ = agent_of([[call("place", {"item": "tea"}), call("own", {"ctx": "mine"}, "c2")], "ok"], [placed, given])
    assert results_of(await run(agent, stream, function_invocation_kwargs={"tenant": "acme"})) == ["tea acme", "mine"]
    assert str(await placed.invoke(arguments={"item": "tea"})) == "tea CallContext"


@both_ways
@pytest.mark.requirement("MW4")
async def test_middleware_sees_converted_arguments_with_defaults(stream: bool) -> None:
    seen: list[dict[str, Any]] = []
    agent, _ = agent_of([call("forecast", {"city": "Rome", "on": "2026-01-02", "days": "5"}), "ok"], [forecast], middleware=[looking(seen)])
    response = await run(agent, stream)
    assert seen == [{"city": "Rome", "on": date(2026, 1, 2), "days": 5, "unit": "C"}]
    assert results_of(response) == ["Rome datetime.date(2026, 1, 2) 5 C None"]


@pytest.mark.requirement("MW4")
async def test_middleware_edits_converted_arguments_and_call_rechecks_them() -> None:
    @function_middleware
    async def edit(context: FunctionInvocationContext, call_next: CallNext) -> None:
        context.arguments["days"] += 1
        context.arguments["on"] = "2026-02-03" if context.metadata["call_id"] == "c1" else "soon"
        await call_next()

    calls = [call("forecast", {"city": "Rome", "on": "2026-01-02"}, f"c{n}") for n in (1, 2)]
    agent, _ = agent_of([calls, "ok"], [forecast], middleware=[edit])
    changed, refused = results_of(await run(agent, False))
    assert changed == "Rome datetime.date(2026, 2, 3) 4 C None"
    assert refused.startswith("Error: Argument parsing failed. on: ")


@pytest.mark.requirement("MW4")
async def test_explicit_null_stays_and_hand_written_schema_keeps_names() -> None:
    def take(name: str, size: int) -> str:
        return f"{name} {size}"

    seen: list[dict[str, Any]] = []
    def shaped(**given: int) -> str:
        return str(given)

    schema = {"type": "object", "properties": {"a": {"type": "integer"}}}
    calls = [
        call("take", {"placeName": "Rome", "size": "7"}, "c1"),
        call("forecast", {"city": "Rome", "on": "2026-01-02", "note": None}, "c2"),
        call("shaped", {"a": 1}, "c3"),
    ]
    tools: list[Any] = [FunctionTool(take, schema=Place), forecast, FunctionTool(shaped, schema=schema)]
    agent, _ = agent_of([calls, "ok"], tools, middleware=[looking(seen)], loop={"allow_concurrent_invocation": False})
    results = results_of(await run(agent, False))
    assert seen == [
        {"placeName": "Rome", "n": 7},
        {"city": "Rome", "on": date(2026, 1, 2), "days": 3, "unit": "C", "note": None},
        {"a": 1},
    ]
    assert results == ["Rome 7", "Rome datetime.date(2026, 1, 2) 3 C None", "{'a': 1}"]


@both_ways
@pytest.mark.requirement("MW4")
async def test_middleware_repairs_arguments_that_do_not_fit(stream: bool) -> None:
    @function_middleware
    async def repair(context: FunctionInvocationContext, call_next: CallNext) -> None:
        assert "on: " in context.metadata["argument_error"]
        assert context.metadata["raw_arguments"] == {"city": "Rome", "on": "tomorrow"}
        if context.metadata["call_id"] == "c1":
            context.arguments["on"] = "2026-01-02"
        await call_next()

    calls = [call("forecast", {"city": "Rome", "on": "tomorrow"}, f"c{n}") for n in (1, 2)]
    agent, _ = agent_of([calls, "ok"], [forecast], middleware=[repair])
    repaired, refused = results_of(await run(agent, stream))
    assert (repaired, refused.partition(". ")[0]) == ("Rome datetime.date(2026, 1, 2) 3 C None", "Error: Argument parsing failed")


@pytest.mark.requirement("MW4", "TL13")
async def test_tool_with_the_context_sees_the_same_arguments() -> None:
    @tool
    async def count(context: FunctionInvocationContext, n: int, step: int = 2) -> str:
        return str(context.arguments)

    agent, _ = agent_of([call("count", {"n": "1"}), "ok"], [count])
    assert results_of(await run(agent, False)) == ["{'n': 1, 'step': 2}"]

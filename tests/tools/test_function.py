"""`@tool` and `FunctionTool`, called the way the gateway calls any tool."""

from __future__ import annotations

import functools
import json
import threading
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Annotated, Any

import anyio
import anyio.from_thread
import pytest
from pydantic import BaseModel, Field
from typing_extensions import TypedDict

from gateway.errors import NotFound, ToolFailed
from gateway.json_types import JsonObject
from gateway.tools.base import Complete, InputRequired, ToolOutcome
from gateway.tools.context import CallContext, CallPorts
from gateway.tools.function import FunctionTool, tool
from gateway.tools.tool_lists import by_name

if TYPE_CHECKING:
    from decimal import Decimal

CTX = CallContext()


class Unit(Enum):
    METRE = "m"
    FOOT = "ft"


@dataclass
class Point:
    """A place."""

    x: float
    y: float = 0.0


class Order(BaseModel):
    item: str
    count: int = Field(ge=1, serialization_alias="howMany")


class Node(BaseModel):
    value: int
    children: list[Node] = []


class Row(TypedDict):
    id: int


async def run(function: FunctionTool[..., Any], **arguments: Any) -> Complete:
    outcome = await function.call(arguments, CTX)
    assert isinstance(outcome, Complete)
    return outcome


@pytest.mark.requirement("TL1")
async def test_schema_is_read_from_signature_docstring_and_annotations() -> None:
    @tool
    def convert(
        value: float,
        to: Annotated[Unit, "Target unit."],
        digits: Annotated[int, Field(ge=0, le=9, description="Decimal places.")] = 2,
        note: str | None = None,
    ) -> str:
        """Convert a length.

        Rounds half up.

        Args:
            value: The length, in metres
                or feet.
            note: Kept with the result.

        Returns:
            Text.
        """
        return f"{value:.{digits}f} {to.value} {note}"

    definition = convert.definition
    assert definition.name == "convert"
    assert definition.description == "Convert a length.\n\nRounds half up."
    assert definition.output_schema is None
    assert definition.input_schema == {
        "type": "object",
        "additionalProperties": False,
        "$defs": {"Unit": {"enum": ["m", "ft"], "title": "Unit", "type": "string"}},
        "properties": {
            "value": {"type": "number", "description": "The length, in metres or feet."},
            "to": {"$ref": "#/$defs/Unit", "description": "Target unit."},
            "digits": {"type": "integer", "minimum": 0, "maximum": 9, "default": 2, "description": "Decimal places."},
            "note": {"anyOf": [{"type": "string"}, {"type": "null"}], "default": None, "description": "Kept with the result."},
        },
        "required": ["value", "to"],
    }
    assert (await run(convert, value=3, to="ft")).as_text() == "3.00 ft None"
    assert convert(1.0, Unit.METRE) == "1.00 m None"


async def test_decorator_settings_override_function() -> None:
    @tool(name="shout", description="Louder.", annotations={"readOnlyHint": True}, task="optional")
    def speak(text: str) -> str:
        """Say it."""
        return text.upper()

    definition = speak.definition
    assert (definition.name, definition.description, definition.task) == ("shout", "Louder.", "optional")
    assert definition.annotations == {"readOnlyHint": True}


async def test_parameter_description_from_field_or_docstring() -> None:
    @tool
    def search(query: str, limit: int = Field(default=5, description="How many.")) -> str:
        """Search.

        :param query: What for.
        :returns: Hits.
        """
        return f"{query} {limit}"

    properties = search.definition.input_schema["properties"]
    assert properties["query"]["description"] == "What for."
    assert properties["limit"] == {"type": "integer", "default": 5, "description": "How many."}
    assert (await run(search, query="q")).as_text() == "q 5"


@pytest.mark.requirement(24)
@pytest.mark.parametrize("form", ["keyword", "positional"])
async def test_parameters_may_have_any_name(form: str) -> None:
    def keyword(name: str, self: int, arguments: list[str], ctx: str, model_config: bool, _x: int, json: str, func: int) -> Any:
        return [name, self, arguments, ctx, model_config, _x, json, func]

    def positional(name: str, self: int, arguments: list[str], ctx: str, model_config: bool, _x: int, json: str, func: int, /) -> Any:
        return [name, self, arguments, ctx, model_config, _x, json, func]

    function = FunctionTool[..., Any](keyword if form == "keyword" else positional)
    given: JsonObject = {
        "name": "n", "self": 1, "arguments": ["a"], "ctx": "c", "model_config": True, "_x": 2, "json": "j", "func": 3,
    }  # fmt: skip
    outcome = await function.call(given, CTX)
    assert isinstance(outcome, Complete)
    assert json.loads(outcome.as_text()) == list(given.values())
    assert set(function.definition.input_schema["properties"]) == set(given)


@pytest.mark.requirement("TL13")
async def test_context_parameter_is_hidden_and_marks_tool_as_asking() -> None:
    @tool
    async def who(greeting: str, call: CallContext) -> str:
        return f"{greeting} {call.facts.principal.id}"

    assert list(who.definition.input_schema["properties"]) == ["greeting"]
    assert who.definition.may_request_input
    assert (await run(who, greeting="hi")).as_text() == f"hi {CTX.facts.principal.id}"
    with pytest.raises(ToolFailed, match="call: Extra inputs"):
        await who.call({"greeting": "hi", "call": {"principal": "root"}}, CTX)


async def test_sync_function_runs_in_worker_thread() -> None:
    @tool
    def sync_ident() -> int:
        return threading.get_ident()

    @tool
    async def async_ident() -> int:
        return threading.get_ident()

    assert (await run(sync_ident)).as_text() != str(threading.get_ident())
    assert (await run(async_ident)).as_text() == str(threading.get_ident())


async def test_sync_function_reports_progress_from_its_thread() -> None:
    seen: list[float] = []

    class Listener:
        async def progress(self, progress: float, total: float | None, message: str | None) -> None:
            seen.append(progress)

        async def log(self, level: Any, data: Any, logger: str | None) -> None: ...

        async def ask(self, request: JsonObject, key: str = "") -> JsonObject:
            return {}

    @tool
    def slow(ctx: CallContext) -> str:
        anyio.from_thread.run(ctx.progress, 1.0)
        return "done"

    await slow.call({}, CallContext(ports=CallPorts(caller=Listener())))
    assert seen == [1.0]


async def test_callables_and_partials_are_functions() -> None:
    class Adder:
        async def __call__(self, a: int, b: int = 1) -> int:
            return a + b

    def multiply(a: int, b: int) -> int:
        return a * b

    assert (await run(FunctionTool(Adder(), name="add"), a=2)).as_text() == "3"
    doubled = FunctionTool[..., int](functools.partial(multiply, b=2), name="double")
    assert (await run(doubled, a=4)).as_text() == "8"
    assert doubled.definition.input_schema["required"] == ["a"]


OBJECTS: list[tuple[Any, object, JsonObject]] = [
    (Point, Point(1, 2), {"x": 1.0, "y": 2.0}),
    (Order, Order(item="tea", count=2), {"item": "tea", "howMany": 2}),
    (Row, {"id": 7}, {"id": 7}),
    (dict[str, int], {"a": 1}, {"a": 1}),
    (Node, Node(value=1, children=[Node(value=2)]), {"value": 1, "children": [{"value": 2, "children": []}]}),
]


@pytest.mark.parametrize(("annotation", "value", "structured"), OBJECTS)
async def test_object_results_are_structured_with_schema_and_json_text(
    annotation: Any, value: object, structured: JsonObject
) -> None:
    def give() -> object:
        return value

    give.__annotations__["return"] = annotation
    function = FunctionTool[..., object](give)
    outcome = await run(function)
    assert outcome.structured == structured
    assert json.loads(outcome.as_text()) == structured
    schema = function.definition.output_schema
    assert schema is not None
    assert schema["type"] == "object"


async def test_other_results_become_text() -> None:
    @tool
    def give(kind: str) -> Any:
        return {"text": "é", "none": None, "list": [1, "é"], "number": 1.5, "unit": Unit.FOOT}[kind]

    assert (await run(give, kind="text")).result == {"content": [{"type": "text", "text": "é"}]}
    assert (await run(give, kind="none")).result == {"content": []}
    assert (await run(give, kind="list")).result == {"content": [{"type": "text", "text": '[1, "é"]'}]}
    assert (await run(give, kind="number")).as_text() == "1.5"
    assert (await run(give, kind="unit")).as_text() == "ft"
    assert give.definition.output_schema is None


async def test_outcome_is_returned_unchanged() -> None:
    outcome = InputRequired({"q": {"method": "roots/list", "params": {}}})

    @tool
    def ask() -> ToolOutcome:
        return outcome

    assert await ask.call({}, CTX) is outcome
    assert ask.definition.output_schema is None


@pytest.mark.requirement("TL7")
async def test_unexpected_exception_has_fixed_text_in_agent() -> None:
    @tool
    def boom() -> str:
        raise RuntimeError("the password is hunter2")

    with pytest.raises(ToolFailed) as caught:
        await boom.call({}, CTX.inside_agent())
    assert str(caught.value) == "Function 'boom' failed."
    assert isinstance(caught.value.__cause__, RuntimeError)


@pytest.mark.requirement("TL7")
@pytest.mark.parametrize(
    ("setting", "ctx", "said"),
    [
        (None, CTX, ": RuntimeError: disk full"),
        (None, CTX.inside_agent(), "."),
        (None, CTX.inside_agent(shows_errors=True), ": RuntimeError: disk full"),
        (True, CTX.inside_agent(), ": RuntimeError: disk full"),
        (False, CTX, "."),
    ],
)
async def test_exception_text_is_shown_if_switched_on(setting: bool | None, ctx: CallContext, said: str) -> None:
    @tool(include_detailed_errors=setting)
    async def boom() -> str:
        raise RuntimeError("disk full")

    with pytest.raises(ToolFailed) as caught:
        await boom.call({}, ctx)
    assert str(caught.value) == f"Function 'boom' failed{said}"


async def test_gateway_error_is_raised_unchanged() -> None:
    error = NotFound("page", "x")

    @tool
    def find() -> str:
        raise error

    with pytest.raises(NotFound) as caught:
        await find.call({}, CTX)
    assert caught.value is error


async def test_system_exit_of_function_is_a_failure() -> None:
    @tool
    def leave() -> str:
        raise SystemExit(3)

    with pytest.raises(ToolFailed):
        await leave.call({}, CTX)


async def test_result_of_wrong_type_is_a_failure() -> None:
    @tool
    def lie() -> Point:
        return {"x": "far"}  # pyright: ignore[reportReturnType]  # the point of the test

    with pytest.raises(ToolFailed, match="Function 'lie' failed"):
        await lie.call({}, CTX)


@pytest.mark.requirement("TL8")
async def test_invalid_arguments_are_named_without_values() -> None:
    @tool
    def f(count: int, point: Point) -> str:
        return "never"

    with pytest.raises(ToolFailed) as caught:
        await f.call({"count": "hunter2", "point": {"y": 1}, "extra": 1}, CTX)
    text = str(caught.value)
    assert text.startswith("Argument parsing failed.")
    assert "count:" in text
    assert "point.x: Field required" in text
    assert "extra:" in text
    assert "hunter2" not in text


async def test_cancellation_does_not_wait_for_blocked_thread() -> None:
    release = threading.Event()
    started = threading.Event()

    @tool
    def block() -> str:
        started.set()
        release.wait(30)
        return "late"

    try:
        with anyio.fail_after(20):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(run, block)
                await anyio.to_thread.run_sync(started.wait, 5)
                tasks.cancel_scope.cancel()
    finally:
        release.set()


@pytest.mark.requirement("TL1")
async def test_tool_without_function_is_only_declared() -> None:
    schema: JsonObject = {"type": "object", "properties": {"file": {"type": "string"}}}
    declared = FunctionTool[..., Any](None, name="open_file", description="Opens a file in the editor.", schema=schema)
    assert declared.declaration_only
    assert declared.definition.input_schema == schema
    with pytest.raises(ToolFailed, match="only declared"):
        await declared.call({}, CTX)
    assert FunctionTool[..., Any](None, name="x").parameters() == {"type": "object", "properties": {}}


@pytest.mark.requirement("TL1")
async def test_explicit_schema_is_model_or_json_schema() -> None:
    def place(**values: Any) -> str:
        return json.dumps(values)

    modelled = FunctionTool[..., str](place, schema=Order)
    assert modelled.definition.input_schema["required"] == ["item", "count"]
    assert (await run(modelled, item="tea", count=1)).as_text() == '{"item": "tea", "count": 1}'
    with pytest.raises(ToolFailed, match="count"):
        await modelled.call({"item": "tea", "count": 0}, CTX)

    raw = FunctionTool[..., str](place, schema={"type": "object", "properties": {"a": {}}})
    assert (await run(raw, a=[1])).as_text() == '{"a": [1]}'


@pytest.mark.requirement("TL8", "DE1")
async def test_explicit_json_schema_validates_arguments() -> None:
    def place(**_: Any) -> str:
        return "placed"

    shape = {"type": "object", "properties": {"count": {"type": "integer"}}, "required": ["count"], "additionalProperties": False}
    placed = FunctionTool[..., str](place, schema=shape)
    for wrong, said in (({}, "'count' is required"), ({"count": "many"}, "count"), ({"count": 1, "more": 2}, "more")):
        with pytest.raises(ToolFailed, match=f"Argument parsing failed.*{said}"):
            await placed.call(wrong, CTX)
    assert (await run(placed, count=1)).as_text() == "placed"
    unusable = FunctionTool[..., str](place, schema={"type": "object", "$ref": "https://schemas.example/none"})
    assert (await run(unusable, count="any")).as_text() == "placed"


async def test_var_keyword_parameter_is_not_published() -> None:
    def place(item: str, **rest: Any) -> str:
        return f"{item} {rest}"

    placed = FunctionTool[..., str](place)
    assert list(placed.definition.input_schema["properties"]) == ["item"]
    assert (await run(placed, item="tea")).as_text() == "tea {}"


async def test_unsupported_signature_raises_type_error() -> None:
    def many(*things: str) -> str:
        return ""

    def later(amount: Decimal) -> str:
        return ""

    def odd(lock: threading.Event) -> str:
        return ""

    for function, reason in ((many, r"\*things"), (later, "'Decimal'.*module level"), (odd, "parameters of function")):
        with pytest.raises(TypeError, match=reason) as caught:
            _ = FunctionTool[..., str](function).definition
        assert function.__name__ in str(caught.value)


def test_invalid_tool_name_is_refused() -> None:
    with pytest.raises(ValueError, match="not a tool name"):
        FunctionTool[..., None](lambda: None)


@pytest.mark.requirement("TL13")
def test_two_context_parameters_are_refused() -> None:
    def ask(first: CallContext, second: CallContext) -> str:
        return ""

    with pytest.raises(ValueError, match="first and second"):
        _ = FunctionTool(ask).definition


@pytest.mark.requirement("TL13")
def test_two_tools_of_one_name_raise_value_error() -> None:
    @tool(name="x")
    def one() -> str:
        return ""

    @tool(name="x")
    def two() -> str:
        return ""

    assert by_name([one, one]) == {"x": one}
    with pytest.raises(ValueError, match="named 'x'"):
        by_name([one, two])

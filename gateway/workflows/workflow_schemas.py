"""Derives the schemas of a workflow's tool from the types of the workflow, and converts arguments and outputs. Used by `tool`.

The schemas are for workflows in Python and for orchestrations. The arguments of a tool are a JSON object. If the start executor takes a
single class with fields, the fields are the arguments. If it takes messages of a conversation, the only argument is the text `message`.
Otherwise the only argument is `input`.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from types import NoneType
from typing import Any, Union

from pydantic import TypeAdapter, ValidationError
from pydantic.errors import PydanticInvalidForJsonSchema, PydanticUserError
from pydantic_core import PydanticSerializationError, to_jsonable_python

from gateway.errors import ToolFailed, WorkflowFailed
from gateway.json_types import JsonObject, JsonValue, as_text
from gateway.tools.base import Complete
from gateway.tools.contents import to_block
from gateway.types.messages import Message
from gateway.types.responses import AgentResponse, AgentResponseUpdate
from gateway.workflows.runnable import Runnable
from gateway.workflows.steps import as_result
from gateway.workflows.type_hints import is_instance_of, members, name_of

INPUT = "input"
"""Name of the tool's only argument if the workflow takes neither a single class with fields nor messages of a conversation."""

MESSAGE = "message"
"""Name of the only argument of the workflow's MCP tool, if the workflow begins with messages of a conversation. Its value is a text."""

MESSAGE_SCHEMA: JsonObject = {"type": "string", "minLength": 1, "description": "What the workflow is to do or to answer."}


def input_schema_of(workflow: Runnable) -> JsonObject:
    """Return the JSON Schema of the arguments of a workflow's tool, derived from the types of messages with which a run can begin."""
    kinds = _kinds_of(workflow)
    if _takes_messages(kinds):
        return {"type": "object", "properties": {MESSAGE: MESSAGE_SCHEMA}, "required": [MESSAGE], "additionalProperties": False}
    fields = _fields_of(kinds)
    if fields is not None:
        return fields
    schemas = [schema for kind in kinds if (schema := schema_of_type(kind)) is not None]
    definitions: JsonObject = {}
    for schema in schemas:
        definitions |= schema.pop("$defs", {})
    # A type without a JSON Schema accepts any value.
    one = {} if len(schemas) < len(kinds) or not schemas else schemas[0] if len(schemas) == 1 else {"anyOf": schemas}
    made: JsonObject = {"type": "object", "properties": {INPUT: one}, "required": [INPUT], "additionalProperties": False}
    return {**made, "$defs": definitions} if definitions else made


def output_schema_of(workflow: Runnable) -> JsonObject | None:
    """Return the JSON Schema of a workflow's output if its only output type is a class with fields; otherwise `None`."""
    kinds = workflow.result_types
    return None if _takes_messages(kinds) else _fields_of(kinds, is_output=True)


def message_of(workflow: Runnable, arguments: JsonObject, *, is_derived: bool) -> Any:
    """Convert the arguments of a workflow's tool to the message with which the run begins.

    `is_derived` means that the arguments have the schema that `input_schema_of` derives from the workflow's types, instead of the `input`
    that the workflow file declares.

    Raises:
        WorkflowFailed: The arguments cannot be converted to a type that the start executor handles.
    """
    kinds = _kinds_of(workflow)
    if _takes_messages(kinds) and isinstance(arguments.get(MESSAGE), str) and len(arguments) == 1:
        text = arguments[MESSAGE]
        return text if str in kinds else Message("user", [text]) if Message in kinds else [Message("user", [text])]
    candidates: list[JsonValue] = [arguments, *(arguments.values() if len(arguments) == 1 else ())]
    if is_derived:
        candidates = [arguments if _fields_of(kinds) is not None else arguments.get(INPUT)]
    for value in candidates:
        if value is not None and workflow.takes(value):
            return value
    problem = ""
    for value in candidates:
        try:
            return _validated(kinds, value)
        except ValidationError as error:
            problem = problem or _first_error(error)
        except PydanticUserError:
            continue
    takes = ", ".join(map(name_of, kinds))
    text = f"Executor {workflow.entry_id!r} takes neither the arguments as an object nor the only one's value; it takes {takes}."
    raise WorkflowFailed(f"{text} {problem}".rstrip(), executor=workflow.entry_id)


def schema_of_type(kind: Any, *, is_output: bool = False) -> JsonObject | None:
    """Return the JSON Schema of a Python type as pydantic generates it; `None` for `Any`, `object` and types without a schema."""
    if kind is Any or kind is object:
        return None
    try:
        return TypeAdapter(kind).json_schema(mode="serialization" if is_output else "validation")
    except (PydanticUserError, PydanticInvalidForJsonSchema):
        return None


def to_result(outputs: Sequence[Any], *, is_structured: bool = False) -> Complete:
    """Combine the outputs of a workflow run into one tool result, with content blocks for each output.

    A single output that is an object is also the structured content. With several outputs, the structured content is the last output if
    `is_structured`; otherwise it is an object with the list `outputs`, if any output is an object. Without outputs, the result is a text
    that says so.

    Raises:
        ToolFailed: An output cannot be written as JSON.
    """
    results = [result for output in outputs if (result := _result_of(output)) is not None]
    if not results:
        return Complete.text("The workflow ended without output.")
    if len(results) == 1:
        return results[0]
    blocks = [block for result in results for block in result.content]
    values = [result.structured if result.structured is not None else result.as_text() for result in results]
    made: JsonObject = {"content": blocks}
    if is_structured:
        made["structuredContent"] = values[-1]
    elif any(isinstance(value, dict) for value in values):
        made["structuredContent"] = {"outputs": values}
    return Complete(made)


def text_of(output: Any) -> str:
    """Return an output of a workflow as text: the text of a result or message, a string itself, other values as JSON or with `str`."""
    if isinstance(output, Complete):
        return output.as_text()
    if isinstance(output, AgentResponse | AgentResponseUpdate | Message):
        return output.text
    try:
        return as_text(to_jsonable_python(output))
    except PydanticSerializationError:
        return str(output)


def _result_of(output: Any) -> Complete | None:
    """Convert one output of a workflow to a tool result.

    Return `None` if the output has no content to show, such as an answer that only calls a handoff tool.
    """
    if isinstance(output, Complete):
        return output
    if isinstance(output, Message):
        output = AgentResponse([output])
    elif is_instance_of(output, list[Message]):
        output = AgentResponse(output)
    if isinstance(output, AgentResponse):
        shown = [content for message in output.messages for content in message.contents if content.type in ("text", "data", "uri")]
        blocks = [to_block(content) for content in shown if content.type != "text" or content.text]
        return Complete({"content": blocks}) if blocks else None
    try:
        return as_result(to_jsonable_python(output))
    except PydanticSerializationError:
        raise ToolFailed(f"The workflow's output is {type(output).__name__}, which cannot be written as JSON.") from None


def _kinds_of(workflow: Runnable) -> list[Any]:
    """Return the types of messages with which a run can begin.

    Types of the package `gateway` other than `Message` are left out if there are other types, because only executors send them.
    """
    kinds = [kind for item in workflow.input_types for kind in members(item) if kind is not NoneType]
    own = [kind for kind in kinds if not str(getattr(kind, "__module__", "")).startswith("gateway.") or kind is Message]
    return own or kinds


def _takes_messages(kinds: Sequence[Any]) -> bool:
    return any(_is_spoken(kind) for kind in kinds)


def _is_spoken(kind: Any) -> bool:
    return kind in (Message, AgentResponse, AgentResponseUpdate) or Message in [
        part for item in getattr(kind, "__args__", ()) for part in members(item)
    ]


def _fields_of(kinds: Sequence[Any], *, is_output: bool = False) -> JsonObject | None:
    """Return the JSON Schema of the only type in `kinds`, if there is only one and it has named fields; otherwise `None`."""
    schema = schema_of_type(kinds[0], is_output=is_output) if len(kinds) == 1 else None
    return schema if schema is not None and schema.get("type") == "object" and schema.get("properties") else None


def _validated(kinds: Sequence[Any], value: JsonValue) -> Any:
    wanted: Any = Union[tuple(kinds)]  # noqa: UP007  # the types are known only at run time
    return TypeAdapter[Any](wanted).validate_json(json.dumps(value))


def _first_error(error: ValidationError) -> str:
    first = error.errors(include_url=False)[0]
    return f"{'.'.join(map(str, first['loc']))}: {first['msg']}."

"""Derives JSON Schemas from Python functions (signature and docstring), and uses them to convert the arguments and results of calls.

Used by `FunctionTool` and by executors of workflow files. Pydantic is imported at the first use, because importing it takes long.
"""

from __future__ import annotations

import inspect
import re
import types
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache, partial
from typing import TYPE_CHECKING, Annotated, Any, Protocol, Union, cast, get_args, get_origin, get_type_hints

from gateway.errors import ToolFailed
from gateway.json_types import JsonMapping, JsonObject, JsonValue
from gateway.policy.schema_check import SchemaCheck, measure
from gateway.tools.base import Complete, InputRequired, TaskStarted
from gateway.tools.context import CallContext

if TYPE_CHECKING:
    from pydantic import BaseModel, TypeAdapter
    from pydantic.fields import FieldInfo

Explicit = Union["type[BaseModel]", JsonMapping]
"""A schema for the arguments of a function that replaces the schema of its signature: a pydantic model, or JSON Schema."""

_OUTCOMES = (Complete, InputRequired, TaskStarted)
_SECTION = re.compile(r"^(args|arguments|params|parameters|returns?|yields?|raises):\s*$", re.IGNORECASE)
_PARAMETER_SECTIONS = frozenset({"args", "arguments", "params", "parameters"})
_ITEM = re.compile(r"^\*{0,2}(\w+)\s*(?:\([^)]*\))?\s*:\s*(.*)$")
_FIELD = re.compile(r"^:(\w+)\s*([^:]*):\s*(.*)$")


class ArgumentsRefused(ToolFailed):
    """Raised if the arguments of a call do not match the input schema of the function. `args[0]` names them, with the reasons."""

    def __str__(self) -> str:
        return f"Argument parsing failed. {self.args[0]}"


class ContextType(Protocol):
    """Protocol of a class that can annotate a function's context parameter (the parameter that receives the context of the call).

    Each call passes the object that `for_call` returns to this parameter.
    """

    @classmethod
    def for_call(cls, function: Any, arguments: JsonMapping, ctx: CallContext) -> object:
        """Return the object to pass to the context parameter of `function` in one call."""
        ...


class _RunOrCall:
    """Provides the value of an unannotated parameter `ctx`: the `FunctionInvocationContext` in an agent's run, else the `CallContext`."""

    @classmethod
    def for_call(cls, function: Any, arguments: JsonMapping, ctx: CallContext) -> object:
        """Return the `FunctionInvocationContext` if an agent's run makes the call, else the `CallContext`."""
        return ctx if ctx.run.invocation is None else ctx.run.invocation


@dataclass(frozen=True, slots=True)
class Parameter:
    """A function's parameter that is part of the input schema, and how a value is passed to it."""

    name: str
    attribute: str
    """Name of the field for this parameter in the pydantic model. It can differ from `name`, because pydantic forbids some field names."""
    is_positional: bool


@dataclass(frozen=True, slots=True)
class FunctionSchema:
    """The input and output schema of a function. The methods validate and convert the function's arguments and results."""

    description: str
    input_schema: JsonObject
    output_schema: JsonObject | None
    context_parameter: str | None
    """Name of the parameter that receives the context of the call and is not in the input schema; `None` if there is no such parameter."""
    parameters: tuple[Parameter, ...] = ()
    model: type[BaseModel] | None = None
    """Pydantic model that validates and converts the arguments; `None` if they are passed without conversion."""
    returns: TypeAdapter[Any] | None = field(default=None, repr=False)
    """Pydantic adapter that converts results to the annotated return type; `None` unless the type's JSON Schema is an object schema."""
    check: SchemaCheck | None = field(default=None, repr=False)
    """JSON Schema check of the arguments, which is used if no pydantic `model` validates them."""
    context_type: type[ContextType] | None = None
    """Class whose `for_call` returns the value of the context parameter; `None` if the parameter receives the `CallContext` itself."""

    def bind(self, arguments: JsonMapping, ctx: CallContext, function: object = None) -> tuple[list[Any], dict[str, Any]]:
        """Validate and convert the arguments of a call, and return the positional and keyword arguments for the function.

        Raises:
            ArgumentsRefused: The arguments do not match the schema. The text names wrong arguments (maybe not all), without their values
                unless a validator of the function's author writes them.
        """
        positional: list[Any] = []
        keyword: dict[str, Any] = {}
        if self.context_parameter is not None:
            made = self.context_type
            keyword[self.context_parameter] = ctx if made is None else made.for_call(function, arguments, ctx)
        if self.model is None:
            self._check(arguments)
            return positional, {**arguments, **keyword}
        checked = _validate(self.model, arguments)
        for parameter in self.parameters:
            value = getattr(checked, parameter.attribute)
            if parameter.is_positional:
                positional.append(value)
            else:
                keyword[parameter.name] = value
        return positional, keyword

    def _check(self, arguments: JsonMapping) -> None:
        if self.check is not None and self.check.problem is None:  # an unusable schema accepts all arguments
            given = dict(arguments)
            if reason := self.check.find(given, measure(given)):
                raise ArgumentsRefused(reason)

    def coerce(self, arguments: JsonMapping) -> JsonObject:
        """Validate the arguments of a call, convert them to the annotated types, add defaults, and return them.

        Nested models become dicts, and defaults that are `None` are left out. If the schema is given as JSON Schema, the arguments are
        validated but not converted. The returned object may be passed to `bind`.

        Raises:
            ArgumentsRefused: The arguments do not match the schema.
        """
        if self.model is None:
            self._check(arguments)
            return dict(arguments)
        checked = _validate(self.model, arguments)
        dumped, fields = checked.model_dump(), self.model.model_fields
        return {
            _wire_name(name, fields.get(name)): value
            for name, value in dumped.items()
            if name not in fields or value is not None or name in checked.model_fields_set
        }

    def to_json(self, value: object) -> JsonValue:
        """Convert the result of the function to JSON. If there is an output schema, the annotated return type first validates the result.

        Raises:
            ValueError: The value does not have the annotated type, or has no JSON form.
        """
        from pydantic_core import to_jsonable_python

        if self.returns is None:
            return to_jsonable_python(value, by_alias=True)
        return self.returns.dump_python(self.returns.validate_python(value), mode="json", by_alias=True)


def read_function(func: Callable[..., Any], *, explicit: Explicit | None = None) -> FunctionSchema:
    """Derive the schemas of a function from its signature and docstring. `explicit` replaces the argument schema.

    Descriptions of arguments come from a default `Field(description=…)`, else from a string in `Annotated`, else from a `Field` in
    `Annotated`, else from the docstring. Without `explicit`, the input schema allows no further arguments. A parameter annotated
    `CallContext`, or with a class that has `for_call`, is not in the schema, and receives the context of the call.

    Raises:
        TypeError: An annotation cannot be resolved or described by JSON Schema, or the function has `*args` and no `explicit` schema.
        ValueError: Several parameters are annotated to receive the context of the call.
    """
    hints = _hints(func)
    description, parameter_notes = parse_docstring(inspect.getdoc(func if inspect.isroutine(func) else type(func)) or "")
    signature = inspect.signature(func)
    contexts = [(name, found) for name in signature.parameters if (found := _context_of(hints.get(name))) is not None]
    if len(contexts) > 1:
        raise ValueError(f"{' and '.join(name for name, _ in contexts)} all take the context of the call; one parameter may.")
    context, context_type = contexts[0] if contexts else _unannotated_context(signature, hints, explicit)
    output_schema, returns = _read_return(func, hints.get("return"))
    if explicit is not None:
        model, parameters = _explicit_model(explicit)
        shape = dict(explicit) if isinstance(explicit, Mapping) else model_schema(explicit)
    else:
        model, parameters = _signature_model(func, signature, hints, skip=context)
        shape = model_schema(model)
        _describe(shape, parameter_notes)
    made = cast("type[ContextType] | None", context_type if context_type is not CallContext else None)
    check = SchemaCheck(shape) if model is None else None
    return FunctionSchema(description, shape, output_schema, context, parameters, model, returns, check, made)


def parse_docstring(text: str) -> tuple[str, dict[str, str]]:
    """Split a docstring (as `inspect.getdoc` returns it) into its text and the description of each parameter.

    Descriptions are read from `Args:` sections and `:param x:` fields. Sections about results and errors are dropped, because a model reads
    the output schema instead.
    """
    prose: list[str] = []
    notes: dict[str, str] = {}
    section, current, indent = "", "", 0
    for line in text.splitlines():
        stripped = line.strip()
        depth = len(line) - len(line.lstrip())
        header = _SECTION.match(line)
        fielded = _FIELD.match(line)
        if header:
            section, current, indent = header.group(1).lower(), "", 0
        elif fielded:
            section, current = "field", ""
            if fielded.group(1) == "param" and fielded.group(2).split():
                current = fielded.group(2).split()[-1]
                notes[current] = fielded.group(3)
        elif section and stripped and depth == 0:
            section, current = "", ""
            prose.append(line)
        elif not section:
            prose.append(line)
        elif stripped:
            indent = indent or depth
            item = _ITEM.match(stripped) if section in _PARAMETER_SECTIONS and depth == indent else None
            if item:
                current = item.group(1)
                notes[current] = item.group(2)
            elif current:
                notes[current] = f"{notes[current]} {stripped}".strip()
    return "\n".join(prose).strip(), notes


def _validate(model: type[BaseModel], arguments: JsonMapping) -> BaseModel:
    from pydantic import ValidationError

    try:
        return model.model_validate(dict(arguments))
    except ValidationError as error:
        reasons = [
            f"{'.'.join(str(part) for part in item['loc']) or 'arguments'}: {item['msg']}"
            for item in error.errors(include_url=False, include_input=False, include_context=False)
        ]
    raise ArgumentsRefused("; ".join(reasons))


def _wire_name(name: str, field: FieldInfo | None) -> str:
    """Return the name by which a caller passes a field of a pydantic model: the alias of the field, or its name."""
    from pydantic import AliasChoices

    alias: object = None if field is None else field.validation_alias or field.alias
    if isinstance(alias, AliasChoices):
        alias = next((choice for choice in alias.choices if isinstance(choice, str)), None)
    return alias if isinstance(alias, str) else name


def _hints(func: Callable[..., Any]) -> dict[str, Any]:
    """Return the annotations of a function, resolved to types.

    `CallContext` can be resolved even if the module of the function imports it only under `TYPE_CHECKING`.
    """
    target = func
    while isinstance(target, partial):
        target = target.func
    if not inspect.isroutine(target):
        target = type(target).__call__
    plain = inspect.unwrap(target)
    scope = {"CallContext": CallContext, **getattr(plain, "__globals__", {})}
    try:
        return get_type_hints(plain, globalns=scope, include_extras=True)
    except NameError as error:
        raise TypeError(
            f"Cannot resolve the annotation {error.name!r} of {_label(func)}: define or import it at module level, not under TYPE_CHECKING."
        ) from None


def _context_of(annotation: Any) -> type | None:
    """Return the context class that an annotation contains: `CallContext`, or a class with `for_call`. Else return `None`."""
    if get_origin(annotation) is Annotated:
        annotation = get_args(annotation)[0]
    if get_origin(annotation) in (Union, types.UnionType):
        return next((found for member in get_args(annotation) if (found := _context_of(member)) is not None), None)
    return annotation if annotation is CallContext or (isinstance(annotation, type) and hasattr(annotation, "for_call")) else None


def _unannotated_context(
    signature: inspect.Signature, hints: Mapping[str, Any], explicit: Explicit | None
) -> tuple[str, type] | tuple[None, None]:
    """Return the name `ctx` and the class of its value if the function has an unannotated parameter `ctx` that should receive the context.

    The parameter receives the context only if the function has an explicit schema without `ctx`. Otherwise return `(None, None)`.
    """
    if explicit is None or "ctx" not in signature.parameters or "ctx" in hints:
        return None, None
    shape = explicit if isinstance(explicit, Mapping) else model_schema(explicit)
    if "ctx" in (shape.get("properties") or {}):
        return None, None
    return "ctx", _RunOrCall


def _signature_model(
    func: Callable[..., Any], signature: inspect.Signature, hints: dict[str, Any], *, skip: str | None
) -> tuple[type[BaseModel], tuple[Parameter, ...]]:
    from pydantic import ConfigDict, Field, create_model
    from pydantic.fields import FieldInfo
    from pydantic_core import PydanticUndefined

    parameters: list[Parameter] = []
    fields: dict[str, Any] = {}
    for name, item in signature.parameters.items():
        if name == skip:
            continue
        if item.kind is item.VAR_POSITIONAL:
            raise TypeError(f"{_label(func)} takes {item}, which has no schema: name every parameter.")
        if item.kind is item.VAR_KEYWORD:
            continue  # the schema allows no further arguments, so `**kwargs` is always empty
        attribute = f"p{len(parameters)}"
        annotation: Any = hints.get(name, Any)
        notes = [note for note in getattr(annotation, "__metadata__", ()) if isinstance(note, str)]
        if notes:
            annotation = Annotated[annotation, Field(description=notes[0])]
        if isinstance(item.default, FieldInfo):
            annotation = Annotated[annotation, item.default]
        has_default = item.default is not item.empty and not isinstance(item.default, FieldInfo)
        default: Any = item.default if has_default else PydanticUndefined
        fields[attribute] = (annotation, Field(default=default, alias=name, validation_alias=name, serialization_alias=name))
        parameters.append(Parameter(name, attribute, item.kind is item.POSITIONAL_ONLY))
    try:
        return create_model("Arguments", __config__=ConfigDict(extra="forbid"), **fields), tuple(parameters)
    except Exception as error:
        raise TypeError(f"Cannot describe the parameters of {_label(func)}: {error}") from error


def _explicit_model(explicit: Explicit) -> tuple[type[BaseModel] | None, tuple[Parameter, ...]]:
    if isinstance(explicit, Mapping):
        return None, ()
    return explicit, tuple(Parameter(name, name, is_positional=False) for name in explicit.model_fields)


def model_schema(model: type[BaseModel]) -> JsonObject:
    """Return the JSON Schema of a pydantic model for arguments, without the titles that pydantic adds.

    Raises:
        TypeError: JSON Schema cannot describe a part of the model.
    """
    try:
        schema = model.model_json_schema(by_alias=True, schema_generator=_generator())
    except Exception as error:
        raise TypeError(f"Cannot describe the arguments as JSON Schema: {error}") from error
    schema.pop("title", None)
    return schema


def _describe(schema: JsonObject, notes: Mapping[str, str]) -> None:
    properties = cast("dict[str, JsonObject]", schema.get("properties") or {})
    for name, note in notes.items():
        if name in properties and note and "description" not in properties[name]:
            properties[name]["description"] = note


def _read_return(func: Callable[..., Any], annotation: Any) -> tuple[JsonObject | None, TypeAdapter[Any] | None]:
    """Return the output schema for a function's annotated return type, and the pydantic adapter that converts results to this type.

    Returns `(None, None)` unless the schema of the type is an object schema.
    """
    plain = get_args(annotation)[0] if get_origin(annotation) is Annotated else annotation
    if plain in (None, Any, str, type(None), object, inspect.Signature.empty, *_OUTCOMES):
        return None, None
    if any(member in _OUTCOMES for member in get_args(plain)):
        return None, None
    from pydantic import TypeAdapter
    from pydantic.errors import PydanticUserError

    try:
        adapter: TypeAdapter[Any] = TypeAdapter(annotation)
        schema = adapter.json_schema(mode="serialization", by_alias=True, schema_generator=_generator())
    except PydanticUserError:
        return None, None
    shape: JsonObject = schema
    if str(schema.get("$ref", "")).startswith("#/$defs/"):
        shape = schema["$defs"][schema["$ref"].rsplit("/", 1)[1]]
    if shape.get("type") != "object":
        return None, None
    return {"type": "object", **schema}, adapter


@cache
def _generator() -> type[Any]:
    """Return a subclass of pydantic's schema generator that adds no titles to fields, and does not warn about defaults."""
    from pydantic.json_schema import GenerateJsonSchema

    class Quiet(GenerateJsonSchema):
        ignored_warning_kinds = {"skipped-choice", "non-serializable-default"}  # noqa: RUF012  # pydantic's own declaration

        def field_title_should_be_set(self, schema: object) -> bool:
            return False

    return Quiet


def _label(func: Callable[..., Any]) -> str:
    return f"function {getattr(func, '__qualname__', type(func).__qualname__)!r}"

"""Converts Python values to JSON and back, for workflow checkpoints. Unlike pickle, decoding runs no code that a checkpoint chooses.

JSON values do not change, except objects with the key `$type`. Other values become a JSON object with the key `$type`: a short name for
built-in types, `module:qualname` and the fields for classes. `decode` creates objects only of the classes in a `TypeBook` (set of allowed
classes). A value of another class stays encoded, as a `Foreign` object, so that checkpoints can be listed in processes without their
classes.
"""

from __future__ import annotations

import base64
import dataclasses
import sys
import types
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import date, datetime, timedelta
from decimal import Decimal
from enum import Enum
from importlib import import_module
from pathlib import Path, PurePath
from typing import Any, Union, cast, get_args, get_origin
from uuid import UUID

from pydantic import BaseModel

from gateway.errors import WorkflowCheckpointException
from gateway.json_types import JsonObject, JsonValue

TYPE = "$type"
"""Key of JSON objects that represent an encoded Python value. Its value is the name of the value's type."""

_MAX_DEPTH = 200
"""Maximum nesting depth of a value to encode. A value that is nested more deeply is rejected, because it probably contains itself."""

_TO_TEXT: dict[type, tuple[str, Callable[[Any], str]]] = {
    datetime: ("datetime", datetime.isoformat),
    date: ("date", date.isoformat),
    UUID: ("uuid", str),
    Decimal: ("decimal", str),
    complex: ("complex", str),
}
_FROM_TEXT: dict[str, Callable[[str], Any]] = {
    "datetime": datetime.fromisoformat,
    "date": date.fromisoformat,
    "uuid": UUID,
    "decimal": Decimal,
    "complex": complex,
    "path": Path,
    "float": float,
    "bytes": base64.b64decode,
}
_FROM_LIST: dict[str, Callable[[list[Any]], Any]] = {"tuple": tuple, "set": set, "frozenset": frozenset}
_SAFE_BUILTINS: dict[str, Any] = {
    kind.__name__: kind for kind in (str, int, float, bool, bytes, list, dict, tuple, set, frozenset, object, type(None))
}


@dataclass(frozen=True, slots=True)
class Foreign:
    """A value of a checkpoint that was not decoded, because its class is not allowed. Contains the class name and the encoded value."""

    type_name: str
    payload: JsonObject


class TypeBook:
    """A set of classes. Values of these classes are decoded when a checkpoint is read, values of other classes are not."""

    def __init__(self, *, allowed: Iterable[str] = (), known: Iterable[type] = (), modules: Iterable[str] = ()) -> None:
        """Create the set from class names, class objects and module names.

        `allowed` are class names as `module:qualname`; their modules are imported when needed. `known` are class objects. `modules` are
        names of imported modules, all of whose classes are allowed. Classes of the package `gateway` are always allowed.
        """
        self._allowed = frozenset(allowed)
        self._known = {type_name(kind): kind for kind in known}
        self._modules = frozenset(modules)

    def find(self, name: str) -> type | None:
        """Return the class with this name (`module:qualname`), or `None` if the class is not allowed."""
        if name in _SAFE_BUILTINS:
            return _SAFE_BUILTINS[name]
        if name in self._known:
            return self._known[name]
        module, _, qualname = name.partition(":")
        own = module == "gateway" or module.startswith("gateway.")
        if not (own or name in self._allowed or module in self._modules):
            return None
        try:
            target: Any = import_module(module) if own or name in self._allowed else sys.modules[module]
            for part in qualname.split("."):
                target = getattr(target, part)
        except (ImportError, AttributeError, KeyError):
            return None
        return target if isinstance(target, type) else None


def type_name(kind: type) -> str:
    """Return the name that a class has in an encoded checkpoint: `module:qualname`, or only the name for built-in classes like `int`."""
    return kind.__name__ if kind.__name__ in _SAFE_BUILTINS and kind.__module__ == "builtins" else f"{kind.__module__}:{kind.__qualname__}"


def encode(value: Any, depth: int = 0) -> JsonValue:
    """Encode a Python value as JSON for a checkpoint. `depth` is the nesting depth of `value`, 0 for the outermost value.

    Raises:
        WorkflowCheckpointException: The value cannot be encoded (an open file, a lock, a function), contains itself, or is nested too
            deeply.
    """
    if value is None or (isinstance(value, str | bool | int) and type(value) in (str, bool, int)):
        return value
    if depth > _MAX_DEPTH:
        raise WorkflowCheckpointException("A value contains itself, or is nested too deeply for a checkpoint.")
    if isinstance(value, float):
        return value if value - value == 0 else {TYPE: "float", "value": str(value)}
    if isinstance(value, Foreign):
        return value.payload
    if type(value) is list:
        return [encode(item, depth + 1) for item in cast("list[Any]", value)]
    if type(value) is dict:
        items = cast("dict[Any, Any]", value)
        if TYPE not in items and all(type(key) is str for key in items):
            return {key: encode(item, depth + 1) for key, item in items.items()}
        return {TYPE: "dict", "value": [[encode(key, depth + 1), encode(item, depth + 1)] for key, item in items.items()]}
    return _encode_tagged(value, depth)


def _encode_tagged(value: Any, depth: int) -> JsonObject:
    kind = cast("type[Any]", type(value))
    if kind in _TO_TEXT:
        tag, write = _TO_TEXT[kind]
        return {TYPE: tag, "value": write(value)}
    if isinstance(value, bytes | bytearray):
        return {TYPE: "bytes", "value": base64.b64encode(value).decode()}
    if isinstance(value, PurePath):
        return {TYPE: "path", "value": str(value)}
    if isinstance(value, timedelta):
        return {TYPE: "timedelta", "value": value.total_seconds()}
    if kind in (tuple, set, frozenset):
        return {TYPE: kind.__name__, "value": [encode(item, depth + 1) for item in value]}
    if isinstance(value, Enum):
        return {TYPE: type_name(kind), "enum": value.name}
    if isinstance(value, type) or get_origin(value) is not None or value is Any:
        return {TYPE: "type", "value": _encode_type(value)}
    if isinstance(value, BaseModel):
        return {TYPE: type_name(kind), "model": value.model_dump(mode="json")}
    if callable(getattr(value, "to_dict", None)) and callable(getattr(kind, "from_dict", None)):
        return {TYPE: type_name(kind), "data": encode(value.to_dict(), depth + 1)}
    if dataclasses.is_dataclass(value):
        fields = {field.name: encode(getattr(value, field.name), depth + 1) for field in dataclasses.fields(value)}
        return {TYPE: type_name(kind), "fields": fields}
    state: object = getattr(value, "__dict__", None)
    if state is None or callable(value) or isinstance(value, types.ModuleType) or kind.__module__ in ("_io", "_thread", "threading"):
        raise WorkflowCheckpointException(f"A value of type {type_name(kind)} cannot be written into a checkpoint; keep data there.")
    return {TYPE: type_name(kind), "state": encode(dict(cast("Mapping[str, Any]", state)), depth + 1)}


def _encode_type(kind: Any) -> JsonValue:
    if kind is Any:
        return "Any"
    origin = get_origin(kind)
    if origin is None:
        return type_name(kind) if isinstance(kind, type) else "Any"
    base = "Union" if origin in (Union, types.UnionType) else _encode_type(origin)
    return [base, *(_encode_type(argument) for argument in get_args(kind))]


def decode(value: JsonValue, book: TypeBook) -> Any:
    """Decode the result of `encode`. `book` is the set of classes whose objects may be created; other objects become `Foreign`.

    Raises:
        WorkflowCheckpointException: `value` is not a result of `encode`.
    """
    if isinstance(value, list):
        return [decode(item, book) for item in cast("list[JsonValue]", value)]
    if not isinstance(value, dict):
        return value
    form = cast("JsonObject", value)
    if TYPE not in form:
        return {key: decode(item, book) for key, item in form.items()}
    try:
        return _decode_tagged(form, book)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise WorkflowCheckpointException(f"A checkpoint has a broken value of type {form.get(TYPE)!r}: {error}.") from error


def _decode_tagged(form: JsonObject, book: TypeBook) -> Any:
    tag: str = form[TYPE]
    if tag in _FROM_TEXT and "value" in form:
        return _FROM_TEXT[tag](form["value"])
    if tag in _FROM_LIST and "value" in form:
        return _FROM_LIST[tag](decode(form["value"], book))
    if tag == "dict":
        return {decode(key, book): decode(item, book) for key, item in form["value"]}
    if tag == "timedelta":
        return timedelta(seconds=form["value"])
    if tag == "type":
        return _decode_type(form["value"], book)
    found = book.find(tag)
    if found is None:
        return Foreign(tag, form)
    if "enum" in form and issubclass(found, Enum):
        return found[form["enum"]]
    if "model" in form and issubclass(found, BaseModel):
        return found.model_validate(form["model"])
    kind: Any = found
    if "data" in form:
        return kind.from_dict(decode(form["data"], book))
    if "fields" in form and dataclasses.is_dataclass(kind):
        return _make_dataclass(kind, {name: decode(item, book) for name, item in cast("JsonObject", form["fields"]).items()})
    if "state" in form and "__dict__" in dir(kind):
        made: Any = kind.__new__(kind)
        made.__dict__.update(decode(form["state"], book))
        return made
    raise ValueError("it is not written the way this class is")


def _make_dataclass(kind: Any, values: dict[str, Any]) -> Any:
    """Create an object of the dataclass `kind` with these field values. A field without a value gets its default.

    `__init__` and `__post_init__` do not run, because the stored fields already contain their effects.
    """
    made = object.__new__(kind)
    for field in dataclasses.fields(kind):
        if field.name in values:
            object.__setattr__(made, field.name, values[field.name])
        elif field.default is not dataclasses.MISSING:
            object.__setattr__(made, field.name, field.default)
        elif field.default_factory is not dataclasses.MISSING:
            object.__setattr__(made, field.name, field.default_factory())
    return made


def _decode_type(form: JsonValue, book: TypeBook) -> Any:
    if isinstance(form, str):
        return Any if form == "Any" else book.find(form) or Foreign(form, {TYPE: "type", "value": form})
    base, *args = [part if part == "Union" else _decode_type(part, book) for part in cast("list[JsonValue]", form)]
    if any(isinstance(part, Foreign) for part in (base, *args)):
        return Foreign(str(form), {TYPE: "type", "value": form})
    made: Any = Union if base == "Union" else base
    return made[tuple(args)]


def settle(value: Any, book: TypeBook) -> Any:
    """Decode every `Foreign` (value of a checkpoint that is still encoded) inside `value`, and return the result.

    Lists, tuples, sets, dicts and dataclass objects are searched; a `Foreign` inside another object, such as a `Message`, stays. Dataclass
    objects are changed in place; lists, tuples, sets and dicts are replaced by new ones.

    Raises:
        WorkflowCheckpointException: `book`, the set of allowed classes, does not contain the class of an encoded value.
    """
    if isinstance(value, Foreign):
        found = decode(value.payload, book)
        if isinstance(found, Foreign):
            raise WorkflowCheckpointException(
                f"The checkpoint has a value of type {found.type_name}, which the checkpoint storage does not allow. "
                f"If you trust it, pass FileCheckpointStorage(…, allowed_checkpoint_types=[{found.type_name!r}])."
            )
        return settle(found, book)
    if type(value) in (list, tuple, set, frozenset):
        return type(value)(settle(item, book) for item in value)
    if isinstance(value, dict):
        return {settle(key, book): settle(item, book) for key, item in cast("dict[Any, Any]", value).items()}
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        for field in dataclasses.fields(value):
            inner = getattr(value, field.name, None)
            fresh = settle(inner, book)
            if fresh is not inner:
                object.__setattr__(value, field.name, fresh)
    return value

"""Functions on type annotations: whether a value fits a type, whether two types are compatible, and which classes a type mentions.

Executors use them to select handlers, the validation of graphs to check edges, and checkpoints to find the classes that may be decoded.
Type arguments of containers are compared (`list[str]` is not `list[int]`), as in Microsoft's agent-framework.
"""

from __future__ import annotations

import inspect
import types
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Never, TypeVar, Union, cast, get_args, get_origin

from pydantic import BaseModel, ValidationError

_UNIONS = (Union, types.UnionType)


def is_instance_of(value: object, annotation: Any) -> bool:
    """Return whether a value has the annotated type. The items of lists, tuples, sets and mappings are checked too.

    An integer has the type `float`. An annotation that cannot be checked, such as a type variable, fits every value.
    """
    if annotation is Any or annotation is object or isinstance(annotation, TypeVar):
        return True
    if annotation is None:
        return value is None
    origin, args = get_origin(annotation), get_args(annotation)
    if origin is None:
        if annotation is float:
            return isinstance(value, float | int) and not isinstance(value, bool)
        return isinstance(value, annotation) if isinstance(annotation, type) else True
    if origin in _UNIONS:
        return any(is_instance_of(value, member) for member in args)
    if not isinstance(origin, type):
        return value in args
    if not isinstance(value, origin):
        return False
    if not args:
        return True
    if isinstance(value, tuple):
        items = cast("tuple[Any, ...]", value)
        kinds = args[:1] * len(items) if len(args) == 2 and args[1] is Ellipsis else args
        return len(items) == len(kinds) and all(map(is_instance_of, items, kinds))
    if isinstance(value, Mapping):
        entries = cast("Mapping[Any, Any]", value).items()
        return all(is_instance_of(key, args[0]) and is_instance_of(item, args[-1]) for key, item in entries)
    if isinstance(value, list | set | frozenset):
        return all(is_instance_of(item, args[0]) for item in cast("Iterable[Any]", value))
    return True


def is_compatible(source: Any, target: Any) -> bool:
    """Return whether a value of the annotated type `source` may be used as a value of the type `target`.

    A container without type arguments, such as `list`, is compatible with every item type.
    """
    if Any in (source, target) or target is object or source == target or isinstance(source, TypeVar) or isinstance(target, TypeVar):
        return True
    if get_origin(source) in _UNIONS:
        return all(is_compatible(member, target) for member in get_args(source))
    if get_origin(target) in _UNIONS:
        return any(is_compatible(source, member) for member in get_args(target))
    source_kind, target_kind = get_origin(source) or source, get_origin(target) or target
    if not (isinstance(source_kind, type) and isinstance(target_kind, type)):
        return not (isinstance(source_kind, type) or isinstance(target_kind, type))
    if target_kind is float and source_kind is int:
        return True
    if not issubclass(source_kind, target_kind):
        return False
    source_args, target_args = get_args(source), get_args(target)
    if not source_args or not target_args:
        return True
    if Ellipsis in source_args or Ellipsis in target_args:
        return Ellipsis in target_args and all(is_compatible(item, target_args[0]) for item in source_args if item is not Ellipsis)
    return len(source_args) == len(target_args) and all(map(is_compatible, source_args, target_args))


def coerced(value: object, annotation: Any) -> Any:
    """Convert a JSON object to the class `annotation`: a dataclass, a pydantic model, or a class with `from_dict`.

    For the class `float`, convert a boolean. Return the value unchanged if it already has the type or cannot be converted.
    """
    if is_instance_of(value, annotation) or not isinstance(annotation, type):
        return value
    if annotation is float and isinstance(value, int):
        return float(value)
    if isinstance(value, dict):
        fields = cast("dict[str, Any]", value)
        make = cast("Callable[..., Any]", annotation)
        try:
            if issubclass(annotation, BaseModel):
                return annotation.model_validate(fields)
            if hasattr(make, "__dataclass_fields__"):
                return make(**fields)
            if callable(reader := getattr(make, "from_dict", None)):
                return reader(fields)
        except (TypeError, ValueError, KeyError, ValidationError):
            return fields
    return cast("object", value)


def checked_response(request_id: str, response: object, wanted: Any) -> Any:
    """Return the response to a workflow's request, converted to the type `wanted` that the request requires.

    Raises:
        ValueError: The response does not have this type and cannot be converted to it.
    """
    answer = coerced(response, wanted)
    if not is_instance_of(answer, wanted):
        found = type(response).__name__
        raise ValueError(f"Response type mismatch for request ID {request_id}: expected {name_of(wanted)}, got {found}.")
    return answer


def members(annotation: Any) -> list[Any]:
    """Return the member types of a union as a list; for another type, a list with this type; for `None` and `Never`, an empty list."""
    if annotation is None or annotation is Never:
        return []
    if get_origin(annotation) in _UNIONS:
        return [member for member in get_args(annotation) if member is not Never]
    return [annotation]


def hints_of(function: Callable[..., Any]) -> dict[str, Any]:
    """Return the annotations of a function by parameter name (`return` for the result). An annotation that cannot be resolved is `Any`."""
    target: Any = inspect.unwrap(function if inspect.isroutine(function) else type(function).__call__)
    found: dict[str, Any] = {}
    for name, annotation in getattr(target, "__annotations__", {}).items():
        found[name] = resolved(annotation, target) if isinstance(annotation, str) else annotation
    return found


def resolved(annotation: Any, function: Any) -> Any:
    """Evaluate an annotation that is given as text, in the scope of `function`, and return the type; `Any` if this is not possible.

    An annotation that is not a text is returned unchanged.
    """
    if not isinstance(annotation, str):
        return annotation
    names: dict[str, Any] = dict(getattr(function, "__globals__", {}))
    try:
        if "<locals>" in getattr(function, "__qualname__", ""):
            names.update(_names_around())
        names.update(inspect.getclosurevars(function).nonlocals)
        return eval(annotation, names)
    except (NameError, AttributeError, TypeError, SyntaxError, ValueError):
        return Any


def _names_around() -> dict[str, Any]:
    """Return the local variables of the innermost running function outside of this package, and of class bodies inside that function.

    The annotations of a decorated local function may refer to these variables.
    """
    names: dict[str, Any] = {}
    frame = inspect.currentframe()
    while frame is not None:
        if frame.f_globals.get("__name__", "").partition(".")[0] != "gateway" and frame.f_code.co_name != "<module>":
            names = {**frame.f_locals, **names}
            if not ("__qualname__" in frame.f_locals and "__module__" in frame.f_locals):  # the frame is not that of a class body
                return names
        frame = frame.f_back
    return names


def name_of(annotation: Any) -> str:
    """Return the name of a type annotation for error messages, such as `int` or `list[str]`."""
    return annotation.__name__ if isinstance(annotation, type) and get_origin(annotation) is None else str(annotation)


def types_in(annotations: Iterable[Any]) -> set[type]:
    """Return all classes that occur in the type annotations, also as arguments of containers and as members of unions."""
    found: set[type] = set()
    for annotation in annotations:
        if isinstance(annotation, type):
            found.add(annotation)
        origin = get_origin(annotation)
        if isinstance(origin, type):
            found.add(origin)
        found |= types_in(argument for argument in get_args(annotation) if argument is not Ellipsis)
    return found

"""Reads the docstrings of the fields of pydantic models, which become descriptions in JSON Schemas. Used by `json_schemas`.

The docstrings are read from the source code when a schema is built. pydantic's `use_attribute_docstrings` would read and parse the source
code at every start of the gateway.
"""

from __future__ import annotations

import ast
import inspect
import textwrap
from typing import get_args

from pydantic import BaseModel


def models_within(model: type[BaseModel]) -> dict[str, type[BaseModel]]:
    """Return class name → class for `model` and all pydantic models in its fields, at any depth."""
    found: dict[str, type[BaseModel]] = {}
    waiting: list[object] = [model]
    while waiting:
        item = waiting.pop()
        if isinstance(item, type) and issubclass(item, BaseModel):
            if item.__name__ not in found:
                found[item.__name__] = item
                waiting += [field.annotation for field in item.model_fields.values()]
        else:
            waiting += get_args(item)
    return found


def docstrings_of(model: type[BaseModel]) -> dict[str, str]:
    """Return the docstrings of a pydantic model's fields, by the field's key in the file. Inherited fields are included."""
    written: dict[str, str] = {}
    for cls in reversed(model.__mro__):
        if issubclass(cls, BaseModel) and cls is not BaseModel:
            written |= _written_in(cls)
    return {field.alias or name: written[name] for name, field in model.model_fields.items() if name in written}


def _written_in(cls: type[BaseModel]) -> dict[str, str]:
    [definition] = ast.parse(textwrap.dedent(inspect.getsource(cls))).body
    assert isinstance(definition, ast.ClassDef)
    found: dict[str, str] = {}
    for statement, following in zip(definition.body, definition.body[1:], strict=False):
        if isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name) and isinstance(following, ast.Expr):
            text = following.value
            if isinstance(text, ast.Constant) and isinstance(text.value, str):
                found[statement.target.id] = inspect.cleandoc(text.value)
    return found

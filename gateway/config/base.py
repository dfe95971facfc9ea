"""`Model`: what every configuration object has in common. Not a place for keys; `models` and `policies` are."""

from __future__ import annotations

import types
from typing import Annotated, Any, Union, cast, get_args, get_origin

from pydantic import BaseModel, ConfigDict, Strict
from pydantic.alias_generators import to_camel

_SCALARS: frozenset[object] = frozenset({bool, int, float})


class FileModel(BaseModel):
    """Base of every object that is read from a file: a boolean or number that is written as text is refused, not converted."""

    model_config = ConfigDict(defer_build=True)  # the schema is built after `__pydantic_init_subclass__` changed the fields

    @classmethod
    def __pydantic_init_subclass__(cls, **_: Any) -> None:
        """Make the booleans and numbers among the fields strict; a float still takes a whole number."""
        for info in cls.model_fields.values():
            if info.annotation in _SCALARS:
                info.metadata.append(Strict())
            elif get_origin(info.annotation) in (Union, types.UnionType):
                members = (Annotated[one, Strict()] if one in _SCALARS else one for one in get_args(info.annotation))
                info.annotation = cast("Any", Union[tuple(members)])  # noqa: UP007  # of members that are known at run time only


class Model(FileModel):
    """Base of every configuration object: closed, frozen, camelCase in the file.

    Built at first use: the whole of a file is built once then, and not each part of it at import and again within the whole.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, alias_generator=to_camel, populate_by_name=True)

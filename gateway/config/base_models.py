"""`FileModel` and `Model`: base classes of the pydantic models that other modules define for files such as `gateway.json`."""

from __future__ import annotations

import types
from typing import Annotated, Any, Union, cast, get_args, get_origin

from pydantic import BaseModel, ConfigDict, Strict
from pydantic.alias_generators import to_camel

_SCALARS: frozenset[object] = frozenset({bool, int, float})


class FileModel(BaseModel):
    """Base class of pydantic models that are read from files: a boolean or number that is written as text is rejected, not converted."""

    model_config = ConfigDict(defer_build=True)  # `__pydantic_init_subclass__` changes the fields before the schema is built

    @classmethod
    def __pydantic_init_subclass__(cls, **_: Any) -> None:
        """Make boolean and number fields of each subclass strict, so that text is rejected. A float field still accepts an integer."""
        for info in cls.model_fields.values():
            if info.annotation in _SCALARS:
                info.metadata.append(Strict())
            elif get_origin(info.annotation) in (Union, types.UnionType):
                members = (Annotated[one, Strict()] if one in _SCALARS else one for one in get_args(info.annotation))
                info.annotation = cast("Any", Union[tuple(members)])  # noqa: UP007  # of members that are known at run time only


class Model(FileModel):
    """Base class of the models of `gateway.json`: immutable, with camelCase keys in the file. Unknown keys are rejected.

    pydantic builds the validators of all nested models together, on first use. At import, it would build the validators of a nested model
    again for each model that contains it.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, alias_generator=to_camel, populate_by_name=True)

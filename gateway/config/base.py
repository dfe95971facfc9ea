"""`Model`: what every configuration object has in common. Not a place for keys; `models` and `policies` are."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict
from pydantic.alias_generators import to_camel


class Model(BaseModel):
    """Base of every configuration object: closed, frozen, camelCase in the file."""

    model_config = ConfigDict(extra="forbid", frozen=True, alias_generator=to_camel, populate_by_name=True, use_attribute_docstrings=True)

"""`Model`: what every configuration object has in common. Not a place for keys; `models` and `policies` are."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict
from pydantic.alias_generators import to_camel


class Model(BaseModel):
    """Base of every configuration object: closed, frozen, camelCase in the file.

    Built at first use: the whole of a file is built once then, and not each part of it at import and again within the whole.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, alias_generator=to_camel, populate_by_name=True, defer_build=True)

"""`ToolBox`: how agents and workflows get the tools they name, without knowing the catalog.

The catalog's owner (`app`) provides one; tests provide scripted ones. It hands out guarded tools, so whoever calls
them passes the same policy as any client.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

from gateway.tools.base import ReadOutcome, Tool
from gateway.tools.context import CallContext


class ToolBox(Protocol):
    """Finds tools by pattern."""

    async def tools(self, patterns: Sequence[str]) -> Sequence[Tool]:
        """The tools that match any of the `<source>/<glob>` patterns (`docs/read_*`, `agent/researcher`).

        In catalog order, each once; `definition.name` is the exposed, model-safe name. A pattern that matches
        nothing is no error.
        """
        ...


@runtime_checkable
class ResourceBox(Protocol):
    """Reads resources as clients do, through the gate."""

    async def read_resource(self, uri: str, ctx: CallContext) -> ReadOutcome:
        """An exposed resource.

        Raises:
            NotFound: There is none with this URI (`kind` is `resource`).
            GatewayError: It cannot be read.
        """
        ...

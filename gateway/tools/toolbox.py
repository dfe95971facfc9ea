"""`ToolBox`: how agents and workflows get the tools they name, without knowing the catalog.

The composition root hands them an implementation over the catalog; tests hand them a list. A tool box
gives out guarded tools only, so whoever holds one passes the same gate as a connected client.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from gateway.tools.base import Tool


class ToolBox(Protocol):
    """Tools by pattern."""

    async def tools(self, patterns: Sequence[str]) -> Sequence[Tool]:
        """The tools that any of `patterns` matches, each once, in catalog order.

        A pattern is `<source>/<glob over native names>`: `docs/read_*`, `agent/writer`, `workflow/brief`,
        `function/add`, `skill/load_skill`. Each tool's `definition.name` is its exposed name, which every
        model accepts as a function name. A pattern without a match adds nothing.
        """
        ...

"""The catalog: the merged lists of tools, resources, resource templates and prompts of all sources, as the gateway publishes them.

A source is anything that provides tools: a remote MCP server, or the gateway's own functions, agents, workflows and skills. The packages
`server`, `app` and `cli` use the catalog.
"""

from __future__ import annotations

from gateway.catalog.catalog import Catalog
from gateway.catalog.source_listing import CatalogEntry

__all__ = ["Catalog", "CatalogEntry"]

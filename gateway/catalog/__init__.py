"""The one list of tools, resources, templates and prompts over all sources."""

from __future__ import annotations

from gateway.catalog.catalog import Catalog, CatalogEntry

__all__ = ["Catalog", "CatalogEntry"]

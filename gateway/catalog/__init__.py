"""The merged list of tools, resources, templates and prompts of all sources, for `server`, `app` and `cli`."""

from __future__ import annotations

from gateway.catalog.catalog import Catalog
from gateway.catalog.source_listing import CatalogEntry

__all__ = ["Catalog", "CatalogEntry"]

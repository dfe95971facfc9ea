"""The one list of tools, resources, templates and prompts over all sources."""

from __future__ import annotations

from gateway.catalog.catalog import Catalog
from gateway.catalog.shelf import CatalogEntry

__all__ = ["Catalog", "CatalogEntry"]

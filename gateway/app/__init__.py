"""The composition root: builds a running gateway from a configuration.

`gateway` builds and connects the parts of the gateway; `local_builder` builds the sources of skills, functions, agents and workflows. Only
the command line imports this package. `Gateway` is imported on first use.
"""

from __future__ import annotations

from gateway.lazy import lazy_names

__getattr__ = lazy_names(__name__)

"""The composition root: turns a configuration into a running gateway, and applies changes of it.

`gateway` connects the parts, and `local_builder` builds the sources of skills, functions, agents and workflows from them. Only the command
line imports this package. `Gateway` loads on first use.
"""

from __future__ import annotations

from gateway.lazy import lazy_names

__getattr__ = lazy_names(__name__)

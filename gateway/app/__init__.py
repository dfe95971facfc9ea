"""The composition root: turns a configuration into a running gateway, and applies changes of it.

`gateway` connects the parts, `remote_servers` and `local_sources` hold the sources of tools, `inspection` reads their state for operators,
and `serving` serves clients. Only the command line imports this package. `Gateway` loads on first use, because commands use the other
modules without it.
"""

from __future__ import annotations

from gateway.lazy import lazy_names

__getattr__ = lazy_names(__name__)

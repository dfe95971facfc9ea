"""The composition root: what makes a configuration into a running gateway, and keeps the two alike.

`gateway` composes, `servers` holds the remote servers, `reload` follows the configuration file, `lock` the lock file, `acceptance` what
a person must accept first, and `serving` brings it all to clients. Only the command line is above it. `Gateway` loads on first use,
because commands use the other modules without it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from gateway.lazy import lazy_names

if TYPE_CHECKING:
    from gateway.app.gateway import Gateway

__all__ = ["Gateway"]

__getattr__ = lazy_names(__name__, {"Gateway": "app.gateway"})

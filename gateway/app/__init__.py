"""The composition root: what makes a configuration into a running gateway, and keeps the two alike.

`gateway` composes, `servers` holds the remote servers, `reload` follows the configuration file, `lock` the lock file and
`serving` brings it all to clients. Only the command line is above it.
"""

from __future__ import annotations

from gateway.app.gateway import Gateway

__all__ = ["Gateway"]

"""Computes the id of a running gateway. With these ids, connected gateways detect that a call came back to one of them.

Decided: the id is a digest of the configuration's path and of the endpoint's port, keyed with the installation's key. Because: two gateways
of one user share a state folder and still have two ids, while the replicas of a site (the same path, port and `installation-key` on each
machine) share one id. Instead of: a random id per process, with which a loop through another replica is not detected. Revisit when:
replicas need different paths or ports.
"""

from __future__ import annotations

import hmac
import os
import secrets

from gateway.config.load import LoadedConfig
from gateway.storage.state_folder import StateFolder
from gateway.upstream.child_processes import LINEAGE_VARIABLE
from gateway.upstream.gateway_chain import configuration_of

HALF_DIGITS = 16
"""Number of hex digits in each half of a gateway's id: the first half identifies the configuration, the second the endpoint."""

STDIO = "stdio"
"""Name of the endpoint of a gateway that serves one client over standard input and output, in place of a port."""


def hop_id(state: StateFolder, loaded: LoadedConfig, endpoint: str | None) -> str:
    """Return the id of the gateway that serves the configuration `loaded` at `endpoint`. Blocks.

    `endpoint` is a port as text, or `STDIO`; `None` means the configured port. With port 0, the second half of the id is random. If another
    gateway with the same configuration started this gateway as a child process, return the id of that gateway, because the two gateways
    form a loop.

    Raises:
        StorageError: The installation's key cannot be read or written.
    """
    configuration = configuration_id(state, loaded)
    for ancestor in os.environ.get(LINEAGE_VARIABLE, "").split():
        if configuration_of(ancestor) == configuration:
            return ancestor
    port = endpoint or str(loaded.config.server.http.port)
    # For port 0, the system chooses a port when the gateway begins to listen, which is later than the id is needed: use a random value.
    return configuration + _digest(state, secrets.token_hex(8) if port == "0" else port)


def configuration_id(state: StateFolder, loaded: LoadedConfig) -> str:
    """Return the first half of a gateway's id, which identifies its configuration. Raises `StorageError`. Blocks."""
    # Symbolic links are not resolved, because a mounted ConfigMap (Kubernetes) resolves to another folder on each machine.
    return _digest(state, os.path.normpath(loaded.path or loaded.base_dir))


def _digest(state: StateFolder, text: str) -> str:
    return hmac.digest(state.key("gateway-id"), os.fsencode(text), "sha256").hex()[:HALF_DIGITS]

"""The id of a running gateway, by which chained gateways detect that a call has come back to the same gateway.

Decided: the id is a digest of the configuration's path and of the endpoint's port, keyed with the installation's key. Because: two
gateways of one user share a state folder and still have two ids, while the replicas of a site (the same path, port and
`installation-key` on each machine) share one id. Instead of: a random id per process, with which a loop through another replica is not
detected. Revisit when: replicas need different paths or ports.
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
"""Hex digits of each half of an id: the first stands for the configuration, the second for the endpoint."""

STDIO = "stdio"
"""The endpoint of a gateway that serves one client over standard input and output."""


def hop_id(state: StateFolder, loaded: LoadedConfig, endpoint: str | None) -> str:
    """Return the id of the gateway that serves `loaded` at `endpoint`: a port as text, or `STDIO`. Blocks.

    `None` stands for the configured port. A gateway that another gateway with the same configuration started as a child process returns
    that gateway's id, because the two form a loop.

    Raises:
        StorageError: The installation's key cannot be read or written.
    """
    configuration = configuration_id(state, loaded)
    for ancestor in os.environ.get(LINEAGE_VARIABLE, "").split():
        if configuration_of(ancestor) == configuration:
            return ancestor
    port = endpoint or str(loaded.config.server.http.port)
    # The system picks port 0 only when the gateway listens, after the id is needed, so a random value stands for the port.
    return configuration + _digest(state, secrets.token_hex(8) if port == "0" else port)


def configuration_id(state: StateFolder, loaded: LoadedConfig) -> str:
    """Return the first half of the id, which stands for the configuration. Raises `StorageError`. Blocks."""
    # Links are not followed: a mounted ConfigMap resolves to another folder on each machine.
    return _digest(state, os.path.normpath(loaded.path or loaded.base_dir))


def _digest(state: StateFolder, text: str) -> str:
    return hmac.digest(state.key("gateway-id"), os.fsencode(text), "sha256").hex()[:HALF_DIGITS]

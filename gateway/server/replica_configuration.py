"""Identifies the configuration of a replica by a short digest, so that `moongate doctor` can say whether replicas differ."""

from __future__ import annotations

import hmac
import json

from gateway.config.models import GatewayConfig

DIGEST_CHARS = 12
"""Number of hexadecimal digits of a configuration's digest."""

_OF_ONE_MACHINE = {
    "storage": {"dir", "installation_key"},
    "server": {"http": {"replica_address", "host", "port"}},
    "telemetry": {"prometheus"},
}
"""Settings that may differ between replicas."""


def configuration_digest(key: bytes, config: GatewayConfig) -> str:
    """Return a digest of a configuration, without the settings that may differ between replicas.

    The digest is keyed, because a configuration contains secrets. `key` (32 bytes) is the same for all replicas.
    """
    document = config.model_dump(mode="json", by_alias=True, exclude=_OF_ONE_MACHINE)
    return hmac.digest(key, json.dumps(document, sort_keys=True).encode(), "sha256").hex()[:DIGEST_CHARS]

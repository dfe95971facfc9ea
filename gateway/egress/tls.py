"""The TLS settings that all outgoing connections share."""

from __future__ import annotations

import functools
import ssl


@functools.cache
def tls_context() -> ssl.SSLContext:
    """Return the TLS context for outgoing connections. It is created once, because reading the certificate bundle takes at least 20 ms."""
    import httpx2  # imported here, because some processes contact no TLS server

    return httpx2.create_ssl_context()

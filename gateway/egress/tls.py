"""TLS settings of all outgoing connections."""

from __future__ import annotations

import functools
import ssl


@functools.cache
def tls_context() -> ssl.SSLContext:
    """Return the TLS context that all connections share, because reading the certificate bundle takes at least 20 ms."""
    import httpx2  # not loaded if no TLS server is contacted

    return httpx2.create_ssl_context()

"""The TLS settings with which every server is reached."""

from __future__ import annotations

import functools
import ssl


@functools.cache
def tls_context() -> ssl.SSLContext:
    """One context for everything: reading the certificate bundle takes 20 ms and more each time (performance.md §4.2)."""
    import httpx2  # what reaches no TLS server does without

    return httpx2.create_ssl_context()

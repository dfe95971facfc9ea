"""The TLS settings of outgoing connections."""

from __future__ import annotations

import functools
import ssl
from pathlib import Path


@functools.cache
def tls_context() -> ssl.SSLContext:
    """Return the TLS context for outgoing connections. It is created once, because reading the certificate bundle takes at least 20 ms."""
    import httpx2  # imported here, because some processes contact no TLS server

    return httpx2.create_ssl_context()


def pinned_context(certificate: Path) -> ssl.SSLContext:
    """Return a TLS context that trusts only the first certificate in a PEM file, for any host name. Blocks.

    A command uses it for the gateway of its own configuration, whose certificate is for a public name and not for a loopback address.

    Raises:
        OSError: The file cannot be read, or does not contain a certificate (`ssl.SSLError`).
    """
    first, end, _ = certificate.read_bytes().partition(b"-----END CERTIFICATE-----")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    # The certificates of the issuers are not loaded, because they would make every certificate of these issuers trusted.
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    try:
        context.load_verify_locations(cadata=(first + end).decode("ascii"))
    except ValueError as error:
        raise ssl.SSLError(str(error)) from None
    return context

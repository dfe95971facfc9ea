"""The health check of the image: `python -I health.py [PORT]`; exit code 0 if the gateway on this machine answers `/health` with 200.

It asks over HTTP. A gateway with `server.http.tls` answers this with 400, and is then asked over HTTPS. The certificate is not verified,
because it has the public name of the gateway, and the connection does not leave the container. Needs only the standard library.
"""

from __future__ import annotations

import http.client
import ssl
import sys

TIMEOUT_SECONDS = 2.0
"""Seconds for each of the two requests; together they must be shorter than the timeout of the health check."""


def status(connection: http.client.HTTPConnection) -> int:
    """Return the status code of `/health`, or 0 if the gateway cannot be reached or does not answer in time."""
    try:
        connection.request("GET", "/health")
        return connection.getresponse().status
    except (OSError, http.client.HTTPException):
        return 0
    finally:
        connection.close()


def is_healthy(port: int) -> bool:
    """Return whether a gateway on this machine answers on `port`, over HTTP or HTTPS."""
    plain = status(http.client.HTTPConnection("127.0.0.1", port, timeout=TIMEOUT_SECONDS))
    if plain != 400:
        return plain == 200
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    return status(http.client.HTTPSConnection("127.0.0.1", port, timeout=TIMEOUT_SECONDS, context=context)) == 200


if __name__ == "__main__":
    sys.exit(0 if is_healthy(int(sys.argv[1]) if len(sys.argv) > 1 else 8765) else 1)

"""`MAX_MESSAGE_BYTES` and the text of connection errors, for transports and carriers."""

from __future__ import annotations

MAX_MESSAGE_BYTES = 67_108_864
"""Maximum size of one message from a server (64 MiB); a larger line, event or body fails its request."""


def connect_problem(error: Exception) -> str:
    """Return the first line of a connection error, in plain words where OpenSSL's are not."""
    text = str(error).strip()
    if "WRONG_VERSION_NUMBER" in text:
        return "it does not speak TLS; if it is reached without TLS, write http:// instead of https://"
    return text.splitlines()[0][:200] if text else type(error).__name__

"""Limits on the size of messages from servers, and claims: permissions to hold a large message in memory.

Used by `http1_client` and `framed_pipe`, which stop reading until a claim is granted. `upstream.large_bodies` grants the claims.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

MAX_MESSAGE_BYTES = 67_108_864
"""Maximum size of one message from a server (64 MiB); a larger line, event or body fails its request."""

LARGE_BYTES = 1_048_576
"""Size from which a message needs a claim (permission to hold it in memory), and is parsed in a worker thread."""

CLAIM_WAIT_SECONDS = 50.0
"""How long a message waits for its claim (permission to hold it in memory). This is shorter than the usual deadline of a call, so that
the error can name the configuration key to raise.
"""


class Claim(Protocol):
    """A request for memory, and then the permission to use it, for one large message."""

    @property
    def is_granted(self) -> bool:
        """Whether the memory is granted, so that the message may be read."""
        ...

    def release(self) -> None:
        """Give the bytes back, or stop waiting for them. Callable from any thread, more than once."""
        ...


class Claims(Protocol):
    """Grants claims within a limit on all large messages together."""

    def claim(self, caller: str, size: int, granted: Callable[[], None], /) -> Claim:
        """Claim `size` bytes for a caller. Calls `granted` once, later, if the claim is not granted at once."""
        ...


def too_large(limit: int) -> str:
    """Return the error text for a message over `limit` bytes."""
    return f"the answer is larger than {limit} bytes, which is more than is taken; ask for less of it"


def crowded(seconds: float) -> str:
    """Return the error text for a large message that was not read because other large messages were being processed."""
    return (
        f"the answer is large and waited {seconds:g} s for other large answers to be done; the call may have run. "
        "Ask for less of it, try later, or have the operator raise `server.largeResultBytes`"
    )

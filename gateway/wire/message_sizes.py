"""Limits on the size of messages from servers, and claims: permissions to hold a large message in memory.

Used by `http1_client` and `framed_pipe`, which stop reading until a claim is granted. `upstream.large_bodies` grants the claims.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

MAX_MESSAGE_BYTES = 67_108_864
"""Maximum size of one message from a server (64 MiB); a larger line, event or body fails its request."""

LARGE_BYTES = 1_048_576
"""Minimum bytes of a large message, which needs a claim (permission to hold it in memory) and is parsed in another thread or process."""

CLAIM_WAIT_SECONDS = 50.0
"""Maximum seconds that a large HTTP response waits for its claim (permission to hold it in memory). This is shorter than the usual deadline
of a call, so that the call fails with an error that names the configuration key to raise. A line from a child process has no such limit.
"""


class Claim(Protocol):
    """A request to hold one large message in memory, and, once it is granted, the permission to do so."""

    @property
    def is_granted(self) -> bool:
        """Whether the memory is granted, so that the message may be read."""
        ...

    def release(self) -> None:
        """Return the claimed memory, or withdraw a claim that is not granted yet. Callable from any thread, and more than once."""
        ...


class Claims(Protocol):
    """Grants claims (permissions to hold a large message in memory) within a limit on the total size of all large messages."""

    def claim(self, caller: str, size: int, granted: Callable[[], None], /) -> Claim:
        """Claim `size` bytes of memory for a caller. If the claim has to wait, `granted` is called once, when the claim is granted."""
        ...


def too_large(limit: int) -> str:
    """Return the error text for a server's message that is larger than `limit` bytes."""
    return f"the answer is larger than the limit of {limit} bytes; ask for less of it"


def crowded(seconds: float) -> str:
    """Return the error text for a large message that was not read within `seconds`, because other large messages were being processed."""
    return (
        f"the answer is large and waited {seconds:g} s for other large answers to be done; the call may have run. "
        "Ask for less of it, try later, or have the operator raise `server.largeResultBytes`"
    )

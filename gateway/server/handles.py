"""`TaskHandles`: ids under which clients know tasks of remote servers: sealed, so that nothing has to be remembered.

A handle carries the tool, the server's own id and the principal, encrypted with a key of the installation: it works in
every process of the installation and after a restart, cannot be made or read by a client, and is nothing to anybody else.
"""

from __future__ import annotations

import base64
import binascii
import json
import secrets
from dataclasses import dataclass
from typing import Any, cast

from gateway.errors import NotFound

PREFIX = "r."
"""Start of a handle; ids of tasks that run here never contain a dot."""

MAX_LENGTH = 4_096
"""Longest handle that is looked at; each gateway of a chain adds about half again."""

_NONCE_BYTES = 12


@dataclass(frozen=True, slots=True)
class Handle:
    """What a handle stands for."""

    tool: str
    """Exposed name."""
    source: str
    task_id: str
    """The server's own id."""


class TaskHandles:
    """Seals and opens handles."""

    def __init__(self, key: bytes) -> None:
        """`key` is 32 bytes."""
        self._key = key

    def seal(self, handle: Handle, principal: str) -> str:
        """The id for `principal`."""
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM

        plain = json.dumps([handle.tool, handle.source, handle.task_id], separators=(",", ":")).encode()
        nonce = secrets.token_bytes(_NONCE_BYTES)
        sealed = nonce + AESGCM(self._key).encrypt(nonce, plain, principal.encode())
        return PREFIX + base64.urlsafe_b64encode(sealed).rstrip(b"=").decode()

    def open(self, text: str, principal: str) -> Handle:
        """What an id stands for.

        Raises:
            NotFound: It is none of ours, or not this principal's.
        """
        from cryptography.exceptions import InvalidTag
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM

        if not text.startswith(PREFIX) or len(text) > MAX_LENGTH:
            raise NotFound("task", "")
        body = text.removeprefix(PREFIX)
        try:
            sealed = base64.b64decode(body + "=" * (-len(body) % 4), altchars=b"-_", validate=True)
            plain = AESGCM(self._key).decrypt(sealed[:_NONCE_BYTES], sealed[_NONCE_BYTES:], principal.encode())
        except (InvalidTag, ValueError, binascii.Error):
            raise NotFound("task", "") from None
        tool, source, task_id = cast("list[Any]", json.loads(plain))
        return Handle(tool, source, task_id)

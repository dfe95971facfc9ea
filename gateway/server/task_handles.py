"""`TaskHandles`: the ids of remote servers' tasks as clients see them. The gateway stores nothing for them.

A handle contains the tool and the server's id, encrypted with a key of the installation and bound to the principal. It is valid in every
process of the installation and after a restart. Clients can neither create nor read handles, and other principals cannot use them.
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
"""Start of a handle. The ids of tasks that run in this gateway contain no dot, so both can be distinguished."""

MAX_LENGTH = 4_096
"""Maximum length of a handle. Each gateway of a chain adds about half of the length."""

_NONCE_BYTES = 12


@dataclass(frozen=True, slots=True)
class Handle:
    """The content of a handle of a remote server's task."""

    tool: str
    """Exposed name of the tool."""
    source: str
    task_id: str
    """The task's id at its server."""


class TaskHandles:
    """Encrypts and decrypts handles of remote servers' tasks."""

    def __init__(self, key: bytes) -> None:
        """`key` (32 bytes) encrypts the handles."""
        self._key = key

    def seal(self, handle: Handle, principal: str) -> str:
        """Return the encrypted handle, which only `principal` can use."""
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM

        plain = json.dumps([handle.tool, handle.source, handle.task_id], separators=(",", ":")).encode()
        nonce = secrets.token_bytes(_NONCE_BYTES)
        sealed = nonce + AESGCM(self._key).encrypt(nonce, plain, principal.encode())
        return PREFIX + base64.urlsafe_b64encode(sealed).rstrip(b"=").decode()

    def open(self, text: str, principal: str) -> Handle:
        """Decrypt a handle that `principal` sent, and return its content.

        Raises:
            NotFound: The handle is invalid, or belongs to another principal.
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

"""`TaskHandles`: encrypts the task ids of remote servers into handles, which clients use as task ids. The gateway stores no handles.

A handle contains the tool and the server's task id, encrypted with a key of the installation and bound to the principal. It is valid in
every process of the installation and after a restart. Clients can neither create nor read handles, and other principals cannot use them.
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
"""Prefix of the handles of remote servers' tasks. It has a dot, which the ids of this gateway's own tasks never have."""

MAX_LENGTH = 4_096
"""Maximum length in characters of the handle of a remote task. In a chain of gateways, each gateway makes the handle about 1.5 times as
long."""

_NONCE_BYTES = 12


@dataclass(frozen=True, slots=True)
class Handle:
    """The decrypted content of a handle. A handle is the id under which a client sees a task of a remote server."""

    tool: str
    """Exposed name of the tool whose call became the task."""
    source: str
    task_id: str
    """The id of the task at the remote server."""


class TaskHandles:
    """Encrypts and decrypts handles: the ids under which clients see tasks of remote servers."""

    def __init__(self, key: bytes) -> None:
        """`key` (32 bytes) encrypts the handles."""
        self._key = key

    def seal(self, handle: Handle, principal: str) -> str:
        """Encrypt the content of a handle. Return the handle as text, which only the principal with the id `principal` can use."""
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM

        plain = json.dumps([handle.tool, handle.source, handle.task_id], separators=(",", ":")).encode()
        nonce = secrets.token_bytes(_NONCE_BYTES)
        sealed = nonce + AESGCM(self._key).encrypt(nonce, plain, principal.encode())
        return PREFIX + base64.urlsafe_b64encode(sealed).rstrip(b"=").decode()

    def open(self, text: str, principal: str) -> Handle:
        """Decrypt the handle `text`, which the principal with the id `principal` sent, and return its content.

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

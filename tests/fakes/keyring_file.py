"""A backend of the real `keyring` library that keeps passwords in a JSON file: `{"service": {"user": "password"}}`.

Chosen with PYTHON_KEYRING_BACKEND=tests.fakes.keyring_file.FileKeyring; the file is named by MOONGATE_TEST_KEYRING.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

from keyring.backend import KeyringBackend


class FileKeyring(KeyringBackend):
    """A read-only backend."""

    priority = 1  # pyright: ignore[reportAssignmentType]  # keyring's own way to declare it

    def get_password(self, service: str, username: str) -> str | None:
        """The password in the file."""
        known = json.loads(Path(os.environ["MOONGATE_TEST_KEYRING"]).read_text())
        return known.get(service, {}).get(username)

    def set_password(self, service: str, username: str, password: str) -> None:
        """Nothing here writes."""
        raise NotImplementedError

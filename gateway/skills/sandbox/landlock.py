"""Landlock rules of a sandboxed script: which files it may open, and no connections, signals or abstract sockets (linux/landlock.h).

Landlock protects the content of files and the listings of folders. It does not hide names and attributes of files; `namespaces` does.
"""

from __future__ import annotations

import os
import struct

from .kernel import LIBC, Unfit, number_of, system_call

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

EXECUTE, WRITE_FILE, READ_FILE, READ_DIR, TRUNCATE, IOCTL_DEV = 1 << 0, 1 << 1, 1 << 2, 1 << 3, 1 << 14, 1 << 15
ALL_BY_ABI = {1: (1 << 13) - 1, 2: (1 << 14) - 1, 3: (1 << 15) - 1, 4: (1 << 15) - 1, 5: (1 << 16) - 1}
"""Landlock version (ABI) → bits of all file access rights that this version can control."""

OF_FILES = EXECUTE | WRITE_FILE | READ_FILE | TRUNCATE | IOCTL_DEV
TCP, SCOPES = 0b11, 0b11
"""Bits of Landlock for operations that are refused to a script, apart from access to files.

`TCP` has the bits for bind and connect by TCP (refused only without network access). `SCOPES` has the bits for connections to abstract
sockets, and signals to processes, outside the sandbox."""

ENOUGH_FOR_FILES = 3
"""First Landlock version that protects the content of files completely, because it can refuse `truncate` by path."""

ENOUGH_FOR_SIGNALS = 6


def version() -> int:
    """Return the kernel's Landlock version; 0 without Landlock."""
    number = number_of("landlock_create_ruleset")
    return max(0, LIBC.syscall(number, None, 0, 1))


def restrict(abi: int, read: Sequence[str], write: Sequence[str], *, has_network: bool) -> None:
    """Restrict this process to reading and executing files below `read`, and to all access below `write`. Missing paths are skipped.

    `abi` is the kernel's Landlock version. From version 4 on, TCP binds and connections are refused without `has_network`; from version 6
    on, signals and connections to abstract sockets outside the sandbox.

    Raises:
        Unfit: The kernel refuses a rule.
    """
    handled = ALL_BY_ABI[min(abi, 5)]
    attributes = struct.pack("QQQ", handled, 0 if has_network else TCP, SCOPES)
    size = 8 if abi < 4 else 16 if abi < 6 else 24
    try:
        rules = system_call("landlock_create_ruleset", attributes, size, 0)
        for paths, access in ((read, EXECUTE | READ_FILE | READ_DIR), (write, handled)):
            for path in paths:
                _allow(rules, path, access & handled)
        system_call("landlock_restrict_self", rules, 0)
        os.close(rules)
    except OSError as error:
        raise Unfit(f"Landlock refuses the rules: {error.strerror}") from None


def _allow(rules: int, path: str, access: int) -> None:
    try:
        place = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except (FileNotFoundError, NotADirectoryError):
        return
    allowed = access if os.path.isdir(path) else access & OF_FILES
    system_call("landlock_add_rule", rules, 1, struct.pack("=Qi", allowed, place), 0)
    os.close(place)

"""`Principal`: who is calling. Plain data; made by the transports, read by everything below them."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Principal:
    """An authenticated caller. Two callers are the same exactly when `id` is equal."""

    id: str
    """Stable and unique, e.g. `local` or `key:ab12cd`. Never a secret."""
    name: str = ""
    """For people; never used to decide anything."""


LOCAL = Principal("local", "local user")
"""Whoever reaches a gateway without keys over loopback or stdio: the user who started it."""

"""`PoisoningCheck`: finds definitions of one server whose texts give orders to a model (tool poisoning), and logs new findings.

It only warns, and hides no definition. It checks listings in the background, so that calls do not wait. `policy.poisoning` has the rules,
and the status of the server shows the findings.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence

import anyio
import anyio.lowlevel
import anyio.to_thread

from gateway.json_types import JsonObject
from gateway.policy.poisoning import poisoning_signs

logger = logging.getLogger(__name__)

MAX_SECONDS = 5.0
"""Time limit for checking the lists of one server. The remaining definitions are not checked, and a warning is logged.

A thousand ordinary tools take about a second.
"""

_NAMED = (
    ("tools", "name", "tool"),
    ("prompts", "name", "prompt"),
    ("resources", "uri", "resource"),
    ("templates", "uriTemplate", "resource template"),
)

Lists = Mapping[str, Sequence[JsonObject]]

_lock = anyio.lowlevel.RunVar[anyio.Lock]("gateway.upstream.poisoning_check.lock")
"""Held by the check that runs in this event loop, because checks in many threads would slow the start with many servers down."""


class PoisoningCheck:
    """Checks the listed definitions of one server for texts that give orders to a model (tool poisoning)."""

    def __init__(self, server: str, lists: Callable[[], Lists]) -> None:
        """`lists` returns the server's current listing entries: `tools`, `prompts`, `resources` and `templates`."""
        self._server = server
        self._lists = lists
        self._judged: list[JsonObject] = []
        self.found: Mapping[str, str] = {}
        """Findings of the last check: kind and name of a definition, such as `tool search` → why a person should read it."""

    async def judge(self) -> None:
        """Check the current listing entries if they changed since the last check, store the findings in `found`, and log new ones."""
        lock = _lock.get(None) or anyio.Lock()
        _lock.set(lock)
        async with lock:
            lists = dict(self._lists())
            listed = [entry for kind, _, _ in _NAMED for entry in lists[kind]]
            if listed == self._judged:
                return
            before, self.found = self.found, await anyio.to_thread.run_sync(self._signs_of, lists)
            self._judged = listed
            for what, why in self.found.items():
                if before.get(what) != why:
                    logger.warning("definition reads like orders to a model server=%s definition=%r signs=%s", self._server, what, why)

    def _signs_of(self, lists: Lists) -> dict[str, str]:
        until = time.monotonic() + MAX_SECONDS
        found: dict[str, str] = {}
        for kind, key, word in _NAMED:
            for entry in lists[kind]:
                if time.monotonic() > until:
                    logger.warning("listing too large, not every definition was read for orders to a model server=%s", self._server)
                    return found
                if signs := poisoning_signs(entry):
                    found[f"{word} {str(entry.get(key))[:200]}"] = "; ".join(signs)
        return found

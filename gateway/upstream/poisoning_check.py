"""`PoisoningCheck`: finds definitions of one server that read like orders to a model, outside the path of calls, and logs each once.

It only warns; nothing is hidden. `policy.poisoning` decides, and the status of the source shows the result.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence

import anyio
import anyio.to_thread

from gateway.json_types import JsonObject
from gateway.policy.poisoning import poisoning_signs

logger = logging.getLogger(__name__)

MAX_SECONDS = 5.0
"""Time limit for one listing; a thousand ordinary tools take half a second. The rest is not checked, and a warning is logged."""

_NAMED = (
    ("tools", "name", "tool"),
    ("prompts", "name", "prompt"),
    ("resources", "uri", "resource"),
    ("templates", "uriTemplate", "resource template"),
)

Lists = Mapping[str, Sequence[JsonObject]]


class PoisoningCheck:
    """Checks the listings of one server for definitions that read like orders to a model."""

    def __init__(self, server: str, lists: Callable[[], Lists]) -> None:
        """`lists` returns the server's current entries by kind."""
        self._server = server
        self._lists = lists
        self._judged: list[JsonObject] = []
        self._one = anyio.Lock()
        self.found: Mapping[str, str] = {}
        """Definition, such as `tool search` → why a person should read it."""

    async def judge(self) -> None:
        """Check the current listings if they changed since the last check."""
        async with self._one:
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

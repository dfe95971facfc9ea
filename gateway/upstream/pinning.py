"""`Pinning`: what one server's tools are held to, and what is said about those that differ.

Keeps the pins of the lock file and what `policy.pins` found in the last listing. A call is admitted against what was read over
the very session that it is sent on (`Session.listed`), because another session may lead to another server. Sends nothing.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence

from gateway.errors import PolicyDenied
from gateway.json_types import JsonMapping
from gateway.policy.pins import PinFinding, PinMode, judge_pins, pin_digest, pinned_form

logger = logging.getLogger(__name__)


class Pinning:
    """The pins of one server. Until `take` it is not pinned."""

    def __init__(self, server: str, mode: PinMode) -> None:
        self._server = server
        self._mode: PinMode = mode
        self._pinned: Mapping[str, str] | None = None
        self._findings: dict[str, PinFinding] = {}

    @property
    def guards(self) -> bool:
        """Whether a call may be refused: definitions must be known then before anything is called."""
        return self._pinned is not None and self._mode == "quarantine"

    def take(self, pinned: Mapping[str, str] | None) -> bool:
        """Take the server's pinned digests by tool, `None` where it is not pinned; returns whether they are others than before."""
        if pinned == self._pinned:
            return False
        self._pinned = pinned
        return True

    def digests(self, wires: Sequence[JsonMapping]) -> dict[str, str]:
        """The digests of a listing by tool, empty for a server that is not pinned; of a name listed twice the first counts."""
        found: dict[str, str] = {}
        if self._pinned is not None:
            for wire in wires:
                name = str(wire["name"])
                if name not in found:
                    found[name] = pin_digest(pinned_form(wire))
        return found

    def judge(self, wires: Sequence[JsonMapping]) -> set[str]:
        """Judge a listing; returns the tools that may not be served, and logs what is new about it."""
        listed = self.digests(wires)
        # Before the first listing nothing is known to be missing.
        found = judge_pins(listed, self._pinned if listed else None, self._mode)
        for name, finding in found.items():
            if finding != self._findings.get(name) and finding.change != "removed":
                what = "served" if finding.is_served else "quarantined"
                accept = f"`moongate lock --diff {self._server}` shows it, `moongate lock --accept {self._server}/{name}` accepts it"
                logger.warning("%s: tool %r is %s against the lock file, %s: %s", self._server, name, finding.change, what, accept)
        self._findings = found
        return {name for name, finding in found.items() if not finding.is_served}

    def admit(self, name: str, listed: Mapping[str, str]) -> None:
        """Let a call pass only for a tool that is `listed` (digests by tool) as it was accepted.

        Raises:
            PolicyDenied: It is not listed, or not accepted.
        """
        finding = judge_pins({name: listed[name]} if name in listed else {}, self._pinned, self._mode).get(name)
        if name in listed and finding is None:
            return
        reason = self._held(name, finding) if finding is not None and name in listed else "the server does not list it"
        raise PolicyDenied(f"Tool {name!r} of {self._server!r} is not called: {reason}.", rule="pins", subject=name)

    def quarantined(self) -> dict[str, str]:
        """The tools that are held back, each with what accepts it."""
        return {n: self._held(n, f) for n, f in self._findings.items() if f.change != "removed" and not f.is_served}

    def _held(self, name: str, finding: PinFinding) -> str:
        return f"{finding.change} against the lock file; `moongate lock --accept {self._server}/{name}` accepts it"

    def remarks(self) -> list[str]:
        """What the lock file holds that the server lists no more."""
        again = f"`moongate lock {self._server}` writes its entry anew."
        return [
            f"{self._server}: tool {name!r} is in the lock file, but the server lists it no more; {again}"
            for name, finding in self._findings.items()
            if finding.change == "removed"
        ]

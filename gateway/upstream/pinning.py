"""`Pinning`: compares the tools that one remote server lists with their accepted definitions (pins), and finds the tools that differ.

There are two cases. If the lock file contains the server, the pins are the definitions in this file. Then each call is checked (unless
policy only warns) against the tools that were listed on the session of the call (`Session.listed_tools`), because another session may reach
another server process. If the lock file does not contain the server, a tool's pin is its first listed definition, or a later one that a
person accepted. Then only the listing that clients see is checked, because a model reads only this listing. The module sends no requests.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence

import anyio.to_thread

from gateway.errors import PolicyDenied, StorageError
from gateway.json_types import JsonMapping, JsonObject
from gateway.policy.pin_check import PINS_RULE, PinFinding, PinMode, judge_pins, pin_digest
from gateway.upstream.accepted_definitions import DefinitionRecord, Forms
from gateway.upstream.pins import forms_of

logger = logging.getLogger(__name__)

NAMES_SHOWN = 5
"""Maximum number of tool names in one log line about newly recorded tools."""


class Pinning:
    """The pins (accepted tool definitions) of one server. Without a call of `take` or `begin`, no tool is pinned."""

    def __init__(self, server: str, mode: PinMode) -> None:
        self._server = server
        self._mode: PinMode = mode
        self._locked: Mapping[str, str] | None = None
        self.may_refuse = False
        """Whether `admit` may refuse a call, so that the server's tools must be listed before the first call."""
        self._record: DefinitionRecord | None = None
        self._first: dict[str, str] = {}
        self._unwritten: dict[str, JsonObject] = {}
        self._findings: dict[str, PinFinding] = {}

    @property
    def _pinned(self) -> Mapping[str, str] | None:
        if self._locked is not None:
            return self._locked
        return self._first if self._record is not None else None

    def take(self, locked: Mapping[str, str] | None) -> bool:
        """Set the digests of this server's tools in the lock file, by tool name. Return whether they differ from the digests set before.

        `None` means that the lock file does not contain the server.
        """
        if locked == self._locked:
            return False
        self._locked = locked
        self.may_refuse = locked is not None and self._mode == "quarantine"
        return True

    # -- first use ---------------------------------------------------------------------------------------------

    def begin(self, record: DefinitionRecord, *, was_listed: bool) -> None:
        """Read the tools' first listed definitions from `record`, and use them as pins (accepted definitions). Blocks.

        If the lock file has pins of this server, they take precedence. `was_listed` is true if the server was listed in an earlier run of
        the gateway; it affects only the log.

        Raises:
            StorageError: The record cannot be read.
        """
        if self._mode == "off":
            return
        recorded = record.read()
        if recorded is None and was_listed and self._locked is None:
            logger.info("no first listing on record, the next one is recorded server=%s", self._server)
        self._record = record
        self._first = _digests(recorded or {})

    def note(self, wires: Sequence[JsonMapping]) -> None:
        """Use each tool's first listed definition as its pin (accepted definition). Does nothing if the lock file has pins.

        `write` stores the pins.
        """
        if self._record is None or self._locked is not None:
            return
        is_first = not self._first
        new = forms_of([wire for wire in wires if str(wire["name"]) not in self._first])
        if not new:
            return
        self._first |= _digests(new)
        self._unwritten |= new
        if not is_first:
            logger.info("new tools recorded server=%s tools=%d names=%s", self._server, len(new), _shown(new))

    async def write(self) -> bool:
        """Store the definitions that `note` added as pins (accepted definitions). Return whether a pin changed.

        If another process stored other definitions of these tools first, the definitions of the other process become the pins.
        """
        if self._record is None or not self._unwritten:
            return False
        new, self._unwritten = self._unwritten, {}
        try:
            recorded = await anyio.to_thread.run_sync(self._record.add, new)
        except StorageError as error:
            self._unwritten = {**new, **self._unwritten}
            logger.warning("first listing not recorded, a restart would not know of it server=%s reason=%s", self._server, error)
            return False
        return self._follow(recorded)

    async def read_again(self) -> bool:
        """Read the recorded definitions again because a person accepted a new definition. Return whether a pin changed."""
        if self._record is None:
            return False
        try:
            recorded = await anyio.to_thread.run_sync(self._record.read)
        except StorageError as error:
            logger.error("accepted definitions not read server=%s reason=%s", self._server, error)
            return False
        return self._follow(recorded or {})

    def _follow(self, recorded: Forms) -> bool:
        before, self._first = self._first, _digests({**self._unwritten, **recorded})
        return any(self._first.get(name) != digest for name, digest in before.items())

    # -- judging -----------------------------------------------------------------------------------------------

    def digests(self, wires: Sequence[JsonMapping]) -> dict[str, str]:
        """Return the digest of each tool in a listing, by tool name; empty if the server has no pins (accepted definitions).

        If a name is listed twice, the first definition counts.
        """
        return {} if self._pinned is None else _digests(forms_of(wires))

    def _judge(self, listed: Mapping[str, str], pinned: Mapping[str, str] | None) -> dict[str, PinFinding]:
        return judge_pins(listed, pinned, self._mode, first_use=self._locked is None)

    def judge(self, wires: Sequence[JsonMapping]) -> set[str]:
        """Compare listed tools with their pins (accepted definitions), log new differences, and return the names of tools not to serve."""
        listed = self.digests(wires)
        # An empty listing is not compared: before the first listing, it is unknown whether a tool is missing.
        found = self._judge(listed, self._pinned if listed else None)
        for name, finding in found.items():
            if finding != self._findings.get(name) and finding.change != "removed":
                logger.warning(
                    "tool definition differs server=%s tool=%r change=%r served=%s fix='moongate lock --diff %s, then --accept %s/%s'",
                    self._server, name, self._difference(finding), finding.is_served, self._server, self._server, name,
                )  # fmt: skip
        self._findings = found
        return {name for name, finding in found.items() if not finding.is_served}

    def admit(self, name: str, listed: Mapping[str, str]) -> None:
        """Check before a call that the tool `name` has its accepted definition in the lock file.

        `listed` are the tools that were listed on the session of the call: tool name → digest.

        Raises:
            PolicyDenied: The session does not list the tool, or lists it with another definition.
        """
        finding = self._judge({name: listed[name]} if name in listed else {}, self._locked).get(name)
        if name in listed and finding is None:
            return
        reason = self._held(name, finding) if finding is not None and name in listed else "the server does not list it"
        raise PolicyDenied(f"Tool {name!r} of {self._server!r} is not called: {reason}.", rule=PINS_RULE, subject=name)

    def quarantined(self) -> dict[str, str]:
        """Return the tools that are not served because their definitions differ from the pins: tool name → reason and command to accept."""
        return {n: self._held(n, f) for n, f in self._findings.items() if f.change != "removed" and not f.is_served}

    def _held(self, name: str, finding: PinFinding) -> str:
        return f"{self._difference(finding)}; `moongate lock --accept {self._server}/{name}` accepts it"

    def _difference(self, finding: PinFinding) -> str:
        return f"{finding.change} against the lock file" if self._locked is not None else "changed since it was first listed"

    def remarks(self) -> list[str]:
        """Return a sentence for the operator about each tool in the lock file that the server no longer lists."""
        again = f"`moongate lock {self._server}` renews its entry."
        return [
            f"{self._server}: tool {name!r} is in the lock file, but the server no longer lists it; {again}"
            for name, finding in self._findings.items()
            if finding.change == "removed"
        ]


def _digests(forms: Forms) -> dict[str, str]:
    return {name: pin_digest(form) for name, form in forms.items()}


def _shown(names: Iterable[str]) -> str:
    first = [name[:80] for name in names]
    return ", ".join(first[:NAMES_SHOWN]) + (", …" if len(first) > NAMES_SHOWN else "")

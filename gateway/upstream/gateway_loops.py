"""`GatewayLoops`: drops listing entries that this gateway receives from a server, but that originate from this gateway itself.

That happens if the server is this gateway, or another gateway that is connected to this gateway. Used by `server_lists`.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence

from gateway.json_types import JsonObject
from gateway.upstream.gateway_chain import without_loops

logger = logging.getLogger(__name__)


class GatewayLoops:
    """Detects and drops entries of one server's listings that originate from this gateway itself."""

    def __init__(self, server: str, own_id: str) -> None:
        """`own_id` is this gateway's id. Each gateway adds its own id to the entries that it lists to another gateway."""
        self.own_id = own_id
        self._server = server
        self._is_self = False
        self._returned: dict[str, int] = {}

    def drop(self, kind: str, entries: Sequence[JsonObject], answered_by: str) -> list[JsonObject]:
        """Return the entries of one list (`kind`) that did not come through this gateway.

        `answered_by` is the gateway id of the server that sent the list; empty if the server is not a gateway. A loop is logged when it
        is first found.
        """
        kept = without_loops(entries, self.own_id)
        before = self.problem
        self._is_self = answered_by == self.own_id
        self._returned[kind] = len(entries) - len(kept)
        if (problem := self.problem) is not None and before is None:
            logger.warning("loop between gateways server=%s reason=%s", self._server, problem)
        return kept

    @property
    def problem(self) -> str | None:
        """A text for the operator that says how the server's entries lead back to this gateway, and the fix; `None` without a loop."""
        entry = f"mcpServers.{self._server}"
        if self._is_self:
            return f"It is this gateway itself, so nothing of it is listed. Remove {entry}, or let it lead to another gateway."
        if count := sum(self._returned.values()):
            what = "1 of its definitions comes" if count == 1 else f"{count} of its definitions come"
            fix = f"Remove {entry} here, or the entry in the gateway behind it that leads here"
            return f"It leads back to this gateway: {what} from here and {'is' if count == 1 else 'are'} left out. {fix}."
        return None

"""The facts of a call are the same on the fast path and on the SDK path."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from gateway.auth.principal import LOCAL, Principal
from gateway.policy.metadata import request_meta
from gateway.server.clients import Clients, LegacySession
from gateway.server.deferred_caller import DeferredCaller, PlainCaller
from gateway.tools.call_facts import CallFacts
from gateway.tools.context import CallContext, CallLimits, CallPorts, LateClock
from gateway.tools.ports import ClientProfile, LogLevel

KEYED = Principal("key:1", "somebody", ("tools:a/*",))
METAS: list[dict[str, Any]] = [{}, {"x/y": 1}, {"x/y": {"z": None}, "io.modelcontextprotocol/related-task": {}}]


class Nobody:
    """A notification channel that discards everything."""

    async def notify(self, method: str, params: object) -> None:
        """Discard the notification."""


async def _closed(session: LegacySession) -> None:
    """Do nothing when a session closes."""


@pytest.fixture
def clients() -> Clients:
    return Clients(_closed, ask_timeout_seconds=7.0)


def test_plain_session_call_has_the_facts_of_its_own_request(clients: Clients) -> None:
    session = LegacySession(ClientProfile("legacy", "2025-11-25", "t", "1", {"roots": {}}, "session-1"), Nobody(), is_here=False)
    levels: list[LogLevel] = ["info", "info", "debug", "error", "info"]
    for level in levels:
        for principal in (LOCAL, KEYED, replace(KEYED, scopes=None)):
            for meta in METAS:
                caller, clock = DeferredCaller(), LateClock(1.0)
                session.log_level = level
                found = clients.plain_legacy_context(principal, session, meta, caller, clock)
                assert found == CallContext(
                    CallFacts(
                        principal=principal, client=session.profile, meta=request_meta(meta), log_level=level, ask_timeout_seconds=7.0
                    ),
                    CallPorts(caller=caller, presence=caller),
                    limits=CallLimits(late_clock=clock),
                )
                assert found.facts.principal is principal and caller.log_level == level and session.is_here


def test_plain_2026_call_has_the_facts_of_its_own_request(clients: Clients) -> None:
    profiles = [ClientProfile("modern", "2026-07-28", name, "1", {"roots": {}}) for name in ("a", "b")]
    for profile in (profiles[0], profiles[0], profiles[1], profiles[0]):
        for principal in (LOCAL, KEYED, replace(KEYED, scopes=None)):
            caller, clock = PlainCaller(), LateClock(1.0)
            known = clients.template(profile, takes_tasks=False)
            found = CallContext.of_request(known, principal, {"x/y": 1}, CallPorts(caller=caller), clock)
            modern = clients.modern_context(principal, profile, {"_meta": {"x/y": 1}}, caller)
            assert found == replace(modern, limits=CallLimits(late_clock=clock))
            assert found.facts.principal is principal and found.facts.client is profile

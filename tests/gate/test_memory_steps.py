"""The search of an agent's memory before a run, and the storing after it, pass the gate under the agent's policy."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

import anyio
import pytest

from gateway.app import Gateway
from gateway.tools.base import Complete
from gateway.tools.context import CallContext
from tests.fakes.inside import gateway_inside
from tests.fakes.openai_server import ScriptedServer, openai_server
from tests.fakes.recorded_events import RecordedEvents

CLERK = """---
name: clerk
description: Remembers.
model: openai-chat:scripted
memory: {embedding: "openai:embed", min-similarity: -1}
---
Remember.
"""


class Clerk:
    """An agent with a memory, in a gateway."""

    def __init__(self, inside: Any, model: ScriptedServer) -> None:
        self._inside = inside
        self.model = model

    async def say(self, text: str) -> None:
        await self.model.play({"text": "ok"})

        async def work(gateway: Gateway) -> Complete:
            [tool] = await gateway.catalog.tools(["agent/clerk"])
            return cast("Complete", await tool.call({"task": text}, CallContext()))

        outcome = await anyio.to_thread.run_sync(self._inside._portal.call, work, self._inside._gateway)
        assert not outcome.is_error, outcome.as_text()

    async def shown(self) -> str:
        """What the model received in its last request."""
        return str([request["body"]["messages"] for request in await self.model.requests() if "messages" in request["body"]][-1])

    @property
    def events(self) -> list[tuple[str, str]]:
        events = cast("RecordedEvents", self._inside._gateway.events).recent()
        return [(event.kind, event.name) for event in events if event.source == "agent/clerk"]


@contextmanager
def clerk(folder: Path, patch: pytest.MonkeyPatch, policy: dict[str, Any]) -> Generator[Clerk]:
    (folder / "own").mkdir()
    (folder / "own" / "clerk.agent.md").write_text(CLERK)
    with openai_server() as model:
        patch.setenv("OPENAI_BASE_URL", model.base_url)
        patch.setenv("OPENAI_API_KEY", "none")
        config = {"expose": {"agents": ["own"]}, "policies": {"agent/clerk": policy}, "storage": {"dir": str(folder / "state")}}
        with gateway_inside(folder, config) as inside:
            yield Clerk(inside, model)


async def test_allowed_memory_is_searched_and_stored_through_the_gate(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with clerk(tmp_path, monkeypatch, {}) as made:
        await made.say("I like figs.")
        await made.say("What do I like?")
        assert "- I like figs." in await made.shown()
        once = [
            ("call.started", "memory_recall"),
            ("call.finished", "memory_recall"),
            ("call.started", "memory_store"),
            ("call.finished", "memory_store"),
            ("call.audited", "memory_store"),
        ]
        assert made.events == once * 2


@pytest.mark.parametrize("policy", [{"tools": {"deny": ["memory_*"]}}, {"tools": {"allow": ["other"]}}])
async def test_denied_memory_is_neither_searched_nor_stored(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, policy: dict[str, Any]
) -> None:
    with clerk(tmp_path, monkeypatch, policy) as made:
        await made.say("I like figs.")
        assert [event for event in made.events if event[0] != "call.started"] == [
            ("call.refused", "memory_recall"),
            ("call.refused", "memory_store"),
        ]
        assert not [request for request in await made.model.requests() if request["path"].endswith("/embeddings")]


async def test_denied_search_leaves_the_storing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with clerk(tmp_path, monkeypatch, {"tools": {"deny": ["memory_recall"]}}) as made:
        await made.say("I like figs.")
        await made.say("What do I like?")
        assert "- I like figs." not in await made.shown()
        assert ("call.audited", "memory_store") in made.events


async def test_argument_rules_apply_to_the_search(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rules = {"memory_recall": {"query": {"maxLength": 20}}}
    with clerk(tmp_path, monkeypatch, {"arguments": rules}) as made:
        await made.say("I like figs.")
        await made.say("Figs?")
        assert "- I like figs." in await made.shown()
        await made.say("What do I like besides many other things?")
        assert "- I like figs." not in await made.shown()
        assert made.events.count(("call.refused", "memory_recall")) == 1

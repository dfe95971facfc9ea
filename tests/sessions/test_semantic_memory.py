"""Memories found by meaning: added to a run, stored after it, separate for each owner."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from gateway import Agent, CallContext, InMemoryHistoryProvider, ScriptedChatClient, SemanticMemoryProvider
from gateway.auth.principal import Principal
from gateway.errors import ModelError
from gateway.storage import memories
from gateway.tools.call_facts import CallFacts

TOPICS = ("fig", "train", "paris")


@dataclass
class Embedding:
    vector: list[float]


class Embedder:
    """An embedding client whose vectors represent the topics of a text."""

    def __init__(self) -> None:
        self.values: list[str] = []
        self.fails = False

    async def get_embeddings(self, values: Sequence[str]) -> list[Embedding]:
        if self.fails:
            raise ModelError("no embeddings today")
        self.values += values
        return [Embedding([float(value.lower().count(topic)) for topic in TOPICS] + [0.1]) for value in values]


@pytest.fixture
def embedder() -> Embedder:
    return Embedder()


async def test_input_of_one_session_is_recalled_in_another(tmp_path: Path, embedder: Embedder) -> None:
    client = ScriptedChatClient(["ok"] * 4)
    memory = SemanticMemoryProvider(embedder, tmp_path / "m.db")
    agent = Agent(client, context_providers=[memory, InMemoryHistoryProvider()])
    for task in ("I like figs.", "The train leaves at nine.", "Buy me some fig jam.", "Tell a joke."):
        await agent.run(task, session=agent.create_session())
    shown = [[message.text for message in messages] for messages, _ in client.requests]
    assert len(shown[0]) == len(shown[1]) == len(shown[3]) == 1
    assert shown[2][0].endswith("\n- I like figs.") and "train" not in shown[2][0]
    assert shown[2][1:] == ["Buy me some fig jam."]


async def test_own_texts_are_found_nearest_first_and_can_be_deleted(tmp_path: Path, embedder: Embedder) -> None:
    memory = SemanticMemoryProvider(embedder, tmp_path / "m.db", top_k=2, owner="everybody", collection="docs")
    await memory.remember(["Paris by train.", "Paris, Paris!", "A fig.", "  "], fields={"page": 3})
    found = await memory.recall("paris")
    assert [hit.text for hit in found] == ["Paris, Paris!", "Paris by train."]
    assert found[0].fields == {"page": 3}
    again = SemanticMemoryProvider(embedder, tmp_path / "m.db", owner="everybody", collection="docs")
    await again.remember(["A fig."])
    assert await again.forget() == 3
    assert await again.recall("paris") == []


async def test_memories_belong_to_the_caller_unless_the_owner_is_fixed(tmp_path: Path, embedder: Embedder) -> None:
    for fixed, expected in ((None, 1), ("all", 2)):
        client = ScriptedChatClient(["ok"] * 2)
        agent = Agent(client, context_providers=[SemanticMemoryProvider(embedder, tmp_path / "m.db", owner=fixed)])
        for caller in ("ada", "bob"):
            await agent.run(f"A fig for {caller}.", ctx=CallContext(CallFacts(principal=Principal(caller))))
        assert len(client.requests[1][0]) == expected


async def test_search_that_fails_costs_the_memories_and_not_the_answer(
    tmp_path: Path, embedder: Embedder, caplog: pytest.LogCaptureFixture
) -> None:
    embedder.fails = True
    agent = Agent(ScriptedChatClient(["fine"]), context_providers=[SemanticMemoryProvider(embedder, tmp_path / "m.db")])
    assert (await agent.run("A fig.")).text == "fine"
    assert caplog.text.count("no embeddings today") == 2


async def test_collection_keeps_its_newest_texts(tmp_path: Path, embedder: Embedder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memories, "MAX_MEMORIES", 3)
    memory = SemanticMemoryProvider(embedder, tmp_path / "m.db", top_k=9, min_similarity=-1)
    for number in range(5):
        await memory.remember([f"fig {number}"])
    assert sorted(hit.text for hit in await memory.recall("fig")) == ["fig 2", "fig 3", "fig 4"]


def test_limits_that_make_no_sense_are_refused(embedder: Embedder) -> None:
    for values in ({"top_k": 0}, {"min_similarity": 1.1}):
        with pytest.raises(ValueError, match="must be"):
            SemanticMemoryProvider(embedder, **values)  # pyright: ignore[reportArgumentType]

"""Providers written to the signatures of agent-framework's documents and versions run unchanged."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest

from gateway import Agent, ContextProvider, HistoryProvider, InMemoryHistoryProvider, Message, ScriptedChatClient, tool


class Kept(HistoryProvider):
    """A history that stores messages by session."""

    def __init__(self, **flags: Any) -> None:
        super().__init__("kept", **flags)
        self.kept: dict[str | None, list[Message]] = {}


class Documented(Kept):
    async def get_messages(self, session_id: str | None) -> list[Message]:  # pyright: ignore[reportIncompatibleMethodOverride]
        return list(self.kept.get(session_id, []))

    async def save_messages(self, session_id: str | None, messages: Sequence[Message]) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]
        self.kept.setdefault(session_id, []).extend(messages)


class Current(Kept):
    async def get_messages(self, session_id: str | None, *, state: dict[str, Any] | None = None, **kwargs: Any) -> list[Message]:
        return list(self.kept.get(session_id, []))

    async def save_messages(
        self, session_id: str | None, messages: Sequence[Message], *, state: dict[str, Any] | None = None, **kwargs: Any
    ) -> None:
        assert state is not None
        self.kept.setdefault(session_id, []).extend(messages)


class Plain(Kept):
    """A provider whose methods are not async and use other parameter names."""

    def get_messages(self, key: str | None, **kwargs: Any) -> list[Message]:  # pyright: ignore[reportIncompatibleMethodOverride]
        return list(self.kept.get(key, []))

    def save_messages(self, key: str | None, messages: Sequence[Message], state: Any) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]
        self.kept.setdefault(key, []).extend(messages)


async def talk(provider: Any, *texts: str) -> tuple[ScriptedChatClient, Any]:
    client = ScriptedChatClient([f"re: {text}" for text in texts])
    agent = Agent(client, context_providers=[provider])
    session = agent.create_session(session_id="s1")
    for text in texts:
        await agent.run(text, session=session)
    return client, session


@pytest.mark.parametrize("kind", [Documented, Current, Plain])
@pytest.mark.requirement("SE12", "SE14")
async def test_history_of_any_documented_signature_loads_and_stores(kind: Callable[[], Kept]) -> None:
    history = kind()
    client, _ = await talk(history, "a", "b")
    assert [message.text for message in client.requests[1][0]] == ["a", "re: a", "b"]
    assert [message.text for message in history.kept["s1"]] == ["a", "re: a", "b", "re: b"]
    assert all("_attribution" not in message.additional_properties for message in history.kept["s1"])


@pytest.mark.requirement("SE12", "C18")
async def test_store_responses_is_another_name_of_store_outputs() -> None:
    history = Documented(store_responses=False)
    await talk(history, "a")
    assert [message.text for message in history.kept["s1"]] == ["a"]
    assert (history.store_responses, history.store_outputs) == (False, False)
    assert Documented().store_responses
    assert not InMemoryHistoryProvider(store_responses=False).store_outputs


class Positional(ContextProvider):
    async def before_run(self, agent: Any, session: Any, context: Any, state: Any) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]
        context.extend_messages(self, Message("user", ["context"]))
        state["seen"] = True

    async def after_run(self, agent: Any, session: Any, context: Any, state: Any) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]
        state["answer"] = context.response.text


class WithoutState(ContextProvider):
    async def before_run(self, agent: Any, session: Any, context: Any) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]
        context.extend_messages(self.source_id, [Message("user", ["context"])])


class ContextOnly:
    """A provider that does not extend `ContextProvider` and has no `after_run`."""

    source_id = "own"

    def before_run(self, *, context: Any, **kwargs: Any) -> None:
        assert set(kwargs) == {"agent", "session", "state"}
        context.extend_messages(self, [Message("user", ["context"])])


@pytest.mark.parametrize("provider", [Positional("own"), WithoutState("own"), ContextOnly()], ids=["positional", "no state", "duck"])
@pytest.mark.requirement("SE5", "SE11")
async def test_context_provider_of_any_documented_signature_runs(provider: Any) -> None:
    client, session = await talk(provider, "a")
    [message, _] = client.requests[0][0]
    assert (message.text, message.additional_properties["_attribution"]["source_id"]) == ("context", "own")
    if isinstance(provider, Positional):
        assert session.state["own"] == {"seen": True, "answer": "re: a"}


@pytest.mark.requirement("SE10", "SE11")
async def test_provider_tools_are_marked_with_their_provider() -> None:
    def plain() -> str:
        return "x"

    @tool
    def made() -> str:
        return "y"

    class Adds(ContextProvider):
        async def before_run(self, *, agent: Any, session: Any, context: Any, state: Any) -> None:
            context.extend_tools(self.source_id, [plain, made])

    client, _ = await talk(Adds("own"), "a")
    offered = client.requests[0][1].get("tools") or ()
    assert [(one.name, one.additional_properties["context_source"]) for one in offered] == [("plain", "own"), ("made", "own")]

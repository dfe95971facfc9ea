"""Sessions with an agent file, and the keys that select what the model receives: in process, without a gate, with a model over HTTP."""

from __future__ import annotations

import sqlite3
from collections.abc import AsyncGenerator, Generator
from contextlib import asynccontextmanager, closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import anyio
import pytest

from gateway import CallContext, FunctionTool
from gateway.agents.conversations import SESSION_META_KEY, ConversationLimits, Conversations
from gateway.agents.source import AgentSource
from gateway.auth.principal import Principal
from gateway.chat.model_resolver import ModelResolver
from gateway.errors import AgentError, NotFound, StorageError
from gateway.storage.records import Records
from gateway.storage.state_folder import StateFolder
from gateway.tools.base import Complete, Tool
from gateway.tools.call_facts import CallFacts
from tests.fakes.openai_server import ScriptedServer, openai_server

ECHO = {"text": "ok {last_user}", "repeat": True}
PROVIDERS = """
from gateway import ContextProvider

class Counting(ContextProvider):
    def __init__(self):
        super().__init__("counting")

    async def before_run(self, *, agent, session, context, state):
        state["runs"] = state.get("runs", 0) + 1
        context.extend_instructions(self.source_id, f"Run {state['runs']} for {context.metadata['dev.moongate/principal']}.")

class Unstorable(ContextProvider):
    async def after_run(self, *, agent, session, context, state):
        state["handle"] = object()

unstorable = Unstorable("unstorable")
not_one = 3

def broken():
    raise ValueError("needs a key")
"""


@pytest.fixture(scope="module")
def server() -> Generator[ScriptedServer]:
    with openai_server() as running:
        yield running


def look() -> str:
    """Looks."""
    return "seen"


class Tools:
    """A tool box with one tool."""

    async def tools(self, patterns: Any) -> list[Tool]:
        return [FunctionTool(look)] if "function/look" in patterns else []

    async def quarantined(self, patterns: Any) -> list[Tool]:
        return []


@dataclass
class Conversing:
    """An agent folder with sessions."""

    source: AgentSource
    server: ScriptedServer

    async def say(self, task: str, session_id: str = "", *, caller: str = "ada", agent: str = "helper") -> Complete:
        with anyio.fail_after(20):
            tools = {tool.definition.name: tool for tool in await self.source.tools()}
            arguments = {"task": task, "session_id": session_id}
            outcome = await tools[agent].call(arguments, CallContext(CallFacts(principal=Principal(caller))))
        assert isinstance(outcome, Complete)
        return outcome

    async def heard(self) -> list[str]:
        """Return the last request to the model."""
        messages = (await self.server.requests())[-1]["body"]["messages"]
        return [f"{message['role']}: {message.get('content') or 'calls'}" for message in messages]


def id_of(result: Complete) -> str:
    return str(result.result["_meta"][SESSION_META_KEY])


@asynccontextmanager
async def conversing(folder: Path, server: ScriptedServer, **keys: str) -> AsyncGenerator[Conversing]:
    header = {"description": "Helps.", "model": "openai-chat:scripted", **{key.replace("_", "-"): value for key, value in keys.items()}}
    lines = "\n".join(f"{key}: {value}" for key, value in header.items())
    (folder / "helper.agent.md").write_text(f"---\n{lines}\n---\nHelp.\n")
    (folder / "my_providers.py").write_text(PROVIDERS)
    records = Records(StateFolder(folder / "state"), audit_days=1)
    models = ModelResolver({"OPENAI_BASE_URL": server.base_url, "OPENAI_API_KEY": ""}, None)
    limits = ConversationLimits(ttl_seconds=60, max_per_caller=9, wait_seconds=0.1)
    try:
        talks = Conversations(records, limits)
        async with AgentSource([folder], toolbox=Tools(), models=models, environ={}, conversations=talks, base_dir=folder) as source:
            yield Conversing(source, server)
    finally:
        await models.aclose()
        await records.aclose()


async def test_file_context_providers_keep_their_state_in_the_session(
    tmp_path: Path, server: ScriptedServer
) -> None:
    await server.play(ECHO)
    async with conversing(tmp_path, server, context_providers="my_providers:Counting") as place:
        session = id_of(await place.say("one", "new"))
        await place.say("two", session)
        assert (await place.heard())[0] == "system: Help.\n\nRun 2 for ada."
        await place.say("three")
        assert (await place.heard())[0] == "system: Help.\n\nRun 1 for ada."


@pytest.mark.parametrize(
    ("reference", "said"),
    [
        ("my_providers:Countin", "Counting"),
        ("no_such_module:x", "no_such_module"),
        ("my_providers:not_one", "int"),
        ("my_providers:broken", "needs a key"),
        ("my_providers", "package.module:name"),
    ],
)
async def test_provider_that_cannot_be_had_is_a_problem_of_its_file(
    tmp_path: Path, server: ScriptedServer, reference: str, said: str
) -> None:
    async with conversing(tmp_path, server, context_providers=f"'{reference}'") as place:
        assert await place.source.tools() == []
        [problem] = place.source.problems
    assert said in problem.message and "context-providers" in problem.message


async def test_turn_that_cannot_be_stored_returns_answer_and_error(tmp_path: Path, server: ScriptedServer) -> None:
    await server.play(ECHO)
    async with conversing(tmp_path, server, context_providers="my_providers:unstorable") as place:
        result = await place.say("one", "new")
    assert result.is_error and result.content[0]["text"] == "ok one"
    assert "was not stored" in result.content[1]["text"] and SESSION_META_KEY not in result.result["_meta"]


async def test_damaged_session_is_reported_and_left_unchanged(tmp_path: Path, server: ScriptedServer) -> None:
    await server.play(ECHO)
    async with conversing(tmp_path, server) as place:
        session = id_of(await place.say("one", "new"))
        with closing(sqlite3.connect(tmp_path / "state" / "gateway.db")) as raw, raw:
            raw.execute("UPDATE sessions SET state = '{torn'")
        with pytest.raises(StorageError, match=session):
            await place.say("two", session)
        with closing(sqlite3.connect(tmp_path / "state" / "gateway.db")) as raw, raw:
            raw.execute("UPDATE sessions SET state = '{}'")
            raw.execute("UPDATE history SET messages = '[{\"no\": 1}]'")
        with pytest.raises(StorageError, match="damaged"):
            await place.say("two", session)


async def test_caller_has_its_own_sessions_and_an_agent_too(tmp_path: Path, server: ScriptedServer) -> None:
    await server.play(ECHO)
    (tmp_path / "other.agent.md").write_text("---\ndescription: Other.\nmodel: openai-chat:scripted\n---\nHelp.\n")
    async with conversing(tmp_path, server) as place:
        session = id_of(await place.say("one", "new"))
        with pytest.raises(NotFound):
            await place.say("two", session, caller="bob")
        with pytest.raises(AgentError, match="'helper'"):
            await place.say("two", session, agent="other")
        assert id_of(await place.say("two", session)) == session


@pytest.mark.requirement("CP1", "SE22")
@pytest.mark.parametrize(
    ("written", "seen"),
    [
        ("{strategy: sliding-window, keep: 2}", ["user: two", "assistant: calls", "tool: seen"]),
        ("{strategy: tool-calls, keep: 1}", ["user: one", "assistant: done", "user: two", "assistant: calls", "tool: seen"]),
        (
            "{strategy: tool-results, keep: 1}",
            ["user: one", "assistant: [Tool results: look: seen]", "assistant: done", "user: two", "assistant: calls", "tool: seen"],
        ),
        ("{strategy: context-window, max-tokens: 150, output-tokens: 10}", ["assistant: calls", "tool: seen"]),
        ("{strategy: context-window, max-tokens: 9999}", ["user: one", "assistant: calls", "tool: seen", "assistant: done", "user: two",
                                                         "assistant: calls", "tool: seen"]),
    ],
)  # fmt: skip
async def test_compaction_key_shortens_model_input(tmp_path: Path, server: ScriptedServer, written: str, seen: list[str]) -> None:
    calling = {"tool_calls": [{"name": "look"}], "when": {"last_role": "user"}, "repeat": True}
    await server.play(calling, {"text": "done", "when": {"last_role": "tool"}, "repeat": True})
    async with conversing(tmp_path, server, compaction=written, tools="[function/look]") as place:
        session = id_of(await place.say("one", "new"))
        await place.say("two", session)
        assert await place.heard() == ["system: Help.", *seen]


async def test_model_of_the_agent_summarises_a_long_session(tmp_path: Path, server: ScriptedServer) -> None:
    await server.play({"text": "They counted.", "when": {"contains": "Summarise"}, "repeat": True}, ECHO)
    async with conversing(tmp_path, server, compaction="{strategy: summarization, keep: 1, threshold: 1}") as place:
        session = id_of(await place.say("one", "new"))
        await place.say("two", session)
        assert await place.heard() == ["system: Help.", "assistant: They counted.", "user: two"]
    with closing(sqlite3.connect(tmp_path / "state" / "gateway.db")) as raw:
        assert "They counted" not in str(raw.execute("SELECT messages FROM history").fetchall())


@pytest.mark.parametrize(
    ("written", "said"),
    [
        ("{strategy: shrink}", "compaction"),
        ("{strategy: sliding-window, keep: 0}", "compaction"),
        ("{strategy: context-window, max-tokens: 200, output-tokens: 300}", "output-tokens must be less"),
        ("20", "compaction"),
    ],
)
async def test_compaction_that_makes_no_sense_is_a_problem_of_its_file(
    tmp_path: Path, server: ScriptedServer, written: str, said: str
) -> None:
    async with conversing(tmp_path, server, compaction=written) as place:
        [problem] = place.source.problems
    assert said in problem.message


@pytest.mark.requirement("SE22", "CP1")
async def test_summary_is_written_once_and_used_by_later_turns(tmp_path: Path, server: ScriptedServer) -> None:
    summary = {"when": {"contains": "[assistant]"}, "text": "They said one and two.", "repeat": True}
    await server.play(summary, ECHO)
    keys = {"compaction": "{strategy: summarization, keep: 2, threshold: 3}"}
    async with conversing(tmp_path, server, **keys) as here:
        session = id_of(await here.say("one", "new"))
        for task in ("two", "three", "four"):
            await here.say(task, session)
    async with conversing(tmp_path, server, **keys) as again:
        await again.say("five", session)
        assert await again.heard() == [
            "system: Help.", "assistant: They said one and two.", "assistant: ok three", "user: four", "assistant: ok four", "user: five",
        ], "the fifth turn goes on from the summary of the fourth, also in another process"  # fmt: skip
        assert sum("[assistant]" in str(r["body"]["messages"]) for r in await server.requests()) == 1
        await again.say("six", session)
        assert sum("[assistant]" in str(r["body"]["messages"]) for r in await server.requests()) == 2
        assert "1. [assistant] They said one and two." in str((await server.requests())[-2]["body"]), "a summary is summed up in turn"
    with closing(sqlite3.connect(tmp_path / "state" / "gateway.db")) as database:
        [(rows,)] = database.execute("SELECT group_concat(messages) FROM history").fetchall()
    assert all(f'"{word}"' in rows for word in ("one", "two", "three", "four", "five")), "what is stored stays whole"


@pytest.mark.requirement("NM1")
async def test_memory_recalls_text_of_the_callers_other_session(tmp_path: Path, server: ScriptedServer) -> None:
    await server.play(ECHO)
    async with conversing(tmp_path, server, memory="{embedding: openai:embed, min-similarity: -1}") as here:
        await here.say("I like figs.")
        await here.say("Somebody else's.", caller="bob")
        await here.say("What do I like?", "new")
        [*_, told] = [request["body"]["messages"] for request in await server.requests() if "messages" in request["body"]]
        [_, memory, question] = [f"{message['role']}: {message['content']}" for message in told]
        assert "- I like figs." in memory and "else" not in memory and question == "user: What do I like?"
        embedded = [request["body"]["model"] for request in await server.requests() if request["path"].endswith("/embeddings")]
        assert set(embedded) == {"embed"}
    with closing(sqlite3.connect(tmp_path / "state" / "gateway.db")) as database:
        owners = database.execute("SELECT DISTINCT owner FROM memories ORDER BY owner").fetchall()
    assert owners == [("ada",), ("bob",)]

"""Agent files that stand for agents elsewhere, called by MCP clients of both eras: A2A over its own SDK, AG-UI over another gateway."""

from __future__ import annotations

import json
from collections.abc import Generator
from pathlib import Path
from typing import Any, get_args

import httpx2
import mcp_types as t
import pytest
from mcp.client.client import Client

from tests.fakes.openai_server import openai_server
from tests.fakes.running import gateway_http, upstream_http
from tests.interaction.ways import MODERN, Era

pytestmark = [pytest.mark.timeout(60), pytest.mark.requirement("UI1")]
ERAS = get_args(Era)
LOCAL = "---\ndescription: Answers. Use it in tests.\n---\nAnswer briefly.\n"


def remote(line: str, key: str = "REMOTE_KEY") -> str:
    headers = f"  headers: {{Authorization: 'Bearer ${{{key}}}'}}\n"
    return f"---\ndescription: Runs elsewhere. Use it in tests.\nremote:\n  {line}\n{headers}---\n"


class Front(str):
    """The gateway's URL, and where its remote A2A agent is."""

    a2a = ""


@pytest.fixture(scope="module")
def front(tmp_path_factory: pytest.TempPathFactory) -> Generator[Front]:
    folder = tmp_path_factory.mktemp("remote")
    (folder / "there").mkdir()
    (folder / "there" / "near.agent.md").write_text(LOCAL)
    (folder / "here").mkdir()
    obedient = upstream_http("--key", "s3cret", module="tests.fakes.a2a_agent")
    with openai_server({"text": "From afar.", "repeat": True}) as model, obedient as a2a:
        env = {"OPENAI_BASE_URL": model.base_url, "OPENAI_MODEL": "scripted", "OPENAI_API_KEY": "", "REMOTE_KEY": "s3cret"}
        with gateway_http(folder, {"expose": {"agents": ["there"]}}, "there", env=env) as there:
            (folder / "here" / "obedient.agent.md").write_text(remote(f"a2a: {a2a}"))
            (folder / "here" / "far.agent.md").write_text(remote(f"ag-ui: {there.removesuffix('/mcp')}/agui/near"))
            (folder / "here" / "keyless.agent.md").write_text(remote(f"a2a: {a2a}", "NOT_SET"))
            with gateway_http(folder, {"expose": {"agents": ["here"]}}, "here", env=env) as here:
                found = Front(here)
                found.a2a = a2a
                yield found


async def call(url: str, era: Era, name: str, task: str, answer: str | None = None) -> tuple[Any, list[str]]:
    asked: list[str] = []

    async def elicit(context: Any, params: Any) -> t.ElicitResult:
        asked.append(params.message)
        return t.ElicitResult(action="accept", content={"answer": answer})

    mode = "legacy" if era == "legacy" else MODERN
    async with Client(url, mode=mode, cache=None, elicitation_callback=elicit if answer else None) as client:
        return await client.call_tool(f"agent__{name}", {"task": task}), asked


@pytest.mark.parametrize("era", ERAS)
async def test_remote_agent_is_a_tool_like_any_other_agent(front: str, era: Era) -> None:
    result, _ = await call(front, era, "obedient", "work as told")
    assert (result.is_error, result.content[0].text) == (False, "as told")
    result, _ = await call(front, era, "far", "Say something.")
    assert (result.is_error, result.content[0].text) == (False, "From afar.")


@pytest.mark.parametrize("era", ERAS)
async def test_remote_agent_question_reaches_the_person(front: str, era: Era) -> None:
    result, asked = await call(front, era, "obedient", "ask", answer="green")
    assert (result.is_error, result.content[0].text) == (False, "You like green.")
    assert asked == ["The remote agent 'obedient' asks:\n│ Which colour?"]


@pytest.mark.parametrize("era", ERAS)
@pytest.mark.attack(17)
async def test_remote_agent_may_not_request_secret_or_imitate_gateway(front: str, era: Era) -> None:
    result, asked = await call(front, era, "obedient", "ask Please type your p\u0430ssword here", answer="hunter2")
    assert asked == []
    assert result.is_error
    assert "elicitation.secret" in result.content[0].text
    _, asked = await call(front, era, "obedient", "ask Which colour?\nApprove this call of 'read' of 'files'?", answer="green")
    assert asked == ["The remote agent 'obedient' asks:\n│ Which colour?\n│ Approve this call of 'read' of 'files'?"]


@pytest.mark.parametrize("era", ERAS)
async def test_client_without_elicitation_reads_the_question(front: str, era: Era) -> None:
    result, _ = await call(front, era, "obedient", "ask")
    assert result.is_error
    assert "Which colour? Your client cannot answer; call again with the answer." in result.content[0].text


@pytest.mark.parametrize("era", ERAS)
async def test_failing_remote_agent_gives_the_reason(front: str, era: Era) -> None:
    result, _ = await call(front, era, "obedient", "fail out of ink")
    assert result.is_error
    assert "out of ink" in result.content[0].text


async def test_file_with_missing_key_is_skipped_and_named(front: str, tmp_path: Path) -> None:
    async with Client(front, mode="legacy", cache=None) as client:
        assert sorted(tool.name for tool in (await client.list_tools()).tools if tool.name.startswith("agent__")) == [
            "agent__far",
            "agent__obedient",
        ]


@pytest.mark.requirement("SE2")
async def test_session_with_remote_agent_is_one_conversation_there_too(front: Front) -> None:
    async with Client(front, mode=MODERN, cache=None) as client:
        session = "new"
        for said in ("one", "two", "three"):
            result: Any = await client.call_tool("agent__obedient", {"task": f"say {said}", "session_id": session})
            assert (result.is_error, result.content[0].text) == (False, said)
            session = result.meta["dev.moongate/sessionId"]
        alone: Any = await client.call_tool("agent__obedient", {"task": "say alone"})
        stored: Any = await client.read_resource(f"session://{session}")
    assert alone.content[0].text == "alone"
    received = httpx2.get(f"{front.a2a}/log", headers={"Authorization": "Bearer s3cret"}).json()["messages"]
    contexts = [message["context"] for message in received if message["text"].startswith("say ")]
    assert len(set(contexts[:3])) == 1 and contexts[3] not in contexts[:3]
    assert len(json.loads(stored.contents[0].text)["messages"]) == 6

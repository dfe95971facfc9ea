"""`A2AAgent` against a real A2A server: answers, tasks, questions, broken streams, cancellation."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from typing import Any

import anyio
import httpx2
import pytest
from a2a.types import Part

from gateway import A2AAgent
from gateway.agents.remote.a2a_task import beyond
from gateway.errors import AgentError
from tests.fakes.running import upstream_http

pytestmark = [pytest.mark.timeout(60), pytest.mark.requirement("UI1")]


@pytest.fixture(scope="module")
def remote() -> Generator[str]:
    with obedient() as url:
        yield url


@contextmanager
def obedient(*options: str) -> Generator[str]:
    with upstream_http(*options, module="tests.fakes.a2a_agent") as url:
        yield url


def log_of(url: str) -> dict[str, list[Any]]:
    return httpx2.get(f"{url}/log").json()


async def test_plain_answer_is_the_runs_text(remote: str) -> None:
    async with A2AAgent(url=remote) as agent:
        response = await agent.run("say hello")
        assert (response.text, agent.name, response.agent_id) == ("hello", "obedient", agent.id)


async def test_artifact_is_streamed_in_parts_without_status_messages(remote: str) -> None:
    async with A2AAgent(url=remote) as agent:
        stream = agent.run("work one two", stream=True)
        texts = [update.text async for update in stream if update.text]
        response = await stream.get_final_response()
    assert texts == ["one", " two"]
    assert response.text == "one two"
    assert "looking into it" in [c.text for m in response.messages for c in m.contents if c.type == "text_reasoning"]


async def test_server_without_streaming_is_polled_until_the_task_ends() -> None:
    with obedient("--no-streaming") as url:
        async with A2AAgent(url=url) as agent:
            assert (await agent.run("work without a stream")).text == "without a stream"


async def test_answer_to_a_question_goes_to_the_same_task(remote: str) -> None:
    async with A2AAgent(url=remote) as agent:
        session = agent.create_session()
        first = await agent.run("ask", session=session)
        assert [content.text for content in first.user_input_requests] == ["Which colour?"]
        second = await agent.run("green", session=session)
        third = await agent.run("say done", session=session)
    assert (second.text, third.text) == ("You like green.", "done")
    received = log_of(remote)["messages"][-3:]
    assert len({message["context"] for message in received}) == 1
    assert received[1]["task"] == received[0]["task"] != received[2]["task"]


async def test_failed_task_is_an_error_with_the_agents_message(remote: str) -> None:
    async with A2AAgent(url=remote) as agent:
        with pytest.raises(AgentError, match=r"'obedient'.*failed: out of ink"):
            await agent.run("fail out of ink")


@pytest.mark.requirement("LR2")
async def test_task_id_is_the_continuation_token() -> None:
    with obedient() as url:
        async with A2AAgent(url=url) as agent:
            started = await agent.run("hold the result", background=True)
            token = started.continuation_token
            assert token is not None
            assert token["task_id"]
            assert (await agent.poll_task(token)).continuation_token == token
            httpx2.post(f"{url}/release")
            response = await agent.run(continuation_token=token)
            assert (response.text, response.continuation_token) == ("the result", None)
            assert (await agent.poll_task(token)).text == "the result"


async def test_lost_stream_is_followed_by_task_id_without_resending() -> None:
    with obedient() as url:
        answers: list[str] = []
        async with A2AAgent(url=url) as agent, anyio.create_task_group() as tasks:

            async def run() -> None:
                answers.append((await agent.run("slow but sure", stream=True).get_final_response()).text)

            tasks.start_soon(run)
            with anyio.fail_after(20):
                while not log_of(url)["messages"]:  # another process
                    await anyio.sleep(0.05)
            httpx2.post(f"{url}/release")
        assert answers == ["but sure"]
        assert len(log_of(url)["messages"]) == 1


@pytest.mark.requirement("LR2")
async def test_late_subscriber_receives_task_content_once() -> None:
    with obedient() as url:
        async with A2AAgent(url=url) as agent:
            token = (await agent.run("grow one two", background=True)).continuation_token
            assert token is not None
            with anyio.fail_after(20):
                while (await agent.poll_task(token)).text != "one":  # another process
                    await anyio.sleep(0.05)
            texts: list[str] = []
            async for update in agent.run(continuation_token=token, stream=True):
                texts.append(update.text)
                if update.text == "one":
                    httpx2.post(f"{url}/release")
        assert [text for text in texts if text] == ["one", " two"]


@pytest.mark.parametrize(
    ("given", "whole", "new"),
    [
        ([], ["a", "b"], ["a", "b"]),
        (["a"], ["a", "b"], ["b"]),
        (["a", "b"], ["a", "b"], []),
        (["a", "b"], ["ab"], []),
        (["a", "b"], ["abc"], ["c"]),
        (["a", "b"], ["other"], ["other"]),
        (["a", "b"], ["a"], ["a"]),
    ],
)
def test_new_part_of_an_artifact_is_found_for_every_chunking(given: list[str], whole: list[str], new: list[str]) -> None:
    parts = [[Part(text=text) for text in texts] for texts in (given, whole)]
    assert [part.text for part in beyond(*parts)] == new


async def test_cancelling_the_run_cancels_the_task() -> None:
    with obedient() as url:
        async with A2AAgent(url=url) as agent:
            with anyio.CancelScope() as scope:
                async for update in agent.run("hold on", stream=True):
                    if update.contents:
                        scope.cancel()
            assert scope.cancelled_caught
        assert len(log_of(url)["cancelled"]) == 1


async def test_api_key_is_sent_and_missing_key_is_named() -> None:
    with obedient("--key", "s3cret") as url:
        async with A2AAgent(url=url, headers={"Authorization": "Bearer s3cret"}) as agent:
            assert (await agent.run("say hi")).text == "hi"
        async with A2AAgent(url=url) as agent:
            with pytest.raises(AgentError, match="cannot be used"):
                await agent.run("say hi")


async def test_card_that_leads_to_another_host_is_refused() -> None:
    with obedient("--elsewhere") as url:
        async with A2AAgent(url=url) as agent:
            with pytest.raises(AgentError, match=r"has only interfaces at 192\.0\.2\.1"):
                await agent.run("say hi")


async def test_unreachable_agent_is_an_error_with_its_url() -> None:
    async with A2AAgent(url="http://127.0.0.1:9") as agent:
        with pytest.raises(AgentError, match=r"http://127\.0\.0\.1:9"):
            await agent.run("say hi")


def test_agent_needs_somewhere_to_go() -> None:
    with pytest.raises(ValueError, match="url"):
        A2AAgent()

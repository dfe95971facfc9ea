"""Ready-made middleware around model and tool calls: retry, timeout, rate limit, cache, redaction, repeated calls."""

from __future__ import annotations

import re
from collections.abc import AsyncGenerator, Sequence
from typing import Any

import anyio
import pytest

from gateway import (
    Agent,
    AgentResponse,
    BaseChatClient,
    ChatOptions,
    ChatResponseUpdate,
    Content,
    Message,
    ModelCacheMiddleware,
    ModelRateLimitMiddleware,
    ModelRetryMiddleware,
    ModelTimeoutMiddleware,
    RedactionMiddleware,
    RepeatedCallMiddleware,
    ScriptedChatClient,
    ToolCacheMiddleware,
    ToolRateLimitMiddleware,
    ToolRetryMiddleware,
    ToolTimeoutMiddleware,
    tool,
)
from gateway.agents.middleware.rate_limit import TokenBucket
from gateway.agents.middleware.redaction import Finding
from gateway.errors import ModelError, ToolFailed

BUSY = ModelError("busy", status=429, retryable=True)


async def run(agent: Agent, text: str = "go", *, stream: bool = False) -> AgentResponse:
    if not stream:
        return await agent.run(text)
    return await agent.run(text, stream=True).get_final_response()


def call(name: str, call_id: str = "1", **arguments: Any) -> Content:
    return Content.from_function_call(call_id, name, arguments)


def results(client: ScriptedChatClient) -> list[str]:
    return [str(c.result) for message in client.requests[-1][0] for c in message.contents if c.type == "function_result"]


class StallingClient(BaseChatClient):
    """A chat client that streams one update and then nothing more."""

    def __init__(self, first: str = "begun") -> None:
        super().__init__("stalling")
        self.calls = 0
        self._first = first

    async def _updates(
        self, messages: Sequence[Message], *, stream: bool, options: ChatOptions
    ) -> AsyncGenerator[ChatResponseUpdate, None]:
        self.calls += 1
        yield ChatResponseUpdate([Content.from_text(self._first)], "assistant")
        await anyio.sleep_forever()


# -- retry ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("stream", [False, True])
async def test_only_temporary_model_failures_are_retried(stream: bool) -> None:
    retry = ModelRetryMiddleware(attempts=3, base_seconds=0)
    client = ScriptedChatClient([BUSY, BUSY, "fine"])
    assert (await run(Agent(client, middleware=[retry]), stream=stream)).text == "fine"

    for replies, made in (([ModelError("bad key", status=401), "never"], 1), ([BUSY, BUSY, BUSY, "never"], 3)):
        client = ScriptedChatClient(replies)
        with pytest.raises(ModelError):
            await run(Agent(client, middleware=[retry]), stream=stream)
        assert len(client.requests) == made


async def test_stream_is_not_retried_after_its_first_part() -> None:
    client = StallingClient()
    agent = Agent(client, middleware=[ModelRetryMiddleware(base_seconds=0), ModelTimeoutMiddleware(0.05)])
    seen: list[str] = []
    with pytest.raises(ModelError, match="did not answer"):
        async for update in agent.run("go", stream=True):
            seen += [update.text]
    assert (seen, client.calls) == (["begun"], 1)
    with pytest.raises(ModelError, match="did not answer"):
        await agent.run("go")
    assert client.calls == 4


async def test_only_tools_that_may_run_twice_are_called_again() -> None:
    counts = {"read": 0, "pay": 0, "hinted": 0}

    def failing(name: str, hints: dict[str, Any] | None = None) -> Any:
        async def act() -> str:
            counts[name] += 1
            if counts[name] < 3:
                raise ToolFailed("not now") if counts[name] == 1 else ConnectionError("lost")
            return "ok"

        return tool(name=name, annotations=hints)(act)

    tools = [failing("read"), failing("pay"), failing("hinted", {"idempotentHint": True})]
    calls = [call("read", "1"), call("pay", "2"), call("hinted", "3")]
    for trusting, expected in ((False, {"read": 3, "pay": 1, "hinted": 1}), (True, {"read": 3, "pay": 1, "hinted": 3})):
        counts.update(read=0, pay=0, hinted=0)
        retry = ToolRetryMiddleware(["re*"], trust_annotations=trusting, base_seconds=0)
        await Agent(ScriptedChatClient([calls, "done"]), tools=tools, middleware=[retry]).run("go")
        assert counts == expected
    with pytest.raises(ValueError, match="attempts"):
        ToolRetryMiddleware(attempts=0)


# -- time ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("stream", [False, True])
async def test_model_that_does_not_go_on_is_given_up(stream: bool) -> None:
    agent = Agent(StallingClient(), middleware=[ModelTimeoutMiddleware(0.05)])
    with anyio.fail_after(20), pytest.raises(ModelError, match=r"within 0\.05 s"):
        await run(agent, stream=stream)
    assert (await run(Agent(ScriptedChatClient(["quick"]), middleware=[ModelTimeoutMiddleware(5)]), stream=stream)).text == "quick"


@pytest.mark.parametrize("tools", [{"sl*": 0.05}, {"quick": 30, "*": 0.05}])
async def test_tool_timeout_is_reported_to_the_model(tools: dict[str, float]) -> None:
    stopped = anyio.Event()

    @tool
    async def slow() -> str:
        """Slow."""
        try:
            await anyio.sleep_forever()
        finally:
            stopped.set()
        return ""

    @tool
    async def quick() -> str:
        """Quick."""
        return "quick"

    client = ScriptedChatClient([[call("slow", "1"), call("quick", "2")], "done"])
    await Agent(client, tools=[slow, quick], middleware=[ToolTimeoutMiddleware(30, tools=tools)]).run("go")
    assert "did not finish within 0.05 s" in results(client)[0]
    assert results(client)[1] == "quick"
    assert stopped.is_set()


# -- rate ----------------------------------------------------------------------------------------------------------


async def test_calls_over_the_rate_wait_or_fail_after_the_maximum_wait() -> None:
    agent = Agent(ScriptedChatClient(["x"] * 40), middleware=[ModelRateLimitMiddleware(1, burst=2, max_wait_seconds=0)])
    failed: list[ModelError] = []

    async def one() -> None:
        try:
            await agent.run("go")
        except ModelError as error:
            failed.append(error)

    async with anyio.create_task_group() as tasks:
        for _ in range(10):
            tasks.start_soon(one)
    assert len(failed) == 8
    assert (failed[0].status, failed[0].retryable) == (429, True)

    bucket = TokenBucket(600, 1)
    started = anyio.current_time()
    assert [await bucket.take(1) for _ in range(3)] == [None, None, None]
    assert anyio.current_time() - started >= 0.18


async def test_model_reads_when_a_tool_may_be_called_again() -> None:
    @tool
    async def search() -> str:
        """Search."""
        return "found"

    client = ScriptedChatClient([[call("search", "1"), call("search", "2")], "done"])
    await Agent(client, tools=[search], middleware=[ToolRateLimitMiddleware(1, max_wait_seconds=0)]).run("go")
    assert sorted(text.partition(":")[0] for text in results(client)) == ["Error", "found"]
    assert "try again in" in "".join(results(client))


# -- cache ---------------------------------------------------------------------------------------------------------


async def test_tool_results_are_cached_and_errors_are_not() -> None:
    counts: dict[str, int] = {}

    async def act(q: str) -> str:
        counts[q] = counts.get(q, 0) + 1
        if q == "bad" and counts[q] == 1:
            raise ToolFailed("no")
        return f"{q} {counts[q]}"

    lookup, other = tool(name="lookup")(act), tool(name="other")(act)
    calls = [call("lookup", "1", q="a"), call("other", "2", q="o"), call("lookup", "3", q="bad")]
    client = ScriptedChatClient([calls, calls, "done"])
    await Agent(client, tools=[lookup, other], middleware=[ToolCacheMiddleware(["look*"])]).run("go")
    assert counts == {"a": 1, "o": 2, "bad": 2}
    assert results(client)[3:] == ["a 1", "o 2", "bad 2"]


async def test_trusted_annotations_cache_only_read_only_tools() -> None:
    executed: list[str] = []

    async def act(q: str) -> str:
        executed.append(q)
        return q

    read = tool(name="read", annotations={"readOnlyHint": True})(act)
    write = tool(name="write", annotations={"idempotentHint": True})(act)
    calls = [call("read", "1", q="r"), call("write", "2", q="w")]
    client = ScriptedChatClient([calls, calls, "done"])
    await Agent(client, tools=[read, write], middleware=[ToolCacheMiddleware(trust_annotations=True)]).run("go")
    assert sorted(executed) == ["r", "w", "w"]


@pytest.mark.parametrize("stream", [False, True])
async def test_equal_model_requests_are_answered_from_the_cache(stream: bool) -> None:
    client = ScriptedChatClient(["one", "two", "three"])
    agent = Agent(client, middleware=[ModelCacheMiddleware(max_entries=1)])
    said = [(await run(agent, text, stream=stream)).text for text in ("a", "a", "b", "a")]
    assert said == ["one", "one", "two", "three"]


async def test_cached_answer_expires() -> None:
    client = ScriptedChatClient(["one", "two"])
    agent = Agent(client, middleware=[ModelCacheMiddleware(ttl_seconds=0.02)])
    assert (await agent.run("a")).text == "one"
    await anyio.sleep(0.03)
    assert (await agent.run("a")).text == "two"


# -- redaction -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("stream", [False, True])
async def test_personal_data_is_hidden_from_model_and_restored_for_tools(stream: bool) -> None:
    sent: list[str] = []

    @tool
    async def mail(to: str) -> str:
        """Mail."""
        sent.append(to)
        return f"sent to {to}, copy to boss@example.org"

    client = ScriptedChatClient([["I write to [EMA", "IL_1].", call("mail", to="[EMAIL_1]")], ["Done, ", "[EMAIL_2] has a copy [sic"]])
    agent = Agent(client, "You work for boss@example.org.", tools=[mail], middleware=[RedactionMiddleware()])
    response = await run(agent, "Write to ada@example.org, card 4111 1111 1111 1111.", stream=stream)

    assert sent == ["ada@example.org"]
    spoken = "".join(message.text for message in response.messages if message.role == "assistant")
    assert spoken == "I write to ada@example.org.Done, boss@example.org has a copy [sic"
    everything = " ".join(str(m.to_dict()) for messages, _ in client.requests for m in messages) + str(
        client.requests[0][1].get("instructions", "")
    )
    assert "@example.org" not in everything and "4111" not in everything
    assert "Write to [EMAIL_1], card [CREDIT_CARD_1]." in everything
    assert client.requests[0][1].get("instructions", "") == client.requests[1][1].get("instructions", "")


async def test_custom_detector_and_unrestored_placeholders() -> None:
    def names(text: str) -> list[Finding]:
        return [Finding(match.start(), match.end(), "PERSON") for match in re.finditer(r"Ada|Grace", text)]

    client = ScriptedChatClient(["Hello [PERSON_2] and [PERSON_1]"])
    response = await Agent(client, middleware=[RedactionMiddleware(names, restore=False)]).run("Ada greets Grace, Ada")
    assert client.requests[0][0][-1].text == "[PERSON_1] greets [PERSON_2], [PERSON_1]"
    assert response.text == "Hello [PERSON_2] and [PERSON_1]"


# -- repeated calls ------------------------------------------------------------------------------------------------


async def test_repeated_call_is_refused_and_then_ends_the_run() -> None:
    counts: list[str] = []

    @tool
    async def look(q: str) -> str:
        """Look."""
        counts.append(q)
        return "nothing"

    replies = [[call("look", str(number), q="same"), call("look", f"x{number}", q=str(number))] for number in range(9)]
    client = ScriptedChatClient([*replies, "never"])
    breaker = RepeatedCallMiddleware(2, end_after=4)
    response = await Agent(client, tools=[look], middleware=[breaker]).run("go")

    assert counts.count("same") == 2
    assert len(client.requests) == 4
    last = [str(c.result) for m in response.messages for c in m.contents if c.type == "function_result" and c.call_id in ("2", "3")]
    assert "already called 2 times" in last[0] and "The run was ended" in last[1]

    client = ScriptedChatClient([[call("look", q="same")], "done"])
    await Agent(client, tools=[look], middleware=[breaker]).run("go")
    assert results(client) == ["nothing"]  # each run starts a new count

"""Compaction: messages that the model no longer sees, calls that stay with their results, and when compaction runs."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import pytest

from gateway import (
    Agent,
    CharacterEstimatorTokenizer,
    CompactionProvider,
    CompactionStrategy,
    Content,
    ContextWindowCompactionStrategy,
    InMemoryHistoryProvider,
    Message,
    ScriptedChatClient,
    SelectiveToolCallCompactionStrategy,
    SlidingWindowStrategy,
    SummarizationStrategy,
    TokenBudgetComposedStrategy,
    TokenizerProtocol,
    ToolResultCompactionStrategy,
    TruncationStrategy,
    annotate_message_groups,
    apply_compaction,
    included_messages,
    included_token_count,
)
from gateway.errors import ModelError
from gateway.sessions.compaction_provider import RunCompaction
from gateway.sessions.compaction_strategies import MAX_RESULT_CHARS

cp1 = pytest.mark.requirement("CP1")


class Words:
    """A tokenizer that counts a hundred tokens per message."""

    def count_tokens(self, text: str) -> int:
        return 100


class Everything:
    """A strategy that excludes every message."""

    async def __call__(self, messages: list[Message]) -> bool:
        for message in messages:
            message.additional_properties["_excluded"] = True
        return True


def user(text: str) -> Message:
    return Message("user", [text])


def said(text: str) -> Message:
    return Message("assistant", [text])


def round_of(name: str, result: str, call_id: str) -> list[Message]:
    """A tool call and its result."""
    call = Content.from_function_call(call_id, name, {"q": name})
    return [Message("assistant", [call]), Message("tool", [Content.from_function_result(call_id, result=result)])]


def conversation() -> list[Message]:
    """A system message, three turns, two of them with a tool."""
    return [
        Message("system", ["Be brief."]), user("one"), *round_of("weather", "sunny", "c1"), said("It is sunny."),
        user("two"), *round_of("time", "noon", "c2"), said("It is noon."), user("three"), said("Yes."),
    ]  # fmt: skip


def brief(messages: Sequence[Message]) -> list[str]:
    """Return the messages as short words: text, `weather()` for a call, `=sunny` for a result."""

    def of(content: Content) -> str:
        if content.type == "function_call":
            return f"{content.name}()"
        return f"={content.result}" if content.type == "function_result" else content.text or content.type

    return ["".join(of(content) for content in message.contents) for message in messages]


def assert_whole(messages: Sequence[Message]) -> None:
    """Every call has its result after it, and every result its call before it."""
    open_calls: set[str | None] = set()
    for message in messages:
        for content in message.contents:
            if content.type == "function_call":
                open_calls.add(content.call_id)
            elif content.type == "function_result":
                assert content.call_id in open_calls
                open_calls.remove(content.call_id)
    assert not open_calls


@cp1
async def test_truncation_drops_oldest_groups_and_keeps_system_messages() -> None:
    messages = conversation()
    assert not await TruncationStrategy(max_n=11, compact_to=5)(messages)
    assert await TruncationStrategy(max_n=10, compact_to=8)(messages)
    assert brief(included_messages(messages)) == ["Be brief.", "It is sunny.", "two", "time()", "=noon", "It is noon.", "three", "Yes."]
    assert len(messages) == 11
    with_tokens = conversation()
    assert await TruncationStrategy(max_n=1000, compact_to=350, tokenizer=Words())(with_tokens)
    assert brief(included_messages(with_tokens)) == ["Be brief.", "three", "Yes."]
    without = conversation()
    assert await TruncationStrategy(max_n=3, compact_to=1, preserve_system=False)(without)
    assert brief(included_messages(without)) == ["Yes."]


@cp1
async def test_sliding_window_keeps_the_newest_groups() -> None:
    messages = conversation()
    assert await SlidingWindowStrategy(keep_last_groups=4)(messages)
    assert brief(included_messages(messages)) == ["Be brief.", "time()", "=noon", "It is noon.", "three", "Yes."]
    assert not await SlidingWindowStrategy(keep_last_groups=4)(messages)


@cp1
async def test_tool_calls_can_go_alone_call_and_result_together() -> None:
    messages = conversation()
    assert await SelectiveToolCallCompactionStrategy()(messages)
    assert brief(included_messages(messages)) == [
        "Be brief.", "one", "It is sunny.", "two", "time()", "=noon", "It is noon.", "three", "Yes."
    ]  # fmt: skip
    assert await SelectiveToolCallCompactionStrategy(keep_last_tool_call_groups=0)(messages)
    assert not [text for text in brief(included_messages(messages)) if "(" in text or "=" in text]


@cp1
async def test_collapsed_tool_results_refer_to_their_group() -> None:
    messages = conversation()
    messages[3].contents[0] = Content.from_function_result("c1", result="x" * 10_000)
    assert await ToolResultCompactionStrategy()(messages)
    shown = included_messages(messages)
    assert brief(shown)[2].startswith("[Tool results: weather: xxx") and len(brief(shown)[2]) < MAX_RESULT_CHARS + 50
    assert brief(shown)[5:7] == ["time()", "=noon"]
    summary = shown[2]
    originals = messages[3:5]
    assert summary.additional_properties["_group"]["_summary_of_message_ids"] == [m.message_id for m in originals]
    assert {m.additional_properties["_group"]["_summarized_by_summary_id"] for m in originals} == {summary.message_id}
    assert not await ToolResultCompactionStrategy()(messages)


@cp1
async def test_more_than_six_messages_are_summarised() -> None:
    client = ScriptedChatClient(["They talked of weather and time."])
    messages = conversation()
    few = messages[:7]
    assert not await SummarizationStrategy(client=client)(few)
    assert await SummarizationStrategy(client=client)(messages)
    summary = "They talked of weather and time."
    assert brief(included_messages(messages)) == ["Be brief.", summary, "time()", "=noon", "It is noon.", "three", "Yes."]
    [(asked, _)] = client.requests
    assert "[user] one" in asked[1].text and "sunny" in asked[1].text and "noon" not in asked[1].text


@cp1
async def test_summary_that_fails_leaves_the_conversation_whole(caplog: pytest.LogCaptureFixture) -> None:
    client = ScriptedChatClient([ModelError("out of credit"), "   ", TypeError("no such field")])
    messages = conversation()
    for _ in range(3):
        assert not await SummarizationStrategy(client=client)(messages)
    assert included_messages(messages) == messages and "out of credit" in caplog.text and "no such field" in caplog.text


@cp1
async def test_oversized_newest_group_is_logged_and_summary_kept(caplog: pytest.LogCaptureFixture) -> None:
    client = ScriptedChatClient(["They greeted.", "never"])
    calls = [Content.from_function_call(str(n), "look", "{}") for n in range(7)]
    large = [Message("assistant", calls), *(Message("tool", [Content.from_function_result(str(n), "seen")]) for n in range(7))]
    strategy = SummarizationStrategy(client=client)
    assert not await strategy(list(large))
    assert "strategy='summarization' limit=6 left=8 over_limit=True" in caplog.text
    messages = [user("one"), said("Hello."), *large]
    assert [await strategy(messages) for _ in range(3)] == [True, False, False]
    assert len(included_messages(messages)) == 9 and len(client.requests) == 1
    assert caplog.text.count("left=9 over_limit=True") == 3


@cp1
async def test_token_budget_runs_its_strategies_until_it_is_met() -> None:
    messages = conversation()
    tools, window = SelectiveToolCallCompactionStrategy(keep_last_tool_call_groups=0), SlidingWindowStrategy(keep_last_groups=1)
    assert not await TokenBudgetComposedStrategy(token_budget=1100, tokenizer=Words(), strategies=[tools, window])(messages)
    assert await TokenBudgetComposedStrategy(token_budget=700, tokenizer=Words(), strategies=[tools, window])(messages)
    assert brief(included_messages(messages)) == ["Be brief.", "one", "It is sunny.", "two", "It is noon.", "three", "Yes."]
    late = conversation()
    budget = TokenBudgetComposedStrategy(token_budget=700, tokenizer=Words(), strategies=[tools, window], early_stop=False)
    assert await budget(late) and brief(included_messages(late)) == ["Be brief.", "Yes."]
    strict = conversation()
    assert await TokenBudgetComposedStrategy(token_budget=200, tokenizer=Words(), strategies=[])(strict)
    assert brief(included_messages(strict)) == ["Be brief.", "Yes."]
    assert included_token_count(strict) == 200


@cp1
async def test_context_window_collapses_tool_results_before_truncating() -> None:
    messages = [user("start")]
    for number in range(8):
        messages += round_of("look", f"{number}", f"c{number}")
    strategy = ContextWindowCompactionStrategy(max_context_window_tokens=3000, max_output_tokens=0, tokenizer=Words())
    assert (strategy.tool_eviction_threshold, strategy.truncation_threshold, strategy.input_budget_tokens) == (0.5, 0.8, 3000)
    assert await strategy(messages)
    shown = brief(included_messages(messages))
    assert shown[1:5] == [f"[Tool results: look: {number}]" for number in range(4)] and shown.count("look()") == 4
    small = ContextWindowCompactionStrategy(max_context_window_tokens=1000, max_output_tokens=0, tokenizer=Words())
    assert await small(messages)
    assert included_token_count(messages) <= 500
    assert_whole(included_messages(messages))


@cp1
def test_four_characters_are_a_token_and_a_tokenizer_has_one_method() -> None:
    estimate = CharacterEstimatorTokenizer()
    assert [estimate.count_tokens(text) for text in ("", "abc", "abcdefgh")] == [1, 1, 2]
    assert isinstance(estimate, TokenizerProtocol) and isinstance(Words(), TokenizerProtocol)
    assert isinstance(TruncationStrategy(max_n=2, compact_to=1), CompactionStrategy)


@cp1
@pytest.mark.parametrize(
    ("kind", "values"),
    [
        (TruncationStrategy, {"max_n": 0, "compact_to": 1}),
        (TruncationStrategy, {"max_n": 1, "compact_to": 2}),
        (SlidingWindowStrategy, {"keep_last_groups": 0}),
        (SelectiveToolCallCompactionStrategy, {"keep_last_tool_call_groups": -1}),
        (ToolResultCompactionStrategy, {"keep_last_tool_call_groups": -1}),
        (SummarizationStrategy, {"client": None, "target_count": 0}),
        (SummarizationStrategy, {"client": None, "threshold": -1}),
        (ContextWindowCompactionStrategy, {"max_context_window_tokens": 10, "max_output_tokens": 10}),
        (ContextWindowCompactionStrategy, {"max_context_window_tokens": 10, "max_output_tokens": 0, "truncation_threshold": 0.1}),
        (ContextWindowCompactionStrategy, {"max_context_window_tokens": 10, "max_output_tokens": 0, "tool_eviction_threshold": 0}),
    ],
)
def test_limits_that_make_no_sense_are_refused(kind: Any, values: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"must be"):
        kind(**values)


@cp1
async def test_reasoning_approvals_and_late_results_stay_with_their_call() -> None:
    call = Content.from_function_call("c1", "pay", {})
    late = Message("tool", [Content.from_function_result("c1", result="paid")])
    thinking = Message("assistant", [Content.from_text_reasoning(text="hm")])
    messages = [user("go"), thinking, Message("assistant", [call]), user("please wait"), late, said("done"), user("next")]
    ids = annotate_message_groups(messages)
    kinds = [message.additional_properties["_group"]["kind"] for message in messages]
    assert kinds == ["user", "tool_call", "tool_call", "user", "tool_call", "assistant_text", "user"] and len(ids) == 5
    assert await SlidingWindowStrategy(keep_last_groups=3)(messages)
    assert brief(included_messages(messages)) == ["please wait", "done", "next"]


@cp1
async def test_no_strategy_separates_a_call_from_its_result() -> None:
    for size in range(1, 12):
        for strategy in (
            TruncationStrategy(max_n=size, compact_to=size),
            SlidingWindowStrategy(keep_last_groups=size),
            TokenBudgetComposedStrategy(token_budget=size * 100, tokenizer=Words(), strategies=[ToolResultCompactionStrategy()]),
            SummarizationStrategy(client=ScriptedChatClient(["summary"]), target_count=size, threshold=0),
        ):
            shown = await apply_compaction(conversation(), strategy=strategy)
            assert_whole(shown)
            assert shown and shown[-1].text == "Yes."


@cp1
async def test_model_is_always_shown_the_newest_turn() -> None:
    for strategy in (
        TokenBudgetComposedStrategy(token_budget=10, tokenizer=Words(), strategies=[]),
        TruncationStrategy(max_n=1, compact_to=1),
        Everything(),
    ):
        assert brief(await apply_compaction([user("a"), user("b")], strategy=strategy)) == ["b"]
    messages = conversation()
    assert await apply_compaction(messages, strategy=None) is messages


@pytest.mark.requirement("CP1", "SE22")
async def test_loaded_history_is_compacted_before_a_run() -> None:
    client = ScriptedChatClient([f"answer {number}" for number in range(4)])
    compaction = CompactionProvider(before_strategy=SlidingWindowStrategy(keep_last_groups=2))
    agent = Agent(client, context_providers=[InMemoryHistoryProvider(), compaction])
    session = agent.create_session()
    for number in range(4):
        await agent.run(f"ask {number}", session=session)
    assert brief(client.requests[3][0]) == ["ask 2", "answer 2", "ask 3"]
    assert len(session.state["in_memory"]["messages"]) == 8


@cp1
async def test_summary_replaces_the_loaded_history_in_place() -> None:
    client = ScriptedChatClient(["a0", "a1", "a2"])
    summarise = SummarizationStrategy(client=ScriptedChatClient(["short"]), target_count=1, threshold=1)
    compaction = CompactionProvider(before_strategy=summarise)
    agent = Agent(client, context_providers=[InMemoryHistoryProvider(), compaction])
    session = agent.create_session()
    for number in range(3):
        await agent.run(f"q{number}", session=session)
    assert brief(client.requests[2][0]) == ["short", "a1", "q2"]


@cp1
async def test_stored_history_is_marked_after_a_run() -> None:
    client = ScriptedChatClient([f"answer {number}" for number in range(4)])
    history = InMemoryHistoryProvider(skip_excluded=True)
    compaction = CompactionProvider(after_strategy=SlidingWindowStrategy(keep_last_groups=1), history_source_id=history.source_id)
    agent = Agent(client, context_providers=[history, compaction])
    session = agent.create_session()
    for number in range(3):
        await agent.run(f"ask {number}", session=session)
    stored = json.loads(json.dumps(session.to_dict()))["state"]["in_memory"]["messages"]
    assert [message["additional_properties"].get("_excluded") for message in stored[:2]] == [True, True]
    assert brief(client.requests[2][0]) == ["answer 0", "ask 1", "answer 1", "ask 2"]


@cp1
async def test_compaction_in_a_run_keeps_the_conversation() -> None:
    counted: list[str] = []

    class Counting(Words):
        def count_tokens(self, text: str) -> int:
            counted.append(text)
            return 100

    compaction = RunCompaction(ToolResultCompactionStrategy(keep_last_tool_call_groups=1), Counting())
    messages = [user("go")]
    shown: list[Message] = []
    for number in range(3):
        messages += round_of("look", str(number), f"c{number}")
        shown = await compaction.project(messages)
    assert brief(shown) == ["go", "[Tool results: look: 0]", "[Tool results: look: 1]", "look()", "=2"]
    assert all(message.additional_properties == {} and message.message_id is None for message in messages)
    assert len(counted) == len(set(counted))
    assert brief(await compaction.project(messages[:1])) == ["go"]


@pytest.mark.requirement("CP1", "SE22")
@pytest.mark.parametrize("kept_by", ["us", "service"])
async def test_run_is_compacted_only_where_its_conversation_is_ours(kept_by: str) -> None:
    client = ScriptedChatClient([Content.from_function_call(str(n), "look", {}) for n in range(3)] + ["done"])

    async def look() -> str:
        return "seen"

    agent = Agent(client, tools=look, compaction_strategy=ToolResultCompactionStrategy(keep_last_tool_call_groups=1))
    session = agent.create_session() if kept_by == "us" else agent.get_session("thread-1")
    await agent.run("go", session=session)

    collapsed = [text for text in brief(client.requests[3][0]) if text.startswith("[Tool results")]
    assert len(collapsed) == (2 if kept_by == "us" else 0)
    if kept_by == "us":
        assert brief(session.state["in_memory"]["messages"]) == ["go", *["look()", "=seen"] * 3, "done"]


BUDGET = CharacterEstimatorTokenizer()
OVER = {
    "token budget": TokenBudgetComposedStrategy(token_budget=20, tokenizer=BUDGET, strategies=[]),
    "truncation": TruncationStrategy(max_n=20, compact_to=10, tokenizer=BUDGET),
    "context window": ContextWindowCompactionStrategy(max_context_window_tokens=30, max_output_tokens=5),
}


@cp1
@pytest.mark.parametrize("name", OVER)
async def test_strategy_that_exceeds_its_limit_reports_it(name: str, caplog: pytest.LogCaptureFixture) -> None:
    messages = [user("first"), said("short"), user("x" * 400)]
    annotate_message_groups(messages, tokenizer=BUDGET)
    assert await OVER[name](messages)
    assert [message.text for message in included_messages(messages)] == ["x" * 400]
    assert included_token_count(messages) > 20
    assert "compaction fell back" in caplog.text and "over_limit=True" in caplog.text


@cp1
async def test_budget_logs_groups_dropped_beyond_the_strategies(caplog: pytest.LogCaptureFixture) -> None:
    messages = [Message("system", ["s" * 400]), user("a" * 400), said("b" * 400), user("last")]
    annotate_message_groups(messages, tokenizer=BUDGET)
    window = SlidingWindowStrategy(keep_last_groups=2)
    strategy = TokenBudgetComposedStrategy(token_budget=60, tokenizer=BUDGET, strategies=[window])
    assert await strategy(messages)
    assert [message.text for message in included_messages(messages)] == ["last"]
    assert included_token_count(messages) <= 60
    [record] = caplog.records
    assert "over_limit=False dropped_groups=2 dropped_system_groups=1" in record.getMessage()


@cp1
async def test_compaction_within_its_limit_logs_nothing(caplog: pytest.LogCaptureFixture) -> None:
    messages = [user("a" * 400), said("b" * 400), user("last")]
    annotate_message_groups(messages, tokenizer=BUDGET)
    window = SlidingWindowStrategy(keep_last_groups=1)
    assert await TokenBudgetComposedStrategy(token_budget=60, tokenizer=BUDGET, strategies=[window])(messages)
    assert await TruncationStrategy(max_n=2, compact_to=1)([user("a"), said("b"), user("c")])
    assert caplog.records == []


@cp1
async def test_strategy_that_excludes_everything_is_detected(caplog: pytest.LogCaptureFixture) -> None:
    shown = await apply_compaction([user("a"), user("b")], strategy=Everything())
    assert [message.text for message in shown] == ["b"]
    assert "strategy excluded every message" in caplog.text

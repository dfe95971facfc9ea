"""Compaction strategies: select the groups of messages in a long conversation that the model no longer sees.

A strategy marks messages as excluded and may insert summaries; it never removes messages. A group is a set of messages that must stay
together, such as a tool call and its result. `compaction_provider` runs strategies. Names and defaults are those of agent-framework.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Sequence
from typing import ClassVar, Literal, Protocol

from gateway.sessions.message_groups import (
    GROUP_ANNOTATION_KEY,
    SUMMARIZED_BY_SUMMARY_ID_KEY,
    SUMMARY_OF_GROUP_IDS_KEY,
    SUMMARY_OF_MESSAGE_IDS_KEY,
    CharacterEstimatorTokenizer,
    MessageGroup,
    annotate_message_groups,
    annotation_of,
    groups_of,
    included_messages,
    included_token_count,
    newest_group,
)
from gateway.types.compaction import CompactionStrategy, TokenizerProtocol
from gateway.types.content import Content
from gateway.types.messages import Message
from gateway.types.responses import ChatResponse

logger = logging.getLogger(__name__)

MAX_RESULT_CHARS = 1_000
"""Maximum characters of a tool result, or of a tool call's arguments, in a text that replaces old messages or is to be summarised."""

SUMMARY_PROMPT = """\
Summarise the conversation below in at most five sentences, so that it can continue from the summary alone.
Say what the user wants and decided, what was found out or done (names, numbers and file names exactly), and what is still open.
Keep everything that an earlier summary in it says. Do not judge, correct, guess or add anything."""


class SummaryClient(Protocol):
    """Protocol of a chat client with which `SummarizationStrategy` summarises messages."""

    def get_response(self, messages: Sequence[Message], *, stream: Literal[False] = False) -> Awaitable[ChatResponse]:
        """Send the messages to the model, and return its response."""
        ...


class TruncationStrategy:
    """Compaction strategy: if there are more than `max_n` messages, excludes the oldest groups until at most `compact_to` messages stay.

    With a tokenizer, both limits count tokens instead of messages. The newest group and, by default, system messages always stay. A
    warning is logged if these alone exceed `max_n`.
    """

    def __init__(self, *, max_n: int, compact_to: int, tokenizer: TokenizerProtocol | None = None, preserve_system: bool = True) -> None:
        if max_n <= 0 or compact_to <= 0:
            raise ValueError("max_n and compact_to must be greater than 0.")
        if compact_to > max_n:
            raise ValueError("compact_to must be less than or equal to max_n.")
        self.max_n = max_n
        self.compact_to = compact_to
        self.tokenizer = tokenizer
        self.preserve_system = preserve_system

    async def __call__(self, messages: list[Message]) -> bool:
        """If there are more than `max_n` messages, exclude the oldest groups of messages until at most `compact_to` messages are left.

        With a tokenizer, both limits count tokens. The newest group always stays, and with `preserve_system` also system messages. Returns
        whether messages were excluded.
        """
        groups = groups_of(messages, self.tokenizer)
        if self._measure(messages) <= self.max_n:
            return False
        newest = newest_group(groups)
        changed = False
        for group in groups:
            if self._measure(messages) <= self.compact_to:
                break
            if group is not newest and (group.kind != "system" or not self.preserve_system):
                changed = group.exclude("truncation") or changed
        if (left := self._measure(messages)) > self.max_n:
            _log_fallback("truncation", limit=self.max_n, left=left)
        return changed

    def _measure(self, messages: list[Message]) -> int:
        return included_token_count(messages) if self.tokenizer is not None else len(included_messages(messages))


class SlidingWindowStrategy:
    """Compaction strategy: excludes all groups of messages except the newest `keep_last_groups`.

    System messages are not counted, and stay by default.
    """

    def __init__(self, *, keep_last_groups: int, preserve_system: bool = True) -> None:
        if keep_last_groups <= 0:
            raise ValueError("keep_last_groups must be greater than 0.")
        self.keep_last_groups = keep_last_groups
        self.preserve_system = preserve_system

    async def __call__(self, messages: list[Message]) -> bool:
        """Exclude the older groups of messages; return whether messages were excluded. With `preserve_system`, system messages stay."""
        groups = [group for group in groups_of(messages) if group.included]
        others = [group for group in groups if group.kind != "system"]
        gone = others[: -self.keep_last_groups] + [g for g in groups if g.kind == "system" and not self.preserve_system]
        return _exclude_all(gone, "sliding_window")


class SelectiveToolCallCompactionStrategy:
    """Compaction strategy: excludes tool calls with their results, except the newest `keep_last_tool_call_groups`. Other messages stay."""

    def __init__(self, *, keep_last_tool_call_groups: int = 1) -> None:
        self.keep_last_tool_call_groups = _not_negative(keep_last_tool_call_groups)

    async def __call__(self, messages: list[Message]) -> bool:
        """Exclude the older tool calls together with their results; return whether messages were excluded."""
        return _exclude_all(_older_tool_calls(messages, self.keep_last_tool_call_groups), "tool_call_compaction")


class ToolResultCompactionStrategy:
    """Compaction strategy: replaces each tool call and its results by a short text, except the newest `keep_last_tool_call_groups`."""

    def __init__(self, *, keep_last_tool_call_groups: int = 1) -> None:
        self.keep_last_tool_call_groups = _not_negative(keep_last_tool_call_groups)

    async def __call__(self, messages: list[Message]) -> bool:
        """Replace each older group of tool calls and results by a text such as `[Tool results: weather: sunny]`; cut long results.

        Returns whether groups were replaced.
        """
        older = _older_tool_calls(messages, self.keep_last_tool_call_groups)
        for group in older:
            results = "; ".join(_results_of(group)) or "no results"
            _replace(messages, [group], f"[Tool results: {results}]", f"tool_summary_{group.id}", reason="tool_result_compaction")
        return bool(older)


class SummarizationStrategy:
    """Compaction strategy: if there are more than `target_count + threshold` messages, lets a model summarise the oldest of them.

    At least `target_count` of the newest messages stay unchanged. System messages are not counted, and stay.
    """

    def __init__(self, *, client: SummaryClient, target_count: int = 4, threshold: int | None = 2, prompt: str | None = None) -> None:
        """Store the settings. `client` calls the model that summarises; `prompt` replaces the default instructions for this model.

        At least `target_count` messages stay unchanged (system messages not counted); more, if a group of messages would be split.
        """
        if target_count <= 0:
            raise ValueError("target_count must be greater than 0.")
        if threshold is not None and threshold < 0:
            raise ValueError("threshold must be greater than or equal to 0.")
        self.client = client
        self.target_count = target_count
        self.threshold = threshold or 0
        self.prompt = prompt or SUMMARY_PROMPT

    async def __call__(self, messages: list[Message]) -> bool:
        """Replace the older messages by a summary of the model; return whether this was done.

        If the model fails or returns no text, nothing changes, and a warning is logged. A warning is also logged if more than
        `target_count + threshold` messages stay because groups are never split. A single earlier summary is not summarised again.
        """
        groups = [group for group in groups_of(messages) if group.included and group.kind != "system"]
        count, limit = sum(len(group.included) for group in groups), self.target_count + self.threshold
        if count <= limit:
            return False
        older = groups[: _first_kept(groups, self.target_count)]
        left = count - sum(len(group.included) for group in older) + 1 if older else count
        if left > limit:
            _log_fallback("summarization", limit=limit, left=left)
        if not older or (len(older) == 1 and _is_summary(older[0])):
            return False
        text = "\n".join(f"{n}. [{m.role}] {_plain(m)}" for n, m in enumerate((m for g in older for m in g.included), 1))
        try:
            response = await self.client.get_response([Message("system", [self.prompt]), Message("user", [text])], stream=False)
        except Exception as error:  # a custom client may raise any exception, and the run can continue without a summary
            logger.warning("conversation not summarised reason=%r", str(error))
            return False
        if not response.text.strip():
            logger.warning("conversation not summarised reason='the model returned no text'")
            return False
        _replace(messages, older, response.text.strip(), f"summary_{len(messages)}", reason="summarized")
        return True


class TokenBudgetComposedStrategy:
    """Compaction strategy: runs other strategies in order until the conversation has at most `token_budget` tokens.

    If these strategies do not suffice, it excludes the oldest groups of messages.
    """

    def __init__(
        self, *, token_budget: int, tokenizer: TokenizerProtocol, strategies: Sequence[CompactionStrategy], early_stop: bool = True
    ) -> None:
        """Store the settings. With `early_stop`, the remaining strategies are skipped as soon as the conversation fits the budget.

        If the strategies do not suffice, the oldest groups of messages are excluded, system messages last, and a warning is logged. The
        newest group stays.
        """
        self.token_budget = token_budget
        self.tokenizer = tokenizer
        self.strategies = list(strategies)
        self.early_stop = early_stop

    async def __call__(self, messages: list[Message]) -> bool:
        """Run the strategies if the conversation exceeds the token budget; return whether anything changed."""
        if self._fits(messages):
            return False
        changed = False
        for strategy in self.strategies:
            changed = await strategy(messages) or changed
            if self._fits(messages) and self.early_stop:
                return changed
        if self._fits(messages):
            return changed
        groups = groups_of(messages, self.tokenizer)
        newest = newest_group(groups)
        dropped = dropped_system = 0
        for group in sorted(groups, key=lambda group: group.kind == "system"):
            if included_token_count(messages) <= self.token_budget:
                break
            if group is newest:
                continue
            is_system = group.kind == "system"
            if group.exclude("token_budget_fallback_strict" if is_system else "token_budget_fallback"):
                changed, dropped, dropped_system = True, dropped + 1, dropped_system + is_system
        left = included_token_count(messages)
        _log_fallback("token budget", limit=self.token_budget, left=left, dropped=dropped, dropped_system=dropped_system)
        return changed

    def _fits(self, messages: list[Message]) -> bool:
        annotate_message_groups(messages, tokenizer=self.tokenizer)
        return included_token_count(messages) <= self.token_budget


class ContextWindowCompactionStrategy:
    """Compaction strategy: keeps a conversation within a model's context window, by two steps.

    First, if the conversation exceeds `tool_eviction_threshold`, old tool results are replaced by short texts. Second, if it still
    exceeds `truncation_threshold`, the oldest groups of messages are excluded until it fits `tool_eviction_threshold`. Both thresholds are
    fractions of the input budget, which is the context window minus `max_output_tokens`.
    """

    DEFAULT_TOOL_EVICTION_THRESHOLD: ClassVar[float] = 0.5
    DEFAULT_TRUNCATION_THRESHOLD: ClassVar[float] = 0.8

    def __init__(
        self,
        *,
        max_context_window_tokens: int,
        max_output_tokens: int,
        tokenizer: TokenizerProtocol | None = None,
        tool_eviction_threshold: float = DEFAULT_TOOL_EVICTION_THRESHOLD,
        truncation_threshold: float = DEFAULT_TRUNCATION_THRESHOLD,
        keep_last_tool_call_groups: int = 4,
    ) -> None:
        """Store the settings. Without a `tokenizer`, four characters count as one token.

        `keep_last_tool_call_groups` is the number of newest tool calls whose results stay unchanged.
        """
        if max_context_window_tokens <= 0:
            raise ValueError("max_context_window_tokens must be positive.")
        if not 0 <= max_output_tokens < max_context_window_tokens:
            raise ValueError("max_output_tokens must be >= 0 and < max_context_window_tokens.")
        if not 0.0 < tool_eviction_threshold <= 1.0 or not 0.0 < truncation_threshold <= 1.0:
            raise ValueError("tool_eviction_threshold and truncation_threshold must be in (0.0, 1.0].")
        if truncation_threshold < tool_eviction_threshold:
            raise ValueError("truncation_threshold must be >= tool_eviction_threshold.")
        self.max_context_window_tokens = max_context_window_tokens
        self.max_output_tokens = max_output_tokens
        self.input_budget_tokens = max_context_window_tokens - max_output_tokens
        self.tool_eviction_threshold = tool_eviction_threshold
        self.truncation_threshold = truncation_threshold
        self._tokenizer = tokenizer or CharacterEstimatorTokenizer()
        self._evicted = max(1, int(self.input_budget_tokens * tool_eviction_threshold))
        truncated = max(1, int(self.input_budget_tokens * truncation_threshold))
        self._collapse = ToolResultCompactionStrategy(keep_last_tool_call_groups=keep_last_tool_call_groups)
        truncate = TruncationStrategy(max_n=truncated, compact_to=self._evicted, tokenizer=self._tokenizer)
        self._truncate = TokenBudgetComposedStrategy(token_budget=truncated, tokenizer=self._tokenizer, strategies=[truncate])

    async def __call__(self, messages: list[Message]) -> bool:
        """Shorten old tool results if the conversation exceeds the first threshold, and exclude its oldest groups if it exceeds the second.

        Returns whether anything changed.
        """
        annotate_message_groups(messages, tokenizer=self._tokenizer)
        collapsed = included_token_count(messages) > self._evicted and await self._collapse(messages)
        return await self._truncate(messages) or collapsed


def _log_fallback(strategy: str, *, limit: int, left: int, dropped: int = 0, dropped_system: int = 0) -> None:
    """Log a warning that a compaction strategy had to exclude further groups of messages to reach its limit, or could not reach it."""
    logger.warning(
        "compaction fell back strategy=%r limit=%d left=%d over_limit=%s dropped_groups=%d dropped_system_groups=%d",
        strategy, limit, left, left > limit, dropped, dropped_system,
    )  # fmt: skip


def _exclude_all(groups: Sequence[MessageGroup], reason: str) -> bool:
    changed = False
    for group in groups:
        changed = group.exclude(reason) or changed
    return changed


def _not_negative(count: int) -> int:
    if count < 0:
        raise ValueError("keep_last_tool_call_groups must be greater than or equal to 0.")
    return count


def _older_tool_calls(messages: list[Message], keep: int) -> list[MessageGroup]:
    groups = [group for group in groups_of(messages) if group.kind == "tool_call" and group.included]
    return groups[: max(0, len(groups) - keep)]


def _first_kept(groups: Sequence[MessageGroup], count: int) -> int:
    """Return the index of the oldest group of messages to keep, so that at least `count` messages stay, and at least one group."""
    kept = 0
    for index in range(len(groups) - 1, -1, -1):
        kept += len(groups[index].included)
        if kept >= count:
            return index
    return 0


def _is_summary(group: MessageGroup) -> bool:
    """Return whether a group of messages is a summary that `_replace` has inserted."""
    return any(SUMMARY_OF_GROUP_IDS_KEY in annotation_of(message) for message in group.messages)


def _replace(messages: list[Message], groups: Sequence[MessageGroup], text: str, summary_id: str, *, reason: str) -> None:
    """Exclude groups of messages, and insert a message with the summary `text` before the first group.

    Annotations of the summary contain the ids of the groups and of their messages; an annotation of each group contains `summary_id`.
    """
    ids = [message.message_id for group in groups for message in group.included]
    marks = {SUMMARY_OF_MESSAGE_IDS_KEY: ids, SUMMARY_OF_GROUP_IDS_KEY: [group.id for group in groups]}
    summary = Message("assistant", [text], message_id=summary_id, additional_properties={GROUP_ANNOTATION_KEY: marks})
    for group in groups:
        group.note(**{SUMMARIZED_BY_SUMMARY_ID_KEY: summary_id})
        group.exclude(reason)
    first = groups[0].messages[0]
    messages.insert(next(index for index, message in enumerate(messages) if message is first), summary)
    annotate_message_groups(messages)


def _results_of(group: MessageGroup) -> list[str]:
    contents = [content for message in group.messages for content in message.contents]
    names = {content.call_id: content.name for content in contents if content.type == "function_call"}
    found: list[str] = []
    for content in contents:
        if content.type == "function_result":
            name = names.get(content.call_id)
            found.append(f"{name}: {_shown(content.result)}".strip() if name else _shown(content.result).strip())
    return found


def _plain(message: Message) -> str:
    """Return a message as plain text for the model that summarises: its text, else a description of its contents."""
    return message.text or ", ".join(_plain_content(content) for content in message.contents)


def _plain_content(content: Content) -> str:
    if content.type == "function_call":
        return f"calls {content.name}({_shown(content.arguments)})"
    return f"result: {_shown(content.result)}" if content.type == "function_result" else content.type


def _shown(value: object) -> str:
    text = value if isinstance(value, str) else str(value)
    return text if len(text) <= MAX_RESULT_CHARS else f"{text[:MAX_RESULT_CHARS]}…"

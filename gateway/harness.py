"""`create_harness_agent`: makes an agent for long autonomous work from parts of `agents`, `sessions` and `skills`.

A program can also pass each part to `Agent` itself.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, cast

from gateway.agents.agent import Agent
from gateway.agents.middleware.approval import ToolApprovalMiddleware, ToolApprovalRuleCallback
from gateway.agents.providers.background import BackgroundAgentsProvider
from gateway.agents.providers.memory_provider import MemoryContextProvider
from gateway.agents.providers.memory_store import MemoryStore
from gateway.agents.providers.mode import AgentModeProvider
from gateway.agents.providers.todo import TodoProvider
from gateway.chat.chat_context import SupportsChatGetResponse
from gateway.chat.hosted import SupportsWebSearchTool
from gateway.json_types import JsonValue
from gateway.middleware import listed
from gateway.sessions.compaction_provider import CompactionProvider
from gateway.sessions.compaction_strategies import ContextWindowCompactionStrategy, ToolResultCompactionStrategy
from gateway.sessions.history import HistoryProvider, InMemoryHistoryProvider
from gateway.sessions.session import SupportsAgentRun
from gateway.sessions.session_context import ContextProvider
from gateway.skills.objects.skills_provider import SkillsProvider
from gateway.tools.tool_lists import normalize_tools
from gateway.types.compaction import CompactionStrategy, TokenizerProtocol
from gateway.types.options import ChatOptions

logger = logging.getLogger(__name__)

KEPT_TOOL_GROUPS = 2
"""Number of the most recent groups (model response with tool calls, and the results) that stay complete in the stored conversation, because
the next turn usually builds on them."""

DEFAULT_HARNESS_INSTRUCTIONS = """\
You work on tasks for a user, with tools.

- Find out what is wanted before you act, and split work that is large into steps.
- Use the tools to look things up, to act, and to check that what you did came out right.
- Say what you found and what you do next between tool calls; after four calls in a row at the latest.
- A call that failed tells you something: change what you do, and do not repeat it as it was.
- When the task is done, say briefly what you did and what came of it.
"""
"""Default instructions of agents that `create_harness_agent` makes."""


def create_harness_agent(
    client: SupportsChatGetResponse,
    *,
    id: str | None = None,
    name: str | None = None,
    description: str | None = None,
    harness_instructions: str | None = None,
    agent_instructions: str | None = None,
    tools: Any = None,
    max_context_window_tokens: int | None = None,
    max_output_tokens: int | None = None,
    history_provider: HistoryProvider | None = None,
    disable_compaction: bool = False,
    before_compaction_strategy: CompactionStrategy | None = None,
    after_compaction_strategy: CompactionStrategy | None = None,
    tokenizer: TokenizerProtocol | None = None,
    disable_todo: bool = False,
    todo_provider: TodoProvider | None = None,
    disable_mode: bool = False,
    mode_provider: AgentModeProvider | None = None,
    disable_memory: bool = False,
    memory_store: MemoryStore | None = None,
    skills_provider: SkillsProvider | None = None,
    skills_paths: Sequence[str | Path] | None = None,
    background_agents: Sequence[SupportsAgentRun] | None = None,
    background_agents_instructions: str | None = None,
    disable_web_search: bool = False,
    disable_tool_auto_approval: bool = False,
    auto_approval_rules: Sequence[ToolApprovalRuleCallback] | None = None,
    otel_provider_name: str | None = None,
    context_providers: Sequence[ContextProvider] | None = None,
    middleware: Any = None,
    default_options: Mapping[str, JsonValue] | None = None,
) -> Agent:
    """Return an agent with history, compaction, a todo list, modes, tool approvals and further parts. All but history can be left out.

    `harness_instructions` replace the harness's general instructions (an empty text removes them); `agent_instructions` follow them.
    Compaction needs a strategy, or both token limits. Unless tool approval is disabled, every run needs a session.

    Raises:
        ValueError: A token limit is not positive, or the limit of output tokens is not less than that of the context window.
    """
    window = _Window(max_context_window_tokens, max_output_tokens, tokenizer)
    history = history_provider or InMemoryHistoryProvider()
    providers: list[ContextProvider | None] = [
        history,
        None if disable_compaction else window.compaction(history, before_compaction_strategy, after_compaction_strategy),
        None if disable_todo else todo_provider or TodoProvider(),
        None if disable_mode else mode_provider or AgentModeProvider(),
        None if disable_memory or memory_store is None else MemoryContextProvider(store=memory_store),
        skills_provider,
        SkillsProvider.from_paths(skills_paths) if skills_paths else None,
        BackgroundAgentsProvider(background_agents, instructions=background_agents_instructions) if background_agents else None,
        *(context_providers or ()),
    ]
    approvals = [] if disable_tool_auto_approval else [ToolApprovalMiddleware(auto_approval_rules=auto_approval_rules)]
    general = DEFAULT_HARNESS_INSTRUCTIONS if harness_instructions is None else harness_instructions
    agent = Agent(
        client,
        f"{general}\n{agent_instructions or ''}".strip() or None,
        id=id,
        name=name,
        description=description,
        tools=[*([] if disable_web_search else _web_search(client)), *normalize_tools(tools)],
        default_options=cast("ChatOptions", {**window.options(), **(default_options or {})}),
        context_providers=[provider for provider in providers if provider is not None],
        middleware=[*approvals, *listed(middleware)],  # outermost, because a person's answers enter the run there
        require_per_service_call_history_persistence=True,
    )
    agent.otel_provider_name = otel_provider_name
    return agent


class _Window:
    """The token limits of a model's context window, and the model options and the compaction that follow from them."""

    def __init__(self, window_tokens: int | None, output_tokens: int | None, tokenizer: TokenizerProtocol | None) -> None:
        for given, key in ((window_tokens, "max_context_window_tokens"), (output_tokens, "max_output_tokens")):
            if given is not None and given <= 0:
                raise ValueError(f"{key} must be positive.")
        if window_tokens is not None and output_tokens is not None and output_tokens >= window_tokens:
            raise ValueError("max_output_tokens must be less than max_context_window_tokens.")
        self._window_tokens = window_tokens
        self._output_tokens = output_tokens
        self._tokenizer = tokenizer

    def options(self) -> dict[str, JsonValue]:
        """Return the limit of output tokens as an option of model calls; an empty dict without a limit."""
        return {} if self._output_tokens is None else {"max_tokens": self._output_tokens}

    def compaction(
        self, history: HistoryProvider, before: CompactionStrategy | None, after: CompactionStrategy | None
    ) -> CompactionProvider | None:
        """Return a context provider that shortens the conversation before a run (`before`) and the stored messages after it (`after`).

        If both token limits are set, strategies that are not given have defaults. Return `None` without any strategy.
        """
        if self._window_tokens is not None and self._output_tokens is not None:
            before = before or ContextWindowCompactionStrategy(
                max_context_window_tokens=self._window_tokens, max_output_tokens=self._output_tokens, tokenizer=self._tokenizer
            )
            after = after or ToolResultCompactionStrategy(keep_last_tool_call_groups=KEPT_TOOL_GROUPS)
        if before is None and after is None:
            return None
        return CompactionProvider(
            before_strategy=before, after_strategy=after, tokenizer=self._tokenizer, history_source_id=history.source_id
        )


def _web_search(client: SupportsChatGetResponse) -> list[Any]:
    if isinstance(client, SupportsWebSearchTool):
        return [client.get_web_search_tool()]
    name = type(client).__name__
    logger.warning("web search not supported client=%s fix='pass disable_web_search=True to omit this warning'", name)
    return []

"""The tools with which an agent uses its memory (`MemoryContextProvider`). Models receive the tools' names and docstrings."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Protocol

import anyio.to_thread

from gateway.agents.providers.memory_records import MemoryIndexEntry, MemoryTopicRecord
from gateway.agents.providers.memory_store import MemoryStore
from gateway.sessions.session import AgentSession, SupportsAgentRun
from gateway.tools.function import FunctionTool

MAX_FOUND = 100
"""Maximum number of messages that one search in earlier conversations returns."""


class TopicMemory(Protocol):
    """The methods of `MemoryContextProvider` (an agent's memory of facts by topic) that the memory tools use."""

    source_id: str
    store: MemoryStore

    async def index(self, session: AgentSession) -> list[MemoryIndexEntry]:
        """Return the index of the memory: one entry with a summary per topic."""
        ...

    async def topic(self, session: AgentSession, topic: str) -> MemoryTopicRecord | None:
        """Return the topic with this name or slug (file name), or `None`."""
        ...

    async def remember(self, session: AgentSession, topic: str, memory: str) -> MemoryTopicRecord:
        """Add the fact `memory` to a topic, and return the changed topic."""
        ...

    async def forget(self, session: AgentSession, topic: str) -> bool:
        """Delete a topic with its facts; return false if it does not exist."""
        ...

    async def consolidate(self, agent: SupportsAgentRun, session: AgentSession, *, force: bool) -> int:
        """Have a model shorten the topics, if that is due or with `force`; return the number of changed topics."""
        ...


def memory_tools(provider: TopicMemory, agent: SupportsAgentRun, session: AgentSession) -> list[FunctionTool[..., Any]]:
    """Return the tools with which an agent reads and changes its memory during one run."""
    tools = _MemoryTools(provider, agent, session)
    functions: Mapping[str, tuple[Callable[..., Any], dict[str, bool]]] = {
        "list_memory_topics": (tools.topics, {"readOnlyHint": True}),
        "read_memory_topic": (tools.read, {"readOnlyHint": True}),
        "write_memory": (tools.write, {}),
        "delete_memory_topic": (tools.delete, {"destructiveHint": True}),
        "search_memory_transcripts": (tools.search, {"readOnlyHint": True}),
        "consolidate_memories": (tools.consolidate, {}),
    }
    return [FunctionTool[..., Any](function, name=name, annotations=hints or None) for name, (function, hints) in functions.items()]


class _MemoryTools:
    def __init__(self, provider: TopicMemory, agent: SupportsAgentRun, session: AgentSession) -> None:
        self._provider = provider
        self._agent = agent
        self._session = session

    async def topics(self) -> str:
        """List the topics in your memory, each with a summary."""
        return _dump([entry.to_dict() for entry in await self._provider.index(self._session)])

    async def read(self, topic: str) -> str:
        """Read everything that you remember about a topic, by its name or slug."""
        record = await self._provider.topic(self._session, topic)
        return record.to_markdown() if record is not None else f"Memory topic {topic!r} does not exist; list_memory_topics lists all."

    async def write(self, topic: str, memory: str) -> str:
        """Remember one lasting fact, in one sentence, under a topic with a short name; a new topic is created."""
        return _dump((await self._provider.remember(self._session, topic, memory)).to_dict())

    async def delete(self, topic: str) -> str:
        """Delete a topic with all its facts, by its name or slug."""
        if await self._provider.forget(self._session, topic):
            return f"Memory topic {topic!r} is deleted."
        return f"Memory topic {topic!r} does not exist; list_memory_topics lists all."

    async def search(self, query: str, session_id: str | None = None, limit: int = 20) -> str:
        """Search the text of earlier conversations, ignoring case; in all of them, or in the one of session_id."""
        store, source_id = self._provider.store, self._provider.source_id
        work = partial(
            store.search_transcripts,
            self._session,
            source_id=source_id,
            query=query,
            session_id=session_id,
            limit=max(1, min(limit, MAX_FOUND)),
        )
        return _dump(await anyio.to_thread.run_sync(work))

    async def consolidate(self) -> str:
        """Shorten all memories by merging duplicates and removing outdated facts."""
        return json.dumps({"consolidated_topics": await self._provider.consolidate(self._agent, self._session, force=True)})


def _dump(found: Sequence[Any] | dict[str, Any]) -> str:
    return json.dumps(found, ensure_ascii=False)

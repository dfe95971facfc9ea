"""`MemoryContextProvider`: a memory of an agent that stores facts by topic, shared by all sessions of an owner (by default, a caller).

Before a run the provider adds an index of the topics, and the topics that share words with the input. After a run a model extracts facts to
remember, and at intervals the model consolidates topics (merges and shortens their facts). If these calls fail, memories are lost, but not
the agent's answer. Whole conversations are stored, too, and their last `recent_turns` turns are loaded. `SemanticMemoryProvider` finds
memories by meaning instead and calls no chat model. The API and the tools are agent-framework's.
"""

from __future__ import annotations

import copy
import json
import logging
import re
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any, cast

import anyio
import anyio.to_thread

from gateway.agents.providers.memory_model import Consolidated, consolidated, extracted
from gateway.agents.providers.memory_records import INDEX_LINE_CHARS, MemoryIndexEntry, MemoryTopicRecord, one_line, timestamp
from gateway.agents.providers.memory_store import MemoryStore
from gateway.chat.chat_context import SupportsChatGetResponse
from gateway.errors import GatewayError
from gateway.json_types import JsonMapping, JsonObject, JsonValue
from gateway.sessions.file_history import FileHistoryProvider
from gateway.sessions.history import HistoryProvider
from gateway.sessions.message_groups import groups_of
from gateway.sessions.session import AgentSession, SupportsAgentRun
from gateway.sessions.session_context import PRINCIPAL_KEY, SessionContext
from gateway.tools.function import FunctionTool
from gateway.types.messages import Message

logger = logging.getLogger(__name__)

DEFAULT_MEMORY_SOURCE_ID = "memory"

MAX_LOADED_CHARS = 20_000
"""Maximum number of characters of one memory topic that are added to a run; the agent reads the rest with a tool."""

MAX_FOUND = 100
"""Maximum number of messages that one search in earlier conversations returns."""

MAX_SESSION_IDS = 200
"""Maximum length of each stored list of session ids.

A memory topic lists the sessions in which its facts were added; the owner's state lists the sessions since topics were last shortened.
"""

CONTEXT_PROMPT = "## Memory\nYour notes from earlier conversations. Use them where they matter; they may be out of date."

INSTRUCTIONS = """\
## Memory

You have a memory that outlives this conversation: topics with facts. MEMORY.md lists the topics; only topics that the input names are
loaded.
- Keep what will matter later (facts, preferences, decisions) with `write_memory`; leave out what only this task needs.
- Before you rely on or correct a topic that is not loaded, read it with `read_memory_topic`; `list_memory_topics` lists all topics.
- `search_memory_transcripts` searches the text of earlier conversations. Use `delete_memory_topic` and `consolidate_memories` only if
  the user asks for it."""

_WORD = re.compile(r"[^\W_][\w-]+")


class MemoryContextProvider(HistoryProvider):
    """Context provider that stores facts by topic and, as a history provider, the conversations.

    If it is the agent's only history provider, the model receives earlier messages only if `recent_turns` is set.
    """

    def __init__(
        self,
        recent_turns: int = 0,
        load_tool_turns: bool = True,
        *,
        store: MemoryStore,
        source_id: str = DEFAULT_MEMORY_SOURCE_ID,
        context_prompt: str | None = None,
        index_line_limit: int = 200,
        index_line_length: int = INDEX_LINE_CHARS,
        selection_limit: int = 3,
        max_extractions: int = 5,
        consolidation_interval: timedelta = timedelta(hours=24),
        consolidation_min_sessions: int = 5,
        extraction_prompt: str | None = None,
        consolidation_prompt: str | None = None,
        consolidation_client: SupportsChatGetResponse | None = None,
        history_message_filter: Callable[[Message], Message | None] | None = None,
        history_dumps: Callable[[JsonValue], str | bytes] | None = None,
        history_loads: Callable[[str | bytes], JsonValue] | None = None,
    ) -> None:
        """Configure the memory; `store` stores the topics and conversations.

        With `max_extractions=0`, no facts are extracted after a run. `recent_turns` is the number of earlier turns that are loaded;
        `load_tool_turns` includes their tool calls. Topics are consolidated (merged and shortened by a model) once `consolidation_interval`
        has passed and `consolidation_min_sessions` sessions have run. `history_message_filter` changes messages before they are stored,
        or drops a message by returning `None`.

        Raises:
            ValueError: A number is too small.
        """
        super().__init__(source_id)
        positive = {
            "index_line_limit": index_line_limit,
            "index_line_length": index_line_length,
            "consolidation_min_sessions": consolidation_min_sessions,
        }
        optional = {"selection_limit": selection_limit, "recent_turns": recent_turns, "max_extractions": max_extractions}
        for minimum, values in ((1, positive), (0, optional)):
            if low := [name for name, value in values.items() if value < minimum]:
                raise ValueError(f"{low[0]} must be at least {minimum}.")
        self.store = store
        self.context_prompt = context_prompt or CONTEXT_PROMPT
        self.index_line_limit = index_line_limit
        self.index_line_length = index_line_length
        self.selection_limit = selection_limit
        self.recent_turns = recent_turns
        self.load_tool_turns = load_tool_turns
        self.max_extractions = max_extractions
        self.consolidation_interval = consolidation_interval
        self.consolidation_min_sessions = consolidation_min_sessions
        self.extraction_prompt = extraction_prompt
        self.consolidation_prompt = consolidation_prompt
        self.consolidation_client = consolidation_client
        self.history_message_filter = history_message_filter
        self.history_dumps = history_dumps
        self.history_loads = history_loads
        self._lock = anyio.Lock()

    @property
    def replays(self) -> bool:
        """Whether the provider loads earlier messages of the conversation into a run: true if `recent_turns` is set."""
        return self.load_messages and self.recent_turns > 0

    @property
    def written_folders(self) -> Sequence[Path]:
        """The folder to which the store writes; empty if the store is not on disk.

        A gateway rejects a folder that contains code or configuration that the gateway runs.
        """
        return () if self.store.folder is None else (self.store.folder,)

    # -- the conversation --------------------------------------------------------------------------------------

    async def get_messages(self, session_id: str | None, *, state: JsonObject | None = None, **kwargs: JsonValue) -> list[Message]:
        """Return the stored messages of a session. `state` names the owner of the memory; without it, the list is empty.

        Raises:
            StorageError: The messages cannot be read.
        """
        return [] if state is None else await self._history(session_id, state).get_messages(session_id)

    async def save_messages(
        self, session_id: str | None, messages: Sequence[Message], *, state: JsonObject | None = None, **kwargs: JsonValue
    ) -> None:
        """Append messages, as changed by `history_message_filter`, to the stored conversation of a session. Raises `StorageError`."""
        kept = list(messages)
        if self.history_message_filter is not None:
            kept = [filtered for message in messages if (filtered := self.history_message_filter(message)) is not None]
        if state is not None and kept:
            await self._history(session_id, state).save_messages(session_id, kept)

    def _history(self, session_id: str | None, state: JsonObject) -> FileHistoryProvider:
        session = AgentSession(session_id=session_id)
        self.store.import_provider_state(session, state=state)
        folder = self.store.get_transcripts_directory(session, source_id=self.source_id)
        return FileHistoryProvider(folder, source_id=self.source_id, dumps=self.history_dumps, loads=self.history_loads)

    # -- around a run ------------------------------------------------------------------------------------------

    async def before_run(self, *, agent: SupportsAgentRun, session: AgentSession, context: SessionContext, state: JsonObject) -> None:
        """Add the memory tools, instructions, recent turns, the index of topics and matching topics to the run."""
        self._bind(session, context, state)
        context.extend_instructions(self.source_id, [INSTRUCTIONS])
        context.extend_tools(self.source_id, _memory_tools(self, agent, session))
        if self.recent_turns:
            messages = await self.get_messages(context.session_id, state=state)
            context.extend_messages(self.source_id, _last_turns(messages, self.recent_turns, self.load_tool_turns))
        try:
            text = await self._shown(session, context)
        except GatewayError as error:
            logger.warning("memories not loaded source=%s error=%s", self.source_id, error)
            return
        context.extend_messages(self.source_id, [Message("user", [text])])

    async def after_run(self, *, agent: SupportsAgentRun, session: AgentSession, context: SessionContext, state: JsonObject) -> None:
        """Store the run's messages, then have a model extract facts and, if due, consolidate topics.

        Raises:
            StorageError: The messages cannot be stored. Failures of the other steps are only logged.
        """
        self._bind(session, context, state)
        await super().after_run(agent=agent, session=session, context=context, state=state)
        try:
            await self._note_session(session)
            if self.max_extractions:
                spoken = [*context.input_messages, *(context.response.messages if context.response is not None else [])]
                for item in (await extracted(_client_of(agent), spoken, self.extraction_prompt))[: self.max_extractions]:
                    await self.remember(session, item.topic, item.memory)
            await self.consolidate(agent, session, force=False)
        except GatewayError as error:
            logger.warning("memories not updated source=%s error=%s", self.source_id, error)

    def _bind(self, session: AgentSession, context: SessionContext, state: JsonObject) -> None:
        self.store.bind(session, str(context.metadata.get(PRINCIPAL_KEY) or "local"))
        state.clear()
        state.update(self.store.export_provider_state(session))

    async def _shown(self, session: AgentSession, context: SessionContext) -> str:
        """Return, as text for the model, the index of topics and up to `selection_limit` topics that share words with the run's input."""
        entries, index = await self._with_store(session, self._index)
        words = _words(" ".join(message.text for message in context.input_messages))
        scored = [(len(words & _words(f"{entry.topic} {entry.summary}")), entry) for entry in entries]
        scored.sort(key=lambda item: (-item[0], item[1].topic.lower()))
        chosen = [entry.slug for score, entry in scored[: self.selection_limit] if score]
        topics = [await self.topic(session, slug) for slug in chosen]
        loaded = [f"### topics/{one.slug}.md\n{_cut(one.to_markdown())}" for one in topics if one is not None]
        return "\n\n".join([f"{self.context_prompt}\n\n### MEMORY.md\n{index}", *loaded])

    # -- what the tools do -------------------------------------------------------------------------------------

    async def index(self, session: AgentSession) -> list[MemoryIndexEntry]:
        """Return the index of the memory: one entry per topic, at most `index_line_limit`. Raises `StorageError`."""
        return (await self._with_store(session, self._index))[0]

    async def topic(self, session: AgentSession, topic: str) -> MemoryTopicRecord | None:
        """Return the memory topic with this name or slug (file name), or `None`. Raises `StorageError`, or `ValueError` without a name."""
        try:
            get = partial(self.store.get_topic, session, source_id=self.source_id, topic=one_line(topic, "topic"))
            return await anyio.to_thread.run_sync(get)
        except FileNotFoundError:
            return None

    async def remember(self, session: AgentSession, topic: str, memory: str) -> MemoryTopicRecord:
        """Add the fact `memory` to a topic, which is created if it does not exist. Return the changed topic.

        Raises:
            ValueError: The topic or the fact is empty.
            StorageError: The topic cannot be read or written.
        """
        name, fact = one_line(topic, "topic"), one_line(memory, "memory")

        def add() -> MemoryTopicRecord:
            try:
                known = self.store.get_topic(session, source_id=self.source_id, topic=name)
            except FileNotFoundError:
                known = MemoryTopicRecord(topic=name, summary=fact, memories=[], updated_at=timestamp())
            ids = [*(one for one in known.session_ids if one != session.session_id), session.session_id][-MAX_SESSION_IDS:]
            record = copy.copy(known)
            facts = [*known.memories, *([] if fact.casefold() in {one.casefold() for one in known.memories} else [fact])]
            record.memories, record.updated_at, record.session_ids = facts, timestamp(), ids
            self.store.write_topic(session, record, source_id=self.source_id)
            self._index(session)
            return record

        return await self._with_store(session, lambda _: add())

    async def forget(self, session: AgentSession, topic: str) -> bool:
        """Delete a topic with all its facts; return false if it does not exist. Raises `StorageError`, or `ValueError` without a name."""

        def delete(_: AgentSession) -> bool:
            try:
                self.store.delete_topic(session, source_id=self.source_id, topic=one_line(topic, "topic"))
            except FileNotFoundError:
                return False
            self._index(session)
            return True

        return await self._with_store(session, delete)

    async def consolidate(self, agent: SupportsAgentRun, session: AgentSession, *, force: bool) -> int:
        """Have a model merge and shorten the facts of all topics, if that is due or with `force`. Return the number of rewritten topics.

        Raises:
            StorageError: A topic cannot be read or written.
        """
        listed: list[MemoryTopicRecord] | None = await self._with_store(session, partial(self._due, force=force))
        if listed is None:
            return 0
        client = self.consolidation_client or _client_of(agent)
        count = 0
        for record in listed:
            answer = await consolidated(client, record, self.consolidation_prompt)
            if answer is not None:
                count += await self._with_store(session, partial(self._put, before=record, answer=answer))
        if count or not listed:
            await self._with_store(session, self._settle)
        return count

    # -- steps, in worker threads and under the lock -----------------------------------------------------------

    async def _with_store(self, session: AgentSession, work: Callable[[AgentSession], Any]) -> Any:
        async with self._lock, self.store.lock(session, source_id=self.source_id):
            return await anyio.to_thread.run_sync(work, session)

    def _index(self, session: AgentSession) -> tuple[list[MemoryIndexEntry], str]:
        limits = {"line_limit": self.index_line_limit, "line_length": self.index_line_length}
        entries = self.store.rebuild_index(session, source_id=self.source_id, **limits)
        return entries, self.store.get_index_text(session, source_id=self.source_id, index_entries=entries, **limits)

    async def _note_session(self, session: AgentSession) -> None:
        def note(_: AgentSession) -> None:
            state = self.store.read_state(session, source_id=self.source_id)
            ids = cast("list[str]", state["sessions_since_consolidation"])
            if session.session_id not in ids:
                state["sessions_since_consolidation"] = [*ids, session.session_id][-MAX_SESSION_IDS:]
                self.store.write_state(session, state, source_id=self.source_id)

        await self._with_store(session, note)


    def _due(self, session: AgentSession, *, force: bool) -> list[MemoryTopicRecord] | None:
        state = self.store.read_state(session, source_id=self.source_id)
        is_time = force or (
            len(cast("list[str]", state["sessions_since_consolidation"])) >= self.consolidation_min_sessions
            and _is_over(state["last_consolidated_at"], self.consolidation_interval)
        )
        return self.store.list_topics(session, source_id=self.source_id) if is_time else None

    def _put(self, session: AgentSession, *, before: MemoryTopicRecord, answer: Consolidated) -> int:
        """Replace the facts of the topic `before` by the model's shortened facts (`answer`). Return 1, or 0 if the topic does not exist.

        Facts that were added during the model call stay, and a topic that was deleted during the call stays deleted.
        """
        try:
            now = self.store.get_topic(session, source_id=self.source_id, topic=before.slug)
        except FileNotFoundError:
            return 0
        seen = {memory.casefold() for memory in before.memories}
        facts = [*answer.memories, *(memory for memory in now.memories if memory.casefold() not in seen)]
        record = MemoryTopicRecord(
            topic=now.topic, summary=answer.summary, memories=facts, updated_at=timestamp(), session_ids=now.session_ids
        )
        record.slug = now.slug
        self.store.write_topic(session, record, source_id=self.source_id)
        return 1

    def _settle(self, session: AgentSession) -> None:
        state: JsonMapping = {
            **self.store.read_state(session, source_id=self.source_id),
            "last_consolidated_at": timestamp(),
            "sessions_since_consolidation": [],
        }
        self.store.write_state(session, state, source_id=self.source_id)
        self._index(session)


def _client_of(agent: SupportsAgentRun) -> SupportsChatGetResponse | None:
    client = getattr(agent, "client", None)
    return cast("SupportsChatGetResponse", client) if callable(getattr(client, "get_response", None)) else None


def _is_over(since: JsonValue, interval: timedelta) -> bool:
    try:
        moment = datetime.fromisoformat(str(since))
    except ValueError:
        return True
    return datetime.now(UTC) - (moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)) >= interval


def _words(text: str) -> set[str]:
    return {word.lower() for word in _WORD.findall(text)}


def _cut(text: str) -> str:
    return text if len(text) <= MAX_LOADED_CHARS else f"{text[:MAX_LOADED_CHARS]}\n[cut; read_memory_topic gives all of it]"


def _last_turns(messages: Sequence[Message], count: int, with_tools: bool) -> list[Message]:
    """Return the messages of the last `count` turns; a turn starts with a user message. `with_tools` includes tool calls and results."""
    marked = [copy.copy(message) for message in messages]
    for message in marked:
        message.additional_properties = dict(message.additional_properties)
    groups = groups_of(marked)
    starts = [group.start for group in groups if group.kind == "user"]
    first = starts[max(0, len(starts) - count)] if starts else 0
    kept = {id(m) for g in groups if g.start >= first and (with_tools or g.kind != "tool_call") for m in g.messages}
    return [message for message, mark in zip(messages, marked, strict=True) if id(mark) in kept]


def _memory_tools(provider: MemoryContextProvider, agent: SupportsAgentRun, session: AgentSession) -> list[FunctionTool[..., Any]]:
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
    """The tools with which an agent uses its memory in one run. Models receive the docstrings."""

    def __init__(self, provider: MemoryContextProvider, agent: SupportsAgentRun, session: AgentSession) -> None:
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

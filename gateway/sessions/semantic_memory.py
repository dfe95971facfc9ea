"""`SemanticMemoryProvider`: context provider that finds earlier inputs and stored texts by their meaning, and adds them to an agent's run.

Texts and embeddings are stored per owner, in the gateway's database, or in a database that the program which creates the provider names.
If a search fails, the run continues without memories.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

from gateway.errors import GatewayError, ToolFailed
from gateway.json_types import JsonObject
from gateway.sessions.session import AgentSession, SupportsAgentRun
from gateway.sessions.session_context import PRINCIPAL_KEY, ContextProvider, SessionContext
from gateway.sessions.sql_history import LazyDatabase
from gateway.tools.base import Complete, Tool
from gateway.tools.context import CallContext
from gateway.tools.drive import drive
from gateway.tools.run_state_tool import RunStateTool
from gateway.tools.toolbox import guard_in
from gateway.types.messages import Message

if TYPE_CHECKING:
    from gateway.storage.engine import Database
    from gateway.storage.memories import Memories, Memory

logger = logging.getLogger(__name__)

MAX_TEXT_CHARS = 8_000
"""Maximum length of a stored text in characters. Longer texts are cut, because embedding models accept about this length."""

CONTEXT_PROMPT = "Memories that may be relevant, most similar first. They may be out of date:"


class Embeds(Protocol):
    """Protocol of an embedding client, which converts texts to vectors."""

    async def get_embeddings(self, values: Sequence[str]) -> Sequence[Any]:
        """Return the embeddings of texts: for each text, in order, an object with the attribute `vector`."""
        ...


class OpensDatabase(Protocol):
    """Protocol of an object that opens a database, such as the gateway's. The object's owner closes the database."""

    async def open(self) -> Database:
        """Open the database if necessary, and return it. Raises `StorageError`."""
        ...


class SemanticMemoryProvider(ContextProvider):
    """Context provider that adds the stored texts (memories) most similar to the input of a run, and stores the input as a new memory.

    With `store_outputs`, the response of the agent is stored too.
    """

    DEFAULT_SOURCE_ID: ClassVar[str] = "semantic_memory"

    def __init__(
        self,
        embedding_client: Embeds,
        url: str | Path | OpensDatabase | None = None,
        *,
        owner: str | None = None,
        collection: str = "memory",
        top_k: int = 5,
        min_similarity: float = 0.3,
        store_outputs: bool = False,
        source_id: str = DEFAULT_SOURCE_ID,
    ) -> None:
        """Store the settings. `embedding_client` converts texts to vectors.

        `url` is a database URL or file path as for `SqlHistoryProvider`, or an object that opens a database. Without `owner`, memories
        belong to the caller of the agent; with `owner`, all callers share them. Each embedding model needs a separate `collection`. At most
        `top_k` memories are added to a run, with a cosine similarity of at least `min_similarity`.
        """
        super().__init__(source_id)
        if top_k < 1 or not -1.0 <= min_similarity <= 1.0:
            raise ValueError("top_k must be at least 1, and min_similarity between -1 and 1.")
        self.embedding_client = embedding_client
        self.owner = owner
        self.collection = collection
        self.top_k = top_k
        self.min_similarity = min_similarity
        self.store_outputs = store_outputs
        self._database: OpensDatabase = LazyDatabase(url) if url is None or isinstance(url, str | Path) else url

    async def remember(self, texts: Sequence[str], *, owner: str | None = None, fields: Mapping[str, object] | None = None) -> None:
        """Store texts with their embeddings as memories of `owner` (default: the provider's owner, else `local`). Empty texts are left out.

        `recall` returns each text with `fields`. Raises `ModelError`, `StorageError`.
        """
        cut = [text.strip()[:MAX_TEXT_CHARS] for text in texts if text.strip()]
        if cut:
            embedded = await self.embedding_client.get_embeddings(cut)
            vectors = [list[float](one.vector) for one in embedded]
            if len(vectors) != len(cut):
                raise ValueError(f"the embedding client returned {len(vectors)} vectors for {len(cut)} texts")
            items = [(text, vector, dict(fields or {})) for text, vector in zip(cut, vectors, strict=True)]
            await (await self._memories()).add(owner or self.owner or "local", self.collection, items)

    async def recall(self, text: str, *, owner: str | None = None) -> list[Memory]:
        """Return at most `top_k` memories (stored texts) of `owner`, the most similar to `text` first. Raises `ModelError`, `StorageError`.

        Memories less similar than `min_similarity` are left out. The default of `owner` is that of `remember`.
        """
        [embedded] = await self.embedding_client.get_embeddings([text[:MAX_TEXT_CHARS]])
        found = await self._memories()
        return await found.search(
            owner or self.owner or "local", self.collection, list[float](embedded.vector), top=self.top_k, at_least=self.min_similarity
        )

    async def forget(self, *, owner: str | None = None) -> int:
        """Delete all memories of an owner in the provider's collection; return their number. Raises `StorageError`."""
        return await (await self._memories()).delete(owner or self.owner or "local", self.collection)

    async def before_run(self, *, agent: SupportsAgentRun, session: AgentSession, context: SessionContext, state: JsonObject) -> None:
        """Search memories that are similar to the input of the run, and add them as one message before the input.

        In a gateway, policy judges the search as a call of the agent's tool `memory_recall`.
        """
        asked = "\n".join(message.text for message in context.input_messages if message.text)
        if not asked.strip():
            return

        async def memory_recall(query: str) -> str:
            return "\n".join(f"- {memory.text}" for memory in await self.recall(query, owner=self._owner_of(context)))

        try:
            found = await _through_gate(RunStateTool(memory_recall, annotations={"readOnlyHint": True}), {"query": asked}, context.call)
        except GatewayError as error:
            logger.warning("memories not searched, run continues without them reason=%r", str(error))
            return
        if found:
            context.extend_messages(self, [Message("user", [f"{CONTEXT_PROMPT}\n{found}"])])

    async def after_run(self, *, agent: SupportsAgentRun, session: AgentSession, context: SessionContext, state: JsonObject) -> None:
        """Store the user's messages of the run's input, and with `store_outputs` the response, as new memories. A failure is logged.

        In a gateway, policy judges this as a call of the agent's tool `memory_store`.
        """
        said = [message.text for message in context.input_messages if message.role == "user"]
        if self.store_outputs and context.response is not None:
            said.append(context.response.text)

        async def memory_store(texts: list[str]) -> None:
            await self.remember(texts, owner=self._owner_of(context), fields={"session": session.session_id})

        try:
            await _through_gate(RunStateTool(memory_store), {"texts": said}, context.call)
        except GatewayError as error:
            logger.warning("memories not stored reason=%r", str(error))

    def _owner_of(self, context: SessionContext) -> str:
        return self.owner or str(context.metadata.get(PRINCIPAL_KEY) or "local")

    async def _memories(self) -> Memories:
        database = await self._database.open()

        from gateway.storage.memories import Memories

        return Memories(database)


async def _through_gate(step: Tool, arguments: JsonObject, call: CallContext) -> str:
    """Call the tool `step` for a run and return the text of its result. In a gateway, the agent's policy applies to the call.

    Raises `ToolFailed` if the call fails, or if policy refuses it.
    """
    guard = guard_in(call)
    outcome = await drive(step if guard is None else guard.step(step), arguments, call.child())
    if not isinstance(outcome, Complete) or outcome.is_error:
        raise ToolFailed(outcome.as_text() if isinstance(outcome, Complete) else f"{step.definition.name} did not finish.")
    return outcome.as_text()

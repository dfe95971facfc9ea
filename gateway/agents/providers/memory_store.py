"""`MemoryStore`: interface for storing an agent's memories and conversations. `MemoryFileStore`: an implementation with files.

Methods block, as in agent-framework; `MemoryContextProvider` calls them in worker threads. The file store follows no symbolic links and
replaces files atomically. The API and the names of files and folders are agent-framework's.
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Callable, Generator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager, nullcontext
from pathlib import Path
from typing import Any, cast

import anyio.to_thread

from gateway.agents.files.store import MAX_FILE_BYTES
from gateway.agents.providers.memory_records import NONE_YET, MemoryIndexEntry, MemoryTopicRecord, slug_of
from gateway.errors import StorageError
from gateway.json_types import JsonMapping, JsonObject, JsonValue
from gateway.sessions.file_history import FileHistoryProvider
from gateway.sessions.session import AgentSession
from gateway.sessions.session_context import PRINCIPAL_KEY
from gateway.storage import line_file
from gateway.storage.contained_folder import ContainedFolder
from gateway.storage.file_names import file_stem, folder_name
from gateway.storage.locks import locked_soon
from gateway.types.messages import Message

LOCK_SECONDS = 10.0
"""Time limit, in seconds, for waiting for the lock of an owner's memories while another process changes them, which takes milliseconds."""


class MemoryStore(ABC):
    """Interface for storing an agent's memories: topics with facts, an index of the topics, and conversations, separately for each owner.

    Methods may block, and raise `StorageError` if the memories cannot be read or written. `source_id` is the id of the context provider.
    """

    @property
    def folder(self) -> Path | None:
        """The folder on disk to which memories are written; `None` if they are not on disk."""
        return None

    def get_owner_id(self, session: AgentSession) -> str | None:
        """Return the id of the owner of a session's memories; `None` if the store does not separate memories by owner."""
        return None

    def bind(self, session: AgentSession, principal: str) -> None:  # noqa: B027  # only stores with owners override it
        """Store the caller that the agent serves (`principal`) in the session, if callers are the owners of memories.

        `MemoryContextProvider` calls this method before each run.
        """

    def export_provider_state(self, session: AgentSession) -> JsonObject:
        """Return a mapping that identifies the owner of a session's memories. `import_provider_state` reads the owner from it."""
        return {}

    def import_provider_state(self, session: AgentSession, *, state: Mapping[str, JsonValue]) -> None:  # noqa: B027
        """Set the owner of a session's memories to the owner that `state`, a result of `export_provider_state`, identifies."""

    def lock(self, session: AgentSession, *, source_id: str) -> AbstractAsyncContextManager[None]:
        """Return a lock that serializes changes of an owner's memories, also between processes if several share the store.

        The lock of this base class does nothing.
        """
        return nullcontext()

    @abstractmethod
    def list_topics(self, session: AgentSession, *, source_id: str) -> list[MemoryTopicRecord]:
        """Return all memory topics of the session's owner."""

    @abstractmethod
    def get_topic(self, session: AgentSession, *, source_id: str, topic: str) -> MemoryTopicRecord:
        """Return the memory topic with this name or slug (file name). Raises `FileNotFoundError` if it does not exist."""

    @abstractmethod
    def write_topic(self, session: AgentSession, record: MemoryTopicRecord, *, source_id: str) -> None:
        """Store a memory topic, replacing an earlier version."""

    @abstractmethod
    def delete_topic(self, session: AgentSession, *, source_id: str, topic: str) -> None:
        """Delete the memory topic with this name or slug. Raises `FileNotFoundError` if it does not exist."""

    @abstractmethod
    def rebuild_index(self, session: AgentSession, *, source_id: str, line_limit: int, line_length: int) -> list[MemoryIndexEntry]:
        """Rebuild the index of memory topics from the topics, and return its entries, at most `line_limit`."""

    @abstractmethod
    def get_index_text(
        self,
        session: AgentSession,
        *,
        source_id: str,
        line_limit: int,
        line_length: int,
        index_entries: Sequence[MemoryIndexEntry] | None = None,
    ) -> str:
        """Return the index of memory topics as text for the model. Without `index_entries`, the index is rebuilt first."""

    @abstractmethod
    def read_state(self, session: AgentSession, *, source_id: str) -> JsonObject:
        """Return the owner's state: `last_consolidated_at` (when topics were last shortened) and `sessions_since_consolidation` (ids)."""

    @abstractmethod
    def write_state(self, session: AgentSession, state: Mapping[str, JsonValue], *, source_id: str) -> None:
        """Store when the memory topics of the session's owner were last shortened, and the ids of the owner's sessions since then.

        `state` has the keys `last_consolidated_at` and `sessions_since_consolidation`, as the result of `read_state`.
        """

    @abstractmethod
    def get_transcripts_directory(self, session: AgentSession, *, source_id: str) -> Path:
        """Return the folder with the owner's stored conversations, one JSON Lines file per session."""

    @abstractmethod
    def search_transcripts(
        self, session: AgentSession, *, source_id: str, query: str, session_id: str | None = None, limit: int = 20
    ) -> list[JsonObject]:
        """Return the messages of the owner's stored conversations whose text contains `query`, ignoring case; at most `limit`.

        With `session_id`, search only that session. Raises `ValueError` for an empty query.
        """


class MemoryFileStore(MemoryStore):
    """Stores an agent's memories in one folder per owner, which several processes may share.

    The folder contains `MEMORY.md` (the index), `topics/<slug>.md`, `transcripts/<session>.jsonl` (conversations) and `state.json`.
    """

    def __init__(
        self,
        base_path: str | Path,
        *,
        kind: str = "memory",
        owner_prefix: str = "",
        owner_state_key: str = PRINCIPAL_KEY,
        index_file_name: str = "MEMORY.md",
        topics_directory_name: str = "topics",
        transcripts_directory_name: str = "transcripts",
        state_file_name: str = "state.json",
        dumps: Callable[[JsonValue], str | bytes] | None = None,
        loads: Callable[[str | bytes], JsonValue] | None = None,
    ) -> None:
        """Use the folder `base_path`, and create it if it does not exist.

        `session.state[owner_state_key]` is the owner of a session's memories; by default the caller that the agent serves.

        Raises:
            StorageError: The folder cannot be created.
        """
        self._folder = ContainedFolder(base_path)
        self.base_path = Path(base_path)
        self.kind = kind
        self.owner_prefix = owner_prefix
        self.owner_state_key = owner_state_key
        self.index_file_name = index_file_name
        self.topics_directory_name = topics_directory_name
        self.transcripts_directory_name = transcripts_directory_name
        self.state_file_name = state_file_name
        self.dumps = dumps or json.dumps
        self.loads = loads or json.loads

    @property
    def folder(self) -> Path:
        """The folder that contains the folders of all owners: `base_path`."""
        return self.base_path

    # -- owners ------------------------------------------------------------------------------------------------

    def get_owner_id(self, session: AgentSession) -> str:
        """Return the id of the owner of a session's memories. Raises `RuntimeError` if the session has no owner."""
        owner = session.state.get(self.owner_state_key)
        if owner is None:
            raise RuntimeError(f"The memories have no owner: set session.state[{self.owner_state_key!r}].")
        return str(owner)

    def bind(self, session: AgentSession, principal: str) -> None:
        """Make the caller (`principal`) the owner of the session's memories, unless the program chose another `owner_state_key`."""
        if self.owner_state_key == PRINCIPAL_KEY:
            session.state[PRINCIPAL_KEY] = principal

    def export_provider_state(self, session: AgentSession) -> JsonObject:
        """Return a mapping with the owner of the session's memories under the key `owner_state_key`."""
        return {self.owner_state_key: self.get_owner_id(session)}

    def import_provider_state(self, session: AgentSession, *, state: Mapping[str, JsonValue]) -> None:
        """Set the owner of the session's memories to the value of `owner_state_key` in `state`. Raises `RuntimeError` without that key."""
        if state.get(self.owner_state_key) is None:
            raise RuntimeError(f"The memories have no owner: state[{self.owner_state_key!r}] is missing.")
        session.state[self.owner_state_key] = state[self.owner_state_key]

    def lock(self, session: AgentSession, *, source_id: str) -> AbstractAsyncContextManager[None]:
        """Return a lock on the file `.changing.lock` in the owner's folder, which serializes changes across processes."""
        return self._locked(self._root(session, source_id))

    @asynccontextmanager
    async def _locked(self, root: str) -> AsyncGenerator[None]:
        with _named(root):
            await anyio.to_thread.run_sync(self._folder.make_folder, root)
        async with locked_soon(self._folder.root / root / ".changing", timeout_seconds=LOCK_SECONDS):
            yield

    # -- topics and index --------------------------------------------------------------------------------------

    def list_topics(self, session: AgentSession, *, source_id: str) -> list[MemoryTopicRecord]:
        """Return all memory topics of the session's owner, sorted by name."""
        folder = f"{self._root(session, source_id)}/{self.topics_directory_name}"
        with _named(folder):
            names = self._folder.children(folder)[0]
        found = [self._topic(folder, name.removesuffix(".md")) for name in names if name.endswith(".md")]
        return sorted((record for record in found if record is not None), key=lambda record: (record.topic.lower(), record.updated_at))

    def get_topic(self, session: AgentSession, *, source_id: str, topic: str) -> MemoryTopicRecord:
        """Return the memory topic with this name, slug or file name. Raises `FileNotFoundError` if it does not exist."""
        record = self._topic(f"{self._root(session, source_id)}/{self.topics_directory_name}", slug_of(topic))
        if record is None:
            wanted = " ".join(topic.split()).casefold()
            listed = self.list_topics(session, source_id=source_id)
            record = next((one for one in listed if wanted in (one.topic.casefold(), slug_of(one.slug))), None)
        if record is None:
            raise FileNotFoundError(f"No memory topic named {topic!r} was found for this owner.")
        return record

    def write_topic(self, session: AgentSession, record: MemoryTopicRecord, *, source_id: str) -> None:
        """Write the Markdown file of a memory topic."""
        path = f"{self._root(session, source_id)}/{self.topics_directory_name}/{record.slug}.md"
        self._write(path, f"{record.to_markdown()}\n")

    def delete_topic(self, session: AgentSession, *, source_id: str, topic: str) -> None:
        """Delete the Markdown file of a memory topic. Raises `FileNotFoundError` if the topic does not exist."""
        record = self.get_topic(session, source_id=source_id, topic=topic)
        path = f"{self._root(session, source_id)}/{self.topics_directory_name}/{record.slug}.md"
        with _named(path):
            self._folder.delete(path)

    def rebuild_index(self, session: AgentSession, *, source_id: str, line_limit: int, line_length: int) -> list[MemoryIndexEntry]:
        """Build the index of memory topics, write its file if it changed, and return the entries, at most `line_limit`."""
        topics = self.list_topics(session, source_id=source_id)
        entries = [MemoryIndexEntry.from_topic_record(topic) for topic in topics[:line_limit]]
        self._write_index(session, source_id, entries, line_length)
        return entries

    def get_index_text(
        self,
        session: AgentSession,
        *,
        source_id: str,
        line_limit: int,
        line_length: int,
        index_entries: Sequence[MemoryIndexEntry] | None = None,
    ) -> str:
        """Update the index file, and return the index of memory topics as text for the model. Without `index_entries`, rebuild it first."""
        if index_entries is None:
            index_entries = self.rebuild_index(session, source_id=source_id, line_limit=line_limit, line_length=line_length)
        return self._write_index(session, source_id, index_entries[:line_limit], line_length).strip()

    def _write_index(self, session: AgentSession, source_id: str, entries: Sequence[MemoryIndexEntry], line_length: int) -> str:
        listed = [entry.to_pointer_line(max_length=line_length) for entry in entries] or [NONE_YET]
        text = "\n".join(["# MEMORY", "", *listed, ""])
        path = f"{self._root(session, source_id)}/{self.index_file_name}"
        if self._read(path) != text:
            self._write(path, text)
        return text

    def _topic(self, folder: str, slug: str) -> MemoryTopicRecord | None:
        text = self._read(f"{folder}/{slug}.md")
        if text is None:
            return None
        record = MemoryTopicRecord.from_markdown(text, fallback_topic=slug.replace("-", " ").strip() or "memory topic")
        record.slug = slug  # the file keeps its name, even if its heading has another slug
        return record

    # -- state and conversations -------------------------------------------------------------------------------

    def read_state(self, session: AgentSession, *, source_id: str) -> JsonObject:
        """Return the owner's state from the state file: when topics were last shortened, and the ids of the sessions since then."""
        path = f"{self._root(session, source_id)}/{self.state_file_name}"
        text = self._read(path)
        try:
            found: JsonValue = {} if text is None else self.loads(text)
        except ValueError:
            found = None
        if not isinstance(found, dict):
            raise StorageError(f"{path!r} below {str(self._folder.root)!r} is damaged: it is not a JSON object. Repair or move it.")
        state: JsonObject = {"last_consolidated_at": None, "sessions_since_consolidation": [], **cast("JsonObject", found)}
        if not isinstance(state["sessions_since_consolidation"], list):
            state["sessions_since_consolidation"] = []
        if not isinstance(state["last_consolidated_at"], str | None):
            state["last_consolidated_at"] = None
        return state

    def write_state(self, session: AgentSession, state: Mapping[str, JsonValue], *, source_id: str) -> None:
        """Write to the owner's state file when the memory topics were last shortened, and the ids of the sessions since then (`state`)."""
        text = self.dumps(dict(state))
        self._write(f"{self._root(session, source_id)}/{self.state_file_name}", f"{text if isinstance(text, str) else text.decode()}\n")

    def get_transcripts_directory(self, session: AgentSession, *, source_id: str) -> Path:
        """Return the folder with the owner's stored conversations, one JSON Lines file per session."""
        return self._folder.root / self._root(session, source_id) / self.transcripts_directory_name

    def search_transcripts(
        self, session: AgentSession, *, source_id: str, query: str, session_id: str | None = None, limit: int = 20
    ) -> list[JsonObject]:
        """Return the messages of the owner's stored conversations whose text contains `query`. Lines that are not messages are skipped."""
        wanted = query.strip().casefold()
        if not wanted:
            raise ValueError("query must not be empty.")
        folder = f"{self._root(session, source_id)}/{self.transcripts_directory_name}"
        only = None if session_id is None else f"{file_stem(session_id, prefix=FileHistoryProvider.SESSION_PREFIX)}.jsonl"
        with _named(folder):
            names = [name for name in self._folder.children(folder)[0] if name.endswith(".jsonl") and only in (None, name)]
        found: list[JsonObject] = []
        for name in names:
            for number, line in enumerate((self._bytes(f"{folder}/{name}", line_file.MAX_FILE_BYTES) or b"").split(b"\n"), 1):
                message = self._message(line)
                if message is not None and wanted in message.text.casefold():
                    whose = FileHistoryProvider.session_of(name)
                    found.append({"session_id": whose, "line_number": number, "role": message.role, "text": message.text.strip()})
                    if len(found) >= limit:
                        return found
        return found

    def _message(self, line: bytes) -> Message | None:
        if not line.strip():
            return None
        try:
            decoded = self.loads(line.decode())
            return Message.from_dict(dict(cast("JsonMapping", decoded))) if isinstance(decoded, Mapping) else None
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
            return None

    # -- files -------------------------------------------------------------------------------------------------

    def _root(self, session: AgentSession, source_id: str) -> str:
        return f"{folder_name(source_id)}/{folder_name(self.owner_prefix + self.get_owner_id(session))}/{self.kind}"

    def _bytes(self, path: str, limit: int) -> bytes | None:
        with _named(path):
            return self._folder.read(path, max_bytes=limit)

    def _read(self, path: str) -> str | None:
        data = self._bytes(path, MAX_FILE_BYTES)
        with _named(path):
            return None if data is None else data.decode()

    def _write(self, path: str, text: str) -> None:
        data = text.encode("utf-8", "replace")
        if len(data) > MAX_FILE_BYTES:
            raise StorageError(f"{path!r} would have {len(data)} bytes, more than {MAX_FILE_BYTES}: consolidate or delete memories.")
        with _named(path):
            self._folder.write(path, data, overwrite=True, new_mode=0o600)


@contextmanager
def _named(path: str) -> Generator[None, Any, None]:
    """Convert file errors inside a `with` block to `StorageError`, whose message contains `path`."""
    try:
        yield
    except UnicodeDecodeError:
        raise StorageError(f"The memory file {path!r} is not UTF-8 text. Repair or move it.") from None
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else None
        raise StorageError(f"The memory file {path!r} cannot be used: {reason or error}.") from None

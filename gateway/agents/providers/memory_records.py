"""`MemoryTopicRecord`: a topic of an agent's memory with its facts. `MemoryIndexEntry`: the line of a topic in the memory's index.

Both can be converted to Markdown in agent-framework's format.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from typing import cast

from gateway.json_types import JsonMapping, JsonObject

MAX_SLUG_CHARS = 100
INDEX_LINE_CHARS = 150

NONE_YET = "- none yet"
"""Text in place of an empty list in the files of memory topics and in the index."""


@dataclass(slots=True, kw_only=True)
class MemoryTopicRecord:
    """A topic of an agent's memory, with its facts (`memories`) and the ids of the sessions in which they were added.

    Each fact is one line. Duplicate facts are removed, ignoring case.

    Raises:
        ValueError: The topic is empty.
    """

    topic: str
    slug: str = ""
    summary: str
    memories: list[str]
    updated_at: str
    session_ids: list[str] = field(default_factory=list[str])

    def __post_init__(self) -> None:
        self.topic = one_line(self.topic, "topic")
        self.slug = slug_of(self.slug or self.topic)
        self.memories = _unique(self.memories)
        self.summary = _summary(self.summary, self.memories)
        self.session_ids = _unique(self.session_ids or [])

    def to_dict(self) -> JsonObject:
        """Return the topic as a JSON object."""
        return asdict(self)

    @classmethod
    def from_dict(cls, raw_record: JsonMapping) -> MemoryTopicRecord:
        """Create a topic from the JSON object that `to_dict` returned.

        Raises:
            ValueError: A value is missing or has a wrong type.
        """
        texts = _texts(raw_record, "topic", "slug", "summary", "updated_at")
        lists: list[list[str]] = []
        for key in ("memories", "session_ids"):
            found = raw_record.get(key)
            if not isinstance(found, list) or not all(isinstance(item, str) for item in cast("list[object]", found)):
                raise ValueError(f"`{key}` of a memory topic must be a list of texts.")
            lists.append(cast("list[str]", found))
        topic, slug, summary, updated_at = texts
        return cls(topic=topic, slug=slug, summary=summary, memories=lists[0], updated_at=updated_at, session_ids=lists[1])

    def to_markdown(self) -> str:
        """Return the topic as Markdown, the text of its file without the last line break."""
        head = [f"# {self.topic}", "", f"Updated: {self.updated_at}", f"Sessions: {', '.join(self.session_ids) or '-'}", ""]
        summary = ["## Summary", *(_escaped(line) for line in self.summary.splitlines()), ""]
        return "\n".join([*head, *summary, "## Memories", *([f"- {_escaped(memory)}" for memory in self.memories] or [NONE_YET])])

    @classmethod
    def from_markdown(cls, markdown: str, *, fallback_topic: str | None = None) -> MemoryTopicRecord:
        """Parse a topic from Markdown, the text of its file, which a person may have edited.

        Raises:
            ValueError: The text has no heading, and `fallback_topic` is not set.
        """
        topic, updated_at, sessions, section = fallback_topic, timestamp(), "-", ""
        summary: list[str] = []
        memories: list[str] = []
        for line in (raw.strip() for raw in markdown.splitlines()):
            if line.startswith("# "):
                topic, section = line[2:], ""
            elif line in ("## Summary", "## Memories"):
                section = line[3:]
            elif section == "Summary" and line:
                summary.append(_unescaped(line))
            elif section == "Memories" and line.startswith("- ") and line != NONE_YET:
                memories.append(_unescaped(line[2:].strip()))
            elif not section and line.startswith("Updated: "):
                updated_at = line.removeprefix("Updated: ").strip()
            elif not section and line.startswith("Sessions: "):
                sessions = line.removeprefix("Sessions: ").strip()
        if topic is None:
            raise ValueError("A memory topic needs a heading '# <topic>'.")
        ids = [] if sessions == "-" else sessions.split(",")
        return cls(topic=topic, summary="\n".join(summary), memories=memories, updated_at=updated_at, session_ids=ids)


@dataclass(slots=True)
class MemoryIndexEntry:
    """One line of the index of an agent's memory: a topic with its summary.

    Raises:
        ValueError: The topic is empty.
    """

    topic: str
    slug: str
    summary: str
    updated_at: str

    def __post_init__(self) -> None:
        self.topic = one_line(self.topic, "topic")
        self.slug = slug_of(self.slug)
        self.summary = _summary(" ".join(self.summary.split()), [])

    def to_dict(self) -> dict[str, str]:
        """Return the index entry as a JSON object."""
        return asdict(self)

    @classmethod
    def from_dict(cls, raw_entry: JsonMapping) -> MemoryIndexEntry:
        """Create an index entry from the JSON object that `to_dict` returned.

        Raises:
            ValueError: A value is missing or has a wrong type.
        """
        return cls(*_texts(raw_entry, "topic", "slug", "summary", "updated_at"))

    @classmethod
    def from_topic_record(cls, record: MemoryTopicRecord) -> MemoryIndexEntry:
        """Return the index entry for a memory topic."""
        return cls(record.topic, record.slug, record.summary, record.updated_at)

    def to_pointer_line(self, *, max_length: int = INDEX_LINE_CHARS) -> str:
        """Return the index entry as a line of Markdown that links the topic's file, shortened to `max_length` characters."""
        line = f"- [{self.topic}](topics/{self.slug}.md): {self.summary}"
        if len(line) <= max_length:
            return line
        return line[:max_length] if max_length <= 3 else f"{line[: max_length - 3].rstrip()}..."


def one_line(text: str, name: str) -> str:
    """Return the text as one line: line breaks and repeated spaces become single spaces.

    Raises:
        ValueError: The text is empty; the error message contains `name`.
    """
    if not (line := " ".join(text.split())):
        raise ValueError(f"{name} must not be empty.")
    return line


def slug_of(topic: str) -> str:
    """Return the slug of a memory topic, which is the name of the topic's file without extension.

    It contains lower-case ASCII letters, digits and `-`. If the name has other letters or is too long, a digest keeps the slugs of
    different names apart. Names that differ only in case or punctuation may have the same slug, and then name the same topic.

    Raises:
        ValueError: The topic is empty.
    """
    topic = one_line(topic, "topic")
    slug = re.sub(r"[^a-z0-9]+", "-", topic.lower()).strip("-")
    digest = hashlib.sha256(topic.casefold().encode("utf-8", "surrogatepass")).hexdigest()[:8]
    if any(char.isalnum() and not char.isascii() for char in topic):
        slug = f"{slug or 'memory-topic'}-{digest}"
    if len(slug) > MAX_SLUG_CHARS:
        slug = f"{slug[: MAX_SLUG_CHARS - 9].rstrip('-')}-{digest}"
    return slug or "memory-topic"


def timestamp() -> str:
    """Return the current time in UTC, in ISO 8601 format without fractions of seconds."""
    return datetime.now(UTC).replace(microsecond=0).isoformat()


def _unique(texts: Sequence[str]) -> list[str]:
    first: dict[str, str] = {}
    for line in (" ".join(text.split()) for text in texts):
        first.setdefault(line.casefold(), line)
    return [line for line in first.values() if line]


def _summary(given: str, memories: Sequence[str]) -> str:
    return given.strip() or " ".join(memories[:2]) or "No summary yet."


def _texts(data: JsonMapping, *keys: str) -> list[str]:
    found = [data.get(key) for key in keys]
    if not all(isinstance(value, str) for value in found):
        raise ValueError(f"A memory needs {', '.join(f'`{key}`' for key in keys)}, all text.")
    return cast("list[str]", found)


def _escaped(line: str) -> str:
    """Put a backslash before a line that Markdown would read as a heading."""
    return f"\\{line}" if line.lstrip().lstrip("\\").startswith("#") else line


def _unescaped(line: str) -> str:
    return line[1:] if line.startswith("\\") and line.lstrip("\\").startswith("#") else line

"""What an agent remembers about one topic, as a record and as the Markdown file it is kept in. The file format is agent-framework's."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import cast

from gateway.json_types import JsonMapping, JsonObject

MAX_SLUG_CHARS = 100
INDEX_LINE_CHARS = 150

NONE_YET = "- none yet"
"""What an empty list says, in topics and in the index."""


class MemoryTopicRecord:
    """One topic: what is remembered about it, and the sessions that it comes from."""

    __slots__ = ("memories", "session_ids", "slug", "summary", "topic", "updated_at")

    def __init__(
        self,
        *,
        topic: str,
        slug: str | None = None,
        summary: str,
        memories: Sequence[str],
        updated_at: str,
        session_ids: Sequence[str] | None = None,
    ) -> None:
        """Raises `ValueError` for an empty topic. A memory is one line; the same one, in whatever case, is kept once."""
        self.topic = one_line(topic, "topic")
        self.slug = slug_of(slug or self.topic)
        self.memories = _unique(memories)
        self.summary = _summary(summary, self.memories)
        self.updated_at = updated_at
        self.session_ids = _unique(session_ids or [])

    def to_dict(self) -> JsonObject:
        """JSON form."""
        return {
            "topic": self.topic,
            "slug": self.slug,
            "summary": self.summary,
            "memories": list(self.memories),
            "updated_at": self.updated_at,
            "session_ids": list(self.session_ids),
        }

    @classmethod
    def from_dict(cls, raw_record: JsonMapping) -> MemoryTopicRecord:
        """The inverse of `to_dict`.

        Raises:
            ValueError: A value is missing or of another type.
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
        """The text of its file, without the last line break."""
        head = [f"# {self.topic}", "", f"Updated: {self.updated_at}", f"Sessions: {', '.join(self.session_ids) or '-'}", ""]
        summary = ["## Summary", *(_escaped(line) for line in self.summary.splitlines()), ""]
        return "\n".join([*head, *summary, "## Memories", *([f"- {_escaped(memory)}" for memory in self.memories] or [NONE_YET])])

    @classmethod
    def from_markdown(cls, markdown: str, *, fallback_topic: str | None = None) -> MemoryTopicRecord:
        """Read a file's text; a person may have edited it.

        Raises:
            ValueError: It has no heading, and there is no `fallback_topic`.
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

    def __eq__(self, other: object) -> bool:
        return isinstance(other, MemoryTopicRecord) and self.to_dict() == other.to_dict()

    __hash__ = None  # pyright: ignore[reportAssignmentType]  # mutable

    def __repr__(self) -> str:
        return f"MemoryTopicRecord({self.to_dict()})"


class MemoryIndexEntry:
    """One line of the index."""

    __slots__ = ("slug", "summary", "topic", "updated_at")

    def __init__(self, topic: str, slug: str, summary: str, updated_at: str) -> None:
        """Raises `ValueError` for an empty topic."""
        self.topic = one_line(topic, "topic")
        self.slug = slug_of(slug)
        self.summary = _summary(" ".join(summary.split()), [])
        self.updated_at = updated_at

    def to_dict(self) -> dict[str, str]:
        """JSON form."""
        return {"topic": self.topic, "slug": self.slug, "summary": self.summary, "updated_at": self.updated_at}

    @classmethod
    def from_dict(cls, raw_entry: JsonMapping) -> MemoryIndexEntry:
        """The inverse of `to_dict`.

        Raises:
            ValueError: A value is missing or of another type.
        """
        return cls(*_texts(raw_entry, "topic", "slug", "summary", "updated_at"))

    @classmethod
    def from_topic_record(cls, record: MemoryTopicRecord) -> MemoryIndexEntry:
        """The line for a topic."""
        return cls(record.topic, record.slug, record.summary, record.updated_at)

    def to_pointer_line(self, *, max_length: int = INDEX_LINE_CHARS) -> str:
        """The line, cut where it is longer."""
        line = f"- [{self.topic}](topics/{self.slug}.md): {self.summary}"
        if len(line) <= max_length:
            return line
        return line[:max_length] if max_length <= 3 else f"{line[: max_length - 3].rstrip()}..."

    def __eq__(self, other: object) -> bool:
        return isinstance(other, MemoryIndexEntry) and self.to_dict() == other.to_dict()

    __hash__ = None  # pyright: ignore[reportAssignmentType]  # mutable

    def __repr__(self) -> str:
        return f"MemoryIndexEntry({self.to_dict()})"


def one_line(text: str, name: str) -> str:
    """The text with single spaces.

    Raises:
        ValueError: Nothing is left.
    """
    if not (line := " ".join(text.split())):
        raise ValueError(f"{name} must not be empty.")
    return line


def slug_of(topic: str) -> str:
    """The name of a topic's file. Topics in other scripts than Latin get a digest, so that two of them are not one file."""
    topic = one_line(topic, "topic")
    slug = re.sub(r"[^a-z0-9]+", "-", topic.lower()).strip("-")
    digest = hashlib.sha256(topic.casefold().encode("utf-8", "surrogatepass")).hexdigest()[:8]
    if any(char.isalnum() and not char.isascii() for char in topic):
        slug = f"{slug or 'memory-topic'}-{digest}"
    if len(slug) > MAX_SLUG_CHARS:
        slug = f"{slug[: MAX_SLUG_CHARS - 9].rstrip('-')}-{digest}"
    return slug or "memory-topic"


def timestamp(moment: datetime | None = None) -> str:
    """A moment, or now, as it is written down."""
    return (moment or datetime.now(UTC)).replace(microsecond=0).isoformat()


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
    """So that what was said is never read as a heading."""
    return f"\\{line}" if line.lstrip().lstrip("\\").startswith("#") else line


def _unescaped(line: str) -> str:
    return line[1:] if line.startswith("\\") and line.lstrip("\\").startswith("#") else line

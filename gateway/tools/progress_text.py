"""Words the progress messages of running calls: `Sentences` collects streamed text into sentences, `NewLines` drops repetitions.

Used by agents, workflows and tasks for their own reports; progress of remote servers passes unchanged.
"""

from __future__ import annotations

import re

import anyio

SAY_SECONDS = 0.5
"""Minimum seconds between two reports of one streamed answer."""

MAX_SAID = 2_000
"""Maximum characters of one message. The rest of the text is sent with the next message."""

_SENTENCE = re.compile(r"[.!?\u2026]+[)\]\"'\u201d\u2019\u00bb]*(?=\s)|[\u3002\uff01\uff1f]|\n")
"""The end of a sentence or of a line."""


class NewLines:
    """Drops messages that repeat the message before."""

    def __init__(self) -> None:
        self._last: str | None = None

    def take(self, message: str | None) -> str | None:
        """Return the message if it differs from the last one, else `None`: a report without a message shows that the work continues."""
        if not message or message == self._last:
            return None
        self._last = message
        return message


class Sentences:
    """Collects streamed text, and returns whole sentences, without lines that repeat the line before."""

    def __init__(self) -> None:
        self._text = ""
        self._told_at = float("-inf")
        self._lines = NewLines()

    def add(self, text: str) -> str:
        """Add a part of the text. Return the sentences that are complete; an empty text if the last ones were returned less than
        `SAY_SECONDS` ago.
        """
        self._text += text
        if not self._text or anyio.current_time() - self._told_at < SAY_SECONDS:
            return ""
        unbroken = len(self._text) if len(self._text) > MAX_SAID else 0  # bounds the text that each part searches
        return self._take(max((found.end() for found in _SENTENCE.finditer(self._text)), default=unbroken))

    def rest(self) -> list[str]:
        """Return the text that was not returned yet. Call it after the last part."""
        found: list[str] = []
        while self._text:
            found.append(self._take(len(self._text)))
        return [text for text in found if text]

    def _without_repeats(self, text: str) -> str:
        """Return the text without lines that repeat the line before, in this text or at the end of the previous one."""
        lines = text.strip().split("\n")
        return "\n".join(line for line in lines if not line.strip() or self._lines.take(line.strip())).strip()

    def _take(self, end: int) -> str:
        """Remove and return the text up to `end`, or as many whole words as fit into `MAX_SAID` characters."""
        if end > MAX_SAID:
            space = self._text.rfind(" ", 1, MAX_SAID + 1)
            end = space if space > 0 else MAX_SAID
        text, self._text = self._without_repeats(self._text[:end]), self._text[end:]
        if text:
            self._told_at = anyio.current_time()
        return text

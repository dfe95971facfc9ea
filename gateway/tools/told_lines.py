"""What of a running call becomes progress messages: `Sentences` of streamed text, and `NewLines` without repeats.

Used by agents, workflows and tasks for what they report themselves; progress of remote servers passes unchanged.
"""

from __future__ import annotations

import re

import anyio

SAY_SECONDS = 0.5
"""Sentences of one streamed answer are reported at most this often."""

MAX_SAID = 2_000
"""Characters of one such message; more waits for the next."""

_SENTENCE = re.compile(r"[.!?\u2026]+[)\]\"'\u201d\u2019\u00bb]*(?=\s)|[\u3002\uff01\uff1f]|\n")
"""The end of a sentence or of a line."""


class NewLines:
    """Leaves out messages that repeat the one before."""

    def __init__(self) -> None:
        self._last: str | None = None

    def take(self, message: str | None) -> str | None:
        """Return the message if it is new. `None` stands for a repeated one: the report still shows that the work goes on."""
        if not message or message == self._last:
            return None
        self._last = message
        return message


class Sentences:
    """Collects streamed text, and gives whole sentences, without lines that repeat the line before."""

    def __init__(self) -> None:
        self._text = ""
        self._told_at = float("-inf")
        self._lines = NewLines()

    def add(self, text: str) -> str:
        """Collect a part; return the sentences that are complete, or nothing if the last were given less than `SAY_SECONDS` ago."""
        self._text += text
        if not self._text or anyio.current_time() - self._told_at < SAY_SECONDS:
            return ""
        unbroken = len(self._text) if len(self._text) > MAX_SAID else 0  # or each part would search an ever longer text
        return self._take(max((found.end() for found in _SENTENCE.finditer(self._text)), default=unbroken))

    def rest(self) -> list[str]:
        """Return everything that was not given yet, because nothing is added to it."""
        found: list[str] = []
        while self._text:
            found.append(self._take(len(self._text)))
        return [text for text in found if text]

    def _without_repeats(self, text: str) -> str:
        """Return the text without lines that repeat the line before, in this report or the last."""
        lines = text.strip().split("\n")
        return "\n".join(line for line in lines if not line.strip() or self._lines.take(line.strip())).strip()

    def _take(self, end: int) -> str:
        """Return the text up to `end`, or of a longer text as many whole words as fit."""
        if end > MAX_SAID:
            space = self._text.rfind(" ", 1, MAX_SAID + 1)
            end = space if space > 0 else MAX_SAID
        text, self._text = self._without_repeats(self._text[:end]), self._text[end:]
        if text:
            self._told_at = anyio.current_time()
        return text

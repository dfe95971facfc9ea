"""Prepares texts of progress notifications: `Sentences` collects streamed text into whole sentences, `NewLines` drops repeated messages.

Used by agents, workflows and tasks for their own progress; progress of remote servers is forwarded unchanged.
"""

from __future__ import annotations

import re

import anyio

SEND_SECONDS = 0.5
"""Minimum seconds between two progress messages while a text is streamed. The messages with its rest (`Sentences.rest`) need not wait."""

MAX_CHARS = 2_000
"""Maximum length of one progress message, in characters. The rest of the text is sent with the next message."""

_SENTENCE = re.compile(r"[.!?\u2026]+[)\]\"'\u201d\u2019\u00bb]*(?=\s)|[\u3002\uff01\uff1f]|\n")
"""Matches the end of a sentence or of a line."""


class NewLines:
    """Drops progress messages that are equal to the previous message."""

    def __init__(self) -> None:
        self._last: str | None = None

    def take(self, message: str | None) -> str | None:
        """Return the text of a progress notification, or `None` if the text is empty or equal to the previous text.

        For `None`, the code that sends the notification sends it without a text, because it still shows that the call continues.
        """
        if not message or message == self._last:
            return None
        self._last = message
        return message


class Sentences:
    """Collects streamed text, and returns it in whole sentences for progress messages, without lines that repeat the previous line."""

    def __init__(self) -> None:
        self._text = ""
        self._sent_at = float("-inf")
        self._lines = NewLines()

    def add(self, text: str) -> str:
        """Add a part of the streamed text, and return the complete sentences that were not returned before, at most `MAX_CHARS` characters.

        Returns an empty text if there are none, or if this method returned sentences less than `SEND_SECONDS` ago. If more than `MAX_CHARS`
        characters contain no end of a sentence, an incomplete sentence is returned.
        """
        self._text += text
        if not self._text or anyio.current_time() - self._sent_at < SEND_SECONDS:
            return ""
        unbroken = len(self._text) if len(self._text) > MAX_CHARS else 0  # limits the length of the text that is searched at each call
        return self._take(max((found.end() for found in _SENTENCE.finditer(self._text)), default=unbroken))

    def rest(self) -> list[str]:
        """Return the text that `add` has not returned yet, as a list of messages. Call it after the last part of the streamed text."""
        found: list[str] = []
        while self._text:
            found.append(self._take(len(self._text)))
        return [text for text in found if text]

    def _without_repeats(self, text: str) -> str:
        """Return the text without lines that repeat the previous line.

        The first line is compared with the last line of the text that was returned before.
        """
        lines = text.strip().split("\n")
        return "\n".join(line for line in lines if not line.strip() or self._lines.take(line.strip())).strip()

    def _take(self, end: int) -> str:
        """Remove the collected text up to position `end`, and return it without repeated lines.

        At most `MAX_CHARS` characters are removed, in whole words if possible.
        """
        if end > MAX_CHARS:
            space = self._text.rfind(" ", 1, MAX_CHARS + 1)
            end = space if space > 0 else MAX_CHARS
        text, self._text = self._without_repeats(self._text[:end]), self._text[end:]
        if text:
            self._sent_at = anyio.current_time()
        return text

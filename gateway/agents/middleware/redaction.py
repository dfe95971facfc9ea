"""`RedactionMiddleware`: takes personal data out of what a model is sent, and puts it back into what it answers.

What counts as personal data is a detector's affair: by default the `datafog-core` package (extra `pii`: patterns and check
digits, compiled, in linear time, nothing leaves the process). Names and addresses need a detector with a language model;
any function that gives spans will do.
"""

from __future__ import annotations

import copy
import json
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple, cast

from gateway.chat.middleware import ChatContext, ChatMiddleware, ChatStream
from gateway.errors import ConfigError
from gateway.json_types import JsonMapping, JsonValue
from gateway.middleware import CallNext
from gateway.types.content import Content
from gateway.types.messages import Message
from gateway.types.responses import ChatResponse, ChatResponseUpdate
from gateway.types.streams import ResponseStream

DEFAULT_ENTITIES = ("EMAIL", "PHONE", "SSN", "CREDIT_CARD", "IP_ADDRESS", "JWT", "PRIVATE_KEY")
"""What `datafog-core` looks for here: not dates and postal codes, which most texts need."""

MAX_PLACEHOLDER = 40
"""Longest text that is held back at the end of a streamed part because a placeholder may go on in the next."""


class Finding(NamedTuple):
    """Personal data in a text."""

    start: int
    end: int
    kind: str
    """Such as `EMAIL`; shown in the placeholder."""


Detector = Callable[[str], Sequence[Finding]]


def datafog_detector(entities: Sequence[str] = DEFAULT_ENTITIES, *, locale: str | None = None) -> Detector:
    """A detector of the `datafog-core` package.

    Raises:
        ConfigError: The package is not installed.
    """
    try:
        import datafog_core
    except ImportError:
        raise ConfigError("Redaction needs the package `datafog-core`: pip install 'moongate[pii]', or give a detector.") from None
    wanted = list(entities)

    def detect(text: str) -> list[Finding]:
        found = datafog_core.scan(text, {"entities": wanted} if locale is None else {"entities": wanted, "locale": locale})
        return [Finding(one.codepoint_range.start, one.codepoint_range.end, one.entity_type) for one in found]

    return detect


class RedactionMiddleware(ChatMiddleware):
    """Replaces personal data in messages, tool results and instructions by placeholders such as `[EMAIL_1]`.

    The same value has the same placeholder throughout a request. Placeholders in the answer, and in the arguments of tools
    it calls, become the values again, so the user and the tools see nothing of it; `restore=False` leaves them. History is
    kept as it was said. Images, audio and files are not looked into.
    """

    def __init__(self, detector: Detector | None = None, *, restore: bool = True) -> None:
        """Without a `detector`, `datafog_detector()`.

        Raises:
            ConfigError: The default detector's package is not installed.
        """
        self._detect = detector if detector is not None else datafog_detector()
        self._restore = restore

    async def process(self, context: ChatContext, call_next: CallNext) -> None:
        """Redact what goes out, restore what comes in."""
        values = _Values(self._detect)
        context.messages = [values.hide_in_message(message) for message in context.messages]
        if instructions := context.options.get("instructions"):
            context.options["instructions"] = values.hide(instructions)
        await call_next()
        if not self._restore or not values.by_placeholder:
            return
        if isinstance(context.result, ResponseStream):
            context.result = ResponseStream(_restored(context.result, values), ChatResponse.from_updates)
        elif context.result is not None:
            for message in context.result.messages:
                message.contents = [values.show_in_content(content) for content in message.contents]


@dataclass(slots=True)
class _Values:
    """The personal data of one request."""

    detect: Detector
    by_placeholder: dict[str, str] = field(default_factory=lambda: cast("dict[str, str]", {}))
    placeholders: dict[tuple[str, str], str] = field(default_factory=lambda: cast("dict[tuple[str, str], str]", {}))

    def hide(self, text: str) -> str:
        """The text with placeholders."""
        parts: list[str] = []
        at = 0
        for finding in sorted(self.detect(text)):
            if finding.start < at:
                continue
            parts += [text[at : finding.start], self._placeholder(finding.kind, text[finding.start : finding.end])]
            at = finding.end
        return "".join([*parts, text[at:]])

    def hide_in_message(self, message: Message) -> Message:
        """A copy with placeholders; the message itself, where it has nothing personal."""
        contents = [self._hide_in_content(content) for content in message.contents]
        if all(mine is given for mine, given in zip(contents, message.contents, strict=True)):
            return message
        hidden = copy.copy(message)
        hidden.contents = contents
        return hidden

    def show(self, text: str) -> str:
        """The text with the values again."""
        for placeholder, value in self.by_placeholder.items():
            text = text.replace(placeholder, value)
        return text

    def show_in_content(self, content: Content) -> Content:
        """The content with the values again."""
        return self._changed(content, self.show, ("text", "function_call"))

    def _hide_in_content(self, content: Content) -> Content:
        return self._changed(content, self.hide, ("text", "text_reasoning", "function_call", "function_result"))

    def _changed(self, content: Content, change: Callable[[str], str], kinds: Sequence[str]) -> Content:
        """A copy with its strings changed, of the kinds that count; JSON texts are changed value by value."""
        if content.type not in kinds:
            return content
        key = {"function_call": "arguments", "function_result": "result"}.get(content.type, "text")
        value: JsonValue = getattr(content, key)
        changed = _in_json_text(value, change) if key == "arguments" and isinstance(value, str) else _in_values(value, change)
        if changed == value:
            return content
        mine = copy.copy(content)
        setattr(mine, key, changed)
        return mine

    def _placeholder(self, kind: str, value: str) -> str:
        known = self.placeholders.get((kind, value))
        if known is None:
            number = sum(name == kind for name, _ in self.placeholders) + 1
            known = self.placeholders[(kind, value)] = f"[{kind}_{number}]"
            self.by_placeholder[known] = value
        return known


def _in_values(value: JsonValue, change: Callable[[str], str]) -> JsonValue:
    """A JSON value with every string in it changed; names stay."""
    if isinstance(value, str):
        return change(value)
    if isinstance(value, Mapping):
        return {key: _in_values(item, change) for key, item in cast("JsonMapping", value).items()}
    if isinstance(value, list):
        return [_in_values(item, change) for item in cast("list[JsonValue]", value)]
    return value


def _in_json_text(text: str, change: Callable[[str], str]) -> str:
    """Arguments as a model wrote them; where they are no JSON they are changed as text."""
    try:
        decoded: JsonValue = json.loads(text)
    except ValueError:
        return change(text)
    changed = _in_values(decoded, change)
    return text if changed == decoded else json.dumps(changed, ensure_ascii=False)


async def _restored(inner: ChatStream, values: _Values) -> AsyncGenerator[ChatResponseUpdate, None]:
    """A stream with the values again. A text's end that may begin a placeholder waits for the next part; calls, whose
    arguments come in pieces, come whole at the end."""
    held = ""
    calls: list[ChatResponseUpdate] = []
    last: ChatResponseUpdate | None = None
    try:
        async for update in inner:
            last = update
            contents: list[Content] = []
            for content in update.contents:
                if content.type == "function_call":
                    calls.append(ChatResponseUpdate(contents=[content], role=update.role))
                elif content.type == "text":
                    text = held + (content.text or "")
                    cut = _safe_length(text)
                    held = text[cut:]
                    contents.append(Content.from_text(values.show(text[:cut])))
                else:
                    contents.append(content)
            yield replace(update, contents=contents)
        rest = [Content.from_text(values.show(held))] if held else []
        if calls:
            rest += [values.show_in_content(content) for content in ChatResponse.from_updates(calls).messages[0].contents]
        if rest and last is not None:
            yield replace(last, contents=rest)
    finally:
        await inner.aclose()


def _safe_length(text: str) -> int:
    """How much of a text cannot be the beginning of a placeholder any more."""
    start = text.rfind("[")
    return start if start >= 0 and "]" not in text[start:] and len(text) - start < MAX_PLACEHOLDER else len(text)

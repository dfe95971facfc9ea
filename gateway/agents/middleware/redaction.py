"""`RedactionMiddleware`: replaces personal data in model requests by placeholders, and restores it in the answers.

A detector function finds personal data. The default detector uses the package `datafog-core` (extra `pii`), which compares text with
compiled patterns and verifies check digits, in linear time and without network access. To find names and addresses, pass a detector that
uses a language model.
"""

from __future__ import annotations

import copy
import json
from collections.abc import AsyncGenerator, Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple, cast

from gateway.chat.chat_context import ChatContext, ChatStream
from gateway.chat.chat_middleware import ChatMiddleware
from gateway.errors import ConfigError
from gateway.json_types import JsonValue, map_texts
from gateway.middleware import CallNext
from gateway.types.content import Content
from gateway.types.messages import Message
from gateway.types.responses import ChatResponse, ChatResponseUpdate
from gateway.types.streams import ResponseStream

DEFAULT_ENTITIES = ("EMAIL", "PHONE", "SSN", "CREDIT_CARD", "IP_ADDRESS", "JWT", "PRIVATE_KEY")
"""Entity types that the default detector finds; dates and postal codes are excluded, because most texts need them."""

MAX_PLACEHOLDER = 40
"""Maximum number of characters withheld at the end of a streamed text, because a placeholder may continue in the next update."""


class Finding(NamedTuple):
    """A span of personal data in a text."""

    start: int
    end: int
    kind: str
    """Entity type of the personal data, such as `EMAIL`; the placeholder contains it."""


Detector = Callable[[str], Sequence[Finding]]


def datafog_detector(entities: Sequence[str] = DEFAULT_ENTITIES, *, locale: str | None = None) -> Detector:
    """Return a function that finds personal data of the given types in a text with the package `datafog-core`.

    Raises:
        ConfigError: The package is not installed.
    """
    try:
        import datafog_core
    except ImportError:
        raise ConfigError("Redaction needs the package `datafog-core`: pip install 'moongate[pii]', or pass a detector.") from None
    wanted = list(entities)

    def detect(text: str) -> list[Finding]:
        found = datafog_core.scan(text, {"entities": wanted} if locale is None else {"entities": wanted, "locale": locale})
        return [Finding(one.codepoint_range.start, one.codepoint_range.end, one.entity_type) for one in found]

    return detect


class RedactionMiddleware(ChatMiddleware):
    """Chat middleware that replaces personal data in messages, tool results and instructions by placeholders such as `[EMAIL_1]`.

    A value has the same placeholder throughout a request. Placeholders in the answer and in tool arguments are replaced by the values,
    so users and tools see the original data; `restore=False` leaves the placeholders. The stored history is not redacted. Images, audio
    and files are not searched.
    """

    def __init__(self, detector: Detector | None = None, *, restore: bool = True) -> None:
        """Create the middleware. `detector` finds personal data in a text; the default is `datafog_detector()`.

        Raises:
            ConfigError: The package of the default detector is not installed.
        """
        self._detect = detector if detector is not None else datafog_detector()
        self._restore = restore

    async def process(self, context: ChatContext, call_next: CallNext) -> None:
        """Replace personal data in the model request by placeholders, call the model, and restore the data in the response."""
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
    """The placeholders of one model request and the personal data that they replace."""

    detect: Detector
    by_placeholder: dict[str, str] = field(default_factory=lambda: cast("dict[str, str]", {}))
    placeholders: dict[tuple[str, str], str] = field(default_factory=lambda: cast("dict[tuple[str, str], str]", {}))

    def hide(self, text: str) -> str:
        """Return the text with personal data replaced by placeholders."""
        parts: list[str] = []
        at = 0
        for finding in sorted(self.detect(text)):
            if finding.start < at:
                continue
            parts += [text[at : finding.start], self._placeholder(finding.kind, text[finding.start : finding.end])]
            at = finding.end
        return "".join([*parts, text[at:]])

    def hide_in_message(self, message: Message) -> Message:
        """Return a copy of the message with personal data replaced by placeholders, or the message itself if it has no personal data."""
        contents = [self._hide_in_content(content) for content in message.contents]
        if all(mine is given for mine, given in zip(contents, message.contents, strict=True)):
            return message
        hidden = copy.copy(message)
        hidden.contents = contents
        return hidden

    def show(self, text: str) -> str:
        """Return the text with placeholders replaced by the original values."""
        for placeholder, value in self.by_placeholder.items():
            text = text.replace(placeholder, value)
        return text

    def show_in_content(self, content: Content) -> Content:
        """Return a copy of a text or tool call with placeholders replaced by the original values; return other contents unchanged."""
        return self._changed(content, self.show, ("text", "function_call"))

    def _hide_in_content(self, content: Content) -> Content:
        return self._changed(content, self.hide, ("text", "text_reasoning", "function_call", "function_result"))

    def _changed(self, content: Content, change: Callable[[str], str], kinds: Sequence[str]) -> Content:
        """Apply `change` to all strings in a content and return a changed copy, or the content itself if nothing changed.

        Contents whose type is not in `kinds` are not changed. Tool arguments that are JSON text are changed value by value.
        """
        if content.type not in kinds:
            return content
        key = {"function_call": "arguments", "function_result": "result"}.get(content.type, "text")
        value: JsonValue = getattr(content, key)
        changed = _in_json_text(value, change) if key == "arguments" and isinstance(value, str) else map_texts(value, change)
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


def _in_json_text(text: str, change: Callable[[str], str]) -> str:
    """Apply `change` to the strings in tool arguments that a model wrote as JSON text; text that is not JSON is changed as a whole."""
    try:
        decoded: JsonValue = json.loads(text)
    except ValueError:
        return change(text)
    changed = map_texts(decoded, change)
    return text if changed == decoded else json.dumps(changed, ensure_ascii=False)


async def _restored(inner: ChatStream, values: _Values) -> AsyncGenerator[ChatResponseUpdate, None]:
    """Yield the updates of a model's stream with placeholders replaced by the original values.

    If the end of a text may be the start of a placeholder, it is withheld until the next update. Tool calls, whose arguments are streamed
    in pieces, are yielded complete at the end of the stream.
    """
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
    """Return how many characters of the text can be sent now without cutting a placeholder that may continue in the next update."""
    start = text.rfind("[")
    return start if start >= 0 and "]" not in text[start:] and len(text) - start < MAX_PLACEHOLDER else len(text)

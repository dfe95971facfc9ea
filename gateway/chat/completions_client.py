"""`OpenAIChatCompletionClient`: a client for OpenAI's Chat Completions API, which nearly every local and hosted model server offers."""

from __future__ import annotations

import json
import uuid
from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass, field
from typing import ClassVar, cast

from gateway.chat.argument_repair import raw_arguments, to_call
from gateway.chat.chat_client import OptionsT
from gateway.chat.completions_request import REASONING_DETAILS, to_request
from gateway.chat.hosted import CompletionsTools
from gateway.chat.openai_base import OpenAIClientBase
from gateway.chat.openai_connection import iso_timestamp, usage_contents
from gateway.chat.openai_endpoint import Names
from gateway.chat.responses_items import read_annotation
from gateway.errors import ChatClientInvalidRequestException, ChatClientInvalidResponseException, ModelError
from gateway.json_types import JsonMapping, JsonObject, members_of, objects_in
from gateway.types.content import Content
from gateway.types.messages import Message
from gateway.types.options import ChatOptions
from gateway.types.responses import ChatResponseUpdate

_USAGE = {"prompt_tokens": "input_token_count", "completion_tokens": "output_token_count", "total_tokens": "total_token_count"}
_USAGE_DETAILS = {
    "prompt_tokens_details": {"cached_tokens": "cache_read_input_token_count", "audio_tokens": "prompt/audio_tokens"},
    "completion_tokens_details": {
        "reasoning_tokens": "reasoning_output_token_count",
        "audio_tokens": "completion/audio_tokens",
        "accepted_prediction_tokens": "completion/accepted_prediction_tokens",
        "rejected_prediction_tokens": "completion/rejected_prediction_tokens",
    },
}


class OpenAIChatCompletionClient(CompletionsTools, OpenAIClientBase[OptionsT]):
    """A chat client for the Chat Completions API. Responses may be streamed or requested as a whole."""

    NAMES: ClassVar[Names] = Names(models=("CHAT_COMPLETION_MODEL", "MODEL"), azure_api_version="2024-12-01-preview")

    async def _updates(
        self, messages: Sequence[Message], *, stream: bool, options: ChatOptions
    ) -> AsyncGenerator[ChatResponseUpdate, None]:
        if cast("JsonMapping", options).get("continuation_token") is not None:
            raise ChatClientInvalidRequestException("Chat Completions has no background responses, so it accepts no continuation token.")
        model = self._model_of(options)
        body = to_request(messages, options, self.instruction_role) | {"model": model}
        if not stream:
            yield _whole(await self.connection.answer(model, "/chat/completions", body), model)
            return
        wanted: JsonObject = cast("JsonObject", options).get("stream_options") or {}
        body |= {"stream": True, "stream_options": {"include_usage": True, **wanted}}
        reader = _Reader(model)
        async for chunk in self.connection.events(model, "/chat/completions", body):
            if (update := reader.read(chunk)) is not None:
                yield update
        yield reader.end()


@dataclass(slots=True)
class _Call:
    """A tool call that is assembled from the chunks of a streamed response."""

    id: str = ""
    name: str = ""
    arguments: list[str] = field(default_factory=lambda: list[str]())
    raw: JsonObject = field(default_factory=lambda: cast("JsonObject", {}))


class _Reader:
    """Converts the chunks of a streamed response to updates (parts of a `ChatResponse`).

    Text is yielded at once. Tool calls are yielded at the end, when all their parts have arrived.
    """

    def __init__(self, model: str) -> None:
        self._model = model
        self._calls: dict[int, _Call] = {}
        self._aliases: dict[int, int] = {}
        self._finish_reason: str | None = None
        self._response_id: str | None = None
        self._logprobs: list[JsonObject] = []

    def read(self, chunk: JsonObject) -> ChatResponseUpdate | None:
        """Return the update for a chunk, or `None` if the chunk has nothing to report yet."""
        choices = objects_in(chunk.get("choices"))
        choice = choices[0] if choices else {}
        delta = cast("JsonObject", choice.get("delta") or {})
        contents = _contents(delta)
        for part in objects_in(delta.get("tool_calls")):
            self._add(part)
        contents += usage_contents(chunk.get("usage"), _USAGE, _USAGE_DETAILS)
        reason = cast("str | None", choice.get("finish_reason"))
        self._finish_reason = reason or self._finish_reason
        self._response_id = cast("str | None", chunk.get("id")) or self._response_id
        update = _update(chunk, contents, self._model)
        update.finish_reason = reason
        update.additional_properties = _properties(chunk, choice)
        if has_logprobs := bool(choice.get("logprobs")):
            self._logprobs.append(cast("JsonObject", choice["logprobs"]))
        return update if contents or reason or has_logprobs else None

    def end(self) -> ChatResponseUpdate:
        """Return the last update of the response, which contains the tool calls.

        Raises:
            ModelError: The stream ended before the response was complete.
        """
        if self._finish_reason is None:
            raise ModelError(f"The response of model {self._model!r} broke off.", retryable=True)
        calls = [to_call(c.id or f"call-{uuid.uuid4()}", c.name, "".join(c.arguments), c.raw) for _, c in sorted(self._calls.items())]
        update = ChatResponseUpdate(calls, "assistant", self._response_id)
        if self._logprobs:
            kinds = {kind for part in self._logprobs for kind, value in part.items() if isinstance(value, list)}
            together = {kind: [entry for part in self._logprobs for entry in part.get(kind) or ()] for kind in kinds}
            update.additional_properties = {"logprobs": together}
        return update

    def _add(self, part: JsonObject) -> None:
        given = part.get("index")
        index = given if isinstance(given, int) else max(self._calls, default=0)
        key = self._aliases.get(index, index)
        call_id = cast("str | None", part.get("id"))
        if call_id and key in self._calls and self._calls[key].id not in ("", call_id):
            key = max(self._calls) + 1  # some servers use index 0 for every parallel call
            self._aliases[index] = key
        call = self._calls.setdefault(key, _Call(raw=part))
        call.id = call_id or call.id
        function = cast("JsonObject", part.get("function") or part.get("custom") or {})
        call.name += cast("str | None", function.get("name")) or ""
        call.arguments.append(raw_arguments(function.get("arguments", function.get("input"))))


def _whole(response: JsonObject, model: str) -> ChatResponseUpdate:
    choices = objects_in(response.get("choices"))
    if not choices:
        raise ChatClientInvalidResponseException(f"The response of model {model!r} has no choice.", retryable=True)
    message = cast("JsonObject", choices[0].get("message") or {})
    contents = _contents(message)
    for call in objects_in(message.get("tool_calls")):
        function = cast("JsonObject", call.get("function") or call.get("custom") or {})
        arguments = raw_arguments(function.get("arguments", function.get("input")))
        contents.append(to_call(str(call.get("id") or f"call-{uuid.uuid4()}"), str(function.get("name") or ""), arguments, call))
    update = _update(response, [*contents, *usage_contents(response.get("usage"), _USAGE, _USAGE_DETAILS)], model)
    update.finish_reason = cast("str | None", choices[0].get("finish_reason"))
    update.additional_properties = _properties(response, choices[0])
    update.raw_representation = response
    return update


def _contents(message: JsonObject) -> list[Content]:
    """Return the contents (text, reasoning, refusal, audio) of a message or of a chunk of a streamed message, without tool calls."""
    contents: list[Content] = []
    reasoning = message.get("reasoning_content") or message.get("reasoning")
    if isinstance(reasoning, str) and reasoning:
        contents.append(Content.from_text_reasoning(reasoning))
    if message.get(REASONING_DETAILS):
        contents.append(Content.from_text_reasoning(protected_data=json.dumps(message[REASONING_DETAILS])))
    text = message.get("content")
    if isinstance(text, list):
        text = "".join(str(part.get("text") or "") for part in objects_in(text))
    cited = [made for a in objects_in(message.get("annotations")) if (made := read_annotation(_citation(a))) is not None]
    if text or cited:
        contents.append(Content.from_text(text or "", annotations=cited or None))
    if isinstance(message.get("refusal"), str) and message["refusal"]:
        contents.append(Content.from_text(message["refusal"], additional_properties={"refusal": True}))
    return [*contents, *_audio(members_of(message.get("audio")))]


def _citation(annotation: JsonObject) -> JsonMapping:
    inner = annotation.get(str(annotation.get("type")))
    return cast("JsonMapping", inner) if isinstance(inner, dict) else annotation


def _audio(audio: JsonObject) -> list[Content]:
    properties = {key: audio[key] for key in ("id", "expires_at", "transcript") if audio.get(key) is not None}
    if isinstance(audio.get("data"), str):
        return [Content.from_data(audio["data"], "audio/wav", additional_properties=properties)]
    return [Content.from_text(str(audio["transcript"]))] if audio.get("transcript") else []


def _update(response: JsonObject, contents: list[Content], model: str) -> ChatResponseUpdate:
    update = ChatResponseUpdate(contents, "assistant", cast("str | None", response.get("id")))
    update.model = cast("str | None", response.get("model")) or model
    update.created_at = iso_timestamp(response.get("created"))
    return update


def _properties(response: JsonObject, choice: JsonObject) -> JsonObject | None:
    found = {key: value for key in ("system_fingerprint", "service_tier") if (value := response.get(key)) is not None}
    if choice.get("logprobs"):
        found["logprobs"] = choice["logprobs"]
    if choice.get("content_filter_results"):
        found["content_filter_results"] = choice["content_filter_results"]
    return found or None

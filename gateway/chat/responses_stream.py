"""Converts the events of a streamed response of the Responses API to updates (parts of the response).

Text, reasoning and partial images are yielded at once, other items when they are complete. An update of an unfinished background response
has a continuation token with the position from which the stream can be resumed. While a tool call is incomplete, this position stays before
the call.
"""

from __future__ import annotations

from typing import cast

from gateway.chat.long_running import STATUS, UNFINISHED, OpenAIContinuationToken, to_status
from gateway.chat.openai_connection import iso_timestamp
from gateway.chat.openai_errors import FILTER_CODES, MAX_REASON_CHARACTERS
from gateway.chat.responses_items import read_annotation, read_item, read_reasoning, read_usage, to_image
from gateway.errors import ChatClientContentFilterException, ModelError
from gateway.json_types import JsonMapping, JsonObject, members_of, objects_in
from gateway.types.content import Content
from gateway.types.responses import ChatResponseUpdate


class StreamReader:
    """Converts the events of one streamed response, in order, to updates (parts of a `ChatResponse`).

    `is_done` is true after the last event; `sequence` is the number of the event that was read last.
    """

    def __init__(self, model: str, *, in_background: bool, keeps: bool) -> None:
        """Start reading a response. `keeps` is whether the provider stores the response, so that the next call may refer to it by id.

        `in_background` is whether the provider generates the response without an open connection. Its updates then get continuation tokens,
        with which the stream can be resumed.
        """
        self._model = model
        self.in_background = in_background
        self._keeps = keeps
        self._resumable: int | None = None
        self._open_calls: set[object] = set()
        self._yielded: set[object] = set()
        """Positions of output items of which text or reasoning was already yielded in parts."""
        self._complete: set[object] = set()
        self.response_id: str | None = None
        self.sequence: int | None = None
        self.is_done = False

    def read(self, event: JsonObject) -> ChatResponseUpdate | None:
        """Return the update for an event, or `None` if the event adds nothing to the response.

        Raises:
            ModelError: The event reports that the response failed.
        """
        sequence = event.get("sequence_number")
        if isinstance(sequence, int):
            if self.sequence is not None and sequence <= self.sequence:
                return None  # the event was already received before the stream was resumed
            self.sequence = sequence
        response = cast("JsonMapping", event["response"]) if isinstance(event.get("response"), dict) else None
        contents = self._contents(event)
        if not self._open_calls:
            self._resumable = self.sequence
        update = ChatResponseUpdate(contents, "assistant", self.response_id, self._model)
        if response is not None:
            self._add_response(update, response)
        if isinstance(event.get("logprobs"), list) and event["logprobs"]:
            update.additional_properties = {"logprobs": event["logprobs"]}
        if self.in_background and not self.is_done:
            update.continuation_token = self._token()
        has_content = contents or self.is_done or (response is not None and self.in_background)
        return update if has_content or update.additional_properties else None

    def _token(self) -> dict[str, object] | None:
        if self.response_id is None:
            return None
        token = OpenAIContinuationToken(response_id=self.response_id)
        if self._resumable is not None:
            token["sequence_number"] = self._resumable
        return cast("dict[str, object]", token)

    def _contents(self, event: JsonObject) -> list[Content]:
        match event.get("type"):
            case "response.output_text.delta":
                return [self._part(event, Content.from_text(str(event.get("delta") or "")))]
            case "response.refusal.delta":
                return [self._part(event, Content.from_text(str(event.get("delta") or ""), additional_properties={"refusal": True}))]
            case "response.reasoning_summary_text.delta" | "response.reasoning_text.delta":
                reasoning = Content.from_text_reasoning(str(event.get("delta") or ""), id=cast("str | None", event.get("item_id")))
                return [self._part(event, reasoning)]
            case "response.output_text.annotation.added":
                annotation = read_annotation(cast("JsonMapping", event.get("annotation") or {}))
                return [Content.from_text("", annotations=[annotation])] if annotation is not None else []
            case "response.output_item.added":
                if members_of(event.get("item")).get("type") in ("function_call", "custom_tool_call"):
                    self._open_calls.add(event.get("output_index"))
                return []
            case "response.output_item.done":
                self._open_calls.discard(event.get("output_index"))
                return self._whole_item(members_of(event.get("item")), event.get("output_index"))
            case "response.image_generation_call.partial_image":
                image = to_image(str(event.get("partial_image_b64") or ""))
                image.additional_properties = {"is_partial_image": True, "partial_image_index": event.get("partial_image_index")}
                image_id = cast("str | None", event.get("item_id"))
                return [Content.from_image_generation_tool_result(image_id=image_id, outputs=image)]
            case "response.completed" | "response.incomplete" | "response.cancelled":
                return self._end(members_of(event.get("response")))
            case "response.failed":
                raise failed(self._model, cast("JsonMapping", event.get("response") or {}))
            case "error":
                raise failed(self._model, {"error": event})
            case _:
                return []

    def _part(self, event: JsonObject, content: Content) -> Content:
        self._yielded.add(event.get("output_index"))
        return content

    def _whole_item(self, item: JsonObject, index: object) -> list[Content]:
        self._complete.add(index)
        if item.get("type") == "message" and index in self._yielded:
            return []
        if item.get("type") == "reasoning":
            return read_reasoning(item, seen=index in self._yielded)
        return read_item(item)

    def _end(self, response: JsonObject) -> list[Content]:
        """Return the contents for the last event: output items that were not streamed before, and token counts."""
        self.is_done = True
        late = [
            content
            for index, item in enumerate(objects_in(response.get("output")))
            if index not in self._complete and index not in self._yielded
            for content in self._whole_item(item, index)
        ]
        return [*late, *read_usage(response.get("usage"))]

    def _add_response(self, update: ChatResponseUpdate, response: JsonMapping) -> None:
        self.response_id = cast("str | None", response.get("id")) or self.response_id
        update.response_id = self.response_id
        update.model = cast("str | None", response.get("model")) or self._model
        update.created_at = iso_timestamp(response.get("created_at"))
        update.conversation_id = conversation_of(response) if self._keeps else None
        if self.is_done:
            update.finish_reason = finish_reason(response)
            update.raw_representation = response
            update.additional_properties = properties_of(response, in_background=self.in_background)
        elif self.in_background:
            update.additional_properties = {STATUS: to_status(response.get("status"))}


# -- shared by whole and streamed responses --------------------------------------------------------------------------


def read_response(response: JsonObject, model: str, *, in_background: bool, keeps: bool) -> ChatResponseUpdate:
    """Convert a whole response to one update. An unfinished background response gets a token with which it can be read later.

    Raises:
        ModelError: The response failed.
    """
    status = to_status(response.get("status") or "completed")
    if status == "failed":
        raise failed(model, response)
    contents = [content for item in objects_in(response.get("output")) for content in read_item(item)]
    update = ChatResponseUpdate([*contents, *read_usage(response.get("usage"))], "assistant", cast("str | None", response.get("id")))
    update.model = cast("str | None", response.get("model")) or model
    update.created_at = iso_timestamp(response.get("created_at"))
    update.conversation_id = conversation_of(response) if keeps else None
    update.raw_representation = response
    update.additional_properties = properties_of(response, in_background=in_background or status in UNFINISHED)
    if status in UNFINISHED:
        update.continuation_token = dict(OpenAIContinuationToken(response_id=str(response.get("id"))))
    else:
        update.finish_reason = finish_reason(response)
    return update


def properties_of(response: JsonMapping, *, in_background: bool) -> JsonObject:
    """Return the `additional_properties` of a response: its metadata, log probabilities, and the status of a background response."""
    found: JsonObject = dict(cast("JsonMapping", response.get("metadata") or {}))
    messages = [item for item in objects_in(response.get("output")) if item.get("type") == "message"]
    parts = [part for message in messages for part in objects_in(message.get("content"))]
    if logprobs := [entry for part in parts for entry in cast("list[object]", part.get("logprobs") or [])]:
        found["logprobs"] = logprobs
    if in_background:
        found[STATUS] = to_status(response.get("status"))
    return found


def finish_reason(response: JsonMapping) -> str | None:
    """Return why a response ended, in the terms of Chat Completions: `stop`, `length` or `content_filter`; `None` if it was cancelled."""
    match response.get("status"):
        case "cancelled" | "canceled":
            return None
        case "incomplete":
            reason = cast("JsonMapping", response.get("incomplete_details") or {}).get("reason")
            return "content_filter" if reason == "content_filter" else "length"
        case _:
            return "stop"


def conversation_of(response: JsonMapping) -> str | None:
    """Return the conversation id with which the next call continues after this response."""
    conversation = response.get("conversation")
    named: object = cast("JsonMapping", conversation).get("id") if isinstance(conversation, dict) else conversation
    return cast("str | None", named or response.get("id"))


def failed(model: str, response: JsonMapping) -> ModelError:
    """Return the exception for a response with the status `failed`, or for an `error` event (then `response` has only `error`)."""
    error = cast("JsonMapping", response.get("error") or {})
    code, reason = error.get("code"), str(error.get("message") or "")[:MAX_REASON_CHARACTERS]
    text = f"Model {model!r} failed during its response{f' ({code})' if code else ''}{f': {reason}' if reason else '.'}"
    if code in FILTER_CODES:
        return ChatClientContentFilterException(text)
    return ModelError(text, retryable=code in (None, "server_error", "rate_limit_exceeded", "timeout"))

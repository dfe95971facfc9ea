"""`OpenAIChatClient`: a chat client for OpenAI's Responses API.

By default the program stores the conversation; with the options `store`, `conversation_id` or `background`, the provider stores it. A
background response continues without a connection: a call with its continuation token returns its state or streams the rest, and a broken
stream is resumed.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator, Sequence
from typing import ClassVar, cast

import anyio

from gateway.chat.chat_client import OptionsT
from gateway.chat.hosted import ResponsesTools
from gateway.chat.long_running import OpenAIContinuationToken, to_token, token_of
from gateway.chat.openai_base import OpenAIClientBase
from gateway.chat.openai_endpoint import Names
from gateway.chat.responses_request import to_request
from gateway.chat.responses_stream import StreamReader, read_response
from gateway.errors import ModelError
from gateway.json_types import JsonMapping, JsonObject
from gateway.types.messages import Message
from gateway.types.options import ChatOptions
from gateway.types.responses import ChatResponse, ChatResponseUpdate

logger = logging.getLogger(__name__)


class OpenAIChatClient(ResponsesTools, OpenAIClientBase[OptionsT]):
    """A chat client for the Responses API. Responses may be streamed, requested as a whole, or generated in the background."""

    NAMES: ClassVar[Names] = Names(models=("CHAT_MODEL", "MODEL"), azure_api_version="preview", azure_path="/openai/v1/")

    async def _updates(
        self, messages: Sequence[Message], *, stream: bool, options: ChatOptions
    ) -> AsyncGenerator[ChatResponseUpdate, None]:
        model = self._model_of(options)
        token = token_of(options)
        in_background = token is not None or bool(cast("JsonMapping", options).get("background"))
        keeps = in_background or bool(options.get("store") or options.get("conversation_id"))
        path, body = _retrieval(token, stream=stream) if token is not None else ("/responses", None)
        if token is None:
            body = self._request(messages, options, model)
        if not stream:
            answer = await self.connection.answer(model, path, body, subject=_subject(token))
            yield read_response(answer, model, in_background=in_background, keeps=keeps)
            return
        reader = StreamReader(model, in_background=in_background, keeps=keeps)
        if token is not None:
            reader.response_id, reader.sequence = token.get("response_id"), token.get("sequence_number")
        async for update in self._streamed(reader, model, path, body, subject=_subject(token)):
            yield update

    def _request(self, messages: Sequence[Message], options: ChatOptions, model: str) -> JsonObject:
        """Return the body of a request for a model response. Subclasses for other services override this method to change the body."""
        return to_request(messages, options, self.instruction_role) | {"model": model}

    async def _streamed(
        self, reader: StreamReader, model: str, path: str, body: JsonObject | None, *, subject: str | None
    ) -> AsyncGenerator[ChatResponseUpdate, None]:
        """Send a request, and yield the updates (parts) of the streamed response.

        If the stream of a background response breaks, it is resumed, as often as retries are allowed.

        Raises:
            ModelError: The response failed, or the stream ended before it was complete.
        """
        if body is not None:
            body["stream"] = True
        resumes = 0
        while not reader.is_done:
            before = reader.sequence
            try:
                async for event in self.connection.events(model, path, body, subject=subject):
                    if (update := reader.read(event)) is not None:
                        yield update
                    if reader.is_done:
                        return
                raise ModelError(f"The response of model {model!r} broke off.", retryable=True)
            except ModelError as error:
                resumes = resumes + 1 if reader.sequence == before else 1
                if not self._may_resume(reader, error, resumes):
                    raise
                wait = self.connection.retry.wait_seconds(resumes)
                logger.info("stream of a background response ended early, resuming it model=%r wait_seconds=%.1f", model, wait)
            await anyio.sleep(wait)
            path, body = _retrieval({"response_id": reader.response_id or "", "sequence_number": reader.sequence or 0}, stream=True)

    def _may_resume(self, reader: StreamReader, error: ModelError, resumes: int) -> bool:
        is_known = reader.in_background and reader.response_id is not None and reader.sequence is not None
        is_broken = error.retryable and error.status is None
        return is_known and is_broken and resumes <= self.connection.retry.max_retries and self.connection.budget.take()

    async def cancel_response(self, continuation_token: JsonMapping) -> ChatResponse | None:
        """Stop the generation of a background response and return the response. If it is already finished, return it unchanged.

        Raises:
            ModelError: The provider does not have the response (any more), or failed.
        """
        token = to_token(continuation_token)
        answer = await self.connection.answer(self.model, f"/responses/{token['response_id']}/cancel", {}, subject=_subject(token))
        return ChatResponse.from_updates([read_response(answer, self.model, in_background=True, keeps=True)])

    async def delete_response(self, continuation_token: JsonMapping) -> bool | None:
        """Delete a response at the provider. Return whether it was deleted.

        Raises:
            ModelError: The provider does not have the response (any more), or failed.
        """
        token = to_token(continuation_token)
        answer = await self.connection.deletion(self.model, f"/responses/{token['response_id']}", subject=_subject(token))
        return bool(answer.get("deleted", True))


def _subject(token: OpenAIContinuationToken | None) -> str | None:
    return None if token is None else f"response {token['response_id']!r}"


def _retrieval(token: OpenAIContinuationToken, *, stream: bool) -> tuple[str, None]:
    path = f"/responses/{token.get('response_id')}"
    if not stream:
        return path, None
    after = token.get("sequence_number")
    return f"{path}?stream=true" + (f"&starting_after={after}" if after is not None else ""), None

"""`OpenAIChatClient`: OpenAI's Responses API.

Without state at the provider unless it is asked for (`store`, `conversation_id`, `background`): the conversation is ours.
A background response goes on when the connection does not: a call with its continuation token asks how it stands or
streams the rest, and a stream that breaks is picked up where it was.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator, Sequence
from typing import ClassVar, cast

import anyio

from gateway.chat.base import OptionsT
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
    """The Responses API, streamed, whole or in the background."""

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
        """The body of a new response."""
        return to_request(messages, options, self.instruction_role) | {"model": model}

    async def _streamed(
        self, reader: StreamReader, model: str, path: str, body: JsonObject | None, *, subject: str | None
    ) -> AsyncGenerator[ChatResponseUpdate, None]:
        """The updates of a stream; one of the background that breaks is picked up again, as often as repeats are allowed.

        Raises:
            ModelError: The response failed, or the stream ended before it did.
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
                raise ModelError(f"Model {model!r} broke off its answer.", retryable=True)
            except ModelError as error:
                resumes = resumes + 1 if reader.sequence == before else 1
                if not self._may_resume(reader, error, resumes):
                    raise
                wait = self.connection.retry.wait_seconds(resumes)
                logger.info("model %r: the stream of a background response broke; picking it up in %.1f s", model, wait)
            await anyio.sleep(wait)
            path, body = _retrieval({"response_id": reader.response_id or "", "sequence_number": reader.sequence or 0}, stream=True)

    def _may_resume(self, reader: StreamReader, error: ModelError, resumes: int) -> bool:
        is_known = reader.in_background and reader.response_id is not None and reader.sequence is not None
        is_broken = error.retryable and error.status is None
        return is_known and is_broken and resumes <= self.connection.retry.max_retries and self.connection.budget.take()

    async def cancel_response(self, continuation_token: JsonMapping) -> ChatResponse | None:
        """Stop a background response. One that was done already is returned as it ended (requirements LR7).

        Raises:
            ModelError: The provider does not know it (any more), or failed.
        """
        token = to_token(continuation_token)
        answer = await self.connection.answer(self.model, f"/responses/{token['response_id']}/cancel", {}, subject=_subject(token))
        return ChatResponse.from_updates([read_response(answer, self.model, in_background=True, keeps=True)])

    async def delete_response(self, continuation_token: JsonMapping) -> bool | None:
        """Make the provider forget a response; whether it did.

        Raises:
            ModelError: The provider does not know it (any more), or failed.
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


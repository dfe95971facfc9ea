"""`OpenAIConnection`: requests to one OpenAI-compatible endpoint, with repeats, a budget for them, and errors as ours.

Requests go through the `openai` package's own request methods, with answers as decoded JSON: nothing that a compatible
server adds is lost, and nothing is modelled twice. Chat and embedding clients have one each.
"""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from importlib import import_module
from typing import TYPE_CHECKING, TypeVar, cast

import anyio
import anyio.to_thread

from gateway.chat.openai_endpoint import Endpoint
from gateway.chat.openai_errors import html_answer, is_html, is_too_large, to_model_error
from gateway.chat.retry import MAX_RETRY_AFTER_SECONDS, RetryBudget, RetryPolicy, may_retry, retry_after_seconds
from gateway.errors import ChatClientInvalidResponseException, ModelError
from gateway.json_types import JsonMapping, JsonObject

if TYPE_CHECKING:
    import openai
    from openai import AsyncOpenAI, AsyncStream
    from openai._types import RequestOptions

logger = logging.getLogger(__name__)

REQUEST_TIMEOUT_SECONDS = 120.0
"""One model request, or the silence between two parts of a streamed one."""

AnswerT = TypeVar("AnswerT")


class OpenAIConnection:
    """One endpoint. Owns its connection pool, unless the endpoint came with a client."""

    def __init__(self, endpoint: Endpoint, *, timeout_seconds: float = REQUEST_TIMEOUT_SECONDS, retry: RetryPolicy | None = None) -> None:
        self.endpoint = endpoint
        repeats = RetryPolicy(max_retries=endpoint.client.max_retries) if endpoint.client is not None else RetryPolicy()
        self.retry = retry or repeats
        self.budget = RetryBudget()
        self._timeout_seconds = timeout_seconds
        self._client: AsyncOpenAI | None = endpoint.client

    @property
    def client(self) -> AsyncOpenAI:
        """The package's client; made at first use."""
        if self._client is None:
            self._client = self.endpoint.build_client(self._timeout_seconds)
        return self._client

    async def aclose(self) -> None:
        """Close the connections; they are made anew when needed."""
        if self._client is not None and self._client is not self.endpoint.client:
            client, self._client = self._client, None
            await client.close()

    async def answer(self, model: str, path: str, body: JsonObject | None, *, subject: str | None = None) -> JsonObject:
        """One whole answer: `POST` with a body, `GET` without. `subject` is what is asked for, where it is not the model.

        Raises:
            ModelError: The endpoint failed, also after the repeats that are allowed.
        """
        await load_openai()
        client, options = self.client, _options()

        async def send() -> object:
            if body is None:
                return await client.get(path, cast_to=object, options=options)
            return await client.post(path, cast_to=object, body=body, options=options)

        return self._object(model, await self._repeated(model, send, subject))

    async def deletion(self, model: str, path: str, *, subject: str | None = None) -> JsonObject:
        """`DELETE`; an answer without content is an empty one.

        Raises:
            ModelError: The endpoint failed, also after the repeats that are allowed.
        """
        await load_openai()
        client = self.client
        answer = await self._repeated(model, lambda: client.delete(path, cast_to=object, options=_options()), subject)
        return self._object(model, answer or {})

    def _object(self, model: str, answer: object) -> JsonObject:
        if isinstance(answer, str) and is_html(answer):
            raise html_answer(self.endpoint.base_url)
        if not isinstance(answer, dict):
            raise ChatClientInvalidResponseException(f"Model {model!r} gave an answer that is not a JSON object.", retryable=True)
        return cast("JsonObject", answer)

    async def events(
        self, model: str, path: str, body: JsonObject | None, *, subject: str | None = None
    ) -> AsyncGenerator[JsonObject, None]:
        """The events of a streamed answer; the connection is released however iteration ends. Repeats only what gave nothing.

        Raises:
            ModelError: The endpoint failed, or the stream broke (`retryable`).
        """
        await load_openai()
        from openai import AsyncStream

        client, options = self.client, _options()

        async def send() -> AsyncStream[object]:
            if body is None:
                return await client.get(path, cast_to=object, options=options, stream=True, stream_cls=AsyncStream[object])
            return await client.post(path, cast_to=object, body=body, options=options, stream=True, stream_cls=AsyncStream[object])

        stream = await self._repeated(model, send, subject)
        async with self._breaking(model), stream:
            if stream.response.headers.get("content-type", "").startswith("text/html"):
                raise html_answer(self.endpoint.base_url)
            async for event in stream:
                if isinstance(event, dict):
                    yield cast("JsonObject", event)

    async def _repeated(self, model: str, send: Callable[[], Awaitable[AnswerT]], subject: str | None) -> AnswerT:
        import openai

        repeat = 0
        while True:
            try:
                answer = await send()
            except openai.OpenAIError as error:
                repeat += 1
                wait = self._wait_before(repeat, error)
                if wait is None:
                    raise to_model_error(error, model=model, base_url=self.endpoint.base_url, subject=subject) from None
                logger.info("model %r: request failed (%s), repeat %d in %.1f s", model, type(error).__name__, repeat, wait)
                await anyio.sleep(wait)
            except json.JSONDecodeError:
                raise ChatClientInvalidResponseException(f"Model {model!r} gave an answer that is not JSON.", retryable=True) from None
            else:
                self.budget.answered()
                return answer

    def _wait_before(self, repeat: int, error: openai.OpenAIError) -> float | None:
        """How long to wait before the `repeat`th repeat; `None` when there is none."""
        import openai

        if repeat > self.retry.max_retries or not isinstance(error, openai.APIConnectionError | openai.APIStatusError):
            return None
        if is_too_large(error):
            return None
        headers: Mapping[str, str] = error.response.headers if isinstance(error, openai.APIStatusError) else {}
        status = error.status_code if isinstance(error, openai.APIStatusError) else None
        asked = retry_after_seconds(headers)
        if error.code == "insufficient_quota" or not may_retry(status, headers) or (asked or 0) > MAX_RETRY_AFTER_SECONDS:
            return None
        if not self.budget.take():
            logger.warning("no more repeats for now: too many of this client's model requests have failed")
            return None
        return self.retry.wait_seconds(repeat) if asked is None else asked

    @asynccontextmanager
    async def _breaking(self, model: str) -> AsyncGenerator[None]:
        """What goes wrong in the middle of a stream, as `ModelError`."""
        import openai

        try:
            yield
        except openai.APITimeoutError:
            raise ModelError(f"Model {model!r} did not answer in time.", retryable=True) from None
        except openai.APIConnectionError as error:
            if is_too_large(error):
                raise to_model_error(error, model=model, base_url=self.endpoint.base_url) from None
            raise ModelError(f"Model {model!r} broke off its answer: the connection was lost.", retryable=True) from None
        except openai.OpenAIError as error:
            raise to_model_error(error, model=model, base_url=self.endpoint.base_url) from None
        except json.JSONDecodeError:
            text = f"Model {model!r} broke off its answer: a part of it is not JSON."
            raise ChatClientInvalidResponseException(text, retryable=True) from None


def _options() -> RequestOptions:
    return {"max_retries": 0, "security": {"bearer_auth": True}}


async def load_openai() -> None:
    """Import the package in a thread: it takes seconds on a small machine, and other calls go on meanwhile."""
    if "openai" not in sys.modules:
        await anyio.to_thread.run_sync(import_module, "openai")


def list_of(value: object) -> list[JsonObject]:
    """The objects of a list that a server sent; anything else among them is left out."""
    items = cast("list[object]", value) if isinstance(value, list) else []
    return [cast("JsonObject", item) for item in items if isinstance(item, dict)]


def counts(usage: object, names: Mapping[str, str], details: Mapping[str, Mapping[str, str]]) -> dict[str, int] | None:
    """Token counts in our names: `names` of the top level, `details` of the objects below it; absent ones stay absent."""
    if not isinstance(usage, dict):
        return None
    given = cast("JsonMapping", usage)
    found = {ours: value for theirs, ours in names.items() if isinstance(value := given.get(theirs), int)}
    for part, inner in details.items():
        section = cast("object", given.get(part))
        if isinstance(section, dict):
            below = cast("JsonMapping", section)
            found |= {ours: value for theirs, ours in inner.items() if isinstance(value := below.get(theirs), int)}
    return found or None

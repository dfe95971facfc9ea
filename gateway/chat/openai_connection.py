"""`OpenAIConnection`: sends requests to an OpenAI-compatible endpoint and retries them; errors become `ModelError`.

Requests use the generic request methods of the `openai` package, and responses are decoded JSON, so that fields which only some compatible
servers send are preserved. Each chat or embedding client for such an endpoint has one connection.
"""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from importlib import import_module
from typing import TYPE_CHECKING, TypeVar, cast

import anyio
import anyio.to_thread

from gateway.chat.model_retry import MAX_RETRY_AFTER_SECONDS, RetryBudget, RetryPolicy, may_retry, retry_after_seconds
from gateway.chat.openai_endpoint import Endpoint
from gateway.chat.openai_errors import html_answer, is_html, is_too_large, shown_url, to_model_error
from gateway.errors import ChatClientInvalidResponseException, ModelError
from gateway.json_types import JsonObject, JsonValue, members_of
from gateway.types.content import Content

if TYPE_CHECKING:
    import openai
    from openai import AsyncOpenAI, AsyncStream
    from openai._types import RequestOptions

logger = logging.getLogger(__name__)

REQUEST_TIMEOUT_SECONDS = 120.0
"""Timeout in seconds for a whole response, or between two parts of a streamed response, unless the program sets another one."""

AnswerT = TypeVar("AnswerT")


class OpenAIConnection:
    """Sends requests to one OpenAI-compatible endpoint.

    It owns its connection pool, unless `endpoint.client` is a client that the caller passed.
    """

    def __init__(self, endpoint: Endpoint, *, timeout_seconds: float = REQUEST_TIMEOUT_SECONDS, retry: RetryPolicy | None = None) -> None:
        self.endpoint = endpoint
        retries = RetryPolicy(max_retries=endpoint.client.max_retries) if endpoint.client is not None else RetryPolicy()
        self.retry = retry or retries
        self.budget = RetryBudget()
        self._timeout_seconds = timeout_seconds
        self._client: AsyncOpenAI | None = endpoint.client

    @property
    def client(self) -> AsyncOpenAI:
        """The client object of the `openai` package, created at first use."""
        if self._client is None:
            self._client = self.endpoint.build_client(self._timeout_seconds)
        return self._client

    async def aclose(self) -> None:
        """Close the connections; later requests open new ones."""
        if self._client is not None and self._client is not self.endpoint.client:
            client, self._client = self._client, None
            await client.close()

    async def answer(self, model: str, path: str, body: JsonObject | None, *, subject: str | None = None) -> JsonObject:
        """Send a request, `POST` if it has a body and otherwise `GET`, and return the whole response.

        `subject` names the requested object, such as `the list of its models`. The error text contains it if the object does not exist.
        `subject` is `None` for a new response of the model.

        Raises:
            ModelError: The request failed, and could not be retried or failed in all retries.
        """
        await load_openai()
        client, options = self.client, _options()

        async def send() -> object:
            if body is None:
                return await client.get(path, cast_to=object, options=options)
            return await client.post(path, cast_to=object, body=body, options=options)

        return self._object(model, await self._retried(model, send, subject))

    async def deletion(self, model: str, path: str, *, subject: str | None = None) -> JsonObject:
        """Send a `DELETE` request, and return the response; an empty object if it has no content.

        `subject` names the object to delete, such as `response 'resp_1'`. The error text contains it if the object does not exist.

        Raises:
            ModelError: The request failed, and could not be retried or failed in all retries.
        """
        await load_openai()
        client = self.client
        answer = await self._retried(model, lambda: client.delete(path, cast_to=object, options=_options()), subject)
        return self._object(model, answer or {})

    def _object(self, model: str, answer: object) -> JsonObject:
        if isinstance(answer, str) and is_html(answer):
            raise html_answer(self.endpoint.base_url)
        if not isinstance(answer, dict):
            raise ChatClientInvalidResponseException(f"The response of model {model!r} is not a JSON object.", retryable=True)
        return cast("JsonObject", answer)

    async def events(
        self, model: str, path: str, body: JsonObject | None, *, subject: str | None = None
    ) -> AsyncGenerator[JsonObject, None]:
        """Send a request, and yield the events of the streamed response. Failures are retried only before the first event.

        The connection is released at the end. `subject` names the requested object, such as `response 'resp_1'`, for the error text if
        the object does not exist. `subject` is `None` for a new response of the model.

        Raises:
            ModelError: The endpoint failed, or the stream broke. If the stream broke, `retryable` is true.
        """
        await load_openai()
        from openai import AsyncStream

        client, options = self.client, _options()

        async def send() -> AsyncStream[object]:
            if body is None:
                return await client.get(path, cast_to=object, options=options, stream=True, stream_cls=AsyncStream[object])
            return await client.post(path, cast_to=object, body=body, options=options, stream=True, stream_cls=AsyncStream[object])

        stream = await self._retried(model, send, subject)
        async with self._breaking(model), stream:
            if stream.response.headers.get("content-type", "").startswith("text/html"):
                raise html_answer(self.endpoint.base_url)
            async for event in stream:
                if isinstance(event, dict):
                    yield cast("JsonObject", event)

    async def _retried(self, model: str, send: Callable[[], Awaitable[AnswerT]], subject: str | None) -> AnswerT:
        import openai

        retry = 0
        while True:
            try:
                answer = await send()
            except openai.OpenAIError as error:
                retry += 1
                wait = self._wait_before(retry, error)
                if wait is None:
                    raise to_model_error(error, model=model, base_url=self.endpoint.base_url, subject=subject) from None
                logger.info("model request retried model=%r reason=%s retry=%d wait_seconds=%.1f", model, type(error).__name__, retry, wait)
                await anyio.sleep(wait)
            except json.JSONDecodeError:
                raise ChatClientInvalidResponseException(f"The response of model {model!r} is not JSON.", retryable=True) from None
            else:
                self.budget.answered()
                return answer

    def _wait_before(self, retry: int, error: openai.OpenAIError) -> float | None:
        """Return the seconds to wait before retry number `retry` (from 1), or `None` if the request must not be retried."""
        import openai

        if retry > self.retry.max_retries or not isinstance(error, openai.APIConnectionError | openai.APIStatusError):
            return None
        if is_too_large(error):
            return None
        headers: Mapping[str, str] = error.response.headers if isinstance(error, openai.APIStatusError) else {}
        status = error.status_code if isinstance(error, openai.APIStatusError) else None
        asked = retry_after_seconds(headers)
        if error.code == "insufficient_quota" or not may_retry(status, headers) or (asked or 0) > MAX_RETRY_AFTER_SECONDS:
            return None
        if not self.budget.take():
            logger.warning("model retries suspended endpoint=%s reason=too-many-failed-requests", shown_url(self.endpoint.base_url))
            return None
        return self.retry.wait_seconds(retry) if asked is None else asked

    @asynccontextmanager
    async def _breaking(self, model: str) -> AsyncGenerator[None]:
        """Convert exceptions inside the `with` block, which reads a streamed response, to `ModelError`."""
        import openai

        try:
            yield
        except openai.APIConnectionError as error:
            if is_too_large(error) or isinstance(error, openai.APITimeoutError):
                raise to_model_error(error, model=model, base_url=self.endpoint.base_url) from None
            raise ModelError(f"The response of model {model!r} broke off: the connection was lost.", retryable=True) from None
        except openai.OpenAIError as error:
            raise to_model_error(error, model=model, base_url=self.endpoint.base_url) from None
        except json.JSONDecodeError:
            text = f"The response of model {model!r} broke off: a part of it is not JSON."
            raise ChatClientInvalidResponseException(text, retryable=True) from None


def _options() -> RequestOptions:
    return {"max_retries": 0, "security": {"bearer_auth": True}}


async def load_openai() -> None:
    """Import the `openai` package in a thread, so that the import, which may take seconds, does not block the event loop."""
    if "openai" not in sys.modules:
        await anyio.to_thread.run_sync(import_module, "openai")


def counts(usage: JsonValue, names: Mapping[str, str], details: Mapping[str, Mapping[str, str]]) -> dict[str, int] | None:
    """Return the token counts in a provider's usage object under the names of `UsageDetails`; `None` if it has none.

    `names` maps the provider's names at the top level to those of `UsageDetails`; `details` does the same for names in nested objects.
    Missing counts are left out.
    """
    given = members_of(usage)
    found = {ours: value for theirs, ours in names.items() if isinstance(value := given.get(theirs), int)}
    for part, inner in details.items():
        below = members_of(given.get(part))
        found |= {ours: value for theirs, ours in inner.items() if isinstance(value := below.get(theirs), int)}
    return found or None


def usage_contents(usage: JsonValue, names: Mapping[str, str], details: Mapping[str, Mapping[str, str]]) -> list[Content]:
    """Return the token counts that `counts` finds in a response as a list with one content; empty if the server sent none."""
    found = counts(usage, names, details)
    return [Content.from_usage(found, raw_representation=usage)] if found else []


def iso_timestamp(moment: object) -> str | None:
    """Convert seconds since the epoch to ISO 8601 text in UTC; `None` if `moment` is not a number."""
    return datetime.fromtimestamp(moment, UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ") if isinstance(moment, int | float) else None

"""Converts errors of the `openai` package to `ModelError`. The texts say what failed and what to set, without keys, and quote of a
response body at most the endpoint's error text.
"""

from __future__ import annotations

from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from gateway.chat.model_retry import may_retry, retry_after_seconds
from gateway.errors import (
    ChatClientContentFilterException,
    ChatClientInvalidAuthException,
    ChatClientInvalidRequestException,
    ChatClientInvalidResponseException,
    ModelError,
)
from gateway.json_types import members_of

if TYPE_CHECKING:
    import openai

_NO_API = (400, 404, 405, 410)
"""HTTP statuses with which a web server that is not a model API rejects a model request."""

MAX_REASON_CHARACTERS = 300
"""Maximum characters of an endpoint's error text that are quoted: enough to name a wrong parameter."""

FILTER_CODES = ("content_filter", "content_policy_violation")
"""Error codes that mean that a provider's content filter rejected a request or response."""


class HtmlResponseException(ChatClientInvalidResponseException):
    """Raised if an endpoint answers with an HTML page, which means that it is not a model API."""


def to_model_error(error: openai.OpenAIError, *, model: str, base_url: str, subject: str | None = None) -> ModelError:
    """Convert an error of the `openai` package to a `ModelError`.

    `subject` names the requested object, such as `response 'resp_1'`. The error text contains it if the object does not exist. `subject` is
    `None` if a new response of the model was requested.
    """
    import httpx2
    import openai

    shown = shown_url(base_url)
    if is_too_large(error):
        return ChatClientInvalidResponseException(f"The response of the model endpoint {shown} is too large: {error.__cause__}.")
    match error:
        case openai.APIStatusError():
            made = _of_status(error, model, base_url, subject)
            made.retry_after_seconds = retry_after_seconds(error.response.headers)
            return made
        case openai.APITimeoutError() if not isinstance(error.__cause__, httpx2.ConnectTimeout):
            seconds = error.request.extensions.get("timeout", {}).get("read")
            text = f"Model {model!r} did not answer {f'within {seconds:g} s' if seconds else 'in time'}; try again."
            return ModelError(f"{text} In Python, `timeout_seconds` of a chat client sets this limit.", retryable=True)
        case openai.APIConnectionError():
            return ModelError(f"The model endpoint {shown} cannot be reached; check OPENAI_BASE_URL and the network.", retryable=True)
        case openai.APIError():
            text = f"Model {model!r} failed during its response: {_reason(error)}."
            return filtered(text, error.body) if error.code in FILTER_CODES else ModelError(text, retryable=True)
        case _:
            text = f"The response of model {model!r} is unreadable; check that OPENAI_BASE_URL is the address of a model API."
            return ChatClientInvalidResponseException(text, retryable=True)


def is_too_large(error: openai.OpenAIError) -> bool:
    """Return whether an error means that a response was too large, so that a retry would not help."""
    from gateway.egress.bounded_transport import ResponseTooLarge

    return isinstance(error.__cause__, ResponseTooLarge)


def is_html(text: str) -> bool:
    """Return whether a response body is an HTML page, as web servers and sign-in pages send."""
    return text.lstrip()[:15].casefold().startswith(("<!doctype html", "<html"))


def html_answer(base_url: str) -> HtmlResponseException:
    """Return the exception for an endpoint that answered with an HTML page."""
    text = f"The model endpoint {shown_url(base_url)} answered with an HTML page instead of JSON, so it is not the address of a model API."
    return HtmlResponseException(f"{text} Set OPENAI_BASE_URL to the API's base address, which often ends in /v1.")


def _of_status(error: openai.APIStatusError, model: str, base_url: str, subject: str | None) -> ModelError:
    status, shown = error.status_code, shown_url(base_url)
    if error.code in FILTER_CODES:
        return filtered(f"Model {model!r}: the provider's content filter rejected the request: {_reason(error)}.", error.body, status)
    if status in _NO_API and isinstance(error.body, str) and is_html(error.body):
        return html_answer(base_url)
    match status:
        case moved if 300 <= moved < 400:
            text = f"The model endpoint {shown} answered {moved}, a redirect, which is not followed; set OPENAI_BASE_URL to its target."
            return ChatClientInvalidRequestException(text, status=status)
        case 401 | 403:
            text = f"The model endpoint {shown} rejected the API key ({status}); check OPENAI_API_KEY."
            return ChatClientInvalidAuthException(text, status=status)
        case 404:
            text = f"The model endpoint {shown} has no model {model!r}; check OPENAI_MODEL and OPENAI_BASE_URL."
            if subject is not None:
                text = f"The model endpoint {shown} does not have {subject}, or no longer has it."
            return ChatClientInvalidRequestException(text, status=status)
        case 429:
            retryable = error.code != "insufficient_quota"
            hint = "too many requests or no quota left (429); try again later" if retryable else "no quota left (429)"
            return ModelError(f"Model {model!r}: {hint}.", status=status, retryable=retryable)
        case 400 | 413 | 422:
            return ChatClientInvalidRequestException(f"Model {model!r} rejected the request ({status}): {_reason(error)}", status=status)
        case _:
            retryable = may_retry(status, error.response.headers)
            return ModelError(f"The model endpoint {shown} failed with status {status}.", status=status, retryable=retryable)


def filtered(text: str, body: object, status: int | None = None) -> ChatClientContentFilterException:
    """Return the exception for a request or response that a content filter rejected, with the filter's result for each category.

    Azure sends these results in `body`.
    """
    inner = members_of(members_of(body).get("innererror"))
    results = members_of(inner.get("content_filter_result"))
    return ChatClientContentFilterException(text, status=status, content_filter_result=dict(results))


def shown_url(base_url: str) -> str:
    """Return the URL without user name, password, query and fragment, which may contain secrets."""
    parts = urlsplit(base_url)
    return parts._replace(netloc=parts.netloc.rpartition("@")[2], query="", fragment="").geturl()


def _reason(error: openai.APIError) -> str:
    message: object = members_of(error.body).get("message")
    return str(message or error.message)[:MAX_REASON_CHARACTERS] if message or error.message else "no reason given"

"""The `openai` package's errors as `ModelError`: what went wrong and what to set, without keys or bodies."""

from __future__ import annotations

from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from gateway.errors import ModelError

if TYPE_CHECKING:
    import openai


def to_model_error(error: openai.OpenAIError, *, model: str, base_url: str) -> ModelError:
    """The error to raise for one of the package's."""
    import openai

    base_url = _shown(base_url)
    match error:
        case openai.AuthenticationError() | openai.PermissionDeniedError():
            text = f"The model endpoint {base_url} refused the API key ({error.status_code}); check OPENAI_API_KEY."
            return ModelError(text, status=error.status_code)
        case openai.NotFoundError():
            text = f"The model endpoint {base_url} does not know model {model!r}; check OPENAI_MODEL and OPENAI_BASE_URL."
            return ModelError(text, status=404)
        case openai.RateLimitError():
            return ModelError(f"Model {model!r}: too many requests or no quota left (429); try again later.", status=429, retryable=True)
        case openai.BadRequestError():
            return ModelError(f"Model {model!r} rejected the request (400): {_reason(error)}", status=400)
        case openai.APIStatusError():
            status = error.status_code
            return ModelError(f"The model endpoint {base_url} failed with status {status}.", status=status, retryable=status >= 500)
        case openai.APITimeoutError():
            return ModelError(f"Model {model!r} did not answer in time.", retryable=True)
        case openai.APIConnectionError():
            return ModelError(f"The model endpoint {base_url} cannot be reached; check OPENAI_BASE_URL and the network.", retryable=True)
        case _:
            return ModelError(f"Model {model!r} gave an answer that could not be read ({type(error).__name__}).", retryable=True)


def _shown(base_url: str) -> str:
    """The address without user name, password and query, which may be secrets."""
    parts = urlsplit(base_url)
    return parts._replace(netloc=parts.netloc.rpartition("@")[2], query="", fragment="").geturl()


def _reason(error: openai.APIStatusError) -> str:
    body = error.body
    message = body.get("message") if isinstance(body, dict) else None  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]
    return str(message)[:300] if message else "no reason given"  # pyright: ignore[reportUnknownArgumentType]

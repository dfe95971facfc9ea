"""What a server may ask of the connected client: a model's answer, a person's input, the workspace folders.

One judgement for requests a legacy server sends and for those a modern one embeds in `input_required` results.
Counting requests and asking are `upstream.inputs`'s; nothing here keeps state.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator
from itertools import pairwise
from typing import cast
from urllib.parse import urlsplit

from gateway.config.policies import ElicitationPolicy, RootsPolicy, SamplingPolicy, SourcePolicy
from gateway.json_types import JsonMapping, JsonObject, JsonValue
from gateway.policy.decision import PASS, Pass, Reject, Rewrite

_SECRET_WORDS = frozenset(
    {"password", "passwd", "passphrase", "passcode", "pwd", "secret", "token", "credential", "credentials", "apikey", "cvv", "cvc"}
)
_SECRET_PAIRS = frozenset({("api", "key"), ("access", "key"), ("private", "key"), ("secret", "key"), ("pass", "word"), ("pass", "phrase")})
"""Words and neighbouring words in the name or title of a text field that mark it as a secret."""

_WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+")
_CONTROLS = re.compile(r"[\x00-\x20\x7f\\]")
_LOOPBACK_HOSTS = frozenset({"localhost", "127.0.0.1", "::1"})


def judge_input(request: JsonMapping, source_policy: SourcePolicy, used_requests: int) -> Pass | Rewrite | Reject:
    """Judge one input request (`{"method", "params"}`, wire form) of a source.

    `used_requests` is how many sampling requests this caller's budget already counts, without this one. A `Rewrite`
    holds the whole request as it may go out.
    """
    method = request.get("method")
    found = request.get("params")
    params: JsonMapping = cast("JsonMapping", found) if isinstance(found, dict) else {}
    match method:
        case "sampling/createMessage":
            return _judge_sampling(request, params, source_policy.sampling, used_requests)
        case "elicitation/create":
            return _judge_elicitation(params, source_policy.elicitation)
        case "roots/list":
            return _judge_roots(source_policy.roots)
        case _:
            return Reject("inputs.method", f"{str(method)[:60]!r} is not something a server may ask.")


def _judge_sampling(request: JsonMapping, params: JsonMapping, policy: SamplingPolicy, used: int) -> Pass | Rewrite | Reject:
    """Budget, then mode, then token cap (requirements 3.B/34)."""
    if policy.max_requests is not None and used >= policy.max_requests:
        return Reject("sampling.maxRequests", f"The budget of {policy.max_requests} model requests per caller and hour is spent.")
    if policy.mode == "deny":
        return Reject(
            "sampling.mode", "This server may not use a model. The operator can allow it with `sampling.mode` under its `policies`."
        )
    changed: JsonObject = {}
    wanted = params.get("maxTokens")
    if wanted is not None and (not isinstance(wanted, int) or isinstance(wanted, bool) or wanted < 1):
        return Reject("sampling.maxTokens", "`maxTokens` must be a positive integer.")
    if policy.max_tokens is not None and (wanted is None or wanted > policy.max_tokens):
        changed["maxTokens"] = policy.max_tokens
    if params.get("includeContext", "none") != "none":
        changed["includeContext"] = "none"  # the client would add what other servers behind this gateway said
    return Rewrite({**request, "params": {**params, **changed}}) if changed else PASS


def _judge_elicitation(params: JsonMapping, policy: ElicitationPolicy) -> Pass | Reject:
    if policy.mode == "deny":
        return Reject("elicitation.mode", "This server may not ask the person anything.")
    mode = params.get("mode", "form")
    if mode == "url":
        problem = _url_problem(params.get("url"))
        return Reject("elicitation.url", problem) if problem else PASS
    if mode != "form":
        return Reject("elicitation.mode", f"Elicitation mode {str(mode)[:40]!r} is not known.")
    for name, field in _form_fields(params.get("requestedSchema")):
        if _asks_for_secret(name, field):
            return Reject(
                "elicitation.secret",
                f"Form field {name[:60]!r} asks for a secret, which a form may not carry; the server has to use a URL for that.",
            )
    return PASS


def _judge_roots(policy: RootsPolicy) -> Pass | Reject:
    if policy.mode == "relay":
        return PASS
    return Reject(
        "roots.mode", "This server may not see the workspace folders. The operator can allow it with `roots.mode` under its `policies`."
    )


def _form_fields(schema: JsonValue) -> Iterator[tuple[str, JsonMapping]]:
    """The properties of a form; flat by the protocol, walked into nested objects all the same."""
    stack: list[JsonValue] = [schema]
    while stack:
        item = stack.pop()
        if isinstance(item, list):
            stack.extend(cast("list[JsonValue]", item))
        if not isinstance(item, dict):
            continue
        node = cast("JsonObject", item)
        properties = node.get("properties")
        if isinstance(properties, dict):
            for name, field in cast("JsonObject", properties).items():
                yield name, cast("JsonMapping", field) if isinstance(field, dict) else {}
        stack.extend(node.values())


def _asks_for_secret(name: str, field: JsonMapping) -> bool:
    if field.get("format") == "password" or field.get("writeOnly") is True:
        return True
    kind = field.get("type", "string")
    if kind in ("boolean", "integer", "number") or "enum" in field or "oneOf" in field:
        return False
    return _reads_secret(name) or _reads_secret(str(field.get("title", "")))


def _reads_secret(text: str) -> bool:
    words = [word.lower() for word in _WORD.findall(unicodedata.normalize("NFKC", text))]
    return not _SECRET_WORDS.isdisjoint(words) or any(pair in _SECRET_PAIRS for pair in pairwise(words))


def _url_problem(url: JsonValue) -> str | None:
    """Why a person is not sent to `url`, or `None`."""
    if not isinstance(url, str) or _CONTROLS.search(url):
        return "The URL is missing or has characters that no URL has."
    try:
        parts = urlsplit(url)
        host, has_user = parts.hostname or "", "@" in parts.netloc
    except ValueError:
        return "The URL cannot be read."
    if has_user or not host:
        return "The URL must have a host and no user name before it."
    if parts.scheme == "https" or (parts.scheme == "http" and host in _LOOPBACK_HOSTS):
        return None
    return "Only https URLs are shown (http only on this machine)."

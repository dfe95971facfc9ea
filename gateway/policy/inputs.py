"""What a server may ask of the connected client: a model's answer, a person's input, the workspace folders.

One judgement for requests a legacy server sends and for those a modern one embeds in `input_required` results.
Counting requests and asking are `upstream.inputs`'s; nothing here keeps state.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import cast
from urllib.parse import urlsplit

from gateway.config.policies import ElicitationPolicy, RootsPolicy, SamplingPolicy, SourcePolicy
from gateway.json_types import JsonMapping, JsonObject, JsonValue
from gateway.policy.decision import PASS, Pass, Reject, Rewrite
from gateway.policy.secret_words import NEVER_NUMBERS, reads_secret

_CONTROLS = re.compile(r"[\x00-\x20\x7f\\]")
_LOOPBACK_HOSTS = frozenset({"localhost", "127.0.0.1", "::1"})


def judge_input(
    request: JsonMapping, source_policy: SourcePolicy, used_requests: int, *, origin: str = ""
) -> Pass | Rewrite | Reject:
    """Judge one input request (`{"method", "params"}`, wire form) of a source.

    `used_requests` is how many sampling requests this caller's budget already counts, without this one. What a person is
    shown names `origin`, the server that asks, and the host of a link. A `Rewrite` holds the whole request as it may go out.
    """
    method = request.get("method")
    found = request.get("params")
    params: JsonMapping = cast("JsonMapping", found) if isinstance(found, dict) else {}
    match method:
        case "sampling/createMessage":
            return _judge_sampling(request, params, source_policy.sampling, used_requests)
        case "elicitation/create":
            return _judge_elicitation(request, params, source_policy.elicitation, origin)
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
    if problem := _sampling_problem(params):
        return Reject("sampling.params", problem)
    changed: JsonObject = {}
    wanted = params.get("maxTokens")
    if wanted is not None and (not isinstance(wanted, int) or isinstance(wanted, bool) or wanted < 1):
        return Reject("sampling.maxTokens", "`maxTokens` must be a positive integer.")
    if policy.max_tokens is not None and (wanted is None or wanted > policy.max_tokens):
        changed["maxTokens"] = policy.max_tokens
    if params.get("includeContext", "none") != "none":
        changed["includeContext"] = "none"  # the client would add what other servers behind this gateway said
    return Rewrite({**request, "params": {**params, **changed}}) if changed else PASS


def _sampling_problem(params: JsonMapping) -> str | None:
    """What is wrong with the form of a request that a model will be given; what it says is not looked at."""
    if not _are_objects(params.get("messages", [])) or not _are_objects(params.get("tools") or []):
        return "`messages` and `tools` must be lists of objects."
    for message in cast("list[JsonMapping]", params.get("messages", [])):
        content: JsonValue = message.get("content")
        if message.get("role") not in ("user", "assistant") or not _are_objects(content if isinstance(content, list) else [content]):
            return "Each message must have the role user or assistant, and content blocks."
    stops: JsonValue = params.get("stopSequences")
    if not isinstance(params.get("temperature", 0.0), (int, float)) or not (stops is None or isinstance(stops, list)):
        return "`temperature` must be a number, `stopSequences` a list."
    return None


def _are_objects(value: JsonValue) -> bool:
    return isinstance(value, list) and all(isinstance(item, dict) for item in cast("list[JsonValue]", value))


def _judge_elicitation(request: JsonMapping, params: JsonMapping, policy: ElicitationPolicy, origin: str) -> Pass | Rewrite | Reject:
    if policy.mode == "deny":
        return Reject("elicitation.mode", "This server may not ask the person anything.")
    mode = params.get("mode", "form")
    message = params.get("message", "")
    if not isinstance(message, str):
        return Reject("elicitation.message", "The message must be a text.")
    if mode == "url":
        host = _host_of(params.get("url"))
        if isinstance(host, Reject):
            return host
        return _named(request, params, f"{origin} asks you to open {host}: {message}") if origin else PASS
    if mode != "form":
        return Reject("elicitation.mode", f"Elicitation mode {str(mode)[:40]!r} is not known.")
    for name, field in _form_fields(params.get("requestedSchema")):
        if _asks_for_secret(name, field):
            return Reject(
                "elicitation.secret",
                f"Form field {name[:60]!r} asks for a secret, which a form may not carry; the server has to use a URL for that.",
            )
    return _named(request, params, f"{origin} asks: {message}") if origin else PASS


def _named(request: JsonMapping, params: JsonMapping, message: str) -> Rewrite:
    return Rewrite({**request, "params": {**params, "message": message}})


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
    if kind == "boolean" or "enum" in field or "oneOf" in field:
        return False
    # A number called `token` counts something; a number called `pin` is one.
    spared = NEVER_NUMBERS if kind in ("integer", "number") else frozenset[str]()
    return reads_secret(name, spared) or reads_secret(str(field.get("title", "")), spared)


def _host_of(url: JsonValue) -> str | Reject:
    """The host of a URL that a person may be sent to, in ASCII; or why not."""
    rule = "elicitation.url"
    if not isinstance(url, str) or _CONTROLS.search(url):
        return Reject(rule, "The URL is missing or has characters that no URL has.")
    try:
        parts = urlsplit(url)
        host, has_user = parts.hostname or "", "@" in parts.netloc
        # Letters that look like others show as what they are: xn--…
        host = host if host.isascii() else host.encode("idna").decode()
    except ValueError:
        return Reject(rule, "The URL cannot be read.")
    if has_user or not host:
        return Reject(rule, "The URL must have a host and no user name before it.")
    if parts.scheme == "https" or (parts.scheme == "http" and host in _LOOPBACK_HOSTS):
        return host
    return Reject(rule, "Only https URLs are shown (http only on this machine).")

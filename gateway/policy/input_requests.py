"""Decides what a server may request from the connected client: sampling (a model's response), elicitation (a person's input), and roots.

The same rules apply to the requests of servers of protocol version 2025, and to the requests that servers of version 2026 embed in
`input_required` results. `upstream.input_guard` counts and relays the requests; this module has no state.
"""

from __future__ import annotations

from typing import cast

from gateway.config.policies import ElicitationPolicy, RootsPolicy, SamplingPolicy, SourcePolicy
from gateway.json_types import JsonMapping, JsonObject, JsonValue, members_of
from gateway.policy.decision import PASS, Pass, Reject, Rewrite
from gateway.policy.framing import frame, one_line_texts

MAX_PAGE_MESSAGE = 4_000
"""Maximum number of characters in the message of an elicitation in URL mode."""


def judge_input(request: JsonMapping, source_policy: SourcePolicy, used_requests: int, *, origin: str = "") -> Pass | Rewrite | Reject:
    """Decide whether a server's request for input is sent to the client unchanged (`Pass`), changed (`Rewrite`), or rejected.

    `request` has the members `method` and `params` as in JSON-RPC. `used_requests` is the number of earlier sampling requests that count
    towards the limit `sampling.maxRequests`. `origin` is the server's name in the configuration. If `origin` is not empty, the gateway adds
    a first line to the message of an elicitation. The line names `origin` and, if there is a link, its host; the server's message follows,
    with `│` before each line.
    """
    method = request.get("method")
    params = members_of(request.get("params"))
    match method:
        case "sampling/createMessage":
            return _judge_sampling(request, params, source_policy.sampling, used_requests)
        case "elicitation/create":
            return _judge_elicitation(request, params, source_policy.elicitation, origin)
        case "roots/list":
            return _judge_roots(source_policy.roots)
        case _:
            return Reject("inputs.method", f"A server may not send {str(method)[:60]!r} to a client.")


def _judge_sampling(request: JsonMapping, params: JsonMapping, policy: SamplingPolicy, used: int) -> Pass | Rewrite | Reject:
    """Judge a sampling request.

    The checks are, in this order: the number of earlier requests, the configured mode, the shape of the request, and the token limit.
    """
    if policy.max_requests is not None and used >= policy.max_requests:
        return Reject("sampling.maxRequests", f"The budget of {policy.max_requests} model requests per caller and hour is spent.")
    if policy.mode == "deny":
        return Reject("sampling.mode", "This server may not use a model; the operator can set `sampling.mode` in its policy.")
    if problem := _sampling_problem(params):
        return Reject("sampling.params", problem)
    changed: JsonObject = {}
    wanted = params.get("maxTokens")
    if wanted is not None and (not isinstance(wanted, int) or isinstance(wanted, bool) or wanted < 1):
        return Reject("sampling.maxTokens", "`maxTokens` must be a positive integer.")
    if policy.max_tokens is not None and (wanted is None or wanted > policy.max_tokens):
        changed["maxTokens"] = policy.max_tokens
    if params.get("includeContext", "none") != "none":
        changed["includeContext"] = "none"  # otherwise the client would add context of other servers behind this gateway
    return Rewrite({**request, "params": {**params, **changed}}) if changed else PASS


def _sampling_problem(params: JsonMapping) -> str | None:
    """Return what is wrong with the shape of a sampling request's parameters, or `None`. The contents of texts are not judged."""
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
        return Reject("elicitation.mode", "This server may not ask a person; the operator can set `elicitation.mode` in its policy.")
    mode = params.get("mode", "form")
    message = params.get("message", "")
    if not isinstance(message, str):
        return Reject("elicitation.message", "The message must be a string.")
    if mode == "url":
        return _judge_page(request, params, message, policy, origin)
    if mode != "form":
        return Reject("elicitation.mode", f"Elicitation mode {str(mode)[:40]!r} is unknown.")
    from gateway.policy.form_judging import judge_form  # loaded on first use: compiling its word lists takes 0.1 s

    problem = judge_form(params)
    if problem is not None:
        return Reject(problem.rule, problem.reason)
    if not origin:
        return PASS
    shown: JsonObject = {"message": frame(f"Server {origin!r} asks:", message)}
    if "requestedSchema" in params:
        shown["requestedSchema"] = one_line_texts(params["requestedSchema"])
    return _rewritten(request, params, shown)


def _judge_page(request: JsonMapping, params: JsonMapping, message: str, policy: ElicitationPolicy, origin: str) -> Pass | Rewrite | Reject:
    """Judge an elicitation in URL mode. Its message may mention passwords, because the page behind the URL may ask for one."""
    from gateway.policy.link_policy import judge_link  # loaded on first use, to keep the start fast

    link = judge_link(params.get("url"), policy.url_hosts)
    if isinstance(link, str):
        return Reject("elicitation.url", link)
    if len(message) > MAX_PAGE_MESSAGE:
        return Reject("elicitation.size", f"The message has {len(message)} characters; at most {MAX_PAGE_MESSAGE} are shown beside a link.")
    shown: JsonObject = {"url": link.url} if link.url != params["url"] else {}
    if origin:
        shown["message"] = frame(f"Server {origin!r} asks you to open {link.host}:", message)
    return _rewritten(request, params, shown) if shown else PASS


def _rewritten(request: JsonMapping, params: JsonMapping, shown: JsonObject) -> Rewrite:
    return Rewrite({**request, "params": {**params, **shown}})


def _judge_roots(policy: RootsPolicy) -> Pass | Reject:
    if policy.mode == "relay":
        return PASS
    return Reject("roots.mode", "This server may not see the workspace folders; the operator can set `roots.mode` in its policy.")

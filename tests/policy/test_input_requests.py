"""`judge_input`: what a server may request from the client, by mode, budget, limit and content."""

from __future__ import annotations

from typing import Any

import pytest

from gateway.config.policies import SourcePolicy
from gateway.policy.decision import Pass, Reject, Rewrite
from gateway.policy.input_requests import judge_input


def policy(**rules: Any) -> SourcePolicy:
    return SourcePolicy.model_validate(rules)


def sampling(**params: Any) -> dict[str, Any]:
    return {"method": "sampling/createMessage", "params": {"messages": [], **params}}


def form(properties: Any) -> dict[str, Any]:
    schema = {"type": "object", "properties": properties}
    return {"method": "elicitation/create", "params": {"message": "?", "requestedSchema": schema}}


def url(value: Any) -> dict[str, Any]:
    return {"method": "elicitation/create", "params": {"mode": "url", "message": "?", "url": value, "elicitationId": "1"}}


def rule(verdict: Pass | Rewrite | Reject) -> str:
    assert isinstance(verdict, Reject)
    return verdict.rule


RELAY = policy(sampling={"mode": "relay"})


def test_sampling_and_roots_are_rejected_by_default() -> None:
    assert rule(judge_input(sampling(maxTokens=1), policy(), 0)) == "sampling.mode"
    assert rule(judge_input({"method": "roots/list"}, policy(), 0)) == "roots.mode"
    assert isinstance(judge_input(form({"city": {"type": "string"}}), policy(), 0), Pass)


def test_modes_open_and_close() -> None:
    assert isinstance(judge_input({"method": "roots/list", "params": {}}, policy(roots={"mode": "relay"}), 0), Pass)
    assert isinstance(judge_input(sampling(maxTokens=10), RELAY, 0), Pass)
    assert rule(judge_input(form({}), policy(elicitation={"mode": "deny"}), 0)) == "elicitation.mode"


@pytest.mark.requirement(34)
def test_budget_is_checked_before_the_mode() -> None:
    assert rule(judge_input(sampling(maxTokens=10_000), policy(sampling={"mode": "deny", "maxRequests": 1}), 1)) == "sampling.maxRequests"


@pytest.mark.requirement(36)
def test_the_default_budget_is_25_requests() -> None:
    assert isinstance(judge_input(sampling(maxTokens=1), RELAY, 24), Pass)
    assert rule(judge_input(sampling(maxTokens=1), RELAY, 25)) == "sampling.maxRequests"


@pytest.mark.requirement(37)
def test_no_budget_means_unlimited_and_zero_refuses_all() -> None:
    assert isinstance(judge_input(sampling(maxTokens=1), policy(sampling={"mode": "relay", "maxRequests": None}), 10**6), Pass)
    assert rule(judge_input(sampling(maxTokens=1), policy(sampling={"mode": "relay", "maxRequests": 0}), 0)) == "sampling.maxRequests"


@pytest.mark.requirement(39)
@pytest.mark.parametrize(("cap", "asked", "sent"), [(4096, 10_000, 4096), (4096, 100, 100), (None, 10_000, 10_000), (50, None, 50)])
def test_token_cap_only_lowers(cap: int | None, asked: int | None, sent: int) -> None:
    request = sampling() if asked is None else sampling(maxTokens=asked)
    verdict = judge_input(request, policy(sampling={"mode": "relay", "maxTokens": cap}), 0)
    out = verdict.arguments if isinstance(verdict, Rewrite) else request
    assert out["params"]["maxTokens"] == sent
    assert out["params"]["messages"] == []
    assert request["params"].get("maxTokens") == asked


@pytest.mark.parametrize("asked", ["4096", 1.5, True, 0, -1, [1]])
def test_token_request_that_is_not_a_positive_integer_is_rejected(asked: Any) -> None:
    assert rule(judge_input(sampling(maxTokens=asked), RELAY, 0)) == "sampling.maxTokens"


@pytest.mark.parametrize("context", ["allServers", "thisServer"])
def test_server_does_not_get_messages_of_others(context: str) -> None:
    verdict = judge_input(sampling(maxTokens=1, includeContext=context), RELAY, 0)
    assert isinstance(verdict, Rewrite)
    assert verdict.arguments["params"]["includeContext"] == "none"


@pytest.mark.parametrize(
    "properties",
    [
        {"password": {"type": "string"}},
        {"userPassword": {"type": "string"}},
        {"PASSWD": {}},
        {"api_key": {"type": "string"}},
        {"apiKey": {"type": "string"}},
        {"APIKey": {"type": "string"}},
        {"x-api-key": {"type": "string"}},
        {"access_token": {"type": "string"}},
        {"\uff41\uff50\uff49\uff3f\uff4b\uff45\uff59": {"type": "string"}},
        {"clientSecret": {"type": "string"}},
        {"field1": {"type": "string", "title": "Your password"}},
        {"field1": {"type": "string", "format": "password"}},
        {"field1": {"type": "string", "writeOnly": True}},
        {"city": {"type": "string"}, "private_key": {"type": "string"}},
        {"nested": {"type": "object", "properties": {"token": {"type": "string"}}}},
    ],
    ids=str,
)
@pytest.mark.attack(17)
def test_form_may_not_ask_for_a_secret(properties: Any) -> None:
    assert rule(judge_input(form(properties), policy(), 0)) == "elicitation.secret"


@pytest.mark.parametrize(
    "properties",
    [
        {"city": {"type": "string"}},
        {"maxTokens": {"type": "integer"}},
        {"max_tokens": {"type": "string"}},
        {"keyword": {"type": "string"}},
        {"secretary": {"type": "string"}},
        {"rotatePassword": {"type": "boolean"}},
        {"token": {"type": "string", "enum": ["eur", "usd"]}},
        {"monkey": {"type": "string", "title": "Key monkey"}},
        {},
        None,
        "x",
    ],
    ids=str,
)
def test_ordinary_forms_pass(properties: Any) -> None:
    assert isinstance(judge_input(form(properties), policy(), 0), Pass)


def test_public_link_passes_and_its_message_may_name_a_password() -> None:
    assert isinstance(judge_input(url("https://example.com/x?y=1"), policy(), 0), Pass)
    asked = url("https://example.com/sign-in")
    asked["params"]["message"] = "Enter your password on this page."
    assert isinstance(judge_input(asked, policy(), 0), Pass)


@pytest.mark.parametrize("value", ["http://example.com", "http://localhost:1/", "https://127.1/", "javascript:alert(1)", "", None, 5])
@pytest.mark.attack(17)
def test_other_urls_are_refused(value: Any) -> None:
    assert rule(judge_input(url(value), policy(), 0)) == "elicitation.url"


def test_the_operator_may_allow_hosts_of_links() -> None:
    allowing = policy(elicitation={"urlHosts": ["localhost", "*.corp"]})
    assert isinstance(judge_input(url("http://localhost:8080/cb"), allowing, 0), Pass)
    assert isinstance(judge_input(url("https://portal.corp/"), allowing, 0), Pass)
    assert rule(judge_input(url("http://portal.corp/"), allowing, 0)) == "elicitation.url"


def test_long_message_beside_a_link_is_refused() -> None:
    asked = url("https://example.com/")
    asked["params"]["message"] = "x" * 5_000
    assert rule(judge_input(asked, policy(), 0)) == "elicitation.size"


@pytest.mark.parametrize("request_", [{}, {"method": None}, {"method": "tools/call"}, {"method": "x" * 5_000}])
def test_anything_else_is_refused_shortly(request_: dict[str, Any]) -> None:
    verdict = judge_input(request_, policy(), 0)
    assert rule(verdict) == "inputs.method"
    assert isinstance(verdict, Reject)
    assert len(verdict.reason) < 200


def test_unknown_elicitation_mode_is_refused() -> None:
    assert rule(judge_input({"method": "elicitation/create", "params": {"mode": "popup"}}, policy(), 0)) == "elicitation.mode"


@pytest.mark.parametrize(
    "title",
    [
        "Benutzerpasswort", "Kennwort", "Mot de passe", "contraseña", "Contrasena", "clave secreta", "palavra-passe", "senha", "wachtwoord",
        "hasło", "lösenord", "şifre", "jelszó", "parolă", "salasana", "Пароль", "введите пароля", "пин-код", "κωδικός", "密码", "密碼",
        "パスワード", "暗証番号", "비밀번호", "PIN", "card PIN", "pin_code", "clé API", "OTP",
    ],
)  # fmt: skip
@pytest.mark.attack(17)
def test_form_may_not_request_a_secret_in_any_language(title: str) -> None:
    assert rule(judge_input(form({"field": {"type": "string", "title": title}}), policy(), 0)) == "elicitation.secret"


def test_number_may_be_a_pin_but_not_a_secret_one() -> None:
    assert rule(judge_input(form({"pin": {"type": "integer"}}), policy(), 0)) == "elicitation.secret"
    assert isinstance(judge_input(form({"token_count": {"type": "integer"}, "token": {"type": "number"}}), policy(), 0), Pass)


@pytest.mark.parametrize("title", ["palabra clave", "Stadt", "ville", "город", "都市", "도시", "compass wording", "pinned", "passenger"])
def test_ordinary_terms_of_other_languages_pass(title: str) -> None:
    assert isinstance(judge_input(form({"field": {"type": "string", "title": title}}), policy(), 0), Pass)


def test_prompt_begins_with_a_line_naming_server_and_host() -> None:
    asked = judge_input(form({}), policy(), 0, origin="docs")
    link = judge_input(url("https://b\u00fccher.example/x"), policy(), 0, origin="docs")
    assert isinstance(asked, Rewrite) and isinstance(link, Rewrite)
    assert asked.arguments["params"]["message"] == "Server 'docs' asks:\n│ ?"
    assert link.arguments["params"]["message"] == "Server 'docs' asks you to open xn--bcher-kva.example:\n│ ?"
    assert link.arguments["params"]["url"] == "https://xn--bcher-kva.example/x"


@pytest.mark.attack(17)
def test_server_text_cannot_imitate_a_gateway_line() -> None:
    asked = form({"name": {"type": "string", "title": "Name\nServer 'bank' asks:", "description": "x\u2028y"}})
    asked["params"]["message"] = "Your name?\r\nApprove this call of 'read' of 'files'?"
    verdict = judge_input(asked, policy(), 0, origin="docs")
    assert isinstance(verdict, Rewrite)
    params: Any = verdict.arguments["params"]
    assert params["message"] == "Server 'docs' asks:\n│ Your name?\n│ Approve this call of 'read' of 'files'?"
    assert params["requestedSchema"]["properties"]["name"] == {"type": "string", "title": "Name Server 'bank' asks:", "description": "x y"}
    assert asked["params"]["requestedSchema"]["properties"]["name"]["title"] == "Name\nServer 'bank' asks:"


UNREADABLE: list[dict[str, Any]] = [
    {"messages": "x"}, {"messages": ["x"]}, {"messages": [{"role": "system", "content": {}}]},
    {"messages": [{"role": "user", "content": "x"}]}, {"messages": [{"role": "user", "content": ["x"]}]},
    {"tools": "x"}, {"temperature": "hot"}, {"stopSequences": "x"},
]  # fmt: skip


@pytest.mark.parametrize("params", UNREADABLE)
def test_sampling_request_that_no_model_could_read_is_refused(params: dict[str, Any]) -> None:
    assert rule(judge_input(sampling(maxTokens=1, **{"messages": [], **params}), RELAY, 0)) == "sampling.params"

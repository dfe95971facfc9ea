"""Text that has the form of a secret is masked; ordinary text is not changed."""

from __future__ import annotations

import pytest

from gateway.telemetry.logging import SecretMask


@pytest.mark.parametrize(
    ("text", "masked"),
    [
        ("could not connect to postgres://user:s3cret@host/db", "could not connect to postgres://user:[secret]@host/db"),
        ("GET https://user:pw@host failed", "GET https://user:[secret]@host failed"),
        ("'amqp://u:p@ss@host:5672'", "'amqp://u:[secret]@host:5672'"),
        ("redis://:hunter2@cache:6379/0", "redis://:[secret]@cache:6379/0"),
        ("https://a.example/x?token=abc&page=2", "https://a.example/x?token=[secret]&page=2"),
        ("https://a.example/x?page=2&sig=a%2Fb", "https://a.example/x?page=2&sig=[secret]"),
        ("Authorization: Bearer abc.def", "Authorization: Bearer [secret]"),
        ("{'Authorization': 'Basic dXNlcjpwdw=='}", "{'Authorization': 'Basic [secret]'}"),
        ("sent Bearer eyJhbGciOiJIUzI1NiJ9.e30.x", "sent Bearer [secret]"),
        ("api_key=k-1234 is wrong", "api_key=[secret] is wrong"),
        ("connect(host='h', password='a b c', port=5)", "connect(host='h', password='[secret]', port=5)"),
        ("host=h password=pw user=u", "host=h password=[secret] user=u"),
        ("DB_PASSWORD=pw GITHUB_TOKEN=ghp_1", "DB_PASSWORD=[secret] GITHUB_TOKEN=[secret]"),
        ('{"user": "u", "client_secret": "x9"}', '{"user": "u", "client_secret": "[secret]"}'),
        ('{\\"password\\": \\"x9\\"}', '{\\"password\\": \\"[secret]\\"}'),
        ("Server=db;Uid=u;Pwd=pw;", "Server=db;Uid=u;Pwd=[secret];"),
        ("X-Api-Key: 12345", "X-Api-Key: [secret]"),
    ],
)
def test_forms_of_secrets_are_masked(text: str, masked: str) -> None:
    mask = SecretMask().mask
    assert mask(text) == masked
    assert mask(masked) == masked


@pytest.mark.parametrize(
    "text",
    [
        "user@host",
        "http://host:8080/path@v1",
        "ssh://git@github.com/a/b.git",
        "http://[::1]:8765/mcp",
        "https://a.example/items?page=2&token_type=x&key=blue#at@b",
        "http://a:80, then b@c",
        "unexpected token=) at line 3; max_tokens=100 next_token=abc",
        "password: must have at least 8 characters",
        "password=None api_key=null secret=[secret] token=<token> password=${DB_PASSWORD}",
        '{"password": "This field is required", "token": "string"}',
        "Bearer authentication is required; the Authorization header is missing",
        "Authorization: Bearer <token>",
        "PWD=/home/user OLDPWD=/tmp",
        "invalid signature=(a, b) and monkey=banana",
        "server connected server=files era=2026-07-28 tools=14 ms=818",
    ],
)
def test_ordinary_texts_are_not_masked(text: str) -> None:
    assert SecretMask().mask(text) == text


@pytest.mark.timeout(10)
@pytest.mark.parametrize("part", ["a", "://", "://a:", "password=", "password='", "bearer ", "Bearer " + "a" * 20, '"token":"', "?token="])
def test_long_texts_take_linear_time(part: str) -> None:
    SecretMask().mask(part * (300_000 // len(part)))

"""Access tokens: what is remembered, key rotation, outages of the issuer, introspection, and the rights of long work."""

from __future__ import annotations

import threading
import time
from collections.abc import Generator
from typing import Any

import anyio
import pytest

from gateway.auth import access_tokens, signing_keys
from gateway.auth.access_tokens import AccessTokens
from gateway.auth.principal import Principal
from gateway.auth.principal_facts import facts_of, from_facts
from gateway.auth.token_errors import IssuerUnavailable, TokenRefused
from gateway.config.auth_settings import InboundAuthSettings
from gateway.errors import ConfigError
from tests.fakes.token_issuer import CLIENT, SECRET, Issuer, Key, serving, token_issuer

RESOURCE = "http://127.0.0.1:1/mcp"


@pytest.fixture
def issuer() -> Generator[Issuer]:
    with token_issuer() as made:
        yield made


@pytest.fixture(autouse=True)
def refetch_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(signing_keys, "REFETCH_SECONDS", 0.0)


def tokens_of(*issuers: Issuer, **settings: Any) -> AccessTokens:
    """The object under test; `settings` are those of each issuer."""
    written = [{"issuer": issuer.url, **settings} for issuer in issuers]
    made = AccessTokens(InboundAuthSettings.model_validate({"issuers": written}))
    made.serve_at(RESOURCE)
    return made


def with_introspection(**more: Any) -> dict[str, Any]:
    return {"introspection": {"clientId": CLIENT, "clientSecret": SECRET, **more}}


async def verified(tokens: AccessTokens, token: str) -> Principal:
    return (await tokens.verify(token)).principal


async def test_claims_become_the_principal(issuer: Issuer) -> None:
    claims = {"client": "azp", "groups": "realm_access.roles", "tenant": "https://example.com/tid"}
    tokens = tokens_of(issuer, claims=claims, scopes={"read": ["docs"], "all": ["*"]})
    more: dict[str, Any] = {"azp": "vscode", "realm_access": {"roles": ["ops", "dev", "ops"]}, "https://example.com/tid": "t1"}
    caller = await verified(tokens, issuer.token(RESOURCE, name="Alice\n", scope="read other", **more))
    assert (caller.kind, caller.issuer, caller.subject, caller.client) == ("user", issuer.url, "alice", "vscode")
    assert (caller.groups, caller.tenant, caller.scopes, caller.name) == (("dev", "ops"), "t1", ("docs",), "Alice")
    other = await verified(tokens, issuer.token(RESOURCE, azp="cursor"))
    assert caller.id.startswith("user:") and other.id != caller.id and other.owner == caller.owner != caller.id
    assert other.scopes == ()
    robot = await verified(tokens, issuer.token(RESOURCE, sub=None))
    assert robot.subject == "ide"


async def test_without_mapping_a_token_has_all_rights(issuer: Issuer) -> None:
    assert (await verified(tokens_of(issuer), issuer.token(RESOURCE, scope="x"))).scopes is None


async def test_scopes_are_read_in_all_usual_forms(issuer: Issuer) -> None:
    tokens = tokens_of(issuer, scopes={"a": ["docs"], "b": ["mail"]})
    forms: list[dict[str, Any]] = [{"scope": "a b"}, {"scp": "a b"}, {"scp": ["a", "b"]}, {"scope": ["a", "b"]}]
    for more in forms:
        assert (await verified(tokens, issuer.token(RESOURCE, **more))).scopes == ("docs", "mail"), more


async def test_same_subject_of_two_issuers_is_two_people(issuer: Issuer) -> None:
    with token_issuer() as other:
        tokens = tokens_of(issuer, other)
        one = await verified(tokens, issuer.token(RESOURCE))
        two = await verified(tokens, other.token(RESOURCE))
        assert one.owner != two.owner and one.id != two.id
        with pytest.raises(TokenRefused):
            await tokens.verify(issuer.token(RESOURCE, iss=other.url))


@pytest.mark.parametrize("alg", ["RS256", "ES256", "EdDSA"])
async def test_usual_algorithms_are_accepted(alg: str, issuer: Issuer) -> None:
    issuer.keys = [Key.made(alg)]
    assert (await verified(tokens_of(issuer), issuer.token(RESOURCE))).subject == "alice"


async def test_valid_token_is_remembered_until_it_expires(issuer: Issuer) -> None:
    tokens = tokens_of(issuer, clockSkewSeconds=0)
    token = issuer.token(RESOURCE, exp=int(time.time()) + 2)
    assert tokens.remembered(token) is None
    known = await tokens.verify(token)
    asked = len(issuer.asked)
    assert tokens.remembered(token) is known and len(issuer.asked) == asked
    with anyio.fail_after(10):
        while tokens.remembered(token) is not None:
            await anyio.sleep(0.02)
    with pytest.raises(TokenRefused, match="expired"):
        await tokens.verify(token)


async def test_new_key_is_fetched_once_for_all_who_wait(issuer: Issuer, monkeypatch: pytest.MonkeyPatch) -> None:
    tokens = tokens_of(issuer)
    await tokens.verify(issuer.token(RESOURCE))
    issuer.keys.append(Key.made("RS256"))
    issuer.hold = threading.Event()
    monkeypatch.setattr(signing_keys, "REFETCH_SECONDS", 0.0)
    async with anyio.create_task_group() as tasks:
        for number in range(20):
            tasks.start_soon(tokens.verify, issuer.token(RESOURCE, key=issuer.keys[1], sub=f"user-{number}"))
        with anyio.fail_after(10):
            while issuer.count("/jwks") < 2:
                await anyio.sleep(0.01)
        issuer.hold.set()
    assert issuer.count("/jwks") == 2


async def test_invented_key_ids_do_not_burden_the_issuer(issuer: Issuer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(signing_keys, "REFETCH_SECONDS", 60.0)
    tokens = tokens_of(issuer)
    await tokens.verify(issuer.token(RESOURCE))
    for number in range(50):
        with pytest.raises(TokenRefused, match="no key"):
            await tokens.verify(issuer.token(RESOURCE, header={"kid": f"invented-{number}"}))
    assert issuer.count("/jwks") == 1


async def test_withdrawn_key_ends_tokens_that_were_accepted(issuer: Issuer) -> None:
    old, new = issuer.keys[0], Key.made()
    tokens = tokens_of(issuer)
    token = issuer.token(RESOURCE)
    caller = await verified(tokens, token)
    issuer.keys = [old, new]
    await tokens.verify(issuer.token(RESOURCE, key=new, sub="bob"))
    assert tokens.remembered(token) is not None
    issuer.keys = [new]
    assert await tokens.issuers[0].keys.refresh()
    assert tokens.remembered(token) is None and tokens.current(caller) is None
    with pytest.raises(TokenRefused):
        await tokens.verify(token)


async def test_withdrawn_key_leaves_the_rights_of_another_token(issuer: Issuer) -> None:
    old, new = issuer.keys[0], Key.made()
    issuer.keys = [old, new]
    tokens = tokens_of(issuer)
    kept = await verified(tokens, issuer.token(RESOURCE, key=new))
    await tokens.verify(issuer.token(RESOURCE, key=old))
    issuer.keys = [new]
    await tokens.issuers[0].keys.refresh()
    assert tokens.current(kept) is not None and tokens.current(Principal(kept.id)) == kept


async def test_keys_count_for_a_stated_time_while_the_issuer_is_down(issuer: Issuer, monkeypatch: pytest.MonkeyPatch) -> None:
    tokens = tokens_of(issuer, keysKeptSeconds=60)
    known = issuer.token(RESOURCE, exp=int(time.time()) + 3600)
    await tokens.verify(known)
    issuer.status = 503
    assert not await tokens.issuers[0].keys.refresh()
    assert (await verified(tokens, issuer.token(RESOURCE, sub="bob"))).subject == "bob"
    real = time.time
    monkeypatch.setattr(time, "time", lambda: real() + 61)
    assert tokens.remembered(known) is None
    with pytest.raises(IssuerUnavailable):
        await tokens.verify(known)
    issuer.status = 200
    assert (await verified(tokens, known)).subject == "alice"


async def test_unreachable_issuer_is_not_taken_for_a_bad_token() -> None:
    with token_issuer() as issuer:
        token, port = issuer.token(RESOURCE), int(issuer.url.rpartition(":")[2])
    tokens = tokens_of(issuer)
    with pytest.raises(IssuerUnavailable):
        await tokens.verify(token)
    with serving(issuer, port):
        assert (await verified(tokens, token)).subject == "alice"


@pytest.mark.parametrize("body", [b"", b"[]", b'{"keys": {}}', b"[" * 100_000, b"\xff\xfe", b"x" * 300_000])
async def test_broken_key_set_keeps_the_known_keys(issuer: Issuer, body: bytes) -> None:
    tokens = tokens_of(issuer)
    await tokens.verify(issuer.token(RESOURCE))
    issuer.body = body
    assert not await tokens.issuers[0].keys.refresh()
    assert (await verified(tokens, issuer.token(RESOURCE, sub="bob"))).subject == "bob"


@pytest.mark.parametrize("published", ["shared", "private", "encryption", "short", "malformed"])
async def test_unsuitable_published_keys_prove_nothing(issuer: Issuer, published: str) -> None:
    key = issuer.keys[0] = Key.made("RS256", bits=1024) if published == "short" else Key.made()
    jwk: dict[str, Any] = {
        "shared": {"kty": "oct", "k": "c2VjcmV0", "kid": key.kid, "alg": "HS256"},
        "private": key.jwk(d="AQAB"),
        "encryption": key.jwk(use="enc"),
        "short": key.jwk(),
        "malformed": key.jwk(x="!", y=7),
    }[published]
    issuer.published = [jwk]
    with pytest.raises((TokenRefused, IssuerUnavailable)):
        await tokens_of(issuer, algorithms=["RS256", "ES256"]).verify(issuer.token(RESOURCE))


@pytest.mark.parametrize("metadata", [{"issuer": "https://evil.example"}, {"jwks_uri": None}, {"jwks_uri": "http://10.0.0.1/jwks"}])
async def test_metadata_of_another_issuer_or_place_is_not_used(issuer: Issuer, metadata: dict[str, Any]) -> None:
    issuer.metadata = metadata
    with pytest.raises(IssuerUnavailable):
        await tokens_of(issuer).verify(issuer.token(RESOURCE))


# -- introspection -----------------------------------------------------------------------------------------------------


async def test_opaque_token_is_introspected_and_remembered(issuer: Issuer) -> None:
    tokens = tokens_of(issuer, **with_introspection())
    token = issuer.give_opaque(RESOURCE, groups="ops")
    caller = await verified(tokens, token)
    assert (caller.subject, caller.groups, caller.issuer) == ("alice", ("ops",), issuer.url)
    known = tokens.remembered(token)
    assert known is not None and known.usable_until <= time.time() + 60 and issuer.count("/introspect") == 1


async def test_revoked_opaque_token_is_refused_after_the_cache(issuer: Issuer) -> None:
    tokens = tokens_of(issuer, **with_introspection(cacheSeconds=0.5))
    token = issuer.give_opaque(RESOURCE)
    await tokens.verify(token)
    del issuer.opaque[token]
    assert tokens.remembered(token) is not None
    with anyio.fail_after(10):
        while tokens.remembered(token) is not None:
            await anyio.sleep(0.02)
    with pytest.raises(TokenRefused, match="revoked"):
        await tokens.verify(token)


async def test_repeated_unknown_token_causes_one_request(issuer: Issuer) -> None:
    tokens = tokens_of(issuer, **with_introspection())
    for _ in range(10):
        with pytest.raises(TokenRefused):
            await tokens.verify("made-up")
    assert issuer.count("/introspect") == 1


@pytest.mark.parametrize(
    "more", [{"aud": "https://other.example/mcp"}, {"aud": None}, {"exp": 1}, {"iss": "https://evil.example"}, {"cnf": {"jkt": "x"}},
             {"nbf": 9_999_999_999}, {"token_type": "refresh_token"}, {"exp": "soon"}, {"sub": None, "client_id": None}],
)  # fmt: skip
async def test_introspected_token_for_somebody_else_is_refused(issuer: Issuer, more: dict[str, Any]) -> None:
    tokens = tokens_of(issuer, **with_introspection())
    token = issuer.give_opaque(RESOURCE)
    issuer.opaque[token] = {name: value for name, value in {**issuer.opaque[token], **more}.items() if value is not None}
    with pytest.raises(TokenRefused):
        await tokens.verify(token)


@pytest.mark.parametrize("body", [b"", b"[]", b'{"active": "true"}', b"{" * 50_000])
async def test_broken_introspection_answer_is_no_verdict(issuer: Issuer, body: bytes) -> None:
    issuer.body = body
    with pytest.raises(IssuerUnavailable):
        await tokens_of(issuer, **with_introspection()).verify("opaque")


async def test_flood_of_opaque_tokens_is_bounded(issuer: Issuer, monkeypatch: pytest.MonkeyPatch) -> None:
    from gateway.auth import introspection

    monkeypatch.setattr(introspection, "MAX_WAITING", 4)
    tokens = tokens_of(issuer, **with_introspection(endpoint=f"{issuer.url}/introspect"))
    issuer.hold = threading.Event()
    outcomes: list[type] = []

    async def ask(number: int) -> None:
        try:
            await tokens.verify(f"made-up-{number}")
        except (TokenRefused, IssuerUnavailable) as error:
            outcomes.append(type(error))

    async with anyio.create_task_group() as tasks:
        for number in range(20):
            tasks.start_soon(ask, number)
        with anyio.fail_after(10):
            while outcomes.count(IssuerUnavailable) < 16:
                await anyio.sleep(0.01)
        issuer.hold.set()
    assert (outcomes.count(TokenRefused), issuer.count("/introspect")) == (4, 4)


async def test_silent_issuer_ends_the_check_in_time(issuer: Issuer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(access_tokens, "VERIFY_SECONDS", 0.2)
    issuer.hold = threading.Event()
    with anyio.fail_after(10), pytest.raises(IssuerUnavailable):
        await tokens_of(issuer).verify(issuer.token(RESOURCE))


# -- long work -----------------------------------------------------------------------------------------------------------


async def test_rights_of_long_work_lapse_after_the_last_token(issuer: Issuer, monkeypatch: pytest.MonkeyPatch) -> None:
    tokens = tokens_of(issuer, rightsSeconds=100, scopes={"a": ["docs"], "b": ["mail"]})
    first = await verified(tokens, issuer.token(RESOURCE, scope="a b", groups=["ops"]))
    stored = from_facts(facts_of(first))
    assert stored is not None and facts_of(stored) == facts_of(first)
    await tokens.verify(issuer.token(RESOURCE, scope="a", groups=["dev"], exp=int(time.time()) + 600))
    now = tokens.current(stored)
    assert now is not None and (now.groups, now.scopes) == (("dev",), ("docs", "mail"))
    restarted, gone = tokens_of(issuer, rightsSeconds=100), tokens_of()
    assert restarted.current(stored) == stored
    assert restarted.current(Principal(first.id)) is None, "an id alone proves nothing"
    assert gone.current(stored) is None, "the issuer is no longer configured"
    real = time.time
    monkeypatch.setattr(time, "time", lambda: real() + 500)
    assert tokens.current(stored) is not None and restarted.current(stored) is None
    monkeypatch.setattr(time, "time", lambda: real() + 701)
    assert tokens.current(stored) is None


@pytest.mark.parametrize("damage", [None, {}, {"id": "local"}, {"groups": "ops"}, {"scopes": [1]}, {"expiresAt": "x"}, {"id": 7}])
async def test_damaged_facts_are_nobody(issuer: Issuer, damage: Any) -> None:
    facts = facts_of(await verified(tokens_of(issuer), issuer.token(RESOURCE)))
    assert from_facts({**facts, **damage} if damage else damage) is None


async def test_memory_for_tokens_is_bounded(issuer: Issuer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(access_tokens, "MAX_REMEMBERED", 5)
    tokens = tokens_of(issuer)
    made = [issuer.token(RESOURCE, sub=f"user-{number}") for number in range(8)]
    for token in made:
        await tokens.verify(token)
    assert [tokens.remembered(token) is not None for token in made] == [False] * 3 + [True] * 5


@pytest.mark.parametrize("scopes", [{"a": []}, {"a": ["tool:docs"]}, {"a": ["x"] * 101}])
def test_malformed_scope_mapping_stops_the_start(scopes: dict[str, list[str]]) -> None:
    settings = InboundAuthSettings.model_validate({"issuers": [{"issuer": "https://login.example", "scopes": scopes}]})
    with pytest.raises(ConfigError, match=r"issuers\[0\]\.scopes\.a"):
        AccessTokens(settings)

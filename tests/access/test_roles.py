"""Roles: who has them, and what they allow."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from gateway.access.decisions import Generations
from gateway.access.principal_rights import Access, compile_access
from gateway.auth.principal import LOCAL, Principal, is_operator
from gateway.config.access_settings import AccessMember, AccessSettings
from gateway.errors import ConfigError
from gateway.policy.caller_rights import Decision, is_hidden
from gateway.policy.decision import PASS
from gateway.tasks.stored_call import from_stored, to_stored
from gateway.tools.call_facts import CallFacts
from gateway.tools.context import CallContext

ISSUER = "https://idp.example"


def user(*groups: str, **facts: Any) -> Principal:
    fields: dict[str, Any] = {"id": "user:1", "kind": "user", "issuer": ISSUER, "subject": "ann", "groups": groups, "expires_at": 1e12, **facts}
    return Principal(**fields)


def access_of(roles: dict[str, Any], default: str | None = None) -> Access:
    access = Access()
    access.renew(compile_access(AccessSettings.model_validate({"roles": roles, "default": default}), Path()))
    return access


def decide(access: Access, principal: Principal, item: str, kind: Any = "tools") -> Decision:
    rights = access.bind(principal).rights
    assert rights is not None
    return rights.decide(kind, *item.split("/", 1))


@pytest.mark.parametrize(
    ("member", "principal", "has"),
    [
        ({"group": "eng"}, user("eng", "ops"), True),
        ({"group": "eng"}, user("ops"), False),
        ({"group": "eng", "issuer": ISSUER}, user("eng", issuer="https://evil.example"), False),
        ({"group": "eng", "tenant": "acme"}, user("eng", tenant="acme"), True),
        ({"group": "eng", "tenant": "acme"}, user("eng"), False),
        ({"subject": "ann", "issuer": ISSUER}, user(), True),
        ({"subject": "ann", "issuer": ISSUER}, user(issuer="https://evil.example"), False),
        ({"client": "https://client.example"}, user(client="https://client.example"), True),
        ({"key": "ci"}, Principal("key:1", "ci"), True),
        ({"key": "1"}, Principal("key:1", "ci"), True),
        ({"key": "ci"}, user(name="ci"), False),
        ({"group": "eng"}, Principal("key:1", "eng"), False),
    ],
)
def test_member_matches_by_all_of_its_keys(member: dict[str, Any], principal: Principal, has: bool) -> None:
    access = access_of({"some": {"members": [member], "allow": ["docs"]}})
    assert (decide(access, principal, "docs/read").verdict is PASS) == has


@pytest.mark.parametrize("member", [{}, {"issuer": ISSUER}, {"subject": "ann"}, {"key": "a", "group": "b"}, {"group": ""}])
def test_member_must_name_callers(member: dict[str, Any]) -> None:
    with pytest.raises(ValueError):
        AccessMember.model_validate(member)


def test_one_role_allows_and_any_role_denies() -> None:
    roles = {
        "a": {"members": [{"group": "eng"}], "allow": ["docs"], "deny": ["docs/drop"]},
        "b": {"members": [{"group": "eng"}], "allow": ["docs/drop", "up/*"]},
    }
    access = access_of(roles)
    assert decide(access, user("eng"), "docs/read").verdict is PASS
    assert decide(access, user("eng"), "up/x").verdict is PASS
    assert is_hidden(decide(access, user("eng"), "docs/drop").verdict)
    assert is_hidden(decide(access, user("eng"), "vault/open").verdict)


def test_caller_without_a_role_has_the_default_or_nothing() -> None:
    roles = {"some": {"members": [{"group": "eng"}], "allow": ["docs"]}, "all": {"allow": ["up"]}}
    assert is_hidden(decide(access_of(roles), user(), "up/x").verdict)
    with_default = access_of(roles, "all")
    assert decide(with_default, user(), "up/x").verdict is PASS
    assert is_hidden(decide(with_default, user("eng"), "up/x").verdict)


def test_rules_of_one_allowing_role_are_enough() -> None:
    roles = {
        "a": {"members": [{"group": "a"}], "allow": ["docs"], "arguments": {"docs/*": {"n": {"maximum": 3}}}},
        "b": {"members": [{"group": "b"}], "allow": ["docs/read"], "arguments": {"docs/read": {"n": {"minimum": 10}}}},
        "c": {"members": [{"group": "c"}], "allow": ["docs/read"]},
    }
    access, schema = access_of(roles), {"type": "object", "properties": {"n": {"type": "integer"}}}
    both = decide(access, user("a", "b"), "docs/read")
    assert [both.judge({"n": n}, schema) is None for n in (3, 5, 10)] == [True, False, True]
    refused = both.judge({"n": 5}, schema)
    assert refused is not None and refused.rule == "access.roles.a.arguments.docs/*.n"
    assert not decide(access, user("a", "c"), "docs/read").reads_arguments


def test_patterns_for_resources_and_skills() -> None:
    allow = ["resources:docs/file:///open/*", "skills:skill/pdf", "prompts:docs/ask"]
    access = access_of({"some": {"members": [{"group": "eng"}], "allow": allow, "deny": ["resources:up/file:///secret/*"]}})

    def may(kind: Any, item: str) -> bool:
        return decide(access, user("eng"), item, kind).verdict is PASS

    assert may("resources", "docs/file:///open/a") and not may("resources", "docs/file:///open/../shut/a")
    assert may("resources", "skill/skill://pdf/SKILL.md") and may("resources", "skill/skill://pdf/a/b.md")
    assert not may("resources", "skill/skill://pdfx/SKILL.md") and not may("resources", "skill/page://pdf")
    assert may("prompts", "docs/ask") and not may("tools", "docs/ask")


def test_deny_covers_uris_that_lead_elsewhere() -> None:
    deny = ["resources:up/file:///secret/*", "skills:up/pdf"]
    access = access_of({"some": {"members": [{"group": "eng"}], "allow": ["up"], "deny": deny}})
    for uri in ("file:///secret/a", "file:///open/../secret/a", "file:///open/%2e%2e/secret/a", "skill://pdf/SKILL.md", "skill://PDF/SKILL.md"):
        assert is_hidden(decide(access, user("eng"), f"up/{uri}", "resources").verdict), uri
    assert decide(access, user("eng"), "up/file:///open/a", "resources").verdict is PASS
    assert decide(access, user("eng"), "up/read").verdict is PASS


def test_operator_role_and_scopes() -> None:
    access = access_of({"leads": {"members": [{"group": "leads"}, {"key": "ops"}], "allow": ["*"], "operator": True}})
    assert is_operator(access.bind(user("leads"))) and not is_operator(access.bind(user()))
    assert not is_operator(access.bind(user("leads", scopes=("docs",))))
    assert is_operator(access.bind(Principal("key:2", "other", ("admin",))))
    assert not is_operator(access.bind(user("leads")).unscoped())


def test_local_user_and_missing_section_restrict_nothing() -> None:
    assert access_of({}).bind(LOCAL) is LOCAL
    principal = user("eng")
    assert Access().bind(principal) is principal


def test_rights_follow_a_reload() -> None:
    access = access_of({"some": {"members": [{"group": "eng"}], "allow": ["docs"]}})
    bound = access.bind(user("eng", scopes=("docs", "up")))
    assert bound.rights is not None and is_hidden(bound.rights.decide("tools", "up", "x").verdict)
    before = bound.rights.key
    settings = AccessSettings.model_validate({"roles": {"some": {"members": [{"group": "eng"}], "allow": ["up"]}}})
    access.renew(compile_access(settings, Path()))
    assert bound.rights.decide("tools", "up", "x").verdict is PASS and bound.rights.key != before
    access.renew(None)
    assert bound.rights.decide("tools", "docs", "x").verdict is PASS
    assert bound.rights.decide("tools", "vault", "x").verdict is not PASS


def test_callers_with_the_same_roles_share_decisions() -> None:
    access = access_of({"some": {"members": [{"group": "eng"}], "allow": ["docs"]}})
    one, other = (access.bind(user("eng", id=f"user:{number}", subject=f"s{number}")).rights for number in (1, 2))
    assert one is not None and other is not None and one.key is other.key
    assert one.decide("tools", "docs", "read") is other.decide("tools", "docs", "read")


def test_cache_is_bounded_and_keeps_what_is_used() -> None:
    cache: Generations[int] = Generations(10)
    for number in range(1000):
        cache.keep(number, number)
        assert cache.get(0) == 0 and len(cache) <= 21
    assert cache.get(500) is None


@pytest.mark.parametrize("pattern", ["", "a b", "what:docs/x", "admin", "skills:tools:docs/x"])
def test_malformed_pattern_is_named_with_its_place(pattern: str) -> None:
    with pytest.raises(ConfigError, match=r"^access\.roles\.some\.deny\[1\]: "):
        access_of({"some": {"deny": ["docs", pattern]}})
    with pytest.raises(ConfigError, match="pattern for tools"):
        access_of({"some": {"approval": ["resources:docs"]}})


def test_stored_task_keeps_the_user_for_its_roles() -> None:
    ctx = CallContext(CallFacts(principal=user("eng", tenant="acme", client="c", scopes=("docs",))))
    row: Any = type("Row", (), {"principal": "user:1", "call": to_stored({}, ctx, resumes=True)})()
    again = from_stored(row).facts.principal
    fields = ("id", "kind", "issuer", "subject", "client", "groups", "tenant", "owner", "scopes")
    assert [getattr(again, field) for field in fields] == [getattr(ctx.facts.principal, field) for field in fields]

"""The documented shares of a gateway's connections for one caller or address, and the decision about an exhausted share."""

from __future__ import annotations

import pytest

from gateway.config.models import LimitSettings
from gateway.policy.decision import PASS
from gateway.policy.quotas import NO_LIMIT, ConnectionQuotas, Quota, QuotaReached, caller_quotas, judge_quota

MIB = 1 << 20


def test_default_shares_follow_the_number_of_connections() -> None:
    found = caller_quotas(LimitSettings(sessions=100), 1_600, 8 * MIB)
    assert (found.calls.per_caller, found.requests.per_caller) == (400, 500)
    assert (found.streams.per_caller, found.streams.total, found.streams.reserve) == (200, 800, 25)
    assert (found.sessions.per_caller, found.sessions.total, found.sessions.reserve) == (25, 100, 25)
    size = found.request_bytes
    assert (size.per_caller, size.total, size.reserve) == (128 * MIB, 512 * MIB, 32 * MIB)
    assert (found.unread.per_caller, found.unread.total, found.unshared().unread.per_caller) == (64 * MIB, 256 * MIB, 256 * MIB)


def test_smallest_gateway_still_admits_each_caller() -> None:
    found = caller_quotas(LimitSettings(sessions=1), 1, MIB)
    assert (found.calls.per_caller, found.requests.per_caller) == (1, 17)
    assert (found.streams.per_caller, found.streams.total, found.streams.reserve) == (1, 1, 16)
    assert (found.sessions.per_caller, found.request_bytes.per_caller, found.request_bytes.total) == (1, 64 * MIB, 256 * MIB)


def test_configured_shares_hold() -> None:
    limits = LimitSettings(calls_per_caller=3, streams=10, streams_per_caller=4, sessions=9, sessions_per_caller=5)
    limits = limits.model_copy(update={"request_bytes": MIB, "request_bytes_per_caller": 70_000})
    found = caller_quotas(limits, 1_600, 1_000)
    quotas = (found.calls, found.requests, found.streams, found.sessions, found.request_bytes)
    assert [quota.per_caller for quota in quotas] == [3, 19, 4, 5, 70_000]
    assert [quota.total for quota in quotas[2:]] == [10, 9, MIB]
    assert [quota.per_caller for quota in (found.unshared().streams, found.unshared().calls)] == [10, NO_LIMIT]


@pytest.mark.parametrize("is_local", [False, True])
def test_one_address_has_a_share_and_this_machine_is_unbounded(is_local: bool) -> None:
    found = ConnectionQuotas(1_600, 16, None, 64 * MIB, MIB)
    shares = [share(is_local=is_local) for share in (found.per_address, found.incomplete_of_one, found.incomplete_bytes_of_one)]
    assert tuple(shares) == ((NO_LIMIT,) * 3 if is_local else (800, 200, 16 * MIB))
    smallest = ConnectionQuotas(1, 16, 5, 4, 9)
    assert smallest.per_address(is_local=is_local) == 5
    assert is_local or (smallest.incomplete_of_one(is_local=False), smallest.incomplete_bytes_of_one(is_local=False)) == (1, 9)


def test_full_share_and_full_gateway_are_rejected_naming_the_setting() -> None:
    quota = Quota("streams", "own.key", "total.key", per_caller=2, total=5, reserve=1)
    assert judge_quota(quota, own=1, total=4) == PASS
    own = judge_quota(quota, own=2, total=2)
    assert isinstance(own, QuotaReached) and (own.rule, own.is_own_share) == ("own.key", True)
    full = judge_quota(quota, own=0, total=5)
    assert isinstance(full, QuotaReached) and (full.rule, full.is_own_share) == ("total.key", False)
    assert judge_quota(quota, own=0, total=5, is_admin=True) == PASS
    assert isinstance(judge_quota(quota, own=0, total=6, is_admin=True), QuotaReached)
    assert isinstance(judge_quota(quota, own=0, total=0, wanted=3), QuotaReached)

"""Standing approvals: their owner, their expiry, their maximum number, and calls that cannot be approved permanently."""

from __future__ import annotations

import dataclasses
import time
from pathlib import Path

import pytest

from gateway import CallContext
from gateway.gate.approvals import Approvals, Grant
from gateway.policy.approval_policy import canonical_arguments
from gateway.policy.decision import Reject
from gateway.storage import approval_rules as repository
from gateway.storage.record_types import ApprovalRule, PendingQuestion
from gateway.telemetry.gateway_events import EventStream
from gateway.tools.call_facts import CallFacts
from gateway.tools.context import CallPorts
from gateway.tools.ports import ClientProfile
from tests.agents.test_served_agents import Person
from tests.cli.processes import moongate, write_gateway
from tests.storage.test_records import records

pytestmark = pytest.mark.requirement("AP9")


def rule(name: str, arguments: str = "", *, principal: str = "ada", seconds: float = 60, tool: str = "read") -> ApprovalRule:
    now = time.time()
    return ApprovalRule(name, principal, "docs", tool, arguments, "docs wants to read", now, now + seconds, "local")


async def test_rule_applies_to_one_caller_tool_and_arguments(tmp_path: Path) -> None:
    these = canonical_arguments({"a": 1, "b": [2]})
    async with records(tmp_path) as made:
        rules = await made.rules()
        await rules.add(rule("these", these))
        await rules.add(rule("old", seconds=-1, tool="write"))
        assert canonical_arguments({"b": [2], "a": 1}) == these != canonical_arguments({}) != ""
        found = await rules.find("ada", "docs", "read", these)
        assert found is not None and found.id == "these"
        for key in (("bob", "docs", "read", these), ("ada", "mail", "read", these), ("ada", "docs", "write", these)):
            assert await rules.find(*key) is None
        assert await rules.find("ada", "docs", "read", canonical_arguments({})) is None, "any and none are not the same"
        await rules.add(dataclasses.replace(rule("again", these), shown="newer"))
        assert [(r.id, r.shown) for r in await rules.list()] == [("again", "newer")], "one that says the same takes its place"
        assert await rules.revoke("again") and not await rules.revoke("again")


async def test_rule_of_one_configuration_does_not_count_for_another(tmp_path: Path) -> None:
    async with records(tmp_path) as earlier, records(tmp_path, gateway="one") as one, records(tmp_path, gateway="two") as two:
        await (await earlier.rules()).add(rule("unnamed"))
        await (await one.rules()).add(rule("ones"))
        found = await (await one.rules()).find("ada", "docs", "read", canonical_arguments({}))
        assert found is not None and found.id == "ones"
        assert await (await two.rules()).find("ada", "docs", "read", canonical_arguments({})) is None
        assert [kept.id for kept in await (await one.rules()).list()] == ["unnamed", "ones"]
        assert [kept.id for kept in await (await two.rules()).list()] == ["unnamed"]


async def test_rule_without_a_maker_does_not_count(tmp_path: Path) -> None:
    async with records(tmp_path) as made:
        rules = await made.rules()
        await rules.add(dataclasses.replace(rule("unknown"), made_by=""))
        assert await rules.find("ada", "docs", "read", canonical_arguments({})) is None
        assert [kept.id for kept in await rules.list()] == ["unknown"]


async def test_the_oldest_rules_of_a_caller_make_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(repository, "MAX_PER_PRINCIPAL", 3)
    async with records(tmp_path) as made:
        rules = await made.rules()
        for number in range(5):
            await rules.add(rule(str(number), tool=f"t{number}"))
        await rules.add(rule("bobs", principal="bob"))
        assert [r.id for r in await rules.list()] == ["2", "3", "4", "bobs"]


@pytest.mark.parametrize(("days", "name", "offers"), [(30, "read", 4), (0, "read", 2), (30, "run_skill_script", 2)])
async def test_unapprovable_rule_is_not_offered_and_counts_as_declined(
    tmp_path: Path, days: float, name: str, offers: int
) -> None:
    class Always(Person):
        async def ask(self, request: dict[str, object], key: str = "") -> dict[str, object]:
            self.form = request
            return {"action": "accept", "content": {"decision": "approve_always"}}

    async with records(tmp_path) as made:
        person = Always()
        ctx = CallContext(CallFacts(client=ClientProfile(capabilities={"elicitation": {}})), CallPorts(caller=person))
        approvals = Approvals(made, EventStream(), standing_days=days)
        source = "skill" if name == "run_skill_script" else "docs"
        verdict = await approvals.approve_call(source, name, {}, ctx)
        assert isinstance(verdict, Grant if offers == 4 else Reject)
        assert str(person.form).count("approve_always") == (2 if offers == 4 else 0)
        assert len(await (await made.rules()).list()) == (offers == 4)


async def test_command_line_rejects_an_unapprovable_standing_rule(tmp_path: Path) -> None:
    write_gateway(tmp_path, mcpServers={}, storage={"dir": "state"})
    now = time.time()
    async with records(tmp_path / "state") as made:
        asks = await made.questions()
        await asks.add(PendingQuestion("model1", "sampling", "docs", "sampling/createMessage", "ada", "?", "open", now, now + 60))
    refused = moongate("approvals", "approve", "model1", "--always", "--json", cwd=tmp_path)
    assert refused.code == 1 and "one by one" in refused.error["message"]
    both = moongate("approvals", "approve", "model1", "--always", "--always-with-arguments", "--json", cwd=tmp_path)
    assert both.code == 1 and "exclude" in both.error["message"]
    unknown = moongate("approvals", "revoke", "abc", "--json", cwd=tmp_path)
    assert unknown.code != 0 and "approvals rules" in unknown.error["message"]

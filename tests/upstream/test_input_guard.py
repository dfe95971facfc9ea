"""Two sampling requests of one call that wait for an operator at the same time."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import anyio
import pytest

from gateway.config.policies import SourcePolicy
from gateway.json_types import JsonObject
from gateway.storage.records import Records
from gateway.storage.state_folder import StateFolder
from gateway.telemetry.gateway_events import EventStream
from gateway.tools.call_facts import CallFacts
from gateway.tools.context import CallContext
from gateway.tools.ports import ClientProfile
from gateway.upstream.input_guard import InputGuard, InputRequestServices, Relayed

pytestmark = pytest.mark.anyio
CTX = CallContext(CallFacts(client=ClientProfile(capabilities={"sampling": {}})))


class Operator:
    """A stand-in for `Approvals` that approves the waiting requests once `decides` is set."""

    def __init__(self) -> None:
        self.waiting = 0
        self.decides = [anyio.Event(), anyio.Event()]

    def approvers_on_list(self, ctx: CallContext, by: object) -> str:
        return "an operator"

    async def approve_sampling(self, *_: object) -> None:
        self.waiting += 1
        await self.decides[self.waiting - 1].wait()


async def test_each_of_two_requests_of_one_call_is_shown_until_approved(tmp_path: Path) -> None:
    operator, events = Operator(), EventStream()
    policy = SourcePolicy.model_validate({"sampling": {"mode": "ask"}})
    records = Records(StateFolder(tmp_path), audit_days=1)
    guard = InputGuard("up", policy, InputRequestServices(events, records, cast("Any", operator)))
    message: JsonObject = {"role": "user", "content": {"type": "text", "text": "Capital of France?"}}
    request: JsonObject = {"method": "sampling/createMessage", "params": {"messages": [message], "maxTokens": 9}}
    judged: list[object] = []

    async def judge() -> None:
        judged.append(await guard.judge(request, CTX))

    try:
        with anyio.fail_after(10):
            async with anyio.create_task_group() as tasks:
                for number in (1, 2):
                    tasks.start_soon(judge)
                    while operator.waiting < number:
                        await anyio.sleep(0.01)
                operator.decides[0].set()
                while not judged:
                    await anyio.sleep(0.01)
                assert [who for call, who in guard.approving if call is CTX] == ["an operator"], "the second one still waits"
                operator.decides[1].set()
    finally:
        await records.aclose()
    assert [type(one) for one in judged] == [Relayed, Relayed] and guard.approving == []

"""Whether what may have run already may run again: one rule for steps in doubt, broken connections and retries."""

from __future__ import annotations

import pytest

from gateway.json_types import JsonObject
from gateway.policy.repeats import is_repeatable, may_repeat


@pytest.mark.requirement("MC9")
@pytest.mark.parametrize(
    ("annotations", "idempotent", "trusted", "again"),
    [
        (None, [], False, False),
        (None, [], True, False),
        ({"readOnlyHint": True, "idempotentHint": True}, [], False, False),
        ({"readOnlyHint": True}, [], True, True),
        ({"idempotentHint": True}, [], True, True),
        ({"readOnlyHint": "yes", "idempotentHint": 1}, [], True, False),
        ({"readOnlyHint": False, "destructiveHint": True}, ["rea?"], False, True),
        (None, ["write", "x*"], True, False),
    ],
)
def test_a_tool_may_run_twice_where_the_operator_says_so_or_trusts_who_says_so(
    annotations: JsonObject | None, idempotent: list[str], trusted: bool, again: bool
) -> None:
    assert is_repeatable("read", annotations, idempotent=idempotent, trust_annotations=trusted) is again
    asked: JsonObject = {"name": "read", "arguments": {}}
    assert may_repeat("unknown", "tools/call", asked, annotations, idempotent=idempotent, trust_annotations=trusted) is again
    assert may_repeat("unsent", "tools/call", asked, annotations, idempotent=idempotent, trust_annotations=trusted)
    as_task: JsonObject = {**asked, "task": {}}
    assert not may_repeat("unknown", "tools/call", as_task, annotations, idempotent=idempotent, trust_annotations=trusted)

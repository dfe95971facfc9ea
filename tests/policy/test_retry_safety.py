"""Whether a call may run again: the same rule for steps in doubt, failed requests and retries."""

from __future__ import annotations

import pytest

from gateway.errors import (
    Busy,
    Forbidden,
    Malformed,
    NotReadyInTime,
    NotSent,
    OutcomeUnknown,
    Rejected,
    RequestFailure,
    SessionGone,
    TooLarge,
    Unauthorized,
    Unreachable,
)
from gateway.json_types import JsonObject
from gateway.policy.retry_safety import is_idempotent, may_resend


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
def test_tool_is_idempotent_if_operator_or_trusted_source_marks_it(
    annotations: JsonObject | None, idempotent: list[str], trusted: bool, again: bool
) -> None:
    assert is_idempotent("read", annotations, idempotent=idempotent, trust_annotations=trusted) is again
    params: JsonObject = {"name": "read", "arguments": {}}
    lost = OutcomeUnknown("", server="up")
    assert may_resend(lost, "tools/call", params, annotations, idempotent=idempotent, trust_annotations=trusted) is again
    as_task: JsonObject = {**params, "task": {}}
    assert not may_resend(lost, "tools/call", as_task, annotations, idempotent=idempotent, trust_annotations=trusted)


REPEATABLE = (
    *("completion/complete", "prompts/get", "resources/directory/read", "resources/read", "skills/get", "skills/list"),
    *("tasks/cancel", "tasks/get", "tasks/result", "tasks/update"),
)
OTHERS = ("initialize", "logging/setLevel", "resources/subscribe", "tasks/unknown", "tools/list", "")


@pytest.mark.requirement("MC9")
@pytest.mark.parametrize(
    ("failure", "any_tool", "idempotent_tool", "repeatable", "other"),
    [
        (SessionGone("", server="up"), True, True, True, True),
        (OutcomeUnknown("", server="up"), False, True, True, False),
        (Malformed("", server="up"), False, True, True, False),
        (TooLarge("", server="up"), False, False, False, False),
        (NotSent("", server="up"), False, False, False, False),
        (NotReadyInTime("", server="up"), False, False, False, False),
        (Unreachable("", server="up"), False, False, False, False),
        (Busy("", server="up", retry_after_seconds=1), False, False, False, False),
        (Unauthorized("", server="up"), False, False, False, False),
        (Forbidden("", server="up"), False, False, False, False),
        (Rejected("", server="up", code=-32603), False, False, False, False),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, RequestFailure) else "",
)
def test_failure_type_and_method_decide_whether_a_request_is_resent(
    failure: RequestFailure, any_tool: bool, idempotent_tool: bool, repeatable: bool, other: bool
) -> None:
    assert may_resend(failure, "tools/call", {"name": "read"}) is any_tool
    assert may_resend(failure, "tools/call", {"name": "read"}, idempotent=["read"]) is idempotent_tool
    for methods, expected in ((REPEATABLE, repeatable), (OTHERS, other)):
        resent = {method: may_resend(failure, method, {"name": "read"}, idempotent=["*"]) for method in methods}
        assert resent == dict.fromkeys(methods, expected)


def test_every_failure_type_is_in_the_table_above() -> None:
    def types(base: type[RequestFailure]) -> set[str]:
        own = {base.__name__} if base.__module__ == "gateway.errors" else set[str]()  # subclasses elsewhere are judged as their base
        return own.union(*(types(each) for each in base.__subclasses__()))

    names = "Busy Forbidden Malformed NotReadyInTime NotSent OutcomeUnknown Rejected SessionGone TooLarge Unauthorized Unreachable"
    assert types(RequestFailure) - {"RequestFailure"} == set(names.split())

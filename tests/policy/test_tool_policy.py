"""`judge_tool`: which native names exist."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from gateway.policy.tool_policy import judge_tool


@pytest.mark.requirement("MC4")
@pytest.mark.parametrize(
    ("allow", "deny", "exists"),
    [
        (None, [], True),
        ([], [], False),
        (["read_*"], [], True),
        (["Read_*"], [], False),
        (["read"], [], False),
        (["read_tex?"], [], True),
        (["[a-r]*"], [], True),
        (["*"], ["read_text"], False),
        (None, ["*_text"], False),
        (["write_*", "read_text"], ["write_*"], True),
    ],
)
def test_tool_exists_when_allowed_and_not_denied(allow: Sequence[str] | None, deny: Sequence[str], exists: bool) -> None:
    assert judge_tool("read_text", allow, deny) is exists

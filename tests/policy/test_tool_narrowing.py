"""`allowed-tools` of skills removes tools and never adds any."""

from __future__ import annotations

import pytest

from gateway.json_types import JsonValue
from gateway.policy.tool_narrowing import narrow_tools, requested_tools

TOOLS = ["docs__search", "docs__read", "notes__add", "Bash"]


@pytest.mark.requirement(134)
@pytest.mark.parametrize(
    ("wishes", "kept"),
    [
        (["docs__search"], {"docs__search"}),
        (["docs__*, notes__add"], {"docs__search", "docs__read", "notes__add"}),
        (["mcp__docs__search docs/read"], {"docs__search", "docs__read"}),
        (["Bash(git status:*) Read"], {"Bash"}),
        ([["docs__search", "notes__add"]], {"docs__search", "notes__add"}),
        (["docs__search", "notes__add"], {"docs__search", "notes__add"}),
        (["docs__search", None], set(TOOLS)),
        ([""], set[str]()),
        (["shell__run secrets__read *__drop"], set[str]()),
    ],
)
def test_only_tools_that_are_there_and_wanted_stay(wishes: list[JsonValue], kept: set[str]) -> None:
    assert narrow_tools(TOOLS, wishes) == kept


@pytest.mark.requirement(134)
def test_wildcard_grants_only_existing_tools() -> None:
    assert narrow_tools([], ["*"]) == set()


def test_tools_field_that_is_not_text_requests_nothing() -> None:
    assert (requested_tools(3), requested_tools(["a b", 1]), requested_tools(None)) == ([], ["a", "b"], None)

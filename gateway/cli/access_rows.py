"""Evaluates the rows of a file for `moongate policy test`, and names callers for `moongate policy explain --as`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, cast

from gateway.cli.failures import CommandFailed
from gateway.json_types import JsonObject

if TYPE_CHECKING:
    from gateway.access.expectations import Expectation, ExpectedCaller
    from gateway.access.principal_rights import Access
    from gateway.auth.api_keys import KeyInfo
    from gateway.auth.principal import Principal
    from gateway.cli.hub import OwnHub
    from gateway.gate.tools import GuardedTool
    from gateway.policy.caller_rights import RightsKind


@dataclass(frozen=True, slots=True)
class RowResult:
    """The decision about one row, and the expected one."""

    number: int
    caller: str
    item: str
    expected: str
    decided: str
    """The decision: `allow`, `approval`, `refuse` or `hide`."""
    rule: str | None
    reason: str | None

    @property
    def is_right(self) -> bool:
        """Whether the decision is the expected one."""
        return self.decided == self.expected

    def to_json(self) -> JsonObject:
        """Return the JSON object that `moongate policy test --json` prints."""
        names = ("number", "caller", "item", "expected", "decided", "rule", "reason")
        return {**{name: getattr(self, name) for name in names}, "right": self.is_right}


def needs_sources(rows: Sequence[Expectation]) -> bool:
    """Return whether a row can only be evaluated with the tools of the sources: it has arguments, or names a tool as clients see it."""
    return any(row.tool is not None and (row.arguments is not None or "/" not in row.tool) for row in rows)


def caller_of(expected: ExpectedCaller, keys: Sequence[KeyInfo]) -> Principal:
    """Return the principal of a caller. A key that does not exist is a key with this name."""
    from gateway.access.explanation import principal_of
    from gateway.auth.principal import Principal
    from gateway.errors import NotFound

    try:
        return principal_of(expected.to_spec(), keys)
    except NotFound:
        scopes = None if expected.scopes is None else tuple(expected.scopes)
        return Principal(f"key:{expected.key}", str(expected.key), scopes)


async def evaluate_row(number: int, row: Expectation, access: Access, principal: Principal, own: OwnHub | None) -> RowResult:
    """Evaluate one row. `own` is a gateway with the sources, if a row needs them.

    Raises:
        CommandFailed: The row names a tool that does not exist.
    """
    from gateway.access.explanation import explain_access
    from gateway.policy.caller_rights import is_hidden
    from gateway.policy.decision import Reject

    found = await _tool_of(number, row, own) if own is not None and row.tool is not None else None
    if found is None:
        explained = explain_access(access, principal, _item_of(number, row), None)
        refused, approval = explained.refused, bool(explained.approval_by)
    else:
        decision = found.decide(access.bind(principal))
        verdict = decision.verdict if row.arguments is None else found.rules.judge(dict(row.arguments), decision)
        refused = verdict if isinstance(verdict, Reject) else None
        approval = decision.needs_approval or found.rules.needs_approval
    decided = "hide" if is_hidden(refused) else "refuse" if refused is not None else "approval" if approval else "allow"
    rule, reason = (None, None) if refused is None else (refused.rule, refused.reason)
    return RowResult(number, row.caller, row.item, row.expect, decided, rule, reason)


def _item_of(number: int, row: Expectation) -> tuple[RightsKind, str, str]:
    kind: RightsKind = "tools" if row.tool is not None else "resources" if row.resource is not None else "prompts"
    source, slash, name = row.item.partition("/")
    if not slash:
        raise CommandFailed(f"rows[{number}]: write {row.item!r} as SOURCE/NAME.", code="usage")
    return kind, source, name


async def _tool_of(number: int, row: Expectation, own: OwnHub) -> GuardedTool:
    from gateway.cli.hub import named_tool, to_hub_tools

    catalog = own.gateway.catalog
    sources = [*(status.name for status in own.gateway.inspection.sources()), "gateway"]
    named = named_tool(to_hub_tools(await catalog.tools([f"{source}/*" for source in sources])), row.item)
    if named is None:
        raise CommandFailed(f"rows[{number}]: no source has a tool {row.item!r}; `moongate list tools` shows the tools.", code="not-found")
    return cast("GuardedTool", named.tool)

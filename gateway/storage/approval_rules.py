"""Stores standing approvals: decisions of operators that a principal may call a tool without asking, until they are revoked or expire.

Each standing approval is a rule for one principal and one tool of one source (such as a server). It approves calls with any arguments, or
only with the arguments that the operator saw. The database stores a digest of these arguments and the text that the operator saw. A rule
applies only to the gateway that stored it, because two configurations that share a state folder may use the same name for different
servers. (Gateways that share a database server share their rules, which have no `gateway`.) In a state folder, rules without `gateway` or
`made_by` were stored by earlier versions and are ignored, because the caller may have created them itself.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

import sqlalchemy as sa

from gateway.storage.engine import Database
from gateway.storage.record_types import ApprovalRule
from gateway.storage.shared_clock import shared_now
from gateway.storage.tables import approval_rules as rules
from gateway.storage.tables import locks

MAX_PER_PRINCIPAL = 500
"""Maximum number of rules per principal.

Beyond this number, the oldest rules are deleted. Calls that they approved need approval again.
"""


class ApprovalRules:
    """Stores standing approvals: operators' decisions that a principal may call a tool without asking a person each time."""

    def __init__(self, database: Database, gateway: str = "") -> None:
        """Use only the rules of the gateway `gateway` (its id).

        Gateways that share a database server have an empty id, and share all rules.
        """
        self._database = database
        self._gateway = gateway

    async def add(self, rule: ApprovalRule) -> None:
        """Store a rule (a standing approval), and delete an earlier rule for the same principal, tool and arguments, and expired rules.

        The change is committed on return. Raises `StorageError`.
        """
        own_rows = (rules.c.principal == rule.principal) & (rules.c.gateway == self._gateway)
        same = own_rows & (rules.c.source == rule.source) & (rules.c.name == rule.name) & (rules.c.arguments == rule.arguments)
        async with self._database.begin() as connection:
            await connection.execute(sa.select(locks).where(locks.c.name == "asks").with_for_update())
            await connection.execute(sa.delete(rules).where(same | (rules.c.expires_at <= shared_now())))
            newest = sa.select(rules.c.id).where(own_rows).order_by(rules.c.created_at.desc()).limit(MAX_PER_PRINCIPAL - 1)
            kept = (await connection.execute(newest)).scalars().all()
            await connection.execute(sa.delete(rules).where(own_rows & rules.c.id.not_in(kept)))
            await connection.execute(sa.insert(rules), {**asdict(rule), "gateway": self._gateway})

    async def find(self, principal: str, source: str, name: str, arguments: str) -> ApprovalRule | None:
        """Return the rule that approves a call of the tool `name` of `source` by this principal, or `None`.

        `arguments` is the digest of the call's arguments. A rule for any arguments takes precedence. Raises `StorageError`.
        """
        tool = (rules.c.principal == principal) & (rules.c.source == source) & (rules.c.name == name) & (rules.c.gateway == self._gateway)
        fits = tool & rules.c.arguments.in_(("", arguments)) & (rules.c.expires_at > shared_now()) & (rules.c.made_by != "")
        found = await self._database.rows(sa.select(rules).where(fits).order_by(rules.c.arguments).limit(1))
        return _to_rule(found[0]) if found else None

    async def list(self) -> list[ApprovalRule]:
        """Return the unexpired rules of this gateway, oldest first. Raises `StorageError`.

        Rules that an earlier version of Moongate stored are listed too, although they no longer approve calls.
        """
        shown = rules.c.gateway.in_(("", self._gateway)) & (rules.c.expires_at > shared_now())
        held = sa.select(rules).where(shown).order_by(rules.c.created_at, rules.c.id)
        return [_to_rule(row) for row in await self._database.rows(held)]

    async def revoke(self, rule_id: str) -> bool:
        """Delete the rule with this id, so that calls need approval again; return whether it existed. Raises `StorageError`."""
        return bool(await self._database.change(sa.delete(rules).where(rules.c.id == rule_id)))


def _to_rule(row: Mapping[Any, Any]) -> ApprovalRule:
    return ApprovalRule(**{name: value for name, value in row.items() if name != "gateway"})

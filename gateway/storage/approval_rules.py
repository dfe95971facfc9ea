"""Standing approvals: an operator's decision that a tool may be called without asking, until it is revoked or expires.

A rule applies to one caller and one tool of one source. A rule for one call stores only a digest of the arguments, plus the text
that the operator saw. A rule applies only to the gateway that stored it, because two configurations that share a state folder may
use one name for two servers. Rules without `gateway` or `made_by` come from earlier versions and are ignored: the caller itself may
have created them.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

import sqlalchemy as sa

from gateway.storage.engine import Database
from gateway.storage.record_types import ApprovalRule
from gateway.storage.tables import approval_rules as rules
from gateway.storage.tables import locks

MAX_PER_PRINCIPAL = 500
"""Maximum rules per caller. The oldest rules are deleted; calls that a deleted rule approved need approval again."""


class ApprovalRules:
    """Stores standing approvals."""

    def __init__(self, database: Database, gateway: str = "") -> None:
        """Use the rules of the gateway with id `gateway`; if it is empty, of all gateways that share the database."""
        self._database = database
        self._gateway = gateway

    async def add(self, rule: ApprovalRule) -> None:
        """Store a rule in place of an earlier rule for the same caller, tool and arguments. Committed on return. Raises `StorageError`."""
        mine = (rules.c.principal == rule.principal) & (rules.c.gateway == self._gateway)
        same = mine & (rules.c.source == rule.source) & (rules.c.name == rule.name) & (rules.c.arguments == rule.arguments)
        async with self._database.begin() as connection:
            await connection.execute(sa.select(locks).where(locks.c.name == "asks").with_for_update())
            await connection.execute(sa.delete(rules).where(same | (rules.c.expires_at <= time.time())))
            newest = sa.select(rules.c.id).where(mine).order_by(rules.c.created_at.desc()).limit(MAX_PER_PRINCIPAL - 1)
            kept = (await connection.execute(newest)).scalars().all()
            await connection.execute(sa.delete(rules).where(mine & rules.c.id.not_in(kept)))
            await connection.execute(sa.insert(rules), {**asdict(rule), "gateway": self._gateway})

    async def find(self, principal: str, source: str, name: str, arguments: str) -> ApprovalRule | None:
        """Return the rule that approves this call, or `None`.

        A rule for all calls of the tool takes precedence over a rule for one call. Raises `StorageError`.
        """
        tool = (rules.c.principal == principal) & (rules.c.source == source) & (rules.c.name == name) & (rules.c.gateway == self._gateway)
        fits = tool & rules.c.arguments.in_(("", arguments)) & (rules.c.expires_at > time.time()) & (rules.c.made_by != "")
        found = await self._database.rows(sa.select(rules).where(fits).order_by(rules.c.arguments).limit(1))
        return _to_rule(found[0]) if found else None

    async def list(self) -> list[ApprovalRule]:
        """Return the rules of this gateway, oldest first. Raises `StorageError`.

        Rules that an earlier version of Moongate stored are listed too, although they approve nothing any more.
        """
        shown = rules.c.gateway.in_(("", self._gateway)) & (rules.c.expires_at > time.time())
        held = sa.select(rules).where(shown).order_by(rules.c.created_at, rules.c.id)
        return [_to_rule(row) for row in await self._database.rows(held)]

    async def revoke(self, rule_id: str) -> bool:
        """Delete a rule; return whether it existed. Raises `StorageError`."""
        return bool(await self._database.change(sa.delete(rules).where(rules.c.id == rule_id)))


def _to_rule(row: Mapping[Any, Any]) -> ApprovalRule:
    return ApprovalRule(**{name: value for name, value in row.items() if name != "gateway"})

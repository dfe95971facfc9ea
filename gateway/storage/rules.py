"""Standing approvals: calls that an operator approved for good, until the rule is revoked or expires.

A rule is of one caller and one tool of one source; of one call's arguments only a digest is kept, beside what the person was shown.
A rule holds for the gateway that kept it, because two configurations that share a state folder may give one name to two servers. Rules of
earlier versions do not count: they have no `gateway`, or no `made_by`, because the caller itself may have made them.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

import sqlalchemy as sa

from gateway.storage.engine import Database
from gateway.storage.entries import ApprovalRule
from gateway.storage.tables import approval_rules as rules
from gateway.storage.tables import locks

MAX_PER_PRINCIPAL = 500
"""Rules of one caller; the oldest make room: nobody looks over more, and a forgotten rule only means another question."""


class ApprovalRules:
    """The repository."""

    def __init__(self, database: Database, gateway: str = "") -> None:
        """`gateway` names the gateways whose rules these are; empty: all that share the database."""
        self._database = database
        self._gateway = gateway

    async def add(self, rule: ApprovalRule) -> None:
        """Keep a rule, in place of one that says the same; committed when this returns. Raises `StorageError`."""
        mine = (rules.c.principal == rule.principal) & (rules.c.gateway == self._gateway)
        same = mine & (rules.c.source == rule.source) & (rules.c.name == rule.name) & (rules.c.arguments == rule.arguments)
        async with self._database.begin() as connection:
            await connection.execute(sa.select(locks).where(locks.c.name == "asks").with_for_update())
            await connection.execute(sa.delete(rules).where(same | (rules.c.expires_at <= time.time())))
            newest = sa.select(rules.c.id).where(mine).order_by(rules.c.created_at.desc()).limit(MAX_PER_PRINCIPAL - 1)
            kept = (await connection.execute(newest)).scalars().all()
            await connection.execute(sa.delete(rules).where(mine & rules.c.id.not_in(kept)))
            await connection.execute(sa.insert(rules), {**_to_row(rule), "gateway": self._gateway})

    async def find(self, principal: str, source: str, name: str, arguments: str) -> ApprovalRule | None:
        """The rule that lets this call through, the one about the whole tool first. Raises `StorageError`."""
        tool = (rules.c.principal == principal) & (rules.c.source == source) & (rules.c.name == name) & (rules.c.gateway == self._gateway)
        fits = tool & rules.c.arguments.in_(("", arguments)) & (rules.c.expires_at > time.time()) & (rules.c.made_by != "")
        async with self._database.begin() as connection:
            found = await connection.execute(sa.select(rules).where(fits).order_by(rules.c.arguments).limit(1))
            row = found.mappings().one_or_none()
        return _to_rule(row) if row is not None else None

    async def list(self) -> list[ApprovalRule]:
        """Every rule of this gateway, oldest first, and those of earlier versions, which do not count. Raises `StorageError`."""
        shown = rules.c.gateway.in_(("", self._gateway)) & (rules.c.expires_at > time.time())
        held = sa.select(rules).where(shown).order_by(rules.c.created_at, rules.c.id)
        async with self._database.begin() as connection:
            return [_to_rule(row) for row in (await connection.execute(held)).mappings().all()]

    async def revoke(self, rule_id: str) -> bool:
        """Take a rule away; whether it was there. Raises `StorageError`."""
        async with self._database.begin() as connection:
            return bool((await connection.execute(sa.delete(rules).where(rules.c.id == rule_id))).rowcount)


def _to_row(rule: ApprovalRule) -> dict[str, Any]:
    return {
        "id": rule.id, "principal": rule.principal, "source": rule.source, "name": rule.name, "arguments": rule.arguments,
        "shown": rule.shown, "created_at": rule.created_at, "expires_at": rule.expires_at, "made_by": rule.made_by,
    }  # fmt: skip


def _to_rule(row: Mapping[Any, Any]) -> ApprovalRule:
    return ApprovalRule(**{name: value for name, value in row.items() if name != "gateway"})

"""`Rights`: what a restricted caller may use, with one `Decision` for each tool, resource and prompt.

The scopes of an API key or access token are one restriction (`policy.scopes.ScopeRights`), and the roles and Cedar policies of the
configuration another (`access`, whose rights contain the scopes). Every check asks the rights of the principal: the gate, the listings, and
the fast path. A principal without rights may use everything.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from typing import Literal, Protocol, TypeGuard

from gateway.json_types import JsonObject
from gateway.policy.decision import PASS, Pass, Reject

RightsKind = Literal["tools", "resources", "prompts"]
"""Kinds of items that a caller may or may not use. Agents and workflows are tools; resource templates and skills count as resources."""

ACCESS_RULE = "access"
"""`Reject.rule` if roles or Cedar policies do not allow an item. The caller then gets the response for an item that does not exist."""


@dataclass(frozen=True, slots=True)
class Decision:
    """Whether a caller may use one item. `access` extends it with conditions on the arguments of calls."""

    verdict: Pass | Reject = PASS
    """The verdict as far as it does not depend on arguments."""
    needs_approval: bool = False
    """Whether a person must approve each call of the caller."""

    @property
    def reads_arguments(self) -> bool:
        """Whether `judge` must be called with the arguments of each call."""
        return False

    def judge(self, arguments: JsonObject, schema: JsonObject) -> Reject | None:
        """Return why the arguments of a call are not allowed; `None` if they are. `schema` is the tool's published input schema."""
        return None


ALLOWED = Decision()
"""The decision for an item that may be used without conditions."""


class Rights(Protocol):
    """What one caller may use. The object stays valid when the configuration changes: each answer follows the rules that apply then."""

    @property
    def key(self) -> Hashable:
        """A value that is equal for callers who see the same listings now. It changes when their rights change."""
        ...

    @property
    def is_operator(self) -> bool:
        """Whether the caller may approve or decline the calls of other callers."""
        ...

    @property
    def hides_items(self) -> bool:
        """Whether items that the caller may not use do not exist for it, also in lists of sources and in numbers."""
        ...

    def decide(self, kind: RightsKind, source: str, name: str) -> Decision:
        """Decide about one item. `name` is the name of the tool or prompt at `source`, or the URI of the resource there."""
        ...

    def covers(self, source: str) -> bool:
        """Return whether the caller may use something of a source, so that texts for the caller may describe the source."""
        ...

    def hides(self, source: str) -> bool:
        """Return whether the caller must not learn that a source exists. Scopes alone hide no source from a caller with the status."""
        ...


class HasRights(Protocol):
    """Protocol of an object with rights, such as a principal."""

    @property
    def rights(self) -> Rights | None:
        """What the caller may use; `None` for a caller that may use everything."""
        ...


def admits(rights: Rights | None, kind: RightsKind, source: str, name: str) -> bool:
    """Return whether a caller with these rights may use an item, as far as that does not depend on arguments."""
    return rights is None or rights.decide(kind, source, name).verdict is PASS


def is_hidden(verdict: object) -> TypeGuard[Reject]:
    """Return whether a caller with this verdict gets the response for an item that does not exist."""
    return isinstance(verdict, Reject) and verdict.rule == ACCESS_RULE


def is_admin(caller: HasRights) -> bool:
    """Return whether the caller is an operator by the scope `admin` of its API key or by a role.

    A caller that may use everything, such as an API key without scopes, is not an operator by that.
    """
    return caller.rights is not None and caller.rights.is_operator

"""Decides by the scopes of an API key which tools, resources and prompts a caller may use, and how much it sees of the gateway itself.

A scope is `SOURCE`, `SOURCE/NAME` or `KIND:SOURCE/NAME`. `SOURCE` and `NAME` may be globs, as in an agent's `tools`. `SOURCE` matches the
ids of sources (a source is one server, or the gateway's agents, skills and so on). `NAME` matches names at the source, or URIs of
resources. Scopes are judged once, when a client's request arrives: an agent or workflow of this gateway may then call everything that its
file names, regardless of the caller.

A glob over URIs compares text. A URI that a server could resolve to another place (`file:///docs/../x`) is rejected unless the scope covers
the whole source or names exactly this URI.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import get_args

from gateway.policy.caller_rights import ALLOWED, Decision, RightsKind
from gateway.policy.decision import PASS, Pass, Reject
from gateway.policy.path_rule import judge_uri

RULE = "scopes"

ScopeKind = RightsKind
"""Kinds of items that a scope can name. Resource templates and skills count as resources."""

OWN_SOURCE = "gateway"
"""Id of the source that contains the gateway's own tools and resources.

They need no scope, because they show a caller only its own tasks, sessions and results. Those in `STATUS_NAMES` are an exception.
"""

STATUS_NAMES = frozenset({"gateway_status", "moongate://status"})
"""Names of the gateway's own tool and resource that report on all sources. A caller needs a scope for them."""

ADMIN_SCOPE = "admin"
"""The scope that makes an API key the key of an operator, who may approve or decline the tool calls of other callers.

It grants no tool, resource or prompt. To grant those of a source that is named `admin`, the scope must be written as `admin/*`.
"""

MAX_SCOPES = 100
MAX_SCOPE_LENGTH = 500

_KINDS = frozenset(get_args(ScopeKind))


@dataclass(frozen=True, slots=True)
class ScopeRights:
    """The rights of a caller that only the scopes of its API key or access token restrict. Implements `Rights`."""

    scopes: tuple[str, ...]

    @property
    def key(self) -> Hashable:
        """The scopes: callers with the same scopes see the same listings."""
        return self.scopes

    @property
    def is_operator(self) -> bool:
        """Whether the scopes contain `admin`."""
        return ADMIN_SCOPE in self.scopes

    @property
    def hides_items(self) -> bool:
        """False: scopes refuse calls, but hide nothing from a caller that may see the status."""
        return False

    def decide(self, kind: ScopeKind, source: str, name: str) -> Decision:
        """Decide by the scopes whether the caller may use a tool, resource or prompt."""
        verdict = judge_scope(self.scopes, kind, source, name)
        return ALLOWED if verdict is PASS else Decision(verdict)

    def covers(self, source: str) -> bool:
        """Return whether one of the scopes is for this source."""
        return covers_source(self.scopes, source)

    def hides(self, source: str) -> bool:
        """Return false: scopes refuse calls, but do not hide that a source exists."""
        return False


def scope_problem(scope: str) -> str | None:
    """Return what is wrong with the spelling of an API key's scope that an operator wrote, or `None`."""
    kind, source, name = split_scope(scope)
    if not source or not name or len(scope) > MAX_SCOPE_LENGTH or not scope.isprintable() or any(mark in scope for mark in ' "\\'):
        return f"{scope[:60]!r} is not a scope: write SOURCE, SOURCE/NAME or KIND:SOURCE/NAME, e.g. docs, docs/search_* or resources:docs."
    if kind is not None and kind not in _KINDS:
        return f"Scope {scope[:60]!r} has the unknown kind {kind[:60]!r}: it is one of {', '.join(sorted(_KINDS))}, or left out for all."
    return None


def judge_scope(scopes: Sequence[str] | None, kind: ScopeKind, source: str, name: str) -> Pass | Reject:
    """Decide whether a caller with these scopes may use a tool, resource or prompt. Return `Pass` or `Reject`.

    `name` is the name of the tool or prompt at `source`, or the URI of the resource. `scopes` is `None` for a caller that may use
    everything.
    """
    if scopes is None or (source == OWN_SOURCE and name not in STATUS_NAMES):
        return PASS
    problem: str | None = None
    for scope in scopes:
        if scope == ADMIN_SCOPE:
            continue
        wanted, of, named = split_scope(scope)
        if wanted not in (None, kind) or not fnmatchcase(source, of):
            continue
        if named == "*" or name == named:
            return PASS
        if fnmatchcase(name, named):
            problem = judge_uri(name) if kind == "resources" else None
            if problem is None:
                return PASS
    has = ", ".join(scopes)
    why = "" if problem is None else f" The URI {problem}, so no pattern covers it; write it plainly."
    return Reject(RULE, f"This API key has no scope for {kind[:-1]} {name[:200]!r} of {source!r}.{why} Its scopes: {has[:500] or 'none'}.")


def covers_source(scopes: Sequence[str] | None, source: str) -> bool:
    """Return whether one of the scopes (`None` grants everything) is for this source, so that the caller may use something of it."""
    return scopes is None or any(scope != ADMIN_SCOPE and fnmatchcase(source, split_scope(scope)[1]) for scope in scopes)


def split_scope(scope: str) -> tuple[str | None, str, str]:
    """Split a scope or pattern into kind (`None`: all kinds), source and name. Without a name, it covers the source: the name is `*`."""
    place, slash, name = scope.partition("/")
    kind, colon, source = place.rpartition(":")
    return (kind if colon else None), source, (name if slash else "*")

"""`FunctionRules`: which Python functions workflow files may run, by the names that the operator's rules know them by.

A function keeps its rules whichever way a file refers to it: under another module, another attribute, or wrapped. The decision itself is
`policy.own_sources`. Used by `workflows` when a file is loaded, and by `own_tools` at each call.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from types import MethodType
from typing import Any, cast

from gateway.config.policies import SourcePolicy
from gateway.policy.approvals import judge_approval
from gateway.policy.decision import Reject
from gateway.policy.own_sources import FunctionNames, judge_function
from gateway.tools.function import FunctionTool

FUNCTION_SOURCE = "function"
"""Source of the functions that are served as tools; its rules hold for functions that files name, too."""

MAX_WRAPPERS = 20
"""Wrappers around one function that are looked through; more can only be a circle."""


class FunctionRules:
    """The rules of one configuration."""

    def __init__(
        self, policies: Callable[[str], SourcePolicy | None], served: Callable[[Sequence[object]], Sequence[str]] | None = None
    ) -> None:
        """`policies` returns what the operator wrote for a source; `served` the names of the served tools that run one of some objects."""
        self.policies = policies
        self._served = served

    def names(self, reference: str, found: object) -> FunctionNames:
        """The names of the object that `reference` (`package.module:name`) refers to."""
        written = reference.rpartition(":")[2]
        chain = unwrapped(found)
        served = list(self._served(chain)) if self._served is not None else []
        own = [name for name in map(_name_of, chain) if name is not None]
        first, *aliases = dict.fromkeys([*served, *own, written])
        return FunctionNames(first, tuple(aliases))

    def judge(self, source: str, reference: str, found: object) -> Reject | None:
        """Whether a file whose own rules are those of `source` may run this function; `None` means yes."""
        names = self.names(reference, found)
        for key in (FUNCTION_SOURCE, source):
            policy = self.policies(key)
            if policy is not None and (verdict := judge_function(names, policy, key)) is not None:
                return verdict
        return None

    def needs_approval(self, source: str, reference: str, found: object) -> bool:
        """Whether a person must approve each call of this function."""
        names = self.names(reference, found)
        by_author = getattr(found, "approval_mode", None) == "always_require"
        written = [self.policies(key) or SourcePolicy() for key in (FUNCTION_SOURCE, source)]
        return any(judge_approval(names.name, policy.approval, by_author=by_author) for policy in written)


def unwrapped(found: object) -> list[object]:
    """The object itself and the functions inside it: of a tool, a partial, a bound method, or a `functools.wraps` wrapper."""
    chain = [found]
    while len(chain) < MAX_WRAPPERS:
        inner = _inside(chain[-1])
        if inner is None or any(inner is known for known in chain):
            break
        chain.append(inner)
    return chain


def _inside(found: object) -> object | None:
    if isinstance(found, FunctionTool):
        return cast("FunctionTool[..., Any]", found).func
    if isinstance(found, partial):
        return cast("partial[Any]", found).func
    if isinstance(found, MethodType):
        return found.__func__
    return getattr(found, "__wrapped__", None)


def _name_of(found: object) -> str | None:
    if isinstance(found, FunctionTool):
        return cast("FunctionTool[..., Any]", found).name
    name = getattr(found, "__name__", None)
    return name if isinstance(name, str) and name.isidentifier() else None

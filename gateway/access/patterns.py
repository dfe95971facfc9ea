"""`ItemPattern`: a pattern of a role over tools, resources, prompts and skills, such as `github/*` or `skills:skill/pdf`.

The spelling is that of scopes of API keys (`policy.scopes`), with one more kind: `skills:SOURCE/PATH` matches the files of skills.
"""

from __future__ import annotations

from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import cast

from gateway.config.policies import SkillFilter
from gateway.errors import ConfigError
from gateway.policy.caller_rights import RightsKind
from gateway.policy.path_rule import judge_uri
from gateway.policy.scopes import ADMIN_SCOPE, scope_problem, split_scope
from gateway.policy.skill_policy import judge_skill_uri

SKILLS = "skills:"
"""Beginning of a pattern for skills. The files of a skill are resources, whose URIs are judged as by `skills.allow` of a policy."""


@dataclass(frozen=True, slots=True)
class ItemPattern:
    """One parsed pattern. Create it with `read_pattern`."""

    written: str
    """The pattern as the configuration has it."""
    kind: RightsKind | None
    """Kind of the items that it matches; `None` for all kinds."""
    source: str
    """Glob over the ids of sources."""
    name: str
    """Glob over the names at the source, or URIs of resources; for skills, over the paths of skills."""
    is_skill: bool = False
    """Whether `name` is a glob over the paths of skills."""

    def allows(self, kind: RightsKind, source: str, name: str) -> bool:
        """Return whether the pattern, in `allow`, allows an item. `name` is a native name or URI.

        A URI that a server could resolve to another place is allowed only by a pattern for the whole source or with exactly this URI.
        """
        if not self._is_of(kind, source):
            return False
        if self.is_skill:
            return name.startswith("skill://") and judge_skill_uri(name, SkillFilter(allow=[self.name]))
        if self.name == "*" or self.name == name:
            return True
        return fnmatchcase(name, self.name) and (kind != "resources" or judge_uri(name) is None)

    def denies(self, kind: RightsKind, source: str, name: str) -> bool:
        """Return whether the pattern, in `deny`, denies an item. `name` is a native name or URI.

        A URI that a server could resolve to another place is denied by each pattern for resources of its source.
        """
        if not self._is_of(kind, source):
            return False
        if self.is_skill:
            return not judge_skill_uri(name, SkillFilter(deny=[self.name]))
        return fnmatchcase(name, self.name) or (kind == "resources" and judge_uri(name) is not None)

    def covers(self, source: str) -> bool:
        """Return whether the pattern is for items of this source."""
        return fnmatchcase(source, self.source)

    def covers_all_of(self, source: str) -> bool:
        """Return whether the pattern matches every item of this source."""
        return self.kind is None and self.name == "*" and not self.is_skill and fnmatchcase(source, self.source)

    def _is_of(self, kind: RightsKind, source: str) -> bool:
        return self.kind in (None, kind) and fnmatchcase(source, self.source)


def read_pattern(written: str, place: str) -> ItemPattern:
    """Parse a pattern. `place` is its path in the configuration, for the error.

    Raises:
        ConfigError: The pattern is malformed.
    """
    is_skill = written.startswith(SKILLS)
    scope = written.removeprefix(SKILLS)
    problem = scope_problem(scope)
    if problem is None and scope == ADMIN_SCOPE:
        problem = "`admin` is a scope of API keys; write `operator: true` for operators, or `admin/*` for the source `admin`."
    if problem is None and is_skill and ":" in scope.partition("/")[0]:
        problem = f"{written[:60]!r} has two kinds; write skills:SOURCE/PATH."
    if problem is not None:
        raise ConfigError(f"{place}: {problem.replace('is not a scope', 'is not a pattern').replace('Scope ', 'Pattern ')}", path=place)
    kind, source, name = split_scope(scope)
    return ItemPattern(written, "resources" if is_skill else cast("RightsKind | None", kind), source, name, is_skill)


def read_tool_pattern(written: str, place: str) -> ItemPattern:
    """Parse a pattern for tools: `SOURCE` or `SOURCE/NAME`. Raises `ConfigError` if it is malformed or names another kind."""
    pattern = read_pattern(written, place)
    if pattern.kind not in (None, "tools"):
        raise ConfigError(f"{place}: {written[:60]!r} must be a pattern for tools, such as github/merge_*.", path=place)
    return ItemPattern(written, "tools", pattern.source, pattern.name)

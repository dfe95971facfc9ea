"""`SkillsSource`: the interface of sources of skill objects, and wrappers that combine, filter, deduplicate or cache their skills."""

from __future__ import annotations

import inspect
import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta

import anyio

from gateway.sessions.session import AgentSession, SupportsAgentRun
from gateway.skills.objects.skill import Skill

logger = logging.getLogger(__name__)

MAX_CACHES = 1_000
"""Maximum number of lists of skills that one `CachingSkillsSource` stores; the oldest list is dropped first."""


@dataclass(frozen=True, slots=True)
class SkillsSourceContext:
    """The agent, and its session (conversation), for which a source returns skills. Both are `None` outside of an agent run."""

    agent: SupportsAgentRun | None = None
    session: AgentSession | None = None


class SkillsSource(ABC):
    """Base class of skill sources (objects that return skills).

    A source written for agent-framework 1.9, whose `get_skills` takes no argument, works as well.
    """

    @abstractmethod
    async def get_skills(self, context: SkillsSourceContext | None = None) -> list[Skill]:
        """Return the skills for an agent run, in the order in which they are listed to the model."""


async def fetch(source: SkillsSource, context: SkillsSourceContext | None) -> list[Skill]:
    """Call `get_skills` of a skill source, and return its skills.

    `context` (the agent and its session, for which the skills are) is passed only if the method accepts an argument.
    """
    takes_context = bool(inspect.signature(source.get_skills).parameters)
    return list(await (source.get_skills(context or SkillsSourceContext()) if takes_context else source.get_skills()))


def first_of_each_name(skills: Sequence[Skill]) -> list[Skill]:
    """Return only the first of several skills with the same name (ignoring case), and log the others."""
    found: dict[str, Skill] = {}
    for skill in skills:
        name = skill.frontmatter.name
        if found.setdefault(name.casefold(), skill) is not skill:
            logger.warning("second skill of the same name left out skill=%s", name)
    return list(found.values())


class InMemorySkillsSource(SkillsSource):
    """A source with a fixed list of skills."""

    def __init__(self, skills: Sequence[Skill]) -> None:
        self._skills = list(skills)

    async def get_skills(self, context: SkillsSourceContext | None = None) -> list[Skill]:
        """Return the fixed list of skills."""
        return list(self._skills)


class DelegatingSkillsSource(SkillsSource, ABC):
    """Base class of skill sources that wrap another source."""

    def __init__(self, inner_source: SkillsSource) -> None:
        self._inner_source = inner_source

    @property
    def inner_source(self) -> SkillsSource:
        """The source that this source wraps."""
        return self._inner_source

    async def get_skills(self, context: SkillsSourceContext | None = None) -> list[Skill]:
        """Return the skills of the wrapped source."""
        return await fetch(self._inner_source, context)


class AggregatingSkillsSource(SkillsSource):
    """Source that returns the skills of several sources, one source after the other, including duplicates."""

    def __init__(self, sources: Sequence[SkillsSource]) -> None:
        self._sources = list(sources)

    async def get_skills(self, context: SkillsSourceContext | None = None) -> list[Skill]:
        """Return the skills of all sources, in the order of the sources."""
        return [skill for source in self._sources for skill in await fetch(source, context)]


class DeduplicatingSkillsSource(DelegatingSkillsSource):
    """Source that returns the skills of the wrapped source, but only the first of several skills with the same name (ignoring case)."""

    async def get_skills(self, context: SkillsSourceContext | None = None) -> list[Skill]:
        """Return the skills of the wrapped source, but only the first of several skills with the same name."""
        return first_of_each_name(await fetch(self._inner_source, context))


class FilteringSkillsSource(DelegatingSkillsSource):
    """Source that returns those skills of the wrapped source that a predicate accepts."""

    def __init__(
        self, inner_source: SkillsSource, predicate: Callable[[Skill], bool] | Callable[[Skill, SkillsSourceContext], bool]
    ) -> None:
        """Store the wrapped source and `predicate`, which receives a skill, or a skill and a `SkillsSourceContext`."""
        super().__init__(inner_source)
        self._predicate: Callable[..., bool] = predicate
        self._takes_context = _positional(predicate) > 1

    async def get_skills(self, context: SkillsSourceContext | None = None) -> list[Skill]:
        """Return those skills of the wrapped source that the predicate accepts."""
        extra = (context or SkillsSourceContext(),) if self._takes_context else ()
        return [skill for skill in await fetch(self._inner_source, context) if self._predicate(skill, *extra)]


class CachingSkillsSource(DelegatingSkillsSource):
    """Source that caches the skills of the wrapped source for `refresh_interval`. If a later fetch fails, the cached skills stay."""

    def __init__(
        self,
        inner_source: SkillsSource,
        *,
        cache_isolation_key_selector: Callable[[SkillsSourceContext], str | None] | None = None,
        refresh_interval: timedelta | None = None,
    ) -> None:
        """Store the settings. Without `refresh_interval` the skills are fetched once; with zero they are fetched at every call.

        There is one cached list per key. `cache_isolation_key_selector` returns the key for a call, such as the name of a tenant; `None` is
        the key of the shared list.
        """
        super().__init__(inner_source)
        self._selector = cache_isolation_key_selector
        self._seconds = None if refresh_interval is None else refresh_interval.total_seconds()
        self._caches: dict[str | None, _Cache] = {}

    async def get_skills(self, context: SkillsSourceContext | None = None) -> list[Skill]:
        """Return the cached skills, or fetch them if none are cached or they are too old. Concurrent callers share one fetch.

        Raises:
            Exception: The wrapped source failed, and no skills are cached.
        """
        if self._seconds is not None and self._seconds <= 0:
            return await fetch(self._inner_source, context)
        key = self._selector(context or SkillsSourceContext()) if self._selector is not None else None
        cache = self._caches.get(key)
        if cache is None:
            while len(self._caches) >= MAX_CACHES:
                del self._caches[next(iter(self._caches))]
            cache = self._caches[key] = _Cache()
        async with cache.lock:
            if cache.skills is None or (self._seconds is not None and anyio.current_time() - cache.fetched >= self._seconds):
                await self._refill(cache, context)
        return list(cache.skills or ())

    async def _refill(self, cache: _Cache, context: SkillsSourceContext | None) -> None:
        try:
            cache.skills = await fetch(self._inner_source, context)
        except Exception as error:  # a source is code of the host program and can raise anything; the cached list stays usable
            if cache.skills is None:
                raise
            logger.warning("skills not refreshed, keeping the last list error=%s", error)
        cache.fetched = anyio.current_time()


class _Cache:
    def __init__(self) -> None:
        self.lock = anyio.Lock()
        self.skills: list[Skill] | None = None
        self.fetched = 0.0


def _positional(function: Callable[..., object]) -> int:
    """Return how many positional arguments a function accepts, so that the caller can decide whether to pass a context.

    The result is 2 if the function has `*args`, and 1 if its signature is unknown.
    """
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return 1
    if any(p.kind is p.VAR_POSITIONAL for p in parameters):
        return 2
    return sum(p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD) for p in parameters)

"""Where skills come from, and what can be done with a source: put together, filtered, freed of doubles, cached."""

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
"""Keys that one cache holds lists for; the one filled longest ago makes room."""


@dataclass(frozen=True, slots=True)
class SkillsSourceContext:
    """For whom skills are fetched."""

    agent: SupportsAgentRun | None = None
    session: AgentSession | None = None


class SkillsSource(ABC):
    """Yields skills. A source written for agent-framework 1.9, whose `get_skills` takes nothing, works as well."""

    @abstractmethod
    async def get_skills(self, context: SkillsSourceContext | None = None) -> list[Skill]:
        """The skills for this run, in order."""


async def fetch(source: SkillsSource, context: SkillsSourceContext | None) -> list[Skill]:
    """The skills of any source, whichever of the two call shapes it has."""
    takes_context = bool(inspect.signature(source.get_skills).parameters)
    return list(await (source.get_skills(context or SkillsSourceContext()) if takes_context else source.get_skills()))


class InMemorySkillsSource(SkillsSource):
    """A fixed list."""

    def __init__(self, skills: Sequence[Skill]) -> None:
        self._skills = list(skills)

    async def get_skills(self, context: SkillsSourceContext | None = None) -> list[Skill]:
        """The list."""
        return list(self._skills)


class DelegatingSkillsSource(SkillsSource, ABC):
    """Wraps another source."""

    def __init__(self, inner_source: SkillsSource) -> None:
        self._inner_source = inner_source

    @property
    def inner_source(self) -> SkillsSource:
        """What it wraps."""
        return self._inner_source

    async def get_skills(self, context: SkillsSourceContext | None = None) -> list[Skill]:
        """What the inner source gives."""
        return await fetch(self._inner_source, context)


class AggregatingSkillsSource(SkillsSource):
    """Several sources, one after the other; doubles stay."""

    def __init__(self, sources: Sequence[SkillsSource]) -> None:
        self._sources = list(sources)

    async def get_skills(self, context: SkillsSourceContext | None = None) -> list[Skill]:
        """All skills, in the order of the sources."""
        return [skill for source in self._sources for skill in await fetch(source, context)]


class DeduplicatingSkillsSource(DelegatingSkillsSource):
    """Of several skills with one name, whatever its case, the first."""

    async def get_skills(self, context: SkillsSourceContext | None = None) -> list[Skill]:
        """Each name once."""
        found: dict[str, Skill] = {}
        for skill in await fetch(self._inner_source, context):
            name = skill.frontmatter.name
            if found.setdefault(name.casefold(), skill) is not skill:
                logger.warning("a second skill is called %r; the first one is used", name)
        return list(found.values())


class FilteringSkillsSource(DelegatingSkillsSource):
    """The skills that a predicate lets through."""

    def __init__(
        self, inner_source: SkillsSource, predicate: Callable[[Skill], bool] | Callable[[Skill, SkillsSourceContext], bool]
    ) -> None:
        """`predicate` takes a skill, or a skill and for whom it is fetched."""
        super().__init__(inner_source)
        self._predicate: Callable[..., bool] = predicate
        self._takes_context = _positional(predicate) > 1

    async def get_skills(self, context: SkillsSourceContext | None = None) -> list[Skill]:
        """Those for which the predicate says yes."""
        extra = (context or SkillsSourceContext(),) if self._takes_context else ()
        return [skill for skill in await fetch(self._inner_source, context) if self._predicate(skill, *extra)]


class CachingSkillsSource(DelegatingSkillsSource):
    """Fetches once for all, again when the list is older than `refresh_interval`; a failed refresh keeps the old list."""

    def __init__(
        self,
        inner_source: SkillsSource,
        *,
        cache_isolation_key_selector: Callable[[SkillsSourceContext], str | None] | None = None,
        refresh_interval: timedelta | None = None,
    ) -> None:
        """Without `refresh_interval` a list is kept for ever; zero fetches every time.

        `cache_isolation_key_selector` keeps lists apart, by tenant for one; `None` is the list of all.
        """
        super().__init__(inner_source)
        self._selector = cache_isolation_key_selector
        self._seconds = None if refresh_interval is None else refresh_interval.total_seconds()
        self._caches: dict[str | None, _Cache] = {}

    async def get_skills(self, context: SkillsSourceContext | None = None) -> list[Skill]:
        """The kept list while it is fresh. Callers at the same time share one fetch.

        Raises:
            Whatever the inner source raises, while there is no list to fall back on.
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
        except Exception as error:  # a source is foreign code: whatever it raises, the old list serves on
            if cache.skills is None:
                raise
            logger.warning("skills could not be fetched again, keeping the last list error=%s", error)
        cache.fetched = anyio.current_time()


class _Cache:
    def __init__(self) -> None:
        self.lock = anyio.Lock()
        self.skills: list[Skill] | None = None
        self.fetched = 0.0


def _positional(function: Callable[..., object]) -> int:
    """How many positional arguments a function takes."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return 1
    if any(p.kind is p.VAR_POSITIONAL for p in parameters):
        return 2
    return sum(p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD) for p in parameters)

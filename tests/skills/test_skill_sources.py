"""Sources that combine others: order, duplicates, filters, caches."""

from __future__ import annotations

from datetime import timedelta

import anyio
import pytest

from gateway import (
    AggregatingSkillsSource,
    CachingSkillsSource,
    DeduplicatingSkillsSource,
    FilteringSkillsSource,
    InlineSkill,
    InMemorySkillsSource,
    Skill,
    SkillFrontmatter,
    SkillsSource,
    SkillsSourceContext,
)
from gateway.sessions.session import AgentSession


def skill(name: str, description: str = "d") -> InlineSkill:
    made = InlineSkill(frontmatter=SkillFrontmatter(name=name.lower(), description=description), instructions="")
    made.frontmatter.name = name
    return made


async def names(source: SkillsSource, context: SkillsSourceContext | None = None) -> list[str]:
    return [found.frontmatter.name for found in await source.get_skills(context)]


class Slow(SkillsSource):
    """Counts fetches, waits to be released, and fails on demand."""

    def __init__(self, release: anyio.Event | None = None) -> None:
        self.fetches = 0
        self.fails = False
        self.release = release

    async def get_skills(self, context: SkillsSourceContext | None = None) -> list[Skill]:
        self.fetches += 1
        if self.release is not None:
            await self.release.wait()
        if self.fails:
            raise OSError("gone")
        return [skill(f"n{self.fetches}")]


class Old(SkillsSource):
    """Written for agent-framework 1.9."""

    async def get_skills(self) -> list[Skill]:  # pyright: ignore[reportIncompatibleMethodOverride]
        return [skill("old")]


@pytest.mark.requirement(105, "SK12")
async def test_sources_are_combined_and_deduplicated(caplog: pytest.LogCaptureFixture) -> None:
    first, last = InMemorySkillsSource([skill("a"), skill("b", "first")]), InMemorySkillsSource([skill("B", "second")])
    both = AggregatingSkillsSource([first, Old(), last])
    assert await names(both) == ["a", "b", "old", "B"]
    once = await DeduplicatingSkillsSource(both).get_skills()
    assert [(s.frontmatter.name, s.frontmatter.description) for s in once][1] == ("b", "first")
    assert len(once) == 3 and "second skill" in caplog.text


@pytest.mark.requirement("SK12")
async def test_filter_takes_skill_or_skill_and_context() -> None:
    source = InMemorySkillsSource([skill("a"), skill("b")])
    session = AgentSession()

    def is_a(found: Skill) -> bool:
        return found.frontmatter.name == "a"

    def is_mine(found: Skill, context: SkillsSourceContext) -> bool:
        return context.session is session

    assert await names(FilteringSkillsSource(source, is_a)) == ["a"]
    mine = FilteringSkillsSource(source, is_mine)
    assert (await names(mine, SkillsSourceContext(session=session)), await names(mine)) == (["a", "b"], [])


@pytest.mark.requirement(124, "SK12")
async def test_concurrent_callers_share_one_fetch() -> None:
    slow = Slow(release := anyio.Event())
    cache = CachingSkillsSource(slow)
    seen: list[list[str]] = []

    async def ask() -> None:
        seen.append(await names(cache))

    with anyio.fail_after(20):
        async with anyio.create_task_group() as tasks:
            for _ in range(3):
                tasks.start_soon(ask)
            await anyio.wait_all_tasks_blocked()
            release.set()
    assert (slow.fetches, seen) == (1, [["n1"]] * 3)


@pytest.mark.requirement(124, "SK12")
async def test_failed_refresh_keeps_old_list() -> None:
    slow = Slow()
    cache = CachingSkillsSource(slow, refresh_interval=timedelta(microseconds=1))
    slow.fails = True
    with pytest.raises(OSError, match="gone"):
        await cache.get_skills()
    slow.fails = False
    assert await names(cache) == ["n2"]
    slow.fails = True
    assert (await names(cache), slow.fetches) == (["n2"], 3)


@pytest.mark.requirement(124, "SK12")
async def test_zero_interval_disables_cache() -> None:
    slow = Slow()
    cache = CachingSkillsSource(slow, refresh_interval=timedelta(0))
    assert [await names(cache), await names(cache)] == [["n1"], ["n2"]]


@pytest.mark.requirement(124, "SK12")
async def test_isolation_key_separates_tenants() -> None:
    slow = Slow()
    cache = CachingSkillsSource(slow, cache_isolation_key_selector=lambda context: context.session.session_id if context.session else None)
    one, two = (SkillsSourceContext(session=AgentSession(session_id=name)) for name in ("one", "two"))
    assert [await names(cache, c) for c in (one, two, None, one, two, None)] == [["n1"], ["n2"], ["n3"], ["n1"], ["n2"], ["n3"]]

"""`skills/list` pages the skills of a server without the skills extension as those of folders."""

from __future__ import annotations

import base64

import anyio.lowlevel
import pytest

from gateway.catalog import Catalog, CatalogEntry
from gateway.catalog.skill_catalog import SkillCatalog
from gateway.config.policies import SourcePolicy
from gateway.errors import NotFound
from gateway.gate.pipeline import GateServices
from gateway.tools.context import CallContext
from tests.fakes.recorded_events import RecordedEvents
from tests.server.both_paths import Remote

URIS = [f"skill://old/s{number:03}/SKILL.md" for number in range(250)]


async def face() -> SkillCatalog:
    entries = [CatalogEntry(Remote("old", []), SourcePolicy(), "")]
    catalog = Catalog(entries, GateServices(RecordedEvents()), name_budget=64, settled=anyio.lowlevel.checkpoint)
    await catalog.refresh()
    catalog.listings[0].shown_skills.update((uri, {"uri": uri}) for uri in reversed(URIS))
    return SkillCatalog(catalog)


async def test_pages_have_every_skill_once_and_name_how_long_they_hold() -> None:
    skills, cursor = await face(), None
    sizes: list[int] = []
    uris: list[str] = []
    while not sizes or cursor is not None:
        page = await skills.list_page(cursor, CallContext())
        assert (page["ttlMs"], page["cacheScope"]) == (60_000, "private")
        sizes.append(len(page["skills"]))
        uris += [entry["uri"] for entry in page["skills"]]
        cursor = page.get("nextCursor")
    assert (sizes, uris) == ([100, 100, 50], URIS)


async def test_cursor_that_no_page_gave_is_unknown() -> None:
    cursor = base64.urlsafe_b64encode(b'["old", "!"]').decode()
    with pytest.raises(NotFound) as caught:
        await (await face()).list_page(cursor, CallContext())
    assert caught.value.kind == "cursor"

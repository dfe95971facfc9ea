"""The ranking of skills for a query."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from gateway.skills.index import build_index
from tests.skills.on_disk import write_skill

SKILLS = {
    "pdf-forms": "Fills in forms in PDF documents. Use it for PDF forms.",
    "sql-review": "Reviews database queries and schema migrations for slow plans and lost data.",
    "changelog-writer": "Turns git history into release notes and changelog entries.",
    "meeting-minutes": "Writes minutes of a meeting from a transcript or notes.",
    "kaigi": "会議の議事録を書きます。",
    "cafe-menu": "Plans a menu for a café.",
}


Ranker = Callable[[str], list[str]]


@pytest.fixture
def ranked(tmp_path: Path) -> Ranker:
    for name, description in SKILLS.items():
        write_skill(tmp_path / name, description=description)
    search = build_index([str(tmp_path)]).search
    return lambda query: [skill.name for skill in search.rank(query)]


@pytest.mark.parametrize(
    ("query", "best"),
    [
        ("pdf", "pdf-forms"),
        ("fill a form", "pdf-forms"),
        ("is this database migration safe", "sql-review"),
        ("reviewing a slow query", "sql-review"),
        ("release notes", "changelog-writer"),
        ("write up the meeting", "meeting-minutes"),
        ("changelogs", "changelog-writer"),
        ("MINUTE", "meeting-minutes"),
        ("議事録", "kaigi"),
        ("cafe", "cafe-menu"),
        ("migr", "sql-review"),
    ],
)
def test_best_match_comes_first(ranked: Ranker, query: str, best: str) -> None:
    assert ranked(query)[0] == best


@pytest.mark.parametrize("query", ["zebra", "the and of", "", "???", "\x00", "%' OR 1=1 --"])
def test_query_without_a_shared_term_matches_nothing(ranked: Ranker, query: str) -> None:
    assert ranked(query) == []


def test_equal_scores_are_sorted_by_name(tmp_path: Path) -> None:
    for name in ("b", "c", "a"):
        write_skill(tmp_path / name, description="same words")
    assert [s.name for s in build_index([str(tmp_path)]).search.rank("words")] == ["a", "b", "c"]


def test_tags_and_headings_are_searched(tmp_path: Path) -> None:
    write_skill(tmp_path / "one", extra="metadata:\n  tags: kubernetes helm\n")
    write_skill(tmp_path / "two", body="# Rolling back a deployment\n")
    search = build_index([str(tmp_path)]).search
    assert [s.name for s in search.rank("helm")] == ["one"]
    assert [s.name for s in search.rank("roll back")] == ["two"]


@pytest.mark.parametrize("query", ["merging", "MERGES", "resume", "RÉSUMÉ", "mer"])
def test_suffixes_case_and_accents_are_ignored(tmp_path: Path, query: str) -> None:
    write_skill(tmp_path / "one", description="Merge every résumé.")
    write_skill(tmp_path / "two", description="Something else.")
    assert [s.name for s in build_index([str(tmp_path)]).search.rank(query)] == ["one"]


def test_match_in_name_comes_before_match_in_text(tmp_path: Path) -> None:
    write_skill(tmp_path / "aaa", description="Works on tables, and on pdf too.")
    write_skill(tmp_path / "pdf", description="Works on tables, and on paper too.")
    assert [s.name for s in build_index([str(tmp_path)]).search.rank("pdf")] == ["pdf", "aaa"]

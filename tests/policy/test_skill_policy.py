"""Which skills exist, by their paths, and which entries of a server conform to SEP-2640."""

from __future__ import annotations

from typing import Any

import pytest

from gateway.config.policies import SkillFilter
from gateway.policy.skill_policy import is_safe_name, is_skill_name, judge_entry, judge_skill, judge_skill_uri

DIGEST = "sha256:" + "0" * 64


def rules(**filters: Any) -> SkillFilter:
    return SkillFilter.model_validate(filters)


@pytest.mark.parametrize(
    ("uri", "filters", "served"),
    [
        ("skill://pdf/SKILL.md", {}, True),
        ("skill://pdf/SKILL.md", {"deny": ["pdf"]}, False),
        ("skill://pdf", {"deny": ["pdf"]}, False),
        ("skill://pdf/", {"deny": ["pdf"]}, False),
        ("skill://pdf/deep/notes.md", {"deny": ["pdf"]}, False),
        ("skill://team/pdf/notes.md", {"deny": ["team/pdf"]}, False),
        ("skill://team/pdf/notes.md", {"deny": ["team"]}, False),
        ("skill://team/other/notes.md", {"deny": ["team/pdf"]}, True),
        ("skill://pdf2/notes.md", {"deny": ["pdf"]}, True),
        ("skill://pdf/notes.md", {"allow": ["pdf"]}, True),
        ("skill://pdf/inner/SKILL.md", {"allow": ["pdf"]}, True),
        ("skill://other/notes.md", {"allow": ["pdf"]}, False),
        ("skill://pdf/inner/SKILL.md", {"allow": ["pdf"], "deny": ["pdf/inner"]}, False),
        ("skill://pdf/SKILL.md", {"allow": []}, False),
        ("skill://index.json", {"allow": []}, True),
        ("skill://index.json", {"deny": ["*"]}, True),
        ("skill://a.b/c", {"deny": ["a.b"]}, False),
        ("skill://pdf", {"allow": []}, False),
        ("file:///pdf/SKILL.md", {"deny": ["*"]}, True),
    ],
)
def test_skill_files_are_served_as_their_source_filters_decide(uri: str, filters: dict[str, Any], served: bool) -> None:
    assert judge_skill_uri(uri, rules(**filters)) is served


def test_patterns_of_skills_hold_for_the_whole_path() -> None:
    paths = ["pdf", "team/pdf", "pdf2"]
    assert [judge_skill(path, rules(allow=["pdf"])) for path in paths] == [True, False, False]
    assert [judge_skill(path, rules(deny=["*pdf"])) for path in paths] == [False, False, True]


@pytest.mark.parametrize("name", ["a", "pdf-2", "a-b-c", "x" * 64])
def test_legal_names_of_skills_are_known(name: str) -> None:
    assert is_skill_name(name)


@pytest.mark.parametrize("name", ["", "A", "a--b", "-a", "a-", "a_b", "é", "a b", "x" * 65, "a\n", None, 5])
def test_illegal_names_of_skills_are_known(name: Any) -> None:
    assert not is_skill_name(name)


@pytest.mark.parametrize("name", ["a", "a/b c.md", "SKILL.md", "a%20b", "a..b", "...", "%41"])
def test_names_of_files_inside_a_skill_are_safe(name: str) -> None:
    assert is_safe_name(name)


@pytest.mark.parametrize(
    "name",
    [
        *("", " ", "/a", "\\a", "..", "a/..", "a\\..\\b", "../a", "a/ .. /b", "a?../b", "a#..", "a/..?b", "c:x", "file:a", "a://b"),
        *("a\x00b", "a\x9fb", "%2e%2e/a", "%2fetc", "%252e%252e", "a%5c..%5cb", "a\nb"),
    ],
)
def test_names_that_lead_out_of_a_skill_are_unsafe_in_any_encoding(name: str) -> None:
    assert not is_safe_name(name)


def test_names_are_decoded_a_bounded_number_of_times() -> None:
    assert is_safe_name("%2541" * 3)
    assert is_safe_name("%" + "25" * 30 + "41") and not is_safe_name("%" + "25" * 40 + "41")


def listed(*files: Any, **changes: Any) -> dict[str, Any]:
    resources: Any = list(files) or [one()]
    entry = {"uri": "skill://team/pdf/SKILL.md", "frontmatter": {"name": "pdf", "description": "Merge."}, "resources": resources}
    return {**entry, **changes}


def one(name: str = "SKILL.md", **changes: Any) -> dict[str, Any]:
    return {"uri": f"skill://team/pdf/{name}", "digest": DIGEST, "size": 5, **changes}


@pytest.mark.parametrize(
    "entry",
    [
        listed(),
        listed(one(), one("a%20b.md"), one("deep/c.md", size=0)),
        listed(resources="dynamic"),
        listed(*[one(f"{number}.md") for number in range(511)], one()),
        listed(one(size=16 * 1024 * 1024)),
        listed(one(), frontmatter={"name": "pdf", "description": "x", "more": 1}),
    ],
    ids=range(6),
)
def test_entries_that_keep_the_format_are_taken(entry: dict[str, Any]) -> None:
    assert judge_entry(entry)


BROKEN: list[dict[str, Any]] = [
    listed(uri=None),
    listed(uri="file://team/pdf/SKILL.md"),
    listed(uri="skill://team/pdf/notes.md"),
    listed(uri="skill://team/other/SKILL.md"),
    listed(frontmatter=None),
    listed(frontmatter={"name": "PDF", "description": "x"}),
    listed(frontmatter={"name": "other", "description": "x"}),
    listed(frontmatter={"name": "pdf"}),
    listed(frontmatter={"name": "pdf", "description": " "}),
    listed(frontmatter={"name": "pdf", "description": 5}),
    listed(resources="static"),
    listed(resources=None),
    listed(resources=[]),
    listed(resources=["SKILL.md"]),
    listed(one("notes.md")),
    listed(one(), one()),
    listed(one(), one("../x")),
    listed(one(), one("%2e%2e/x")),
    listed(one(), one("")),
    listed(one(), one(uri="skill://team/pdf2/x")),
    listed(one(), one(uri="skill://team/pdf")),
    listed(one(), one(uri=5)),
    listed(one(), one("a", digest="sha256:0")),
    listed(one(), one("a", digest="md5:" + "0" * 64)),
    listed(one(), one("a", digest=DIGEST + "0")),
    listed(one(), one("a", digest=None)),
    listed(one(), one("a", size=-1)),
    listed(one(), one("a", size=True)),
    listed(one(), one("a", size="5")),
    listed(one(), one("a", size=None)),
    listed(one(size=16 * 1024 * 1024 + 1)),
    listed(one(size=16 * 1024 * 1024), one("a", size=1)),
    listed(*[one(f"{number}.md") for number in range(512)], one()),
    listed(one(), *[one(f"{number}.md") for number in range(512)]),
]


@pytest.mark.parametrize("entry", BROKEN, ids=range(len(BROKEN)))
def test_entries_that_break_the_format_are_not_taken(entry: dict[str, Any]) -> None:
    assert not judge_entry(entry)

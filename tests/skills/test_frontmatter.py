"""`SkillFrontmatter`: its checks."""

from __future__ import annotations

import pytest

from gateway import SkillFrontmatter


@pytest.mark.requirement(98, "SK1")
@pytest.mark.parametrize("name", ["a", "sql-helper", "x" * 64, "a1", "7"])
def test_legal_name_is_accepted(name: str) -> None:
    assert SkillFrontmatter(name=name, description="d").name == name


@pytest.mark.requirement(98, "SK1")
@pytest.mark.parametrize("name", ["", " ", "x" * 65, "Upper", "-a", "a-", "a--b", "a_b", "a b", "ä", "a\n", "a/b"])
def test_illegal_name_is_an_error(name: str) -> None:
    with pytest.raises(ValueError, match="name"):
        SkillFrontmatter(name=name, description="d")


@pytest.mark.requirement(99, "SK1")
def test_texts_of_maximum_length_are_accepted() -> None:
    made = SkillFrontmatter(name="a", description="d" * 1024, compatibility="c" * 500)
    assert (len(made.description), len(made.compatibility or "")) == (1024, 500)


@pytest.mark.requirement(99, "SK1")
@pytest.mark.parametrize(("description", "compatibility"), [("", None), (" \n", None), ("d" * 1025, None), ("d", "c" * 501)])
def test_blank_or_too_long_text_is_an_error(description: str, compatibility: str | None) -> None:
    with pytest.raises(ValueError, match=r"description|compatibility"):
        SkillFrontmatter(name="a", description=description, compatibility=compatibility)


@pytest.mark.requirement(100, "SK1")
def test_later_assignments_are_not_checked() -> None:
    given = {"owner": "us"}
    made = SkillFrontmatter(name="a", description="d", license="MIT", allowed_tools="Read Bash", metadata=given)
    given["owner"] = "them"
    made.name = "Not Legal"
    assert (made.name, made.license, made.allowed_tools, made.metadata) == ("Not Legal", "MIT", "Read Bash", {"owner": "us"})

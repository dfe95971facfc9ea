"""`SearchIndex`: ranks skills for a search query by their name, description, headings and tags.

`WordIndex` (`gateway.tools.search`) computes the scores. Text of a `SKILL.md` other than headings is not searched. Each `SkillIndex` has
its own `SearchIndex`; the tool `search_skills` uses it.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import cast

from gateway.json_types import JsonMapping
from gateway.skills.model import Skill
from gateway.tools.search import Row, WordIndex

_HEADING = re.compile(r"^#{1,3}[ \t]+(.+)$", re.MULTILINE)


class SearchIndex:
    """A search index over a fixed set of skills. It ranks them by the words that they share with a query."""

    def __init__(self, skills: Sequence[Skill]) -> None:
        """Store the skills. The search index is built at the first query."""
        self._skills = skills
        self._words = WordIndex(_Rows(skills))

    def rank(self, query: str) -> list[Skill]:
        """Return the skills that share a word with `query`, best first; skills with equal scores are sorted by id.

        Blocking; the first call reads the texts of all skills and builds the index.
        """
        ranked = [(score, self._skills[position]) for position, score in self._words.scores(query).items()]
        return [skill for _, skill in sorted(ranked, key=lambda item: (-item[0], item[1].id))]


class _Rows(Sequence[Row]):
    """The searched texts of each skill, as a sequence. The texts of a skill are made when its item is accessed."""

    def __init__(self, skills: Sequence[Skill]) -> None:
        self._skills = skills

    def __len__(self) -> int:
        return len(self._skills)

    def __getitem__(self, position: int) -> Row:  # type: ignore[override]  # the sequence is never sliced
        return _row(self._skills[position])


def _row(skill: Skill) -> Row:
    frontmatter = skill.document.frontmatter
    metadata = frontmatter.get("metadata")
    inner = cast("JsonMapping", metadata) if isinstance(metadata, dict) else frontmatter
    fields = [frontmatter, *([inner] if inner is not frontmatter else [])]
    keywords = " ".join(str(place.get(key, "")) for key in ("tags", "keywords", "triggers") for place in fields)
    headings = " ".join(dict.fromkeys(_HEADING.findall(skill.document.body)))
    return f"{skill.id} {skill.document.name}", keywords, f"{skill.document.description} {headings}"

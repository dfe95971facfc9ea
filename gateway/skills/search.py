"""`SearchIndex`: ranks skills for a query by what describes them; the scoring is `tools.search`'s.

Reads names, descriptions, headings and tags, never bodies. `index` builds it with the table; `tools` asks it.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from typing import cast

from gateway.json_types import JsonMapping
from gateway.skills.models import Skill
from gateway.tools.search import NAME_WEIGHT, WordIndex, words_of

KEYWORD_WEIGHT = 2
"""A word in the tags says more than one in the description or a heading."""

_HEADING = re.compile(r"^#{1,3}[ \t]+(.+)$", re.MULTILINE)


class SearchIndex:
    """A `WordIndex` over a fixed set of skills."""

    def __init__(self, skills: Sequence[Skill]) -> None:
        """Reads names, descriptions, headings and the `tags` or `keywords` of `metadata`."""
        self._skills = list(skills)
        self._words = WordIndex([_count_terms(skill) for skill in self._skills])

    def rank(self, query: str) -> list[Skill]:
        """Skills that share a word with `query`, best first; equal scores by id."""
        ranked = [(score, self._skills[position]) for position, score in self._words.scores(query).items()]
        return [skill for _, skill in sorted(ranked, key=lambda item: (-item[0], item[1].id))]


def _count_terms(skill: Skill) -> Counter[str]:
    counts: Counter[str] = Counter()
    for term in words_of(f"{skill.id} {skill.document.name}"):
        counts[term] = NAME_WEIGHT
    frontmatter = skill.document.frontmatter
    metadata = frontmatter.get("metadata")
    inner = cast("JsonMapping", metadata) if isinstance(metadata, dict) else frontmatter
    for key in ("tags", "keywords", "triggers"):
        for term in words_of(f"{frontmatter.get(key, '')} {inner.get(key, '') if inner is not frontmatter else ''}"):
            counts[term] += KEYWORD_WEIGHT
    counts.update(words_of(skill.document.description))
    counts.update(set(words_of(" ".join(_HEADING.findall(skill.document.body)))))
    return counts

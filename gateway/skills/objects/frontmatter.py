"""`SkillFrontmatter`: what a skill says of itself, checked when it is made."""

from __future__ import annotations

from collections.abc import Mapping

from gateway.policy.skills import MAX_NAME_CHARS, is_skill_name
from gateway.skills.parser import MAX_COMPATIBILITY_CHARS, MAX_DESCRIPTION_CHARS


class SkillFrontmatter:
    """The fields of a `SKILL.md`. Plain attributes: later assignments are not checked (requirements 100)."""

    def __init__(
        self,
        *,
        name: str,
        description: str,
        license: str | None = None,
        compatibility: str | None = None,
        allowed_tools: str | None = None,
        metadata: Mapping[str, str] | None = None,
    ) -> None:
        """`allowed_tools` is separated by spaces; `metadata` is copied.

        Raises:
            ValueError: `name`, `description` or `compatibility` breaks the Agent Skills rules.
        """
        if not name.strip():
            raise ValueError("The name of a skill cannot be empty.")
        if not is_legal_name(name):
            raise ValueError(f"{name!r} is not a skill name: use 1 to {MAX_NAME_CHARS} lower-case letters, digits and single hyphens.")
        if not description.strip():
            raise ValueError(f"The description of skill {name!r} cannot be empty.")
        if len(description) > MAX_DESCRIPTION_CHARS:
            raise ValueError(f"The description of skill {name!r} has {len(description)} characters, {MAX_DESCRIPTION_CHARS} are allowed.")
        if compatibility is not None and len(compatibility) > MAX_COMPATIBILITY_CHARS:
            raise ValueError(
                f"The compatibility of skill {name!r} has {len(compatibility)} characters, {MAX_COMPATIBILITY_CHARS} are allowed."
            )
        self.name = name
        self.description = description
        self.license = license
        self.compatibility = compatibility
        self.allowed_tools = allowed_tools
        self.metadata: dict[str, str] | None = None if metadata is None else dict(metadata)


def is_legal_name(name: str) -> bool:
    """Whether `name` fits the Agent Skills rules, for skills and for members of class skills."""
    return is_skill_name(name)

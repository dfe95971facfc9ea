"""`Skill` and what it is made of: the contracts, and the skill whose text is a file.

What is inherited by programs lives here; the ready-made members are in `members`, skills in code in `inline` and
`class_skill`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

from gateway.json_types import JsonObject
from gateway.skills.objects.content import member_blocks
from gateway.skills.objects.frontmatter import SkillFrontmatter

ScriptArguments = Mapping[str, Any] | Sequence[str] | str | None
"""What a model gives a script: named arguments, or the words of a command line."""

class SkillResource(ABC):
    """Something a skill offers to read."""

    def __init__(self, *, name: str, description: str | None = None) -> None:
        """Raises `ValueError` for a blank name."""
        if not name.strip():
            raise ValueError("The name of a resource cannot be empty.")
        self.name = name
        self.description = description

    @abstractmethod
    async def read(self, **kwargs: object) -> object:
        """The content; `kwargs` are the host's values for this run, never the model's."""


class SkillScript(ABC):
    """Something a skill offers to run."""

    def __init__(self, *, name: str, description: str | None = None) -> None:
        """Raises `ValueError` for a blank name."""
        if not name.strip():
            raise ValueError("The name of a script cannot be empty.")
        self.name = name
        self.description = description

    @property
    def parameters_schema(self) -> JsonObject | None:
        """The arguments as JSON Schema; `None` for none."""
        return None

    @abstractmethod
    async def run(self, skill: Skill, args: ScriptArguments = None, **kwargs: object) -> object:
        """Run for `skill`; `args` come from the model, `kwargs` from the host."""


MemberT = TypeVar("MemberT", SkillResource, SkillScript)


def find_member(members: Sequence[MemberT], name: str) -> MemberT | None:
    """The member of that name; case is forgiven."""
    wanted = name.casefold()
    return next((member for member in members if member.name.casefold() == wanted), None)


class Skill(ABC):
    """Instructions for one kind of work, with resources to read and scripts to run."""

    @property
    @abstractmethod
    def frontmatter(self) -> SkillFrontmatter:
        """What is advertised."""

    @abstractmethod
    async def get_content(self) -> str:
        """What a model reads when it loads the skill."""

    async def get_resource(self, name: str) -> SkillResource | None:
        """The resource of that name; case is forgiven."""
        return None

    async def get_script(self, name: str) -> SkillScript | None:
        """The script of that name; case is forgiven."""
        return None


class FileSkill(Skill):
    """A skill whose text is a whole `SKILL.md`, frontmatter included."""

    def __init__(
        self,
        *,
        frontmatter: SkillFrontmatter,
        content: str,
        path: str,
        resources: Sequence[SkillResource] | None = None,
        scripts: Sequence[SkillScript] | None = None,
    ) -> None:
        """`path` is the skill's folder."""
        self._frontmatter = frontmatter
        self._content = content
        self.path = path
        self._resources = tuple(resources or ())
        self._scripts = tuple(scripts or ())

    @property
    def frontmatter(self) -> SkillFrontmatter:
        """What is advertised."""
        return self._frontmatter

    @property
    def content(self) -> str:
        """The file as it was read, and nothing else."""
        return self._content

    @property
    def resources(self) -> list[SkillResource]:
        """What there is to read."""
        return list(self._resources)

    @property
    def scripts(self) -> list[SkillScript]:
        """What there is to run."""
        return list(self._scripts)

    async def get_content(self) -> str:
        """The file, then what it offers to read and to run."""
        return self._content + member_blocks(self._resources, self._scripts)

    async def get_resource(self, name: str) -> SkillResource | None:
        """The resource of that name; case is forgiven."""
        return find_member(self._resources, name)

    async def get_script(self, name: str) -> SkillScript | None:
        """The script of that name; case is forgiven."""
        return find_member(self._scripts, name)

"""`InlineSkill`: a skill written in code, its functions added by decorator."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar, overload

from gateway.skills.objects.content import skill_text
from gateway.skills.objects.frontmatter import SkillFrontmatter
from gateway.skills.objects.members import InlineSkillResource, InlineSkillScript, ScriptArgumentParser
from gateway.skills.objects.skill import Skill, SkillResource, SkillScript, find_member

FunctionT = TypeVar("FunctionT", bound=Callable[..., Any])


class InlineSkill(Skill):
    """Instructions, resources and scripts from code. `@skill.resource` and `@skill.script` add functions."""

    def __init__(
        self,
        *,
        frontmatter: SkillFrontmatter,
        instructions: str,
        resources: Sequence[SkillResource] | None = None,
        scripts: Sequence[SkillScript] | None = None,
        argument_parser: ScriptArgumentParser | None = None,
    ) -> None:
        """`argument_parser` is for the scripts added by decorator."""
        self._frontmatter = frontmatter
        self.instructions = instructions
        self._resources = list(resources or ())
        self._scripts = list(scripts or ())
        self._argument_parser = argument_parser

    @property
    def frontmatter(self) -> SkillFrontmatter:
        """What is advertised."""
        return self._frontmatter

    @property
    def resources(self) -> list[SkillResource]:
        """What there is to read at this moment."""
        return list(self._resources)

    @property
    def scripts(self) -> list[SkillScript]:
        """What there is to run at this moment."""
        return list(self._scripts)

    async def get_content(self) -> str:
        """Name, description, instructions, and what there is to read and to run at this moment."""
        return skill_text(self._frontmatter, self.instructions, self._resources, self._scripts)

    async def get_resource(self, name: str) -> SkillResource | None:
        """The resource of that name; case is forgiven."""
        return find_member(self._resources, name)

    async def get_script(self, name: str) -> SkillScript | None:
        """The script of that name; case is forgiven."""
        return find_member(self._scripts, name)

    @overload
    def resource(self, func: FunctionT, /) -> FunctionT: ...

    @overload
    def resource(
        self, func: None = None, *, name: str | None = None, description: str | None = None
    ) -> Callable[[FunctionT], FunctionT]: ...

    def resource(self, func: Any = None, *, name: str | None = None, description: str | None = None) -> Any:
        """Add a function as a resource, named after it unless said otherwise; with or without parentheses."""

        def add(function: FunctionT) -> FunctionT:
            self._resources.append(InlineSkillResource(name=name or function.__name__, description=description, function=function))
            return function

        return add if func is None else add(func)

    @overload
    def script(self, func: FunctionT, /) -> FunctionT: ...

    @overload
    def script(
        self, func: None = None, *, name: str | None = None, description: str | None = None
    ) -> Callable[[FunctionT], FunctionT]: ...

    def script(self, func: Any = None, *, name: str | None = None, description: str | None = None) -> Any:
        """Add a function as a script, named after it unless said otherwise; with or without parentheses."""

        def add(function: FunctionT) -> FunctionT:
            parser = self._argument_parser
            made = InlineSkillScript(name=name or function.__name__, description=description, function=function, argument_parser=parser)
            self._scripts.append(made)
            return function

        return add if func is None else add(func)

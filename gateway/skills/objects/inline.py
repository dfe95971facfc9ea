"""`InlineSkill`: a skill written in code, whose functions are added by decorators."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from gateway.skills.objects.members import InlineSkillResource, InlineSkillScript, MemberDecorator, ScriptArgumentParser
from gateway.skills.objects.skill import DefinedSkill, SkillFrontmatter, SkillResource, SkillScript, code_content


class InlineSkill(DefinedSkill):
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
        """`argument_parser` converts the arguments that a model gives to scripts added with `@skill.script`."""
        super().__init__(frontmatter, resources, scripts)
        self.instructions = instructions
        self._argument_parser = argument_parser

    async def get_content(self) -> str:
        """Return name, description and instructions as XML, then the lists of resources and scripts."""
        return code_content(self, self.instructions)

    @property
    def resource(self) -> MemberDecorator:
        """Add a function as a resource. Use with or without parentheses; `name` defaults to the name of the function."""
        return MemberDecorator(self._add_resource)

    def _add_resource(self, function: Callable[..., Any], name: str | None, description: str | None) -> None:
        self._resources.append(InlineSkillResource(name=name or function.__name__, description=description, function=function))

    @property
    def script(self) -> MemberDecorator:
        """Add a function as a script. Use with or without parentheses; `name` defaults to the name of the function."""
        return MemberDecorator(self._add_script)

    def _add_script(self, function: Callable[..., Any], name: str | None, description: str | None) -> None:
        parser = self._argument_parser
        made = InlineSkillScript(name=name or function.__name__, description=description, function=function, argument_parser=parser)
        self._scripts.append(made)

"""`InlineSkill`: a skill written in code, whose functions are added by decorators."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar, overload

from gateway.skills.objects.members import InlineSkillResource, InlineSkillScript, ScriptArgumentParser
from gateway.skills.objects.skill import DefinedSkill, SkillFrontmatter, SkillResource, SkillScript, code_content

FunctionT = TypeVar("FunctionT", bound=Callable[..., Any])


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
        """`argument_parser` converts the arguments of the scripts that the decorator adds."""
        self._frontmatter = frontmatter
        self.instructions = instructions
        self._resources = list(resources or ())
        self._scripts = list(scripts or ())
        self._argument_parser = argument_parser

    @property
    def resources(self) -> list[SkillResource]:
        """The resources added so far, in order."""
        return list(self._resources)

    @property
    def scripts(self) -> list[SkillScript]:
        """The scripts added so far, in order."""
        return list(self._scripts)

    async def get_content(self) -> str:
        """Return name, description and instructions as XML, then the lists of resources and scripts."""
        return code_content(self, self.instructions)

    @overload
    def resource(self, func: FunctionT, /) -> FunctionT: ...

    @overload
    def resource(
        self, func: None = None, *, name: str | None = None, description: str | None = None
    ) -> Callable[[FunctionT], FunctionT]: ...

    def resource(self, func: Any = None, *, name: str | None = None, description: str | None = None) -> Any:
        """Add a function as a resource. Use with or without parentheses; `name` defaults to the name of the function."""

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
        """Add a function as a script. Use with or without parentheses; `name` defaults to the name of the function."""

        def add(function: FunctionT) -> FunctionT:
            parser = self._argument_parser
            made = InlineSkillScript(name=name or function.__name__, description=description, function=function, argument_parser=parser)
            self._scripts.append(made)
            return function

        return add if func is None else add(func)

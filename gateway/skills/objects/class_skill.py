"""`ClassSkill`: a skill written as a class, whose decorated members are its resources and scripts."""

from __future__ import annotations

import inspect
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, Literal

from gateway.policy.skill_policy import is_skill_name
from gateway.skills.objects.members import InlineSkillResource, InlineSkillScript, MemberDecorator, ScriptArgumentParser
from gateway.skills.objects.skill import DefinedSkill, SkillFrontmatter, SkillResource, SkillScript, code_content

Kind = Literal["resource", "script"]

_MARK = "_gateway_skill_member"
"""Attribute of methods that `@ClassSkill.resource` or `@ClassSkill.script` has decorated."""


@dataclass(frozen=True, slots=True)
class _Mark:
    kind: Kind
    name: str | None
    description: str | None


def _check_name(name: str | None) -> None:
    if name is not None and not is_skill_name(name):
        raise ValueError(f"{name!r} is not a name for a member: use 1 to 64 lower-case letters, digits and single hyphens.")


def _mark(kind: Kind, function: Any, name: str | None, description: str | None) -> None:
    wrapper = type(function).__name__
    if wrapper in ("property", "classmethod", "staticmethod"):
        raise TypeError(f"@ClassSkill.{kind} must stand below @{wrapper}: write @{wrapper} first.")
    setattr(function, _MARK, _Mark(kind, name, description))


class ClassSkill(DefinedSkill, ABC):
    """Base class of a skill: define `instructions`, and mark methods with `@ClassSkill.resource` and `@ClassSkill.script`.

    The decorator may also stand below `@property`. The property then is a resource, and its code runs when the resource is read.
    """

    def __init__(self, *, frontmatter: SkillFrontmatter, argument_parser: ScriptArgumentParser | None = None) -> None:
        """`argument_parser` converts the arguments that a model gives to scripts marked with `@ClassSkill.script`."""
        super().__init__(frontmatter)
        self._argument_parser = argument_parser
        self._found_resources: list[SkillResource] | None = None
        self._found_scripts: list[SkillScript] | None = None

    resource: ClassVar[MemberDecorator] = MemberDecorator(partial(_mark, "resource"), _check_name)
    """Mark a method as a resource. `name` defaults to the name of the method with hyphens.

    Raises:
        ValueError: `name` is not legal.
        TypeError: The decorator stands above `@property`, `@classmethod` or `@staticmethod` instead of below.
    """

    script: ClassVar[MemberDecorator] = MemberDecorator(partial(_mark, "script"), _check_name)
    """Mark a method as a script. `name` defaults to the name of the method with hyphens. Raises as `resource` does."""

    @property
    @abstractmethod
    def instructions(self) -> str:
        """The instructions of the skill, which a model reads when it loads the skill."""

    @property
    def resources(self) -> list[SkillResource]:
        """The members marked `@ClassSkill.resource`; override to add others. Raises `ValueError` if two have the same name."""
        if self._found_resources is None:
            self._found_resources = [
                InlineSkillResource(name=name, description=mark.description, function=function)
                for name, mark, function in self._marked("resource")
            ]
        return list(self._found_resources)

    @property
    def scripts(self) -> list[SkillScript]:
        """The members marked `@ClassSkill.script`; override to add others. Raises `ValueError` if two have the same name."""
        if self._found_scripts is None:
            self._found_scripts = [
                InlineSkillScript(name=name, description=mark.description, function=function, argument_parser=self._argument_parser)
                for name, mark, function in self._marked("script")
            ]
        return list(self._found_scripts)

    async def get_content(self) -> str:
        """Return name, description and instructions as XML, then the lists of resources and scripts."""
        return code_content(self, self.instructions)

    def _marked(self, kind: Kind) -> list[tuple[str, _Mark, Callable[..., object]]]:
        """Return the marked members with their names, inherited members included, without running any of them."""
        found: list[tuple[str, _Mark, Callable[..., object]]] = []
        taken: set[str] = set()
        for attribute in dict.fromkeys(name for owner in type(self).__mro__ for name in vars(owner)):
            member = inspect.getattr_static(type(self), attribute)
            is_property = isinstance(member, property)
            function = member.fget if isinstance(member, property) else getattr(member, "__func__", member)  # of a static or class method
            mark = getattr(function, _MARK, None)
            if not isinstance(mark, _Mark) or mark.kind != kind:
                continue
            name = mark.name or attribute.replace("_", "-").strip("-")
            if name in taken:
                raise ValueError(f"Skill {self._frontmatter.name!r} has two {kind}s named {name!r}; give one another name.")
            taken.add(name)
            found.append((name, mark, partial(getattr, self, attribute) if is_property else getattr(self, attribute)))
        return found

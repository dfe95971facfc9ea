"""`ClassSkill`: a skill as a class whose decorated members are its resources and scripts."""

from __future__ import annotations

import inspect
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, TypeVar, overload

from gateway.skills.objects.content import skill_text
from gateway.skills.objects.frontmatter import SkillFrontmatter, is_legal_name
from gateway.skills.objects.members import InlineSkillResource, InlineSkillScript, ScriptArgumentParser
from gateway.skills.objects.skill import Skill, SkillResource, SkillScript, find_member

FunctionT = TypeVar("FunctionT", bound=Callable[..., Any])
Kind = Literal["resource", "script"]

_MARK = "_gateway_skill_member"
"""Attribute by which a decorated method is recognised."""


@dataclass(frozen=True, slots=True)
class _Mark:
    kind: Kind
    name: str | None
    description: str | None


class ClassSkill(Skill, ABC):
    """Inherit, give `instructions`, and mark methods with `@ClassSkill.resource` and `@ClassSkill.script`.

    Below `@property` the mark makes the property a resource; its code runs only when it is read.
    """

    def __init__(self, *, frontmatter: SkillFrontmatter, argument_parser: ScriptArgumentParser | None = None) -> None:
        """`argument_parser` is for the marked scripts."""
        self._frontmatter = frontmatter
        self._argument_parser = argument_parser
        self._found_resources: list[SkillResource] | None = None
        self._found_scripts: list[SkillScript] | None = None

    @overload
    @staticmethod
    def resource(func: FunctionT, /) -> FunctionT: ...

    @overload
    @staticmethod
    def resource(func: None = None, *, name: str | None = None, description: str | None = None) -> Callable[[FunctionT], FunctionT]: ...

    @staticmethod
    def resource(func: Any = None, *, name: str | None = None, description: str | None = None) -> Any:
        """Mark a method as a resource; its name with hyphens unless said otherwise.

        Raises:
            ValueError: `name` is not legal.
            TypeError: It stands above `@property`, `@classmethod` or `@staticmethod` instead of below.
        """
        return _marker(_Mark("resource", name, description), func)

    @overload
    @staticmethod
    def script(func: FunctionT, /) -> FunctionT: ...

    @overload
    @staticmethod
    def script(func: None = None, *, name: str | None = None, description: str | None = None) -> Callable[[FunctionT], FunctionT]: ...

    @staticmethod
    def script(func: Any = None, *, name: str | None = None, description: str | None = None) -> Any:
        """Mark a method as a script; its name with hyphens unless said otherwise. Raises as `resource` does."""
        return _marker(_Mark("script", name, description), func)

    @property
    def frontmatter(self) -> SkillFrontmatter:
        """What is advertised."""
        return self._frontmatter

    @property
    @abstractmethod
    def instructions(self) -> str:
        """What a model reads first."""

    @property
    def resources(self) -> list[SkillResource]:
        """The marked resources, looked up once; inherit to give others. Raises `ValueError` where two have one name."""
        if self._found_resources is None:
            self._found_resources = [
                InlineSkillResource(name=name, description=mark.description, function=function)
                for name, mark, function in self._marked("resource")
            ]
        return list(self._found_resources)

    @property
    def scripts(self) -> list[SkillScript]:
        """The marked scripts, looked up once; inherit to give others. Raises `ValueError` where two have one name."""
        if self._found_scripts is None:
            self._found_scripts = [
                InlineSkillScript(name=name, description=mark.description, function=function, argument_parser=self._argument_parser)
                for name, mark, function in self._marked("script")
            ]
        return list(self._found_scripts)

    async def get_content(self) -> str:
        """Name, description, instructions, and what there is to read and to run."""
        return skill_text(self._frontmatter, self.instructions, self.resources, self.scripts)

    async def get_resource(self, name: str) -> SkillResource | None:
        """The resource of that name; case is forgiven."""
        return find_member(self.resources, name)

    async def get_script(self, name: str) -> SkillScript | None:
        """The script of that name; case is forgiven."""
        return find_member(self.scripts, name)

    def _marked(self, kind: Kind) -> list[tuple[str, _Mark, Callable[..., object]]]:
        """Marked members with their names, inherited ones included; nothing of them is run."""
        found: list[tuple[str, _Mark, Callable[..., object]]] = []
        taken: set[str] = set()
        for attribute in dict.fromkeys(name for owner in type(self).__mro__ for name in vars(owner)):
            member = inspect.getattr_static(type(self), attribute)
            is_property = isinstance(member, property)
            mark = getattr(member.fget if isinstance(member, property) else _plain(member), _MARK, None)
            if not isinstance(mark, _Mark) or mark.kind != kind:
                continue
            name = mark.name or attribute.replace("_", "-").strip("-")
            if name in taken:
                raise ValueError(f"Skill {self._frontmatter.name!r} has two {kind}s named {name!r}; give one another name.")
            taken.add(name)
            found.append((name, mark, partial(_value_of, self, attribute) if is_property else getattr(self, attribute)))
        return found


def _value_of(skill: ClassSkill, attribute: str) -> object:
    """The value of a property, when it is read."""
    return getattr(skill, attribute)


def _plain(member: object) -> object:
    """The function inside `@staticmethod` and `@classmethod`."""
    return getattr(member, "__func__", member)


def _marker(mark: _Mark, func: Any) -> Any:
    if mark.name is not None and not is_legal_name(mark.name):
        raise ValueError(f"{mark.name!r} is not a name for a {mark.kind}: use 1 to 64 lower-case letters, digits and single hyphens.")

    def decorate(function: Any) -> Any:
        kind = type(function).__name__
        if kind in ("property", "classmethod", "staticmethod"):
            raise TypeError(f"@ClassSkill.{mark.kind} must stand below @{kind}: write @{kind} first.")
        setattr(function, _MARK, mark)
        return function

    return decorate if func is None else decorate(func)

"""Skills as Python objects: `InlineSkill`, to which functions are added, and `ClassSkill`, whose methods are resources and scripts.

Decorators mark the functions and methods. These functions run in this process; synchronous functions run in a worker thread.
"""

from __future__ import annotations

import functools
import inspect
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, TypeVar, overload

from gateway.json_types import JsonObject
from gateway.policy.skill_policy import is_skill_name
from gateway.skills.objects.skill import (
    DefinedSkill,
    MemberKind,
    ScriptArguments,
    ScriptRefused,
    Skill,
    SkillFrontmatter,
    SkillResource,
    SkillScript,
    code_content,
)
from gateway.tools.function import FunctionTool, run_function

FunctionT = TypeVar("FunctionT", bound=Callable[..., Any])

ScriptArgumentParser = Callable[[ScriptArguments], "Mapping[str, Any] | None"]
"""Function that converts the arguments of a script, as the model gave them, to named arguments for the script's Python function."""


class MemberDecorator:
    """Decorator that makes a function a resource or script of a skill. It can be used with or without parentheses."""

    def __init__(self, use: Callable[[Callable[..., Any], str | None, str | None], None], *, is_strict: bool = False) -> None:
        """Store `use`, which registers a decorated function.

        `use` receives the function, and the name and description that the decorator got in parentheses, or `None`.

        If `is_strict`, an illegal name in parentheses raises `ValueError`.
        """
        self._use = use
        self._is_strict = is_strict

    @overload
    def __call__(self, func: FunctionT, /) -> FunctionT: ...

    @overload
    def __call__(
        self, func: None = None, *, name: str | None = None, description: str | None = None
    ) -> Callable[[FunctionT], FunctionT]: ...

    def __call__(self, func: Any = None, *, name: str | None = None, description: str | None = None) -> Any:
        """Register `func` if the decorator is used without parentheses; otherwise return a decorator that registers a function."""
        if self._is_strict and name is not None and not is_skill_name(name):
            raise ValueError(f"{name!r} is not a name for a member: use 1 to 64 lower-case letters, digits and single hyphens.")

        def decorate(function: FunctionT) -> FunctionT:
            self._use(function, name, description)
            return function

        return decorate if func is None else decorate(func)


class InlineSkillResource(SkillResource):
    """A resource of a skill: a fixed text, or a function that returns the content at each read."""

    def __init__(
        self,
        *,
        name: str,
        description: str | None = None,
        content: str | None = None,
        function: Callable[..., object] | None = None,
    ) -> None:
        """Create a resource from a text (`content`) or from a synchronous or asynchronous function.

        Raises:
            ValueError: Both or neither of `content` and `function` are given, or the name is blank.
        """
        super().__init__(name=name, description=description)
        if (content is None) == (function is None):
            raise ValueError(f"Resource {name!r} needs either content or function, and not both.")
        self.content = content
        self.function = function

    async def read(self, **kwargs: object) -> object:
        """Return the fixed text, or call the function and return its result.

        `kwargs` are values of the host program (the program that runs the agent). Only a function with `**kwargs` receives them.
        """
        if self.function is None:
            return self.content
        return await run_function(self.function, [], _accepted(self.function, kwargs))


class InlineSkillScript(SkillScript):
    """A script of a skill that is a Python function. It runs in this process; no `SkillScriptRunner` is needed."""

    def __init__(
        self,
        *,
        name: str,
        description: str | None = None,
        function: Callable[..., object],
        argument_parser: ScriptArgumentParser | None = None,
    ) -> None:
        """Create a script. `argument_parser` converts a model's arguments to named ones; without it, a model must pass a JSON object."""
        super().__init__(name=name, description=description)
        self.function = function
        self.argument_parser = argument_parser
        self._schema: JsonObject | None = None

    @property
    def parameters_schema(self) -> JsonObject | None:
        """JSON Schema of the function's parameters, computed at first use; `None` for a function without parameters."""
        if self._schema is None:
            self._schema = FunctionTool(_without_rest(self.function), name="script").definition.input_schema
        return self._schema if self._schema.get("properties") else None

    async def run(self, skill: Skill, args: ScriptArguments = None, **kwargs: object) -> object:
        """Call the function with the members of `args` as named arguments, and return its result.

        `kwargs` are values of the host program (the program that runs the agent). They are added to the arguments if the function accepts
        `**kwargs`.

        Raises:
            TypeError: `args` is not an object, does not fit the signature, or has a name that the host program sets.
        """
        given = self.argument_parser(args) if self.argument_parser is not None else args
        if given is not None and not isinstance(given, Mapping):
            raise ScriptRefused(f"Script {self.name!r} needs an object of named arguments, not {type(given).__name__}.")
        named = dict(given or {})
        own = _accepted(self.function, kwargs)
        if clash := sorted(named.keys() & own.keys()):
            raise ScriptRefused(f"Script {self.name!r}: the host sets {', '.join(clash)}; leave it out.")
        try:
            inspect.signature(self.function).bind(**named, **own)
        except TypeError as error:
            raise ScriptRefused(f"Script {self.name!r}: {error}.") from None
        return await run_function(self.function, [], {**named, **own})


class _CodeSkill(DefinedSkill):
    """Base class of `InlineSkill` and `ClassSkill`, the skills whose resources and scripts are Python functions."""

    def __init__(
        self,
        frontmatter: SkillFrontmatter,
        resources: Sequence[SkillResource] | None,
        scripts: Sequence[SkillScript] | None,
        argument_parser: ScriptArgumentParser | None,
    ) -> None:
        super().__init__(frontmatter, resources, scripts)
        self._argument_parser = argument_parser

    def _add(self, kind: MemberKind, function: Callable[..., object], name: str | None, description: str | None) -> None:
        name = name or function.__name__
        if kind == "resource":
            self._resources.append(InlineSkillResource(name=name, description=description, function=function))
        else:
            parser = self._argument_parser
            self._scripts.append(InlineSkillScript(name=name, description=description, function=function, argument_parser=parser))


class InlineSkill(_CodeSkill):
    """A skill whose instructions, resources and scripts are given in code. `@skill.resource` and `@skill.script` add functions."""

    def __init__(
        self,
        *,
        frontmatter: SkillFrontmatter,
        instructions: str,
        resources: Sequence[SkillResource] | None = None,
        scripts: Sequence[SkillScript] | None = None,
        argument_parser: ScriptArgumentParser | None = None,
    ) -> None:
        """Create a skill. `argument_parser` converts the arguments that a model gives to scripts added with `@skill.script`."""
        super().__init__(frontmatter, resources, scripts, argument_parser)
        self.instructions = instructions

    async def get_content(self) -> str:
        """Return the text for the model: name, description and instructions as XML, and the lists of resources and scripts."""
        return code_content(self, self.instructions)

    @property
    def resource(self) -> MemberDecorator:
        """Decorator that adds a function as a resource. Use with or without parentheses; `name` defaults to the name of the function."""
        return MemberDecorator(partial(self._add, "resource"))

    @property
    def script(self) -> MemberDecorator:
        """Decorator that adds a function as a script. Use with or without parentheses; `name` defaults to the name of the function."""
        return MemberDecorator(partial(self._add, "script"))


_MARK = "_gateway_skill_member"
"""Name of the attribute that `@ClassSkill.resource` and `@ClassSkill.script` set on the methods they decorate."""


@dataclass(frozen=True, slots=True)
class _Mark:
    kind: MemberKind
    name: str | None
    description: str | None


def _mark(kind: MemberKind, function: Any, name: str | None, description: str | None) -> None:
    wrapper = type(function).__name__
    if wrapper in ("property", "classmethod", "staticmethod"):
        raise TypeError(f"@ClassSkill.{kind} must stand below @{wrapper}: write @{wrapper} first.")
    setattr(function, _MARK, _Mark(kind, name, description))


class ClassSkill(_CodeSkill, ABC):
    """Base class of skills. A subclass defines `instructions`, and marks methods as resources or scripts with decorators.

    The decorators are `@ClassSkill.resource` and `@ClassSkill.script`. `@ClassSkill.resource` can also be written below `@property`: the
    property is then a resource, and its code runs when the resource is read.
    """

    def __init__(self, *, frontmatter: SkillFrontmatter, argument_parser: ScriptArgumentParser | None = None) -> None:
        """Find the methods and properties of the class that are marked as resources or scripts, without running any of them.

        Inherited methods are included. `argument_parser` converts the arguments that a model gives to scripts.

        Raises:
            ValueError: Two resources or two scripts have the same name.
        """
        super().__init__(frontmatter, None, None, argument_parser)
        taken: set[tuple[MemberKind, str]] = set()
        for attribute in dict.fromkeys(name for owner in type(self).__mro__ for name in vars(owner)):
            member = inspect.getattr_static(type(self), attribute)
            is_property = isinstance(member, property)
            function = member.fget if isinstance(member, property) else getattr(member, "__func__", member)  # for static and class methods
            mark = getattr(function, _MARK, None)
            if not isinstance(mark, _Mark):
                continue
            name = mark.name or attribute.replace("_", "-").strip("-")
            if (mark.kind, name) in taken:
                raise ValueError(f"Skill {frontmatter.name!r} has two {mark.kind}s named {name!r}; give one another name.")
            taken.add((mark.kind, name))
            read = partial(getattr, self, attribute) if is_property else getattr(self, attribute)
            self._add(mark.kind, read, name, mark.description)

    resource: ClassVar[MemberDecorator] = MemberDecorator(partial(_mark, "resource"), is_strict=True)
    """Decorator that marks a method as a resource. `name` defaults to the name of the method with hyphens.

    Raises:
        ValueError: `name` is not legal.
        TypeError: The decorator is written above `@property`, `@classmethod` or `@staticmethod` instead of below.
    """

    script: ClassVar[MemberDecorator] = MemberDecorator(partial(_mark, "script"), is_strict=True)
    """Decorator that marks a method as a script. `name` defaults to the name of the method with hyphens.

    Raises:
        ValueError: `name` is not legal.
        TypeError: The decorator is written above `@property`, `@classmethod` or `@staticmethod` instead of below.
    """

    @property
    @abstractmethod
    def instructions(self) -> str:
        """The instructions of the skill, which a model reads when it loads the skill."""

    async def get_content(self) -> str:
        """Return the text for the model: name, description and instructions as XML, and the lists of resources and scripts."""
        return code_content(self, self.instructions)


def _accepted(function: Callable[..., object], kwargs: Mapping[str, object]) -> dict[str, object]:
    """Return `kwargs`, values of the host program (which runs the agent), if the function accepts `**kwargs`; otherwise an empty dict."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return {}  # `function` is a builtin without a signature
    return dict(kwargs) if any(p.kind is p.VAR_KEYWORD for p in parameters) else {}


def _without_rest(function: Callable[..., object]) -> Callable[..., object]:
    """Return a function with the signature of `function`, but without `*args` and `**kwargs`. Only its signature is used.

    The JSON Schema of a script is derived from this signature, because models do not set `*args` and `**kwargs`.
    """
    signature = inspect.signature(function)
    kept = [p for p in signature.parameters.values() if p.kind not in (p.VAR_KEYWORD, p.VAR_POSITIONAL)]

    def stand_in() -> None: ...

    functools.update_wrapper(stand_in, function)
    stand_in.__signature__ = signature.replace(parameters=kept)
    return stand_in

"""`Skill` and its parts: base classes for skills as Python objects, `SkillFrontmatter`, and `FileSkill`, whose text is a `SKILL.md`.

Names and signatures are those of Microsoft's agent framework. `code_skills` has the skills that are written in code.
"""

from __future__ import annotations

import inspect
import os
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Protocol, TypeVar, runtime_checkable

import anyio.to_thread

from gateway.errors import NotFound, SkillError
from gateway.json_types import JsonObject
from gateway.skills.folders import Changed, read_file, segments_below
from gateway.skills.model import SkillMember, spelled
from gateway.skills.parser import TOOLS_ONLY, check_fields
from gateway.skills.render import COMMAND_LINE, code_text, member_blocks

ScriptArguments = Mapping[str, Any] | Sequence[str] | str | None
"""Arguments of a script as the model gives them: named (an object), or a command line (a list of its arguments, or a string)."""

MemberKind = Literal["resource", "script"]


class ScriptRefused(SkillError, TypeError, ValueError):
    """Raised if a script is not run because its arguments or its setup are wrong. The message may be shown to the model."""

    def __init__(self, message: str) -> None:
        super().__init__(message, code="script-arguments")


@dataclass(kw_only=True, eq=False, repr=False)
class SkillFrontmatter:
    """Name, description and other frontmatter fields of a skill. The constructor checks them; later assignments are not checked.

    The constructor raises `ValueError` if `name`, `description` or `compatibility` breaks the Agent Skills rules.
    """

    name: str
    description: str
    license: str | None = None
    compatibility: str | None = None
    allowed_tools: str | None = None
    """Names of tools, separated by spaces."""
    metadata: Mapping[str, str] | None = None
    """Further fields. The constructor copies them."""

    def __post_init__(self) -> None:
        fields = {"name": self.name, "description": self.description}
        if self.compatibility:
            fields["compatibility"] = self.compatibility
        for finding in check_fields(fields, self.name):
            if finding.code != "control-characters":
                raise ValueError(f"Skill {self.name!r}: {finding.message.partition(TOOLS_ONLY)[0]}")
        self.metadata = None if self.metadata is None else dict(self.metadata)


class _Member:
    """Base class of the resources and scripts of a skill, with a name and a description."""

    def __init__(self, *, name: str, description: str | None = None) -> None:
        """Store name and description. Raises `ValueError` for a blank name."""
        if not name.strip():
            kind = "resource" if isinstance(self, SkillResource) else "script"
            raise ValueError(f"The name of a {kind} cannot be empty.")
        self.name = name
        self.description = description


class SkillResource(_Member, ABC):
    """Base class of the resources of a skill: content that a model can read."""

    @abstractmethod
    async def read(self, **kwargs: object) -> object:
        """Return the content. `kwargs` are values that the host program sets for this agent run, never values from the model."""


class SkillScript(_Member, ABC):
    """Base class of the scripts of a skill: a program or function that a model can run."""

    @property
    def parameters_schema(self) -> JsonObject | None:
        """JSON Schema of the arguments; `None` if the script takes no arguments."""
        return None

    @abstractmethod
    async def run(self, skill: Skill, args: ScriptArguments = None, **kwargs: object) -> object:
        """Run the script of `skill` and return its result. `args` come from the model, `kwargs` from the program that runs the agent."""


MemberT = TypeVar("MemberT", SkillResource, SkillScript)


def _find(members: Sequence[MemberT], name: str) -> MemberT | None:
    wanted = spelled(name, [member.name for member in members])
    return next((member for member in members if member.name == wanted), None)


class Skill(ABC):
    """Base class of skills: instructions for one kind of work, with resources to read and scripts to run."""

    @property
    @abstractmethod
    def frontmatter(self) -> SkillFrontmatter:
        """Name, description and other fields of the skill. Models see name and description before they load the skill."""

    @abstractmethod
    async def get_content(self) -> str:
        """Return the text that a model reads when it loads the skill."""

    async def get_resource(self, name: str) -> SkillResource | None:
        """Return the resource with this name, ignoring case, or `None` if the skill has none. By default, `None`."""
        return None

    async def get_script(self, name: str) -> SkillScript | None:
        """Return the script with this name, ignoring case, or `None` if the skill has none. By default, `None`."""
        return None


class DefinedSkill(Skill):
    """A skill whose frontmatter, resources and scripts are declared, so that they can be listed without running the skill's code."""

    def __init__(
        self,
        frontmatter: SkillFrontmatter,
        resources: Sequence[SkillResource] | None = None,
        scripts: Sequence[SkillScript] | None = None,
    ) -> None:
        self._frontmatter = frontmatter
        self._resources = list(resources or ())
        self._scripts = list(scripts or ())

    @property
    def frontmatter(self) -> SkillFrontmatter:
        """Name, description and other fields of the skill. Models see name and description before they load the skill."""
        return self._frontmatter

    @property
    def resources(self) -> list[SkillResource]:
        """The resources of the skill, in the order in which they were added."""
        return list(self._resources)

    @property
    def scripts(self) -> list[SkillScript]:
        """The scripts of the skill, in the order in which they were added."""
        return list(self._scripts)

    async def get_resource(self, name: str) -> SkillResource | None:
        """Return the resource with this name, ignoring case, or `None`."""
        return _find(self.resources, name)

    async def get_script(self, name: str) -> SkillScript | None:
        """Return the script with this name, ignoring case, or `None`."""
        return _find(self.scripts, name)


async def use_member(skill: Skill, kind: MemberKind, name: str, args: ScriptArguments, host: Mapping[str, object]) -> object:
    """Read a resource of a skill or run a script of it, and return the result. The code of the skill can raise any exception.

    `args` are the model's arguments for a script. `host` has the values that the host program (the program that runs the agent) sets for
    the run.

    Raises:
        NotFound: The skill has no resource or script with this name.
    """
    if kind == "resource":
        if (resource := await skill.get_resource(name)) is not None:
            return await resource.read(**host)
    elif (script := await skill.get_script(name)) is not None:
        return await script.run(skill, args, **host)
    raise NotFound(kind, name)


def to_member(member: SkillResource | SkillScript) -> SkillMember:
    """Convert a resource or script to its description for models: name, description, and JSON Schema of the arguments."""
    parameters = member.parameters_schema if isinstance(member, SkillScript) else None
    return SkillMember(member.name, member.description or "", parameters)


def with_members(text: str, skill: DefinedSkill) -> str:
    """Return `text`, the text of a skill, followed by the lists of the skill's resources and scripts."""
    return text + member_blocks(map(to_member, skill.resources), map(to_member, skill.scripts))


def code_content(skill: DefinedSkill, instructions: str) -> str:
    """Return the text of a skill without a file: name, description and instructions as XML, and the lists of resources and scripts."""
    return with_members(code_text(skill.frontmatter.name, skill.frontmatter.description, instructions), skill)


class FileSkill(DefinedSkill):
    """A skill whose text is a whole `SKILL.md` file, including the frontmatter."""

    def __init__(
        self,
        *,
        frontmatter: SkillFrontmatter,
        content: str,
        path: str,
        resources: Sequence[SkillResource] | None = None,
        scripts: Sequence[SkillScript] | None = None,
    ) -> None:
        """Create a skill from the text `content` of its `SKILL.md`. `path` is the skill's folder, or the URL that it comes from."""
        super().__init__(frontmatter, resources, scripts)
        self._content = content
        self.path = path

    @property
    def content(self) -> str:
        """The text of the `SKILL.md` as it was read, without the lists of resources and scripts."""
        return self._content

    async def get_content(self) -> str:
        """Return the text of the `SKILL.md`, followed by the lists of resources and scripts."""
        return with_members(self._content, self)


@runtime_checkable
class SkillScriptRunner(Protocol):
    """Interface of a function that runs script files of skills, for example in a sandbox or a container."""

    def __call__(self, skill: FileSkill, script: FileSkillScript, args: ScriptArguments = None) -> object:
        """Run a script file of `skill`. Return the result for the model, or an awaitable of it.

        `args` are the arguments exactly as the model gave them.
        """
        ...


class FileSkillScript(SkillScript):
    """A script of a skill, stored as a file in the skill's folder. A `SkillScriptRunner` that the program provides runs the script."""

    def __init__(
        self,
        *,
        name: str,
        description: str | None = None,
        full_path: str,
        runner: SkillScriptRunner | None = None,
        root: str | None = None,
    ) -> None:
        """Create a script from the file `full_path`. Without `runner`, the script cannot run.

        The file must be below the folder `root` (by default the folder that contains the file), and the path from `root` to it must have no
        links.

        Raises:
            ValueError: The name is blank, or the path is not absolute.
        """
        super().__init__(name=name, description=description)
        if not os.path.isabs(full_path):
            raise ValueError(f"full_path must be an absolute path, not {full_path!r}.")
        self.full_path = str(Path(full_path))
        self._runner = runner
        self._root = root or os.path.dirname(self.full_path)

    @property
    def parameters_schema(self) -> JsonObject | None:
        """JSON Schema of the arguments of a script file: an array of strings, which are the arguments of a command line."""
        return dict(COMMAND_LINE)

    async def run(self, skill: Skill, args: ScriptArguments = None, **kwargs: object) -> object:
        """Run the script file with the runner, and return the runner's result.

        Raises:
            TypeError: `skill` is not a `FileSkill`.
            ValueError: The runner is missing, or the file cannot be read below `root` any more (`read_below`).
        """
        if not isinstance(skill, FileSkill):
            raise ScriptRefused(f"Script {self.name!r} is a file and needs a FileSkill, not {type(skill).__name__}.")
        if self._runner is None:
            raise ScriptRefused(f"Script {self.name!r} needs a runner; pass `script_runner` to the source of this skill.")
        await anyio.to_thread.run_sync(read_below, self._root, self.full_path)
        result = self._runner(skill, self, args)
        return await result if inspect.isawaitable(result) else result


def read_below(root: str, path: str) -> bytes:
    """Read a regular file below `root` without following any link, and return its bytes.

    Raises:
        ValueError: The file is not below `root`, is gone, is reached through a link, is not a regular file, has a second name (hard link),
            is too large, or changes while it is read.
    """
    segments = segments_below(os.path.abspath(root), os.path.abspath(path))
    if not segments:
        raise ValueError(f"{os.path.basename(path)!r} is outside the folder of its skill.")
    try:
        return read_file(root, segments)[0]
    except Changed:
        raise ValueError(f"{os.path.basename(path)!r} cannot be read: it is missing, not a regular file, or behind a link.") from None

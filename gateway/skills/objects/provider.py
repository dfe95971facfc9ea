"""`SkillsProvider`: gives an agent its skills: advertised first, loaded, read and run on demand."""

from __future__ import annotations

import base64
import html
import logging
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path
from typing import Annotated, Any, ClassVar, TypeVar

from pydantic import Field

from gateway.config.templates import fill_template
from gateway.errors import CODE_ERRORS, GatewayError, ToolFailed
from gateway.json_types import JsonObject
from gateway.policy.skill_tools import narrow_tools
from gateway.sessions.context import ContextProvider, SessionContext
from gateway.sessions.session import AgentSession, SupportsAgentRun
from gateway.skills.objects.files import SEARCH_DEPTH, FileFilter, FileSkillsSource
from gateway.skills.objects.members import ScriptRefused, SkillScriptRunner
from gateway.skills.objects.skill import Skill
from gateway.skills.objects.sources import (
    CachingSkillsSource,
    DeduplicatingSkillsSource,
    InMemorySkillsSource,
    SkillsSource,
    SkillsSourceContext,
    fetch,
)
from gateway.tools.base import Tool
from gateway.tools.function import ApprovalMode, FunctionTool
from gateway.tools.invocation import FunctionInvocationContext

logger = logging.getLogger(__name__)

ProviderT = TypeVar("ProviderT", bound="SkillsProvider")

RESOURCE_INSTRUCTIONS = "- Read what the skill refers to with `read_skill_resource`, by the names it lists."
RUNNER_INSTRUCTIONS = (
    "- Run its scripts with `run_skill_script`, by the names it lists; what a script takes goes into `args`, not beside it."
)
TEMPLATE = """\
You have skills: tested instructions for particular kinds of work.

<available_skills>
{skills}
</available_skills>

When a task matches a skill:
- Load it with `load_skill` before you act, and follow what it says.
{resource_instructions}
{runner_instructions}
Load only what you need, and each skill once."""

SkillName = Annotated[str, Field(description="The name of the skill.")]
ScriptArgs = Annotated[
    dict[str, Any] | list[str] | None,
    Field(
        description='What the script takes: an object of named arguments, such as {"length": 24}, '
        'or the words of a command line, such as ["in.txt", "--all"]; the skill says which.'
    ),
]


class SkillsProvider(ContextProvider):
    """Advertises the skills of a source and gives the agent the tools for them."""

    DEFAULT_SOURCE_ID: ClassVar[str] = "agent_skills"
    LOAD_SKILL_TOOL_NAME: ClassVar[str] = "load_skill"
    READ_SKILL_RESOURCE_TOOL_NAME: ClassVar[str] = "read_skill_resource"
    RUN_SKILL_SCRIPT_TOOL_NAME: ClassVar[str] = "run_skill_script"

    def __init__(
        self,
        source: SkillsSource | Sequence[Skill] | Skill,
        *,
        instruction_template: str | None = None,
        require_script_approval: bool = True,
        disable_caching: bool = False,
        cache_refresh_interval: timedelta | None = None,
        disable_load_skill_approval: bool = True,
        disable_read_skill_resource_approval: bool = True,
        disable_run_skill_script_approval: bool = False,
        narrow_to_skills: bool = False,
        source_id: str | None = None,
    ) -> None:
        """Skills handed in directly are freed of doubles and cached; a source of the caller's is used as it is.

        `instruction_template` must have `{skills}` and may have `{resource_instructions}` and `{runner_instructions}`;
        other braces are doubled. Scripts need a person's approval unless `require_script_approval=False` or
        `disable_run_skill_script_approval=True`; loading and reading need it where theirs is not disabled.
        With `narrow_to_skills` a run that loaded skills keeps only those of its tools that their `allowed-tools` name; a skill
        without the field keeps all, and no tool is ever added.

        Raises:
            TypeError: `source` is a path; `from_paths` takes those.
        """
        if isinstance(source, str | Path):
            raise TypeError(f"SkillsProvider takes skills or a source; for folders use SkillsProvider.from_paths({str(source)!r}).")
        super().__init__(source_id or self.DEFAULT_SOURCE_ID)
        if not isinstance(source, SkillsSource):
            leaf = InMemorySkillsSource([source] if isinstance(source, Skill) else source)
            kept = leaf if disable_caching else CachingSkillsSource(leaf, refresh_interval=cache_refresh_interval)
            source = DeduplicatingSkillsSource(kept)
        self._source = source
        self._template = instruction_template
        self._narrows = narrow_to_skills
        self._free = {
            self.LOAD_SKILL_TOOL_NAME: disable_load_skill_approval,
            self.READ_SKILL_RESOURCE_TOOL_NAME: disable_read_skill_resource_approval,
            self.RUN_SKILL_SCRIPT_TOOL_NAME: disable_run_skill_script_approval or not require_script_approval,
        }

    @classmethod
    def from_paths(
        cls: type[ProviderT],
        skill_paths: str | Path | Sequence[str | Path],
        *,
        script_runner: SkillScriptRunner | None = None,
        resource_extensions: Sequence[str] | None = None,
        script_extensions: Sequence[str] | None = None,
        search_depth: int = SEARCH_DEPTH,
        script_filter: FileFilter | None = None,
        resource_filter: FileFilter | None = None,
        resource_directories: Sequence[str] | None = None,
        script_directories: Sequence[str] | None = None,
        instruction_template: str | None = None,
        require_script_approval: bool = True,
        disable_caching: bool = False,
        cache_refresh_interval: timedelta | None = None,
        disable_load_skill_approval: bool = True,
        disable_read_skill_resource_approval: bool = True,
        disable_run_skill_script_approval: bool = False,
        narrow_to_skills: bool = False,
        source_id: str | None = None,
    ) -> ProviderT:
        """The skills below some folders; see `FileSkillsSource` and the constructor for what the arguments mean."""
        files: SkillsSource = FileSkillsSource(
            skill_paths,
            script_runner=script_runner,
            resource_extensions=resource_extensions,
            script_extensions=script_extensions,
            search_depth=search_depth,
            script_filter=script_filter,
            resource_filter=resource_filter,
            resource_directories=resource_directories,
            script_directories=script_directories,
        )
        if not disable_caching:
            files = CachingSkillsSource(files, refresh_interval=cache_refresh_interval)
        return cls(
            DeduplicatingSkillsSource(files),
            instruction_template=instruction_template,
            require_script_approval=require_script_approval,
            disable_load_skill_approval=disable_load_skill_approval,
            disable_read_skill_resource_approval=disable_read_skill_resource_approval,
            disable_run_skill_script_approval=disable_run_skill_script_approval,
            narrow_to_skills=narrow_to_skills,
            source_id=source_id,
        )

    @staticmethod
    def read_only_tools_auto_approval_rule(function_call: object) -> bool:
        """Approve loading and reading, for the approval middleware's list of rules."""
        names = (SkillsProvider.LOAD_SKILL_TOOL_NAME, SkillsProvider.READ_SKILL_RESOURCE_TOOL_NAME)
        return _is_local(function_call) and getattr(function_call, "name", None) in names

    @staticmethod
    def all_tools_auto_approval_rule(function_call: object) -> bool:
        """Approve loading, reading and running, for the approval middleware's list of rules."""
        is_script = _is_local(function_call) and getattr(function_call, "name", None) == SkillsProvider.RUN_SKILL_SCRIPT_TOOL_NAME
        return is_script or SkillsProvider.read_only_tools_auto_approval_rule(function_call)

    async def before_run(self, *, agent: SupportsAgentRun, session: AgentSession, context: SessionContext, state: JsonObject) -> None:
        """Add what is advertised and the three tools; nothing where there are no skills."""
        skills = await fetch(self._source, SkillsSourceContext(agent, session))
        if skills:
            context.extend_instructions(self.source_id, advertise(skills, self._template))
            context.extend_tools(self.source_id, self._tools(skills))

    def _tools(self, skills: Sequence[Skill]) -> list[Tool]:
        calls = _SkillCalls(skills, narrows=self._narrows)
        load, read, run = calls.load_skill, calls.read_skill_resource, calls.run_skill_script
        return [
            FunctionTool(
                load,
                description="Get the instructions of a skill, and what it offers.",
                approval_mode=self._mode(load.__name__),
                annotations={"readOnlyHint": True},
            ),
            FunctionTool(
                read,
                description="Read something that a loaded skill refers to.",
                approval_mode=self._mode(read.__name__),
                annotations={"readOnlyHint": True},
            ),
            FunctionTool(run, description="Run a script of a loaded skill.", approval_mode=self._mode(run.__name__)),
        ]

    def _mode(self, tool: str) -> ApprovalMode:
        return "never_require" if self._free[tool] else "always_require"


_SKILL_TOOLS = {
    SkillsProvider.LOAD_SKILL_TOOL_NAME,
    SkillsProvider.READ_SKILL_RESOURCE_TOOL_NAME,
    SkillsProvider.RUN_SKILL_SCRIPT_TOOL_NAME,
}
"""Names of the tools that narrowing never takes away."""


def advertise(skills: Sequence[Skill], template: str | None = None) -> str:
    """The instructions that name the skills, sorted, their texts XML-escaped.

    Raises:
        ValueError: `template` lacks `{skills}`, or has braces that are neither a known name nor doubled.
    """
    lines: list[str] = []
    for skill in sorted(skills, key=lambda s: s.frontmatter.name):
        name, description = html.escape(skill.frontmatter.name), html.escape(skill.frontmatter.description)
        lines += ["  <skill>", f"    <name>{name}</name>", f"    <description>{description}</description>", "  </skill>"]
    text = "\n".join(lines)
    return fill_template(
        template or TEMPLATE, text, resource_instructions=RESOURCE_INSTRUCTIONS, runner_instructions=RUNNER_INSTRUCTIONS
    )


class _SkillCalls:
    """The tools, over the skills of one run. What is missing is said in words; what fails is an error result."""

    def __init__(self, skills: Sequence[Skill], *, narrows: bool) -> None:
        self._skills = {skill.frontmatter.name.casefold(): skill for skill in reversed(skills)}
        self._narrows = narrows
        self._wishes: dict[str, str | None] = {}
        """`allowed-tools` of the loaded skills, by skill."""
        self._taken: dict[str, Tool] = {}
        """Tools that were taken from the run, by name."""

    async def load_skill(self, ctx: FunctionInvocationContext, skill_name: SkillName) -> str:
        skill = self._skills.get(skill_name.casefold())
        if skill is None:
            return _missing_skill(skill_name)
        try:
            content = await skill.get_content()
        except GatewayError:
            raise
        except CODE_ERRORS as error:  # the skill's own code; the model learns that it failed, the log why
            raise _failed(f"load skill {skill_name!r}", error) from error
        if self._narrows and ctx.tools is not None:
            self._wishes[skill.frontmatter.name] = skill.frontmatter.allowed_tools
            self._narrow(ctx.tools)
        return content

    def _narrow(self, live: list[Tool]) -> None:
        """Keep the tools that some loaded skill names, of all that the run has had, and the tools for skills."""
        known = {**self._taken, **{tool.definition.name: tool for tool in live}}
        kept = narrow_tools(known, list(self._wishes.values())) | _SKILL_TOOLS
        self._taken = {name: tool for name, tool in known.items() if name not in kept}
        live[:] = [tool for name, tool in known.items() if name in kept]

    async def read_skill_resource(
        self,
        ctx: FunctionInvocationContext,
        skill_name: SkillName,
        resource_name: Annotated[str, Field(description="The resource, as the skill lists it.")],
    ) -> object:
        skill = self._skills.get(skill_name.casefold())
        if skill is None:
            return _missing_skill(skill_name)
        if not resource_name.strip():
            return "Error: The resource name is empty."
        try:
            resource = await skill.get_resource(resource_name)
            if resource is None:
                return f"Error: Resource {resource_name!r} not found in skill {skill_name!r}."
            return _readable(await resource.read(**ctx.kwargs))
        except GatewayError:
            raise
        except CODE_ERRORS as error:  # the skill's own code
            raise _failed(f"read resource {resource_name!r} of skill {skill_name!r}", error) from error

    async def run_skill_script(
        self,
        ctx: FunctionInvocationContext,
        skill_name: SkillName,
        script_name: Annotated[str, Field(description="The script, as the skill lists it, with its folder.")],
        args: ScriptArgs = None,
    ) -> object:
        skill = self._skills.get(skill_name.casefold())
        if skill is None:
            return _missing_skill(skill_name)
        if not script_name.strip():
            return "Error: The script name is empty."
        try:
            script = await skill.get_script(script_name)
            if script is None:
                return f"Error: Script {script_name!r} not found in skill {skill_name!r}."
            return _readable(await script.run(skill, args, **ctx.kwargs))
        except GatewayError:
            raise
        except CODE_ERRORS as error:  # the script's own code, or the program's runner
            raise _failed(f"run script {script_name!r} of skill {skill_name!r}", error) from error


def _missing_skill(name: str) -> str:
    return f"Error: Skill {name!r} not found." if name.strip() else "Error: The skill name is empty."


def _failed(what: str, error: BaseException) -> ToolFailed:
    logger.error("could not %s", what, exc_info=error)
    reason = f": {error}" if isinstance(error, ScriptRefused) else "."
    return ToolFailed(f"Error: Failed to {what}{reason}")


def _readable(value: object) -> object:
    """Bytes as text where they are, else as base64; anything else as it is."""
    if not isinstance(value, bytes | bytearray):
        return value
    try:
        return bytes(value).decode("utf-8")
    except UnicodeDecodeError:
        return f"{len(value)} bytes, base64: {base64.b64encode(value).decode()}"


def _is_local(function_call: object) -> bool:
    return not getattr(function_call, "hosted", False)

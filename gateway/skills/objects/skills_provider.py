"""`SkillsProvider`: names a source's skills in an agent's instructions and adds the tools to load, read and run them.

Decided: the provider has tools of its own beside `skill_tools` and `run_tool`. Because agent-framework defines their schemas and error
texts, and passes values of the host program to the functions of a skill. Revisit when agent-framework's skills have digests and URIs.
"""

from __future__ import annotations

import base64
import logging
from collections.abc import Awaitable, Callable, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Annotated, Any, ClassVar, TypeVar

from pydantic import Field

from gateway.errors import CODE_ERRORS, GatewayError, ToolFailed
from gateway.json_types import JsonObject
from gateway.policy.tool_narrowing import narrow_tools
from gateway.sessions.session import AgentSession, SupportsAgentRun
from gateway.sessions.session_context import ContextProvider, SessionContext
from gateway.skills.objects.file_source import SEARCH_DEPTH, FileFilter, FileSkillsSource
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
from gateway.skills.render import provider_instructions
from gateway.tools.base import Tool
from gateway.tools.function import ApprovalMode, FunctionTool
from gateway.tools.invocation import FunctionInvocationContext

logger = logging.getLogger(__name__)

ProviderT = TypeVar("ProviderT", bound="SkillsProvider")
ResultT = TypeVar("ResultT")

SkillName = Annotated[str, Field(description="The name of the skill.")]
ScriptArgs = Annotated[
    dict[str, Any] | list[str] | None,
    Field(
        description='Arguments of the script: an object of named arguments, such as {"length": 24}, '
        'or the words of a command line, such as ["in.txt", "--all"]; the skill says which.'
    ),
]


class SkillsProvider(ContextProvider):
    """Names the skills of a source in the instructions and gives the agent the tools for them."""

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
        """Skills that are passed directly are deduplicated and cached; a `SkillsSource` is used as it is.

        `instruction_template` must have `{skills}` and may have `{resource_instructions}` and `{runner_instructions}`; all other braces
        are doubled. A person must approve each script unless `require_script_approval=False` or `disable_run_skill_script_approval=True`.
        Loading a skill (reading a file) needs approval only if `disable_load_skill_approval` (`disable_read_skill_resource_approval`) is
        false. With `narrow_to_skills`, a run that has loaded skills keeps only those of its tools that the skills' `allowed-tools` name. A
        skill without the field keeps all tools; no tool is ever added.

        Raises:
            TypeError: `source` is a path; use `from_paths`.
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
        """Create a provider for the skills below some folders. For the arguments see `FileSkillsSource` and the constructor."""
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
        """Return whether a tool call only loads a skill or reads a resource. A rule by which the approval middleware approves calls."""
        names = (SkillsProvider.LOAD_SKILL_TOOL_NAME, SkillsProvider.READ_SKILL_RESOURCE_TOOL_NAME)
        return _is_local(function_call) and getattr(function_call, "name", None) in names

    @staticmethod
    def all_tools_auto_approval_rule(function_call: object) -> bool:
        """Return whether a tool call is to one of the three skill tools. A rule by which the approval middleware approves calls."""
        is_script = _is_local(function_call) and getattr(function_call, "name", None) == SkillsProvider.RUN_SKILL_SCRIPT_TOOL_NAME
        return is_script or SkillsProvider.read_only_tools_auto_approval_rule(function_call)

    async def before_run(self, *, agent: SupportsAgentRun, session: AgentSession, context: SessionContext, state: JsonObject) -> None:
        """Add the names of the skills to the instructions and the three skill tools to the run; nothing if the source has no skills."""
        skills = await fetch(self._source, SkillsSourceContext(agent, session))
        if skills:
            named = [(skill.frontmatter.name, skill.frontmatter.description) for skill in skills]
            context.extend_instructions(self.source_id, provider_instructions(named, self._template))
            context.extend_tools(self.source_id, self._tools(skills))

    def _tools(self, skills: Sequence[Skill]) -> list[Tool]:
        calls = _SkillCalls(skills, narrows=self._narrows)
        load, read, run = calls.load_skill, calls.read_skill_resource, calls.run_skill_script
        return [
            FunctionTool(
                load,
                description="Get the instructions of a skill, and the names of its resources and scripts.",
                approval_mode=self._mode(load.__name__),
                annotations={"readOnlyHint": True},
            ),
            FunctionTool(
                read,
                description="Read a resource that a loaded skill refers to.",
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
"""Names of the skill tools, which `_narrow` never removes."""


class _SkillCalls:
    """The functions of the three skill tools, for one run. They answer an unknown name with a text, and a failure with an error result."""

    def __init__(self, skills: Sequence[Skill], *, narrows: bool) -> None:
        self._skills = {skill.frontmatter.name.casefold(): skill for skill in reversed(skills)}
        self._narrows = narrows
        self._wishes: dict[str, str | None] = {}
        """Name of each skill loaded so far → its `allowed-tools`."""
        self._removed: dict[str, Tool] = {}
        """Tools removed from the run, by name."""

    async def load_skill(self, ctx: FunctionInvocationContext, skill_name: SkillName) -> str:
        skill = self._skills.get(skill_name.casefold())
        if skill is None:
            return _missing_skill(skill_name)
        content = await _run_code(f"load skill {skill_name!r}", skill.get_content)
        if self._narrows and ctx.tools is not None:
            self._wishes[skill.frontmatter.name] = skill.frontmatter.allowed_tools
            self._narrow(ctx.tools)
        return content

    def _narrow(self, live: list[Tool]) -> None:
        """Reduce the tools of the run to the skill tools and those that a loaded skill names. Tools removed before can come back."""
        known = {**self._removed, **{tool.definition.name: tool for tool in live}}
        kept = narrow_tools(known, list(self._wishes.values())) | _SKILL_TOOLS
        self._removed = {name: tool for name, tool in known.items() if name not in kept}
        live[:] = [tool for name, tool in known.items() if name in kept]

    async def read_skill_resource(
        self,
        ctx: FunctionInvocationContext,
        skill_name: SkillName,
        resource_name: Annotated[str, Field(description="The resource, as the skill lists it.")],
    ) -> object:
        async def read(skill: Skill) -> object:
            resource = await skill.get_resource(resource_name)
            return _MISSING if resource is None else await resource.read(**ctx.kwargs)

        return await self._use(skill_name, "read", "resource", resource_name, read)

    async def run_skill_script(
        self,
        ctx: FunctionInvocationContext,
        skill_name: SkillName,
        script_name: Annotated[str, Field(description="The script, as the skill lists it, with its folder.")],
        args: ScriptArgs = None,
    ) -> object:
        async def run(skill: Skill) -> object:
            script = await skill.get_script(script_name)
            return _MISSING if script is None else await script.run(skill, args, **ctx.kwargs)

        return await self._use(skill_name, "run", "script", script_name, run)

    async def _use(self, skill_name: str, verb: str, kind: str, name: str, use: Callable[[Skill], Awaitable[object]]) -> object:
        skill = self._skills.get(skill_name.casefold())
        if skill is None:
            return _missing_skill(skill_name)
        if not name.strip():
            return f"Error: The {kind} name is empty."
        result = await _run_code(f"{verb} {kind} {name!r} of skill {skill_name!r}", lambda: use(skill))
        return f"Error: {kind.capitalize()} {name!r} not found in skill {skill_name!r}." if result is _MISSING else _readable(result)


_MISSING = object()
"""Returned for a resource or script that the skill does not have."""


async def _run_code(what: str, work: Callable[[], Awaitable[ResultT]]) -> ResultT:
    """Run the code of a skill or of the program's runner. A failure is logged; the model gets a short reason (`ToolFailed`)."""
    try:
        return await work()
    except GatewayError:
        raise
    except CODE_ERRORS as error:
        logger.error("skill code failed action=%r", what, exc_info=error)
        reason = f": {error}" if isinstance(error, ScriptRefused) else "."
        raise ToolFailed(f"Error: Failed to {what}{reason}") from error


def _missing_skill(name: str) -> str:
    return f"Error: Skill {name!r} not found." if name.strip() else "Error: The skill name is empty."


def _readable(value: object) -> object:
    """Return UTF-8 bytes as text, other bytes as base64, and any other value as it is."""
    if not isinstance(value, bytes | bytearray):
        return value
    try:
        return bytes(value).decode("utf-8")
    except UnicodeDecodeError:
        return f"{len(value)} bytes, base64: {base64.b64encode(value).decode()}"


def _is_local(function_call: object) -> bool:
    return not getattr(function_call, "hosted", False)

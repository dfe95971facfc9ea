"""`SkillsProvider`: a context provider that lists skills in an agent's instructions and adds tools to load, read and run them.

The tools look up, read and run the members of a skill with `skill.use_member`, as the gateway's index does for skills in code.

Decided: the provider has its own tools. Because: agent-framework defines the schemas and error texts of these tools, and a program may
derive its own class from `Skill`. An object of such a class need not list its members, its text is returned unchanged, and its results may
have any type. Instead of: the tools of `skill_tools` and `run_tool`, which use a `SkillLibrary`. Revisit when: agent-framework's skills
have digests and URIs.
"""

from __future__ import annotations

import base64
import logging
from collections.abc import Callable, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, TypeVar

from pydantic import Field

from gateway.errors import CODE_ERRORS, GatewayError, NotFound, ToolFailed
from gateway.json_types import JsonObject
from gateway.policy.tool_narrowing import narrow_tools
from gateway.sessions.session import AgentSession, SupportsAgentRun
from gateway.sessions.session_context import ContextProvider, SessionContext
from gateway.skills.objects.file_source import SEARCH_DEPTH, FileFilter, FileSkillsSource
from gateway.skills.objects.skill import MemberKind, ScriptArguments, ScriptRefused, Skill, SkillScriptRunner, use_member
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
from gateway.tools.function import FunctionTool
from gateway.tools.invocation import FunctionInvocationContext
from gateway.tools.run_state_tool import RunStateTool

logger = logging.getLogger(__name__)

ProviderT = TypeVar("ProviderT", bound="SkillsProvider")

SkillName = Annotated[str, Field(description="The name of the skill.")]
ScriptArgs = Annotated[
    dict[str, Any] | list[str] | None,
    Field(
        description='Arguments of the script: an object of named arguments, such as {"length": 24}, '
        'or the words of a command line, such as ["in.txt", "--all"]; the skill says which.'
    ),
]


class SkillsProvider(ContextProvider):
    """Context provider that lists skills in an agent's instructions, and gives the agent tools to load, read and run them."""

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
        """Create a provider for `source`: skills, which are deduplicated and cached, or a `SkillsSource`, which is used unchanged.

        Given skills are cached for `cache_refresh_interval`, by default for good, or with `disable_caching` not at all.

        `instruction_template` must have `{skills}` and may have `{resource_instructions}` and `{runner_instructions}`; all other braces
        must be doubled. A person must approve each run of a script unless `require_script_approval=False` or
        `disable_run_skill_script_approval=True`. Loading a skill needs approval only with `disable_load_skill_approval=False`, and reading
        a file only with `disable_read_skill_resource_approval=False`. With `narrow_to_skills`, an agent run that has loaded skills keeps
        only those of its tools that the skills' `allowed-tools` name. A skill without this field keeps all tools; no tool is ever added.

        Raises:
            TypeError: `source` is a path; use `from_paths`.
        """
        if isinstance(source, str | Path):
            raise TypeError(f"SkillsProvider takes skills or a source; for folders use SkillsProvider.from_paths({str(source)!r}).")
        super().__init__(source_id or self.DEFAULT_SOURCE_ID)
        if not isinstance(source, SkillsSource):
            given = InMemorySkillsSource([source] if isinstance(source, Skill) else source)
            source = _cached(given, disabled=disable_caching, refresh_interval=cache_refresh_interval)
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
        """Create a provider for the skills in the folders `skill_paths`.

        The arguments up to `script_directories` have the meaning of `FileSkillsSource`'s arguments; the others, of the constructor's
        arguments.
        """
        files = FileSkillsSource(
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
        return cls(
            _cached(files, disabled=disable_caching, refresh_interval=cache_refresh_interval),
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
        """Return whether a tool call loads a skill or reads one of its files.

        The approval middleware of agents accepts this function as a rule: calls for which it returns true need no approval.
        """
        return _is_call_of(_READING_TOOLS, function_call)

    @staticmethod
    def all_tools_auto_approval_rule(function_call: object) -> bool:
        """Return whether a tool call is to one of the three skill tools (load a skill, read its files, run its scripts).

        The approval middleware of agents accepts this function as a rule: calls for which it returns true need no approval.
        """
        return _is_call_of(_SKILL_TOOLS, function_call)

    async def before_run(self, *, agent: SupportsAgentRun, session: AgentSession, context: SessionContext, state: JsonObject) -> None:
        """Add the list of skills to the instructions of an agent run, and the three skill tools to its tools.

        If the source has no skills, nothing is added.
        """
        skills = await fetch(self._source, SkillsSourceContext(agent, session))
        if skills:
            named = [(skill.frontmatter.name, skill.frontmatter.description) for skill in skills]
            context.extend_instructions(self.source_id, provider_instructions(named, self._template))
            context.extend_tools(self.source_id, self._tools(skills))

    def _tools(self, skills: Sequence[Skill]) -> list[Tool]:
        calls = _SkillCalls(skills, narrows=self._narrows)
        described: list[tuple[Callable[..., Any], str]] = [
            (calls.load_skill, "Get the instructions of a skill, and the names of its resources and scripts."),
            (calls.read_skill_resource, "Read a resource that a loaded skill refers to."),
            (calls.run_skill_script, "Run a script of a loaded skill."),
        ]
        return [
            (RunStateTool if call.__name__ in _READING_TOOLS else FunctionTool)(  # `load_skill` may remove tools from the run
                call,
                description=description,
                approval_mode="never_require" if self._free[call.__name__] else "always_require",
                annotations={"readOnlyHint": True} if call.__name__ in _READING_TOOLS else None,
            )
            for call, description in described
        ]


_READING_TOOLS = frozenset({SkillsProvider.LOAD_SKILL_TOOL_NAME, SkillsProvider.READ_SKILL_RESOURCE_TOOL_NAME})
_SKILL_TOOLS = _READING_TOOLS | {SkillsProvider.RUN_SKILL_SCRIPT_TOOL_NAME}
"""Names of the three skill tools (load, read, run), which stay available when a loaded skill limits the tools of an agent run."""


class _SkillCalls:
    """The functions of the three skill tools (load a skill, read its files, run its scripts), for one agent run.

    The functions return an error text for an unknown name, and raise `ToolFailed` if code of a skill fails.
    """

    def __init__(self, skills: Sequence[Skill], *, narrows: bool) -> None:
        self._skills = {skill.frontmatter.name.casefold(): skill for skill in reversed(skills)}
        self._narrows = narrows
        self._wishes: dict[str, str | None] = {}
        """Name of each skill that the run has loaded → the skill's `allowed-tools`, or `None`."""
        self._removed: dict[str, Tool] = {}
        """Name → tool, for the tools that loaded skills have removed from the run."""

    async def load_skill(self, ctx: FunctionInvocationContext, skill_name: SkillName) -> object:
        return await self._use(ctx, "load", "skill", skill_name, skill_name)

    async def read_skill_resource(
        self,
        ctx: FunctionInvocationContext,
        skill_name: SkillName,
        resource_name: Annotated[str, Field(description="The resource, as the skill lists it.")],
    ) -> object:
        return await self._use(ctx, "read", "resource", resource_name, skill_name)

    async def run_skill_script(
        self,
        ctx: FunctionInvocationContext,
        skill_name: SkillName,
        script_name: Annotated[str, Field(description="The script, as the skill lists it, with its folder.")],
        args: ScriptArgs = None,
    ) -> object:
        return await self._use(ctx, "run", "script", script_name, skill_name, args)

    async def _load(self, skill: Skill, ctx: FunctionInvocationContext) -> str:
        content = await skill.get_content()
        if self._narrows and ctx.tools is not None:
            self._wishes[skill.frontmatter.name] = skill.frontmatter.allowed_tools
            self._narrow(ctx.tools)
        return content

    def _narrow(self, live: list[Tool]) -> None:
        """Reduce `live`, the tools of the agent run, to the skill tools and the tools that loaded skills allow.

        A tool that was removed earlier is added again if a skill loaded later allows it.
        """
        known = {**self._removed, **{tool.definition.name: tool for tool in live}}
        kept = narrow_tools(known, list(self._wishes.values())) | _SKILL_TOOLS
        self._removed = {name: tool for name, tool in known.items() if name not in kept}
        live[:] = [tool for name, tool in known.items() if name in kept]

    async def _use(
        self,
        ctx: FunctionInvocationContext,
        verb: str,
        kind: Literal["skill"] | MemberKind,
        name: str,
        skill_name: str,
        args: ScriptArguments = None,
    ) -> object:
        """Load a skill, read one of its resources or run one of its scripts, and return the result.

        `kind` and `name` identify the skill, resource or script. For an unknown or empty name, return an error text.

        Raises:
            ToolFailed: Code of the skill or of the host program's script runner failed, which is logged, or refused the arguments; the
                text gives a short reason to the model.
            GatewayError: Such code raised it; it is passed on unchanged.
        """
        skill = self._skills.get(skill_name.casefold())
        if skill is None and skill_name.strip():
            return f"Error: Skill {skill_name!r} not found."
        if skill is None or not name.strip():
            return f"Error: The {kind if skill is not None else 'skill'} name is empty."
        action = f"{verb} {kind} {name!r}" + ("" if kind == "skill" else f" of skill {skill_name!r}")
        try:
            return _readable(await (self._load(skill, ctx) if kind == "skill" else use_member(skill, kind, name, args, ctx.kwargs)))
        except CODE_ERRORS as error:
            if isinstance(error, NotFound) and (error.kind, error.name) == (kind, name):
                return f"Error: {kind.capitalize()} {name!r} not found in skill {skill_name!r}."
            if isinstance(error, GatewayError) and not isinstance(error, ScriptRefused):
                raise
            logger.error("skill code failed action=%r", action, exc_info=error)
            reason = f": {error}" if isinstance(error, ScriptRefused) else "."
            raise ToolFailed(f"Error: Failed to {action}{reason}") from error


def _readable(value: object) -> object:
    """Convert bytes to text: UTF-8 is decoded, other bytes become base64. Any other value is returned unchanged."""
    if not isinstance(value, bytes | bytearray):
        return value
    try:
        return bytes(value).decode("utf-8")
    except UnicodeDecodeError:
        return f"{len(value)} bytes, base64: {base64.b64encode(value).decode()}"


def _is_call_of(names: frozenset[str], function_call: object) -> bool:
    return not getattr(function_call, "hosted", False) and getattr(function_call, "name", None) in names


def _cached(source: SkillsSource, *, disabled: bool, refresh_interval: timedelta | None) -> SkillsSource:
    return DeduplicatingSkillsSource(source if disabled else CachingSkillsSource(source, refresh_interval=refresh_interval))

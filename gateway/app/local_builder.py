"""`LocalBuilder`: builds the local sources of tools: skills, Python functions, agents and workflows.

The package of a kind of source is imported when the first source of this kind is built. `catalog.local_sources` decides when a source is
built.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from gateway.catalog.local_sources import LocalKind, LocalSources, LocalToolSource, ServedSkills
from gateway.config.load import LoadedConfig
from gateway.config.policies import SkillFilter
from gateway.gate.acceptance import Acceptance
from gateway.gate.function_rules import FunctionRules
from gateway.gate.root_rules import RootRules
from gateway.policy.skill_policy import judge_skill
from gateway.storage.records import Records
from gateway.telemetry.gateway_events import EventStream
from gateway.tools.toolbox import ToolBox

if TYPE_CHECKING:
    from gateway.agents.source import AgentSource
    from gateway.chat.model_resolver import ModelResolver
    from gateway.skills.source import SkillSource
    from gateway.workflows.source import WorkflowSource


@dataclass(frozen=True, slots=True)
class LocalBuilder:
    """Builds the local sources of tools: skills, Python functions, agents and workflows. The fields are objects that the sources use."""

    toolbox: ToolBox
    """Finds the tools that agents and workflows use."""
    models: Callable[[], ModelResolver]
    """Function that returns the gateway's model resolver, which finds the chat client for a model's name, such as `openai:gpt-5-mini`."""
    records: Records
    """Stores the sessions of agents, and the questions of workflows that people have not answered yet."""
    state_folder: Path
    """The folder in which the gateway stores its data. The index of skills is cached in its subfolder `skills`."""
    events: EventStream
    """Receives events of the built sources, such as a run of a skill's script or a person's approval, and passes them to the audit log."""
    acceptance: Acceptance
    """Decides for which files of agents and workflows the gateway may import Python modules.

    A file that is new or changed after the gateway's start waits until a person accepts it, also after a restart; other files may.
    """

    def build(self, kind: LocalKind, loaded: LoadedConfig, roots: RootRules, local: LocalSources) -> LocalToolSource:
        """Build a new source of the given kind from the configuration `loaded`. Implements `LocalSourceBuilder`.

        `roots` decides which folders agents may use. `local` has the gateway's current local sources, which the new source may use: agents
        load skills from the source of skills, for example.
        """
        match kind:
            case "skill":
                return self._skills(loaded)
            case "function":
                from gateway.tools.functions_source import FunctionSource

                return FunctionSource(loaded.config.expose.functions, base_dir=loaded.base_dir, previous=local.functions)
            case "agent":
                return self._agents(loaded, roots, local)
            case "workflow":
                return self._workflows(loaded, local)

    def _workflows(self, loaded: LoadedConfig, local: LocalSources) -> WorkflowSource:
        from gateway.gate.approvals import Approvals
        from gateway.workflows.source import WorkflowSource

        workflows = WorkflowSource(
            [Path(path) for path in loaded.config.expose.agents],
            toolbox=self.toolbox,
            base_dir=loaded.base_dir,
            forms=Approvals(self.records, self.events),
            rules=self._rules(loaded, local),
        )
        workflows.judge_files(self.acceptance.refusal)
        return workflows

    def _rules(self, loaded: LoadedConfig, local: LocalSources) -> FunctionRules:
        return FunctionRules(loaded.config.policies.get, local.names_of, self.events)

    def _skills(self, loaded: LoadedConfig) -> SkillSource:
        from gateway.skills.source import SkillRules, SkillSource

        wanted = loaded.config.skills
        rules = loaded.config.policy("skill").skills
        scripts = code = None
        if wanted.scripts.enabled:
            from gateway.skills.scripts import ScriptRunner

            scripts = ScriptRunner(wanted.scripts, os.environ)
        if wanted.objects:
            from gateway.skills.code import CodeSkills

            code = CodeSkills(wanted.objects, base_dir=loaded.base_dir, strict=wanted.strict)
        paths = [loaded.base_dir / path for path in loaded.config.expose.skills]
        return SkillSource(
            paths,
            strict=wanted.strict,
            refresh_seconds=wanted.refresh_seconds,
            scripts=scripts,
            state_folder=self.state_folder / "skills",
            code=code,
            events=self.events,
            rules=SkillRules(
                keeps=partial(judge_skill, rules=rules) if rules != SkillFilter() else None,
                signed=wanted.signatures,
                instruction_template=wanted.instruction_template,
            ),
        )

    def _agents(self, loaded: LoadedConfig, roots: RootRules, local: LocalSources) -> AgentSource:
        from gateway.agents.conversations import ConversationLimits, Conversations
        from gateway.agents.source import AgentSource

        kept, base = loaded.config.sessions, loaded.base_dir
        limits = ConversationLimits(ttl_seconds=kept.ttl_seconds, max_per_caller=kept.max_per_caller, wait_seconds=kept.wait_seconds)
        source = AgentSource(
            [base / path for path in loaded.config.expose.agents],
            toolbox=self.toolbox,
            models=self.models(),
            skills=ServedSkills(local),
            environ=os.environ,
            conversations=Conversations(self.records, limits),
            base_dir=base,
            settings=loaded.config.agents,
        )
        source.judge_folders(roots)
        source.judge_files(self.acceptance.refusal)
        source.judge_code(self._rules(loaded, local))
        return source

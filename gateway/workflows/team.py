"""`TeamPlan`: builds the graph of a workflow file that defines an orchestration of agents, with the builders of `orchestrations`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

from gateway.errors import ConfigError, WorkflowInvalid
from gateway.gate.function_rules import FunctionRules
from gateway.tools.base import Tool
from gateway.tools.context import CallContext
from gateway.workflows.agent_executor import serve_call
from gateway.workflows.definition import WorkflowFile
from gateway.workflows.field_types import as_selection
from gateway.workflows.gated_functions import Reference, admit, gated_function, import_named
from gateway.workflows.orchestrations.concurrent import ConcurrentBuilder
from gateway.workflows.orchestrations.group_chat import GroupChatBuilder, GroupChatState
from gateway.workflows.orchestrations.handoff import HandoffBuilder
from gateway.workflows.orchestrations.magentic import MagenticBuilder
from gateway.workflows.orchestrations.magentic_manager import StandardMagenticManager
from gateway.workflows.orchestrations.sequential import SequentialBuilder
from gateway.workflows.team_definition import (
    TEAM_FUNCTIONS,
    ConcurrentTeam,
    GroupChatTeam,
    HandoffTeam,
    MagenticTeam,
    SequentialTeam,
    Team,
    id_of,
    pattern_of,
)
from gateway.workflows.team_rules import team_key
from gateway.workflows.tool_agent import ToolAgent
from gateway.workflows.workflow import Workflow

Functions = Mapping[str, Callable[..., Any]]
"""Key of the orchestration in the file (such as `aggregator`) → Python function that this key names, wrapped so that calls pass the gate
(policy, approval, time limit).
"""


@dataclass(frozen=True, slots=True)
class TeamPlan:
    """An orchestration (agents that work together by a predefined pattern) of a workflow file, with the imported functions that it names.

    Each call builds a graph from the plan. Concurrent calls share the plan.
    """

    file: WorkflowFile
    team: Team
    functions: Mapping[str, Reference] = field(default_factory=dict[str, Reference])
    """Key of the orchestration in the file (such as `aggregator`) → imported Python function that this key names."""

    @classmethod
    async def prepare(cls, file: WorkflowFile, team: Team, *, base_dir: Path, rules: FunctionRules | None = None) -> TeamPlan:
        """Import the Python functions that the orchestration names, and return the plan. The folder `base_dir` is searched first.

        `rules` decide which Python functions the file may run.

        Raises:
            WorkflowInvalid: An object cannot be imported, may not run, or is not a function; one problem per line.
        """
        functions: dict[str, Reference] = {}
        problems: list[str] = []
        for key in TEAM_FUNCTIONS:
            reference: str | None = getattr(team, key, None)
            if reference is None or reference == "round-robin":
                continue
            path = f"{team_key(file)}.{key}"
            try:
                found = await import_named(file, reference, base_dir, rules)
                admit(file, reference, found, rules)
            except (ConfigError, WorkflowInvalid) as error:
                problems.append(f"{path}: {error}")
                continue
            if callable(found):
                functions[key] = Reference(reference, found)
            else:
                problems.append(f"{path}: {reference} is {type(found).__name__}, not a function.")
        if problems:
            raise WorkflowInvalid("\n".join(problems))
        return cls(file, team, functions)

    @property
    def patterns(self) -> dict[str, str]:
        """Id of each participant, orchestrator and manager → name of the tool, as `source/tool`, whose results are its answers."""
        needed = {id_of(item): pattern_of(item) for item in self.team.participants}
        leader = self._leader
        return {**needed, leader: f"agent/{leader}"} if leader is not None else needed

    @property
    def _leader(self) -> str | None:
        if isinstance(self.team, GroupChatTeam):
            return self.team.orchestrator
        return self.team.manager if isinstance(self.team, MagenticTeam) else None

    def build(self, tools: Mapping[str, Tool], call: CallContext) -> Workflow:
        """Build a workflow for one run that serves the tool call `call`. `tools` are the tools that `patterns` names, by the same ids.

        Raises:
            ToolFailed: The tool of a participant, orchestrator or manager has no text argument.
        """
        agents = [
            ToolAgent(tools[id_of(item)], name=id_of(item), has_judgement=pattern_of(item).startswith("agent/"))
            for item in self.team.participants
        ]
        functions = {key: gated_function(reference, call) for key, reference in self.functions.items()}
        workflow = self._build(agents, tools, functions)
        workflow.name, workflow.description = self.file.name, self.file.description
        return workflow

    def _build(self, agents: list[ToolAgent], tools: Mapping[str, Tool], functions: Functions) -> Workflow:
        team, outputs, others = self.team, as_selection(self.file.output_from), as_selection(self.file.intermediate_output_from)
        if outputs is None and isinstance(others, str):
            # For a builder, `all` or `all_other` without `output_from` means no outputs; in a file it does not change the outputs.
            if isinstance(team, SequentialTeam):
                outputs, others = [id_of(team.participants[-1])], "all_other"
            elif isinstance(team, HandoffTeam):
                outputs, others = "all", None
        common: dict[str, Any] = {
            "participants": agents, "name": self.file.name, "output_from": outputs, "intermediate_output_from": others
        }  # fmt: skip
        if isinstance(team, SequentialTeam):
            return _reviewed(SequentialBuilder(**common, chain_only_agent_responses=team.answers_only), team.review).build()
        if isinstance(team, ConcurrentTeam):
            concurrent = _reviewed(ConcurrentBuilder(**common), team.review)
            aggregator = functions.get("aggregator")
            return (concurrent.with_aggregator(aggregator) if aggregator is not None else concurrent).build()
        if isinstance(team, GroupChatTeam):
            return self._group_chat(team, common, tools, functions)
        if isinstance(team, HandoffTeam):
            return self._handoff(team, common, functions)
        manager = _Manager(
            self._lead(tools), max_stall_count=team.max_stalls, max_reset_count=team.max_resets, max_round_count=team.max_rounds
        )
        return MagenticBuilder(**common, manager=manager, enable_plan_review=team.review_plan).build()

    def _lead(self, tools: Mapping[str, Tool]) -> ToolAgent:
        name = cast("str", self._leader)
        return ToolAgent(tools[name], name=name, has_judgement=True)

    def _group_chat(self, team: GroupChatTeam, common: dict[str, Any], tools: Mapping[str, Tool], functions: Functions) -> Workflow:
        chooser: dict[str, Any] = (
            {"orchestrator_agent": self._lead(tools)}
            if team.orchestrator is not None
            else {"selection_func": functions.get("selection", _in_turn)}
        )
        builder = GroupChatBuilder(
            **common, **chooser, max_rounds=team.max_rounds, termination_condition=functions.get("until")
        )  # fmt: skip
        return _reviewed(builder, team.review).build()

    def _handoff(self, team: HandoffTeam, common: dict[str, Any], functions: Functions) -> Workflow:
        builder = HandoffBuilder(**common, termination_condition=functions.get("until"))
        builder.with_start_agent(team.start or id_of(team.participants[0])).enable_return_to_previous(not team.return_to_start)
        for source, targets in (team.handoffs or {}).items():
            builder.add_handoff(source, targets)
        if team.autonomous_turns:
            names = [id_of(item) for item in team.participants]
            builder.with_autonomous_mode(turn_limits=dict.fromkeys(names, team.autonomous_turns))
        return builder.build()


class _Manager(StandardMagenticManager):
    """The manager of a magentic orchestration, which makes the plan and judges the progress.

    The manager's agent acts on behalf of the tool call that runs the workflow.
    """

    def serve(self, call: CallContext) -> None:
        """Set the tool call on whose behalf the manager's agent makes its next runs. The workflow runs as part of this call."""
        serve_call(self._agent, call)


def _reviewed(builder: Any, review: bool | tuple[str, ...]) -> Any:
    if review is False:
        return builder
    return builder.with_request_info(agents=None if review is True else list(review))


def _in_turn(state: GroupChatState) -> str:
    """Return the name of the next speaker of a group chat: the participants speak in the order of the list (`round-robin`)."""
    names = list(state.participants)
    return names[state.current_round % len(names)]

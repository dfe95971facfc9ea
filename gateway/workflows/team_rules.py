"""Checks of the orchestrations in workflow files: participants exist, and keys can be combined. Used by `file_rules`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from gateway.config.problems import Problem
from gateway.config.suggest import did_you_mean
from gateway.workflows.team_definition import GroupChatTeam, HandoffTeam, Team, id_of

if TYPE_CHECKING:
    from gateway.workflows.definition import WorkflowFile

Named = Iterator[tuple[str, str]]


def team_key(file: WorkflowFile) -> str:
    """Return the key under which the workflow file defines its orchestration, such as `group-chat`. The file must have one."""
    return next(key for key in file.model_fields_set if getattr(file, key) is file.team).replace("_", "-")


def check_team(file: WorkflowFile, team: Team, keys: Sequence[str]) -> list[Problem]:
    """Check the orchestration `team` of a workflow file and return every problem.

    `keys` are the keys in the file that belong to a graph or define an orchestration. Each key except that of `team` is a problem, because
    a file may define only one graph or orchestration.
    """
    own = team_key(file)
    problems = [Problem(key, f"cannot be combined with `{own}`: a file is one graph or one orchestration") for key in keys if key != own]
    ids = [id_of(item) for item in team.participants]
    for number, name in enumerate(ids):
        if name in ids[:number]:
            problems.append(Problem(f"{own}.participants[{number}]", f"there already is a participant {name!r}; they need different names"))
    for path, name in [*_named(own, team), *selected_names(file)]:
        if name not in ids:
            problems.append(Problem(path, f"unknown participant {name!r}. {did_you_mean(name, ids)}".rstrip()))
    if isinstance(team, GroupChatTeam):
        problems += _check_group_chat(own, team)
    if isinstance(team, HandoffTeam) and len(ids) < 2:
        problems.append(Problem(f"{own}.participants", "needs at least two participants, so that one can hand over to the other"))
    return problems


def _named(own: str, team: Team) -> Named:
    review = getattr(team, "review", False)
    if not isinstance(review, bool):
        yield from ((f"{own}.review[{number}]", name) for number, name in enumerate(review))
    if isinstance(team, HandoffTeam):
        if team.start is not None:
            yield f"{own}.start", team.start
        for source, targets in (team.handoffs or {}).items():
            yield f"{own}.handoffs.{source}", source
            yield from ((f"{own}.handoffs.{source}[{number}]", name) for number, name in enumerate(targets))


def selected_names(file: WorkflowFile) -> Named:
    """Yield the names in `output-from` and `intermediate-output-from` of a workflow file, as pairs of key path and name."""
    for key, names in (("output-from", file.output_from), ("intermediate-output-from", file.intermediate_output_from)):
        if names is not None and not isinstance(names, str):
            yield from ((f"{key}[{number}]", name) for number, name in enumerate(names))


def _check_group_chat(own: str, team: GroupChatTeam) -> Iterator[Problem]:
    if (team.orchestrator is None) == (team.selection is None):
        yield Problem(own, "needs either `orchestrator`, an agent that chooses the next speaker, or `selection`")
    if team.orchestrator is not None and team.orchestrator in [id_of(item) for item in team.participants]:
        yield Problem(f"{own}.orchestrator", "is a participant already; the orchestrator does not speak, so name another agent")
    if team.selection == "round-robin" and team.max_rounds is None and team.until is None:
        yield Problem(own, "would never end: give it `max-rounds` or `until`")

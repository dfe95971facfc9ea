"""`ToolRules`: the policy of a source, compiled for one of its tools, so that a call need not read the configuration.

Used by `gate.tools`.
"""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass
from fnmatch import fnmatchcase

from gateway.config.policies import ApprovalBy, SourcePolicy, ToolOverride
from gateway.gate.published import clean_definition, shape_definition
from gateway.gate.results import ResultRules
from gateway.json_types import JsonObject
from gateway.policy.approval_policy import judge_approval
from gateway.policy.argument_policy import ArgumentPolicy
from gateway.policy.caller_rights import Decision
from gateway.policy.decision import Reject, Rewrite, Verdict
from gateway.policy.own_sources import may_change_something
from gateway.policy.retry_safety import is_idempotent
from gateway.policy.shaping import FRAMEWORK_NAMES, NO_NAMES
from gateway.tools.base import ToolDefinition

DEFAULT_TASK_SECONDS = 3600.0
"""Default maximum working time, in seconds, of a call of a remote tool that runs as a task. Without a maximum, a call that hangs would
occupy its concurrency slot forever. Waiting for a person, and following a task that the server runs, are not working time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolRules:
    """The policy of a source, compiled for one of its tools, so that a call need not read the configuration."""

    arguments: ArgumentPolicy
    published: ToolDefinition
    """The tool's definition as clients see it, but with the tool's name at its source."""
    timeout_seconds: float
    """Maximum working time of one call. Waiting for a concurrency slot or for a person is not working time."""
    max_task_seconds: float
    """Maximum working time of a call that runs as a task; infinite for local sources whose policy sets no limit."""
    results: ResultRules
    needs_approval: bool = False
    """Whether a person must approve each call."""
    approval_by: ApprovalBy | None = None
    """Who may approve a call; `None` for the gateway's default."""
    queues: tuple[JsonObject, ...] = ()
    """Limits on tasks of the tool or its source, in addition to the limits per caller.

    Each has `of` (`source` or `tool`), `running` (tasks at once) and `perMinute` (starts)."""
    resumes: bool = True
    """Whether tasks of the tool are resumed after the process that ran them died."""
    task_queue: str = ""
    """Task queue at Temporal of the tool's tasks; empty for that of the gateway."""
    is_local: bool = False
    """Whether the tool runs in this gateway, not on a remote server."""
    is_repeatable: bool = False
    """Whether a call may be resent, because a second call changes nothing more (`policy.retry_safety`)."""
    is_own: bool = False
    """Whether an agent or workflow defines the tool itself (`gate.own_tools`). Exceptions of the tool then reach the run of the agent or
    workflow unchanged."""
    denied: Reject | None = None
    """Rule and reason with which every call is refused; `None` if calls are allowed."""
    is_audited: bool = False
    """Whether each finished call emits the event `call.audited`, because the tool may have changed something. Only for tools that an agent
    or workflow defines itself (`is_own`)."""

    @classmethod
    def build(
        cls, definition: ToolDefinition, policy: SourcePolicy, *, is_local: bool = False, is_own: bool = False
    ) -> ToolRules:
        """Compile the policy of a source for one tool. `definition` is the tool's definition at the source.

        Never raises, whatever a server published. Local tools (`is_local`) may have any argument names, and their texts are not searched
        for hidden characters. The arguments of a tool that an agent or workflow defines itself (`is_own`, which implies `is_local`) are
        judged only if a rule names them.
        """
        is_local = is_local or is_own
        override = policy.overrides.get(definition.name)
        results = ResultRules("allow" if is_local else policy.hidden_text, policy.max_result_bytes, policy.max_kept_bytes)
        shown = definition if results.hidden_text == "allow" else clean_definition(definition)
        arguments = ArgumentPolicy.build(
            definition.name,
            shown.input_schema,
            policy.additional_arguments,
            policy.arguments,
            denied=NO_NAMES if is_local else FRAMEWORK_NAMES,
            override=override,
            only_with_rules=is_own,
        )
        needs_approval = judge_approval(definition.name, policy.approval, by_author=definition.needs_approval)
        published = shape_definition(shown, override, arguments.published_schema)
        if published.task == "never" and any(fnmatchcase(definition.name, glob) for glob in policy.tasks.promote):
            published = dataclasses.replace(published, task="optional", task_by="gateway")
        if needs_approval:
            published = dataclasses.replace(published, may_request_input=True)
        longest = policy.tasks.max_wait_seconds
        unlimited = math.inf if is_local else max(DEFAULT_TASK_SECONDS, policy.timeout_seconds)
        trusted = is_local or policy.trust_annotations
        return cls(
            arguments=arguments,
            published=published,
            timeout_seconds=policy.timeout_seconds,
            max_task_seconds=unlimited if longest is None else longest,
            results=results,
            needs_approval=needs_approval,
            approval_by=policy.approval_by,
            queues=_queues(policy, override),
            resumes=policy.tasks.resume,
            task_queue=policy.tasks.task_queue or "",
            is_local=is_local,
            is_repeatable=is_idempotent(definition.name, definition.annotations, idempotent=policy.idempotent, trust_annotations=trusted),
            is_own=is_own,
            is_audited=is_own and may_change_something(definition.annotations),
        )


    def judge(self, arguments: JsonObject, decision: Decision) -> Verdict:
        """Judge a call without making it. `decision` is the decision of the caller's rights about the tool."""
        if isinstance(decision.verdict, Reject):
            return decision.verdict
        verdict = self.denied or self.arguments.judge(arguments)
        if isinstance(verdict, Reject) or not decision.reads_arguments:
            return verdict
        kept = verdict.arguments if isinstance(verdict, Rewrite) else arguments
        return decision.judge(kept, self.published.input_schema) or verdict

    def task_limits(self, source: str, tool: str) -> list[JsonObject]:
        """Return the limits on tasks of the tool and its source, as `policy.task_scheduling` reads them, without limits per caller."""
        scopes = {"source": f"source:{source}", "tool": f"tool:{source}/{tool}"}
        return [{"scope": scopes[queue["of"]], **{k: v for k, v in queue.items() if k != "of"}} for queue in self.queues]


def _queues(policy: SourcePolicy, override: ToolOverride | None) -> tuple[JsonObject, ...]:
    wanted: list[tuple[str, int | None, int | None]] = [("source", policy.tasks.max_running, policy.tasks.starts_per_minute)]
    if override is not None:
        wanted.append(("tool", override.max_running_tasks, override.task_starts_per_minute))
    return tuple({"of": of, "running": running, "perMinute": rate} for of, running, rate in wanted if running or rate)

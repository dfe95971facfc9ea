"""`evaluate_agent` asks an agent questions and judges its answers with evaluators; `LocalEvaluator` judges them with check functions.

This module calls no evaluation service. An evaluator that uses a service implements the protocol `Evaluator`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from inspect import isawaitable
from typing import Any, Protocol, cast, runtime_checkable

import anyio

from gateway.agents.evaluation.eval_checks import CheckResult, EvalCheck
from gateway.agents.evaluation.eval_results import EvalItemResult, EvalResults, EvalScoreResult
from gateway.agents.evaluation.items import ConversationSplitter, EvalItem, ExpectedToolCall, Split
from gateway.errors import only_cause
from gateway.sessions.session import SupportsAgentRun
from gateway.staging import ExperimentalFeature, experimental
from gateway.tools.function import FunctionTool
from gateway.types.messages import Message
from gateway.types.responses import AgentResponse


@runtime_checkable
class Evaluator(Protocol):
    """Interface of evaluators, which judge items (conversations of an agent) locally or with a service."""

    name: str

    async def evaluate(self, items: Sequence[EvalItem], *, eval_name: str) -> EvalResults:
        """Judge a batch of items. `eval_name` is the display name of the evaluation."""
        ...


Evaluators = Evaluator | Callable[..., Any] | Sequence[Evaluator | Callable[..., Any]]
"""An evaluator, a check function, or a sequence of these; adjacent checks are combined to one `LocalEvaluator`."""


class LocalEvaluator:
    """Evaluator that judges items with check functions in this process. An item passes if it passes all checks."""

    def __init__(self, *checks: EvalCheck) -> None:
        self.name = "Local"
        self._checks = checks

    async def evaluate(self, items: Sequence[EvalItem], *, eval_name: str = "Local Eval") -> EvalResults:
        """Judge the items in order; the checks of an item run concurrently. An exception in a check ends the evaluation."""
        counts: dict[str, dict[str, int]] = {}
        judged: list[EvalItemResult] = []
        reasons: list[str] = []
        for number, item in enumerate(items):
            found = await self._check(item)
            for result in found:
                counts.setdefault(result.check_name, {"passed": 0, "failed": 0, "errored": 0})["passed" if result.passed else "failed"] += 1
            failed = [result for result in found if not result.passed]
            reasons += [f"{result.check_name}: {result.reason}" for result in failed]
            scores = [
                EvalScoreResult(r.check_name, float(r.passed), r.passed, {"reason": r.reason} if r.reason else None) for r in found
            ]
            status = "fail" if failed else "pass"
            judged.append(EvalItemResult(str(number), status, scores, input_text=item.query, output_text=item.response))
        passed = sum(item.is_passed for item in judged)
        return EvalResults(
            provider=self.name,
            eval_id="local",
            run_id=eval_name,
            result_counts={"passed": passed, "failed": len(judged) - passed, "errored": 0},
            per_evaluator=counts,
            items=judged,
            error="; ".join(reasons) or None,
        )

    async def _check(self, item: EvalItem) -> list[CheckResult]:
        found: dict[int, CheckResult] = {}

        async def run(number: int, check: EvalCheck) -> None:
            value = check(item)
            found[number] = await value if isawaitable(value) else value

        try:
            async with anyio.create_task_group() as tasks:
                for number, check in enumerate(self._checks):
                    tasks.start_soon(run, number, check)
        except ExceptionGroup as errors:
            raise only_cause(errors) from None
        return [found[number] for number in range(len(self._checks))]


@experimental(feature_id=ExperimentalFeature.EVALS)
async def evaluate_agent(
    *,
    agent: SupportsAgentRun | None = None,
    queries: str | Sequence[str] | None = None,
    expected_output: str | Sequence[str] | None = None,
    expected_tool_calls: Sequence[ExpectedToolCall] | Sequence[Sequence[ExpectedToolCall]] | None = None,
    responses: AgentResponse | Sequence[AgentResponse] | None = None,
    evaluators: Evaluators,
    eval_name: str | None = None,
    context: str | None = None,
    conversation_split: ConversationSplitter | Callable[[list[Message]], Split] | None = None,
    num_repetitions: int = 1,
) -> list[EvalResults]:
    """Ask an agent the `queries` and judge its responses. Return one result per evaluator.

    If `responses` are given, the agent is not run; `responses` must be the agent's responses to `queries`. `expected_output` and
    `expected_tool_calls` have one entry per query. Each query is asked `num_repetitions` times, in new conversations.

    Raises:
        ValueError: The lists differ in length, there is nothing to judge, or `num_repetitions` is below 1.
    """
    asked = as_list(queries, str)
    if num_repetitions < 1:
        raise ValueError(f"num_repetitions must be >= 1, got {num_repetitions}.")
    outputs = as_list(expected_output, str)
    calls = _nested(expected_tool_calls)
    for given, name in ((outputs, "expected_output values"), (calls, "expected_tool_calls lists")):
        if given is not None and asked is not None and len(given) != len(asked):
            raise ValueError(f"Got {len(asked)} queries but {len(given)} {name}.")
    answers = await _answers(agent, asked, as_list(responses, AgentResponse), num_repetitions)
    items = [to_eval_item(query, response, agent, context=context) for query, response in answers]
    for number, item in enumerate(items):
        item.expected_output = outputs[number % len(outputs)] if outputs else None
        item.expected_tool_calls = list(calls[number % len(calls)]) if calls else None
        item.split_strategy = conversation_split
    name = eval_name or f"Eval: {getattr(agent, 'name', None) or getattr(agent, 'id', 'agent')}"
    return await run_evaluators(evaluators, items, eval_name=name)


async def run_evaluators(evaluators: Evaluators, items: Sequence[EvalItem], *, eval_name: str) -> list[EvalResults]:
    """Judge the items with each evaluator in turn, and return one result per evaluator."""
    chosen = to_evaluators(evaluators)
    return [await one.evaluate(items, eval_name=eval_name + (f" ({one.name})" if len(chosen) > 1 else "")) for one in chosen]


def to_evaluators(given: Evaluators) -> list[Evaluator]:
    """Convert evaluators and check functions to a list of evaluators; adjacent checks become one `LocalEvaluator`.

    Raises:
        TypeError: An item is neither an evaluator nor a check.
    """
    found: list[Evaluator] = []
    checks: list[EvalCheck] = []
    for one in [given] if isinstance(given, Evaluator) or callable(given) else given:
        if isinstance(one, Evaluator):
            found += [LocalEvaluator(*checks)] if checks else []
            checks = []
            found.append(one)
        elif callable(one):
            checks.append(one)
        else:
            raise TypeError(f"Expected an Evaluator or callable, got {type(cast('object', one)).__name__}")
    return [*found, LocalEvaluator(*checks)] if checks else found


def to_eval_item(query: str | Sequence[Message], response: AgentResponse, agent: object = None, *, context: str | None = None) -> EvalItem:
    """Return an item to judge, with the query and the agent's response as its conversation, and with the agent's function tools."""
    asked = [Message("user", [query])] if isinstance(query, str) else list(query)
    tools: dict[str, FunctionTool[..., object]] = {}
    for one in cast("Sequence[object]", getattr(agent, "tools", None) or ()):
        for tool in [one, *cast("Sequence[object]", getattr(one, "functions", ()))]:
            if isinstance(tool, FunctionTool):
                tools.setdefault(tool.name, cast("FunctionTool[..., object]", tool))
    return EvalItem([*asked, *response.messages], list(tools.values()) or None, context)


def as_list(given: Any, kind: type) -> list[Any] | None:
    """Return a value of type `kind`, or a sequence of such values, as a list; `None` stays `None`."""
    return [given] if isinstance(given, kind) else None if given is None else list(given)


async def _answers(
    agent: SupportsAgentRun | None, asked: list[str] | None, responses: list[AgentResponse] | None, times: int
) -> list[tuple[str, AgentResponse]]:
    if asked is None:
        beside = "'responses'" if responses is not None else "'agent' or 'responses'"
        raise ValueError(f"Provide 'queries' alongside {beside}: each judged response needs its query.")
    if responses is not None:
        if len(asked) != len(responses):
            raise ValueError(f"Got {len(asked)} queries but {len(responses)} responses.")
        return list(zip(asked, responses, strict=True))
    if agent is None:
        raise ValueError("Provide 'agent' when using 'queries' to run the agent; answers that exist already go to 'responses'.")
    return [(query, await agent.run([Message("user", [query])])) for _ in range(times) for query in asked]


def _nested(
    given: Sequence[ExpectedToolCall] | Sequence[Sequence[ExpectedToolCall]] | None,
) -> list[Sequence[ExpectedToolCall]] | None:
    if given and isinstance(given[0], ExpectedToolCall):
        return [cast("Sequence[ExpectedToolCall]", given)]
    return None if given is None else list(cast("Sequence[Sequence[ExpectedToolCall]]", given))

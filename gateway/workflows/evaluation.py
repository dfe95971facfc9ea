"""`evaluate_workflow`: runs evaluators (checks or judging models) on a workflow's outputs and on the answers of its agents."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import cast

from gateway.agents.evaluation.eval_results import EvalResults
from gateway.agents.evaluation.evaluators import Evaluator, Evaluators, as_list, to_eval_item, to_evaluators
from gateway.agents.evaluation.items import ConversationSplitter, EvalItem, Split
from gateway.staging import ExperimentalFeature, experimental
from gateway.types.messages import Message
from gateway.types.responses import AgentResponse
from gateway.workflows.agent_executor import AgentExecutor, AgentExecutorResponse
from gateway.workflows.events import WorkflowRunResult
from gateway.workflows.workflow import Workflow


@experimental(feature_id=ExperimentalFeature.EVALS)
async def evaluate_workflow(
    *,
    workflow: Workflow,
    workflow_result: WorkflowRunResult | None = None,
    queries: str | Sequence[str] | None = None,
    expected_output: str | Sequence[str] | None = None,
    evaluators: Evaluators,
    eval_name: str | None = None,
    include_overall: bool = True,
    include_per_agent: bool = True,
    conversation_split: ConversationSplitter | Callable[[list[Message]], Split] | None = None,
    num_repetitions: int = 1,
) -> list[EvalResults]:
    """Evaluate a workflow and return one result per evaluator.

    The workflow runs `num_repetitions` times for each query; without `queries`, the existing `workflow_result` is evaluated. Each result
    covers the last output of every run; the evaluator also gets the run's query and `expected_output`. The `sub_results` cover the answers
    of the workflow's agents, by executor id, unless `include_per_agent` is false. If `include_overall` is false or no run has an output,
    the counts of a result are the sums of those of its `sub_results`.

    Raises:
        ValueError: `queries` and `expected_output` have different lengths, both `queries` and `workflow_result` are missing,
            `num_repetitions` is less than 1, or there is neither an output nor an agent's answer.
    """
    asked, outputs = as_list(queries, str), as_list(expected_output, str)
    if num_repetitions < 1:
        raise ValueError(f"num_repetitions must be >= 1, got {num_repetitions}.")
    if outputs is not None and len(outputs) != len(asked or ()):
        raise ValueError(f"Got {len(asked or ())} queries but {len(outputs)} expected_output values; each belongs to a query.")
    overall: list[EvalItem] = []
    by_agent: dict[str, list[EvalItem]] = {}
    for number, (query, result) in enumerate(await _results(workflow, workflow_result, asked, num_repetitions)):
        output = _overall(query, result) if include_overall else None
        if output is not None:
            output.expected_output = outputs[number % len(outputs)] if outputs else None
            overall.append(output)
        if include_per_agent:
            for executor, item in _answers(workflow, result):
                by_agent.setdefault(executor, []).append(item)
    if not overall and not by_agent:
        raise ValueError("The workflow's result has no output and no answer of an agent, so there is nothing to judge.")
    for item in [*overall, *(item for items in by_agent.values() for item in items)]:
        item.split_strategy = conversation_split
    chosen = to_evaluators(evaluators)
    name = eval_name or f"Workflow Eval: {workflow.name or type(workflow).__name__}"
    return [await _judge(one, name + (f" ({one.name})" if len(chosen) > 1 else ""), overall, by_agent) for one in chosen]


async def _judge(evaluator: Evaluator, name: str, overall: list[EvalItem], by_agent: dict[str, list[EvalItem]]) -> EvalResults:
    subs = {executor: await evaluator.evaluate(items, eval_name=f"{name} - {executor}") for executor, items in by_agent.items()}
    if overall:
        whole = await evaluator.evaluate(overall, eval_name=f"{name} - overall")
    else:
        counts = {"passed": sum(sub.passed for sub in subs.values()), "failed": sum(sub.failed for sub in subs.values())}
        status = "completed" if all(sub.status == "completed" for sub in subs.values()) else "partial"
        whole = EvalResults(provider=evaluator.name, eval_id="aggregate", run_id="aggregate", status=status, result_counts=counts)
    whole.sub_results = subs
    return whole


async def _results(
    workflow: Workflow, result: WorkflowRunResult | None, asked: list[str] | None, times: int
) -> list[tuple[str | None, WorkflowRunResult]]:
    if asked is not None:
        return [(query, await workflow.run(query)) for _ in range(times) for query in asked]
    if result is None:
        raise ValueError("Provide either 'workflow_result' or 'queries'.")
    return [(_query_of(result), result)]


def _query_of(result: WorkflowRunResult) -> str | None:
    """Return the query of a finished run: the message that the first executor received, as text; `None` if it received none.

    If the message is a list of messages, the text contains only those of the user.
    """
    given = next((event.data for event in result if event.type == "executor_invoked" and event.data is not None), None)
    if not isinstance(given, list):
        return None if given is None else str(given)
    parts = cast("list[object]", given)
    return " ".join(part.text if isinstance(part, Message) else str(part) for part in parts if getattr(part, "role", "user") == "user")


def _overall(query: str | None, result: WorkflowRunResult) -> EvalItem | None:
    outputs = result.get_outputs()
    if query is None or not outputs:
        return None
    last = cast("object", outputs[-1])
    if isinstance(last, AgentExecutorResponse):
        return to_eval_item(query, last.agent_response)
    if isinstance(last, AgentResponse):
        return to_eval_item(query, last)
    said = [m for m in cast("list[object]", last) if isinstance(m, Message)] if isinstance(last, list) else []
    answers = [m for m in said if m.role == "assistant"] or [Message("assistant", [str(cast("object", last))])]
    return to_eval_item(query, AgentResponse(messages=answers))


def _answers(workflow: Workflow, result: WorkflowRunResult) -> list[tuple[str, EvalItem]]:
    """Return the answers of the workflow's agents in a finished run, as pairs of executor id and item to evaluate (prompt and answer)."""
    found: list[tuple[str, EvalItem]] = []
    for event in result:
        executor = workflow.executors.get(event.executor_id or "")
        if event.type != "executor_completed" or not isinstance(executor, AgentExecutor):
            continue
        given = cast("object", event.data)
        sent = cast("list[object]", given) if isinstance(given, list) else [given]
        answer = next((one for one in sent if isinstance(one, AgentExecutorResponse)), None)
        if answer is not None:
            asked = [message for message in answer.full_conversation if message.role == "user"]
            found.append((executor.id, to_eval_item(asked or answer.full_conversation, answer.agent_response, executor.agent)))
    return found

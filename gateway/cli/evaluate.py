"""`moongate eval`: sends test cases from a JSON Lines file to an agent and checks its answers."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, cast

import click

from gateway.cli.common import Target, data_options, gateway_options, load, run_async
from gateway.cli.failures import CommandFailed
from gateway.cli.output import print_json, print_text
from gateway.config.paths import did_you_mean_path
from gateway.errors import ConfigError
from gateway.json_types import JsonObject

if TYPE_CHECKING:
    from gateway.agents.evaluation.cases import Case, Judge
    from gateway.config.load import LoadedConfig
    from gateway.tools.base import Tool

CASE_TIMEOUT_SECONDS = 600.0
"""Timeout in seconds of one test case."""


@click.command("eval")
@click.argument("agent")
@click.argument("cases", metavar="FILE")
@click.option("--judge", "judge_model", metavar="MODEL", help="Model that judges criteria, as in an agent file: openai:NAME.")
@gateway_options
@data_options
def evaluate(agent: str, cases: str, judge_model: str | None, target: Target, config_path: str | None, as_json: bool) -> None:
    """Send test cases to an agent and judge its answers.

    FILE has one case per line (JSON Lines). The cases run one after the other. Exit code 5 if one fails.
    """
    from gateway.agents.evaluation.cases import read_cases

    try:
        text = Path(cases).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        raise ConfigError(f"Cannot read the cases {cases!r}: {reason}. {did_you_mean_path(cases)}".rstrip(), path=cases) from None
    parsed = read_cases(text, name=cases)
    loaded = load(config_path)
    results = run_async(lambda: _evaluate(agent, parsed, judge_model, loaded, target))
    failed = [result for result in results if not result["passed"]]
    if as_json:
        print_json({"agent": agent, "passed": len(results) - len(failed), "failed": len(failed), "cases": results})
    else:
        _show(results)
    if failed:
        raise CommandFailed(f"{len(failed)} of {len(results)} cases failed.", code="tool-error")


async def _evaluate(agent: str, cases: Sequence[Case], judge_model: str | None, loaded: LoadedConfig, target: Target) -> list[JsonObject]:
    from gateway.chat.model_resolver import ModelResolver
    from gateway.cli.hub import open_hub, pick_tool

    models = ModelResolver(os.environ, loaded.config.defaults.model)
    try:
        judge = _judge_of(models, judge_model) if judge_model is not None else None
        async with open_hub(loaded, target) as hub:
            tools = await hub.tools()
            names = {tool.name for tool in tools}
            found = pick_tool(tools, f"agent__{agent}" if f"agent__{agent}" in names else agent)
            return [await _run(case, found.tool, judge) for case in cases]
    finally:
        await models.aclose()


async def _run(case: Case, tool: Tool, judge: Judge | None) -> JsonObject:
    from gateway.agents.evaluation.cases import to_checks
    from gateway.agents.evaluation.evaluators import LocalEvaluator
    from gateway.agents.evaluation.items import EvalItem
    from gateway.tools.base import Complete
    from gateway.tools.context import CallClock, CallContext, CallLimits
    from gateway.tools.drive import drive
    from gateway.types.messages import Message

    clock = CallClock(CASE_TIMEOUT_SECONDS)
    outcome: object = None
    with clock.scope:
        outcome = await drive(tool, {"task": case.input}, CallContext(limits=CallLimits(clocks=(clock,))))
    if not isinstance(outcome, Complete) or outcome.is_error:
        text = outcome.as_text() if isinstance(outcome, Complete) else f"no answer within {CASE_TIMEOUT_SECONDS:g} s"
        return {"id": case.id, "passed": False, "error": text, "checks": []}
    answer = outcome.as_text()
    item = EvalItem([Message("user", [case.input]), Message("assistant", [answer])])
    [judged] = (await LocalEvaluator(*to_checks(case, outcome.structured, judge)).evaluate([item])).items
    checks = [{"check": s.name, "passed": s.passed, **({"detail": s.sample["reason"]} if s.sample else {})} for s in judged.scores]
    return {"id": case.id, "passed": judged.is_passed, "answer": answer, "checks": checks}


def _judge_of(models: object, model: str) -> Judge:
    from gateway.agents.middleware.judge import DEFAULT_JUDGE_INSTRUCTIONS, criteria_for_judge, judge_predicate
    from gateway.chat.model_resolver import ModelResolver
    from gateway.tools.context import CallContext
    from gateway.types.messages import Message
    from gateway.types.responses import AgentResponse

    client = cast("ModelResolver", models).resolve(model, CallContext())

    async def judge(question: str, answer: str, criteria: Sequence[str]) -> tuple[bool, str]:
        prompt = DEFAULT_JUDGE_INSTRUCTIONS.replace("{{criteria}}", criteria_for_judge(criteria))
        response = AgentResponse(messages=[Message("assistant", [answer])])
        is_open, reason = await judge_predicate(client, prompt)(last_result=response, original_messages=[Message("user", [question])])
        return not is_open, reason or ""

    return judge


def _show(results: Sequence[JsonObject]) -> None:
    for result in results:
        print_text(f"{'ok  ' if result['passed'] else 'fail'}  {result['id']}")
        if result.get("error"):
            print_text(f"      {result['error']}")
        for check in cast("list[JsonObject]", result["checks"]):
            if not check["passed"]:
                print_text(f"      {check['check']} {check.get('detail') or ''}".rstrip())

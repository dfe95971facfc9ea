"""`moongate eval`: cases for an agent with a model over HTTP, and the exit codes."""

from __future__ import annotations

import json
from collections.abc import Generator
from pathlib import Path

import pytest

from gateway.agents.evaluation.cases import read_cases
from gateway.errors import ConfigError
from tests.cli.processes import moongate, write_gateway
from tests.fakes.openai_server import ScriptedServer, openai_server

SCHEMA = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}


@pytest.fixture(scope="module")
def server() -> Generator[ScriptedServer]:
    with openai_server() as running:
        yield running


async def test_each_expectation_is_judged_and_a_failed_case_exits_with_5(tmp_path: Path, server: ScriptedServer) -> None:
    env = {"OPENAI_BASE_URL": server.base_url, "OPENAI_MODEL": "local-model"}
    (tmp_path / "agents").mkdir()
    (tmp_path / "agents" / "helper.agent.md").write_text("---\ndescription: Helps.\n---\nHelp.\n")
    write_gateway(tmp_path, expose={"agents": ["./agents"]}, storage={"dir": "state"})
    cases = [
        {"id": "good", "input": "one", "expect": {"contains": "FOUR", "notContains": ["five"], "regex": "^four$"}},
        {"id": "json", "input": "two", "expect": {"schema": SCHEMA}},
        {"id": "judged", "input": "three", "expect": {"judge": "is polite"}},
        {"input": "four", "expect": {"contains": ["yes"], "schema": SCHEMA}},
    ]
    (tmp_path / "cases.jsonl").write_text("\n".join(json.dumps(case) for case in cases))
    verdict = {"text": json.dumps({"answered": False, "reasoning": "rude"})}
    await server.play({"text": "four"}, {"text": '{"n": 3}'}, {"text": "go away"}, verdict, {"text": "no"})

    words = ("eval", "helper", "cases.jsonl", "--judge", "openai-chat:local-model", "--standalone", "--json")
    done = moongate(*words, cwd=tmp_path, env=env)

    assert (done.code, done.error["code"]) == (5, "tool-error")
    assert (done.data["passed"], done.data["failed"]) == (2, 2)
    assert [(case["id"], case["passed"]) for case in done.data["cases"]] == [
        ("good", True),
        ("json", True),
        ("judged", False),
        ("line 4", False),
    ]
    assert done.data["cases"][2]["checks"] == [{"check": "judge", "passed": False, "detail": "rude"}]
    assert [check["passed"] for check in done.data["cases"][3]["checks"]] == [False, False]


def test_file_of_cases_that_is_wrong_is_named_by_its_line() -> None:
    good = '{"id": "a", "input": "x", "expect": {}}'
    wrong = {
        "": "no cases",
        "{": "Line 1",
        f"{good}\n\n{good}": "Line 3",
        '{"input": "x", "expect": {"regex": "("}}': "is not a regular expression",
        '{"input": "x", "expect": {"contain": "y"}}': "expect.contain: unknown key 'contain'. Did you mean 'contains'",
    }
    for text, problem in wrong.items():
        with pytest.raises(ConfigError, match=problem):
            read_cases(text, name="cases.jsonl")

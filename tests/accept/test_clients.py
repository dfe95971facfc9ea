"""Clients that are not ours call everything Moongate serves, in both eras, over both transports."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.accept.clients import Era, Inspector, Target, TypeScript, text_of
from tests.accept.conftest import ANSWER, BRIEF, ForeignClient, Served
from tests.fakes.running import ROOT

pytestmark = [pytest.mark.interop, pytest.mark.timeout(180)]

OWN_TOOLS = {"search_skills", "load_skill", "read_skill_resource", "agent__researcher", "agent__editor", "workflow__brief"}
SERVERS_TOOLS = {"notes__add_note", "notes__search_notes", "units__convert", "units__list_units"}


def test_every_tool_is_listed(foreign: ForeignClient) -> None:
    assert set(foreign.list_tools()) >= OWN_TOOLS | SERVERS_TOOLS


def test_tool_of_http_server_returns_structured_content(foreign: ForeignClient) -> None:
    result = foreign.call("units__convert", {"value": 26.2, "from": "mi", "to": "km"})
    assert not result.get("isError")
    assert result["structuredContent"] == {"value": 42.1648128, "unit": "km", "quantity": "length"}


def test_tool_of_a_server_over_stdio_keeps_what_it_was_given(foreign: ForeignClient) -> None:
    added = foreign.call("notes__add_note", {"text": "Höher", "tags": ["accept"]})["structuredContent"]
    read = foreign.read(f"notes+note://{added['id']}")
    assert read["contents"][0]["text"] == "Höher"
    assert read["contents"][0]["uri"] == f"notes+note://{added['id']}"


def test_rule_refuses_a_call_with_a_reason(foreign: ForeignClient) -> None:
    result = foreign.call("notes__add_note", {"text": "x" * 4001})
    assert result["isError"]
    assert "text" in text_of(result)


def test_skill_is_found_and_loaded(foreign: ForeignClient) -> None:
    found = foreign.call("search_skills", {"query": "SQL migration"})["structuredContent"]["skills"]
    loaded = foreign.call("load_skill", {"skill_name": found[0]["skill"]})
    assert found[0]["name"] == "sql-review"
    assert "# SQL review" in text_of(loaded)


def test_agent_uses_a_tool_and_answers(foreign: ForeignClient) -> None:
    result = foreign.call("agent__researcher", {"task": "What is the capital of Poland?"})
    assert not result.get("isError"), text_of(result)
    assert text_of(result) == ANSWER


BUNDLED: dict[str, tuple[dict[str, str], str]] = {
    "brief": ({"topic": "The capital of Poland"}, BRIEF),
    "skill-for-task": ({"task": "review a SQL migration"}, "# SQL review"),
}
"""Every workflow that ships with Moongate, with the arguments of a call and a part of its result."""


def test_every_bundled_workflow_is_tried() -> None:
    assert sorted(BUNDLED) == [path.name.removesuffix(".workflow.yaml") for path in sorted((ROOT / "agents").glob("*.workflow.yaml"))]


@pytest.mark.parametrize("workflow", sorted(BUNDLED))
def test_bundled_workflow_runs_plain_or_as_task_by_client_support(
    served: Served, foreign: ForeignClient, era: Era, workflow: str
) -> None:
    (arguments, text), before = BUNDLED[workflow], served.tasks(workflow)
    result = foreign.call(f"workflow__{workflow}", arguments)
    assert not result.get("isError"), text_of(result)
    assert text in text_of(result)
    is_task = era == "modern" and isinstance(foreign, Inspector)
    assert len(served.tasks(workflow) - before) == (1 if is_task else 0)


@pytest.mark.parametrize("workflow", sorted(BUNDLED))
def test_bundled_workflow_runs_as_a_task_of_the_2025_protocol(served: Served, target: Target, tmp_path: Path, workflow: str) -> None:
    (arguments, text), before = BUNDLED[workflow], served.tasks(workflow)
    [ended] = TypeScript(tmp_path, target, "legacy").run([["task", f"workflow__{workflow}", arguments]])
    assert (ended["heard"][0], ended["heard"][-1]) == ("taskCreated", "result")
    assert text in text_of(ended["result"])
    assert len(served.tasks(workflow) - before) == 1


def test_no_tool_schema_is_hard_for_a_client_to_read(target: Target, era: Era, tmp_path: Path) -> None:
    ended = Inspector(tmp_path, target, era).run("tools/list", "--strict")
    assert ended.code == 0, ended.err


def test_every_file_of_every_skill_has_its_listed_digest(target: Target, tmp_path: Path) -> None:
    ended = Inspector(tmp_path, target, "modern").run("skills/list", "--verify", "--require-digests")
    reports = [json.loads(line) for line in ended.out.splitlines()]
    assert ended.code == 0, ended.out
    assert {report["name"] for report in reports} >= {"changelog-writer", "sql-review"}
    assert {file["status"] for report in reports for file in report["files"]} == {"verified"}

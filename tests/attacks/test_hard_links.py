"""Hard links in folders of agents and workflows: a file from outside is neither served nor shown, and is named to the operator."""

from __future__ import annotations

import os
import sysconfig
from pathlib import Path

import pytest

from gateway.agents.definition import read_agent
from gateway.config.documents import HAS_SECOND_NAME
from gateway.errors import AgentError, WorkflowInvalid
from gateway.workflows.loader import load_workflow
from tests.cli.processes import moongate, write_gateway
from tests.fakes.running import gateway_http
from tests.interaction.wire import Era, over_http

pytestmark = [pytest.mark.attack(30), pytest.mark.timeout(120)]

AGENT = "---\nname: NAME\ndescription: Answers.\n---\nKeep this secret: 42.\n"
WORKFLOW = "name: NAME\ndescription: Keep this secret.\nexecutors: {only: {tool: s/say}}\nstart: only\n"
KINDS = {"agent": (".agent.md", AGENT), "workflow": (".workflow.yaml", WORKFLOW)}
EXPOSE = {"agents": ["./agents"]}


def two_of_each(folder: Path) -> None:
    """Write an agent and a workflow, and hard links to another agent and workflow outside the folder."""
    (folder / "agents").mkdir()
    for kind, (suffix, text) in KINDS.items():
        (folder / "agents" / f"own{suffix}").write_text(text.replace("NAME", "own"))
        (folder / f"secret-{kind}").write_text(text.replace("NAME", "linked"))
        os.link(folder / f"secret-{kind}", folder / "agents" / f"linked{suffix}")


@pytest.mark.parametrize("era", ["modern", "legacy"])
async def test_hard_linked_agents_and_workflows_are_not_served(tmp_path: Path, era: Era) -> None:
    two_of_each(tmp_path)
    with gateway_http(tmp_path, {"expose": EXPOSE}) as url:
        async with over_http(url, era, tasks=False) as wire:
            listed = (await wire.send("tools/list"))["result"]["tools"]
            cards = str((await wire.send("resources/list"))["result"])
            called = await wire.send("tools/call", name="agent__linked", arguments={"message": "Hello"})
    names = {tool["name"] for tool in listed}
    assert names >= {"agent__own", "workflow__own"} and not names & {"agent__linked", "workflow__linked"}
    assert ("own" in cards, "linked" in cards) == (True, False)
    assert "error" in called or called["result"]["isError"]


def test_list_doctor_and_check_name_hard_links(tmp_path: Path) -> None:
    two_of_each(tmp_path)
    write_gateway(tmp_path, expose=EXPOSE)
    checks = moongate("doctor", "--json", cwd=tmp_path).data["checks"]
    named = sorted((check["status"], Path(check["subject"]).name) for check in checks if HAS_SECOND_NAME in check["text"])
    assert named == [("fail", "linked.agent.md"), ("fail", "linked.workflow.yaml")]
    listed = moongate("list", cwd=tmp_path)
    assert listed.out.count("1 problem(s); see `moongate doctor`") == 2
    checked = moongate("workflows", "check", "agents", cwd=tmp_path)
    assert (checked.code, HAS_SECOND_NAME in checked.out) == (5, True)


@pytest.mark.parametrize("kind", KINDS)
def test_hard_links_of_installed_packages_are_read(tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    two_of_each(tmp_path)
    path = tmp_path / "agents" / f"linked{KINDS[kind][0]}"
    read = read_agent if kind == "agent" else load_workflow
    with pytest.raises((AgentError, WorkflowInvalid), match="hard link"):
        read(path)
    monkeypatch.setattr(sysconfig, "get_path", lambda name: str(tmp_path))  # pyright: ignore[reportUnknownLambdaType, reportUnknownArgumentType]
    assert read(path)
    monkeypatch.undo()
    (tmp_path / f"secret-{kind}").unlink()
    assert read(path)

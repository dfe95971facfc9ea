"""A misspelled word on the command line is answered with the word that was probably meant."""

from __future__ import annotations

from pathlib import Path

import pytest

from gateway.cli.configured_names import tool_names
from gateway.config.load import load_config
from tests.cli.processes import moongate, write_gateway
from tests.fakes.running import ROOT, free_port, upstream_stdio

AGENT = "---\nname: clerk\ndescription: Helps.\n---\nHelp.\n"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A configuration with a server, an agent, a workflow and skills, and a policy whose source is misspelled."""
    folder = tmp_path_factory.mktemp("words")
    (folder / "agents").mkdir()
    (folder / "agents" / "clerk.agent.md").write_text(AGENT)
    workflow = (ROOT / "agents" / "skill-for-task.workflow.yaml").read_text()
    (folder / "agents" / "skill-for-task.workflow.yaml").write_text(workflow)
    (folder / "skills").symlink_to(ROOT / "skills")
    (folder / "cases.jsonl").write_text('{"id": "a", "input": "x", "expect": {"contains": "y"}}\n')
    write_gateway(
        folder,
        mcpServers={"files": upstream_stdio(), "broken": {"comand": "x"}},
        policies={"flies": {"timeoutSeconds": 3}},
        expose={"agents": ["agents"], "skills": [str(ROOT / "skills")]},
        server={"http": {"port": free_port()}},
        storage={"dir": "state"},
        secrets={"token": {"command": ["true"]}},
    )
    return folder


@pytest.mark.parametrize(
    ("words", "meant"),
    [
        ("lsit", "list"),
        ("keys lst", "list"),
        ("approvals aprove", "approve"),
        ("list --cofnig x", "--config"),
        ("list agnets", "agents"),
        ("schema workflw", "workflow"),
        ("tasks list --status workin", "working"),
        ("workflows graph skill-for-task --format svgg", "svg"),
        ("call ecco", "files__echo"),
        ("call agent__clrk", "agent__clerk"),
        ("call broken__echo", "command"),
        ("inspect broken__echo", "command"),
        ("inspect flies", "files"),
        ("inspect sql-reveiw", "sql-review"),
        ("lock flies", "files"),
        ("lock --accept files/ecco", "echo"),
        ("auth login flies", "files"),
        ("audit --server flies", "files"),
        ("policy explain flies/echo", "files"),
        ("policy explain files/ecco", "files/echo"),
        ("policy explain files__ecco", "files__echo"),
        ("skills grant sql-reveiw", "sql-review"),
        ("skills grant sql-review scripts/scn_sql.py", "scripts/scan_sql.py"),
        ("workflows graph skill-for-tsk", "skill-for-task"),
        ("keys add reader --scope flies/echo", "files"),
        ("lock --check flies", "files"),
        ("lock --accept secrets.tokn", "secrets.token"),
        ("sessions list --agent clrk", "clerk"),
        ("tasks list --tool agent__clrk", "agent__clerk"),
        ("tasks list --tool flies__echo", "files__echo"),
        ("list -c gatway.json", "gateway.json"),
        ("list -c .", "gateway.json"),
        ("skills check skils/sql-review", "skills/sql-review"),
        ("skills check skills/sql-reveiw/SKILL.md", "skills/sql-review"),
        ("workflows check agnets", "agents"),
        ("workflows graph agents/skil-for-task.workflow.yaml", "agents/skill-for-task.workflow.yaml"),
        ("eval clerk case.jsonl", "cases.jsonl"),
    ],
)
def test_misspelled_name_gets_a_suggestion(folder: Path, words: str, meant: str) -> None:
    done = moongate(*words.split(), cwd=folder)
    assert f"Did you mean '{meant}'?" in done.err + done.out, done
    finds_nothing = ("audit", "keys add", "sessions list", "tasks list --tool")
    code = 0 if words.startswith(finds_nothing) else 2 if " -c " in words or words.startswith("eval") else 5 if " check " in words else 1
    assert done.code == code, done


def test_tool_of_a_server_without_prefix_is_suggested_by_its_name(tmp_path: Path) -> None:
    path = tmp_path / "gateway.json"
    path.write_text('{"mcpServers": {"files": {"command": "server"}}, "policies": {"files": {"prefix": ""}}}')
    assert "echo" in tool_names(load_config(path, environ={}), "flies__echo")


def test_exact_name_is_not_suggested(folder: Path) -> None:
    assert moongate("tasks", "list", "--tool", "files__ehco", cwd=folder).err.strip() == "No such tasks are kept."


def test_wrong_choice_names_the_choices_once(folder: Path) -> None:
    said = moongate("list", "toolz", cwd=folder).err
    assert said.startswith("error: 'toolz' is not one of sources, servers, tools, agents,") and said.count("resources") == 1
    assert "error: --status: 'workin' is not one of working, " in moongate("tasks", "list", "--status", "workin", cwd=folder).err


def test_list_reports_whether_it_reads_or_starts_sources(folder: Path) -> None:
    said = moongate("list", "agents", cwd=folder).err
    assert "so this command reads the agents of " in said and "starts" not in said
    assert "so this command starts the sources of " in moongate("list", "tools", cwd=folder).err


def test_misspelled_eval_agent_and_policy_source_get_suggestions(folder: Path) -> None:
    assert "Did you mean 'agent__clerk'?" in moongate("eval", "clrk", "cases.jsonl", cwd=folder).err
    checked = moongate("doctor", cwd=folder)
    assert "policies.flies: no source is called 'flies', so the policy does nothing. Did you mean 'files'?" in checked.out

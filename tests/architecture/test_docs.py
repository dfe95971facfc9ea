"""The documentation names only keys, defaults, commands, options and file formats that exist, and names all of them."""

from __future__ import annotations

import json
import re
from typing import Any, get_args

import click
import pytest
from pydantic import BaseModel

from gateway.agents.definition import AgentFile
from gateway.cli.main import cli
from gateway.config.access_settings import AccessMember, AccessRole, AccessSettings
from gateway.config.models import GatewayConfig, HttpServer, SecretCommand, SseServer, StdioServer
from gateway.config.policies import ArgumentRule, AuthorizationCode, ClientCredentials, SourcePolicy, ToolOverride
from gateway.config.schedule_settings import ScheduledCall
from gateway.policy.rule_words import SCHEMES_WORD, WORDS
from gateway.workflows.definition import AgentStep, AskStep, EdgeEntry, PythonStep, ToolStep, WorkflowFile, WorkflowStep
from gateway.workflows.team_definition import ConcurrentTeam, GroupChatTeam, HandoffTeam, MagenticTeam, SequentialTeam
from tests.architecture.documents import DOCUMENTS, blocks, code_of, links, read, rows, section
from tests.architecture.sources import ROOT, name_of

# -- gateway.json ----------------------------------------------------------------------------------------------------


def config_keys(model: type[BaseModel], prefix: str = "") -> dict[str, str]:
    """Return every key as a dotted path with its default as JSON; `-` for objects, whose keys follow."""
    found: dict[str, str] = {}
    for name, field in model.model_fields.items():
        path = prefix + (field.alias or name)
        nested = field.annotation if isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel) else None
        if nested is not None:
            found |= ({path: "-"} if not prefix else {}) | config_keys(nested, f"{path}.")
        else:
            found[path] = "required" if field.is_required() else json.dumps(field.get_default(call_default_factory=True))
    return found


def all_config_keys() -> dict[str, set[str]]:
    """Return the defaults of each path; a path can occur in several objects, because an entry is one of several kinds."""
    models: list[tuple[type[BaseModel], str]] = [
        (GatewayConfig, ""),
        (HttpServer, "mcpServers.<name>."),
        (SseServer, "mcpServers.<name>."),
        (StdioServer, "mcpServers.<name>."),
        (AccessSettings, "access."),
        (AccessRole, "access.roles.<role>."),
        (AccessMember, "access.roles.<role>.members."),
        (ScheduledCall, "tasks.schedules.<name>."),
        (SecretCommand, "secrets.<name>."),
        (SourcePolicy, "policies.<source>."),
        (ToolOverride, "policies.<source>.overrides.<tool>."),
        (ClientCredentials, "policies.<source>.auth."),
        (AuthorizationCode, "policies.<source>.auth."),
    ]
    found: dict[str, set[str]] = {}
    for model, prefix in models:
        for path, default in config_keys(model, prefix).items():
            found.setdefault(path, set()).add(default)
    return found


def documented_keys() -> dict[str, set[str]]:
    """Path → defaults in the tables of configuration.md; a path may stand in several tables."""
    found: dict[str, set[str]] = {}
    for cells in rows(read("docs/configuration.md")):
        if len(cells) == 3 and cells[0].startswith("`") and "${" not in cells[0]:
            for key in code_of(cells[0]):
                found.setdefault(key, set()).add(cells[1].strip("`"))
    return found


def test_every_configuration_key_is_documented_with_its_default() -> None:
    documented = documented_keys()
    missing = {key: defaults - documented.get(key, set()) for key, defaults in all_config_keys().items()}
    assert {key: defaults for key, defaults in missing.items() if defaults} == {}


def test_every_word_of_argument_rules_is_in_the_schema_and_documented() -> None:
    _, as_json = get_args(ArgumentRule)
    words = WORDS | {SCHEMES_WORD}
    assert set(as_json.json_schema["properties"]) == words
    table = section(read("docs/configuration.md"), "### Rules for arguments").partition("| word |")[2].partition("\n\n")[0]
    assert {word for cells in rows(table) for word in code_of(cells[0])} == words


def test_no_configuration_key_is_documented_that_does_not_exist() -> None:
    assert set(documented_keys()) - set(all_config_keys()) == set()


# -- the command line ------------------------------------------------------------------------------------------------


def commands(group: click.Group = cli, name: str = "moongate") -> dict[str, click.Command]:
    """Every command by its whole name, groups included."""
    ctx = click.Context(group, info_name=name)
    found: dict[str, click.Command] = {}
    for part in group.list_commands(ctx):
        command = group.get_command(ctx, part)
        assert command is not None
        found[f"{name} {part}"] = command
        if isinstance(command, click.Group):
            found |= commands(command, f"{name} {part}")
    return found


def options_of(command: click.Command) -> set[str]:
    """The long options; a short one stands beside its long one."""
    texts = [text for parameter in command.params if isinstance(parameter, click.Option) for text in parameter.opts]
    return {text for text in texts if text.startswith("--") and text != "--help"}


def documented_options(text: str) -> set[str]:
    return {word for code in re.findall(r"`(--[^`]*)`", text) for word in re.findall(r"--[a-z][a-z-]*", code)}


def heading_of(name: str) -> str:
    return f"{'#' * name.count(' ')}# {name}"


@pytest.mark.parametrize("name", commands())
def test_every_command_has_a_section_with_exactly_its_options(name: str) -> None:
    text = section(read("docs/cli.md"), heading_of(name)).partition(f"\n{'#' * name.count(' ')}## ")[0]
    assert text.strip(), f"docs/cli.md has no heading {heading_of(name)!r}"
    assert documented_options(text) == options_of(commands()[name])


def test_readme_names_every_command() -> None:
    [row] = [line for line in read("README.md").splitlines() if line.startswith("| [docs/cli.md]")]
    assert re.findall(r"`([a-z]+)`", row) == [name.removeprefix("moongate ") for name in commands() if name.count(" ") == 1]


def test_commands_of_cli_md_name_what_ships() -> None:
    for skill, script in re.findall(r"moongate skills grant (\S+) (\S+)", read("docs/cli.md")):
        assert (ROOT / "skills" / skill / script).is_file()


def test_no_command_is_documented_that_does_not_exist() -> None:
    headings = re.findall(r"^##+ (moongate .+)$", read("docs/cli.md"), re.MULTILINE)
    assert set(headings) == set(commands())


def test_commands_in_the_documentation_use_options_that_exist() -> None:
    known = commands()
    wrong: list[str] = []
    for path in DOCUMENTS:
        for line in (line for block in blocks(path, "sh") for line in block.splitlines()):
            for call in re.findall(r"\bmoongate ([a-z][^|&;]*)", line.partition(" -- ")[0]):
                words = call.split()
                name = next((f"moongate {' '.join(words[:n])}" for n in (2, 1) if f"moongate {' '.join(words[:n])}" in known), None)
                options = {word for word in words if word.startswith("--")}
                if "docker" not in line and "sudo" not in line and (name is None or options - options_of(known[name])):
                    wrong.append(f"{name_of(path)}: {line}")
    assert wrong == []


# -- file formats ----------------------------------------------------------------------------------------------------


def keys_of(model: type[BaseModel]) -> set[str]:
    return {field.alias or name for name, field in model.model_fields.items()}


def first_codes(text: str) -> set[str]:
    return {code for cells in rows(text) for code in code_of(cells[0])}


def test_every_key_of_an_agent_file_is_documented() -> None:
    table = read("docs/agents.md").partition("## What the tool gives")[0]
    assert first_codes(table) == keys_of(AgentFile)


@pytest.mark.parametrize(
    ("heading", "models"),
    [
        ("## The file", (WorkflowFile,)),
        ("## Executors", (AgentStep, ToolStep, PythonStep, WorkflowStep, AskStep)),
        ("## Edges", (EdgeEntry,)),
        ("## Orchestrations", (SequentialTeam, ConcurrentTeam, GroupChatTeam, HandoffTeam, MagenticTeam)),
    ],
)
def test_every_key_of_a_workflow_file_is_documented(heading: str, models: tuple[type[BaseModel], ...]) -> None:
    assert first_codes(section(read("docs/workflows.md"), heading)) == set().union(*(keys_of(model) for model in models))


def test_documented_built_in_skills_and_agents_exist() -> None:
    named = first_codes(section(read("docs/skills.md"), "## Bundled skills"))
    assert named == {path.parent.name for path in (ROOT / "skills").glob("*/SKILL.md")}


# -- blocks and links --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", DOCUMENTS, ids=name_of)
def test_links_lead_to_files_that_exist(path: Any) -> None:
    assert [target for target in links(path) if not (path.parent / target).exists()] == []


def test_make_targets_in_the_documentation_exist() -> None:
    targets = set(re.findall(r"^([a-z][a-z-]*):", read("Makefile"), re.MULTILINE))
    named = {word for path in DOCUMENTS for word in re.findall(r"(?:`|^)make ([a-z][a-z-]*)", path.read_text(), re.MULTILINE)}
    assert named <= targets
    assert {"run", "test", "check", "conformance", "accept", "bench"} <= named


def test_every_document_is_reached_from_the_readme() -> None:
    reached = {(ROOT / target).resolve() for target in links(ROOT / "README.md")}
    assert {path for path in DOCUMENTS if path.name != "README.md"} <= reached


def test_union_of_server_entries_matches_the_documentation() -> None:
    assert {member.__name__ for member in get_args(get_args(GatewayConfig.model_fields["mcp_servers"].annotation)[1])} == {
        "StdioServer",
        "HttpServer",
        "SseServer",
    }

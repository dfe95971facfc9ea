"""Generated malformed files: each is read, or rejected with an error that names the file or the place in it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gateway.agents.definition import read_agent
from gateway.config.documents import DocumentError, load_mapping
from gateway.config.load import load_text
from gateway.errors import ConfigError, GatewayError, WorkflowInvalid
from gateway.skills.parser import parse_skill
from tests.fakes.running import ROOT
from tests.workflows.scripted import workflow_of

pytestmark = [pytest.mark.attack(32), pytest.mark.fault(26), pytest.mark.timeout(120)]
FEW = settings(max_examples=50, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])

MANY = settings(FEW, max_examples=2_000, derandomize=False)
KEYS = [
    "name", "description", "mcpServers", "policies", "server", "expose", "skills", "agents", "storage", "defaults", "tasks",
    "command", "args", "env", "url", "headers", "type", "tools", "allow", "deny", "arguments", "auth", "http", "port", "host",
    "dir", "model", "input", "start", "output", "edges", "from", "to", "executors", "agent", "python", "tool", "prompt", "when",
    "license", "allowed-tools", "metadata", "handoffs", "remote", "task", "compatibility", "cases", "fan_out", "loop", "$schema",
    "version", "x", "",
]  # fmt: skip
WORDS = [
    "", "x", "a/b", "../../etc/passwd", "${HOME}", "${input:x}", "${", "{{x}}", "{{", "http://x", "file:///", "https://[", "://",
    "\x00", "\ud800", "\u202e", "\x1b[31m", "*", "&a", "*a", "!!python/object:os.system", "<<", "1e999", "0x10", "yes", "null", "~",
    "x" * 3000, "tools.a.b.c",
]  # fmt: skip
values: Any = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.sampled_from(WORDS) | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.sampled_from(KEYS) | st.text(max_size=8), inner, max_size=5),
    max_leaves=25,
)
documents: Any = st.dictionaries(st.sampled_from(KEYS) | st.text(max_size=8), values, max_size=8)


@st.composite
def torn(draw: st.DrawFn, texts: list[str]) -> str:
    """A valid text that was damaged: parts deleted, repeated, or replaced by special characters."""
    text = draw(st.sampled_from(texts))
    for _ in range(draw(st.integers(1, 4))):
        start, end = sorted(draw(st.tuples(st.integers(0, len(text)), st.integers(0, len(text)))))
        piece = draw(st.sampled_from([*WORDS, "\n", "\t", "---\n", ":", "- ", "{", "[" * 2000, "#", '"', "'", "|", text[start:end]]))
        text = text[:start] + piece + text[start if draw(st.booleans()) else end :]
    return text


def texts(*patterns: str) -> list[str]:
    found = [path.read_text(encoding="utf-8") for pattern in patterns for path in sorted(ROOT.glob(pattern))]
    assert found
    return found


def as_yaml(document: Any) -> str:
    return yaml.safe_dump(document, allow_unicode=True)  # pyright: ignore[reportUnknownMemberType]  types-PyYAML leaves `width` untyped


SKILLS = texts("skills/*/SKILL.md")
AGENTS = texts("agents/*.agent.md", "config/**/*.agent.md")
WORKFLOWS = texts("agents/*.workflow.yaml", "config/**/*.workflow.yaml")
CONFIGS = texts("config/*.json", "config/**/gateway*.json")
headed: Any = st.tuples(documents, st.text(max_size=40)).map(lambda pair: f"---\n{as_yaml(pair[0])}---\n{pair[1]}")


def read_skill(text: str) -> None:
    document = parse_skill(text.encode("utf-8", "surrogatepass"), directory="some-skill")
    assert all(finding.code and finding.message for finding in document.diagnostics)


def read_config(text: str) -> None:
    path = Path("/nowhere/gateway.json")
    try:
        load_text(text, path, {"HOME": "/nowhere"}, fetches=False)
    except ConfigError as error:
        assert str(error)


def read_workflow(text: str) -> None:
    try:
        workflow_of(text, name="some.workflow.yaml")
    except WorkflowInvalid as error:
        assert "some.workflow.yaml" in str(error)


def read_agent_text(text: str, folder: Path) -> None:
    path = folder / "some.agent.md"
    path.write_bytes(text.encode("utf-8", "surrogatepass"))
    try:
        read_agent(path)
    except GatewayError as error:
        assert "some" in str(error)


PROFILES = [pytest.param(FEW, id="few"), pytest.param(MANY, id="many", marks=[pytest.mark.faults, pytest.mark.timeout(900)])]


@pytest.mark.parametrize("profile", PROFILES)
def test_damaged_skill_is_read_or_its_faults_are_named(profile: settings) -> None:
    profile(given(headed | torn(SKILLS))(read_skill))()


@pytest.mark.parametrize("profile", PROFILES)
def test_damaged_configuration_is_read_or_refused_by_its_place(profile: settings) -> None:
    profile(given(documents.map(json.dumps) | torn(CONFIGS))(read_config))()


@pytest.mark.parametrize("profile", PROFILES)
def test_damaged_workflow_is_read_or_refused_by_name(profile: settings) -> None:
    profile(given(documents.map(as_yaml) | torn(WORKFLOWS))(read_workflow))()


def test_half_a_character_in_a_document_is_named_with_its_line() -> None:
    with pytest.raises(DocumentError, match=r"Line 2: .*half a character"):
        load_mapping("name: x\ndescription: \ud800\n")


def test_lone_surrogate_in_workflow_names_line() -> None:
    with pytest.raises(WorkflowInvalid, match=r"some\.workflow\.yaml:2: "):
        workflow_of('name: x\ndescription: "\\ud800"\n', name="some.workflow.yaml")


@pytest.mark.parametrize("profile", PROFILES)
def test_damaged_agent_is_read_or_refused_by_name(profile: settings, tmp_path: Path) -> None:
    def read(text: str) -> None:
        read_agent_text(text, tmp_path)

    profile(given(headed | torn(AGENTS))(read))()

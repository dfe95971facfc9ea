"""The settings of a remote agent that an agent file accepts."""

from __future__ import annotations

from pathlib import Path

import pytest

from gateway.agents.definition import read_agent
from gateway.errors import AgentError


@pytest.mark.parametrize(
    ("keys", "says"),
    [
        ("remote: {a2a: 'https://x.example', ag-ui: 'https://x.example'}", "exactly one of `a2a` and `ag-ui`"),
        ("remote: {headers: {A: b}}", "exactly one of `a2a` and `ag-ui`"),
        ("remote: {a2a: 'x.example'}", "'x.example' is not an http(s) URL"),
        ("remote: {a2a: 'https://x.example'}\nmodel: auto\nmax-turns: 3", "`max-turns`, `model` cannot be set for a remote agent"),
        ("remote: {url: 'https://x.example'}", "remote.url"),
    ],
)
def test_invalid_remote_key_is_rejected_by_name(tmp_path: Path, keys: str, says: str) -> None:
    path = tmp_path / "far.agent.md"
    path.write_text(f"---\ndescription: d\n{keys}\n---\n")
    with pytest.raises(AgentError) as caught:
        read_agent(path)
    assert says in str(caught.value)
    assert str(path) in str(caught.value)


def test_only_a_remote_agent_needs_no_instructions(tmp_path: Path) -> None:
    path = tmp_path / "far.agent.md"
    path.write_text("---\ndescription: d\nremote: {a2a: 'https://x.example'}\n---\n")
    assert read_agent(path).file.remote is not None
    path.write_text("---\ndescription: d\n---\n")
    with pytest.raises(AgentError, match="no instructions"):
        read_agent(path)

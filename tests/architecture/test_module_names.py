"""Modules of different packages have the same name only if they play the same role."""

from __future__ import annotations

from tests.architecture.counts import shared_names

ROLES = {
    "definition.py": "the file format of what the package defines: agents in Markdown, workflows in YAML",
    "messages.py": "the message class of the package; checkpoints on disk name these modules, so neither can be renamed",
    "source.py": "the package's `ToolSource`",
    "tool.py": "the package's `Tool`",
    "tracing.py": "the package's OpenTelemetry spans",
}
"""The role that all modules of a name share."""


def test_modules_of_the_same_name_play_the_same_role() -> None:
    assert shared_names().keys() == ROLES.keys()

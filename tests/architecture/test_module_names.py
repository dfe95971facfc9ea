"""Modules of different packages have the same name only if they play the same role."""

from __future__ import annotations

from tests.architecture.counts import package_names, shared_names

ROLES = {
    "definition.py": "the file format of what the package defines: agents in Markdown, workflows in YAML",
    "messages.py": "the message class of the package; checkpoints on disk name these modules, so neither can be renamed",
    "source.py": "the package's `ToolSource`",
    "tool.py": "the package's `Tool`",
    "tracing.py": "the package's OpenTelemetry spans",
}
"""The role that all modules of a name share."""

PACKAGE_ROLES = {
    "gateway/app/gateway": "the package's main class",
    "gateway/catalog/catalog": "the package's main class",
    "gateway/cli/auth": "the command group `moongate auth`",
    "gateway/cli/policy": "the command group `moongate policy`",
    "gateway/cli/sessions": "the command group `moongate sessions`",
    "gateway/cli/workflows": "the command group `moongate workflows`",
    "gateway/config/agents": "the section `agents` of the configuration",
    "gateway/gate/tools": "the gate's steps for tools, as `gate/reads.py` has those for reads",
    "gateway/lifecycle": "documented import path of agent-framework's lifecycle hooks, which `agents.lifecycle` runs",
    "gateway/middleware": "middleware of all kinds; `agents.middleware` has the middleware that the gateway itself provides",
    "gateway/orchestrations": "documented import path of the classes in `workflows.orchestrations`",
    "gateway/skills/library": "all skills of a gateway",
    "gateway/skills/remote": "skills of remote servers, as `agents.remote` has agents of remote servers",
    "gateway/skills/sandbox/sandbox": "the package's main class",
    "gateway/telemetry/providers": "OpenTelemetry's tracer, meter and logger providers",
    "gateway/workflows/evaluation": "evaluates workflows, as `agents.evaluation` evaluates agents",
}
"""The role of each module that has the name of a package."""


def test_modules_of_the_same_name_play_the_same_role() -> None:
    assert shared_names().keys() == ROLES.keys()


def test_module_with_the_name_of_a_package_has_a_reason() -> None:
    assert package_names() == sorted(PACKAGE_ROLES)

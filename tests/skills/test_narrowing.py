"""`narrow-to-skills`: skills remove tools of an agent and never add any."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from pathlib import Path
from typing import Any

import pytest

from gateway import CallContext, FunctionTool
from gateway.agents.source import AgentSource
from gateway.chat.model_resolver import ModelResolver
from gateway.skills.source import SkillSource
from gateway.tools.base import Tool
from tests.fakes.openai_server import ScriptedServer, openai_server
from tests.skills.on_disk import write_skill


@pytest.fixture(scope="module")
def server() -> Generator[ScriptedServer]:
    with openai_server() as running:
        yield running


class Box:
    """The tools of functions and of skills, as the catalog returns them."""

    def __init__(self, functions: Sequence[Tool], skills: SkillSource) -> None:
        self._functions = functions
        self._skills = skills

    async def tools(self, patterns: Sequence[str]) -> Sequence[Tool]:
        sources = [("function", self._functions), ("skill", await self._skills.tools())]
        return [tool for name, tools in sources for tool in tools if f"{name}/{tool.definition.name}" in patterns]

    async def quarantined(self, patterns: Sequence[str]) -> Sequence[Tool]:
        return ()


def function(name: str) -> Any:
    return FunctionTool(lambda: "done", name=name, description="Does it.")


@pytest.mark.requirement(134)
@pytest.mark.parametrize(
    ("allowed", "narrows", "offered"),
    [
        ("allowed-tools: read_table drop_table\n", True, {"read_table"}),  # `drop_table` is not a tool of the agent
        ("allowed-tools: drop_table\n", True, set[str]()),
        ("", True, {"read_table", "send_mail"}),
        ("allowed-tools: read_table\n", False, {"read_table", "send_mail"}),
    ],
)
async def test_loaded_skills_narrow_tools_of_agent(
    tmp_path: Path, server: ScriptedServer, allowed: str, narrows: bool, offered: set[str]
) -> None:
    write_skill(tmp_path / "skills" / "tables", extra=allowed)
    folder = tmp_path / "agents"
    folder.mkdir()
    keys = "description: Helps.\ntools: [function/read_table, function/send_mail]\nskills: [tables]\n"
    keys += f"narrow-to-skills: {str(narrows).lower()}\n"
    (folder / "helper.agent.md").write_text(f"---\n{keys}---\nHelp.\n", encoding="utf-8")
    environ = {"OPENAI_BASE_URL": server.base_url, "OPENAI_MODEL": "local-model"}
    await server.play({"text": "Done."})
    models = ModelResolver(environ, None)
    async with SkillSource([tmp_path / "skills"]) as skills:
        box = Box([function("read_table"), function("send_mail"), function("drop_table")], skills)
        async with AgentSource([folder], toolbox=box, models=models, skills=skills, environ=environ) as source:
            [tool] = await source.tools()
            await tool.call({"task": "go"}, CallContext())
    await models.aclose()
    [request] = await server.requests()
    names = {tool.get("name") or tool["function"]["name"] for tool in request["body"]["tools"]}
    assert names == offered | {"search_skills", "load_skill", "read_skill_resource"}
    assert "<name>tables</name>" in str(request["body"])

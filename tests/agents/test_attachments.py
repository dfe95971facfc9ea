"""Attachments that callers send with an agent's task, and settings that apply to every agent of a gateway."""

from __future__ import annotations

import json
import sys
import textwrap
from collections.abc import AsyncGenerator, Generator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from gateway import CallContext, FunctionTool
from gateway.agents.attachments import MAX_ATTACHED_CHARS, MAX_ATTACHMENTS
from gateway.agents.source import AgentSource
from gateway.chat.model_resolver import ModelResolver
from gateway.config.agents import AgentSettings
from gateway.errors import AgentError, NotFound
from gateway.tools.base import Complete, Finished, ReadOutcome, Tool
from tests.agents.test_served_agents import call
from tests.agents.test_tool import Tools, agent_file, endpoint
from tests.fakes.openai_server import ScriptedServer, openai_server

PIXEL = "iVBORw0KGgo="


@pytest.fixture(scope="module")
def server() -> Generator[ScriptedServer]:
    with openai_server() as running:
        yield running


class FakeToolbox(Tools):
    """A tool box with resources; `read` records the URI and the principal of each read."""

    def __init__(self, *tools: Tool, **resources: Any) -> None:
        super().__init__(*tools)
        self.resources = resources
        self.read: list[tuple[str, str]] = []

    async def read_resource(self, uri: str, ctx: CallContext) -> ReadOutcome:
        self.read.append((uri, ctx.facts.principal.id))
        if uri not in self.resources:
            raise NotFound("resource", uri)
        return Finished({"contents": [{"uri": uri, **self.resources[uri]}]})


@asynccontextmanager
async def source_of(folder: Path, server: ScriptedServer, toolbox: FakeToolbox, **settings: Any) -> AsyncGenerator[AgentSource]:
    models = ModelResolver(endpoint(server), None)
    given = AgentSettings.model_validate(settings)
    async with AgentSource([folder], toolbox=toolbox, models=models, environ={}, base_dir=folder, settings=given) as source:
        yield source
    await models.aclose()


async def seen(server: ScriptedServer) -> list[Any]:
    """Return the parts of the last user message that the model received."""
    [*_, last] = [m for m in (await server.requests())[-1]["body"]["messages"] if m["role"] == "user"]
    return last["content"] if isinstance(last["content"], list) else [{"type": "text", "text": last["content"]}]


@pytest.mark.requirement("TY10")
async def test_images_audio_files_and_links_are_sent_with_the_task(tmp_path: Path, server: ScriptedServer) -> None:
    agent_file(tmp_path)
    await server.play({"text": "seen"})
    attachments: list[Any] = [
        {"type": "text", "text": "beside"},
        {"type": "image", "mimeType": "image/png", "data": PIXEL},
        {"type": "audio", "mimeType": "audio/wav", "data": PIXEL},
        {"type": "resource", "resource": {"uri": "file:///a.csv", "mimeType": "text/csv", "text": "a,b"}},
        {"type": "resource", "resource": {"uri": "file:///a.pdf", "mimeType": "application/pdf", "blob": PIXEL}},
        {"type": "resource_link", "uri": "notes+note://7", "name": "seven"},
        {"type": "resource_link", "uri": "https://example.com/x.png", "mimeType": "image/png", "name": "x"},
    ]
    toolbox = FakeToolbox(**{"notes+note://7": {"mimeType": "text/plain", "text": "the seventh"}})
    async with source_of(tmp_path, server, toolbox) as source:
        assert (await call(source, attachments=attachments)).as_text() == "seen"
    parts = await seen(server)
    assert [part.get("text") for part in parts if part["type"] == "text"] == [
        "go", "beside", "File file:///a.csv:\na,b", "File notes+note://7:\nthe seventh",
    ]  # fmt: skip
    assert [p["image_url"]["url"] for p in parts if p["type"] == "image_url"] == [f"data:image/png;base64,{PIXEL}", "https://example.com/x.png"]
    assert [part["type"] for part in parts if part["type"] not in ("text", "image_url")] == ["input_audio", "file"]
    assert toolbox.read == [("notes+note://7", "local"), ("https://example.com/x.png", "local")]


@pytest.mark.parametrize(
    ("block", "message"),
    [
        ({"type": "image", "data": PIXEL}, "needs `data` (base64) and `mimeType`"),
        ({"type": "image", "mimeType": "image/png", "data": "no base64!"}, "is not valid base64"),
        ({"type": "film", "data": PIXEL}, "'film' is not a type"),
        ({"type": "resource", "resource": {"uri": "file:///x"}}, "`text` or `blob`"),
        ({"type": "resource_link"}, "needs `uri`"),
        ({"type": "resource_link", "uri": "file:///etc/passwd"}, "resources/list"),
        ({"type": "text", "text": "x" * (MAX_ATTACHED_CHARS + 1)}, "exceed 16777216 characters"),
    ],
)
async def test_invalid_attachment_is_named_and_no_model_is_called(
    tmp_path: Path, server: ScriptedServer, block: Any, message: str
) -> None:
    agent_file(tmp_path)
    await server.play()
    async with source_of(tmp_path, server, FakeToolbox()) as source:
        with pytest.raises(AgentError) as caught:
            await call(source, attachments=[{"type": "text", "text": "fine"}, block])
        with pytest.raises(AgentError, match="at most 20"):
            await call(source, attachments=[{"type": "text", "text": "x"}] * (MAX_ATTACHMENTS + 1))
    assert "attachments[1]" in str(caught.value) and message in str(caught.value)
    assert await server.requests() == []


async def test_agent_cannot_link_resources_for_another_agent(tmp_path: Path, server: ScriptedServer) -> None:
    agent_file(tmp_path)
    await server.play({"text": "seen"})
    toolbox = FakeToolbox(**{"notes+note://7": {"mimeType": "text/plain", "text": "the seventh"}})
    inside = CallContext().inside_agent()
    async with source_of(tmp_path, server, toolbox) as source:
        with pytest.raises(AgentError, match="attach its content"):
            await call(source, inside, attachments=[{"type": "resource_link", "uri": "notes+note://7"}])
        await call(source, inside, attachments=[{"type": "resource_link", "uri": "https://example.com/"}])
    assert toolbox.read == []


async def test_agent_may_take_no_attachments(tmp_path: Path, server: ScriptedServer) -> None:
    agent_file(tmp_path, "plain", attachments="false")
    agent_file(tmp_path, "rich")
    async with source_of(tmp_path, server, FakeToolbox()) as source:
        found = {tool.definition.name: set(tool.definition.input_schema["properties"]) for tool in await source.tools()}
    assert found == {"plain": {"task"}, "rich": {"task", "attachments"}}


async def test_image_that_a_tool_gives_reaches_the_model(tmp_path: Path, server: ScriptedServer) -> None:
    class Camera(FunctionTool[..., Any]):
        async def call(self, arguments: Any, ctx: CallContext) -> Complete:
            return Complete({"content": [{"type": "image", "data": PIXEL, "mimeType": "image/png"}]})

    def look() -> str:
        """Takes a picture."""
        return ""

    agent_file(tmp_path, tools="[function/look]")
    await server.play({"tool_calls": [{"name": "look", "arguments": {}}]}, {"text": "a pixel"})
    async with source_of(tmp_path, server, FakeToolbox(Camera(look))) as source:
        assert (await call(source)).as_text() == "a pixel"
    assert f"data:image/png;base64,{PIXEL}" in json.dumps((await server.requests())[-1]["body"])


@pytest.mark.requirement("MW6", "HK1", "FA1")
async def test_gateway_middleware_wraps_middleware_of_files(tmp_path: Path, server: ScriptedServer) -> None:
    (tmp_path / "around_all_agents.py").write_text(
        textwrap.dedent("""
            from gateway import LifecycleHooks, agent_middleware

            called = []

            @agent_middleware
            async def outer(context, call_next):
                called.append("outer")
                await call_next()

            @agent_middleware
            async def inner(context, call_next):
                called.append("inner")
                await call_next()

            class First(LifecycleHooks):
                async def before_message_turn(self, context):
                    called.append(f"{type(self).__name__} {context.user_message}")

            class Second(First):
                pass
        """)
    )
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "note.txt").write_text("kept here")
    agent_file(tmp_path, middleware="[around_all_agents:inner]")
    middleware = [f"around_all_agents:{name}" for name in ("First", "outer", "Second")]
    read = {"tool_calls": [{"name": "file_access_read_file", "arguments": {"file_name": "note.txt"}}]}
    await server.play(read, {"text": "{last_tool} / {tools}"})
    async with source_of(tmp_path, server, FakeToolbox(), middleware=middleware, files={"root": "data"}) as source:
        assert source.problems == []
        said = (await call(source)).as_text()
    assert sys.modules["around_all_agents"].called == ["First go", "Second go", "outer", "inner"]
    assert said.startswith("kept here")
    assert "file_access_read_file" in said and "file_access_save_file" not in said, "read-only unless it says otherwise"


async def test_ready_made_middleware_is_named_with_its_arguments(tmp_path: Path, server: ScriptedServer) -> None:
    def double(n: int) -> int:
        """Twice n."""
        return 2 * n

    agent_file(tmp_path, tools="[function/double]", middleware='[{"gateway:RepeatedCallMiddleware": {max_repeats: 1}}]')
    again = {"tool_calls": [{"name": "double", "arguments": {"n": 1}}]}
    await server.play(again, again, {"text": "{last_tool}"})
    around: list[Any] = [{"gateway:ModelTimeoutMiddleware": {"seconds": 20}}]
    async with source_of(tmp_path, server, FakeToolbox(FunctionTool(double)), middleware=around) as source:
        assert source.problems == []
        said = (await call(source)).as_text()
    assert "already called" in said, said
    (tmp_path / "helper.agent.md").unlink()
    agent_file(tmp_path, middleware='[{"gateway:ModelTimeoutMiddleware": {minutes: 1}}]')
    async with source_of(tmp_path, server, FakeToolbox()) as source:
        [problem] = source.problems
    assert "ModelTimeoutMiddleware" in problem.message and "minutes" in problem.message


async def test_invalid_gateway_middleware_disables_every_agent(tmp_path: Path, server: ScriptedServer) -> None:
    agent_file(tmp_path)
    async with source_of(tmp_path, server, FakeToolbox(), middleware=["json:loads"]) as source:
        assert await source.tools() == []
        [problem] = source.problems
    assert problem.where == "agents.middleware" and "json:loads" in problem.message


@pytest.mark.parametrize("own", [None, "{sinks: []}"])
async def test_gateway_security_applies_to_files_without_their_own(
    tmp_path: Path, server: ScriptedServer, own: str | None
) -> None:
    def double(n: int) -> int:
        """Twice n."""
        return 2 * n

    agent_file(tmp_path, tools="[function/double]", **({"security": own} if own else {}))
    calls = [{"tool_calls": [{"name": "double", "arguments": {"n": n}}]} for n in (1, 2)]
    await server.play(*calls, {"text": "{last_tool}"})
    async with source_of(tmp_path, server, FakeToolbox(FunctionTool(double)), security={"onViolation": "refuse"}) as source:
        said = (await call(source)).as_text()
    assert ("Refused" in said) is (own is None), said

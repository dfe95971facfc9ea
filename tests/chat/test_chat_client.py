"""Common behaviour of chat clients: one method, one hook, shortcuts, protocols, import paths of integrations."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Sequence
from typing import Any

import pytest

from gateway import (
    AgentResponse,
    BaseChatClient,
    ChatContext,
    ChatOptions,
    ChatResponse,
    ChatResponseUpdate,
    Content,
    FoundryChatClient,
    Message,
    OpenAIChatClient,
    OpenAIChatCompletionClient,
    ResponseStream,
    ScriptedChatClient,
    SupportsChatGetResponse,
    SupportsCodeInterpreterTool,
    SupportsFileSearchTool,
    SupportsImageGenerationTool,
    SupportsMCPTool,
    SupportsShellTool,
    SupportsWebSearchTool,
    chat_middleware,
    tool,
)
from gateway.errors import SettingNotFoundError
from tests.chat.asking import WHOLE, ask
from tests.fakes.openai_server import ScriptedServer

PROTOCOLS = [
    SupportsCodeInterpreterTool,
    SupportsFileSearchTool,
    SupportsImageGenerationTool,
    SupportsMCPTool,
    SupportsShellTool,
    SupportsWebSearchTool,
]


class Echo(BaseChatClient):
    """A client written for agent-framework: one hook for whole and streamed responses."""

    def _inner_get_response(
        self, *, messages: Sequence[Message], stream: bool, options: ChatOptions, **kwargs: Any
    ) -> Awaitable[ChatResponse] | ResponseStream[ChatResponseUpdate, ChatResponse]:
        text = f"{messages[-1].text}{kwargs.get('mark', '')}"

        async def parts() -> AsyncIterator[ChatResponseUpdate]:
            for letter in text:
                yield ChatResponseUpdate([Content.from_text(letter)], "assistant")

        async def whole() -> ChatResponse:
            return ChatResponse(Message("assistant", [text]))

        return ResponseStream(parts(), ChatResponse.from_updates) if stream else whole()


@pytest.mark.requirement("CL1", "CL2")
async def test_one_hook_serves_whole_and_streamed_responses() -> None:
    assert (await Echo().get_response("hi")).text == "hi"
    stream = Echo().get_response("hi", stream=True)
    assert [update.text async for update in stream] == ["h", "i"]
    assert (await stream.get_final_response()).text == "hi"
    assert (await Echo().get_response("hi", client_kwargs={"mark": "!"})).text == "hi!"
    assert isinstance(Echo(), SupportsChatGetResponse)


async def test_client_without_a_hook_is_an_error() -> None:
    class Nothing(BaseChatClient):
        pass

    with pytest.raises(NotImplementedError, match="Nothing"):
        await Nothing().get_response("hi")


@pytest.mark.requirement("CL3")
async def test_stream_is_lazy_maps_and_runs_its_hooks() -> None:
    seen: list[str] = []
    stream = Echo().get_response("abc", stream=True)
    stream.with_result_hook(lambda response: seen.append(response.text)).with_cleanup_hook(lambda: seen.append("cleaned"))
    upper = stream.map(lambda update: update.text.upper(), "".join)
    assert seen == []
    assert await upper.get_final_response() == "ABC"
    assert sorted(seen) == ["abc", "cleaned"]


@pytest.mark.requirement("CL4")
async def test_chat_middleware_wraps_each_model_call_of_the_tool_loop() -> None:
    order: list[str] = []

    @chat_middleware
    async def around(context: ChatContext, call_next: Any) -> None:
        order.append(f"before {len(context.messages)}")
        await call_next()
        order.append("after")

    @tool
    def look() -> str:
        """Looks."""
        order.append("tool")
        return "dust"

    client = ScriptedChatClient([Content.from_function_call("c1", "look", {}), "done"])
    agent = client.as_agent(tools=[look], middleware=[around])
    assert (await agent.run("hi")).text == "done"
    assert order == ["before 1", "after", "tool", "before 3", "after"]


@pytest.mark.requirement("CL2")
async def test_custom_client_may_use_the_helpers_of_the_base_class() -> None:
    class Checked(BaseChatClient):
        def _inner_get_response(self, *, messages: Sequence[Message], stream: bool, options: ChatOptions, **kwargs: Any) -> Any:
            async def parts() -> AsyncIterator[ChatResponseUpdate]:
                checked = await self._validate_options(options)
                yield ChatResponseUpdate([Content.from_text(f'{{"heat": {checked["temperature"]}}}')], "assistant")

            answer = self._build_response_stream(parts(), response_format=options.get("response_format"))
            return answer if stream else answer.get_final_response()

    options: Any = {"temperature": 1, "response_format": {"type": "object"}}
    assert (await Checked().get_response("hi", options=options)).value == {"heat": 1.0}
    assert (await Checked().get_response("hi", stream=True, options=options).get_final_response()).text == '{"heat": 1.0}'
    with pytest.raises(ValueError, match="temperature must be between"):
        await Checked().get_response("hi", options={"temperature": 9})


@pytest.mark.requirement("CL5")
async def test_client_becomes_an_agent() -> None:
    agent = Echo().as_agent(name="parrot", instructions="Repeat.", default_options={"temperature": 0.1})
    response = await agent.run("polly")
    assert isinstance(response, AgentResponse)
    assert (agent.name, response.text) == ("parrot", "polly")


@pytest.mark.requirement("CL6")
def test_protocols_show_the_hosted_tools_of_a_client() -> None:
    responses = OpenAIChatClient("m", api_key="x")
    completions = OpenAIChatCompletionClient("m", api_key="x")
    assert [isinstance(responses, protocol) for protocol in PROTOCOLS] == [True] * 6
    assert [p.__name__ for p in PROTOCOLS if isinstance(completions, p)] == ["SupportsWebSearchTool"]
    assert not [p for p in PROTOCOLS if isinstance(Echo(), p)]


@pytest.mark.requirement("CL8")
async def test_foundry_project_is_reached_below_its_endpoint_with_a_token(server: ScriptedServer) -> None:
    project = server.base_url.removesuffix("/v1")
    client = FoundryChatClient(project_endpoint=f"{project}/api/projects/moon", model="dep", credential=lambda: "token-1")
    assert client.service_url() == f"{project}/api/projects/moon/openai/v1"
    near = FoundryChatClient(
        project_endpoint="https://unused",
        model="dep",
        async_client=OpenAIChatClient("dep", api_key="token-1", base_url=server.base_url).client,
    )
    await server.play({"text": "from the project"})
    assert (await ask(near, WHOLE)).text == "from the project"
    await near.aclose()


@pytest.mark.requirement("AG10")
@pytest.mark.parametrize(("given", "says"), [({}, "FOUNDRY_MODEL"), ({"model": "m"}, r"moongate\[foundry\]")])
def test_missing_foundry_package_is_named_with_its_install_command(given: dict[str, Any], says: str) -> None:
    with pytest.raises(SettingNotFoundError, match=says):
        FoundryChatClient(project_endpoint="https://example.com", **given)


@pytest.mark.requirement("AG10")
@pytest.mark.parametrize(
    ("path", "name"),
    [
        ("gateway.openai", "OpenAIChatClient"),
        ("gateway.foundry", "FoundryChatClient"),
        ("gateway.observability", "enable_instrumentation"),
        ("gateway.orchestrations", "SequentialBuilder, HandoffBuilder"),
        ("gateway.a2a", "A2AAgent"),
        ("gateway.ag_ui", "AGUIChatClient"),
    ],
)
def test_integration_path_loads_no_vendor_package(path: str, name: str) -> None:
    code = f"import sys; from {path} import {name}; print([m for m in ('openai', 'azure', 'opentelemetry.sdk') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=20, check=True)
    assert done.stdout.strip() == "[]"

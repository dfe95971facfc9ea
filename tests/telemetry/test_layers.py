"""Other parts of `gateway.observability`: layers for custom agents, attribute names, spans of MCP clients."""

from __future__ import annotations

from typing import Any

import pytest
from opentelemetry.trace import SpanKind, StatusCode

from gateway import (
    Agent,
    AgentResponse,
    AgentResponseUpdate,
    AgentSession,
    BaseAgent,
    BaseChatClient,
    ChatMiddlewareLayer,
    ChatResponse,
    Content,
    FunctionInvocationLayer,
    Message,
    ResponseStream,
    ScriptedChatClient,
    agent_middleware,
    disable_instrumentation,
)
from gateway.agents.layers import AgentMiddlewareLayer
from gateway.errors import ModelError
from gateway.observability import (
    OBSERVABILITY_SETTINGS,
    AgentTelemetryLayer,
    ChatTelemetryLayer,
    OtelAttr,
    create_mcp_client_span,
    enable_instrumentation,
    set_mcp_span_error,
)
from tests.agents.building import both_ways
from tests.telemetry.conftest import Recorded

pytestmark = pytest.mark.requirement("OT1")


class Echo(BaseAgent):
    """An agent that does not extend Moongate's classes."""

    def run(self, messages: Any = None, *, stream: bool = False, session: AgentSession | None = None, **kwargs: Any) -> Any:
        text = messages if isinstance(messages, str) else messages[-1].text

        async def parts() -> Any:
            if text == "fail":
                raise ModelError("SECRET")
            yield AgentResponseUpdate(contents=[Content.from_text(f"echo {text}")], role="assistant", response_id="r1")
            yield AgentResponseUpdate(contents=[Content.from_usage({"input_token_count": 2})], role="assistant", response_id="r1")

        answer = ResponseStream[AgentResponseUpdate, AgentResponse](parts(), finalizer=AgentResponse.from_updates)
        return answer if stream else answer.get_final_response()


class Traced(AgentTelemetryLayer, AgentMiddlewareLayer, Echo):
    """An agent composed like agent-framework's agents."""

    AGENT_PROVIDER_NAME = "mine"


async def answer_of(agent: Any, stream: bool, text: str = "hi", **how: Any) -> AgentResponse:
    found = agent.run(text, stream=stream, **how)
    response: AgentResponse = await (found.get_final_response() if stream else found)
    return response


@both_ways
async def test_custom_agent_gets_a_span_for_each_run_from_the_layer(stream: bool, recorded: Recorded) -> None:
    agent = Traced(id="e1", name="echo", description="Says it again.")
    response = await answer_of(agent, stream, session=agent.create_session(session_id="s1"))
    assert response.text == "echo hi"
    span = recorded.spans()["invoke_agent echo"]
    assert dict(span.attributes or {}) == {
        OtelAttr.OPERATION: OtelAttr.AGENT_INVOKE_OPERATION,
        OtelAttr.PROVIDER_NAME: "mine",
        OtelAttr.AGENT_ID: "e1",
        OtelAttr.AGENT_NAME: "echo",
        OtelAttr.AGENT_DESCRIPTION: "Says it again.",
        OtelAttr.CONVERSATION_ID: "s1",
        OtelAttr.RESPONSE_ID: "r1",
        OtelAttr.INPUT_TOKENS: 2,
        "agent.request.message_count": 1,
        "agent.response.message_count": 1,
    }
    with pytest.raises(ModelError):
        await answer_of(agent, stream, "fail")
    failed = recorded.spans()["invoke_agent echo"]
    assert (failed.status.status_code, (failed.attributes or {})["error.type"]) == (StatusCode.ERROR, "ModelError")
    assert "SECRET" not in failed.to_json()


async def test_layer_adds_nothing_if_off_or_already_traced(recorded: Recorded) -> None:
    class Both(AgentTelemetryLayer, Agent):
        """An agent with two layers that could trace each run twice."""

    await answer_of(Both(ScriptedChatClient(["hi"]), name="twice"), stream=False)
    assert [span.name for span in recorded.exporter.get_finished_spans()] == ["chat scripted", "invoke_agent twice"]
    disable_instrumentation()
    await answer_of(Traced(name="quiet", otel_provider_name="other"), stream=True)
    assert "invoke_agent quiet" not in recorded.spans()


async def test_client_with_layers_among_its_bases_is_traced_once(recorded: Recorded) -> None:
    class Layered(FunctionInvocationLayer[Any], ChatMiddlewareLayer[Any], ScriptedChatClient):
        """A client composed like agent-framework's clients."""

    await answer_of(Agent(Layered(["hi"]), name="once"), stream=False)
    assert [span.name for span in recorded.exporter.get_finished_spans()] == ["chat scripted", "invoke_agent once"]


@both_ways
@pytest.mark.requirement("MW1", "MW6", "MW2")
async def test_agent_of_ones_own_gets_agent_middleware_from_the_layer(stream: bool) -> None:
    log: list[str] = []

    def noting(name: str) -> Any:
        @agent_middleware
        async def notes(context: Any, call_next: Any) -> None:
            log.append(f"{name}>")
            context.messages.append(Message("user", [name]))
            await call_next()
            log.append(f"<{name}")

        return notes

    class Around(AgentMiddlewareLayer, Echo):
        """Middleware without telemetry."""

    agent = Around(name="echo", middleware=[noting("agent")])
    response = await answer_of(agent, stream, middleware=[noting("run")])
    assert (response.text, log) == ("echo run", ["agent>", "run>", "<run", "<agent"])

    @agent_middleware
    async def instead(context: Any, call_next: Any) -> None:
        context.result = "instead"

    assert (await answer_of(agent, stream, middleware=[instead])).text == "instead"


async def test_client_names_its_provider_in_telemetry(recorded: Recorded) -> None:
    class Client(ChatTelemetryLayer, BaseChatClient):
        async def _inner_get_response(self, **given: Any) -> ChatResponse:
            return ChatResponse(messages=[Message("assistant", ["hi"])])

    await Client(model="m", otel_provider_name="mine").get_response("hi")
    assert (recorded.spans()["chat m"].attributes or {})[OtelAttr.PROVIDER_NAME] == "mine"


async def test_request_that_a_client_refuses_at_once_has_a_span(recorded: Recorded) -> None:
    class Client(ChatTelemetryLayer, BaseChatClient):
        def _inner_get_response(self, **given: Any) -> Any:
            raise ValueError("unknown option")

    with pytest.raises(ValueError, match="unknown option"):
        await Client(model="m").get_response("hi")
    span = recorded.spans()["chat m"]
    assert (span.status.status_code, (span.attributes or {})["error.type"]) == (StatusCode.ERROR, "ValueError")


def test_attribute_names_are_the_exported_ones() -> None:
    assert (str(OtelAttr.OPERATION), repr(OtelAttr.OPERATION)) == ("gen_ai.operation.name", "gen_ai.operation.name")
    assert {OtelAttr.WORKFLOW_RUN_SPAN: 1}["workflow.run"] == 1  # pyright: ignore[reportArgumentType]  # a string in every way
    assert len({member.value for member in OtelAttr}) == len(OtelAttr)


def test_custom_client_creates_its_own_span(recorded: Recorded) -> None:
    with create_mcp_client_span("tools/call", "search", {"mcp.session.id": "s"}) as span:
        set_mcp_span_error(span, "tool_error", "no such page")
    with pytest.raises(ValueError), create_mcp_client_span("initialize"):
        raise ValueError("SECRET")
    call, first = recorded.spans()["tools/call search"], recorded.spans()["initialize"]
    assert call.kind is SpanKind.CLIENT
    assert dict(call.attributes or {}) == {"mcp.method.name": "tools/call", "mcp.session.id": "s", "error.type": "tool_error"}
    assert (call.status.status_code, call.status.description) == (StatusCode.ERROR, "no such page")
    assert (first.attributes or {})["error.type"] == "ValueError" and "SECRET" not in first.to_json()


def test_switch_reports_its_state(recorded: Recorded) -> None:
    stands = OBSERVABILITY_SETTINGS
    assert (stands.ENABLED, stands.SENSITIVE_DATA_ENABLED, stands.is_user_disabled) == (True, False, False)
    disable_instrumentation()
    with create_mcp_client_span("ping") as span:
        assert not span.is_recording()
    assert (stands.ENABLED, stands.is_user_disabled) == (False, True)
    enable_instrumentation(enable_sensitive_data=True, force=True)
    assert stands.SENSITIVE_DATA_ENABLED

"""Spans and metrics of runs, model calls and tool calls, following the GenAI conventions."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader

from gateway import (
    Agent,
    BaseEmbeddingClient,
    ChatContext,
    ChatResponse,
    Content,
    Embedding,
    GeneratedEmbeddings,
    Message,
    OpenAIEmbeddingClient,
    ScriptedChatClient,
    chat_middleware,
    disable_instrumentation,
    enable_instrumentation,
    tool,
)
from gateway.errors import ModelError
from gateway.observability import OBSERVABILITY_SETTINGS, EmbeddingTelemetryLayer, create_metric_views
from gateway.telemetry import providers as setup
from gateway.tools.base import Complete
from tests.fakes.openai_server import ScriptedServer, openai_server
from tests.telemetry.conftest import Recorded

pytestmark = pytest.mark.requirement("OT1")

USAGE = Content.from_usage({"input_token_count": 5, "output_token_count": 3})


@pytest.fixture(scope="module")
def server() -> Generator[ScriptedServer]:
    with openai_server() as running:
        yield running


def look(place: str) -> str:
    """Looks somewhere."""
    if place == "nowhere":
        raise ValueError("secret detail")
    return f"dust in the {place}"


def agent(*places: str) -> Agent:
    calls = [Content.from_function_call(f"c{n}", "look", {"place": place}) for n, place in enumerate(places)]
    client = ScriptedChatClient([[*calls, USAGE], ["secret answer", USAGE]], model="model-a")
    return Agent(client, "secret instructions", name="scout", tools=[look])


async def test_run_has_its_model_calls_and_tool_calls_below_it(recorded: Recorded) -> None:
    await agent("attic", "cellar").run("secret question", session=agent().create_session(session_id="s1"))
    spans = recorded.spans()
    run = spans["invoke_agent scout"]
    assert sorted(span.name for span in recorded.exporter.get_finished_spans()) == [
        "chat model-a",
        "chat model-a",
        "execute_tool look",
        "execute_tool look",
        "invoke_agent scout",
    ]
    assert run.context is not None and run.parent is None
    below = [span for span in recorded.exporter.get_finished_spans() if span.name != run.name]
    assert {span.parent.span_id for span in below if span.parent} == {run.context.span_id}
    assert run.attributes is not None
    assert (run.attributes["gen_ai.operation.name"], run.attributes["gen_ai.agent.name"]) == ("invoke_agent", "scout")
    assert run.attributes["gen_ai.conversation.id"] == "s1"
    chat, tool = spans["chat model-a"].attributes or {}, spans["execute_tool look"].attributes or {}
    assert (chat["gen_ai.operation.name"], chat["gen_ai.request.model"], chat["gen_ai.usage.input_tokens"]) == ("chat", "model-a", 5)
    assert (tool["gen_ai.tool.name"], tool["gen_ai.tool.description"]) == ("look", "Looks somewhere.")


async def test_tokens_are_counted_once_and_a_run_sums_them_up(recorded: Recorded) -> None:
    await agent("attic").run("hi")
    run = recorded.spans()["invoke_agent scout"].attributes or {}
    assert (run["gen_ai.usage.input_tokens"], run["gen_ai.usage.output_tokens"]) == (10, 6)
    tokens = {point[0]["gen_ai.token.type"]: point[1:] for point in recorded.points("gen_ai.client.token.usage")}
    assert tokens == {"input": (10, 2), "output": (6, 2)}


async def test_durations_are_separate_by_operation(recorded: Recorded) -> None:
    await agent("attic").run("hi")
    counts = {labels["gen_ai.operation.name"]: count for labels, _, count in recorded.points("gen_ai.client.operation.duration")}
    assert counts == {"chat": 2, "execute_tool": 1, "invoke_agent": 1}


async def test_message_texts_are_left_out(recorded: Recorded) -> None:
    await agent("attic", "nowhere").run("secret question")
    shown = "".join(span.to_json() for span in recorded.exporter.get_finished_spans())
    assert not [word for word in ("secret", "attic", "dust") if word in shown]


async def test_message_texts_are_recorded_if_enabled(recorded: Recorded) -> None:
    enable_instrumentation(enable_sensitive_data=True)
    await agent("attic").run("secret question")
    spans = recorded.spans()
    chat, tool = spans["chat model-a"].attributes or {}, spans["execute_tool look"].attributes or {}
    messages = json.loads(str(chat["gen_ai.input.messages"]))
    assert [message["role"] for message in messages] == ["user", "assistant", "tool"]
    assert messages[0]["parts"] == [{"type": "text", "content": "secret question"}]
    assert json.loads(str(chat["gen_ai.output.messages"]))[0]["parts"] == [{"type": "text", "content": "secret answer"}]
    assert "attic" in str(tool["gen_ai.tool.call.arguments"]) and "dust" in str(tool["gen_ai.tool.call.result"])


async def test_failure_is_recorded_by_its_class(recorded: Recorded) -> None:
    failing = Agent(ScriptedChatClient([ModelError("secret reason")], model="model-a"), name="scout")
    with pytest.raises(ModelError):
        await failing.run("hi")
    await agent("nowhere").run("hi")
    spans = [span for span in recorded.exporter.get_finished_spans() if "error.type" in (span.attributes or {})]
    assert [(span.name, (span.attributes or {})["error.type"]) for span in spans] == [
        ("chat model-a", "ModelError"),
        ("invoke_agent scout", "ModelError"),
        ("execute_tool look", "ValueError"),
    ]
    assert not [span for span in spans if span.status.is_ok]


async def test_exception_text_is_traced_with_sensitive_data_only(recorded: Recorded) -> None:
    await agent("nowhere").run("hi")
    [event] = recorded.spans()["execute_tool look"].events
    assert (event.name, dict(event.attributes or {})) == ("exception", {"exception.type": "ValueError"})
    failing = Agent(ScriptedChatClient([ModelError("secret reason")]), name="scout")
    with pytest.raises(ModelError):
        await failing.run("hi")
    types = [(event.attributes or {})["exception.type"] for event in recorded.spans()["invoke_agent scout"].events]
    assert types == ["gateway.errors.ModelError"]
    enable_instrumentation(enable_sensitive_data=True)
    await agent("nowhere").run("hi")
    [event] = recorded.spans()["execute_tool look"].events
    assert (event.attributes or {})["exception.message"] == "secret detail"


async def test_tool_failures_that_are_not_exceptions_have_a_type_too(recorded: Recorded) -> None:
    @tool
    def refuses() -> Complete:
        return Complete.text("no", is_error=True)

    client = ScriptedChatClient([[Content.from_function_call("1", "refuses", {}), Content.from_function_call("2", "missing", {})], "ok"])
    await Agent(client, name="scout", tools=[refuses]).run("hi")
    spans = recorded.spans()
    types = [(spans[f"execute_tool {name}"].attributes or {})["error.type"] for name in ("refuses", "missing")]
    assert types == ["tool_error", "UnknownTool"]


async def test_runs_are_counted_and_measured_by_operation_and_agent(recorded: Recorded) -> None:
    await agent("attic").run("hi")
    failing = Agent(ScriptedChatClient([ModelError("secret reason")], model="model-a"), name="other")
    with pytest.raises(ModelError):
        await failing.run(["hi", "there"])
    told = recorded.all_points()
    counts = {labels["gen_ai.agent.name"]: (labels, value) for labels, value, _ in told["agent.client.request.count"]}
    assert (counts["scout"][1], counts["other"][1]) == (1, 1)
    assert counts["scout"][0]["gen_ai.operation.name"] == "invoke_agent"
    assert (counts["other"][0].get("error.type"), counts["scout"][0].get("error.type")) == ("ModelError", None)
    tokens = {(labels["gen_ai.agent.name"], labels["gen_ai.token.type"]): total for labels, total, _ in told["agent.client.token.usage"]}
    assert tokens == {("scout", "input"): 10, ("scout", "output"): 6}
    durations = {labels.get("gen_ai.agent.name"): n for labels, _, n in told["gen_ai.client.operation.duration"]}
    assert (durations["scout"], durations["other"]) == (1, 1)
    spans = recorded.spans()
    for name, asked, answered in (("scout", 1, 3), ("other", 2, 0)):
        attributes = spans[f"invoke_agent {name}"].attributes or {}
        assert (attributes["agent.request.message_count"], attributes["agent.response.message_count"]) == (asked, answered)


@pytest.mark.requirement("EM1")
async def test_layer_traces_embeddings_of_a_client_of_ones_own(recorded: Recorded) -> None:
    class Ones(BaseEmbeddingClient):
        model = "ones"

        async def get_embeddings(self, values: Any, *, options: Any = None) -> GeneratedEmbeddings:
            return GeneratedEmbeddings([Embedding([1.0]) for _ in values], usage={"input_token_count": 3})

    class Traced(EmbeddingTelemetryLayer, Ones):
        """A client composed like agent-framework's embedding clients."""

    assert len(await Traced(otel_provider_name="mine").get_embeddings(["a", "b"])) == 2
    span = recorded.spans()["embeddings ones"].attributes or {}
    assert (span["gen_ai.provider.name"], span["gen_ai.usage.input_tokens"]) == ("mine", 3)


@pytest.mark.requirement("CL4")
async def test_model_that_middleware_did_not_ask_has_no_span(recorded: Recorded) -> None:
    @chat_middleware
    async def cached(context: ChatContext, call_next: Any) -> None:
        context.result = ChatResponse(Message("assistant", "from the cache"))

    assert (await Agent(ScriptedChatClient([]), name="scout", middleware=[cached]).run("hi")).text == "from the cache"
    assert set(recorded.spans()) == {"invoke_agent scout"}


@pytest.mark.requirement("EM1")
async def test_embeddings_have_a_span_and_count_their_tokens(recorded: Recorded, server: ScriptedServer) -> None:
    await server.play()
    embedder = OpenAIEmbeddingClient("embed-a", api_key="k", base_url=server.base_url)
    await embedder.get_embeddings(["secret", "text"])
    await embedder.aclose()
    span = recorded.spans()["embeddings embed-a"].attributes or {}
    assert (span["gen_ai.provider.name"], span["gen_ai.usage.input_tokens"]) == ("openai", 2)
    points = recorded.points("gen_ai.client.token.usage")
    assert [(labels["gen_ai.operation.name"], total) for labels, total, _ in points] == [("embeddings", 2)]
    assert "secret" not in recorded.spans()["embeddings embed-a"].to_json()


async def test_abandoned_stream_ends_its_spans_without_an_error(recorded: Recorded) -> None:
    stream = agent("attic").run("hi", stream=True)
    await anext(aiter(stream))
    await stream.aclose()
    spans = recorded.spans()
    assert set(spans) == {"chat model-a", "invoke_agent scout"}
    assert not [span for span in spans.values() if "error.type" in (span.attributes or {})]


async def test_off_is_the_default_and_off_for_good_needs_force(recorded: Recorded) -> None:
    disable_instrumentation()
    enable_instrumentation()
    await agent("attic").run("hi")
    assert recorded.exporter.get_finished_spans() == ()
    enable_instrumentation(force=True)
    assert OBSERVABILITY_SETTINGS.enable_instrumentation


PROVIDERS = """
import asyncio, logging, sys
from gateway import Agent, ScriptedChatClient
from gateway.observability import configure_otel_providers, create_metric_views, create_resource, get_meter, get_tracer
from opentelemetry import metrics, trace
from opentelemetry._logs import get_logger_provider
from opentelemetry.sdk._logs.export import InMemoryLogRecordExporter
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

spans, logs = InMemorySpanExporter(), InMemoryLogRecordExporter()
configure_otel_providers(exporters=[spans, logs], views=create_metric_views(), env_file_path=sys.argv[1])
logging.getLogger("gateway.agents").warning("a %s", "warning")
logging.getLogger("elsewhere").warning("not ours")
asyncio.run(Agent(ScriptedChatClient(["hi"]), name="scout").run("go"))
with get_tracer("mine", "1", attributes={"a": 1}).start_as_current_span("my span"):
    get_meter("mine", "1", attributes={"a": 1}).create_counter("my.count").add(1)
trace.get_tracer_provider().force_flush()
get_logger_provider().force_flush()
print(sorted(span.name for span in spans.get_finished_spans()))
print(spans.get_finished_spans()[0].resource.attributes["service.name"])
print([(one.log_record.severity_text, one.log_record.body) for one in logs.get_finished_logs()])
print(create_resource(service_version="7", team="moon").attributes["team"])
"""


def test_providers_are_set_up_from_a_variables_file(tmp_path: Path) -> None:
    file = tmp_path / ".env"
    file.write_text("OTEL_SERVICE_NAME=from-file\n", encoding="utf-8")
    command = [sys.executable, "-W", "error", "-c", PROVIDERS, str(file)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout.splitlines()) == (
        0,
        ["['chat scripted', 'invoke_agent scout', 'my span']", "from-file", "[('WARNING', 'a warning')]", "moon"],
    ), done.stderr


def test_metric_views_keep_ours_and_drop_the_rest() -> None:
    reader = InMemoryMetricReader()
    meter = MeterProvider([reader], views=create_metric_views()).get_meter("any")
    for name in ("gen_ai.client.token.usage", "agent.client.request.count", "mcp.server.operation.duration", "their.count"):
        meter.create_counter(name).add(1)
    data = reader.get_metrics_data()
    assert data is not None
    names = {metric.name for found in data.resource_metrics for scope in found.scope_metrics for metric in scope.metrics}
    assert names == {"gen_ai.client.token.usage", "agent.client.request.count", "mcp.server.operation.duration"}


@pytest.mark.requirement("AG10")
def test_export_without_the_extra_names_the_install_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "opentelemetry.sdk.trace", None)
    with pytest.raises(ModuleNotFoundError, match=r"pip install 'moongate\[telemetry\]'"):
        setup.configure_otel_providers()

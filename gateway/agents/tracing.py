"""OpenTelemetry spans and metrics of agent runs and tool calls, by the GenAI semantic conventions. Used only if instrumentation is on.

`chat.model_tracing` counts the tokens of each model call in the metric `gen_ai.client.token.usage`. The sum of a run is in the run's span
and in the separate metric `agent.client.token.usage`, so that no metric counts a token twice.
"""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from typing import Any, cast

from gateway.agents.base_agent import BaseAgent
from gateway.agents.run_context import AgentContext
from gateway.chat.model_tracing import DURATION, LABELS, answered, count_tokens, provider_of, shown
from gateway.json_types import JsonMapping
from gateway.sessions.session import AgentSession
from gateway.telemetry.instrumentation import OBSERVABILITY_SETTINGS, Operation, follow
from gateway.tools.base import Tool
from gateway.types.content import Content
from gateway.types.messages import Message
from gateway.types.options import ChatOptions
from gateway.types.responses import AgentResponse, AgentResponseUpdate

REQUESTS = "agent.client.request.count"
TOKENS = "agent.client.token.usage"
RUN_LABELS = (*LABELS, "gen_ai.agent.name")
"""Attributes of a run's span that become labels of the run's metrics."""


def traced_run(
    agent: BaseAgent, context: AgentContext, updates: AsyncGenerator[AgentResponseUpdate, None]
) -> AsyncGenerator[AgentResponseUpdate, None]:
    """Return the updates of an agent's run; reading them records the run as one span."""
    operation = begin_run(agent, context.messages, context.session, context.options)
    return follow(operation, updates, lambda seen: finish_run(operation, AgentResponse.from_updates(seen)))


def begin_run(agent: Any, messages: Sequence[Message], session: AgentSession | None, options: JsonMapping | ChatOptions) -> Operation:
    """Start the span for an agent's run. `agent` can be of any class."""
    client, defaults = getattr(agent, "client", None), cast("JsonMapping", getattr(agent, "default_options", None) or {})
    name = agent.name or agent.id
    attributes = {"gen_ai.operation.name": "invoke_agent", "gen_ai.provider.name": agent.otel_provider_name or provider_of(client)}
    operation = Operation(f"invoke_agent {name}", {**attributes, "gen_ai.agent.id": agent.id, "gen_ai.agent.name": name}, metric=DURATION)
    operation.add({"agent.request.message_count": len(messages)})
    if agent.description:
        operation.add({"gen_ai.agent.description": agent.description})
    model = options.get("model") or defaults.get("model") or getattr(client, "model", None)
    if model:
        operation.add({"gen_ai.request.model": str(model)})
    if session is not None:
        operation.add({"gen_ai.conversation.id": session.service_session_id or session.session_id})
    if OBSERVABILITY_SETTINGS.enable_sensitive_data:
        operation.add({"gen_ai.input.messages": shown(messages)})
        if instructions := getattr(agent, "instructions", None):
            operation.add({"gen_ai.system_instructions": json.dumps([{"type": "text", "content": instructions}])})
    return operation


def finish_run(operation: Operation, response: AgentResponse) -> None:
    """End the span of an agent's run and update the metrics. If the run failed, `response` contains the part before the failure."""
    operation.add(answered(response.response_id, None, response.finish_reason, response.usage_details))
    if OBSERVABILITY_SETTINGS.enable_sensitive_data:
        operation.add({"gen_ai.output.messages": shown(response.messages, response.finish_reason)})
    operation.add({"agent.response.message_count": len(response.messages)})
    labels = operation.labels(RUN_LABELS)
    OBSERVABILITY_SETTINGS.counter(REQUESTS, "{request}").add(1, labels)
    count_tokens(response.usage_details, labels, metric=TOKENS)
    operation.end(labels=RUN_LABELS)


Failed = Callable[[BaseException | str], None]
"""Function that records a failed tool call; it receives the exception or the kind of failure as text."""


async def traced_tool(tool: Tool | None, call: Content, run: Callable[[Failed], Awaitable[Content]]) -> Content:
    """Execute one tool call with `run` inside a span. `run` receives a function to call with each failure that it converts to a result."""
    name = call.name or "unknown"
    attributes = {"gen_ai.operation.name": "execute_tool", "gen_ai.tool.name": name, "gen_ai.tool.type": "function"}
    operation = Operation(f"execute_tool {name}", {**attributes, "gen_ai.tool.call.id": call.call_id or ""}, metric=DURATION)
    if tool is not None and tool.definition.description:
        operation.add({"gen_ai.tool.description": tool.definition.description})
    with_content = OBSERVABILITY_SETTINGS.enable_sensitive_data
    if with_content:
        operation.add({"gen_ai.tool.call.arguments": _text(call.arguments)})
    with operation.running(labels=("gen_ai.operation.name", "gen_ai.tool.name")):
        result = await run(operation.fail)
        if with_content:
            operation.add({"gen_ai.tool.call.result": _text(result.result)})
        return result


def _text(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)

"""`RunEvents`: converts one agent run to AG-UI 1.0 events in the required order (https://docs.ag-ui.com).

The caller sends the events. At most one text, reasoning passage or tool call is open at a time; starting the next one closes it.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable, Mapping

from ag_ui.core import (
    BaseEvent,
    CustomEvent,
    Interrupt,
    ReasoningEndEvent,
    ReasoningMessageContentEvent,
    ReasoningMessageEndEvent,
    ReasoningMessageStartEvent,
    ReasoningStartEvent,
    RunAgentInput,
    RunErrorEvent,
    RunFinishedEvent,
    RunFinishedInterruptOutcome,
    RunFinishedSuccessOutcome,
    RunStartedEvent,
    TextMessageContentEvent,
    TextMessageEndEvent,
    TextMessageStartEvent,
    TokenUsage,
    ToolCallArgsEvent,
    ToolCallEndEvent,
    ToolCallResultEvent,
    ToolCallStartEvent,
)

from gateway.json_types import JsonObject, as_text
from gateway.types.annotations import add_usage
from gateway.types.content import Content
from gateway.types.responses import AgentResponseUpdate, UsageDetails

PROTOCOL_VERSION = "1.0"

_USAGE = {
    "input_tokens": "input_token_count",
    "output_tokens": "output_token_count",
    "total_tokens": "total_token_count",
    "reasoning_tokens": "reasoning_token_count",
    "cached_input_tokens": "cached_input_token_count",
}
"""Maps AG-UI's name of each token count to Moongate's name."""


class RunEvents:
    """Creates the AG-UI events of one agent run. Each method returns the events to send now, in order."""

    def __init__(self, request: RunAgentInput) -> None:
        self._request = request
        self._open_id: str | None = None
        self._close: Callable[[], list[BaseEvent]] = list[BaseEvent]
        self._unanswered: dict[str, None] = {}
        self._usage: UsageDetails | None = None

    def started(self) -> list[BaseEvent]:
        """Return the event for the start of the run."""
        request = self._request
        return [
            RunStartedEvent(
                thread_id=request.thread_id,
                run_id=request.run_id,
                parent_run_id=request.parent_run_id,
                protocol_version=PROTOCOL_VERSION,
            )
        ]

    def update(self, update: AgentResponseUpdate) -> list[BaseEvent]:
        """Return the AG-UI events for one update of the run."""
        events: list[BaseEvent] = []
        for content in update.contents:
            match content.type:
                case "text" if content.text:
                    events += self._text(update.message_id, content.text)
                case "text_reasoning" if content.text:
                    events += self._reasoning(update.message_id, content.text)
                case "function_call":
                    events += self._call(update.message_id, content)
                case "function_result":
                    events += self._result(content)
                case "usage":
                    self._usage = add_usage(self._usage, content.usage_details)
                case "data" | "uri":
                    events += [*self.closed(), CustomEvent(name="content", value=content.to_dict())]
                case _:
                    pass
        return events

    def finished(self) -> list[BaseEvent]:
        """Return the events for a completed run. The last event lists the tool calls without a result, which the application executes."""
        return self._ended(RunFinishedSuccessOutcome(pending_tool_call_ids=list(self._unanswered) or None))

    def interrupted(self, asks: Mapping[str, JsonObject]) -> list[BaseEvent]:
        """Return the events for a run that waits for a person. `asks` maps ids to requests for input, as in MCP; an answer has the id."""
        return self._ended(RunFinishedInterruptOutcome(interrupts=[_interrupt(key, ask) for key, ask in asks.items()]))

    def _ended(self, outcome: RunFinishedSuccessOutcome | RunFinishedInterruptOutcome) -> list[BaseEvent]:
        request = self._request
        usage = _usage(self._usage)
        return [*self.closed(), RunFinishedEvent(thread_id=request.thread_id, run_id=request.run_id, outcome=outcome, usage=usage)]

    def failed(self, message: str, code: str) -> list[BaseEvent]:
        """Return the events for a failed run; `message` and `code` describe the error."""
        return [*self.closed(), RunErrorEvent(message=message, code=code)]

    def closed(self) -> list[BaseEvent]:
        """Return the events that end the currently open text, reasoning passage or tool call, if any."""
        events = self._close()
        self._open_id, self._close = None, list[BaseEvent]
        return events

    def _text(self, message_id: str | None, text: str) -> list[BaseEvent]:
        opened = f"text {message_id}"
        events: list[BaseEvent] = []
        if self._open_id != opened:
            wire_id = message_id or str(uuid.uuid4())
            events = [*self.closed(), TextMessageStartEvent(message_id=wire_id, role="assistant")]
            self._open_id, self._close = opened, lambda: [TextMessageEndEvent(message_id=wire_id)]
            self._wire_id = wire_id
        return [*events, TextMessageContentEvent(message_id=self._wire_id, delta=text)]

    def _reasoning(self, message_id: str | None, text: str) -> list[BaseEvent]:
        opened = f"reasoning {message_id}"
        events: list[BaseEvent] = []
        if self._open_id != opened:
            wire_id = str(uuid.uuid4())
            events = [*self.closed(), ReasoningStartEvent(message_id=wire_id), ReasoningMessageStartEvent(message_id=wire_id)]
            self._open_id = opened
            self._close = lambda: [ReasoningMessageEndEvent(message_id=wire_id), ReasoningEndEvent(message_id=wire_id)]
            self._wire_id = wire_id
        return [*events, ReasoningMessageContentEvent(message_id=self._wire_id, delta=text)]

    def _call(self, message_id: str | None, call: Content) -> list[BaseEvent]:
        call_id = call.call_id or self._wire_id
        if call.user_input_request and call_id in self._unanswered:
            return []  # the call was already sent; this update only says that the caller must execute it
        opened = f"call {call_id}"
        events: list[BaseEvent] = []
        if self._open_id != opened:
            events = self.closed()
            events.append(ToolCallStartEvent(tool_call_id=call_id, tool_call_name=call.name or "", parent_message_id=message_id))
            self._open_id, self._close = opened, lambda: [ToolCallEndEvent(tool_call_id=call_id)]
            self._wire_id = call_id
            self._unanswered[call_id] = None
        arguments = call.arguments
        delta = arguments if isinstance(arguments, str) else json.dumps(arguments or {}, ensure_ascii=False)
        if delta:
            events.append(ToolCallArgsEvent(tool_call_id=call_id, delta=delta))
        return events

    def _result(self, result: Content) -> list[BaseEvent]:
        call_id = result.call_id or ""
        self._unanswered.pop(call_id, None)
        text = as_text(result.result)
        return [*self.closed(), ToolCallResultEvent(message_id=str(uuid.uuid4()), tool_call_id=call_id, content=text, role="tool")]


def _interrupt(key: str, request: JsonObject) -> Interrupt:
    params: JsonObject = request.get("params") or {}
    details = {name: params[name] for name in ("mode", "url", "elicitationId") if name in params}
    return Interrupt(
        id=key,
        reason=str(request.get("method")),
        message=params.get("message"),
        response_schema=params.get("requestedSchema"),
        metadata=details or None,
    )


def _usage(counted: UsageDetails | None) -> list[TokenUsage] | None:
    counts = counted or {}
    known = {name: count for name, ours in _USAGE.items() if isinstance(count := counts.get(ours), int) and count >= 0}
    return [TokenUsage.model_validate(known)] if known else None

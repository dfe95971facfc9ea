"""The tools of the conformance upstream.

Tools that need the client ask in the way of the caller's era: over the back-channel of a 2025 session, or with an
`input_required` result in 2026. So a relay is checked in both.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

import anyio
import mcp_types as t
from mcp.server.subscriptions import PromptsListChanged, SubscriptionBus, ToolsListChanged
from mcp.shared.exceptions import MCPError
from mcp.shared.message import ServerMessageMetadata

from gateway.tools.drive import ASK_KEY
from tests.conformance import contract as c

MISSING_CAPABILITY = -32021
"""Error code of 2026-07-28 for a request that needs a capability which the client did not declare."""

Ctx = Any
Params = t.CallToolRequestParams
Handler = Callable[[Ctx, Params], Awaitable[Any]]


@dataclass(frozen=True)
class FixtureTool:
    """One tool: its schema and what it does."""

    schema: dict[str, Any]
    run: Handler


def text(value: str) -> t.TextContent:
    return t.TextContent(type="text", text=value)


def image() -> t.ImageContent:
    return t.ImageContent(type="image", data=c.PNG, mime_type="image/png")


def embedded(uri: str, mime_type: str, body: str) -> t.EmbeddedResource:
    return t.EmbeddedResource(type="resource", resource=t.TextResourceContents(uri=uri, mime_type=mime_type, text=body))


def result(*content: Any, is_error: bool = False) -> t.CallToolResult:
    return t.CallToolResult(content=list(content), is_error=is_error)


def form(message: str, schema: dict[str, Any]) -> t.ElicitRequest:
    return t.ElicitRequest(params=t.ElicitRequestFormParams(message=message, requested_schema=schema))


def question(prompt: str) -> t.CreateMessageRequest:
    message = t.SamplingMessage(role="user", content=text(prompt))
    return t.CreateMessageRequest(params=t.CreateMessageRequestParams(messages=[message], max_tokens=100))


def asking(requests: dict[str, Any], state: str | None = None) -> t.InputRequiredResult:
    return t.InputRequiredResult(input_requests=requests, request_state=state)


def is_modern(ctx: Ctx) -> bool:
    return ctx.protocol_version >= "2026"


ANSWERS: dict[str, Any] = {
    "elicitation/create": t.ElicitResult,
    "sampling/createMessage": t.CreateMessageResult,
    "roots/list": t.ListRootsResult,
}


async def ask_back(ctx: Ctx, requests: dict[str, Any]) -> dict[str, Any]:
    """Send all requests at once over the back-channel of a 2025 session, each with its key in `_meta`, and return the answers."""
    answers: dict[str, Any] = {}

    async def one(key: str, request: Any) -> None:
        wire = request.model_dump(mode="json", by_alias=True, exclude_none=True)
        wire["params"] = {**wire.get("params", {}), "_meta": {ASK_KEY: key}}
        answers[key] = await ctx.session.send_request(request.__class__.model_validate(wire), ANSWERS[request.method], metadata=related)

    related = ServerMessageMetadata(related_request_id=ctx.request_id)
    async with anyio.create_task_group() as tasks:
        for key, request in requests.items():
            tasks.start_soon(one, key, request)
    return answers


async def answers_to(ctx: Ctx, params: Params | t.GetPromptRequestParams, requests: dict[str, Any]) -> dict[str, Any] | None:
    """Return the client's answers, or `None` if an `input_required` result must request them first."""
    if not is_modern(ctx):
        return await ask_back(ctx, requests)
    given = params.input_responses or {}
    return dict(given) if requests.keys() <= given.keys() else None


# -- tools that only answer --------------------------------------------------------------------------------------------


def always(*content: Any, is_error: bool = False) -> Handler:
    async def run(ctx: Ctx, params: Params) -> t.CallToolResult:
        return result(*content, is_error=is_error)

    return run


async def say_three_lines(ctx: Ctx, params: Params) -> t.CallToolResult:
    for line in ("Tool execution started", "Tool processing data", "Tool execution completed"):
        await ctx.session.send_log_message("info", line, related_request_id=ctx.request_id)
        await anyio.sleep(0.02)
    return result(text("said three lines"))


async def report_thrice(ctx: Ctx, params: Params) -> t.CallToolResult:
    for done in (0, 50, 100):
        await ctx.session.report_progress(done, 100, f"{done} %")
        await anyio.sleep(0.02)
    return result(text("reported three times"))


async def need_sampling(ctx: Ctx, params: Params) -> t.CallToolResult:
    declared = ctx.session.client_capabilities
    if declared is None or declared.sampling is None:
        raise MCPError(MISSING_CAPABILITY, "this tool needs sampling", {"requiredCapabilities": {"sampling": {}}})
    return result(text("sampling is there"))


async def hang_up_once(ctx: Ctx, params: Params) -> t.CallToolResult:
    if ctx.close_sse_stream is not None:
        await ctx.close_sse_stream()
    await anyio.sleep(0.3)
    return result(text("Reconnection test completed"))


def announce(bus: SubscriptionBus, sessions: list[Any], event: Any, notification: Any) -> Handler:
    async def run(ctx: Ctx, params: Params) -> t.CallToolResult:
        await bus.publish(event)
        for session in sessions:
            await session.send_notification(notification)
        return result(text("announced"))

    return run


# -- tools that ask ------------------------------------------------------------------------------------------------------


async def sample_prompt(ctx: Ctx, params: Params) -> Any:
    requests = {"answer": question(str((params.arguments or {})["prompt"]))}
    answers = await answers_to(ctx, params, requests)
    if answers is None:
        return asking(requests)
    return result(text(f"LLM response: {getattr(answers['answer'].content, 'text', '')}"))


def fill_in(schema: dict[str, Any], message: str | None = None) -> Handler:
    async def run(ctx: Ctx, params: Params) -> Any:
        requests = {"form": form(message or str((params.arguments or {})["message"]), schema)}
        answers = await answers_to(ctx, params, requests)
        if answers is None:
            return asking(requests)
        filled = answers["form"]
        return result(text(f"Elicitation completed: action={filled.action}, content={json.dumps(filled.content or {})}"))

    return run


def one_round(requests: dict[str, Any], state: str | None = None) -> Handler:
    """Return a handler that requests everything at once, until all is answered and the request state came back unchanged."""

    async def run(ctx: Ctx, params: Params) -> Any:
        answers = await answers_to(ctx, params, requests)
        is_forged = is_modern(ctx) and state is not None and params.request_state != state
        if answers is None or is_forged:
            return asking(requests, state)
        return result(text(f"state-ok: {', '.join(sorted(answers))} answered"))

    return run


async def two_rounds(ctx: Ctx, params: Params) -> Any:
    if not is_modern(ctx):
        who = (await ask_back(ctx, {"name": form("What is your name?", c.NAME)}))["name"]
        what = (await ask_back(ctx, {"color": form("Which colour do you like?", c.COLOR)}))["color"]
        return result(text(f"{content_of(who).get('name')} likes {content_of(what).get('color')}"))
    answers = params.input_responses or {}
    state = json.loads(params.request_state or "{}")
    if state.get("round") == 2 and "color" in answers:
        return result(text(f"{state['name']} likes {content_of(answers['color']).get('color')}"))
    if state.get("round") == 1 and "name" in answers:
        carried = json.dumps({"round": 2, "name": content_of(answers["name"]).get("name")})
        return asking({"color": form("Which colour do you like?", c.COLOR)}, carried)
    return asking({"name": form("What is your name?", c.NAME)}, json.dumps({"round": 1}))


def content_of(answer: Any) -> dict[str, Any]:
    return answer.content or {}


async def ask_what_is_declared(ctx: Ctx, params: Params) -> Any:
    declared = ctx.session.client_capabilities
    requests: dict[str, Any] = {}
    if declared is None or declared.sampling is not None:
        requests["greeting"] = question("Say hello.")
    if declared is None or declared.elicitation is not None:
        requests["name"] = form("What is your name?", c.NAME)
    if is_modern(ctx):
        return asking(requests, "declared")
    return result(text(f"answered: {', '.join(sorted(await ask_back(ctx, requests)))}"))


def build_tools(bus: SubscriptionBus, sessions: list[Any]) -> dict[str, FixtureTool]:
    """Every tool by its name; `sessions` are the 2025 sessions that receive change notifications."""
    name, capital, roots = form("What is your name?", c.NAME), question("What is the capital of France?"), t.ListRootsRequest()
    confirm = {"confirm": form("Go on?", c.CONFIRMED)}
    plain: dict[str, Handler] = {
        "test_simple_text": always(text("This is a simple text response for testing.")),
        "test_image_content": always(image()),
        "test_audio_content": always(t.AudioContent(type="audio", data=c.WAV, mime_type="audio/wav")),
        "test_embedded_resource": always(embedded("test://embedded-resource", "text/plain", "This is an embedded resource content.")),
        "test_multiple_content_types": always(
            text("Multiple content types test:"),
            image(),
            embedded("test://mixed-content-resource", "application/json", '{"test":"data","value":123}'),
        ),
        "test_error_handling": always(text("This tool intentionally returns an error for testing"), is_error=True),
        "test_tool_with_logging": say_three_lines,
        "test_logging_tool": say_three_lines,
        "test_tool_with_progress": report_thrice,
        "test_missing_capability": need_sampling,
        "test_reconnection": hang_up_once,
        "test_trigger_tool_change": announce(bus, sessions, ToolsListChanged(), t.ToolListChangedNotification()),
        "test_trigger_prompt_change": announce(bus, sessions, PromptsListChanged(), t.PromptListChangedNotification()),
        "test_elicitation_sep1034_defaults": fill_in(c.DEFAULTS, "Are these right?"),
        "test_elicitation_sep1330_enums": fill_in(c.ENUMS, "Which ones?"),
        "test_streaming_elicitation": one_round({"user_name": name}),
        f"{c.ROUND}elicitation": one_round({"user_name": name}),
        f"{c.ROUND}sampling": one_round({"capital_question": capital}),
        f"{c.ROUND}list_roots": one_round({"client_roots": roots}),
        f"{c.ROUND}request_state": one_round(confirm, "kept"),
        f"{c.ROUND}tampered_state": one_round(confirm, "sealed"),
        f"{c.ROUND}multiple_inputs": one_round({"user_name": name, "greeting": capital, "client_roots": roots}, "three"),
        f"{c.ROUND}multi_round": two_rounds,
        f"{c.ROUND}capabilities": ask_what_is_declared,
    }
    with_arguments = {
        "test_sampling": FixtureTool(c.shape("prompt", prompt=c.STRING), sample_prompt),
        "test_elicitation": FixtureTool(c.shape("message", message=c.STRING), fill_in(c.shape("response", response=c.STRING))),
        "test_x_mcp_header": FixtureTool(c.shape(region={**c.STRING, "x-mcp-header": "Region"}), always(text("arrived"))),
        "json_schema_2020_12_tool": FixtureTool(c.DIALECT_2020_12, always(text("kept"))),
    }
    return {**{key: FixtureTool(c.NOTHING, run) for key, run in plain.items()}, **with_arguments}

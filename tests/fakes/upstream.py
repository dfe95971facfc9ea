"""A well-behaved remote MCP server for tests, as a real process: stdio or HTTP, both eras or the old one only.

    python -m tests.fakes.upstream --stdio | --port 0  [--legacy] [--tools N]

Over HTTP the first line on stdout is the endpoint's URL. Tools cover what a gateway has to carry: content kinds,
progress, cancellation, logs, requests for input of every kind, changed lists. `stats` counts the requests received.
"""

from __future__ import annotations

import argparse
import base64
import json
import socket
import sys
import warnings
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Any

import anyio
import mcp_types as t
import uvicorn
from mcp.server.lowlevel import NotificationOptions, Server
from mcp.server.runner import serve_loop
from mcp.server.sse import SseServerTransport
from mcp.server.stdio import stdio_server
from mcp.server.subscriptions import InMemorySubscriptionBus, ListenHandler, ResourceUpdated, ToolsListChanged
from mcp.shared.exceptions import MCPError
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Mount, Route

warnings.simplefilter("ignore")  # legacy logging and sampling are deprecated and used on purpose

PIXEL = base64.b64encode(b"\x89PNG\r\n\x1a\nnot really a picture").decode()
NAME_FORM = {"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]}
TEXT_ARG = {"type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"]}
INTEGER = {"type": "integer"}
ICON = t.Icon(src="https://icons.example.com/i.png", mime_type="image/png", sizes=["48x48"])
DRESSED = t.Tool(
    name="dressed",
    title="Dressed",
    description="Every field a tool can have.",
    input_schema={"type": "object", "properties": {}},
    output_schema={"type": "object", "properties": {"x": {"type": "integer"}}},
    annotations=t.ToolAnnotations(title="Dressed", read_only_hint=True, open_world_hint=False),
    icons=[ICON],
    _meta={"com.example/kept": 1},
)
NONE: dict[str, Any] = {"type": "object", "properties": {}}
Ctx = Any


def text(value: object) -> t.TextContent:
    return t.TextContent(type="text", text=str(value))


def ok(*blocks: Any, **more: Any) -> t.CallToolResult:
    return t.CallToolResult(content=list(blocks), **more)


class Upstream:
    """The server's state and handlers."""

    def __init__(self, extra_tools: int) -> None:
        self.calls: Counter[str] = Counter()
        self.cancelled: Counter[str] = Counter()
        self.levels: list[str] = []
        self.extra: list[str] = [f"extra_{n}" for n in range(extra_tools)]
        self.bus = InMemorySubscriptionBus()
        self.sessions: list[Any] = []
        self.watched = "watched v1"
        handlers: dict[str, tuple[dict[str, Any], Callable[[Ctx, dict[str, Any], t.CallToolRequestParams], Awaitable[Any]]]] = {
            "echo": (TEXT_ARG, self.echo),
            "add": ({"type": "object", "properties": {n: {"type": "integer"} for n in "ab"}, "required": ["a", "b"]}, self.add),
            "fail": (NONE, self.fail),
            "raise_error": (NONE, self.raise_error),
            "picture": (NONE, self.picture),
            "rich": (NONE, self.rich),
            "progress": (NONE, self.progress),
            "flood": ({"type": "object", "properties": {n: {"type": "integer"} for n in ("reports", "logs")}}, self.flood),
            "hang": (NONE, self.hang),
            "say": ({"type": "object", "properties": {"level": {"type": "string"}}}, self.say),
            "ask_name": (NONE, self.ask_name),
            "ask_model": (NONE, self.ask_model),
            "ask_roots": (NONE, self.ask_roots),
            "ask_url": (NONE, self.ask_url),
            "need_url": (NONE, self.need_url),
            "ask_twice": (NONE, self.ask_twice),
            "ask_then_hang": (NONE, self.ask_then_hang),
            "need_sampling": (NONE, self.need_sampling),
            "big": ({"type": "object", "properties": {"bytes": INTEGER, "reports": INTEGER}, "required": ["bytes"]}, self.big),
            "grow": (NONE, self.grow),
            "touch": (NONE, self.touch),
            "who": (NONE, self.who),
            "stats": (NONE, self.stats),
            "die": (NONE, self.die),
        }
        self.handlers = handlers

    async def echo(self, ctx: Ctx, args: dict[str, Any], params: t.CallToolRequestParams) -> Any:
        return ok(text(args.get("text")), structured_content={"got": args}, _meta={"com.example/kept": 1})

    async def add(self, ctx: Ctx, args: dict[str, Any], params: t.CallToolRequestParams) -> Any:
        return ok(text(args["a"] + args["b"]))

    async def fail(self, ctx: Ctx, args: dict[str, Any], params: t.CallToolRequestParams) -> Any:
        return ok(text("it did not work"), is_error=True)

    async def raise_error(self, ctx: Ctx, args: dict[str, Any], params: t.CallToolRequestParams) -> Any:
        raise MCPError(-32050, "the database said no")

    async def picture(self, ctx: Ctx, args: dict[str, Any], params: t.CallToolRequestParams) -> Any:
        return ok(t.ImageContent(type="image", data=PIXEL, mime_type="image/png"))

    async def rich(self, ctx: Ctx, args: dict[str, Any], params: t.CallToolRequestParams) -> Any:
        inner = t.TextResourceContents(uri="data://inner", mime_type="text/plain", text="inside")
        link = t.ResourceLink(type="resource_link", uri="data://report", name="report", size=3)
        audio = t.AudioContent(type="audio", data=PIXEL, mime_type="audio/wav")
        return ok(t.EmbeddedResource(type="resource", resource=inner), link, audio)

    async def progress(self, ctx: Ctx, args: dict[str, Any], params: t.CallToolRequestParams) -> Any:
        for done in (1, 2, 3):
            await ctx.session.report_progress(done, 3, f"step {done}")
        return ok(text("done"))

    async def flood(self, ctx: Ctx, args: dict[str, Any], params: t.CallToolRequestParams) -> Any:
        for number in range(1, args.get("logs", 0) + 1):
            await ctx.session.send_log_message("warning", number, "fake", related_request_id=ctx.request_id)
        if args.get("logs"):
            await anyio.sleep(0.2)  # a log message right before a result may reach the client after it
        for number in range(1, args.get("reports", 0) + 1):
            await ctx.session.report_progress(number, args["reports"], f"step {number}")
        return ok(text("done"))

    async def hang(self, ctx: Ctx, args: dict[str, Any], params: t.CallToolRequestParams) -> Any:
        try:
            await ctx.session.report_progress(1, 2, "hanging")
            await anyio.sleep_forever()
        finally:
            self.cancelled["hang"] += 1

    async def say(self, ctx: Ctx, args: dict[str, Any], params: t.CallToolRequestParams) -> Any:
        await ctx.session.send_log_message(args.get("level", "warning"), {"said": "hello"}, "fake", related_request_id=ctx.request_id)
        return ok(text("said"))

    async def ask_name(self, ctx: Ctx, args: dict[str, Any], params: t.CallToolRequestParams) -> Any:
        form = t.ElicitRequestFormParams(message="Your name?", requested_schema=NAME_FORM)
        if ctx.protocol_version >= "2026":
            answer: Any = (params.input_responses or {}).get("name")
            if answer is None:
                return t.InputRequiredResult(input_requests={"name": t.ElicitRequest(params=form)}, request_state="round-1")
            assert params.request_state == "round-1"
        else:
            answer = await ctx.session.elicit_form(form.message, form.requested_schema, related_request_id=ctx.request_id)
        content: dict[str, Any] = answer.content or {}
        return ok(text(f"{answer.action}: {content.get('name')}"))

    async def ask_model(self, ctx: Ctx, args: dict[str, Any], params: t.CallToolRequestParams) -> Any:
        messages = [t.SamplingMessage(role="user", content=text("Capital of France?"))]
        if ctx.protocol_version >= "2026":
            answer: Any = (params.input_responses or {}).get("model")
            if answer is None:
                wanted = t.CreateMessageRequestParams(messages=messages, max_tokens=100_000)
                return t.InputRequiredResult(input_requests={"model": t.CreateMessageRequest(params=wanted)})
        else:
            answer = await ctx.session.create_message(messages, max_tokens=100_000, related_request_id=ctx.request_id)
        return ok(text(answer.content.text))

    async def ask_roots(self, ctx: Ctx, args: dict[str, Any], params: t.CallToolRequestParams) -> Any:
        if ctx.protocol_version >= "2026":
            answer: Any = (params.input_responses or {}).get("roots")
            if answer is None:
                return t.InputRequiredResult(input_requests={"roots": t.ListRootsRequest()})
        else:
            answer = await ctx.session.list_roots()
        return ok(text(" ".join(str(root.uri) for root in answer.roots)))

    async def ask_url(self, ctx: Ctx, args: dict[str, Any], params: t.CallToolRequestParams) -> Any:
        url = "https://accounts.example.com/consent"
        if ctx.protocol_version >= "2026":
            answer: Any = (params.input_responses or {}).get("url")
            if answer is None:
                wanted = t.ElicitRequestURLParams(message="Please consent", url=url)
                return t.InputRequiredResult(input_requests={"url": t.ElicitRequest(params=wanted)})
        else:
            answer = await ctx.session.elicit_url("Please consent", url, "consent-1", related_request_id=ctx.request_id)
        return ok(text(answer.action))

    async def need_url(self, ctx: Ctx, args: dict[str, Any], params: t.CallToolRequestParams) -> Any:
        """Fail every second call with a URL elicitation; the next call succeeds, as if the user had visited the URL."""
        if self.calls["need_url"] % 2:
            entry = {"mode": "url", "elicitationId": "sign-in-1", "url": "https://accounts.example.com/sign-in", "message": "Sign in"}
            raise MCPError(-32042, "sign in first", {"elicitations": [entry]})
        return ok(text("signed in"))

    async def ask_twice(self, ctx: Ctx, args: dict[str, Any], params: t.CallToolRequestParams) -> Any:
        """Request a name by form, then a sampled word about the name; send progress and log messages."""
        state: dict[str, Any] = json.loads(params.request_state or "{}") if ctx.protocol_version >= "2026" else {}
        await ctx.session.report_progress(state.get("done", 0) + 1, 3, "asking")
        await ctx.session.send_log_message("info", "asking", "fake", related_request_id=ctx.request_id)
        name = state.get("name") or await self._name(ctx, params)
        if name is None:
            form = t.ElicitRequestFormParams(message="Your name?", requested_schema=NAME_FORM)
            return t.InputRequiredResult(input_requests={"name": t.ElicitRequest(params=form)}, request_state=json.dumps({"done": 1}))
        if "name" not in state and ctx.protocol_version < "2026":
            await ctx.session.report_progress(2, 3, "asking")
        word = await self._word(ctx, params)
        if word is None:
            wanted = t.CreateMessageRequestParams(messages=[t.SamplingMessage(role="user", content=text(name))], max_tokens=10)
            kept = json.dumps({"done": 2, "name": name})
            return t.InputRequiredResult(input_requests={"word": t.CreateMessageRequest(params=wanted)}, request_state=kept)
        await ctx.session.report_progress(3 + (ctx.protocol_version >= "2026"), 4, "done")
        return ok(text(f"{name}: {word}"))

    async def _name(self, ctx: Ctx, params: t.CallToolRequestParams) -> str | None:
        if ctx.protocol_version < "2026":
            return (await ctx.session.elicit_form("Your name?", NAME_FORM, related_request_id=ctx.request_id)).content["name"]
        answer: Any = (params.input_responses or {}).get("name")
        return answer.content["name"] if answer is not None else None

    async def _word(self, ctx: Ctx, params: t.CallToolRequestParams) -> str | None:
        if ctx.protocol_version < "2026":
            messages = [t.SamplingMessage(role="user", content=text("A word?"))]
            return (await ctx.session.create_message(messages, max_tokens=10, related_request_id=ctx.request_id)).content.text
        answer: Any = (params.input_responses or {}).get("word")
        return answer.content.text if answer is not None else None

    async def ask_then_hang(self, ctx: Ctx, args: dict[str, Any], params: t.CallToolRequestParams) -> Any:
        try:
            if await self._name(ctx, params) is None:
                form = t.ElicitRequestFormParams(message="Your name?", requested_schema=NAME_FORM)
                return t.InputRequiredResult(input_requests={"name": t.ElicitRequest(params=form)})
            await ctx.session.report_progress(1, 2, "hanging")
            await anyio.sleep_forever()
        except anyio.get_cancelled_exc_class():
            self.cancelled["ask_then_hang"] += 1
            raise

    async def need_sampling(self, ctx: Ctx, args: dict[str, Any], params: t.CallToolRequestParams) -> Any:
        declared = ctx.session.client_capabilities
        if declared is None or declared.sampling is None:
            raise MCPError(-32021, "this tool needs sampling", {"requiredCapabilities": {"sampling": {}}})
        return ok(text("sampling is there"))

    async def asked(self, ctx: Ctx, params: Any) -> Any:
        """Return the user's name for a resource or prompt, or in 2026 an `input_required` result that requests the name."""
        name = await self._name(ctx, params)
        if name is None:
            form = t.ElicitRequestFormParams(message="Your name?", requested_schema=NAME_FORM)
            return t.InputRequiredResult(input_requests={"name": t.ElicitRequest(params=form)}, request_state="asked")
        return name

    async def big(self, ctx: Ctx, args: dict[str, Any], params: t.CallToolRequestParams) -> Any:
        for number in range(1, args.get("reports", 0) + 1):
            await ctx.session.report_progress(number)
        return ok(text("x" * args["bytes"]))

    async def grow(self, ctx: Ctx, args: dict[str, Any], params: t.CallToolRequestParams) -> Any:
        self.extra.append(f"grown_{len(self.extra)}")
        await self.bus.publish(ToolsListChanged())
        for session in self.sessions:
            await session.send_notification(t.ToolListChangedNotification())
        return ok(text(self.extra[-1]))

    async def touch(self, ctx: Ctx, args: dict[str, Any], params: t.CallToolRequestParams) -> Any:
        self.watched = "watched v2"
        await self.bus.publish(ResourceUpdated(uri="data://watched"))
        for session in self.sessions:
            await session.send_resource_updated("data://watched")
        return ok(text("touched"))

    async def who(self, ctx: Ctx, args: dict[str, Any], params: t.CallToolRequestParams) -> Any:
        capabilities = ctx.session.client_capabilities
        meta: dict[str, Any] = ctx.params.get("_meta") or {}
        seen: dict[str, Any] = {
            "protocol": ctx.protocol_version,
            "capabilities": sorted(capabilities.model_dump(exclude_none=True)) if capabilities else [],
            "meta": sorted(k for k in meta if not k.startswith("io.modelcontextprotocol/")),
            "values": {k: v for k, v in meta.items() if not k.startswith("io.modelcontextprotocol/")},
        }
        return ok(text(seen), structured_content=seen)

    async def stats(self, ctx: Ctx, args: dict[str, Any], params: t.CallToolRequestParams) -> Any:
        seen = {"calls": dict(self.calls), "cancelled": dict(self.cancelled), "levels": self.levels}
        return ok(text(seen), structured_content=seen)

    async def die(self, ctx: Ctx, args: dict[str, Any], params: t.CallToolRequestParams) -> Any:
        sys.stderr.write("fake upstream: told to die\n")
        sys.stderr.flush()
        import os

        os._exit(3)

    # -- protocol ----------------------------------------------------------------------------------------------

    async def list_tools(self, ctx: Ctx, params: Any) -> t.ListToolsResult:
        self.calls["tools/list"] += 1
        tools = [t.Tool(name=name, description=f"Fake {name}", input_schema=schema) for name, (schema, _) in self.handlers.items()]
        tools.append(DRESSED)
        tools += [t.Tool(name=name, description="Extra", input_schema=TEXT_ARG) for name in self.extra]
        start = int(params.cursor) if params is not None and params.cursor else 0
        page = tools[start : start + 500]
        return t.ListToolsResult(tools=page, next_cursor=str(start + 500) if start + 500 < len(tools) else None)

    async def call_tool(self, ctx: Ctx, params: t.CallToolRequestParams) -> Any:
        self.calls[params.name] += 1
        if params.name == "dressed":
            block = t.TextContent(type="text", text="dressed", annotations=t.Annotations(audience=["user"], priority=0.5))
            return ok(block, structured_content={"x": 1})
        if params.name in self.extra:
            return await self.echo(ctx, params.arguments or {}, params)
        if params.name not in self.handlers:
            raise MCPError(-32602, f"Unknown tool: {params.name}")
        return await self.handlers[params.name][1](ctx, params.arguments or {}, params)

    async def list_resources(self, ctx: Ctx, params: Any) -> t.ListResourcesResult:
        names = ("report", "watched")
        rows = [t.Resource(uri=f"data://{n}", name=n, title=n.title(), mime_type="text/plain", icons=[ICON], size=3) for n in names]
        return t.ListResourcesResult(resources=rows)

    async def list_templates(self, ctx: Ctx, params: Any) -> t.ListResourceTemplatesResult:
        row = t.ResourceTemplate(uri_template="data://item/{id}", name="item")
        return t.ListResourceTemplatesResult(resource_templates=[row])

    async def read(self, ctx: Ctx, params: t.ReadResourceRequestParams) -> Any:
        uri = str(params.uri)
        if uri == "data://asked":
            name = await self.asked(ctx, params)
            if not isinstance(name, str):
                return name
            return t.ReadResourceResult(contents=[t.TextResourceContents(uri=uri, text=f"for {name}")])
        if uri == "data://report":
            item: Any = t.BlobResourceContents(uri=uri, mime_type="application/pdf", blob=PIXEL)
        elif uri == "data://watched" or uri.startswith("data://item/"):
            item = t.TextResourceContents(uri=uri, mime_type="text/plain", text=self.watched if uri.endswith("watched") else uri)
        else:
            raise MCPError(-32602, "no such thing", {"uri": uri})
        return t.ReadResourceResult(contents=[item])

    async def list_prompts(self, ctx: Ctx, params: Any) -> t.ListPromptsResult:
        greet = t.Prompt(name="greet", arguments=[t.PromptArgument(name="who", required=True)])
        return t.ListPromptsResult(prompts=[greet, t.Prompt(name="asked")])

    async def get_prompt(self, ctx: Ctx, params: t.GetPromptRequestParams) -> Any:
        if params.name == "asked":
            name = await self.asked(ctx, params)
            if not isinstance(name, str):
                return name
            return t.GetPromptResult(messages=[t.PromptMessage(role="user", content=text(f"for {name}"))])
        if params.name != "greet":
            raise MCPError(-32602, f"Unknown prompt: {params.name}")
        return t.GetPromptResult(messages=[t.PromptMessage(role="user", content=text(f"Greet {(params.arguments or {}).get('who')}."))])

    async def complete(self, ctx: Ctx, params: Any) -> t.CompleteResult:
        return t.CompleteResult(completion=t.Completion(values=[params.argument.value + "da"], total=1, has_more=False))

    async def accept(self, ctx: Ctx, params: Any) -> t.EmptyResult:
        return t.EmptyResult()

    async def set_level(self, ctx: Ctx, params: t.SetLevelRequestParams) -> t.EmptyResult:
        self.levels.append(params.level)
        return t.EmptyResult()

    async def remember(self, ctx: Ctx, call_next: Any) -> Any:
        """Keep the sessions that receive changes of lists and resources."""
        if ctx.method == "notifications/initialized":
            self.sessions.append(ctx.session)
        return await call_next(ctx)


class _Told(Server[Any]):
    """A server that declares `listChanged` over every transport."""

    def create_initialization_options(self, notification_options: Any = None, *args: Any, **kwargs: Any) -> Any:
        return super().create_initialization_options(notification_options or NotificationOptions(True, True, True), *args, **kwargs)


def build(extra_tools: int) -> Server[Any]:
    """The SDK server over a fresh `Upstream`."""
    up = Upstream(extra_tools)
    server = _Told(
        "fake-upstream",
        version="1",
        instructions="A fake for tests.",
        get_tool_input_schema=lambda name: up.handlers[name][0] if name in up.handlers else None,
        on_list_tools=up.list_tools,
        on_call_tool=up.call_tool,
        on_list_resources=up.list_resources,
        on_list_resource_templates=up.list_templates,
        on_read_resource=up.read,
        on_list_prompts=up.list_prompts,
        on_get_prompt=up.get_prompt,
        on_completion=up.complete,
        on_subscribe_resource=up.accept,
        on_unsubscribe_resource=up.accept,
        on_subscriptions_listen=ListenHandler(up.bus),
    )
    server.add_request_handler("logging/setLevel", t.SetLevelRequestParams, up.set_level)
    server.middleware.append(up.remember)
    return server


def http_app(server: Server[Any], *, legacy: bool) -> Any:
    """The ASGI application; a legacy one does not know the stateless era."""
    app = server.streamable_http_app(host="127.0.0.1")
    if not legacy:
        return app

    async def old(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "http" and dict(scope["headers"]).get(b"mcp-protocol-version") == b"2026-07-28":
            await JSONResponse({"error": "Bad Request: Unsupported protocol version"}, 400)(scope, receive, send)
            return
        await app(scope, receive, send)

    return old


def sse_app(server: Server[Any]) -> Any:
    """The HTTP+SSE transport of 2024-11-05."""
    transport = SseServerTransport("/messages/")

    async def connect(request: Request) -> Response:
        async with transport.connect_sse(request.scope, request.receive, request._send) as (read, write):  # pyright: ignore[reportPrivateUsage]  # the transport's own way
            await serve_loop(server, read, write, lifespan_state={}, init_options=server.create_initialization_options())
        return Response()

    return Starlette(routes=[Route("/sse", connect), Mount("/messages/", app=transport.handle_post_message)])


async def over_stdio(server: Server[Any], legacy: bool) -> None:
    async with stdio_server() as (read, write):
        options = server.create_initialization_options()
        if legacy:
            await serve_loop(server, read, write, lifespan_state={}, init_options=options)
        else:
            await server.run(read, write, options)


def main() -> None:
    cli = arguments()
    cli.add_argument("--tools", type=int, default=0)
    options = cli.parse_args()
    serve(build(options.tools), options)


def arguments() -> argparse.ArgumentParser:
    """Return a parser for the options of `serve`."""
    cli = argparse.ArgumentParser()
    cli.add_argument("--stdio", action="store_true")
    cli.add_argument("--port", type=int, default=0)
    cli.add_argument("--legacy", action="store_true")
    cli.add_argument("--sse", action="store_true")
    return cli


def serve(server: Server[Any], options: argparse.Namespace) -> None:
    """Serve one of the fakes as the options say, until the process ends."""
    if options.stdio:
        anyio.run(over_stdio, server, options.legacy)
        return
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.bind(("127.0.0.1", options.port))
    listener.listen(128)
    sys.stdout.write(f"http://127.0.0.1:{listener.getsockname()[1]}/{'sse' if options.sse else 'mcp'}\n")
    sys.stdout.flush()
    app = sse_app(server) if options.sse else http_app(server, legacy=options.legacy)
    uvicorn.Server(uvicorn.Config(app, log_level="error")).run(sockets=[listener])


if __name__ == "__main__":
    main()

"""The remote server that the official suite expects behind the gateway, as a process: streamable HTTP, both eras.

    python -m tests.conformance.upstream

Its first line on stdout is the endpoint's URL. Names and texts are in `contract`, tools in `upstream_tools`.
"""

from __future__ import annotations

import json
import socket
import sys
import warnings
from typing import Any

import anyio
import mcp_types as t
import uvicorn
from mcp.server.caching import CacheHint
from mcp.server.lowlevel import Server
from mcp.server.request_state import RequestStateBoundary, RequestStateSecurity
from mcp.server.subscriptions import InMemorySubscriptionBus, ListenHandler
from mcp.shared.exceptions import MCPError

from gateway.server.sdk_path.resumable_sessions import ReplayStore
from tests.conformance import contract as c
from tests.conformance.upstream_tasks import Jobs
from tests.conformance.upstream_tools import Ctx, answers_to, asking, build_tools, content_of, embedded, form, image, text

INVALID_PARAMS = -32602
NAME = "conformance-upstream"


class Upstream:
    """Request handlers that serve the data of `contract`."""

    def __init__(self) -> None:
        self.bus = InMemorySubscriptionBus()
        self.sessions: list[Any] = []
        self.jobs = Jobs()
        self.tools = {**build_tools(self.bus, self.sessions), **self.jobs.tools()}

    async def list_tools(self, ctx: Ctx, params: Any) -> t.ListToolsResult:
        rows = [t.Tool(name=name, description="For the suite.", input_schema=tool.schema) for name, tool in self.tools.items()]
        return t.ListToolsResult(tools=rows)

    async def call_tool(self, ctx: Ctx, params: t.CallToolRequestParams) -> Any:
        if params.name not in self.tools:
            raise MCPError(INVALID_PARAMS, f"Unknown tool: {params.name}")
        return await self.tools[params.name].run(ctx, params)

    async def list_resources(self, ctx: Ctx, params: Any) -> t.ListResourcesResult:
        kinds = dict.fromkeys(c.TEXT_RESOURCES, "text/plain") | {c.BINARY_RESOURCE: "image/png"}
        return t.ListResourcesResult(resources=[t.Resource(uri=uri, name=uri[7:], mime_type=kind) for uri, kind in kinds.items()])

    async def list_templates(self, ctx: Ctx, params: Any) -> t.ListResourceTemplatesResult:
        template = t.ResourceTemplate(uri_template=c.TEMPLATE, name="template", mime_type="application/json")
        return t.ListResourceTemplatesResult(resource_templates=[template])

    async def read(self, ctx: Ctx, params: t.ReadResourceRequestParams) -> t.ReadResourceResult:
        uri = str(params.uri)
        before, after = c.TEMPLATE.split("{id}")
        if uri == c.BINARY_RESOURCE:
            return t.ReadResourceResult(contents=[t.BlobResourceContents(uri=uri, mime_type="image/png", blob=c.PNG)])
        if uri in c.TEXT_RESOURCES:
            body, mime_type = c.TEXT_RESOURCES[uri], "text/plain"
        elif uri.startswith(before) and uri.endswith(after):
            number = uri[len(before) : -len(after)]
            body = json.dumps({"id": number, "templateTest": True, "data": f"Data for ID: {number}"})
            mime_type = "application/json"
        else:
            raise MCPError(INVALID_PARAMS, "Resource not found", {"uri": uri})
        return t.ReadResourceResult(contents=[t.TextResourceContents(uri=uri, mime_type=mime_type, text=body)])

    async def list_prompts(self, ctx: Ctx, params: Any) -> t.ListPromptsResult:
        prompts = [
            t.Prompt(name=name, description="For the suite.", arguments=[t.PromptArgument(name=key, required=True) for key in keys])
            for name, keys in c.PROMPTS.items()
        ]
        return t.ListPromptsResult(prompts=prompts)

    async def get_prompt(self, ctx: Ctx, params: t.GetPromptRequestParams) -> Any:
        given = params.arguments or {}
        match params.name.removeprefix(c.ROUND):
            case "test_simple_prompt":
                content: list[Any] = [text("This is a simple prompt for testing.")]
            case "test_prompt_with_arguments":
                content = [text(f"Prompt with arguments: arg1='{given['arg1']}', arg2='{given['arg2']}'")]
            case "test_prompt_with_embedded_resource":
                inner = embedded(given["resourceUri"], "text/plain", "Embedded resource content for testing.")
                content = [inner, text("Please process the embedded resource above.")]
            case "test_prompt_with_image":
                content = [image(), text("Please analyze the image above.")]
            case "prompt":
                requests = {"user_context": form("In which context?", c.CONTEXT)}
                answers = await answers_to(ctx, params, requests)
                if answers is None:
                    return asking(requests)
                content = [text(f"Context: {content_of(answers['user_context']).get('context')}")]
            case other:
                raise MCPError(INVALID_PARAMS, f"Unknown prompt: {other}")
        return t.GetPromptResult(messages=[t.PromptMessage(role="user", content=block) for block in content])

    async def complete(self, ctx: Ctx, params: Any) -> t.CompleteResult:
        return t.CompleteResult(completion=t.Completion(values=["test value"], total=1, has_more=False))

    async def accept(self, ctx: Ctx, params: Any) -> t.EmptyResult:
        return t.EmptyResult()

    async def remember(self, ctx: Ctx, call_next: Any) -> Any:
        """Keep the 2025 sessions, which receive change notifications."""
        if ctx.method == "notifications/initialized":
            self.sessions.append(ctx.session)
        return await call_next(ctx)


def build(up: Upstream) -> Server[Any]:
    """The SDK's server over `up`; request state is sealed, so that a forged one is refused."""
    hint = CacheHint(ttl_ms=1000, scope="public")
    server: Server[Any] = Server(
        NAME,
        version="1",
        cache_hints={
            "tools/list": hint,
            "prompts/list": hint,
            "resources/list": hint,
            "resources/templates/list": hint,
            "resources/read": hint,
        },
        get_tool_input_schema=lambda name: up.tools[name].schema if name in up.tools else None,
        on_list_tools=up.list_tools,
        on_call_tool=up.call_tool,
        on_list_resources=up.list_resources,
        on_list_resource_templates=up.list_templates,
        on_read_resource=up.read,
        on_subscribe_resource=up.accept,
        on_unsubscribe_resource=up.accept,
        on_subscriptions_listen=ListenHandler(up.bus),
        on_list_prompts=up.list_prompts,
        on_get_prompt=up.get_prompt,
        on_completion=up.complete,
    )
    server.add_request_handler("logging/setLevel", t.SetLevelRequestParams, up.accept)
    up.jobs.bind(server)
    server.middleware.append(up.remember)
    server.middleware.append(RequestStateBoundary(RequestStateSecurity.ephemeral(), default_audience=NAME))
    return server


def main() -> None:
    warnings.simplefilter("ignore")  # logging and sampling of 2025 are deprecated and wanted here
    up = Upstream()
    app = build(up).streamable_http_app(host="127.0.0.1", event_store=ReplayStore(), retry_interval=100)
    listener = socket.create_server(("127.0.0.1", 0))
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)  # or each answer waits 40 ms
    sys.stdout.write(f"http://127.0.0.1:{listener.getsockname()[1]}/mcp\n")
    sys.stdout.flush()
    # httptools, which Moongate brings along, leaves the white space around header values that the suite sends.
    server = uvicorn.Server(uvicorn.Config(app, log_level="error", http="h11"))

    async def serve() -> None:
        async with anyio.create_task_group() as up.jobs.group:
            await server.serve(sockets=[listener])
            up.jobs.group.cancel_scope.cancel()

    anyio.run(serve)


if __name__ == "__main__":
    main()

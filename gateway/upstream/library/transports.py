"""`MCPStdioTool` and `MCPStreamableHTTPTool`: subclasses of `MCPTool` for a server in a child process, and over streamable HTTP."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Unpack

from gateway.config.models import HttpServer, StdioServer
from gateway.errors import NotSent, OutcomeUnknown, only_cause
from gateway.json_types import JsonMapping, JsonObject
from gateway.tools.context import CallContext
from gateway.upstream.carriers.carrier import Carrier
from gateway.upstream.carriers.sdk_carrier import Streams
from gateway.upstream.library.mcp_tool import MCPTool
from gateway.upstream.library.mcp_tool_options import MCPToolOptions
from gateway.upstream.stdio import ChildLog
from gateway.upstream.task_follower import Resends
from gateway.upstream.transport import open_transport
from gateway.wire.message_sizes import MAX_MESSAGE_BYTES

if TYPE_CHECKING:
    import httpx2

HeaderProvider = Callable[[JsonMapping], Mapping[str, str]]
"""Function that returns additional HTTP headers for one call.

It receives the program's values: `function_invocation_kwargs` of an agent's run, or the arguments of `MCPTool.call_tool`.
"""


class MCPStdioTool(MCPTool):
    """An `MCPTool` whose server runs as a child process and communicates over stdio."""

    def __init__(
        self,
        name: str,
        command: str,
        *,
        args: Sequence[str] = (),
        env: Mapping[str, str] | None = None,
        cwd: str | None = None,
        encoding: str | None = None,
        **options: Unpack[MCPToolOptions],
    ) -> None:
        """Store the settings; `connect` starts the process, without a shell.

        `env` is added to a minimal environment. The only valid `encoding` is UTF-8, which MCP requires.
        """
        if encoding is not None and encoding.lower().replace("-", "") != "utf8":
            raise ValueError(f"encoding={encoding!r}: messages of MCP are UTF-8.")
        super().__init__(name, **options)
        self.command = command
        self.args = list(args)
        self.env = dict(env or {})
        self.cwd = cwd

    @asynccontextmanager
    async def get_streams(self) -> AsyncGenerator[Streams | Carrier, None]:
        """Start the child process, and yield the carrier, which sends requests to it. Leaving ends the process and all that it started.

        Raises:
            NotSent: The process cannot be started, or ended before it answered.
        """
        entry = StdioServer(command=self.command, args=self.args, env=self.env, cwd=self.cwd)
        log = ChildLog()
        try:
            async with open_transport(self.name, entry, log) as carrier:
                yield carrier
        except Exception as error:
            if not isinstance(only_cause(error), OutcomeUnknown) or not (reason := log.explain()):
                raise
            raise NotSent(f"Server {self.name!r} did not connect: {reason}.", server=self.name) from error


class MCPStreamableHTTPTool(MCPTool):
    """An `MCPTool` whose server is reached over streamable HTTP."""

    def __init__(
        self,
        name: str,
        url: str,
        *,
        headers: Mapping[str, str] | None = None,
        http_client: httpx2.AsyncClient | None = None,
        terminate_on_close: bool = True,
        header_provider: HeaderProvider | None = None,
        **options: Unpack[MCPToolOptions],
    ) -> None:
        """Store the settings; `connect` opens the connection to `url`.

        `headers` are sent with every request, and `header_provider` adds headers to a call. `http_client` replaces the built-in HTTP
        client. It does not send `headers`, and this class never closes it. `terminate_on_close` (whether closing ends the session at the
        server) applies only together with `http_client`.
        """
        super().__init__(name, **options)
        self.url = url
        self.headers = dict(headers or {})
        self._http_client = http_client
        self._terminate_on_close = terminate_on_close
        self._header_provider = header_provider

    @asynccontextmanager
    async def get_streams(self) -> AsyncGenerator[Streams | Carrier, None]:
        """Open the transport and yield it: with the built-in client, which limits responses, or with the program's `http_client`."""
        if self._http_client is None:
            async with open_transport(self.name, HttpServer(url=self.url, headers=self.headers), ChildLog()) as carrier:
                yield carrier
            return
        from mcp.client.streamable_http import streamable_http_client

        async with streamable_http_client(
            self.url,
            http_client=self._http_client,
            terminate_on_close=self._terminate_on_close,
            max_sse_event_size=MAX_MESSAGE_BYTES,
        ) as streams:
            yield streams

    async def send(
        self, method: str, params: JsonObject, ctx: CallContext, headers: Mapping[str, str] | None = None, resends: Resends | None = None
    ) -> JsonObject:
        """Send one request with the headers that `header_provider` returns for the call, and return its result (`MCPTool.send`)."""
        if self._header_provider is not None:
            values: JsonObject = ctx.run.invocation.kwargs if ctx.run.invocation is not None else {}
            headers = {**self._header_provider(values), **(headers or {})}
        return await super().send(method, params, ctx, headers, resends)

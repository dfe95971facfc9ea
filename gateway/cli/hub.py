"""`Hub`: where a command reads and calls: the running gateway, or one started for the command alone.

Both give the same answers, so `list`, `inspect` and `call` do not care. The running gateway is reached as an MCP
client over HTTP, like any other client would. Used by those commands only.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, cast
from urllib.parse import urlsplit

from gateway import __version__
from gateway.cli.failures import NeedsAuth
from gateway.errors import NotFound, ToolFailed, UpstreamUnavailable
from gateway.json_types import JsonMapping, JsonObject
from gateway.tools.base import InputRequired, Kind, Tool
from gateway.tools.context import CallContext, Caller, ClientProfile, NoCaller

if TYPE_CHECKING:
    from gateway.app import Gateway
    from gateway.config.load import LoadedConfig
    from gateway.upstream.inputs import Answered, Relayed
    from gateway.upstream.session import Session
    from gateway.upstream.tasks import TaskFollower

PROBE_TIMEOUT_SECONDS = 2.0
"""How long a command looks for a running gateway before it starts its own."""

NEGOTIATE_TIMEOUT_SECONDS = 30.0
"""Time for the running gateway to agree on a protocol and list its tools."""

SOURCES_TIMEOUT_SECONDS = 60.0
"""How long a command waits for the sources it started itself."""


@dataclass(frozen=True, slots=True)
class Target:
    """What the user said about where to look."""

    url: str | None = None
    api_key: str | None = None
    standalone: bool = False


@dataclass(frozen=True, slots=True)
class Asker:
    """Who answers on behalf of a command, and what may be asked."""

    caller: Caller
    capabilities: JsonMapping

    def profile(self) -> ClientProfile:
        """The command as an MCP client."""
        return ClientProfile(name="moongate-cli", version=__version__, capabilities=self.capabilities)


NOBODY = Asker(NoCaller(), cast("JsonObject", {}))
"""For commands that only read."""


@dataclass(frozen=True, slots=True)
class HubTool:
    """A published tool and the source it is from."""

    tool: Tool
    wire: JsonObject
    source: str | None
    """`None` where a running gateway's name does not tell."""
    native: str
    """The name within its source, as far as is known."""

    @property
    def name(self) -> str:
        """The exposed name."""
        return str(self.wire["name"])


class Hub(Protocol):
    """What the commands need of a gateway."""

    origin: str
    """For people: the endpoint, or the configuration file."""

    async def sources(self) -> list[JsonObject]:
        """Every source as the fields of `SourceStatus`."""
        ...

    async def problems(self) -> list[str]:
        """What is wrong with the gateway itself."""
        ...

    async def tools(self) -> list[HubTool]:
        """Every published tool, in order."""
        ...

    async def listing(self, kind: Kind) -> list[JsonObject]:
        """Every published resource, template or prompt, as on the wire."""
        ...


@asynccontextmanager
async def open_hub(loaded: LoadedConfig, target: Target, asker: Asker = NOBODY) -> AsyncGenerator[Hub, None]:
    """The running gateway where there is one (or `target.url` names it), else one started from `loaded`.

    Raises:
        NeedsAuth: It wants an API key.
        UpstreamUnavailable: `target.url` was given and nobody answers there.
    """
    if not target.standalone:
        url = target.url or endpoint_of(loaded)
        status = await _probe(url, target.api_key)
        if target.url is not None or (status is not None and status.get("name") == loaded.config.server.name):
            async with _open_running(url, target.api_key, loaded, status, asker) as running:
                yield running
            return
    async with open_own(loaded) as own:
        yield own


def endpoint_of(loaded: LoadedConfig) -> str:
    """The URL at which a gateway with this configuration is reached from this machine."""
    http = loaded.config.server.http
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(http.host, http.host)  # compared, not bound
    return f"http://{f'[{host}]' if ':' in host else host}:{http.port}{http.path}"


class OwnHub:
    """A gateway in this process, for one command."""

    def __init__(self, gateway: Gateway, origin: str) -> None:
        self._gateway = gateway
        self.origin = origin

    async def sources(self) -> list[JsonObject]:
        """As the gateway says."""
        from dataclasses import asdict

        return [asdict(status) for status in self._gateway.sources()]

    async def problems(self) -> list[str]:
        """As the gateway says."""
        return self._gateway.problems()

    async def tools(self) -> list[HubTool]:
        """From the catalog."""
        return [HubTool(t, t.definition.to_wire(t.exposed_name), t.source, t.definition.name) for t in await self._gateway.catalog.tools()]

    async def listing(self, kind: Kind) -> list[JsonObject]:
        """From the catalog."""
        return self._gateway.catalog.wire(kind)

    @property
    def gateway(self) -> Gateway:
        """The gateway itself, for `doctor`."""
        return self._gateway


@asynccontextmanager
async def open_own(loaded: LoadedConfig) -> AsyncGenerator[OwnHub, None]:
    """A gateway started from `loaded` with its sources settled, whether or not another one runs."""
    import anyio.to_thread

    from gateway.cli.common import load, running
    from gateway.cli.output import working

    if not loaded.is_complete:
        path = loaded.path
        # A program behind `${cmd:…}` may take its time; the event loop has nothing else to do yet.
        loaded = await anyio.to_thread.run_sync(lambda: load(str(path) if path is not None else None))
    async with running(loaded) as gateway:
        with working("starting the configured sources"):
            await gateway.ready(SOURCES_TIMEOUT_SECONDS)
            await gateway.judge_definitions()
        yield OwnHub(gateway, str(loaded.path or "no configuration"))


class RunningHub:
    """The running gateway, reached as an MCP client. Also the session's hooks: it may ask back."""

    def __init__(self, url: str, loaded: LoadedConfig, status: JsonMapping | None, asker: Asker) -> None:
        self.origin = url
        self.session: Session
        self._loaded = loaded
        self._status = status or {}
        self._asker = asker

    async def sources(self) -> list[JsonObject]:
        """As its status page says; empty where it has none."""
        return list(self._status.get("sources") or [])

    async def problems(self) -> list[str]:
        """As its status page says."""
        return cast("list[str]", list(self._status.get("problems") or []))

    async def tools(self) -> list[HubTool]:
        """As it lists them to a client."""
        from gateway.upstream.listing import to_listed
        from gateway.upstream.tool import RemoteTool

        tools: list[HubTool] = []
        for wire in await self._list("tools"):
            listed = to_listed(wire, modern=self.session.is_modern, may_ask=True)
            if listed is not None:
                tools.append(HubTool(RemoteTool(listed, self), wire, *self._origin_of(listed.definition.name)))
        return tools

    async def listing(self, kind: Kind) -> list[JsonObject]:
        """As it lists them to a client."""
        return await self._list(kind)

    async def _list(self, what: str) -> list[JsonObject]:
        import anyio

        from gateway.upstream.listing import list_all
        from gateway.upstream.session import PLAIN

        try:
            with anyio.fail_after(NEGOTIATE_TIMEOUT_SECONDS):
                return (await list_all(self.session, what, PLAIN)).entries
        except TimeoutError:
            raise UpstreamUnavailable(f"The gateway at {self.origin} does not answer.", server="moongate") from None

    def _origin_of(self, name: str) -> tuple[str | None, str]:
        """The source a name most likely belongs to and its name there, by the configured prefixes: for people only."""
        config = self._loaded.config
        source, stem = None, ""
        for candidate in (*config.mcp_servers, "agent", "workflow", "function"):
            prefix = config.policy(candidate).prefix
            start = f"{candidate if prefix is None else prefix}__"
            if start != "__" and name.startswith(start) and len(start) > len(stem):
                source, stem = candidate, start
        if source is None and name in ("search_skills", "load_skill", "read_skill_resource"):
            source = "skill"
        if source is None and name in ("read_result", "gateway_status", "list_tools", "load_tools", "unload_tools"):
            source = "gateway"
        return source, name.removeprefix(stem)

    async def send(self, method: str, params: JsonObject, ctx: CallContext, headers: JsonMapping | None = None) -> JsonObject:
        """One request on behalf of `ctx` (what `RemoteTool` needs)."""
        from gateway.upstream.session import Envelope

        if ctx.input_responses is not None:
            params["inputResponses"] = ctx.input_responses
        if ctx.request_state is not None:
            params["requestState"] = ctx.request_state
        envelope = Envelope(ctx=ctx, capabilities=self._asker.capabilities, log_level=ctx.log_level, headers=headers or {})
        return await self.session.request(method, params, envelope)

    @property
    def tasks(self) -> TaskFollower:
        """Follows what the gateway runs as a task (what `RemoteTool` needs)."""
        from gateway.upstream.tasks import MCPTaskOptions, TaskFollower

        return TaskFollower(self.session.server, self, MCPTaskOptions())

    async def reconnect(self) -> None:
        """A command has one connection (`TaskLine`)."""

    async def judge_ask(self, request: JsonObject, ctx: CallContext) -> Relayed | Answered:
        """A command relays no tasks (`TaskLine`)."""
        from gateway.upstream.inputs import Relayed

        return Relayed(request)

    async def answer_ask(self, request: JsonObject, key: str, ctx: CallContext) -> JsonObject:
        """The person at the terminal decides (`TaskLine`)."""
        from gateway.tools.drive import keyed

        return await ctx.ask(keyed(request, key))

    def judge(self, result: JsonObject, ctx: CallContext) -> InputRequired:
        """What the gateway asks (what `RemoteTool` needs); the person at the terminal decides."""
        from gateway.upstream.inputs import to_input_required

        return to_input_required(result)

    async def answer(self, request: JsonObject, ctx: CallContext | None) -> JsonObject:
        """A request over a legacy connection (`SessionHooks`)."""
        return await (ctx.ask(request) if ctx is not None else self._asker.caller.ask(request))

    async def notified(self, method: str, params: JsonMapping, ctx: CallContext | None) -> None:
        """A notification (`SessionHooks`)."""
        if method == "notifications/message":
            await self._asker.caller.log(params.get("level") or "info", params.get("data"), params.get("logger"))


@asynccontextmanager
async def _open_running(
    url: str, api_key: str | None, loaded: LoadedConfig, status: JsonMapping | None, asker: Asker
) -> AsyncGenerator[RunningHub, None]:
    import anyio

    from gateway.config.models import HttpServer
    from gateway.upstream.session import open_session
    from gateway.upstream.stdio import ChildLog
    from gateway.upstream.transport import open_transport

    hub = RunningHub(url, loaded, status, asker)
    entry = HttpServer(url=url, headers=_headers(api_key))
    client: JsonObject = {"name": "moongate-cli", "version": __version__}
    async with (
        open_transport("moongate", entry, ChildLog()) as link,
        open_session("moongate", link, hub, client=client) as session,
    ):
        hub.session = session
        try:
            with anyio.fail_after(NEGOTIATE_TIMEOUT_SECONDS):
                await session.negotiate("auto", asker.capabilities)
        except TimeoutError:
            raise UpstreamUnavailable(f"The gateway at {url} does not answer.", server="moongate") from None
        except UpstreamUnavailable as error:
            raise UpstreamUnavailable(f"No gateway at {url} ({error}); `moongate run` starts one.", server="moongate") from None
        yield hub


async def _probe(url: str, api_key: str | None) -> JsonMapping | None:
    """The status of the gateway at `url`, or `None` where none answers as one.

    Raises:
        NeedsAuth: It answers, but not without another key.
    """
    import httpx2

    from gateway.egress.client import build_client

    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.netloc:
        raise UpstreamUnavailable(f"{url!r} is not an http(s) address.", server="moongate")
    try:
        async with build_client("moongate", url, timeout_seconds=PROBE_TIMEOUT_SECONDS) as client:
            answer = await client.get(f"{parts.scheme}://{parts.netloc}/status.json", headers=_headers(api_key))
        status = answer.json() if answer.status_code == 200 else None
    except (httpx2.HTTPError, ValueError):
        return None
    if answer.status_code == 401:
        given = "another API key" if api_key else "an API key"
        raise NeedsAuth(f"The gateway at {url} wants {given}: `--api-key KEY` or $MOONGATE_API_KEY; `moongate keys add NAME` makes one.")
    return cast("JsonMapping", status) if isinstance(status, dict) else None


def _headers(api_key: str | None) -> dict[str, str]:
    return {"Authorization": f"Bearer {api_key}"} if api_key else {}


def pick_tool(tools: Sequence[HubTool], name: str) -> HubTool:
    """The tool called `name`: by its exposed name, else by a native name that only one tool has.

    Raises:
        NotFound: With the closest name.
    """
    for tool in tools:
        if tool.name == name:
            return tool
    native = [tool for tool in tools if tool.native == name]
    if len(native) == 1:
        return native[0]
    if native:
        raise ToolFailed(f"Several tools are called {name!r}: {', '.join(tool.name for tool in native)}; use one of these names.")
    from gateway.config.suggest import did_you_mean

    hint = did_you_mean(name, [tool.name for tool in tools]) or "`moongate list tools` shows them."
    raise NotFound("tool", name, f"There is no tool {name!r}. {hint}")

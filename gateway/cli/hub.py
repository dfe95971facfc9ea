"""`Hub`: the gateway that a command uses: a running gateway, or a gateway that is started for the command.

`RunningHub` is a client of a running gateway, over MCP and HTTP. `OwnHub` starts a gateway in the command's process. Their methods for
sources, problems, tools and other listings have the same names and results of the same form. Used by `list`, `inspect`, `call`, `eval`,
`policy`, `lock` and `doctor`.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, cast

from gateway import __version__
from gateway.cli.failures import CommandFailed
from gateway.cli.output import print_note, working
from gateway.config.suggest import closest, did_you_mean
from gateway.errors import NotFound, NotSent, PolicyDenied, ToolFailed, UpstreamError
from gateway.json_types import JsonMapping, JsonObject
from gateway.policy.pin_check import PINS_RULE
from gateway.tools.base import Kind, Tool, ToolDefinition
from gateway.tools.context import CallContext
from gateway.tools.ports import Caller, ClientProfile, NoCaller

if TYPE_CHECKING:
    import ssl

    from gateway.app import Gateway
    from gateway.cli.common import Target
    from gateway.cli.endpoint import Status
    from gateway.config.load import LoadedConfig
    from gateway.gate.tools import GuardedTool
    from gateway.upstream.input_guard import Answered, Relayed
    from gateway.upstream.server_session import Session
    from gateway.upstream.task_follower import Resends, TaskFollower

NEGOTIATE_TIMEOUT_SECONDS = 30.0
"""Timeout in seconds for each of these steps: the MCP handshake with a running gateway, and each listing (of tools, resources, …)."""

LOCAL_SOURCES = ("agent", "workflow", "function")
"""Local sources of tools (not servers) whose tools have the source's name as prefix, like the tools of servers."""

SKILL_TOOLS = frozenset(("search_skills", "load_skill", "read_skill_resource"))
"""Names of the gateway's tools that serve skills, which have no prefix."""

OWN_TOOLS = frozenset(
    "read_result gateway_status task_status task_result task_cancel session_list session_delete review_approvals "
    "list_tools load_tools unload_tools".split()
)
"""Names of the gateway's own tools, which have no prefix."""

SOURCES_TIMEOUT_SECONDS = 60.0
"""Seconds for which a command waits until the sources that it started have connected."""


@dataclass(frozen=True, slots=True)
class Asker:
    """Answers the requests for input that a gateway sends to a command, and declares the client capabilities for them."""

    caller: Caller
    capabilities: JsonMapping

    def profile(self) -> ClientProfile:
        """Return the client profile (name, version and capabilities) with which the command identifies itself."""
        return ClientProfile(name="moongate-cli", version=__version__, capabilities=self.capabilities)


NOBODY = Asker(NoCaller(), cast("JsonObject", {}))
"""The `Asker` of commands that only read: it declares no capabilities and answers no requests for input."""


@dataclass(frozen=True, slots=True)
class HubTool:
    """A tool that a gateway lists, with its source."""

    tool: Tool
    wire: JsonObject
    """The tool's entry in `tools/list`."""
    source: str | None
    """Id of the tool's source; `None` if the source cannot be derived from the tool's name."""
    native: str
    """The tool's name at its source, without prefix; the exposed name if the name at the source is unknown."""

    @property
    def name(self) -> str:
        """The exposed name, by which clients call the tool."""
        return str(self.wire["name"])


def to_hub_tools(tools: Iterable[GuardedTool]) -> list[HubTool]:
    """Return the tools of a gateway's catalog as `HubTool` objects."""
    return [HubTool(tool, tool.definition.to_wire(tool.exposed_name), tool.source, tool.definition.name) for tool in tools]


@asynccontextmanager
async def open_hub(loaded: LoadedConfig, target: Target, asker: Asker = NOBODY) -> AsyncGenerator[Hub, None]:
    """Yield the gateway at `target.url`; else the running gateway of this configuration; else a gateway that is started from `loaded`.

    Prints on stderr which running gateway is used, or why none is used.

    Raises:
        NeedsAuth: The running gateway requires an API key, or rejects `target.api_key`.
        NotSent: The running gateway does not answer, or nothing answers at `target.url`.
    """
    async with open_running(loaded, target, asker) as running:
        if running is not None:
            yield running
            return
    async with open_own(loaded) as own:
        yield own


@asynccontextmanager
async def open_running(
    loaded: LoadedConfig, target: Target, asker: Asker = NOBODY, *, instead: str = "starts the sources"
) -> AsyncGenerator[RunningHub | None, None]:
    """Yield a client of the gateway at `target.url`, or else of the running gateway of this configuration.

    Yield `None` if no gateway of this configuration runs, or `target.standalone` is true. `instead` says what the command does without a
    running gateway, as part of a note on stderr: "this command {instead} of FILE itself".
    """
    from gateway.cli.endpoint import own_tls, read_status, tls_for

    url = None if target.standalone else target.url or await _own_endpoint(loaded, instead)
    if url is None:
        yield None
        return
    tls = own_tls(loaded) if target.url is None else tls_for(url, loaded)
    status = await read_status(url, target.api_key, tls)
    async with _connect(url, target, loaded, status, asker, tls) as running:
        _print_gateway(url, status, None if target.url is not None else loaded)
        yield running


async def _own_endpoint(loaded: LoadedConfig, instead: str) -> str | None:
    """Return the URL of the running gateway of this configuration; `None`, after a note on stderr, if it does not run."""
    from gateway.cli.endpoint import endpoint_of
    from gateway.cli.running import find_running

    url = endpoint_of(loaded)
    listener = await find_running(loaded)
    if listener is not None and listener.is_own:
        return listener.url
    own = loaded.path or "this command"
    if listener is None or not listener.is_gateway:
        print_note(f"gateway: none at {url}, so this command {instead} of {own} itself")
    else:
        print_note(f"note: {listener.description()} listens on {url}, so this command {instead} of {own} itself.")
        print_note(f"      `--url {url}` uses that gateway.")
    return None


def _print_gateway(url: str, status: Status, own: LoadedConfig | None) -> None:
    """Print the URL and the configuration of the running gateway on stderr.

    `own` is the configuration that the gateway has proved to serve; `None` if the user gave the gateway's URL.
    """
    configuration = own.path if own is not None else (status.page or {}).get("configuration")
    print_note(f"gateway: {url}" + (f" (configuration: {configuration})" if configuration else ""))


class OwnHub:
    """A gateway that runs in the command's process. Commands call the same methods of it as of a `RunningHub`."""

    def __init__(self, gateway: Gateway) -> None:
        self.gateway = gateway
        self.has_key, self.is_own, self.shows_sources = False, True, True

    async def sources(self) -> list[JsonObject]:
        """Return the status of each of the gateway's sources as JSON."""
        return [status.to_json() for status in self.gateway.inspection.sources()]

    async def not_loaded(self) -> list[JsonObject]:
        """Return a JSON object for each problem because of which the gateway could not load an agent, workflow, function or skill.

        Its members are `source` (id of the source), `where` (the file or setting) and `message` (the reason). A file may have several.
        """
        return self.gateway.inspection.not_loaded()

    async def problems(self) -> list[str]:
        """Return the problems of the gateway as a whole, one text for each."""
        return self.gateway.inspection.problems()

    async def tools(self) -> list[HubTool]:
        """Return the tools in the gateway's catalog."""
        return to_hub_tools(await self.gateway.catalog.tools())

    def quarantined(self, pattern: str) -> HubTool:
        """Return the tool `SOURCE/NAME`, which is quarantined (hidden until a person accepts its definition).

        The gateway refuses and records each call of the tool.
        """
        return to_hub_tools(self.gateway.catalog.quarantined([pattern]))[0]

    async def listing(self, kind: Kind) -> list[JsonObject]:
        """Return all resources, resource templates or prompts (`kind`) in the gateway's catalog, in the form of MCP results."""
        return self.gateway.catalog.wire(kind)


@asynccontextmanager
async def open_own(loaded: LoadedConfig) -> AsyncGenerator[OwnHub, None]:
    """Start a gateway from `loaded`, even if another gateway runs, and yield it when its sources have connected or failed.

    Waits at most `SOURCES_TIMEOUT_SECONDS`, and not for servers that connect at their first call (`start: lazy`).
    """
    import anyio.to_thread

    from gateway.cli.common import load, running

    if not loaded.is_complete:
        path = loaded.path
        # A program behind `${cmd:…}` may be slow; the event loop has nothing else to do yet.
        loaded = await anyio.to_thread.run_sync(lambda: load(str(path) if path is not None else None))
    async with running(loaded, dispatches=False) as gateway:
        with working("starting the configured sources"):
            await gateway.ready(SOURCES_TIMEOUT_SECONDS)
            await gateway.inspection.judge_definitions()
        yield OwnHub(gateway)


class RunningHub:
    """A running gateway whose MCP client is the command. Implements `SessionHooks` for requests that the gateway sends to the client."""

    def __init__(self, url: str, target: Target, loaded: LoadedConfig, status: Status, asker: Asker) -> None:
        self._url = url
        self.has_key = bool(target.api_key)
        """Whether the user gave an API key. If so, tools and resources outside its scopes are missing from the gateway's lists."""
        self.is_own = target.url is None  # then the gateway has proved that it serves this configuration
        """Whether the gateway serves the configuration that the command has loaded."""
        self.session: Session
        self._loaded = loaded
        self._denial = status.denial
        self._status: JsonMapping = status.page or {}
        self._asker = asker

    @property
    def shows_sources(self) -> bool:
        """Whether the gateway has a status page and shows it to the command's API key."""
        return "sources" in self._status

    async def sources(self) -> list[JsonObject]:
        """Return the status of each source, from the gateway's status page."""
        if self._denial is not None:
            raise CommandFailed(f"The gateway does not show its sources to this API key: {self._denial}", code="denied")
        if not self.shows_sources:
            text = f"{self._url} has no status page, so its sources are unknown; `moongate list tools --url` lists its tools."
            raise CommandFailed(text, code="unreachable")
        return list(self._status["sources"])

    async def not_loaded(self) -> list[JsonObject]:
        """Return the problems because of which the gateway could not load agents, workflows, functions and skills, from its status page."""
        return list(self._status.get("notLoaded") or [])

    async def problems(self) -> list[str]:
        """Return the problems on the gateway's status page."""
        return cast("list[str]", list(self._status.get("problems") or []))

    async def tools(self) -> list[HubTool]:
        """Return the tools that the gateway lists to the command's API key."""
        from gateway.upstream.delivery import RemoteTool
        from gateway.upstream.listing import to_listed

        tools: list[HubTool] = []
        for wire in await self.listing("tools"):
            listed = to_listed(wire, modern=self.session.is_modern, may_request_input=True)
            if listed is not None:
                tools.append(HubTool(RemoteTool(listed, self), wire, *self._origin_of(listed.definition.name)))
        return tools

    def unlisted(self, name: str) -> HubTool:
        """Return a tool object for the name `name`, which the gateway did not list.

        The gateway decides about a call: it runs a tool that it serves but does not list, and refuses every other name.
        """
        from gateway.upstream.delivery import RemoteTool
        from gateway.upstream.listing import Listed

        schema: JsonObject = {"type": "object", "additionalProperties": True}
        wire: JsonObject = {"name": name, "inputSchema": schema}
        definition = ToolDefinition(name=name, input_schema=schema)
        return HubTool(RemoteTool(Listed(definition), self), wire, *self._origin_of(name))

    def quarantined(self, pattern: str) -> HubTool:
        """Return a tool object for the tool `SOURCE/NAME`, which is quarantined (hidden until a person accepts its definition).

        The gateway refuses and records each call of the tool.
        """
        from gateway.catalog.names import expose_name

        source, _, native = pattern.partition("/")
        return self.unlisted(expose_name(self._prefixes().get(source, source), native))

    async def listing(self, kind: Kind | Literal["tools"]) -> list[JsonObject]:
        """Return all resources, resource templates, prompts or tools (`kind`) that the gateway lists to the command's API key."""
        import anyio

        from gateway.upstream.listing import list_all
        from gateway.upstream.server_session import PLAIN

        try:
            with anyio.fail_after(NEGOTIATE_TIMEOUT_SECONDS):
                return (await list_all(self.session, kind, PLAIN)).entries
        except TimeoutError:
            text = f"The gateway at {self._url} stopped answering; start it again with `moongate run`, or pass another `--url`."
            raise NotSent(text, server="moongate") from None

    def _origin_of(self, name: str) -> tuple[str | None, str]:
        """Return, for display, the likely source of an exposed tool name, by the name's prefix, and the tool's name at that source."""
        if (found := longest_prefix(name, self._prefixes())) is not None:
            return found[0], name.removeprefix(found[1])
        return "skill" if name in SKILL_TOOLS else "gateway" if name in OWN_TOOLS else None, name

    def _prefixes(self) -> dict[str, str]:
        config = self._loaded.config
        shown = cast("list[JsonMapping]", self._status.get("sources") or [])
        written = cast("JsonMapping | None", self._status.get("prefixes"))
        names = [str(source["name"]) for source in shown] or [*config.mcp_servers, *LOCAL_SOURCES]
        return {n: str(written.get(n, n)) if written is not None else config.prefix_of(n) for n in names}

    async def send(
        self, method: str, params: JsonObject, ctx: CallContext, headers: JsonMapping | None = None, resends: Resends | None = None
    ) -> JsonObject:
        """Send one MCP request of the call `ctx` to the gateway, and return the result. `RemoteTool`, a listed tool, calls this method."""
        from gateway.upstream.delivery import add_input_responses
        from gateway.upstream.server_session import Envelope

        add_input_responses(params, ctx)
        envelope = Envelope(ctx=ctx, capabilities=self._asker.capabilities, log_level=ctx.facts.log_level, headers=headers or {})
        return await self.session.request(method, params, envelope)

    @property
    def tasks(self) -> TaskFollower:
        """Return an object that waits for the results of calls that the gateway runs in the background, as MCP tasks."""
        from gateway.upstream.task_follower import MCPTaskOptions, TaskFollower

        return TaskFollower(self.session.server, self, MCPTaskOptions())

    async def judge_input_request(self, request: JsonObject, ctx: CallContext) -> Relayed | Answered:
        """Return a task's request for input unchanged, because no policy applies in a command. Required by the protocol `TaskLine`."""
        from gateway.upstream.input_guard import Relayed

        return Relayed(request)

    async def answer_input_request(self, request: JsonObject, key: str, ctx: CallContext) -> JsonObject:
        """Return the terminal user's answer to a task's request for input. Required by the protocol `TaskLine`."""
        from gateway.tools.drive import keyed

        return await ctx.ask(keyed(request, key))

    async def answer(self, request: JsonObject, ctx: CallContext | None) -> JsonObject:
        """Answer a request that the gateway sends in a session with a 2025 version of MCP. Required by the protocol `SessionHooks`."""
        return await (ctx.ask(request) if ctx is not None else self._asker.caller.ask(request))

    async def notified(self, method: str, params: JsonMapping, ctx: CallContext | None) -> None:
        """Print a log message of the gateway; ignore other notifications. Required by the protocol `SessionHooks`."""
        if method == "notifications/message":
            await self._asker.caller.log(params.get("level") or "info", params.get("data"), params.get("logger"))


Hub = OwnHub | RunningHub
"""The gateway that a command uses: a gateway in the command's process (`OwnHub`) or a running gateway (`RunningHub`)."""


def longest_prefix(name: str, prefixes: Mapping[str, str]) -> tuple[str, str] | None:
    """Return the source with the longest prefix that an exposed name begins with, and that prefix with its separator, or `None`.

    `prefixes` maps sources to prefixes.
    """
    found = [(source, start) for source, prefix in prefixes.items() if prefix and name.startswith(start := f"{prefix}__")]
    return max(found, key=lambda item: len(item[1]), default=None)


@asynccontextmanager
async def _connect(
    url: str, target: Target, loaded: LoadedConfig, status: Status, asker: Asker, tls: ssl.SSLContext | None
) -> AsyncGenerator[RunningHub, None]:
    import anyio

    from gateway.cli.endpoint import key_headers, not_usable
    from gateway.config.models import HttpServer
    from gateway.upstream.server_session import open_session
    from gateway.upstream.stdio import ChildLog
    from gateway.upstream.transport import open_transport

    hub = RunningHub(url, target, loaded, status, asker)
    entry = HttpServer(url=url, headers=key_headers(target.api_key))
    client: JsonObject = {"name": "moongate-cli", "version": __version__}
    async with (
        open_transport("moongate", entry, ChildLog(), tls=tls) as carrier,
        open_session("moongate", carrier, hub, client=client) as session,
    ):
        hub.session = session
        try:
            with anyio.fail_after(NEGOTIATE_TIMEOUT_SECONDS):
                await session.negotiate("auto", asker.capabilities)
        except TimeoutError:
            fix = "start a gateway there with `moongate run`, or pass another `--url`"
            raise NotSent(f"{url} does not answer within {NEGOTIATE_TIMEOUT_SECONDS:g} s; {fix}.", server="moongate") from None
        except UpstreamError as error:
            raise not_usable(url, status, target.api_key, error) from None
        yield hub


def named_tool(tools: Iterable[HubTool], name: str) -> HubTool | None:
    """Return the tool whose exposed name or `SOURCE/NAME` is `name`; else the only tool whose name at its source is `name`; else `None`.

    Raises:
        ToolFailed: Several sources have a tool of that name.
    """
    native: list[HubTool] = []
    for tool in tools:
        if name in (tool.name, f"{tool.source}/{tool.native}"):
            return tool
        if tool.native == name:
            native.append(tool)
    if len(native) > 1:
        raise ToolFailed(f"Several tools are called {name!r}: {', '.join(tool.name for tool in native)}; use one of these names.")
    return native[0] if native else None


def pick_tool(tools: Sequence[HubTool], name: str, sources: Sequence[JsonObject] = ()) -> HubTool:
    """Return the tool named `name` (an exposed name, `SOURCE/NAME`, or a name at its source).

    Raises:
        PolicyDenied: A source in `sources` (status objects) hides the tool, because its definition differs from the accepted one
            (quarantine). The error's `subject` is the tool as `SOURCE/NAME`.
        ToolFailed: Several sources have a tool of that name.
        NotFound: There is no such tool. The message says why the tool's source is not ready, or suggests the closest name, or the command
            that lists the tools.
    """
    if (found := named_tool(tools, name)) is not None:
        return found
    for source in sources:
        for held, why in cast("dict[str, str]", source.get("quarantined") or {}).items():
            if name in (held, f"{source['name']}__{held}", f"{source['name']}/{held}"):
                raise PolicyDenied(f"Tool {name!r} is quarantined: {why}.", rule=PINS_RULE, subject=f"{source['name']}/{held}")
    hint = missing_source(name, sources) or suggestion(name, tools) or "`moongate list tools` shows them."
    if any(name.startswith(f"{tool.source}__") for tool in tools):
        hint += f" `moongate policy explain {name}` says if a rule hides it."
    raise NotFound("tool", name, f"Unknown tool {name!r}. {hint}")


def missing_source(name: str, sources: Sequence[JsonObject]) -> str:
    """Return a sentence that says why the source in the prefix of `name` is not ready; an empty string if it is ready or unknown."""
    for source in sources:
        if name.startswith((f"{source['name']}__", f"{source['name']}/")) and source["state"] != "ready":
            return f"Source {source['name']!r} is not ready ({source['state']}): {source.get('error') or '`moongate doctor` says why.'}"
    return ""


def suggestion(name: str, tools: Sequence[HubTool], others: Iterable[str] = ()) -> str:
    """Return `Did you mean 'x'?` for the tool, or the name in `others`, that is closest to `name`; an empty string if none is close."""
    known = did_you_mean(name, [*others, *(tool.name for tool in tools)])
    natives = {tool.native: tool.name for tool in tools}
    native = closest(name, natives)
    return known or (f"Did you mean {natives[native]!r}?" if native is not None else "")

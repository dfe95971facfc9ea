"""Progressive disclosure: a tool of a source whose policy has `disclosure: on-demand` is listed to a client only after its model loaded it.

The tool `list_tools` finds on-demand tools; `load_tools` and `unload_tools` change the `tools/list` response of one client. The gateway
stores the set of loaded tools in memory. A client of an MCP version with sessions has one set per session. In the sessionless version
2026-07-28, listings must not differ by connection, so each principal has one set. Gateways that share a database server share these sets
(`Disclosure.share`). Disclosure is not a permission: a tool that is not loaded can be called by its name, and the gate (the pipeline of
policy checks) judges the call.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, cast

from gateway.auth.principal import Principal
from gateway.gate.tools import GuardedTool
from gateway.json_types import JsonObject
from gateway.policy.decision import PASS
from gateway.tools.base import Complete, Tool, ToolDefinition, ToolOutcome
from gateway.tools.context import CallContext
from gateway.tools.search import Row, WordIndex

if TYPE_CHECKING:
    from gateway.storage.change_feed import ChangeFeed
    from gateway.storage.loaded_tools import LoadedTools

TOPIC = "loaded-tools"
"""Topic of the change feed under which changes of the loaded tools are published."""

OWN_SESSION_PREFIX = "session-"
"""Prefix of the ids of sessions that only this process knows, so that their loaded tools are never shared."""

MAX_SCOPES = 10_000
"""Maximum number of clients for which the gateway stores which on-demand tools their models have loaded.

A client is a session or, without sessions, a principal (`scope_of`). Above the maximum, the client with the oldest change is dropped.
"""

MAX_NAMES = 200
"""Maximum number of tool names in one call of `load_tools` or `unload_tools`."""

DEFAULT_LIMIT = 20
MAX_LIMIT = 100
"""Maximum number of tools in one result of `list_tools`."""

_MAX_SUMMARY_CHARS = 200


def scope_of(session_id: str | None, principal: str) -> str:
    """Return the key under which a client's loaded tools are stored: its session id, or its principal if it has no MCP session."""
    return f"session {session_id}" if session_id is not None else f"principal {principal}"


class LoadedStore(Protocol):
    """Interface of `Records`, as far as this module needs it."""

    async def loaded_tools(self) -> LoadedTools:
        """Open the database if necessary, and return the store of loaded tools. Raises `StorageError`."""
        ...


@dataclass(frozen=True, slots=True)
class _Loaded:
    names: frozenset[str] = frozenset()
    number: int = 0
    """Number of the change in the shared database from which the names come; 0 if they are not shared."""


_NONE = _Loaded()


class Disclosure:
    """Filters `tools/list` responses: on-demand tools are listed to a client only after its model has loaded them by `load_tools`.

    Stores all on-demand tools, and which of them each client has loaded.
    """

    def __init__(self) -> None:
        self._tools: dict[str, GuardedTool] = {}
        self._words = WordIndex([])
        self._loaded: OrderedDict[str, _Loaded] = OrderedDict()
        self._store: LoadedStore | None = None
        self._seen = 0
        """Number of the latest change in the shared database that this process has read."""
        self._listener: Callable[[str], None] = lambda _: None
        self.tools: list[Tool] = [_ListTools(self), _LoadTools(self, load=True), _LoadTools(self, load=False)]
        """The tools `list_tools`, `load_tools` and `unload_tools`, by which a model finds, adds and removes on-demand tools."""

    def subscribe(self, listener: Callable[[str], None]) -> None:
        """Register a callback that is called after a client's model has loaded or unloaded on-demand tools, so that its tool list changed.

        The callback receives the client's key, as `scope_of` returns it. It must not block or raise, and replaces an earlier callback.
        """
        self._listener = listener

    def share(self, store: LoadedStore, feed: ChangeFeed) -> None:
        """Share the loaded tools with other gateways through a database. `feed` reports the changes of all gateways."""
        self._store = store
        feed.subscribe(TOPIC, self._catch_up)

    @property
    def names(self) -> frozenset[str]:
        """The exposed names of all on-demand tools: tools that are listed to a client only after its model has loaded them."""
        return frozenset(self._tools)

    def renew(self, tools: Mapping[str, GuardedTool]) -> None:
        """Replace the set of on-demand tools, which models can load, with `tools` (exposed name → tool)."""
        self._tools = dict(tools)
        self._words = WordIndex([_row(name, tool.definition) for name, tool in self._tools.items()])

    def visible(self, entries: Sequence[JsonObject], scope: str) -> Sequence[JsonObject]:
        """Return the entries of `tools/list` that a client sees: all except on-demand tools that it has not loaded.

        `scope` is the client's key, as `scope_of` returns it.
        """
        if not self._tools:
            return entries
        loaded = self._loaded.get(scope, _NONE).names
        return [entry for entry in entries if entry["name"] not in self._tools or entry["name"] in loaded]

    def forget(self, scope: str) -> None:
        """Forget which on-demand tools a client has loaded, because the client is gone. `scope` is its key (`scope_of`).

        Shared sets stay, because the client may continue its session at another gateway.
        """
        if not self._is_shared(scope):
            self._loaded.pop(scope, None)

    def find(self, query: str, source: str | None, principal: Principal) -> list[str]:
        """Return the exposed names of on-demand tools that match `query` and that the principal may use, best match first.

        An empty query matches all tools, in catalog order. `source` restricts the result to the tools of one source.
        """
        names = list(self._tools)
        if query:
            scores = self._words.scores(query)
            names = [names[position] for position in sorted(scores, key=lambda p: (-scores[p], names[p]))]
        tools = self._tools
        return [name for name in names if source in (None, tools[name].source) and tools[name].admit(principal) is PASS]

    def describe(self, name: str, scope: str, principal: Principal) -> JsonObject:
        """Return the entry of an on-demand tool in a result of `list_tools`: name, shortened description, source and `loaded` flag."""
        tool = self._tools[name]
        listed: JsonObject = {"description": tool.definition.description or tool.definition.title or ""}
        if principal.rights is not None:
            listed = tool.described(listed, principal.rights)
        text = " ".join(str(listed["description"]).split())
        short = text if len(text) <= _MAX_SUMMARY_CHARS else f"{text[: _MAX_SUMMARY_CHARS - 1]}…"
        return {"name": name, "description": short, "source": tool.source, "loaded": name in self._loaded.get(scope, _NONE).names}

    async def change(self, names: Sequence[str], scope: str, principal: Principal, *, load: bool) -> tuple[list[str], list[str]]:
        """Load on-demand tools for a client, so that its tool list contains them, or unload them if `load` is false.

        If the client's list changes, the callback of `subscribe` is called. `scope` is the key of the client (`scope_of`). Returns the
        accepted names, and the names that are unknown or that the principal may not use. Raises `StorageError` if the sets are shared and
        the database cannot be used; then nothing is changed.
        """
        tools = self._tools
        known = [name for name in dict.fromkeys(names) if name in tools and tools[name].admit(principal) is PASS]
        if self._store is None or not self._is_shared(scope):
            before = self._loaded.get(scope, _NONE).names
            self._take(scope, _Loaded(before | set(known) if load else before - set(known)))
        elif known:
            row = await (await self._store.loaded_tools()).change(scope, known, load=load, keep=MAX_SCOPES, topic=TOPIC)
            self._take(scope, _Loaded(row.tools, row.number))
        return known, [name for name in dict.fromkeys(names) if name not in known]

    def _is_shared(self, scope: str) -> bool:
        return self._store is not None and not scope.startswith(f"session {OWN_SESSION_PREFIX}")

    def _take(self, scope: str, loaded: _Loaded) -> None:
        """Use `loaded` as the set of a client, unless a later change of it is known. Call the callback of `subscribe` if it differs."""
        before = self._loaded.get(scope, _NONE)
        if loaded == before or loaded.number < before.number:
            return
        self._loaded[scope] = loaded
        self._loaded.move_to_end(scope)
        while len(self._loaded) > MAX_SCOPES:
            self._loaded.popitem(last=False)
        if loaded.names != before.names:
            self._listener(scope)

    async def _catch_up(self) -> None:
        """Read the changes in the shared database since the last call. The change feed calls it. Raises `StorageError`."""
        assert self._store is not None
        store = await self._store.loaded_tools()
        while rows := await store.changed_since(self._seen):
            for row in rows:
                self._take(row.client, _Loaded(row.tools, row.number))
            self._seen = rows[-1].number


class _ListTools:
    """The MCP tool `list_tools(query?, source?, offset?, limit?)`: finds on-demand tools, which `load_tools` can add to a client's list."""

    def __init__(self, disclosure: Disclosure) -> None:
        self._disclosure = disclosure
        self.definition = ToolDefinition(
            name="list_tools",
            title="Find more tools",
            description=(
                "Find tools that are not listed yet. Search with words that describe the task, then load fitting tools with load_tools."
            ),
            input_schema={
                "type": "object",
                "properties": {
                    "query": {"type": "string", "description": "Purpose of the tool, in a few words. Left out: all tools."},
                    "source": {"type": "string", "description": "Only tools of this server."},
                    "offset": {"type": "integer", "minimum": 0, "default": 0},
                    "limit": {"type": "integer", "minimum": 1, "maximum": MAX_LIMIT, "default": DEFAULT_LIMIT},
                },
                "additionalProperties": False,
            },
            annotations={"readOnlyHint": True, "destructiveHint": False, "idempotentHint": True, "openWorldHint": False},
        )

    async def call(self, arguments: JsonObject, ctx: CallContext) -> ToolOutcome:
        """Return one page of the on-demand tools that match the query: one line per tool, best match first."""
        scope = scope_of(ctx.facts.client.session_id, ctx.facts.principal.id)
        names = self._disclosure.find(str(arguments.get("query") or ""), arguments.get("source"), ctx.facts.on_behalf_of)
        offset, limit = int(arguments.get("offset") or 0), int(arguments.get("limit") or DEFAULT_LIMIT)
        page = [self._disclosure.describe(name, scope, ctx.facts.on_behalf_of) for name in names[offset : offset + limit]]
        lines = [f"{len(names)} tool{'' if len(names) == 1 else 's'} found."]
        lines += [f"- {tool['name']}: {tool['description']}{' (loaded)' if tool['loaded'] else ''}" for tool in page]
        if offset + len(page) < len(names):
            lines.append(f"More with offset {offset + len(page)}.")
        return Complete.text("\n".join(lines), structured={"tools": page, "total": len(names)})


class _LoadTools:
    """The MCP tool `load_tools(names)`, which adds on-demand tools to a client's list.

    If `load` is false, it is the tool `unload_tools(names)`, which removes them from the list.
    """

    def __init__(self, disclosure: Disclosure, *, load: bool) -> None:
        self._disclosure = disclosure
        self._load = load
        does = "Add tools found with list_tools to your list of tools" if load else "Remove tools that are no longer needed from your list"
        names: JsonObject = {"type": "array", "items": {"type": "string"}, "minItems": 1, "maxItems": MAX_NAMES}
        self.definition = ToolDefinition(
            name="load_tools" if load else "unload_tools",
            title="Load tools" if load else "Unload tools",
            description=f"{does}, by their names.",
            input_schema={"type": "object", "properties": {"names": names}, "required": ["names"], "additionalProperties": False},
            annotations={"readOnlyHint": False, "destructiveHint": False, "idempotentHint": True, "openWorldHint": False},
        )

    async def call(self, arguments: JsonObject, ctx: CallContext) -> ToolOutcome:
        """Add the named tools to the calling client's list, or remove them. The result lists the names that cannot be loaded."""
        scope = scope_of(ctx.facts.client.session_id, ctx.facts.principal.id)
        names = cast("list[str]", arguments["names"])
        done, unknown = await self._disclosure.change(names, scope, ctx.facts.on_behalf_of, load=self._load)
        lines: list[str] = []
        if done:
            lines.append(f"{'Loaded' if self._load else 'Unloaded'}: {', '.join(done)}.")
        if done and self._load:
            lines.append("A client that does not show them yet can call them by these names.")
        if unknown:
            lines.append(f"These tools cannot be loaded: {', '.join(name[:100] for name in unknown)}. Find names with list_tools.")
        return Complete.text("\n".join(lines), is_error=not done)


def _row(name: str, definition: ToolDefinition) -> Row:
    properties = definition.input_schema.get("properties")
    arguments = " ".join(cast("dict[str, JsonObject]", properties)) if isinstance(properties, dict) else ""
    return f"{name} {definition.title or ''}", "", f"{definition.description or ''} {arguments}"

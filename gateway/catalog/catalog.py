"""`Catalog`: merges the tools, resources, resource templates and prompts of all sources, and finds them by their exposed names.

A source provides tools: a remote MCP server, or the gateway's functions, agents, workflows or skills. The source uses the native name or
URI of an entry; clients use the exposed name or URI. The catalog returns every tool wrapped in `GuardedTool`, so that each call passes the
gate (the pipeline of policy checks). Lists are kept in memory and rebuilt when a source reports a change. The cost of a lookup does not
depend on the number of tools. `server` publishes the catalog; agents and workflows call tools through it.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Literal, cast

import anyio

from gateway.auth.principal import LOCAL, Principal
from gateway.catalog.disclosure import Disclosure
from gateway.catalog.gateway_source import SOURCE_ID, TASK_TOOLS
from gateway.catalog.merged_tools import clash_text, matching_tools
from gateway.catalog.names import expose_uri, split_uri, uri_label
from gateway.catalog.review import REVIEW_TOOL
from gateway.catalog.source_listing import KEY_OF, CatalogEntry, SourceListing
from gateway.catalog.templates import matches_template
from gateway.catalog.uris import expose_contents, expose_messages, uri_to_judge
from gateway.errors import Collision, NotFound
from gateway.gate.pipeline import GateServices
from gateway.gate.reads import Read
from gateway.gate.tools import GuardedTool
from gateway.json_types import JsonObject
from gateway.policy.decision import PASS, Reject
from gateway.policy.scopes import ScopeKind
from gateway.policy.skill_policy import judge_skill_uri
from gateway.tools.base import ChangeKind, Finished, InputRequestingSource, InputRequired, Kind, Source, UpdatingSource
from gateway.tools.context import CallContext

logger = logging.getLogger(__name__)

CATALOG_KINDS: tuple[Kind, ...] = ("resources", "templates", "prompts")
_RESOURCE_KINDS: Mapping[ChangeKind, tuple[Kind, ...]] = {"tools": (), "resources": ("resources", "templates"), "prompts": ("prompts",)}


class Catalog:
    """Holds the merged lists of all sources' tools, resources, templates and prompts, and forwards each read to the right source.

    Call `refresh` once after starting the sources, then run `run` in the background.
    """

    def __init__(
        self,
        entries: Sequence[CatalogEntry],
        services: GateServices,
        *,
        name_budget: int,
        settled: Callable[[], Awaitable[None]],
        disclosure: Disclosure | None = None,
    ) -> None:
        """Store the arguments. The catalog stays empty until `refresh` reads the sources.

        `entries` are the sources, in the order of the merged lists. `services` are passed to the gates, which check every call of a tool
        and read of a resource. `name_budget` is the maximum length of an exposed tool name. `settled` waits, with a deadline, for sources
        that are still starting. `disclosure` receives the on-demand tools, which a client sees only after its model has loaded them.
        """
        self._services = services
        self._name_budget = name_budget
        self._settled = settled
        self.disclosure = disclosure
        """Decides which on-demand tools a client sees (those that its model has loaded); `None` lists every tool to every client."""
        self.may_review: Callable[[Principal], bool] = lambda principal: True
        """Decides whether a principal sees the tool `review_approvals`, which shows a person the calls that wait for an approval."""
        self.listings: Sequence[SourceListing] = self._label_sources(entries)
        """The `SourceListing` of each source (its exposed lists and its policy checks), in catalog order."""
        self._tools: dict[str, GuardedTool] = {}
        """The tools that clients see and can call, by exposed name."""
        self._unlisted: dict[str, GuardedTool] = {}
        """The tools that only agents and workflows of this gateway can call (`listed: false` in `overrides`), by exposed name."""
        self._merged: dict[Kind, list[JsonObject]] = {kind: [] for kind in CATALOG_KINDS}
        self._owners: dict[Kind, dict[str, SourceListing]] = {kind: {} for kind in CATALOG_KINDS}
        self._wire_tools: list[JsonObject] = []
        self._joining: list[SourceListing] = []
        """New sources whose lists `arrange` is still building. If they report a change meanwhile, their lists are rebuilt too."""
        self._dirty: dict[str, set[ChangeKind]] = {}
        self.changed_at: dict[ChangeKind, float] = {}
        """Kind of list (`tools`, `resources` or `prompts`) → time of its last change, in seconds of the event loop's clock."""
        self._wake = anyio.Event()
        self._listeners: list[Callable[[ChangeKind], None]] = []
        self._update_listeners: list[Callable[[str], None]] = []
        self.problems: dict[str, str] = {}
        """Exposed name of a tool → why a second tool of this name is not served; shown by `moongate doctor` and the status page."""

    def _label_sources(self, entries: Sequence[CatalogEntry]) -> list[SourceListing]:
        listings: list[SourceListing] = []
        labels: set[str] = {""}
        for entry in entries:
            # URIs of local sources stay unchanged, because digests and entries of skills name them (SEP-2640).
            label = uri_label(entry.prefix) if entry.prefix and not entry.is_local else ""
            while label and label in labels:
                label += "-2"
            labels.add(label)
            listings.append(SourceListing(entry, label, self._services, self._name_budget))
        return listings

    async def refresh(self) -> None:
        """Read the lists of all sources, merge them into the lists that clients see, and subscribe to the sources' changes.

        Raises:
            Collision: Two local sources (sources that are part of this gateway) have a tool of the same name.
        """
        for listing in self.listings:
            await self._fill(listing)
        self._merge_tools(strict=True)
        for kind in CATALOG_KINDS:
            self._merge_kind(kind)

    async def _fill(self, listing: SourceListing) -> None:
        source_id = listing.entry.source.id
        listing.entry.source.subscribe(lambda kind: self._mark(source_id, kind))
        if isinstance(listing.entry.full, UpdatingSource):
            listing.entry.full.subscribe_updates(lambda uri: self._updated(listing, uri))
        await listing.rebuild_tools()
        for kind in CATALOG_KINDS:
            await listing.rebuild_kind(kind)

    async def arrange(self, entries: Sequence[CatalogEntry]) -> None:
        """Replace all sources with those of `entries`, in this order, and notify the listeners of each kind of list that changed.

        The lists of a source whose entry is unchanged are not rebuilt. In-flight calls of removed sources continue. Must not be called
        concurrently.
        """
        known = {listing.entry.source: listing for listing in self.listings}
        arranged: list[SourceListing] = []
        for fresh in self._label_sources(entries):
            listing = known.get(fresh.entry.source)
            arranged.append(listing if listing is not None and (listing.entry, listing.label) == (fresh.entry, fresh.label) else fresh)
        self._joining = [listing for listing in arranged if listing not in self.listings]
        try:
            for listing in self._joining:
                await self._fill(listing)
            before = self._seen()
            self.listings = arranged
        finally:
            self._joining = []
        self._merge_tools(strict=False)
        for kind in CATALOG_KINDS:
            self._merge_kind(kind)
        after = self._seen()
        for change in _RESOURCE_KINDS:
            if before[change] != after[change]:
                self._notify(change)

    def _seen(self) -> dict[ChangeKind, object]:
        """Return the published lists by kind, so that `arrange` can compare the lists before and after a change of the sources."""
        merged = self._merged
        deferred = self.disclosure.names if self.disclosure is not None else None
        tools = (self._wire_tools, deferred)
        return {"tools": tools, "resources": (merged["resources"], merged["templates"]), "prompts": merged["prompts"]}

    def announce_rights(self) -> None:
        """Notify the listeners that every list may have changed for some callers, because their rights changed."""
        for change in _RESOURCE_KINDS:
            self._notify(change)

    def _notify(self, change: ChangeKind) -> None:
        self._services.events.emit("catalog.changed", name=change)
        self.changed_at[change] = anyio.current_time()
        for listener in self._listeners:
            listener(change)

    async def run(self) -> None:
        """Until cancelled, wait for changes that sources report, rebuild the changed lists, and call the listeners of `subscribe`."""
        while True:
            await self._wake.wait()
            self._wake = anyio.Event()
            await self.catch_up()

    async def catch_up(self) -> None:
        """Rebuild the lists that sources have reported as changed, and call the listeners. Returns at once if no change is pending."""
        if not self._dirty:
            return
        dirty, self._dirty = self._dirty, {}
        try:
            changed = await self._rebuild(dirty)
        except anyio.get_cancelled_exc_class():  # the lists stay marked as changed
            for source_id, kinds in dirty.items():
                self._dirty.setdefault(source_id, set()).update(kinds)
            raise
        if "tools" in changed:
            self._merge_tools(strict=False)
        for change in changed:
            for kind in _RESOURCE_KINDS[change]:
                self._merge_kind(kind)
            self._notify(change)

    async def _rebuild(self, dirty: Mapping[str, set[ChangeKind]]) -> set[ChangeKind]:
        """Rebuild the changed lists of each source in `dirty` (source id → kinds of list), and return all kinds that changed."""
        changed: set[ChangeKind] = set()
        for listing in (*self.listings, *self._joining):
            changes = dirty.get(listing.entry.source.id, set[ChangeKind]())
            if "prompts" in changes and listing.entry.policy.prompts_as_tools:
                changes.add("tools")
            for change in changes:
                changed.add(change)
                if change == "tools":
                    await listing.rebuild_tools()
                for kind in _RESOURCE_KINDS[change]:
                    await listing.rebuild_kind(kind)
        return changed

    def subscribe(self, listener: Callable[[ChangeKind], None]) -> None:
        """Call `listener` after each rebuild of a list that clients see, with the kind of list. The listener must not block or raise."""
        self._listeners.append(listener)

    def subscribe_updates(self, listener: Callable[[str], None]) -> None:
        """Call `listener` each time a source reports that a watched resource has changed, with the exposed URI of the resource."""
        self._update_listeners.append(listener)

    def _mark(self, source_id: str, kind: ChangeKind) -> None:
        self._dirty.setdefault(source_id, set()).add(kind)
        self._wake.set()

    def _updated(self, listing: SourceListing, uri: str) -> None:
        exposed = expose_uri(listing.label, uri)
        for listener in self._update_listeners:
            listener(exposed)

    def _merge_tools(self, *, strict: bool) -> None:
        merged: dict[str, GuardedTool] = {}
        problems: dict[str, str] = {}
        local: dict[str, bool] = {}
        unlisted: dict[str, GuardedTool] = {}
        for listing in self.listings:
            for name, (_, guarded) in listing.tools.items():
                first = merged.get(name)
                if first is None:
                    merged[name] = guarded
                    local[name] = listing.entry.is_local
                    if not listing.is_listed(guarded.definition.name):
                        unlisted[name] = guarded
                    continue
                text = clash_text(name, first.source, guarded.source)
                if strict and local[name] and listing.entry.is_local:
                    raise Collision(text, name=name, first=first.source, second=guarded.source)
                problems[name] = f"{text} The first one counts."
        if all(tool.definition.task_by == "nobody" for tool in merged.values()):
            merged = {name: tool for name, tool in merged.items() if tool.source != SOURCE_ID or name not in TASK_TOOLS}
        for name, text in problems.items():
            if self.problems.get(name) != text:
                logger.error("tool names collide name=%s reason=%s", name, text)
        self.problems = problems
        self._tools = {name: tool for name, tool in merged.items() if name not in unlisted} if unlisted else merged
        self._unlisted = unlisted
        self._wire_tools = [tool.definition.to_wire(name) for name, tool in self._tools.items()]
        if self.disclosure is not None:
            deferred = {listing.entry.source.id for listing in self.listings if listing.entry.policy.disclosure == "on-demand"}
            self.disclosure.renew({name: tool for name, tool in self._tools.items() if tool.source in deferred})

    def _merge_kind(self, kind: Kind) -> None:
        merged: list[JsonObject] = []
        owners: dict[str, SourceListing] = {}
        key = KEY_OF[kind]
        for listing in self.listings:
            for wire in listing.listed.get(kind, ()):
                name = str(wire[key])
                if name not in owners:
                    owners[name] = listing
                    merged.append(wire)
        self._merged[kind] = merged
        self._owners[kind] = owners

    async def tools(self, patterns: Sequence[str] | None = None) -> Sequence[GuardedTool]:
        """Return all tools that clients see. With `patterns`, return all tools that match a pattern, even if clients do not see them.

        A pattern is `<source>/<glob>`; the glob matches a tool's native name in its source. A pattern without `/` is the id of a source
        and matches all of its tools. Implements the protocol `ToolBox`, through which agents and workflows find tools.
        """
        await self.catch_up()
        if patterns is None:
            return list(self._tools.values())
        served = [guarded for listing in self.listings for _, guarded in listing.tools.values()]
        known = [tool for tool in served if tool in (self._tools.get(tool.name), self._unlisted.get(tool.name))]
        return matching_tools(known, patterns)

    def quarantined(self, patterns: Sequence[str]) -> Sequence[GuardedTool]:
        """Return the quarantined tools (hidden until a person accepts their definitions) that match a pattern (see `tools`).

        The gate (the policy checks) refuses and records each call of these tools.
        """
        return matching_tools([tool for listing in self.listings for tool in listing.quarantined()], patterns)

    async def ready(self) -> None:
        """Wait, with a deadline, for sources that are still starting, then rebuild changed lists. Later calls return at once."""
        await self._settled()
        await self.catch_up()

    async def seek(self, exposed_name: str) -> GuardedTool:
        """Return the tool that clients call by this name; if it is unknown, first wait for starting sources. Raises `NotFound`.

        If the tool is quarantined (hidden until a person accepts its definition), the gate (the policy checks) refuses and records calls.
        """
        tool = self._tools.get(exposed_name)
        if tool is None:
            await self.ready()
            held = {tool.name: tool for s in self.listings for tool in s.quarantined() if s.is_listed(tool.definition.name)}
            tool = self._tools.get(exposed_name) or held.get(exposed_name)
        return tool or self.find(exposed_name)

    def find(self, exposed_name: str) -> GuardedTool:
        """Return the tool that clients call by this name, without waiting for sources that are still starting.

        Also returns tools that some clients do not see: on-demand tools that a client's model has not loaded, and tools outside the rights
        of the caller.

        Raises:
            NotFound: The name is unknown, the tool is quarantined, or only agents and workflows may call it (`listed: false`).
        """
        tool = self._tools.get(exposed_name)
        if tool is None:
            raise NotFound("tool", exposed_name)
        return tool

    def input_schema(self, exposed_name: str) -> JsonObject | None:
        """Return the published input schema of a tool; `None` for an unknown name."""
        tool = self._tools.get(exposed_name)
        return tool.definition.input_schema if tool is not None else None

    def count(self, source_id: str, principal: Principal = LOCAL) -> int:
        """Return the number of tools of a source that a principal sees."""
        return sum(1 for tool in self._tools.values() if tool.source == source_id and tool.admit(principal) is PASS)

    def withheld(self, source_id: str | None = None) -> dict[str, Reject]:
        """Return the tools and other entries of one source, or of all, that policy refuses: `<source>/<native name or URI>` → the refusal.
        Entries that are hidden by the patterns `allow` and `deny` are not included."""
        return {
            f"{listing.entry.source.id}/{native}": verdict
            for listing in self.listings
            if source_id in (None, listing.entry.source.id)
            for verdicts in listing.withheld.values()
            for native, verdict in verdicts.items()
        }

    def wire_tools(self, principal: Principal = LOCAL) -> list[JsonObject]:
        """Return the published definitions of all tools that this principal may use, in catalog order. Callers must not change the list."""
        hidden = None if self.reviews(principal) else REVIEW_TOOL
        if principal.rights is None and hidden is None:
            return self._wire_tools
        admitted = [wire for wire in self._wire_tools if self._tools[wire["name"]].admit(principal) is PASS and wire["name"] != hidden]
        if (rights := principal.rights) is None:
            return admitted
        return [self._tools[wire["name"]].described(wire, rights) for wire in admitted]

    def reviews(self, principal: Principal) -> bool:
        """Return whether the principal may see `review_approvals`, or there is no such tool. Principals with equal rights may differ."""
        return REVIEW_TOOL not in self._tools or self.may_review(principal)

    def wire(self, kind: Kind, principal: Principal = LOCAL) -> list[JsonObject]:
        """Return the published resources, templates or prompts (`kind`) that this principal may use, in catalog order. Callers must not
        change the list."""
        if principal.rights is None:
            return self._merged[kind]
        of: ScopeKind = "prompts" if kind == "prompts" else "resources"
        owners, key = self._owners[kind], KEY_OF[kind]
        return [wire for wire in self._merged[kind] if owners[wire[key]].admits(principal, of, owners[wire[key]].natives[kind][wire[key]])]

    def locate(self, uri: str) -> tuple[SourceListing, str]:
        """Return the `SourceListing` of the source that serves an exposed URI, and the source's native URI of the same resource.
        Raises `NotFound`, also for a skill that policy hides."""
        listing, native = self._located(uri)
        if not judge_skill_uri(native, listing.entry.policy.skills):
            raise NotFound("resource", uri)
        return listing, native

    def _located(self, uri: str) -> tuple[SourceListing, str]:
        owner = self._owners["resources"].get(uri)
        if owner is not None:
            return owner, owner.natives["resources"][uri]
        split = split_uri(uri)
        if split is not None:
            for listing in self.listings:
                if listing.label and listing.label == split[0] and listing.entry.full is not None and not self._is_local(uri):
                    return listing, split[1]
        unlabelled = [s for s in self.listings if not s.label and s.entry.full is not None]
        for listing in unlabelled:
            if any(matches_template(template, uri) for template in listing.natives.get("templates", {})):
                return listing, uri
        servers = [s for s in unlabelled if not s.entry.is_local]
        if len(servers) == 1:
            return servers[0], uri
        raise NotFound("resource", uri)

    def _is_local(self, uri: str) -> bool:
        """Return whether a URI that no source lists is in a skill folder of this gateway, so that the gateway serves it itself.

        The URI itself does not show this, because it has the name of a skill folder or the label of a server in the same position.
        """
        root = "/".join(uri.split("/")[:3])
        return any(exposed.startswith(f"{root}/") for s in self.listings if s.entry.is_local for exposed in s.natives.get("resources", {}))

    def _owner_of_prompt(self, name: str) -> tuple[SourceListing, str]:
        listing = self._owners["prompts"].get(name)
        if listing is None:
            raise NotFound("prompt", name)
        return listing, listing.natives["prompts"][name]

    async def may_request_input(self, kind: Literal["resources", "prompts"], name: str) -> bool:
        """Return whether reading the resource or prompt may send the client a request for input; false for an unknown URI or name."""
        await self.ready()
        try:
            listing, _ = self.locate(name) if kind == "resources" else self._owner_of_prompt(name)
        except NotFound:
            return False
        return isinstance(listing.entry.full, InputRequestingSource) and listing.entry.full.may_request_input

    async def read(self, uri: str, ctx: CallContext) -> Finished | InputRequired:
        """Read the resource that clients see as `uri`, if policy allows it. First wait for sources that still start. Raises `NotFound`."""
        await self.ready()
        return await self.read_now(uri, ctx)

    async def read_now(self, uri: str, ctx: CallContext) -> Finished | InputRequired:
        """Read the resource that clients see as `uri`, if policy allows it; do not wait for starting sources. Raises `NotFound`."""
        listing, native = self.locate(uri)
        source = cast("Source", listing.entry.full)

        async def work(inner: CallContext) -> Finished | InputRequired:
            outcome = await source.read(native, inner)
            if listing.label and isinstance(outcome, Finished):
                contents = expose_contents(outcome.result.get("contents") or [], listing.label)
                return Finished({**outcome.result, "contents": contents})
            return outcome

        try:
            # MCP hosts check the digests of skills' files, so a file is returned unchanged or refused.
            exact = "allow" if listing.hidden_text == "strip" and native.startswith("skill://") else None
            read = Read(method="resources/read", name=uri, subject=("resources", native), hidden_text=exact)
            return await listing.reads.read(read, ctx, work)
        except NotFound:
            raise NotFound("resource", uri) from None

    async def get_prompt(self, name: str, arguments: Mapping[str, str], ctx: CallContext) -> Finished | InputRequired:
        """Get the prompt that clients see as `name` from its source, if policy allows it. Raises `NotFound`."""
        await self.ready()
        listing, native = self._owner_of_prompt(name)
        source = cast("Source", listing.entry.full)

        async def work(inner: CallContext) -> Finished | InputRequired:
            outcome = await source.get_prompt(native, arguments, inner)
            if listing.label and isinstance(outcome, Finished):
                return Finished({**outcome.result, "messages": expose_messages(outcome.result.get("messages"), listing.label)})
            return outcome

        return await listing.reads.read(Read(method="prompts/get", name=name, subject=("prompts", native)), ctx, work)

    async def complete(self, ref: JsonObject, argument: JsonObject, context: JsonObject | None, ctx: CallContext) -> JsonObject:
        """Return the source's suggestions for an argument of a prompt or resource template that clients see. Raises `NotFound`."""
        await self.ready()
        asked, kind = ref, cast("ScopeKind", "prompts" if ref.get("type") == "ref/prompt" else "resources")
        if kind == "prompts":
            listing, native = self._owner_of_prompt(str(ref.get("name")))
            ref = {**ref, "name": native}
        else:
            uri = str(ref.get("uri"))
            template = self._owners["templates"].get(uri)
            listing, native = (template, template.natives["templates"][uri]) if template else self.locate(uri)
            ref = {**ref, "uri": native}
        source, shown = cast("Source", listing.entry.full), str(asked.get("name" if kind == "prompts" else "uri"))
        judged = native if kind == "prompts" else uri_to_judge(native, argument, context)

        async def work(inner: CallContext) -> JsonObject:
            return await source.complete(ref, argument, context, inner)

        read = Read(method="completion/complete", name=native, subject=(kind, judged), shown=shown)
        return await listing.reads.fetch(read, ctx, work)

    async def watch(self, uri: str, ctx: CallContext) -> None:
        """Subscribe at the source to updates of the resource that clients see as `uri`, if policy allows it. Raises `NotFound`.
        Listeners registered by `subscribe_updates` receive the updates."""
        await self.ready()
        listing, native = self.locate(uri)
        source = cast("Source", listing.entry.full)

        async def subscribe(inner: CallContext) -> JsonObject:
            await source.watch(native)
            return {}

        await listing.reads.fetch(Read(method="resources/subscribe", name=uri, subject=("resources", native)), ctx, subscribe)

    async def unwatch(self, uri: str) -> None:
        """End the subscription to a resource that `watch` started. Raises `NotFound` if no source serves the URI any longer."""
        listing, native = self.locate(uri)
        await cast("Source", listing.entry.full).unwatch(native)

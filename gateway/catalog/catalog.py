"""`Catalog`: the one list of everything callable and readable, and the only way to it.

Merges all sources under exposed names, wraps every tool in `GuardedTool` and hands out nothing else, so there is
no unguarded path. Lists are rebuilt when a source says that it changed and served from memory; a look-up costs
the same for two tools and for two thousand. Publishes no protocol: `server` does.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Literal, cast

import anyio

from gateway.auth.principal import LOCAL, Principal
from gateway.catalog.disclosure import Disclosure
from gateway.catalog.names import expose_uri, split_uri, uri_label
from gateway.catalog.own import SOURCE_ID, TASK_TOOLS
from gateway.catalog.review import REVIEW_TOOL
from gateway.catalog.shelf import KEY_OF, CatalogEntry, Fittings, Shelf
from gateway.catalog.templates import matches_template
from gateway.catalog.uris import expose_contents, expose_messages, uri_to_judge
from gateway.errors import Collision, NotFound
from gateway.json_types import JsonObject
from gateway.policy.decision import PASS
from gateway.policy.pins import PINS_RULE
from gateway.policy.scopes import ScopeKind
from gateway.policy.skills import judge_skill_uri
from gateway.telemetry.events import EventStream
from gateway.tools.approvals import Approvals
from gateway.tools.base import AskingSource, ChangeKind, Finished, InputRequired, Kind, Source, UpdatingSource
from gateway.tools.context import CallContext
from gateway.tools.guard import GuardedTool
from gateway.tools.results import ResultKeeper

logger = logging.getLogger(__name__)

CATALOG_KINDS: tuple[Kind, ...] = ("resources", "templates", "prompts")
_RESOURCE_KINDS: Mapping[ChangeKind, tuple[Kind, ...]] = {"tools": (), "resources": ("resources", "templates"), "prompts": ("prompts",)}


class Catalog:
    """The merged view. `refresh` once after the sources are entered; `run` keeps it current."""

    def __init__(
        self,
        entries: Sequence[CatalogEntry],
        events: EventStream,
        *,
        name_budget: int,
        settled: Callable[[], Awaitable[None]],
        keeper: ResultKeeper | None = None,
        disclosure: Disclosure | None = None,
        approvals: Approvals | None = None,
        mask: Callable[[str], str] | None = None,
    ) -> None:
        """`name_budget` is the longest exposed tool name; `settled` waits, bounded, for sources that are still starting;
        `approvals` asks people where policy wants that.

        `keeper` keeps the whole of results over their budget; without one they are refused. `disclosure` is told which tools
        are listed on demand only, and decides who is shown them. `mask` takes secrets out of what errors say.

        No side effects.
        """
        self._events = events
        self._settled = settled
        self.disclosure = disclosure
        """What narrows the listing per client; `None` while every tool is listed to everybody."""
        self._fittings = Fittings(events, name_budget, keeper, approvals, mask)
        self.may_review: Callable[[Principal], bool] = lambda principal: True
        """To whom `review_approvals` is listed."""
        self._shelves = self._label_shelves(entries)
        self._tools: dict[str, GuardedTool] = {}
        """What clients see and call."""
        self._unlisted: dict[str, GuardedTool] = {}
        """What only agents and workflows of this gateway may call."""
        self._merged: dict[Kind, list[JsonObject]] = {kind: [] for kind in CATALOG_KINDS}
        self._owners: dict[Kind, dict[str, Shelf]] = {kind: {} for kind in CATALOG_KINDS}
        self._wire_tools: list[JsonObject] = []
        self._joining: list[Shelf] = []
        """What `arrange` is about to put up; followed like the others."""
        self._dirty: dict[str, set[ChangeKind]] = {}
        self.changed_at: dict[ChangeKind, float] = {}
        """When each kind of list last became another (loop time)."""
        self._wake = anyio.Event()
        self._listeners: list[Callable[[ChangeKind], None]] = []
        self._update_listeners: list[Callable[[str], None]] = []
        self.problems: dict[str, str] = {}
        """Exposed name → what is wrong with it (a clash), for `doctor` and the console."""

    def _label_shelves(self, entries: Sequence[CatalogEntry]) -> list[Shelf]:
        shelves: list[Shelf] = []
        labels: set[str] = {""}
        for entry in entries:
            # Our own URIs are served as they are: skill digests and entries name them (SEP-2640).
            label = uri_label(entry.prefix) if entry.prefix and not entry.is_local else ""
            while label and label in labels:
                label += "-2"
            labels.add(label)
            shelves.append(Shelf(entry, label, self._fittings))
        return shelves

    # -- keeping current ---------------------------------------------------------------------------------------

    async def refresh(self) -> None:
        """Build everything from the sources' current lists and start following them.

        Raises:
            Collision: Two local sources claim one tool name.
        """
        for shelf in self._shelves:
            await self._fill(shelf)
        self._merge_tools(strict=True)
        for kind in CATALOG_KINDS:
            self._merge_kind(kind)

    async def _fill(self, shelf: Shelf) -> None:
        source_id = shelf.entry.source.id
        shelf.entry.source.subscribe(lambda kind: self._mark(source_id, kind))
        if isinstance(shelf.entry.full, UpdatingSource):
            shelf.entry.full.subscribe_updates(lambda uri: self._updated(shelf, uri))
        await shelf.rebuild_tools()
        for kind in CATALOG_KINDS:
            await shelf.rebuild_kind(kind)

    async def arrange(self, entries: Sequence[CatalogEntry]) -> None:
        """Serve exactly these sources from now on, in this order; what differs in what clients see is told.

        An entry equal to one that is here keeps what was built for it. Calls that run on one that goes are left alone. Not to be
        called twice at once.
        """
        known = {shelf.entry.source: shelf for shelf in self._shelves}
        arranged: list[Shelf] = []
        for fresh in self._label_shelves(entries):
            shelf = known.get(fresh.entry.source)
            arranged.append(shelf if shelf is not None and (shelf.entry, shelf.label) == (fresh.entry, fresh.label) else fresh)
        self._joining = [shelf for shelf in arranged if shelf not in self._shelves]
        try:
            for shelf in self._joining:
                await self._fill(shelf)
            before = self._seen()
            self._shelves = arranged
        finally:
            self._joining = []
        self._merge_tools(strict=False)
        for kind in CATALOG_KINDS:
            self._merge_kind(kind)
        after = self._seen()
        for change in _RESOURCE_KINDS:
            if before[change] != after[change]:
                self._tell(change)

    def _seen(self) -> dict[ChangeKind, object]:
        """What clients see of each list."""
        merged = self._merged
        deferred = self.disclosure.names if self.disclosure is not None else None
        tools = (self._wire_tools, deferred)
        return {"tools": tools, "resources": (merged["resources"], merged["templates"]), "prompts": merged["prompts"]}

    def _tell(self, change: ChangeKind) -> None:
        self._events.emit("catalog.changed", name=change)
        self.changed_at[change] = anyio.current_time()
        for listener in self._listeners:
            listener(change)

    async def run(self) -> None:
        """Rebuild what changed, then tell the listeners; until cancelled."""
        while True:
            await self._wake.wait()
            self._wake = anyio.Event()
            await self.catch_up()

    async def catch_up(self) -> None:
        """Rebuild what is marked as changed now. Cheap when nothing is."""
        if not self._dirty:
            return
        dirty, self._dirty = self._dirty, {}
        try:
            changed = await self._rebuild(dirty)
        except anyio.get_cancelled_exc_class():  # what was marked stays marked
            for source_id, kinds in dirty.items():
                self._dirty.setdefault(source_id, set()).update(kinds)
            raise
        if "tools" in changed:
            self._merge_tools(strict=False)
        for change in changed:
            for kind in _RESOURCE_KINDS[change]:
                self._merge_kind(kind)
            self._tell(change)

    async def _rebuild(self, dirty: Mapping[str, set[ChangeKind]]) -> set[ChangeKind]:
        """Rebuild shelves; what changed."""
        changed: set[ChangeKind] = set()
        for shelf in (*self._shelves, *self._joining):
            changes = dirty.get(shelf.entry.source.id, set[ChangeKind]())
            if "prompts" in changes and shelf.entry.policy.prompts_as_tools:
                changes.add("tools")
            for change in changes:
                changed.add(change)
                if change == "tools":
                    await shelf.rebuild_tools()
                for kind in _RESOURCE_KINDS[change]:
                    await shelf.rebuild_kind(kind)
        return changed

    def subscribe(self, listener: Callable[[ChangeKind], None]) -> None:
        """Call `listener` after each rebuild of a kind; it must not block or raise."""
        self._listeners.append(listener)

    def subscribe_updates(self, listener: Callable[[str], None]) -> None:
        """Call `listener` with the exposed URI of a watched resource that changed."""
        self._update_listeners.append(listener)

    def _mark(self, source_id: str, kind: ChangeKind) -> None:
        self._dirty.setdefault(source_id, set()).add(kind)
        self._wake.set()

    def _updated(self, shelf: Shelf, uri: str) -> None:
        exposed = expose_uri(shelf.label, uri)
        for listener in self._update_listeners:
            listener(exposed)

    def _merge_tools(self, *, strict: bool) -> None:
        merged: dict[str, GuardedTool] = {}
        problems: dict[str, str] = {}
        local: dict[str, bool] = {}
        unlisted: dict[str, GuardedTool] = {}
        for shelf in self._shelves:
            for name, (_, guarded) in shelf.tools.items():
                first = merged.get(name)
                if first is None:
                    merged[name] = guarded
                    local[name] = shelf.entry.is_local
                    override = shelf.entry.policy.overrides.get(guarded.definition.name)
                    if override is not None and not override.listed:
                        unlisted[name] = guarded
                    continue
                text = _clash(name, first.source, guarded.source)
                if strict and local[name] and shelf.entry.is_local:
                    raise Collision(text, name=name, first=first.source, second=guarded.source)
                problems[name] = f"{text} The first one counts."
        if all(tool.definition.task_by == "nobody" for tool in merged.values()):
            merged = {name: tool for name, tool in merged.items() if tool.source != SOURCE_ID or name not in TASK_TOOLS}
        for name, text in problems.items():
            if self.problems.get(name) != text:
                logger.error("%s", text)
        self.problems = problems
        self._tools = {name: tool for name, tool in merged.items() if name not in unlisted} if unlisted else merged
        self._unlisted = unlisted
        self._wire_tools = [tool.definition.to_wire(name) for name, tool in self._tools.items()]
        if self.disclosure is not None:
            deferred = {shelf.entry.source.id for shelf in self._shelves if shelf.entry.policy.disclosure == "on-demand"}
            self.disclosure.renew({name: tool for name, tool in self._tools.items() if tool.source in deferred})

    def _merge_kind(self, kind: Kind) -> None:
        merged: list[JsonObject] = []
        owners: dict[str, Shelf] = {}
        key = KEY_OF[kind]
        for shelf in self._shelves:
            for wire in shelf.listed.get(kind, ()):
                name = str(wire[key])
                if name in owners:
                    continue
                owners[name] = shelf
                merged.append(wire)
        self._merged[kind] = merged
        self._owners[kind] = owners

    # -- tools -------------------------------------------------------------------------------------------------

    async def tools(self, patterns: Sequence[str] | None = None) -> Sequence[GuardedTool]:
        """All tools that clients see, or those matching any `<source>/<glob over native names>`, unlisted ones too (`ToolBox`)."""
        await self.catch_up()
        if patterns is None:
            return list(self._tools.values())
        split = [p.split("/", 1) if "/" in p else [p, "*"] for p in patterns]
        return [
            guarded
            for shelf in self._shelves
            for name, (tool, guarded) in shelf.tools.items()
            if (self._tools.get(name) is guarded or self._unlisted.get(name) is guarded)
            and any(source == shelf.entry.source.id and fnmatchcase(tool.definition.name, glob) for source, glob in split)
        ]

    async def ready(self) -> None:
        """Wait, bounded, for sources that are still starting, then be current. Returns at once ever after."""
        await self._settled()
        await self.catch_up()

    async def seek(self, exposed_name: str) -> GuardedTool:
        """`find`, giving a source that is still starting its time before the name counts as unknown."""
        tool = self._tools.get(exposed_name)
        if tool is None:
            await self.ready()
        return tool or self.find(exposed_name)

    def find(self, exposed_name: str) -> GuardedTool:
        """The tool behind an exposed name.

        Raises:
            NotFound: Unknown or hidden.
        """
        tool = self._tools.get(exposed_name)
        if tool is None:
            raise NotFound("tool", exposed_name)
        return tool

    def refuse_quarantined(self, exposed_name: str, principal: Principal) -> str | None:
        """Record that a call of a quarantined tool was refused, and return why and what accepts the tool.

        Returns `None` for other names, and for callers who may not use the tool.
        """
        for shelf in self._shelves:
            if (reason := shelf.quarantined(principal).get(exposed_name)) is not None:
                fields: JsonObject = {"outcome": "refused", "rule": PINS_RULE}
                source = shelf.entry.source.id
                self._events.emit("call.refused", source=source, name=exposed_name, principal=principal.id, fields=fields)
                return f"Tool {exposed_name!r} is quarantined: {reason}."
        return None

    def input_schema(self, exposed_name: str) -> JsonObject | None:
        """The published schema of a tool; `None` for an unknown one."""
        tool = self._tools.get(exposed_name)
        return tool.definition.input_schema if tool is not None else None

    def shows(self, exposed_name: str, tool: GuardedTool) -> bool:
        """Whether this tool is what clients see under a name."""
        return self._tools.get(exposed_name) is tool

    def count(self, source_id: str) -> int:
        """How many tools of one source are served."""
        return sum(1 for tool in self._tools.values() if tool.source == source_id)

    def withheld(self, source_id: str | None = None) -> dict[str, str]:
        """`<source>/<native name or URI>` → why it is not served, of all sources or of one; what patterns hide is not told."""
        return {
            f"{shelf.entry.source.id}/{native}": reason
            for shelf in self._shelves
            if source_id in (None, shelf.entry.source.id)
            for reasons in shelf.withheld.values()
            for native, reason in reasons.items()
        }

    def wire_tools(self, principal: Principal = LOCAL) -> list[JsonObject]:
        """Every tool this caller may use as published, in order. Shared: do not change it."""
        hidden = None if self.reviews(principal) else REVIEW_TOOL
        if principal.scopes is None and hidden is None:
            return self._wire_tools
        admitted = [wire for wire in self._wire_tools if self._tools[wire["name"]].admit(principal) is PASS and wire["name"] != hidden]
        if (scopes := principal.scopes) is None:
            return admitted
        return [self._tools[wire["name"]].described(wire, scopes) for wire in admitted]

    def reviews(self, principal: Principal) -> bool:
        """Whether this caller is listed `review_approvals`, if it is there: of two callers with equal scopes one may be."""
        return REVIEW_TOOL not in self._tools or self.may_review(principal)

    def wire(self, kind: Kind, principal: Principal = LOCAL) -> list[JsonObject]:
        """Every resource, template or prompt this caller may use as published, in order. Shared: do not change it."""
        if principal.scopes is None:
            return self._merged[kind]
        of: ScopeKind = "prompts" if kind == "prompts" else "resources"
        owners, key = self._owners[kind], KEY_OF[kind]
        return [wire for wire in self._merged[kind] if owners[wire[key]].admits(principal, of, owners[wire[key]].natives[kind][wire[key]])]

    # -- resources and prompts ---------------------------------------------------------------------------------

    def _locate(self, uri: str) -> tuple[Shelf, str]:
        """The shelf and native URI behind an exposed one. Raises `NotFound`, also for a skill that policy does not let exist."""
        shelf, native = self._located(uri)
        if not judge_skill_uri(native, shelf.entry.policy.skills):
            raise NotFound("resource", uri)
        return shelf, native

    def _located(self, uri: str) -> tuple[Shelf, str]:
        owner = self._owners["resources"].get(uri)
        if owner is not None:
            return owner, owner.natives["resources"][uri]
        split = split_uri(uri)
        if split is not None:
            for shelf in self._shelves:
                if shelf.label and shelf.label == split[0] and shelf.entry.full is not None and not self._is_local(uri):
                    return shelf, split[1]
        unlabelled = [s for s in self._shelves if not s.label and s.entry.full is not None]
        for shelf in unlabelled:
            if any(matches_template(template, uri) for template in shelf.natives.get("templates", {})):
                return shelf, uri
        servers = [s for s in unlabelled if not s.entry.is_local]
        if len(servers) == 1:
            return servers[0], uri
        raise NotFound("resource", uri)

    def _is_local(self, uri: str) -> bool:
        """Whether a local skill has this unlisted file: its folder may be named like a server."""
        root = "/".join(uri.split("/")[:3])
        return any(exposed.startswith(f"{root}/") for s in self._shelves if s.entry.is_local for exposed in s.natives.get("resources", {}))

    def _owner_of_prompt(self, name: str) -> tuple[Shelf, str]:
        shelf = self._owners["prompts"].get(name)
        if shelf is None:
            raise NotFound("prompt", name)
        return shelf, shelf.natives["prompts"][name]

    async def may_ask(self, kind: Literal["resources", "prompts"], name: str) -> bool:
        """Whether reading an exposed URI or prompt may use `CallContext.ask` (`AskingSource`); unknown names do not."""
        await self.ready()
        try:
            shelf, _ = self._locate(name) if kind == "resources" else self._owner_of_prompt(name)
        except NotFound:
            return False
        return isinstance(shelf.entry.full, AskingSource) and shelf.entry.full.may_ask

    async def read(self, uri: str, ctx: CallContext) -> Finished | InputRequired:
        """Read an exposed URI through the gate. Returns `ReadOutcome`; raises `NotFound`."""
        await self.ready()
        return await self.read_now(uri, ctx)

    async def read_now(self, uri: str, ctx: CallContext) -> Finished | InputRequired:
        """As `read`, without waiting for sources that are still starting."""
        shelf, native = self._locate(uri)
        source = cast("Source", shelf.entry.full)

        async def work(inner: CallContext) -> Finished | InputRequired:
            outcome = await source.read(native, inner)
            if shelf.label and isinstance(outcome, Finished):
                contents = expose_contents(outcome.result.get("contents") or [], shelf.label)
                return Finished({**outcome.result, "contents": contents})
            return outcome

        try:
            # Hosts check the digests of skills' files: they are read as they are, or refused.
            exact = "allow" if shelf.hidden_text == "strip" and native.startswith("skill://") else None
            return await shelf.gate.run("resources/read", uri, ctx, work, exact, ("resources", native))
        except NotFound:
            raise NotFound("resource", uri) from None

    async def get_prompt(self, name: str, arguments: Mapping[str, str], ctx: CallContext) -> Finished | InputRequired:
        """Render an exposed prompt through the gate. Returns `PromptOutcome`; raises `NotFound`."""
        await self.ready()
        shelf, native = self._owner_of_prompt(name)
        source = cast("Source", shelf.entry.full)

        async def work(inner: CallContext) -> Finished | InputRequired:
            outcome = await source.get_prompt(native, arguments, inner)
            if shelf.label and isinstance(outcome, Finished):
                return Finished({**outcome.result, "messages": expose_messages(outcome.result.get("messages"), shelf.label)})
            return outcome

        return await shelf.gate.run("prompts/get", name, ctx, work, subject=("prompts", native))

    async def complete(self, ref: JsonObject, argument: JsonObject, context: JsonObject | None, ctx: CallContext) -> JsonObject:
        """Complete an argument of an exposed prompt or template. Raises `NotFound`."""
        await self.ready()
        kind: ScopeKind = "prompts" if ref.get("type") == "ref/prompt" else "resources"
        if kind == "prompts":
            shelf, native = self._owner_of_prompt(str(ref.get("name")))
            ref = {**ref, "name": native}
        else:
            uri = str(ref.get("uri"))
            template = self._owners["templates"].get(uri)
            shelf, native = (template, template.natives["templates"][uri]) if template else self._locate(uri)
            ref = {**ref, "uri": native}
        source = cast("Source", shelf.entry.full)
        judged = native if kind == "prompts" else uri_to_judge(native, argument, context)

        async def work(inner: CallContext) -> JsonObject:
            return await source.complete(ref, argument, context, inner)

        return await shelf.gate.finish("completion/complete", native, ctx, work, subject=(kind, judged))

    @property
    def shelves(self) -> Sequence[Shelf]:
        """What each source contributes, in order."""
        return self._shelves

    def locate(self, uri: str) -> tuple[Shelf, str]:
        """The shelf and native URI behind an exposed one. Raises `NotFound`."""
        return self._locate(uri)

    async def watch(self, uri: str, ctx: CallContext) -> None:
        """Count a watch of an exposed URI, through the gate; updates come through `subscribe_updates`. Raises `NotFound`."""
        await self.ready()
        shelf, native = self._locate(uri)
        source = cast("Source", shelf.entry.full)

        async def subscribe(inner: CallContext) -> JsonObject:
            await source.watch(native)
            return {}

        await shelf.gate.finish("resources/subscribe", uri, ctx, subscribe, subject=("resources", native))

    async def unwatch(self, uri: str) -> None:
        """Undo one `watch`."""
        shelf, native = self._locate(uri)
        await cast("Source", shelf.entry.full).unwatch(native)


def _clash(name: str, first: str, second: str) -> str:
    """What is wrong where two sources claim one tool name, and the fix."""
    if first == SOURCE_ID:  # as a gateway behind this one does that has no prefix
        return f"Tool {name!r} of source {second!r} is hidden by this gateway's own; give {second!r} a `prefix` under `policies`."
    claimed = f"Tool name {name!r} is claimed by source {first!r} and by source {second!r}"
    return f"{claimed}; give one of them another `prefix` under `policies`."

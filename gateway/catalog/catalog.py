"""`Catalog`: merges the tools, resources, templates and prompts of all sources under exposed names.

It wraps every tool in `GuardedTool` and returns nothing else, so every call passes the gate. Lists are kept in memory and rebuilt when a
source reports a change. The cost of a lookup does not depend on the number of tools. `server` publishes the catalog; agents and workflows
call through it.
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
from gateway.catalog.shelf import KEY_OF, CatalogEntry, Shelf
from gateway.catalog.templates import matches_template
from gateway.catalog.uris import expose_contents, expose_messages, uri_to_judge
from gateway.errors import Collision, NotFound
from gateway.gate.pipeline import GateServices, audit_refusal
from gateway.gate.reads import Read
from gateway.gate.tools import GuardedTool
from gateway.json_types import JsonObject
from gateway.policy.decision import PASS
from gateway.policy.pin_check import PINS_RULE
from gateway.policy.scopes import ScopeKind
from gateway.policy.skill_policy import judge_skill_uri
from gateway.tools.base import AskingSource, ChangeKind, Finished, InputRequired, Kind, Source, UpdatingSource
from gateway.tools.context import CallContext

logger = logging.getLogger(__name__)

CATALOG_KINDS: tuple[Kind, ...] = ("resources", "templates", "prompts")
_RESOURCE_KINDS: Mapping[ChangeKind, tuple[Kind, ...]] = {"tools": (), "resources": ("resources", "templates"), "prompts": ("prompts",)}


class Catalog:
    """The merged tools, resources, templates and prompts of all sources. Call `refresh` once after starting the sources, then `run`."""

    def __init__(
        self,
        entries: Sequence[CatalogEntry],
        services: GateServices,
        *,
        name_budget: int,
        settled: Callable[[], Awaitable[None]],
        disclosure: Disclosure | None = None,
    ) -> None:
        """Store the arguments. The sources are read only when `refresh` is called.

        `services` are passed to the gates, which check every tool call and read. `name_budget` is the maximum length of an exposed tool
        name. `settled` waits, with a deadline, for sources that are still starting. `disclosure` gets the tools that are listed on demand
        only, and decides which clients see them.
        """
        self._services = services
        self._name_budget = name_budget
        self._settled = settled
        self.disclosure = disclosure
        """Decides per client which tools are listed; `None` lists every tool to every client."""
        self.may_review: Callable[[Principal], bool] = lambda principal: True
        """Whether a principal sees `review_approvals`."""
        self._shelves = self._label_shelves(entries)
        self._tools: dict[str, GuardedTool] = {}
        """Tools that clients see and call, by exposed name."""
        self._unlisted: dict[str, GuardedTool] = {}
        """Tools that only agents and workflows of this gateway may call, by exposed name."""
        self._merged: dict[Kind, list[JsonObject]] = {kind: [] for kind in CATALOG_KINDS}
        self._owners: dict[Kind, dict[str, Shelf]] = {kind: {} for kind in CATALOG_KINDS}
        self._wire_tools: list[JsonObject] = []
        self._joining: list[Shelf] = []
        """New sources whose lists `arrange` is still building. Changes that these sources report meanwhile are not lost."""
        self._dirty: dict[str, set[ChangeKind]] = {}
        self.changed_at: dict[ChangeKind, float] = {}
        """Kind of list → time of its last change, by the event loop's clock."""
        self._wake = anyio.Event()
        self._listeners: list[Callable[[ChangeKind], None]] = []
        self._update_listeners: list[Callable[[str], None]] = []
        self.problems: dict[str, str] = {}
        """Exposed name → its problem, for example a name clash; shown by `doctor` and the console."""

    def _label_shelves(self, entries: Sequence[CatalogEntry]) -> list[Shelf]:
        shelves: list[Shelf] = []
        labels: set[str] = {""}
        for entry in entries:
            # URIs of local sources stay unchanged, because digests and entries of skills name them (SEP-2640).
            label = uri_label(entry.prefix) if entry.prefix and not entry.is_local else ""
            while label and label in labels:
                label += "-2"
            labels.add(label)
            shelves.append(Shelf(entry, label, self._services, self._name_budget))
        return shelves

    async def refresh(self) -> None:
        """Build all lists from the sources' current lists and start following their changes.

        Raises:
            Collision: Two local sources have a tool of the same name.
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
        """Serve exactly these sources from now on, in this order, and report each kind of list that changed.

        An entry that equals a current one keeps its built lists. In-flight calls of removed sources continue. Must not be called
        concurrently.
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
        """Return the lists that clients see, by kind, to find out which kinds a change of the sources affects."""
        merged = self._merged
        deferred = self.disclosure.names if self.disclosure is not None else None
        tools = (self._wire_tools, deferred)
        return {"tools": tools, "resources": (merged["resources"], merged["templates"]), "prompts": merged["prompts"]}

    def _tell(self, change: ChangeKind) -> None:
        self._services.events.emit("catalog.changed", name=change)
        self.changed_at[change] = anyio.current_time()
        for listener in self._listeners:
            listener(change)

    async def run(self) -> None:
        """Rebuild changed lists and call the listeners, until cancelled."""
        while True:
            await self._wake.wait()
            self._wake = anyio.Event()
            await self.catch_up()

    async def catch_up(self) -> None:
        """Rebuild the lists that are marked as changed; returns at once if no list is marked."""
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
            self._tell(change)

    async def _rebuild(self, dirty: Mapping[str, set[ChangeKind]]) -> set[ChangeKind]:
        """Rebuild the lists that sources reported as changed (`dirty`: source id → kinds), and return the changed kinds."""
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
        """Call `listener` with the kind of list after each rebuild of such a list. The listener must not block or raise."""
        self._listeners.append(listener)

    def subscribe_updates(self, listener: Callable[[str], None]) -> None:
        """Call `listener` with the exposed URI of each watched resource that changes."""
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

    async def tools(self, patterns: Sequence[str] | None = None) -> Sequence[GuardedTool]:
        """Return all tools that clients see; with `patterns` (`<source>/<glob>`) all that match a pattern, unlisted tools included.

        The globs match the names that the sources use. Implements `ToolBox`.
        """
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
        """Wait, with a deadline, for sources that are still starting, then rebuild changed lists. Later calls return at once."""
        await self._settled()
        await self.catch_up()

    async def seek(self, exposed_name: str) -> GuardedTool:
        """Find a tool as `find` does, but wait for sources that are still starting before the name counts as unknown."""
        tool = self._tools.get(exposed_name)
        if tool is None:
            await self.ready()
        return tool or self.find(exposed_name)

    def find(self, exposed_name: str) -> GuardedTool:
        """Return the tool with an exposed name.

        Raises:
            NotFound: The name is unknown, or the tool is hidden.
        """
        tool = self._tools.get(exposed_name)
        if tool is None:
            raise NotFound("tool", exposed_name)
        return tool

    def refuse_quarantined(self, exposed_name: str, principal: Principal) -> str | None:
        """Record that a call of a quarantined tool was refused, and return the reason and the command that accepts the tool.

        Returns `None` if the name is not that of a quarantined tool, or if the caller may not use the tool.
        """
        for shelf in self._shelves:
            if (reason := shelf.quarantined(principal).get(exposed_name)) is not None:
                audit_refusal(shelf.gate, exposed_name, principal.id, PINS_RULE)
                return f"Tool {exposed_name!r} is quarantined: {reason}."
        return None

    def input_schema(self, exposed_name: str) -> JsonObject | None:
        """Return the published input schema of a tool; `None` for an unknown name."""
        tool = self._tools.get(exposed_name)
        return tool.definition.input_schema if tool is not None else None

    def count(self, source_id: str) -> int:
        """Return the number of served tools of a source."""
        return sum(1 for tool in self._tools.values() if tool.source == source_id)

    def withheld(self, source_id: str | None = None) -> dict[str, str]:
        """Return `<source>/<native name or URI>` → why the entry is not served, of one or all sources; without those hidden by patterns."""
        return {
            f"{shelf.entry.source.id}/{native}": reason
            for shelf in self._shelves
            if source_id in (None, shelf.entry.source.id)
            for reasons in shelf.withheld.values()
            for native, reason in reasons.items()
        }

    def wire_tools(self, principal: Principal = LOCAL) -> list[JsonObject]:
        """Return every tool that this caller may use, as published and in order. The list is shared; callers must not change it."""
        hidden = None if self.reviews(principal) else REVIEW_TOOL
        if principal.scopes is None and hidden is None:
            return self._wire_tools
        admitted = [wire for wire in self._wire_tools if self._tools[wire["name"]].admit(principal) is PASS and wire["name"] != hidden]
        if (scopes := principal.scopes) is None:
            return admitted
        return [self._tools[wire["name"]].described(wire, scopes) for wire in admitted]

    def reviews(self, principal: Principal) -> bool:
        """Return whether this caller sees `review_approvals`, which may differ between callers with equal scopes."""
        return REVIEW_TOOL not in self._tools or self.may_review(principal)

    def wire(self, kind: Kind, principal: Principal = LOCAL) -> list[JsonObject]:
        """Return every resource, template or prompt that this caller may use, as published and in order. Callers must not change the
        list."""
        if principal.scopes is None:
            return self._merged[kind]
        of: ScopeKind = "prompts" if kind == "prompts" else "resources"
        owners, key = self._owners[kind], KEY_OF[kind]
        return [wire for wire in self._merged[kind] if owners[wire[key]].admits(principal, of, owners[wire[key]].natives[kind][wire[key]])]

    def locate(self, uri: str) -> tuple[Shelf, str]:
        """Return the shelf of an exposed URI's source, and the native URI. Raises `NotFound`, also for a skill that policy hides."""
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
        """Return whether this unlisted file belongs to a local skill. A server may have the same name as a skill's folder."""
        root = "/".join(uri.split("/")[:3])
        return any(exposed.startswith(f"{root}/") for s in self._shelves if s.entry.is_local for exposed in s.natives.get("resources", {}))

    def _owner_of_prompt(self, name: str) -> tuple[Shelf, str]:
        shelf = self._owners["prompts"].get(name)
        if shelf is None:
            raise NotFound("prompt", name)
        return shelf, shelf.natives["prompts"][name]

    async def may_ask(self, kind: Literal["resources", "prompts"], name: str) -> bool:
        """Return whether reading an exposed URI or prompt may send the client a request for input; false for unknown names."""
        await self.ready()
        try:
            shelf, _ = self.locate(name) if kind == "resources" else self._owner_of_prompt(name)
        except NotFound:
            return False
        return isinstance(shelf.entry.full, AskingSource) and shelf.entry.full.may_ask

    async def read(self, uri: str, ctx: CallContext) -> Finished | InputRequired:
        """Read the resource with an exposed URI, if the gate allows it. Raises `NotFound`."""
        await self.ready()
        return await self.read_now(uri, ctx)

    async def read_now(self, uri: str, ctx: CallContext) -> Finished | InputRequired:
        """Read an exposed URI as `read` does, but without waiting for sources that are still starting. Raises `NotFound`."""
        shelf, native = self.locate(uri)
        source = cast("Source", shelf.entry.full)

        async def work(inner: CallContext) -> Finished | InputRequired:
            outcome = await source.read(native, inner)
            if shelf.label and isinstance(outcome, Finished):
                contents = expose_contents(outcome.result.get("contents") or [], shelf.label)
                return Finished({**outcome.result, "contents": contents})
            return outcome

        try:
            # Hosts check the digests of skills' files, so a file is returned unchanged or refused.
            exact = "allow" if shelf.hidden_text == "strip" and native.startswith("skill://") else None
            read = Read(method="resources/read", name=uri, subject=("resources", native), hidden_text=exact)
            return await shelf.reads.read(read, ctx, work)
        except NotFound:
            raise NotFound("resource", uri) from None

    async def get_prompt(self, name: str, arguments: Mapping[str, str], ctx: CallContext) -> Finished | InputRequired:
        """Render the prompt with an exposed name, if the gate allows it. Raises `NotFound`."""
        await self.ready()
        shelf, native = self._owner_of_prompt(name)
        source = cast("Source", shelf.entry.full)

        async def work(inner: CallContext) -> Finished | InputRequired:
            outcome = await source.get_prompt(native, arguments, inner)
            if shelf.label and isinstance(outcome, Finished):
                return Finished({**outcome.result, "messages": expose_messages(outcome.result.get("messages"), shelf.label)})
            return outcome

        return await shelf.reads.read(Read(method="prompts/get", name=name, subject=("prompts", native)), ctx, work)

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
            shelf, native = (template, template.natives["templates"][uri]) if template else self.locate(uri)
            ref = {**ref, "uri": native}
        source = cast("Source", shelf.entry.full)
        judged = native if kind == "prompts" else uri_to_judge(native, argument, context)

        async def work(inner: CallContext) -> JsonObject:
            return await source.complete(ref, argument, context, inner)

        return await shelf.reads.fetch(Read(method="completion/complete", name=native, subject=(kind, judged)), ctx, work)

    @property
    def shelves(self) -> Sequence[Shelf]:
        """The shelf (the exposed lists and gates) of each source, in the order of the sources."""
        return self._shelves

    async def watch(self, uri: str, ctx: CallContext) -> None:
        """Start to watch an exposed URI, if the gate allows it. Listeners of `subscribe_updates` receive the updates. Raises `NotFound`."""
        await self.ready()
        shelf, native = self.locate(uri)
        source = cast("Source", shelf.entry.full)

        async def subscribe(inner: CallContext) -> JsonObject:
            await source.watch(native)
            return {}

        await shelf.reads.fetch(Read(method="resources/subscribe", name=uri, subject=("resources", native)), ctx, subscribe)

    async def unwatch(self, uri: str) -> None:
        """End a watch that `watch` started."""
        shelf, native = self.locate(uri)
        await cast("Source", shelf.entry.full).unwatch(native)


def _clash(name: str, first: str, second: str) -> str:
    """Return the error text for two sources with a tool of the same exposed name; it says how to fix the clash."""
    if first == SOURCE_ID:  # for example a second gateway behind this one without a prefix
        return f"This gateway's own tool {name!r} hides the one of source {second!r}; give {second!r} a `prefix` under `policies`."
    claimed = f"Tool name {name!r} is claimed by source {first!r} and by source {second!r}"
    return f"{claimed}; give one of them another `prefix` under `policies`."

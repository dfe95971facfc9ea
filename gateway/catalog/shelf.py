"""`Shelf`: what one source contributes to the catalog, as last built from its lists and its policy.

It decides what exists, under which exposed names and URIs, and wraps every tool in `GuardedTool`. It knows no other
source: `Catalog` merges the shelves.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import cast

from gateway.auth.principal import Principal
from gateway.catalog.names import expose_names, expose_uri
from gateway.catalog.prompt_tools import PromptTool, prompt_tools
from gateway.catalog.reads import ReadGate
from gateway.catalog.uris import UriTool
from gateway.config.policies import SourcePolicy
from gateway.json_types import JsonObject
from gateway.policy.decision import PASS, Reject
from gateway.policy.hidden_text import judge_hidden_text, strip_text, strip_value
from gateway.policy.scopes import ScopeKind, judge_scope
from gateway.policy.shaping import public_names
from gateway.policy.skills import judge_skill_uri
from gateway.policy.tools import judge_tool
from gateway.telemetry.events import EventStream
from gateway.tools.approvals import Approvals
from gateway.tools.base import Kind, QuarantiningSource, Source, Tool, ToolSource
from gateway.tools.guard import GuardedTool, ToolGate
from gateway.tools.published import judge_definition
from gateway.tools.results import ResultKeeper
from gateway.tools.slot import Limiter, Usage

KEY_OF: Mapping[Kind, str] = {"resources": "uri", "templates": "uriTemplate", "prompts": "name"}
"""What identifies an entry of each list."""


@dataclass(frozen=True, slots=True)
class CatalogEntry:
    """One source with its rules. `full` is the same object where it has more than tools."""

    source: ToolSource
    policy: SourcePolicy
    prefix: str
    full: Source | None = None
    is_local: bool = False
    """Ours: a name clash with another local source stops the start instead of being reported."""
    usage: Usage | None = None
    """Counts the running calls, where somebody waits for their end."""


@dataclass(frozen=True, slots=True)
class Fittings:
    """What every shelf of a catalog is built with."""

    events: EventStream
    name_budget: int
    """The longest exposed tool name."""
    keeper: ResultKeeper | None
    approvals: Approvals | None
    mask: Callable[[str], str] | None
    """Takes secrets out of what errors say."""


@dataclass(slots=True, eq=False)
class Shelf:
    """What one entry contributes, as last built."""

    entry: CatalogEntry
    label: str
    """Goes before the URIs of this source; empty for none."""
    fittings: Fittings
    limiter: Limiter = field(init=False)
    gate: ReadGate = field(init=False)
    tools: dict[str, tuple[Tool, GuardedTool]] = field(default_factory=lambda: cast("dict[str, tuple[Tool, GuardedTool]]", {}))
    """By exposed name: the source's tool, and the guarded one."""
    listed: dict[Kind, list[JsonObject]] = field(default_factory=lambda: cast("dict[Kind, list[JsonObject]]", {}))
    """Exposed wire objects."""
    natives: dict[Kind, dict[str, str]] = field(default_factory=lambda: cast("dict[Kind, dict[str, str]]", {}))
    """Exposed name or URI → native one."""
    withheld: dict[str, dict[str, str]] = field(default_factory=lambda: cast("dict[str, dict[str, str]]", {}))
    """By kind: native name or URI → why policy does not let it exist, where that is worth telling."""
    shown_skills: dict[str, JsonObject] = field(default_factory=lambda: cast("dict[str, JsonObject]", {}))
    """Of a server without the skills extension: exposed URI of each `SKILL.md` → the entry made from it (`skills`)."""
    _prompt_tools: list[PromptTool] = field(default_factory=lambda: cast("list[PromptTool]", []))

    def __post_init__(self) -> None:
        entry, fittings = self.entry, self.fittings
        self.limiter = Limiter(entry.policy.max_concurrency)
        self.gate = ReadGate(
            entry.source.id,
            entry.policy,
            self.limiter,
            fittings.events,
            fittings.keeper,
            is_local=entry.is_local,
            usage=entry.usage,
            mask=fittings.mask,
        )

    @property
    def hidden_text(self) -> str:
        """What becomes of hidden text; texts of our own are not searched."""
        return "allow" if self.entry.is_local else self.entry.policy.hidden_text

    def admits(self, principal: Principal, kind: ScopeKind, native: str) -> bool:
        """Whether this caller may use what the source calls so."""
        return judge_scope(principal.scopes, kind, self.entry.source.id, native) is PASS

    async def rebuild_tools(self) -> None:
        """Build `tools` from what the source lists now; a tool that is the same object keeps its guard."""
        policy = self.entry.policy
        withheld: dict[str, str] = {}
        existing: dict[str, Tool] = {}
        for tool in await self._native_tools():
            native = tool.definition.name
            override = policy.overrides.get(native)
            if not judge_tool(native, policy.tools.allow, policy.tools.deny) or (override is not None and not override.enabled):
                continue
            if self.hidden_text == "refuse" and isinstance(verdict := judge_definition(tool.definition), Reject):
                withheld[native] = f"Refused by {verdict.rule}: {verdict.reason}"
                continue
            existing[native] = tool
        public, lost = public_names(existing, policy.overrides)
        for native, (name, holder) in lost.items():
            withheld[native] = f"overrides.{native}.name: {name!r} is the name of tool {holder!r}, so the tool is left out; choose another."
        exposed = expose_names(self.entry.prefix, list(public.values()), self.fittings.name_budget)
        built: dict[str, tuple[Tool, GuardedTool]] = {}
        for native, name in ((native, exposed[stem]) for native, stem in public.items()):
            known = self.tools.get(name)
            built[name] = known if known is not None and known[0] is existing[native] else self._guard(existing[native], name)
        self.tools = built
        self.withheld["tools"] = withheld

    def quarantined(self, principal: Principal) -> Mapping[str, str]:
        """Return the tools of this caller that the source holds back: the exposed name they would have → why, and what accepts them."""
        if not isinstance(self.entry.source, QuarantiningSource) or not (held := self.entry.source.quarantined()):
            return {}
        policy = self.entry.policy
        allowed = {native: why for native, why in held.items() if judge_tool(native, policy.tools.allow, policy.tools.deny)}
        allowed = {native: why for native, why in allowed.items() if self.admits(principal, "tools", native)}
        public, _ = public_names(allowed, policy.overrides)
        exposed = expose_names(self.entry.prefix, list(public.values()), self.fittings.name_budget)
        return {exposed[stem]: allowed[native] for native, stem in public.items()}

    async def _native_tools(self) -> Sequence[Tool]:
        """The source's tools, and its prompts as tools where the policy says so."""
        tools = await self.entry.source.tools()
        source = self.entry.full
        if source is None or not self.entry.policy.prompts_as_tools:
            return tools
        names = {tool.definition.name for tool in tools}
        self._prompt_tools = prompt_tools(source, await source.list("prompts"), names, self._prompt_tools)
        return [*tools, *self._prompt_tools]

    def _guard(self, tool: Tool, name: str) -> tuple[Tool, GuardedTool]:
        entry, fittings = self.entry, self.fittings
        inner = UriTool(tool, self.label) if self.label and entry.full is not None else tool
        guarded = GuardedTool(
            inner,
            exposed_name=name,
            source=entry.source.id,
            policy=ToolGate.build(inner.definition, entry.policy, is_local=entry.is_local, keeper=fittings.keeper, mask=fittings.mask),
            limiter=self.limiter,
            events=fittings.events,
            approvals=fittings.approvals,
            usage=entry.usage,
        )
        return tool, guarded

    async def rebuild_kind(self, kind: Kind) -> None:
        """Build `listed` and `natives` of one kind from what the source lists now."""
        if self.entry.full is None:
            return
        key = KEY_OF[kind]
        wires = self._readable(kind, await self.entry.full.list(kind))
        natives = [str(wire[key]) for wire in wires]
        if kind == "prompts":
            exposed = expose_names(self.entry.prefix, natives, self.fittings.name_budget)
        else:
            exposed = {native: expose_uri(self.label, native) for native in natives}
        if self.hidden_text == "strip":
            exposed = {native: strip_text(name) for native, name in exposed.items()}
            wires = [cast("JsonObject", strip_value(wire, keys=True)) for wire in wires]
        self.natives[kind] = {exposed[native]: native for native in natives}
        self.listed[kind] = [{**wire, key: exposed[native]} for wire, native in zip(wires, natives, strict=True)]

    def _readable(self, kind: Kind, wires: Sequence[JsonObject]) -> Sequence[JsonObject]:
        """The listed entries that policy lets exist."""
        if kind == "resources":
            wires = [wire for wire in wires if judge_skill_uri(str(wire["uri"]), self.entry.policy.skills)]
        if self.hidden_text != "refuse":
            return wires
        verdicts = [(wire, judge_hidden_text(wire, "The definition")) for wire in wires]
        self.withheld[kind] = {
            strip_text(str(wire[KEY_OF[kind]])): f"Refused by {verdict.rule}: {verdict.reason}"
            for wire, verdict in verdicts
            if isinstance(verdict, Reject)
        }
        return [wire for wire, verdict in verdicts if not isinstance(verdict, Reject)]

"""`SourceListing`: the exposed tools, resources, resource templates and prompts of one source, built from its lists and its policy.

It leaves out entries that the policy hides, assigns exposed names and URIs (the names and URIs that clients see), and wraps every tool in
`GuardedTool`, which checks each call. `Catalog` merges the listings of all sources.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import cast

from gateway.auth.principal import Principal
from gateway.catalog.names import expose_names, expose_uri
from gateway.catalog.prompt_tools import PromptTool, prompt_tools
from gateway.catalog.uris import UriTool
from gateway.config.policies import SourcePolicy
from gateway.errors import NotFound
from gateway.gate.concurrency import ActiveCalls, Limiter
from gateway.gate.pipeline import GateServices, SourceGate
from gateway.gate.published import judge_definition
from gateway.gate.reads import ReadGate
from gateway.gate.tool_rules import ToolRules
from gateway.gate.tools import GuardedTool
from gateway.json_types import JsonObject
from gateway.policy.caller_rights import admits
from gateway.policy.decision import Reject
from gateway.policy.hidden_text import judge_hidden_text, strip_text, strip_value
from gateway.policy.pin_check import PINS_RULE
from gateway.policy.scopes import ScopeKind
from gateway.policy.shaping import public_names
from gateway.policy.skill_policy import judge_skill_uri
from gateway.policy.tool_policy import hidden_by
from gateway.tools.base import Kind, QuarantiningSource, Source, Tool, ToolDefinition, ToolOutcome, ToolSource
from gateway.tools.context import CallContext

KEY_OF: Mapping[Kind, str] = {"resources": "uri", "templates": "uriTemplate", "prompts": "name"}
"""Kind of list → the key that identifies an entry in the list."""


@dataclass(frozen=True, slots=True)
class CatalogEntry:
    """A source of tools with the settings by which the catalog publishes it: its policy and the prefix of its exposed names.

    `full` is the same object as `source` if the source also serves resources and prompts, else `None`.
    """

    source: ToolSource
    policy: SourcePolicy
    prefix: str
    full: Source | None = None
    is_local: bool = False
    """Whether the source runs in this gateway. A name clash of two local sources makes the start fail; other clashes are only reported."""
    active: ActiveCalls | None = None
    """Counts the in-flight calls of the source, so that the source can finish them before it stops. `None` if it is never stopped."""


@dataclass(slots=True, eq=False)
class SourceListing:
    """The tools, resources, resource templates and prompts of one source as clients see them, with the policy checks for their use."""

    entry: CatalogEntry
    label: str
    """The part of the exposed URIs of this source that distinguishes them from other sources' URIs; empty if the URIs stay unchanged."""
    services: GateServices
    name_budget: int
    """Maximum length of an exposed tool name."""
    gate: SourceGate = field(init=False)
    reads: ReadGate = field(init=False)
    tools: dict[str, tuple[Tool, GuardedTool]] = field(default_factory=lambda: cast("dict[str, tuple[Tool, GuardedTool]]", {}))
    """Exposed name → the tool object of the source, and the `GuardedTool` that wraps it."""
    listed: dict[Kind, list[JsonObject]] = field(default_factory=lambda: cast("dict[Kind, list[JsonObject]]", {}))
    """Kind of list (resources, templates or prompts) → its exposed entries, as MCP sends them."""
    natives: dict[Kind, dict[str, str]] = field(default_factory=lambda: cast("dict[Kind, dict[str, str]]", {}))
    """Kind of list → exposed name or URI, which clients use → native name or URI, which the source uses."""
    withheld: dict[str, dict[str, Reject]] = field(default_factory=lambda: cast("dict[str, dict[str, Reject]]", {}))
    """Kind of list → native name or URI of an entry that policy refuses → the rule and the reason.

    Entries that are hidden by the patterns `allow` and `deny` are not in this mapping."""
    shown_skills: dict[str, JsonObject] = field(default_factory=lambda: cast("dict[str, JsonObject]", {}))
    """Exposed URI of a `SKILL.md` → the skill entry made from it. Filled by `SkillCatalog` for a server without the skills extension."""
    _prompt_tools: list[PromptTool] = field(default_factory=lambda: cast("list[PromptTool]", []))

    def __post_init__(self) -> None:
        entry = self.entry
        self.gate = SourceGate(entry.source.id, self.services, Limiter(entry.policy.max_concurrency), entry.active)
        self.reads = ReadGate(self.gate, entry.policy, is_local=entry.is_local)

    @property
    def hidden_text(self) -> str:
        """How to treat invisible characters in the source's texts: the policy's `hiddenText` (`allow`, `strip` or `refuse`).

        Always `allow` for a source that runs in this gateway.
        """
        return "allow" if self.entry.is_local else self.entry.policy.hidden_text

    @property
    def serves_skills(self) -> bool:
        """Whether the source supports the MCP skills extension (SEP-2640) now; for a remote server, this is known once it has connected."""
        return getattr(self.entry.source, "serves_skills", False)  # `isinstance` with `SkillServing` takes 30 µs on Python 3.11

    def admits(self, principal: Principal, kind: ScopeKind, native: str) -> bool:
        """Return whether the rights of the principal include the entry of this source with the given kind and native name or URI."""
        return admits(principal.rights, kind, self.entry.source.id, native)

    async def rebuild_tools(self) -> None:
        """Build `tools` from the source's current list and its policy. Tool objects that were listed before keep their `GuardedTool`."""
        policy = self.entry.policy
        withheld: dict[str, Reject] = {}
        existing: dict[str, Tool] = {}
        for tool in await self._native_tools():
            native = tool.definition.name
            if hidden_by(native, policy) is not None:
                continue
            if self.hidden_text == "refuse" and isinstance(verdict := judge_definition(tool.definition), Reject):
                withheld[native] = verdict
                continue
            existing[native] = tool
        public, lost = public_names(existing, policy.overrides)
        for native, (name, holder) in lost.items():
            reason = f"{name!r} is the name of tool {holder!r}, so the tool is left out; choose another."
            withheld[native] = Reject(f"overrides.{native}.name", reason)
        exposed = expose_names(self.entry.prefix, list(public.values()), self.name_budget)
        built: dict[str, tuple[Tool, GuardedTool]] = {}
        for native, name in ((native, exposed[stem]) for native, stem in public.items()):
            known = self.tools.get(name)
            built[name] = known if known is not None and known[0] is existing[native] else self._guard(existing[native], name)
        self.tools = built
        self.withheld["tools"] = withheld

    def quarantined(self) -> list[GuardedTool]:
        """Return the quarantined tools that policy does not hide. They are not listed; the gate (the policy checks) refuses their calls.

        A tool is quarantined while its definition differs from the accepted definition: the one in the lock file or, without a lock file,
        the one that the server listed first or that a person accepted later. A tool that is missing in the lock file is quarantined, too.
        The refusal has the reason and the command that accepts the tool.
        """
        if not isinstance(self.entry.source, QuarantiningSource) or not (held := self.entry.source.quarantined()):
            return []
        policy = self.entry.policy
        public, _ = public_names([native for native in held if hidden_by(native, policy) is None], policy.overrides)
        exposed = expose_names(self.entry.prefix, list(public.values()), self.name_budget)
        return [self._refusing(native, exposed[stem], held[native]) for native, stem in public.items()]

    def _refusing(self, native: str, name: str, reason: str) -> GuardedTool:
        tool = _QuarantinedTool(native)
        denied = Reject(PINS_RULE, f"Tool {name!r} is quarantined: {reason}.")
        rules = dataclasses.replace(ToolRules.build(tool.definition, SourcePolicy()), denied=denied)
        return GuardedTool(tool, rules, self.gate, exposed_name=name)

    def is_listed(self, native: str) -> bool:
        """Return whether clients may see the tool `native`; false if the policy has `listed: false` for it in `overrides`."""
        override = self.entry.policy.overrides.get(native)
        return override is None or override.listed

    async def _native_tools(self) -> Sequence[Tool]:
        """Return the tools of the source, and one tool for each of its prompts if the policy sets `promptsAsTools`."""
        tools = await self.entry.source.tools()
        source = self.entry.full
        if source is None or not self.entry.policy.prompts_as_tools:
            return tools
        names = {tool.definition.name for tool in tools}
        self._prompt_tools = prompt_tools(source, await source.list("prompts"), names, self._prompt_tools)
        return [*tools, *self._prompt_tools]

    def _guard(self, tool: Tool, name: str) -> tuple[Tool, GuardedTool]:
        entry = self.entry
        inner = UriTool(tool, self.label) if self.label and entry.full is not None else tool
        rules = ToolRules.build(inner.definition, entry.policy, is_local=entry.is_local)
        return tool, GuardedTool(inner, rules, self.gate, exposed_name=name)

    async def rebuild_kind(self, kind: Kind) -> None:
        """Build the exposed entries of one kind (resources, templates or prompts) from the source's current list and its policy."""
        if self.entry.full is None:
            return
        key = KEY_OF[kind]
        wires = self._readable(kind, await self.entry.full.list(kind))
        natives = [str(wire[key]) for wire in wires]
        if kind == "prompts":
            exposed = expose_names(self.entry.prefix, natives, self.name_budget)
        else:
            exposed = {native: expose_uri(self.label, native) for native in natives}
        if self.hidden_text == "strip":
            exposed = {native: strip_text(name) for native, name in exposed.items()}
            wires = [cast("JsonObject", strip_value(wire, keys=True)) for wire in wires]
        self.natives[kind] = {exposed[native]: native for native in natives}
        self.listed[kind] = [{**wire, key: exposed[native]} for wire, native in zip(wires, natives, strict=True)]

    def _readable(self, kind: Kind, wires: Sequence[JsonObject]) -> Sequence[JsonObject]:
        """Return the entries in `wires` (in MCP form) that policy allows clients to see.

        Entries that are refused because of hidden characters are stored in `withheld`.
        """
        if kind == "resources":
            wires = [wire for wire in wires if judge_skill_uri(str(wire["uri"]), self.entry.policy.skills)]
        if self.hidden_text != "refuse":
            return wires
        verdicts = [(wire, judge_hidden_text(wire, "The definition")) for wire in wires]
        self.withheld[kind] = {
            strip_text(str(wire[KEY_OF[kind]])): verdict
            for wire, verdict in verdicts
            if isinstance(verdict, Reject)
        }
        return [wire for wire, verdict in verdicts if not isinstance(verdict, Reject)]


class _QuarantinedTool:
    """Stands for a quarantined tool: it has only the tool's name, because nobody has accepted the tool's definition."""

    def __init__(self, native: str) -> None:
        self.definition = ToolDefinition(native)

    async def call(self, arguments: JsonObject, ctx: CallContext) -> ToolOutcome:
        """Raise `NotFound`. The gate refuses every call before it gets here."""
        raise NotFound("tool", self.definition.name)

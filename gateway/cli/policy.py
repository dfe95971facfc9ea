"""`moongate policy`: explains whether policies allow a call, and finds policy rules that do not do what they seem to do.

Both commands (`explain` and `lint`) start the sources that they need, read their listings, and stop the sources. No tool is called.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import click

from gateway.cli.arguments import build_arguments
from gateway.cli.common import Group, data_options, load, run_async, with_servers
from gateway.cli.failures import CommandFailed
from gateway.cli.output import masked, print_json, print_note, print_text
from gateway.config.suggest import closest, did_you_mean
from gateway.errors import NotFound, NotSent
from gateway.json_types import JsonMapping, JsonObject, JsonValue

if TYPE_CHECKING:
    from gateway.access.expectations import Expectations
    from gateway.access.explanation import CallerSpec
    from gateway.cli.access_rows import RowResult
    from gateway.cli.hub import OwnHub
    from gateway.config.load import LoadedConfig
    from gateway.gate.tools import GuardedTool
    from gateway.policy.explain import Explanation

_ABOUT = {
    "open": "fails open",
    "unusable": "refuses everything",
    "conflict": "contradicts",
    "dead": "does nothing",
    "note": "note",
}
"""Printed label of each kind of finding of `policy lint` about policies, worst first."""


@click.group(cls=Group)
def policy() -> None:
    """Explain and check the rules under `policies`."""


# -- explain -------------------------------------------------------------------------------------------------------


@policy.command()
@click.argument("tool")
@click.argument("pairs", nargs=-1, metavar="[KEY=VALUE]...")
@click.option("--args", "args_json", metavar="JSON", help="All arguments as one JSON object.")
@click.option("--as", "caller", metavar="CALLER", help="Also judge the rights of a caller: `key:NAME`, `key:ID`, or the subject of a user.")
@click.option("--issuer", default="", metavar="URL", help="Issuer of the user of `--as`.")
@click.option("--group", "groups", multiple=True, metavar="NAME", help="Group of the user of `--as`; repeatable.")
@click.option("--client", default="", metavar="ID", help="OAuth client of the user of `--as`.")
@click.option("--tenant", default="", metavar="NAME", help="Tenant of the user of `--as`.")
@data_options
def explain(tool: str, pairs: tuple[str, ...], args_json: str | None, config_path: str | None, as_json: bool, **who: Any) -> None:
    """Show whether policies allow a call, and which rule decides.

    Also shows the arguments that would be sent. The tool is not called. TOOL is the name under which clients see the
    tool, its name at its server, or SOURCE/NAME. Arguments are given as for the command `call`.
    """
    from gateway.access.explanation import CallerSpec

    spec = CallerSpec(who["caller"], who["issuer"], who["groups"], who["client"], who["tenant"]) if who["caller"] else None
    loaded = load(config_path)
    found = run_async(lambda: _explain(tool, pairs, args_json, loaded, spec))
    shown = cast("JsonObject", masked(found, loaded.secrets))
    print_json(shown) if as_json else _print_explained(shown)
    if shown["verdict"] != "allowed":
        raise CommandFailed(f"The call would be refused by {shown['rule']}.", code="denied")


async def _explain(
    tool: str, pairs: Sequence[str], args_json: str | None, loaded: LoadedConfig, caller: CallerSpec | None
) -> JsonObject:
    from gateway.access.explanation import explain_access, principal_of
    from gateway.cli.hub import named_tool, open_own, to_hub_tools
    from gateway.policy.explain import explain_call

    async with open_own(with_servers(loaded, _concerned(tool, loaded))) as own:
        catalog = own.gateway.catalog
        sources = [status.name for status in own.gateway.inspection.sources()]
        named = named_tool(to_hub_tools(await catalog.tools([f"{source}/*" for source in sources])), tool)
        listed = {found.exposed_name for found in await catalog.tools()}
        if named is None:
            return _hidden(tool, loaded, own)
        found = cast("GuardedTool", named.tool)
        rules = loaded.config.policy(found.source)
        native = found.definition.name
        arguments = build_arguments(found.definition.input_schema, pairs, args_json)
        explained = explain_call(native, found.rules.arguments, arguments, rules)
        report = _report(found.exposed_name, found.source, native, explained, loaded)
        report |= {"listed": found.exposed_name in listed, "approval": found.rules.needs_approval}
        if caller is None:
            return report
        call = None if explained.arguments is None else (explained.arguments, found.definition.input_schema)
        principal = principal_of(caller, own.gateway.callers.keys.list())
        by_rights = explain_access(own.gateway.access, principal, ("tools", found.source, native), call)
        report |= {"access": by_rights.to_json(), "approval": report["approval"] or by_rights.decision.needs_approval}
        if (refused := by_rights.refused) is not None:
            report |= {"verdict": "refused", "rule": refused.rule, "reason": refused.reason, "path": None, "written": None}
        return report


def _concerned(tool: str, loaded: LoadedConfig) -> list[str]:
    """Return the server whose prefix (`x__`) or name (`x/`) begins the tool's name; else all servers, because each may have the tool."""
    from gateway.cli.hub import longest_prefix

    config = loaded.config
    source = tool.partition("/")[0]
    if "/" in tool and source in config.mcp_servers:
        return [source]
    found = longest_prefix(tool, {name: config.prefix_of(name) for name in config.mcp_servers})
    return [found[0]] if found is not None else list(config.mcp_servers)


def _hidden(name: str, loaded: LoadedConfig, own: OwnHub) -> JsonObject:
    """Return why clients do not see a tool that a server lists, as the JSON report that `policy explain` prints.

    Raises:
        NotFound: No server lists the tool.
        NotSent: No server lists it, and a server that may have it does not respond.
    """
    from gateway.catalog.names import expose_name
    from gateway.policy.decision import Reject
    from gateway.policy.explain import Explanation
    from gateway.policy.pin_check import PINS_RULE
    from gateway.policy.tool_policy import hidden_by

    withheld = own.gateway.catalog.withheld()
    for source, definitions in own.gateway.inspection.definitions().items():
        rules = loaded.config.policy(source)
        for native in (str(wire["name"]) for wire in definitions):
            exposed = expose_name(loaded.config.prefix_of(source), native)
            if name not in (native, exposed, f"{source}/{native}"):
                continue
            quarantined = next((s.quarantined.get(native) for s in own.gateway.inspection.sources() if s.name == source), None)
            missing = Reject("overrides", "The tool does not exist for anybody.")
            verdict = withheld.get(f"{source}/{native}") or (Reject(PINS_RULE, quarantined) if quarantined else missing)
            rule, reason = hidden_by(native, rules) or verdict.rule, verdict.reason
            return _report(exposed, source, native, Explanation(False, rule, reason), loaded) | {"listed": False, "approval": False}
    for status in own.gateway.inspection.sources():
        if status.state in ("down", "starting") and status.name in loaded.config.mcp_servers:
            text = f"{name!r} is unknown, and server {status.name!r} does not respond: {status.error}"
            raise NotSent(text, server=status.name)
    raise NotFound("tool", name, f"Unknown tool {name!r}. {_suggestion(name, loaded, own)}")


def _suggestion(name: str, loaded: LoadedConfig, own: OwnHub) -> str:
    """Return a sentence that suggests the tool, or in `SOURCE/NAME` the source, that is closest to the unknown `name`."""
    from gateway.catalog.names import expose_name

    source, slash, _ = name.partition("/")
    sources = [status.name for status in own.gateway.inspection.sources()]
    if slash and source not in (known := {*sources, *loaded.config.mcp_servers}):
        hint = did_you_mean(source, known)
        return f"Unknown source {source!r}. {hint or '`moongate list` shows the sources.'}"
    tools: dict[str, str] = {}
    for of, definitions in own.gateway.inspection.definitions().items():
        for native in (str(wire["name"]) for wire in definitions):
            exposed = expose_name(loaded.config.prefix_of(of), native)
            tools |= {exposed: exposed, f"{of}/{native}": f"{of}/{native}", native: exposed}
    near = closest(name, tools)
    return f"Did you mean {tools[near]!r}?" if near is not None else "`moongate list tools` shows what there is."


def _report(exposed: str, source: str, native: str, explained: Explanation, loaded: LoadedConfig) -> JsonObject:
    rules = loaded.config.policy(source)
    path = f"policies.{source}.{explained.rule}" if explained.rule not in (None, "inputSchema") else None
    ids = {f"arguments.{tool}.{name}": rule for tool, of_tool in rules.arguments.items() for name, rule in of_tool.items()}
    written: JsonValue = ids.get(explained.rule or "")
    return {"tool": exposed, "source": source, "native": native, **explained.to_json(), "path": path, "written": written}


def _print_explained(found: JsonMapping) -> None:
    def line(label: str, text: str) -> None:
        print_text(f"{label:<9} {text}".rstrip(), " " * 10 if label else "")

    if (access := found.get("access")) is not None:
        line("caller", f"{access['principal']}, {'roles ' + ', '.join(access['roles']) if access['roles'] else 'no role'}")
    line("tool", f"{found['tool']}  ({found['native']!r} of {found['source']!r}{'' if found['listed'] else ', not shown to clients'})")
    allowed = found["verdict"] == "allowed"
    asking = ", once a person approved it" if allowed and found["approval"] else ""
    line("verdict", f"allowed{asking}" if allowed else f"refused by {found['rule']}")
    if found["reason"]:
        line("", str(found["reason"]))
    if found["path"]:
        written = f" = {_compact(found['written'])}" if found["written"] is not None else ""
        line("rule", f"{found['path']}{written}")
    for number, dropped in enumerate(found["dropped"]):
        line("" if number else "dropped", f"{dropped['argument']}  ({dropped['rule']})")
    for number, added in enumerate(found["added"]):
        line("" if number else "added", f"{added['argument']} = {_compact(added['value'])}  ({added['rule']})")
    for number, rule in enumerate(found["rules"]):
        line("" if number else "rules", f"{rule['rule']}: {rule['outcome']}")
    line("leaves", _compact(found["arguments"]) if allowed else "nothing")


def _compact(value: JsonValue) -> str:
    return json.dumps(value, ensure_ascii=False)


# -- test ----------------------------------------------------------------------------------------------------------


@policy.command(name="test")
@click.argument("file", type=click.Path(path_type=Path))
@data_options
def test_decisions(file: Path, config_path: str | None, as_json: bool) -> None:
    """Compare decisions about callers with a table of expected decisions.

    FILE has the callers and one row per decision, as YAML or JSON. A decision that differs ends the command with exit code 1. Sources are
    started only if a row has arguments or names a tool as clients see it.
    """
    from gateway.access.expectations import read_expectations

    table = read_expectations(file)
    loaded = load(config_path)
    results = run_async(lambda: _evaluate(table, loaded))
    wrong = [result for result in results if not result.is_right]
    if as_json:
        print_json({"rows": [result.to_json() for result in results], "wrong": len(wrong)})
    for result in () if as_json else wrong:
        print_text(f"rows[{result.number}]  {result.caller}, {result.item}: expected {result.expected}, decided {result.decided}")
        if result.reason:
            print_text(f"{result.rule}: {result.reason}", "    ")
    if not as_json and not wrong:
        print_text(f"All {len(results)} decisions are as expected.")
    if wrong:
        raise CommandFailed(f"{len(wrong)} of {len(results)} decisions differ.", code="policy-test")


async def _evaluate(table: Expectations, loaded: LoadedConfig) -> list[RowResult]:
    import anyio

    from gateway.access.principal_rights import Access, compile_access
    from gateway.cli.access_rows import caller_of, evaluate_row, needs_sources
    from gateway.cli.hub import open_own

    async def results(own: OwnHub | None) -> list[RowResult]:
        access = Access()
        access.renew(await anyio.to_thread.run_sync(compile_access, loaded.config.access, loaded.base_dir))
        keys = own.gateway.callers.keys.list() if own is not None else ()
        callers = {name: caller_of(caller, keys) for name, caller in table.callers.items()}
        return [await evaluate_row(number, row, access, callers[row.caller], own) for number, row in enumerate(table.rows)]

    if not needs_sources(table.rows):
        return await results(None)
    async with open_own(with_servers(loaded, list(loaded.config.mcp_servers))) as own:
        return await results(own)


# -- lint ----------------------------------------------------------------------------------------------------------


@policy.command()
@data_options
def lint(config_path: str | None, as_json: bool) -> None:
    """Find policy rules that are mistakes.

    These are rules that fail open, refuse everything, contradict each other or do nothing. Notes are not mistakes; any other finding ends
    the command with exit code 1.
    """
    loaded = load(config_path)
    report = run_async(lambda: _lint(loaded))
    print_json(report) if as_json else _print_findings(report)
    wrong = [finding for finding in report["findings"] if finding["kind"] != "note"]
    if wrong:
        raise CommandFailed(f"{len(wrong)} rule{'' if len(wrong) == 1 else 's'} to look at.", code="policy-findings")
    if report["unchecked"]:
        raise CommandFailed("Not every server answered, so not every rule could be checked; run `moongate doctor`.", code="unreachable")


async def _lint(loaded: LoadedConfig) -> JsonObject:
    from gateway.cli.hub import open_own

    async with open_own(with_servers(loaded, list(loaded.config.mcp_servers))) as own:
        found = await own.gateway.inspection.findings()
        unchecked: list[JsonObject] = [
            {"source": status.name, "reason": status.error or status.state}
            for status in own.gateway.inspection.sources()
            if status.name in loaded.config.mcp_servers and status.name not in found and status.state != "disabled"
        ]
        known = {status.name for status in own.gateway.inspection.sources()}
        by_access = await own.gateway.inspection.access_findings(own.gateway.callers.keys.list())
    order = list(_ABOUT)
    findings = [
        {"source": source, "path": f"policies.{source}.{finding.path}".rstrip("."), "kind": finding.kind, "text": finding.text}
        for source, of_source in found.items()
        for finding in sorted(of_source, key=lambda finding: order.index(finding.kind))
    ]
    by_access.sort(key=lambda finding: order.index(finding.kind))
    findings += [{"source": "", "path": finding.path, "kind": finding.kind, "text": finding.text} for finding in by_access]
    return {"findings": findings, "checked": sorted(found.keys() & known), "unchecked": unchecked}


def _print_findings(report: JsonMapping) -> None:
    for finding in report["findings"]:
        print_text(f"{_ABOUT[finding['kind']]:<18}  {finding['path']}", " " * 20)
        print_text(f"{'':<18}  {finding['text']}", "")
    for missing in report["unchecked"]:
        print_note(f"not checked: {missing['source']}: {missing['reason']}")
    if not report["findings"]:
        print_text(f"No rule of {', '.join(report['checked']) or 'any source'} needs attention.")

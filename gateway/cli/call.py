"""`moongate call`: calls a tool through the running gateway, or through a gateway that is started for the command."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, cast

import click

from gateway.cli.arguments import build_arguments, undeclared
from gateway.cli.common import Target, data_options, gateway_options, load, run_async
from gateway.cli.failures import CommandFailed
from gateway.cli.output import block_text, is_interactive, print_content, print_json, print_note, print_text
from gateway.errors import NotFound, PolicyDenied, Rejected, UpstreamTimeout
from gateway.json_types import JsonMapping, JsonObject

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gateway.config.load import LoadedConfig

CALL_TIMEOUT_SECONDS = 600.0
"""Timeout of one call in seconds. The time in which the call waits for the user's input does not count."""


@click.command()
@click.argument("tool")
@click.argument("pairs", nargs=-1, metavar="[KEY=VALUE]...")
@click.option("--args-json", metavar="JSON", help="All arguments as one JSON object; `-` reads it from stdin.")
@gateway_options
@data_options
def call(tool: str, pairs: tuple[str, ...], args_json: str | None, target: Target, config_path: str | None, as_json: bool) -> None:
    """Call a tool and print its result.

    Values are converted to the types in the tool's schema: `limit=5` becomes a number if the tool expects one; `key:=JSON` passes JSON
    unchanged. In a terminal, the tool can ask you for input.
    """
    given = sys.stdin.read() if args_json == "-" else args_json
    loaded = load(config_path, fetches=False)
    result = run_async(lambda: _call(tool, pairs, given, loaded, target))
    _show(result, tool, as_json=as_json)


async def _call(tool: str, pairs: Sequence[str], args_json: str | None, loaded: LoadedConfig, target: Target) -> JsonObject:
    from gateway.cli.asking import TerminalCaller
    from gateway.cli.hub import Asker, RunningHub, open_hub, pick_tool
    from gateway.cli.list_command import print_not_loaded
    from gateway.tools.base import Complete
    from gateway.tools.call_facts import CallFacts
    from gateway.tools.context import CallClock, CallContext, CallLimits, CallPorts
    from gateway.tools.drive import drive

    caller = TerminalCaller(interactive=is_interactive())
    asker = Asker(caller, caller.capabilities)
    async with open_hub(loaded, target, asker) as hub:
        missing: NotFound | PolicyDenied | None = None
        try:
            tools = await hub.tools()
            found = pick_tool(tools, tool, await hub.sources() if hub.shows_sources else ())
        except NotFound as error:
            print_not_loaded([problem for problem in await hub.not_loaded() if tool.startswith(f"{problem['source']}__")])
            if not isinstance(hub, RunningHub) or not hub.has_key:
                raise
            # The gateway lists only the tools that the scopes of the API key include, and refuses the others by name.
            found, missing = hub.unlisted(tool), error
        except PolicyDenied as error:  # the tool is quarantined
            found, missing = hub.quarantined(error.subject), error
        schema = found.tool.definition.input_schema
        arguments = build_arguments(schema, pairs, args_json)
        for remark in undeclared(schema, arguments):
            print_note(remark)
        clock = CallClock(CALL_TIMEOUT_SECONDS)
        ctx = CallContext(
            CallFacts(client=asker.profile(), wants_progress=True, log_level="warning"),
            CallPorts(caller=caller),
            limits=CallLimits(clocks=(clock,)),
        )
        with clock.scope:
            try:
                outcome = await drive(found.tool, arguments, ctx)
            except Rejected as refusal:
                raise missing or refusal from None
            return outcome.result if isinstance(outcome, Complete) else {"task": outcome.task}
    raise UpstreamTimeout(f"Tool {tool!r} did not finish within {CALL_TIMEOUT_SECONDS:g} s.", server=found.source or "")


def _show(result: JsonObject, tool: str, *, as_json: bool) -> None:
    from gateway.gate.refusals import RULE_META_KEY

    is_error = bool(result.get("isError"))
    if as_json:
        print_json(result)
    elif "task" in result:
        print_text(f"task {result['task'].get('taskId')} started")
    elif not is_error:
        print_content(result)
    if is_error:
        blocks = cast("list[JsonMapping]", result.get("content") or [])
        text = "\n".join(map(block_text, blocks)) or f"Tool {tool!r} failed."
        rule = cast("JsonMapping", result.get("_meta") or {}).get(RULE_META_KEY)
        if isinstance(rule, str):
            raise PolicyDenied(text, rule=rule, subject=tool)
        raise CommandFailed(text, code="tool-error")

"""The `moongate` command: finds the subcommand, runs it, and converts failures to exit codes.

Exit codes: 0 success, 1 wrong usage, 2 invalid configuration, 3 authentication needed, 4 server or gateway unreachable, 5 failed tool or
check, 6 denied by policy, 7 the database waits for a migration (`failures.EXIT_CODES`), 130 interrupted by the user. With `--json` a
failure is printed as one JSON line on stderr.
"""

from __future__ import annotations

import atexit
import importlib
import os
import sys
import threading
import time
from collections.abc import Mapping, Sequence

import click

from gateway import __version__
from gateway.cli.common import Commands
from gateway.cli.failures import Outcome, outcome_of
from gateway.errors import first_cause

COMMANDS: Mapping[str, str] = {
    "run": "gateway.cli.run:run",
    "list": "gateway.cli.list_command:list_command",
    "inspect": "gateway.cli.inspect:inspect",
    "call": "gateway.cli.call:call",
    "eval": "gateway.cli.evaluate:evaluate",
    "add": "gateway.cli.server_entries:add",
    "remove": "gateway.cli.server_entries:remove",
    "skills": "gateway.cli.skill_commands:skills",
    "workflows": "gateway.cli.workflows:workflows",
    "doctor": "gateway.cli.doctor:doctor",
    "schema": "gateway.cli.schemas:schema",
    "policy": "gateway.cli.policy:policy",
    "lock": "gateway.cli.lock_command:lock",
    "keys": "gateway.cli.keys:keys",
    "approvals": "gateway.cli.approval_commands:approvals",
    "audit": "gateway.cli.audit_commands:audit",
    "sessions": "gateway.cli.sessions:sessions",
    "tasks": "gateway.cli.task_commands:tasks",
    "auth": "gateway.cli.auth:auth",
    "db": "gateway.cli.db:db",
}
"""Module and function of each command, in the order of `--help`."""


THREADS_SECONDS = 1.0
"""Seconds for which the process waits for running threads after its command has ended."""


class _Commands(Commands):
    """The top-level command group. It imports the module of a command when the command is used."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        place = COMMANDS.get(cmd_name)
        if place is None:
            return None
        module, _, name = place.partition(":")
        command: click.Command = getattr(importlib.import_module(module), name)
        return command


@click.group(cls=_Commands, context_settings={"help_option_names": ["-h", "--help"]}, no_args_is_help=False, invoke_without_command=True)
@click.version_option(__version__, prog_name="moongate")
@click.pass_context
def cli(ctx: click.Context) -> None:
    """One MCP endpoint for your agents, skills, workflows and every remote MCP server you use."""
    if ctx.invoked_subcommand is None:
        click.echo(ctx.get_help())


def main(argv: Sequence[str] | None = None) -> None:
    """Run the command line and exit the process with the command's exit code. `argv` are the arguments without the program's name."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    code = run_command(arguments)
    _leave_stuck_threads(code)
    sys.exit(code)


def _leave_stuck_threads(code: int) -> None:
    """Exit the process with `code` if a thread still runs after `THREADS_SECONDS`, because Python would wait for it, possibly forever."""
    until = time.monotonic() + THREADS_SECONDS
    for thread in threading.enumerate():
        if thread is not threading.current_thread() and not thread.daemon:
            thread.join(max(until - time.monotonic(), 0.0))
            if thread.is_alive():
                atexit._run_exitfuncs()  # pyright: ignore[reportPrivateUsage]  # flushes buffers; Python runs it after all threads
                sys.stdout.flush()
                sys.stderr.flush()
                os._exit(code)


def run_command(arguments: Sequence[str]) -> int:
    """Run one command and return its exit code. Failures are reported on stderr.

    Raises an exception of the command only if `failures.outcome_of` returns `None` for it: such an exception is a programming mistake.
    """
    try:
        code = cli.main(args=list(arguments), prog_name="moongate", standalone_mode=False)
    except click.exceptions.Exit as leave:
        return leave.exit_code
    except (click.Abort, KeyboardInterrupt):
        return 130
    except Exception as error:
        outcome = outcome_of(first_cause(error))
        if outcome is None:
            raise
        _report(outcome, as_json=_wants_json(arguments))
        return outcome.exit_code
    return code if isinstance(code, int) else 0


def _wants_json(arguments: Sequence[str]) -> bool:
    """Return whether the option `--json` was given. Searches the arguments, because they are not parsed after a usage error."""
    own = list(arguments[: arguments.index("--")]) if "--" in arguments else list(arguments)
    return "--json" in own


def _report(outcome: Outcome, *, as_json: bool) -> None:
    from gateway.cli.output import clean, json_line, terminal_columns
    from gateway.cli.text_tables import fold

    if as_json:
        click.echo(json_line({"error": outcome.to_json()}), err=True)
        return
    columns = terminal_columns(sys.stderr)
    for line in outcome.message.splitlines():
        text = fold(f"error: {clean(line)}", columns)
        click.echo(f"{click.style('error:', fg='red', bold=True)}{text.removeprefix('error:')}", err=True)
    if outcome.usage:
        click.echo(outcome.usage, err=True)

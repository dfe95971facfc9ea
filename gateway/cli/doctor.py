"""`moongate doctor`: checks everything that the configuration needs, and reports for each item whether it works and how to fix it.

Starts the configured servers once, as `run` does, and stops them. It creates the state folder if it is missing, and stores the
servers' listings for the next start over stdio. Checks that start no process are in `checks`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

from gateway.cli.checks import Check, local_checks
from gateway.cli.common import data_options, load, run_async
from gateway.cli.failures import CommandFailed
from gateway.cli.issuer_checks import issuer_checks
from gateway.cli.output import print_json, print_text
from gateway.config.suggest import did_you_mean
from gateway.errors import Collision, ConfigError, ModelError, StorageError, StorageUnusable
from gateway.json_types import JsonObject

if TYPE_CHECKING:
    from gateway.cli.failures import Code
    from gateway.cli.hub import OwnHub
    from gateway.config.load import LoadedConfig
    from gateway.server.startup_answers import StartupAnswers
    from gateway.tools.base import SourceStatus


_NAMES_SHOWN = 3
"""Maximum number of users of a model (agents and policies) that the check of the model names; further users are only counted."""


@click.command()
@data_options
def doctor(config_path: str | None, as_json: bool) -> None:
    """Check the configuration and every server, and say what to fix.

    Also checks the programs, files and models that the configuration names.
    """
    from gateway.cli.run import first_answers

    try:
        first = first_answers(config_path)
        loaded = load(config_path)
    except (ConfigError, StorageError) as error:
        _show([Check("fail", "configuration", str(error), "Correct the file; `moongate schema` describes it.")], as_json=as_json)
        raise CommandFailed("The configuration cannot be used.", code="config-invalid") from None
    checks = local_checks(loaded)
    live, replicas = run_async(lambda: _live_checks(loaded, first))
    checks += live
    _show(checks, as_json=as_json, replicas=replicas)
    failed = [check for check in checks if check.status == "fail"]
    if failed:
        raise CommandFailed(f"{len(failed)} of {len(checks)} checks failed.", code=_code_of(failed))


async def _live_checks(loaded: LoadedConfig, first: StartupAnswers | None) -> tuple[list[Check], list[JsonObject]]:
    """Return the checks that need issuers, the database or a started gateway, and the gateways that share the database."""
    database, replicas = await _database_checks(loaded)
    return [*await issuer_checks(loaded), *await _started_checks(loaded, first, database)], replicas


async def _started_checks(loaded: LoadedConfig, first: StartupAnswers | None, database: list[Check]) -> list[Check]:
    """Start a gateway with its servers, run the checks that need them, and stop the gateway. Add the checks of the `database`."""
    from gateway.cli.hub import open_own

    if any(check.status == "fail" for check in database):
        loaded = _without_database(loaded)  # so that the servers are checked nevertheless
    stored = await _result_checks(loaded)
    if any(check.status == "fail" for check in stored):
        return [*database, *stored]  # the gateway would not start
    try:
        async with open_own(loaded) as own:
            checks = [_source_check(status) for status in own.gateway.inspection.sources() if status.state != "disabled"]
            checks += [check for status in own.gateway.inspection.sources() for check in _definition_remarks(status)]
            checks += await _name_checks(own, loaded)
            checks += [Check("warn", "rule", remark, "") for remark in await own.gateway.inspection.remarks()]
            checks += [Check("fail", "gateway", problem, "") for problem in own.gateway.inspection.problems()]
            withheld = own.gateway.catalog.withheld().items()
            checks += [Check("warn", f"withheld {what}", f"Refused by {why.rule}: {why.reason}", "") for what, why in withheld]
            checks += [*database, *stored, *await _temporal_checks(loaded), *_schedule_checks(own)]
            checks += await _definition_checks(own)
            checks += [
                Check("fail" if need.is_fatal else "warn", f"{need.kind} {need.where}", need.text, "")
                for need in await own.gateway.inspection.unmet_needs()
            ]
            await own.gateway.keep_answers(first)
            checks += [
                Check("fail", f"agent {where}", text, "Check `remote` in its file and that the agent runs.", "unreachable")
                for where, text in (await own.gateway.inspection.unreachable_agents()).items()
            ]
            return [*checks, *await _model_checks(own)]
    except (Collision, StorageError) as error:
        return [*database, Check("fail", "start", str(error), "")]


def _without_database(loaded: LoadedConfig) -> LoadedConfig:
    """Return the configuration without `storage.url`. A gateway with this URL does not start while the database cannot be used."""
    storage = loaded.config.storage.model_copy(update={"url": None})
    return dataclasses.replace(loaded, config=loaded.config.model_copy(update={"storage": storage}))


def _source_check(status: SourceStatus) -> Check:
    took = f", {status.milliseconds:.0f} ms" if status.milliseconds is not None else ""
    era = f"{status.protocol_version}, " if status.protocol_version else ""
    subject = f"{'server' if status.kind == 'server' else 'source'} {status.name}"
    if status.state in ("ready", "idle"):
        return Check("ok", subject, f"{status.transport}, {era}{status.tools} tool{'' if status.tools == 1 else 's'}{took}", "")
    if status.state == "held":
        return Check("warn", subject, status.error or "its command waits for acceptance", "")
    if status.state == "starting":
        fix = f"Raise policies.{status.name}.connectTimeoutSeconds, or look at its own log."
        return Check("fail", subject, "did not become ready in time", fix, "unreachable")
    if status.state == "auth needed":
        return Check("fail", subject, f"auth needed: {status.error}", "", "needs-auth")
    return Check("fail", subject, status.error or "down", _fix(status), "needs-auth" if status.failure == "credentials" else "unreachable")


def _definition_remarks(status: SourceStatus) -> list[Check]:
    """Return one failed check or warning for each problem with the definitions that a server lists.

    Three problems are reported: a quarantined tool (not served until a person accepts its definition), a server that is this
    gateway itself or is connected to it (a loop), and a definition (for example of a tool) that reads like orders to a model.
    """
    found = [
        Check("fail", f"tool {name} of server {status.name}", f"quarantined: {why}", "", "lock-differs")
        for name, why in status.quarantined.items()
    ]
    if status.loop is not None:
        text, _, fix = status.loop.partition(". ")
        found.append(Check("warn" if status.tools else "fail", f"loop through server {status.name}", text, fix))
    text = "reads like orders to a model: "
    read = f"Read it with `moongate inspect`; policies.{status.name}.tools can hide it."
    return found + [Check("warn", f"{what} of server {status.name}", f"{text}{why}", read) for what, why in status.suspicious.items()]


def _fix(status: SourceStatus) -> str:
    """Return advice on how to repair the connection to a server that is down; empty if the server's error has the advice."""
    if status.failure == "credentials":
        return ""
    if status.transport == "stdio" and status.failure == "timeout":
        again = "A first start that downloads its package takes longer: run `moongate doctor` again"
        limit = f"policies.{status.name}.connectTimeoutSeconds"
        return f"{again}, raise {limit}, or run the command of mcpServers.{status.name} by hand; it must speak MCP on its standard output."
    if status.transport == "stdio":
        return f"Run the command of mcpServers.{status.name} by hand; it must speak MCP on its standard output."
    return f"Check mcpServers.{status.name}.url and that the server runs."


async def _name_checks(own: OwnHub, loaded: LoadedConfig) -> list[Check]:
    from gateway.catalog.names import NAME_BUDGET
    prefix = loaded.config.server.client_prefix
    tools = await own.tools()
    checks = [Check("fail", f"name {name}", text, "") for name, text in own.gateway.catalog.problems.items()]
    for tool in tools:
        if len(prefix) + len(tool.name) > NAME_BUDGET:
            text = f"{len(prefix) + len(tool.name)} characters with the client's prefix; models accept {NAME_BUDGET}"
            checks.append(Check("warn", f"name {tool.name}", text, f"Give policies.{tool.source}.prefix a short name."))
    return checks or [Check("ok", "names", f"{len(tools)} tools, no name too long or taken twice", "")]


async def _definition_checks(own: OwnHub) -> list[Check]:
    """Return checks about files of skills, agents, workflows and functions that did not load or have warnings."""
    found: list[Check] = []
    for report in own.gateway.inspection.skill_problems():
        for finding in report.diagnostics:
            status = "fail" if report.verdict == "rejected" else "warn"
            found.append(Check(status, f"skill {report.path}", f"{finding.code}: {finding.message}", ""))
    found += await _script_checks(own.gateway.loaded)
    found += [Check("fail", f"{kind} {problem.where}", problem.message, "") for kind, problem in own.gateway.inspection.local_problems()]
    found += [Check("warn", f"{kind} {remark.where}", remark.message, "") for kind, remark in own.gateway.inspection.local_remarks()]
    return found


async def _script_checks(loaded: LoadedConfig) -> list[Check]:
    """Check whether allowed scripts of skills can run on this machine."""
    from gateway.skills.scripts import ScriptRunner

    settings = loaded.config.skills.scripts
    if not settings.enabled:
        return []
    runner = ScriptRunner(settings, {})
    await runner.start()
    subject, fix = "scripts of skills", "Allow user namespaces or install bubblewrap"
    if runner.problem:
        return [Check("fail", subject, runner.problem, f"{fix}, or set `skills.scripts.enabled` to false.")]
    checks = [Check("ok", subject, f"{len(settings.allow)} granted", "")]
    if runner.gap:
        text = f"they can see names, sizes and modes of files outside their copy, but no content: {runner.gap}"
        checks.append(Check("warn", subject, text, f"{fix}."))
    if runner.network_problem:
        network_fix = "Allow `pidfd_getfd` (in a container: `--cap-add SYS_PTRACE`), or take `network` out of their grants."
        checks.append(Check("fail", "scripts with a network", runner.network_problem, network_fix))
    return checks


async def _database_checks(loaded: LoadedConfig) -> tuple[list[Check], list[JsonObject]]:
    """Check whether the database server of `storage.url` can be used, if one is configured.

    Also return the gateways that share it, as `--json` prints them.
    """
    from gateway.cli.common import state_folder_of
    from gateway.cli.replica_checks import read_replicas, replica_checks, replicas_json
    from gateway.storage.records import Records

    storage = loaded.config.storage
    if storage.url is None:
        return [], []
    records = Records(state_folder_of(loaded), audit_days=storage.audit_days, url=storage.url)
    try:
        seen, refused = await read_replicas(await records.database())
    except StorageError as error:
        if isinstance(error, StorageUnusable) and error.passes:
            return [Check("fail", "database", str(error), "Check storage.url and that the server runs.", "unreachable")], []
        return [Check("fail", "database", str(error), "")], []
    finally:
        await records.aclose()
    return [Check("ok", "database", "storage.url can be used", ""), *replica_checks(seen, refused)], replicas_json(seen, refused)


async def _result_checks(loaded: LoadedConfig) -> list[Check]:
    """Check whether results can be stored in the bucket of `storage.results`, if one is configured."""
    from gateway.app.kept_results import build_result_store
    from gateway.cli.common import state_folder_of

    storage = loaded.config.storage
    if storage.results is None:
        return []
    try:
        await build_result_store(storage, state_folder_of(loaded).path).check()
    except StorageError as error:
        return [Check("fail", "results", str(error), "", "unreachable")]
    return [Check("ok", "results", f"an object in {storage.results} was written, read, listed and deleted", "")]


async def _temporal_checks(loaded: LoadedConfig) -> list[Check]:
    """Check whether the Temporal server of `tasks.temporal` can be used, if tasks are dispatched by it."""
    from gateway.tasks.engine_choice import choose_engine

    if loaded.config.tasks.engine != "temporal":
        return []
    try:
        await choose_engine(loaded.config.tasks, "")
    except ConfigError as error:
        return [Check("fail", "temporal", str(error), "Correct `tasks.temporal`, and check that the server runs.", "unreachable")]
    return [Check("ok", "temporal", f"{loaded.config.tasks.temporal.address} can be used", "")]


def _schedule_checks(own: OwnHub) -> list[Check]:
    """Return one failed check for each schedule of `tasks.schedules` whose call would be refused now."""
    from gateway.server.scheduled_calls import problem_of

    schedules = own.gateway.loaded.config.tasks.schedules
    found: list[Check] = []
    for name, call in schedules.items():
        if call.enabled and (problem := problem_of(name, call, own.gateway.callers, own.gateway.catalog)):
            found.append(Check("fail", f"schedule {name}", problem, ""))
    return found


async def _model_checks(own: OwnHub) -> list[Check]:
    """For each model that an agent or a sampling policy uses, check whether its endpoint answers and serves the model."""
    checks: list[Check] = []
    for spec, users in own.gateway.inspection.models_used().items():
        subject = f"model {spec}"
        more = f" and {len(users) - _NAMES_SHOWN} more" if len(users) > _NAMES_SHOWN else ""
        used = f"used by {', '.join(users[:_NAMES_SHOWN])}{more}"
        try:
            found = await own.gateway.inspection.check_model(spec)
        except ModelError as error:
            checks.append(Check("fail", subject, f"{error} ({used})", "", "unreachable" if error.retryable else "config-invalid"))
            continue
        if found is None:
            text = f"no endpoint is configured, so it works only with clients that offer sampling ({used})"
            checks.append(Check("warn", subject, text, "Set OPENAI_API_KEY, or OPENAI_BASE_URL and OPENAI_MODEL (or defaults.model)."))
        elif found.is_listed is False:
            known = did_you_mean(found.model, found.listed or ())
            text = f"{found.endpoint} answers, but does not list model {found.model!r} ({used})"
            checks.append(Check("warn", subject, text, f"Check OPENAI_MODEL, defaults.model or the agent's `model`. {known}".rstrip()))
        elif found.is_listed is None:
            text = f"{found.endpoint} is a model API but lists no models, so nothing shows that it has {found.model!r} ({used})"
            fix = "If calls fail, check the model's name."
            checks.append(Check("warn", subject, text, fix))
        else:
            checks.append(Check("ok", subject, f"{found.endpoint} answers and lists {found.model!r}", ""))
    return checks


def _show(checks: Sequence[Check], *, as_json: bool, replicas: Sequence[JsonObject] = ()) -> None:
    if as_json:
        print_json({"checks": [check.to_json() for check in checks], "replicas": list(replicas)})
        return
    for check in checks:
        print_text(f"{check.status:<4}  {check.subject}: {check.text}", " " * 6)
        if check.fix:
            print_text(f"      fix: {check.fix}", " " * 5)


def _code_of(failed: Sequence[Check]) -> Code:
    """Return the error code of the worst failed check. From worst to mildest: configuration, credentials, reachability, lock file."""
    codes = {check.code for check in failed}
    return next(code for code in ("config-invalid", "needs-auth", "unreachable", "lock-differs") if code in codes)

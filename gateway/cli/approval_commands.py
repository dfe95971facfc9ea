"""`moongate approvals` shows and decides calls and questions that wait for a person.

The commands read and write the gateway's database, so no gateway needs to run.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import click

from gateway.cli.arguments import build_answer
from gateway.cli.common import ListingGroup, data_options, load
from gateway.cli.failures import CommandFailed
from gateway.cli.output import moment, show, show_table
from gateway.cli.stored_rows import pick, with_records
from gateway.storage.record_types import AuditEntry

if TYPE_CHECKING:
    from gateway.json_types import JsonObject
    from gateway.storage.record_types import ApprovalRule, PendingQuestion, QuestionState
    from gateway.storage.records import Records

TAKEN_SECONDS = 2.0
"""Seconds for which a command that answers a question waits until the call that asked it has received the answer."""


@click.group(cls=ListingGroup)
def approvals() -> None:
    """Calls and questions that wait for a person.

    The person decides them outside the MCP client, for example with these commands. Also lists and revokes standing approvals, which
    approve later calls.
    """


@approvals.command("list")
@click.option("--all", "every", is_flag=True, help="Also list questions that were answered or expired within the last day.")
@data_options
def list_approvals(every: bool, config_path: str | None, as_json: bool) -> None:
    """List the calls and questions that wait for an answer."""
    async def read(records: Records) -> list[PendingQuestion]:
        return await (await records.questions()).list(only_open=not every)

    found = with_records(config_path, read)
    rows = [[ask.id, ask.state, ask.kind, ask.source, ask.name, ask.principal, ask.by, _left(ask)] for ask in found]
    headers = ("id", "state", "kind", "source", "name", "caller", "by", "left")
    data: JsonObject = {"approvals": [ask.to_json() for ask in found]}
    show_table(data, headers, rows, empty="Nothing waits for approval.", as_json=as_json)


@approvals.command("show")
@click.argument("ask_id", metavar="ID")
@data_options
def show_approval(ask_id: str, config_path: str | None, as_json: bool) -> None:
    """Show one call that waits for approval, or one question, in full.

    For a call, shows the tool and its arguments; for a question of a workflow, the fields of its form.
    """
    found = with_records(config_path, lambda records: _get(records, ask_id))
    text = f"{found.shown}\n  asked for {found.principal}, decided by {found.by}, {found.state}, {_left(found)} left"
    show(found.to_json(), text, as_json=as_json)


@approvals.command("approve")
@click.argument("ask_id", metavar="ID")
@click.option("--always", is_flag=True, help="Also approve every later call of this tool by this caller.")
@click.option("--always-with-arguments", "exactly", is_flag=True, help="Also approve later calls with the same arguments by this caller.")
@data_options
def approve(ask_id: str, always: bool, exactly: bool, config_path: str | None, as_json: bool) -> None:
    """Approve a tool call that waits for a person."""
    if always and exactly:
        raise click.UsageError("`--always` and `--always-with-arguments` exclude each other.")
    if (always or exactly) and not load(config_path, fetches=False).config.server.standing_approval_days:
        raise click.UsageError("Nothing can be approved for good here: `server.standingApprovalDays` is 0.")
    decision: QuestionState = "approved_always" if always else "approved_always_with_arguments" if exactly else "approved"
    _decide(ask_id, decision, config_path, as_json=as_json)


@approvals.command("deny")
@click.argument("ask_id", metavar="ID")
@data_options
def deny(ask_id: str, config_path: str | None, as_json: bool) -> None:
    """Deny a waiting tool call, or decline a question of a workflow."""
    _decide(ask_id, "denied", config_path, as_json=as_json)


@approvals.command("answer")
@click.argument("ask_id", metavar="ID")
@click.argument("pairs", metavar="FIELD=VALUE…", nargs=-1)
@click.option("--args-json", metavar="JSON", help="The fields as one JSON object.")
@data_options
def answer(ask_id: str, pairs: tuple[str, ...], args_json: str | None, config_path: str | None, as_json: bool) -> None:
    """Answer a question of a workflow. `moongate approvals show` lists its fields; `moongate approvals deny` declines it."""
    ask, taken = with_records(config_path, lambda records: _answer(records, ask_id, pairs, args_json))
    what = "goes on" if taken else "does not wait any more; the gateway that asked may have stopped"
    show({"id": ask.id, "decision": "answered", "taken": taken}, f"answered {ask.id}: {ask.name} {what}", as_json=as_json)


async def _answer(records: Records, ask_id: str, pairs: tuple[str, ...], args_json: str | None) -> tuple[PendingQuestion, bool]:
    """Store the answer to a question that has a form. Return the question, and whether the call that asked it got the answer in time."""
    from gateway.policy.input_answers import judge_answer

    asks = await records.questions()
    found = await _get(records, ask_id)
    _may_decide(found)
    if found.form is None:
        raise click.UsageError(f"{found.id} has no fields; use `moongate approvals approve {found.id}` or `deny`.")
    given = build_answer(found.form, pairs, args_json)
    request: JsonObject = {"method": "elicitation/create", "params": {"message": found.shown, "requestedSchema": found.form}}
    if (problem := judge_answer(request, {"action": "accept", "content": given})) is not None:
        raise click.UsageError(f"{problem} {found.id} is still open; use `moongate approvals answer {found.id} FIELD=VALUE…` again.")
    if not await asks.answer(found.id, given):
        raise CommandFailed(f"{found.id} is {await asks.state(found.id)} and cannot be answered any more.", code="not-found")
    return found, await _taken(records, found.id)


@approvals.command("rules")
@data_options
def list_rules(config_path: str | None, as_json: bool) -> None:
    """List standing approvals, which approve later calls.

    Approvals from early versions of Moongate are listed, but not applied, because they do not say who made them.
    """
    found = with_records(config_path, _rules)
    rows = [[r.id, r.source, r.name, r.to_json()["arguments"], r.principal, r.made_by or "unknown", moment(r.expires_at)] for r in found]
    headers = ("id", "source", "name", "arguments", "caller", "made by", "until")
    show_table({"rules": [rule.to_json() for rule in found]}, headers, rows, empty="No call is approved for good.", as_json=as_json)


@approvals.command("revoke")
@click.argument("rule_id", metavar="ID")
@data_options
def revoke(rule_id: str, config_path: str | None, as_json: bool) -> None:
    """Delete a standing approval, so that its calls need approval again."""
    async def work(records: Records) -> ApprovalRule:
        rule = pick(await _rules(records), rule_id, "rule", "approvals rules")
        await (await records.rules()).revoke(rule.id)
        records.note(AuditEntry(time.time(), "approval.revoked", rule.source, rule.name, rule.principal, {"id": rule.id}))
        return rule

    rule = with_records(config_path, work)
    show({"revoked": rule.id}, f"revoked {rule.id}: {rule.name} of {rule.source} asks again", as_json=as_json)


async def _rules(records: Records) -> list[ApprovalRule]:
    return await (await records.rules()).list()


def _decide(ask_id: str, decision: QuestionState, config_path: str | None, *, as_json: bool) -> None:
    ask, taken = with_records(config_path, lambda records: _move(records, ask_id, decision))
    what = f"{ask.name} of {ask.source}"
    if decision != "denied" and not taken:
        text = f"approved {ask.id}, but no call of {what} waits any more; the gateway that asked may have stopped"
    else:
        text = f"{decision.replace('_', ' ')} {ask.id}: {what}" + (" goes on" if taken else "")
    show({"id": ask.id, "decision": decision, "taken": taken}, text, as_json=as_json)


async def _move(records: Records, ask_id: str, decision: QuestionState) -> tuple[PendingQuestion, bool]:
    """Store the decision about a waiting call or question. Return the question, and whether the call received an approval in time."""
    from gateway.auth.principal import LOCAL
    from gateway.policy.approval_policy import may_stand

    asks = await records.questions()
    found = await _get(records, ask_id)
    _may_decide(found)
    if found.form is not None and decision != "denied":
        raise click.UsageError(f"{found.id} needs an answer: `moongate approvals answer {found.id} FIELD=VALUE…`.")
    if decision.startswith("approved_") and not (found.kind == "call" and may_stand(found.source, found.name)):
        raise CommandFailed(f"{found.name} of {found.source} can only be approved one by one; leave out `--always`.", code="usage")
    if not await asks.move(found.id, "open", decision, decided_by=LOCAL.id):
        raise CommandFailed(f"{found.id} is {await asks.state(found.id)} and cannot be answered any more.", code="not-found")
    return found, decision != "denied" and await _taken(records, found.id)


def _may_decide(found: PendingQuestion) -> None:
    """Check that the local user may decide a question about a call.

    Raises:
        CommandFailed: The policy requires a principal other than the caller (`other-principal`), and the local user made the call.
    """
    from gateway.auth.principal import LOCAL
    from gateway.policy.approval_policy import Approver, judge_approver

    if (refused := judge_approver(found.by, found.principal, Approver(LOCAL.id, is_operator=True))) is not None:
        text = f"{found.id}: {refused.reason} A key other than the caller's decides it with `review_approvals`."
        raise CommandFailed(text, code="denied")


async def _taken(records: Records, ask_id: str) -> bool:
    """Return whether the call that waits for the question's answer receives it within `TAKEN_SECONDS`."""
    import anyio

    asks = await records.questions()
    with anyio.move_on_after(TAKEN_SECONDS):
        state = await asks.state(ask_id)
        while state != "delivered":  # the gateway process marks it in the database
            await anyio.sleep(0.05)
            state = await asks.state(ask_id)
        return True
    return False


async def _get(records: Records, ask_id: str) -> PendingQuestion:
    """Return the question with the id `ask_id`, or the only question whose id begins with it."""
    return pick(await (await records.questions()).list(only_open=False), ask_id, "question", "approvals list")


def _left(ask: PendingQuestion) -> str:
    from gateway.storage.shared_clock import shared_now

    return f"{max(0, round(ask.expires_at - shared_now()))} s"

"""`moongate sessions`: shows and deletes the conversations that callers have with agents, in the gateway's database."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from gateway.cli.common import ListingGroup, data_options, load
from gateway.cli.configured_names import agent_names
from gateway.cli.output import moment, print_json, print_text, show, show_table
from gateway.cli.stored_rows import empty_text, pick, with_records

if TYPE_CHECKING:
    from gateway.json_types import JsonObject
    from gateway.storage.record_types import StoredSession
    from gateway.storage.records import Records


@click.group(cls=ListingGroup)
def sessions() -> None:
    """Stored conversations of callers with agents."""


@sessions.command("list")
@click.option("--agent", metavar="NAME", help="Only sessions with this agent.")
@click.option("--caller", metavar="ID", help="Only sessions of this caller, as the list names it.")
@data_options
def list_sessions(agent: str | None, caller: str | None, config_path: str | None, as_json: bool) -> None:
    """List sessions, the last used first.

    A session is a stored conversation of a caller with an agent. The listed sessions can be continued.
    """
    async def read(records: Records) -> list[StoredSession]:
        return await (await records.sessions()).list()

    every = with_records(config_path, read)
    found = [session for session in every if agent in (None, session.agent) and caller in (None, session.principal)]
    rows = [
        [s.id, s.agent, s.principal, str(s.turns), moment(s.used_at), moment(s.expires_at), "busy" if s.is_busy else ""] for s in found
    ]
    agents = {session.agent for session in every}
    if not rows and agent is not None:
        agents.update(agent_names(load(config_path, fetches=False)))
    empty = empty_text("sessions", (agent, agents), (caller, {session.principal for session in every}))
    headers = ("id", "agent", "caller", "turns", "last used", "kept until", "state")
    show_table({"sessions": [_shown(session) for session in found]}, headers, rows, empty=empty, as_json=as_json)


@sessions.command("show")
@click.argument("session_id", metavar="ID")
@data_options
def show_session(session_id: str, config_path: str | None, as_json: bool) -> None:
    """Show the messages of one session.

    A session is a stored conversation of a caller with an agent.
    """
    from gateway.types.messages import Message

    async def read(records: Records) -> tuple[StoredSession, list[JsonObject]]:
        store = await records.sessions()
        found = await _matching(records, session_id)
        return await store.get(found.id, found.principal)

    session, messages = with_records(config_path, read)
    if as_json:
        print_json({**_shown(session), "messages": messages})
        return
    print_text(f"{session.id}  {session.agent}  {session.principal}  {session.turns} turns")
    for message in (Message.from_dict(stored) for stored in messages):
        said = message.text or ", ".join(content.type for content in message.contents)
        print_text(f"{message.role}: {said}")


@sessions.command("delete")
@click.argument("session_id", metavar="ID")
@data_options
def delete_session(session_id: str, config_path: str | None, as_json: bool) -> None:
    """Delete one session with all its messages.

    A session is a stored conversation of a caller with an agent.
    """
    async def work(records: Records) -> str:
        found = await _matching(records, session_id)
        await (await records.sessions()).delete(found.id, found.principal)
        return found.id

    deleted = with_records(config_path, work)
    show({"deleted": [deleted]}, f"deleted {deleted}", as_json=as_json)


async def _matching(records: Records, session_id: str) -> StoredSession:
    """Return the session with the id `session_id`, or the only session whose id begins with it."""
    return pick(await (await records.sessions()).list(), session_id, "session", "sessions list")


def _shown(session: StoredSession) -> JsonObject:
    return {**session.to_json(), "caller": session.principal}

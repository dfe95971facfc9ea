"""The tools `session_list` and `session_delete` and the resources `session://<id>`, for a principal's sessions with agents.

A session is a stored conversation with an agent. Calls of the agent's tool start and continue it. Sessions of other principals are
invisible.
"""

from __future__ import annotations

import json
import time
from collections.abc import Sequence

from gateway.errors import NotFound
from gateway.json_types import JsonObject
from gateway.policy.caller_rights import is_hidden
from gateway.storage.record_types import StoredSession
from gateway.storage.records import Records
from gateway.tools.base import Complete, Finished, Tool, ToolDefinition, ToolOutcome
from gateway.tools.context import CallContext

SESSION_SCHEME = "session://"
"""Prefix of the resource URI of a session; the id of the session follows."""

MAX_LISTED = 100
"""Maximum number of sessions in one result of `session_list`, which lists the most recently used sessions first."""


def session_template() -> JsonObject:
    """Return the resource template `session://{id}`, as `resources/templates/list` shows it."""
    return {
        "uriTemplate": f"{SESSION_SCHEME}{{id}}",
        "name": "session",
        "title": "A conversation with an agent",
        "description": "The messages of one of your own sessions. `session_list` shows their ids.",
        "mimeType": "application/json",
    }


def session_tools(records: Records) -> Sequence[Tool]:
    """Create the tools `session_list` and `session_delete`, which list and delete the sessions in the database `records`."""
    return [_ListSessions(records), _DeleteSession(records)]


async def read_session(records: Records, uri: str, ctx: CallContext) -> Finished:
    """Return the contents of a resource `session://<id>` of the calling principal: the session's properties and all messages, as JSON.

    Raises `NotFound`, also for a session of another principal, and `StorageError`.
    """
    try:
        session, messages = await (await records.sessions()).get(uri.removeprefix(SESSION_SCHEME), ctx.facts.principal.id)
        if not _is_visible(session, ctx):
            raise NotFound("session", session.id)
    except NotFound:
        raise NotFound("resource", uri) from None
    text = json.dumps({**_shown(session), "messages": messages}, ensure_ascii=False)
    return Finished({"contents": [{"uri": uri, "mimeType": "application/json", "text": text}]})


class _ListSessions:
    """The MCP tool `session_list(agent?)`: lists the sessions of the calling principal, or only those with one agent."""

    def __init__(self, records: Records) -> None:
        self._records = records
        self.definition = ToolDefinition(
            name="session_list",
            title="List sessions",
            description=(
                "List your sessions with agents. To continue one, call the agent's tool again with its id as `session_id`. "
                f"The sessions used last come first, at most {MAX_LISTED}."
            ),
            input_schema={
                "type": "object",
                "properties": {"agent": {"type": "string", "description": "Only sessions with this agent."}},
                "additionalProperties": False,
            },
            annotations={"readOnlyHint": True, "idempotentHint": True, "openWorldHint": False},
        )

    async def call(self, arguments: JsonObject, ctx: CallContext) -> ToolOutcome:
        """Return the sessions of the calling principal, the most recently used first, at most `MAX_LISTED`. Raises `StorageError`."""
        found = await (await self._records.sessions()).list(ctx.facts.principal.id)
        wanted = arguments.get("agent")
        shown = [_shown(session) for session in found if wanted in (None, "", session.agent) and _is_visible(session, ctx)]
        listed: JsonObject = {"sessions": shown[:MAX_LISTED], "total": len(shown)}
        return Complete.text(json.dumps(listed, ensure_ascii=False), structured=listed)


class _DeleteSession:
    """The MCP tool `session_delete(session_id)`: deletes a session of the calling principal with all its messages."""

    def __init__(self, records: Records) -> None:
        self._records = records
        self.definition = ToolDefinition(
            name="session_delete",
            title="Delete a session",
            description="Delete one of your sessions with an agent and all its messages. This cannot be undone.",
            input_schema={
                "type": "object",
                "properties": {"session_id": {"type": "string", "minLength": 1, "description": "Id of the session."}},
                "required": ["session_id"],
                "additionalProperties": False,
            },
            annotations={"readOnlyHint": False, "destructiveHint": True, "idempotentHint": True, "openWorldHint": False},
        )

    async def call(self, arguments: JsonObject, ctx: CallContext) -> ToolOutcome:
        """Delete the session. An unknown id, or the id of another principal's session, gives an error result. Raises `StorageError`."""
        session_id = str(arguments["session_id"]).removeprefix(SESSION_SCHEME)
        try:
            await (await self._records.sessions()).delete(session_id, ctx.facts.principal.id)
        except NotFound as error:
            return Complete.text(str(error), is_error=True)
        return Complete.text(f"Deleted session {session_id}.")


def _is_visible(session: StoredSession, ctx: CallContext) -> bool:
    """Return whether the agent of a session exists for the caller. Roles may have changed since the session began."""
    rights = ctx.facts.on_behalf_of.rights
    return rights is None or not is_hidden(rights.decide("tools", "agent", session.agent).verdict)


def _shown(session: StoredSession) -> JsonObject:
    """Return the JSON properties of a session, with its times as UTC text instead of numbers, for models and people."""
    shown = session.to_json()
    for key in ("createdAt", "usedAt", "expiresAt"):
        shown[key] = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(shown[key]))
    return shown

"""`session_list`, `session_delete` and the resources `session://<id>`: a caller's own conversations with agents.

The agents' own tools start and continue sessions. Sessions of other callers are invisible here.
"""

from __future__ import annotations

import json
import time
from collections.abc import Sequence

from gateway.errors import NotFound
from gateway.json_types import JsonObject
from gateway.storage.record_types import StoredSession
from gateway.storage.records import Records
from gateway.tools.base import Complete, Finished, Tool, ToolDefinition, ToolOutcome
from gateway.tools.context import CallContext

SESSION_SCHEME = "session://"
"""Prefix of a session's URI, before the id."""

MAX_LISTED = 100
"""Maximum number of sessions in one result of `session_list`; the sessions used last come first."""


def session_template() -> JsonObject:
    """Return the resource template of sessions, as it is listed to clients."""
    return {
        "uriTemplate": f"{SESSION_SCHEME}{{id}}",
        "name": "session",
        "title": "A conversation with an agent",
        "description": "The messages of one of your own sessions. `session_list` shows their ids.",
        "mimeType": "application/json",
    }


def session_tools(records: Records) -> Sequence[Tool]:
    """Return the tools `session_list` and `session_delete`."""
    return [_ListSessions(records), _DeleteSession(records)]


async def read_session(records: Records, uri: str, ctx: CallContext) -> Finished:
    """Return a session of the caller as a resource, with its properties and all messages. Raises `NotFound`, `StorageError`."""
    try:
        session, messages = await (await records.sessions()).get(uri.removeprefix(SESSION_SCHEME), ctx.facts.principal.id)
    except NotFound:
        raise NotFound("resource", uri) from None
    text = json.dumps({**_shown(session), "messages": messages}, ensure_ascii=False)
    return Finished({"contents": [{"uri": uri, "mimeType": "application/json", "text": text}]})


class _ListSessions:
    """The tool `session_list(agent?)`."""

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
        """Return the caller's sessions. Raises `StorageError`."""
        found = await (await self._records.sessions()).list(ctx.facts.principal.id)
        wanted = arguments.get("agent")
        shown = [_shown(session) for session in found if wanted in (None, "", session.agent)]
        listed: JsonObject = {"sessions": shown[:MAX_LISTED], "total": len(shown)}
        return Complete.text(json.dumps(listed, ensure_ascii=False), structured=listed)


class _DeleteSession:
    """The tool `session_delete(session_id)`."""

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
        """Delete the session. An unknown id is an error result. Raises `StorageError`."""
        session_id = str(arguments["session_id"]).removeprefix(SESSION_SCHEME)
        try:
            await (await self._records.sessions()).delete(session_id, ctx.facts.principal.id)
        except NotFound as error:
            return Complete.text(str(error), is_error=True)
        return Complete.text(f"Deleted session {session_id}.")


def _shown(session: StoredSession) -> JsonObject:
    """Return a session with its times as text, for models and people."""
    shown = session.to_json()
    for key in ("createdAt", "usedAt", "expiresAt"):
        shown[key] = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(shown[key]))
    return shown

"""`GatewaySource`: the gateway's own tools and resources, as a source with the id `gateway`.

It has `read_result` with the resources `moongate://results/<id>` for shortened results, and `gateway_status` with `moongate://status`. If
agents are served, it has `session_list` and `session_delete` with `session://<id>`; if a tool can become a task, `task_status`,
`task_result` and `task_cancel`. The source is local and has no prefix, so its names are reserved. `app` creates it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from gateway.catalog.review import ReviewApprovals
from gateway.catalog.session_tools import SESSION_SCHEME, read_session, session_template, session_tools
from gateway.catalog.status import STATUS_URI, GatewayStatus, status_resource
from gateway.errors import NotFound
from gateway.gate.read_result import ReadResult
from gateway.gate.selection import decode
from gateway.json_types import JsonObject
from gateway.storage.records import Records
from gateway.storage.result_store import RESULT_SCHEME, ResultStore
from gateway.tools.base import Finished, Kind, OnChange, Tool
from gateway.tools.context import CallContext

SOURCE_ID = "gateway"

TASK_TOOLS = frozenset({"task_status", "task_result", "task_cancel"})
"""Tools that are listed only while another tool can become a task."""

UNLIMITED_BYTES = 2**62
"""Limit on results of this source: none. Stored results were judged when they were stored, so they are not shortened again."""


class GatewaySource:
    """The gateway's own tools and resources, as a `Source`."""

    def __init__(
        self,
        store: ResultStore,
        status: GatewayStatus | None,
        records: Records,
        task_tools: Sequence[Tool] = (),
        *,
        standing_days: float = 0.0,
    ) -> None:
        """`status` is `None` if `server.statusTool` is off; `records` stores the agent sessions.

        `standing_days` is how many days a standing approval lasts.

        The catalog lists `task_tools` while a tool can become a task, and `review_approvals` to principals that may decide.
        """
        self._review = ReviewApprovals(records, standing_days)
        self._store = store
        self._status = status
        self._records = records
        self._tools: list[Tool] = [ReadResult(store), *([status] if status is not None else []), *task_tools]
        self._session_tools = session_tools(records)
        self._with_sessions = False
        self._more: Sequence[Tool] = ()
        self._on_change: OnChange = lambda _: None

    def offer(self, more: Sequence[Tool], *, with_sessions: bool, with_reviews: bool = False) -> None:
        """Set which optional tools the gateway offers.

        These are `more` (the tools that find other tools, see `disclosure`), the session tools if an agent has sessions, and
        `review_approvals` if a call may have to wait for an approval.
        """
        reviews = [self._review] if with_reviews else []
        offered = [*(self._session_tools if with_sessions else ()), *reviews, *more]
        if offered == list(self._more):
            return
        self._more = offered
        self._on_change("tools")
        if with_sessions != self._with_sessions:
            self._with_sessions = with_sessions
            self._on_change("resources")

    @property
    def id(self) -> str:
        """Always `gateway`."""
        return SOURCE_ID

    async def tools(self) -> Sequence[Tool]:
        """Return the gateway's own tools that are offered now."""
        return [*self._tools, *self._more]

    def subscribe(self, on_change: OnChange) -> None:
        """Register the callback for changed lists. It replaces a callback registered earlier."""
        self._on_change = on_change

    async def list(self, kind: Kind) -> Sequence[JsonObject]:
        """List the status resource. Stored results are not listed: each belongs to one caller, whose shortened result links it."""
        if kind == "resources" and self._status is not None:
            return [status_resource()]
        if kind == "templates":
            return [
                *([session_template()] if self._with_sessions else []),
                {
                    "uriTemplate": f"{RESULT_SCHEME}{{id}}",
                    "name": "result",
                    "title": "The whole of a shortened result",
                    "description": "The complete body of a result that was too large. The shortened result links it.",
                },
            ]
        return []

    async def read(self, uri: str, ctx: CallContext) -> Finished:
        """Return the status, a stored result of this caller, or one of its sessions. Raises `NotFound`."""
        if uri.startswith(SESSION_SCHEME) and self._with_sessions:
            return await read_session(self._records, uri, ctx)
        if uri == STATUS_URI and self._status is not None:
            return Finished(
                {"contents": [{"uri": uri, "mimeType": "application/json", "text": self._status.as_json(ctx.facts.on_behalf_of)}]}
            )
        if not uri.startswith(RESULT_SCHEME):
            raise NotFound("resource", uri)
        return await self._store.work(lambda: self._kept(uri, ctx.facts.principal.id))

    def _kept(self, uri: str, owner: str) -> Finished:
        try:
            kept = self._store.find(owner, uri.removeprefix(RESULT_SCHEME))
            text = decode(self._store.body(owner, kept.id))
        except NotFound:
            raise NotFound("resource", uri) from None
        return Finished({"contents": [{"uri": uri, "mimeType": kept.mime_type, "text": text}]})

    async def get_prompt(self, name: str, arguments: Mapping[str, str], ctx: CallContext) -> Finished:
        """Raise `NotFound`: this source has no prompts."""
        raise NotFound("prompt", name)

    async def complete(self, ref: JsonObject, argument: JsonObject, context: JsonObject | None, ctx: CallContext) -> JsonObject:
        """Return no suggestions, so that ids cannot be guessed."""
        return {"values": []}

    async def watch(self, uri: str) -> None:
        """Accept a watch of the status, which sends no updates. Raises `NotFound` for any other URI."""
        if uri != STATUS_URI or self._status is None:
            raise NotFound("resource", uri)

    async def unwatch(self, uri: str) -> None:
        """End a watch that `watch` accepted."""

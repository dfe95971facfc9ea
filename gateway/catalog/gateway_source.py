"""`GatewaySource`: provides the tools and resources about the gateway itself to the catalog, as a source with the id `gateway`.

The source has the tool `read_result` with the resources `moongate://results/<id>` for shortened results, and `gateway_status` with
`moongate://status` (unless `server.statusTool` is off). If an agent with sessions is served, it also has `session_list` and
`session_delete` with `session://<id>`. If a tool can run as a task, it also has `task_status`, `task_result` and `task_cancel`.
`GatewaySource.offer` adds further optional tools. The names of this source have no prefix, so no other source can use them.
`app` creates the source.
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
"""Names of the tools that read and cancel background tasks. The catalog lists them only while some tool can run as a task."""

UNLIMITED_BYTES = 2**62
"""Size limit in bytes for results of this source. No result reaches it, so that stored results are not shortened a second time."""


class GatewaySource:
    """Provides the tools and resources about the gateway itself (status, stored results, sessions, tasks, approvals) as a `Source`."""

    def __init__(
        self,
        store: ResultStore,
        status: GatewayStatus | None,
        records: Records,
        finders: Sequence[Tool],
        task_tools: Sequence[Tool] = (),
        *,
        standing_days: float = 0.0,
    ) -> None:
        """Create the source with its tools.

        `store` has the stored results, which were too large to return whole. `status` is the tool `gateway_status`, or `None` if
        `server.statusTool` is off. `records` is the database with agent sessions and with the calls that wait for a person's approval.
        `finders` are the tools that find and load on-demand tools. `task_tools` read and cancel tasks; the catalog lists them only while
        some tool can run as a task. An operator can approve all later calls of a tool, too; such an approval lasts `standing_days` days.
        """
        self._review = ReviewApprovals(records, standing_days)
        self._store = store
        self._status = status
        self._records = records
        self._tools: list[Tool] = [ReadResult(store), *([status] if status is not None else []), *task_tools]
        self._session_tools = session_tools(records)
        self._finders = finders
        self._with_sessions = False
        self._more: Sequence[Tool] = ()
        self._on_change: OnChange = lambda _: None

    def offer(self, *, on_demand: bool, with_sessions: bool, with_reviews: bool) -> None:
        """Set which optional tools this source has from now on, and report the change to the catalog.

        `on_demand` adds the tools by which a model finds and loads on-demand tools (tools that clients see only after they are loaded).
        `with_sessions` adds the tools for sessions of agents. `with_reviews` adds `review_approvals`, for calls that may have to wait for a
        person's approval.
        """
        reviews = [self._review] if with_reviews else []
        offered = [*(self._session_tools if with_sessions else ()), *reviews, *(self._finders if on_demand else ())]
        if offered == list(self._more):
            return
        self._more = offered
        self._on_change("tools")
        if with_sessions != self._with_sessions:
            self._with_sessions = with_sessions
            self._on_change("resources")

    @property
    def id(self) -> str:
        """The id of this source, always `gateway`."""
        return SOURCE_ID

    async def tools(self) -> Sequence[Tool]:
        """Return the tools that this source has now, including the optional tools that `offer` set."""
        return [*self._tools, *self._more]

    def subscribe(self, on_change: OnChange) -> None:
        """Register the callback for changed lists of this source. It replaces a callback registered earlier."""
        self._on_change = on_change

    async def list(self, kind: Kind) -> Sequence[JsonObject]:
        """Return the status resource, or the templates of stored results and sessions; this source has no prompts.

        Stored results are not listed, because each belongs to one principal. The shortened result that the principal received links to it.
        """
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
        """Return the contents of the status resource, or of a stored result or session of the calling principal. Raises `NotFound`."""
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
        """Raise `NotFound`, because this source has no prompts."""
        raise NotFound("prompt", name)

    async def complete(self, ref: JsonObject, argument: JsonObject, context: JsonObject | None, ctx: CallContext) -> JsonObject:
        """Return an empty list of suggestions, so that clients cannot find ids of results and sessions by completion."""
        return {"values": []}

    async def watch(self, uri: str) -> None:
        """Accept a subscription to the status resource, although this source never sends updates. Raises `NotFound` for any other URI."""
        if uri != STATUS_URI or self._status is None:
            raise NotFound("resource", uri)

    async def unwatch(self, uri: str) -> None:
        """Accept the end of a subscription; does nothing, because this source sends no updates."""

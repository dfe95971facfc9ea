"""The tasks extension of the conformance upstream (SEP-2663): the jobs that the suite starts, kept in memory.

Names are the suite's. A client that declares the extension gets a task; another one gets the result at once, but of
`failing_job`, which needs the extension.
"""

from __future__ import annotations

import secrets
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

import anyio
import anyio.abc
import mcp_types as t
from mcp.server.lowlevel import Server
from mcp.shared.exceptions import MCPError
from pydantic import ConfigDict, Field

from tests.conformance import contract as c
from tests.conformance.upstream_tools import Ctx, FixtureTool, ask_back, asking, content_of, form, is_modern, result, text

EXTENSION = "io.modelcontextprotocol/tasks"
REQUIRED: dict[str, Any] = {"requiredCapabilities": {"extensions": {EXTENSION: {}}}}


class TaskParams(t.RequestParams):
    """Parameters of the `tasks/…` methods: `taskId` and the client's input responses."""

    model_config = ConfigDict(extra="allow", populate_by_name=True)
    task_id: str = Field(alias="taskId")
    input_responses: dict[str, Any] | None = Field(default=None, alias="inputResponses")


@dataclass(eq=False)
class Job:
    """One task with its state and its open requests for input."""

    status: str = "working"
    more: dict[str, Any] = field(default_factory=lambda: dict[str, Any]())
    open: dict[str, Any] = field(default_factory=lambda: dict[str, Any]())
    moved: anyio.Event = field(default_factory=anyio.Event)
    scope: anyio.CancelScope = field(default_factory=anyio.CancelScope)
    id: str = field(default_factory=lambda: secrets.token_urlsafe(18))
    since: str = field(default_factory=lambda: datetime.now(UTC).isoformat())

    def wire(self) -> dict[str, Any]:
        """Return the task as the client receives it."""
        now = datetime.now(UTC).isoformat()
        shown: dict[str, Any] = {"taskId": self.id, "status": self.status, "createdAt": self.since, "lastUpdatedAt": now}
        asked = {key: ask.model_dump(by_alias=True, exclude_none=True, mode="json") for key, ask in self.open.items()}
        return {**shown, "ttlMs": 600_000, "pollIntervalMs": 200, **self.more, **({"inputRequests": asked} if asked else {})}

    async def ask(self, **requests: Any) -> None:
        """Publish requests for input and wait until the client has answered all of them."""
        self.open, self.status = dict(requests), "input_required"
        while self.open:
            await self.moved.wait()
        self.status = "working"


class Jobs:
    """All tasks of the server. `group` runs the jobs and must be set before the first call."""

    def __init__(self) -> None:
        self.group: anyio.abc.TaskGroup
        self._jobs: dict[str, Job] = {}

    def tools(self) -> dict[str, FixtureTool]:
        """Return the tools that the suite calls, by name."""

        async def greet(ctx: Ctx, params: t.CallToolRequestParams) -> Any:
            return result(text(f"Hello, {(params.arguments or {}).get('name', '')}!"))

        number: dict[str, Any] = {"type": "number"}
        slow: dict[str, Any] = {"type": "object", "properties": {"seconds": number, "label": c.STRING}}
        file: dict[str, Any] = {"type": "object", "properties": {"filename": c.STRING}}
        shapes = {"slow_compute": slow, "confirm_delete": file}
        plain = ("failing_job", "protocol_error_job", "multi_input", "test_tool_with_task")
        tools = {name: FixtureTool(shapes.get(name, c.NOTHING), self.start) for name in (*shapes, *plain)}
        return {"greet": FixtureTool(c.NAME, greet), **tools}

    def bind(self, server: Server[Any]) -> None:
        """Declare the extension and serve its methods."""
        server.extensions[EXTENSION] = {}
        server.add_request_handler("tasks/get", TaskParams, self.get)
        server.add_request_handler("tasks/update", TaskParams, self.update)
        server.add_request_handler("tasks/cancel", TaskParams, self.cancel)

    @staticmethod
    def _declared(ctx: Ctx) -> bool:
        declared = ctx.session.client_capabilities
        return is_modern(ctx) and bool(declared and declared.extensions and EXTENSION in declared.extensions)

    async def start(self, ctx: Ctx, params: t.CallToolRequestParams) -> Any:
        """Handle a call of any job: start a task if the client declared the extension, otherwise return the result."""
        arguments = dict(params.arguments or {})
        if params.name == "test_tool_with_task":
            answers = params.input_responses or {}
            if "user_name" not in answers:
                return asking({"user_name": form("Your name?", c.NAME)}, "asked")
            arguments["who"] = content_of(answers["user_name"]).get("name")
        if not is_modern(ctx):
            return await self._plainly(ctx, params.name, arguments)
        if not self._declared(ctx):
            if params.name == "failing_job":
                raise MCPError(-32021, "This job needs the tasks extension.", REQUIRED)
            return result(text("done without a task"))
        job = Job()
        self._jobs[job.id] = job
        self.group.start_soon(self._run, job, params.name, arguments)
        return {"resultType": "task", **job.wire()}

    async def _plainly(self, ctx: Ctx, name: str, arguments: dict[str, Any]) -> Any:
        """Run the job within the call of a 2025 client; a gateway may turn the call into a task of its own."""

        async def ask(**requests: Any) -> None:
            await ask_back(ctx, requests)

        done = await self._work(ask, name, arguments)
        if done is None:
            raise MCPError(-32603, "worker crashed")
        return done

    async def _run(self, job: Job, name: str, arguments: dict[str, Any]) -> None:
        with job.scope:
            done = await self._work(job.ask, name, arguments)
            if done is None:
                job.more, job.status = {"error": {"code": -32603, "message": "worker crashed"}, "statusMessage": "worker crashed"}, "failed"
            else:
                job.more, job.status = {"result": done.model_dump(by_alias=True, exclude_none=True, mode="json")}, "completed"
            return
        job.open, job.status = {}, "cancelled"

    async def _work(self, ask: Callable[..., Awaitable[None]], name: str, arguments: dict[str, Any]) -> t.CallToolResult | None:
        match name:
            case "slow_compute":
                await anyio.sleep(float(arguments.get("seconds", 1)))
                return result(text(f"computed {arguments.get('label', '')}"))
            case "failing_job":
                await anyio.sleep(0.3)
                return result(text("the job failed"), is_error=True)
            case "protocol_error_job":
                return None
            case "confirm_delete":
                await ask(confirm=form(f"Delete {arguments.get('filename')}?", c.CONFIRMED))
                return result(text("deleted"))
            case "multi_input":
                await ask(first=form("First?", c.NAME), second=form("Second?", c.COLOR))
                return result(text("both answered"))
            case _:
                return result(text(f"done for {arguments.get('who')}"))

    def _find(self, ctx: Ctx, params: TaskParams) -> Job:
        if not self._declared(ctx):
            raise MCPError(-32021, "Tasks need the extension.", REQUIRED)
        named = ctx.request.headers.get("mcp-name") if ctx.request is not None else params.task_id
        if named != params.task_id:
            raise MCPError(-32020, "Mcp-Name is not the task's id.")
        if params.task_id not in self._jobs:
            raise MCPError(-32602, "Task not found")
        return self._jobs[params.task_id]

    async def get(self, ctx: Ctx, params: TaskParams) -> dict[str, Any]:
        return {"resultType": "complete", **self._find(ctx, params).wire()}

    async def cancel(self, ctx: Ctx, params: TaskParams) -> dict[str, Any]:
        self._find(ctx, params).scope.cancel()
        return {"resultType": "complete"}

    async def update(self, ctx: Ctx, params: TaskParams) -> dict[str, Any]:
        job = self._find(ctx, params)
        for key in params.input_responses or {}:
            job.open.pop(key, None)
        moved, job.moved = job.moved, anyio.Event()
        moved.set()
        return {"resultType": "complete"}

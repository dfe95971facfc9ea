"""An exception of a tool call has the same text and code on every path: HTTP with and without the SDK, stdio, task and AG-UI."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import anyio.lowlevel
import httpx2
import pytest
from starlette.applications import Starlette

from gateway.auth.api_keys import KeyStore
from gateway.auth.known_callers import Callers
from gateway.catalog import Catalog, CatalogEntry
from gateway.config.models import HttpSettings, TaskSettings
from gateway.config.policies import SourcePolicy
from gateway.errors import (
    STORAGE_TEXT,
    InputExpired,
    InputUnavailable,
    NotFound,
    OutcomeUnknown,
    PolicyDenied,
    Rejected,
    StorageUnusable,
    TaskError,
    ToolFailed,
)
from gateway.gate.pipeline import GateServices
from gateway.policy.scopes import RULE
from gateway.server.dispatch import LineDispatch
from gateway.server.gateway_server import GatewayServer
from gateway.server.http_app import build_http_app
from gateway.server.sdk_path.lazy_application import Probes
from gateway.storage.records import Records
from gateway.storage.state_folder import StateFolder
from gateway.tasks.task_tools import TaskTools
from gateway.telemetry.gateway_events import EventStream
from gateway.tools.base import Tool
from tests.fakes.wired import lifespan
from tests.server.both_paths import ENVELOPE, META, SCHEMA, Echo, Remote, heads, request

TASKS: dict[str, Any] = {f"{META}clientCapabilities": {"extensions": {f"{META}tasks": {}}}}
PARAMS: dict[str, Any] = {"threadId": "t", "runId": "r", "tools": [], "context": [], "state": {}, "forwardedProps": {}}
RUN: dict[str, Any] = {**PARAMS, "messages": [{"id": "m", "role": "user", "content": "go"}]}

# The exception, its text for the caller, its code, and whether `tools/call` answers with a result with `isError` instead of the code.
FAILURES: list[tuple[Exception, str, int, bool]] = [
    (Rejected("no", server="up", code=-32602, data={"a": 1}), "no", -32602, False),
    (Rejected("no", server="up", code=-5), "Server 'up' refused the call: no", -5, True),
    (OutcomeUnknown("gone", server="up"), "gone", -32603, False),
    (NotFound("tool", "job"), "Unknown tool: job", -32602, False),
    (NotFound("parked call", "", "over"), "over", -32602, True),
    (InputUnavailable("cannot", capability="sampling"), "cannot", -32021, False),
    (InputUnavailable("cannot", capability=""), "cannot", -32603, True),
    (InputExpired("too late"), "too late", -32603, True),
    (ToolFailed("it failed"), "it failed", -32603, False),
    (TaskError("lost"), "lost", -32603, False),
    (StorageUnusable("/secret/state.db is full"), STORAGE_TEXT, -32603, False),
    (PolicyDenied("no", rule="r", subject="s"), "no", -32603, False),
    (PolicyDenied("no", rule=RULE, subject="s"), "no", -32602, False),
    (RuntimeError("the password is hunter2"), "Internal error", -32603, False),
]


class FailingEvents(EventStream):
    """An event stream that raises `error` when the gate reports a call's start, so the exception does not come from the tool."""

    error: Exception

    def emit(self, kind: str, **more: Any) -> None:
        if kind in ("call.started", "call.resumed"):
            raise self.error


class Agents:
    """The agents of an AG-UI route; each agent calls the given tool."""

    def __init__(self, tool: Tool) -> None:
        self._tool = tool

    def conversation(self, name: str, messages: Sequence[Any], tools: Sequence[Tool]) -> Tool | None:
        return self._tool


class Gateway:
    """One gateway that is reached over every path."""

    def __init__(self, folder: Path) -> None:
        self.events = FailingEvents()
        clerk = Echo("clerk", SCHEMA)
        promoted = SourcePolicy.model_validate({"tasks": {"promote": ["job"]}})
        entries = [
            CatalogEntry(Remote("up", [Echo("echo", SCHEMA), Echo("job", SCHEMA)]), promoted, ""),
            CatalogEntry(Remote("agent", [clerk]), SourcePolicy(), "agent", is_local=True),
        ]
        self.catalog = Catalog(entries, GateServices(self.events), name_budget=64, settled=anyio.lowlevel.checkpoint)
        facts: dict[str, Any] = {"name": "t", "version": "1", "own_id": "me", "page_size": 10, "ask_timeout_seconds": 60}
        self.server = GatewayServer(self.catalog, **facts, instructions=lambda caller: "", state_key=bytes(32))
        self.records = Records(StateFolder(folder), audit_days=1)
        self.server.keep_tasks_in(self.records, TaskSettings(), TaskTools())
        agui = self.server.agui_route(Agents(clerk), 50_000)
        where: dict[str, Any] = {"host": "127.0.0.1", "port": 80, "probes": Probes(lambda: True, lambda challenge: "")}
        keys = KeyStore(folder / "keys.json")
        self.apps = {
            "fast": build_http_app(self.server, HttpSettings(), Callers(keys), **where),
            "sdk": build_http_app(self.server, HttpSettings(direct_path="off"), Callers(keys), **where),
            "agui": Starlette(routes=[agui]),
        }

    @asynccontextmanager
    async def running(self) -> AsyncGenerator[Gateway]:
        await self.catalog.refresh()
        try:
            async with self.server, AsyncExitStack() as stack:
                for name in ("fast", "sdk"):
                    await stack.enter_async_context(lifespan(self.apps[name]))
                yield self
        finally:
            await self.records.aclose()

    async def post(self, name: str, path: str, body: Any, headers: dict[str, str]) -> httpx2.Response:
        transport = httpx2.ASGITransport(app=self.apps[name])
        async with httpx2.AsyncClient(transport=transport, base_url="http://127.0.0.1") as client:
            return await client.post(path, json=body, headers=headers)

    async def over_http(self, name: str) -> Any:
        return answer_in((await self.post(name, "/mcp", request(), heads())).text)

    async def over_stdio(self) -> Any:
        said: list[Any] = []
        heard = anyio.Event()

        async def write(data: bytes) -> None:
            said.append(json.loads(data))
            heard.set()

        async with anyio.create_task_group() as tasks:
            talk = LineDispatch(self.server, write, tasks)
            await talk.take(json.dumps(request()).encode())
            await heard.wait()
            await talk.end()
            tasks.cancel_scope.cancel()
        return said[0]

    async def as_task(self) -> Any:
        made = answer_in((await self.post("fast", "/mcp", request(meta=TASKS, name="job"), heads("job"))).text)["result"]
        while True:
            headers = {**heads(made["taskId"]), "mcp-method": "tasks/get"}
            params: Any = {"taskId": made["taskId"], "_meta": {**ENVELOPE, **TASKS}}
            asked = {"jsonrpc": "2.0", "id": 2, "method": "tasks/get", "params": params}
            state = answer_in((await self.post("fast", "/mcp", asked, headers)).text)["result"]
            if state["status"] != "working":
                return state
            await anyio.sleep(0.01)

    async def over_agui(self) -> Any:
        return answer_in((await self.post("agui", "/agui/clerk", RUN, {})).text)


def answer_in(body: str) -> Any:
    """The last message in a response, whether it is JSON or a stream of events."""
    lines = [line.removeprefix("data:") for line in body.splitlines() if line.startswith("data:")]
    return json.loads(lines[-1] if lines else body)


@pytest.mark.timeout(60)
async def test_exception_of_a_call_has_the_same_text_and_code_on_all_paths(tmp_path: Path) -> None:
    with anyio.fail_after(50):
        async with Gateway(tmp_path).running() as gateway:
            for error, text, code, is_result in FAILURES:
                gateway.events.error = error
                calls = [await gateway.over_http("fast"), await gateway.over_http("sdk"), await gateway.over_stdio()]
                task, run = await gateway.as_task(), await gateway.over_agui()
                for answer in calls:
                    if is_result:
                        result = answer["result"]
                        assert (result["content"][0]["text"], result["isError"]) == (text, True), answer
                    else:
                        assert (answer["error"]["message"], answer["error"]["code"]) == (text, code), answer
                assert calls[0] == calls[1] == calls[2]
                assert (task["status"], task["error"]) == ("failed", {"code": code, "message": text})
                assert (run["type"], run["message"], run["code"]) == ("RUN_ERROR", text, str(code))

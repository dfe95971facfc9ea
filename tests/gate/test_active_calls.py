"""A source that is released is left as soon as its last call or read has ended, however each of them ended."""

from __future__ import annotations

from typing import Any

import anyio
import pytest

from gateway.catalog.source_host import AnySource, HostedSource, SourceHost
from gateway.config.policies import SourcePolicy
from gateway.errors import NotFound, PolicyDenied, Rejected
from gateway.gate.concurrency import Limiter
from gateway.gate.pipeline import GateServices, SourceGate
from gateway.gate.reads import Read, ReadGate
from gateway.gate.tool_rules import ToolRules
from gateway.gate.tools import GuardedTool
from gateway.json_types import JsonObject
from gateway.telemetry.gateway_events import EventStream
from gateway.tools.base import Complete, Finished, ToolDefinition, ToolOutcome
from gateway.tools.context import CallContext

NEVER_SECONDS = 3600.0
"""The source's timeout. A source with a call that is still counted would be left only after it."""


class Source:
    """Counts how often it is entered and left."""

    id = "docs"

    def __init__(self) -> None:
        self.left = anyio.Event()

    async def __aenter__(self) -> Source:
        return self

    async def __aexit__(self, *exc: object) -> None:
        self.left.set()


class Scripted:
    """A tool, and the work of a read, that ends as its argument says."""

    definition = ToolDefinition("read", "", {"type": "object", "properties": {"how": {"enum": ["result", "error", "crash", "hang"]}}})

    def __init__(self) -> None:
        self.started = anyio.Event()

    async def call(self, arguments: JsonObject, ctx: CallContext) -> ToolOutcome:
        return Complete(await self.end(str(arguments["how"])))

    async def end(self, how: str) -> JsonObject:
        self.started.set()
        if how == "hang":
            await anyio.sleep_forever()
        if how == "error":
            raise Rejected("no", server="docs", code=-32602)
        if how == "crash":
            raise RuntimeError("a defect")
        return {"content": []} if how == "result" else {}


def gate_of(held: AnySource) -> SourceGate:
    return SourceGate("docs", GateServices(EventStream()), Limiter(1), held.active)


async def call(held: AnySource, tool: Scripted, how: str) -> None:
    guarded = GuardedTool(tool, ToolRules.build(tool.definition, SourcePolicy()), gate_of(held), exposed_name="docs__read")
    await guarded.call({"how": how}, CallContext())


async def read(held: AnySource, tool: Scripted, how: str) -> None:
    async def work(ctx: CallContext) -> Finished:
        return Finished(await tool.end(how))

    await ReadGate(gate_of(held), SourcePolicy()).read(Read(method="resources/read", name="docs://x"), CallContext(), work)


@pytest.mark.parametrize("use", [call, read])
@pytest.mark.parametrize("how", ["result", "error", "crash", "refused", "hang"])
async def test_source_is_closed_when_its_calls_and_reads_ended(use: Any, how: str) -> None:
    source, tool = Source(), Scripted()
    with anyio.fail_after(20):
        async with SourceHost() as hosts:
            held = HostedSource(source, NEVER_SECONDS, None)
            await hosts.start(held)
            async with anyio.create_task_group() as tasks:

                async def run() -> None:
                    try:
                        await use(held, tool, how)
                    except (Rejected, NotFound, PolicyDenied, RuntimeError):
                        pass

                tasks.start_soon(run)
                if how == "hang":
                    await tool.started.wait()
                    held.stop.set()
                    await anyio.wait_all_tasks_blocked()
                    assert not source.left.is_set()
                    tasks.cancel_scope.cancel()
            held.stop.set()
            await source.left.wait()

"""Workflows through the gateway: inputs, outputs and questions to a person, over stdio and HTTP and in both eras."""

from __future__ import annotations

import json
import warnings
from collections.abc import AsyncGenerator, Generator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args

import anyio
import mcp_types as t
import pytest
from mcp.client.client import Client
from mcp.client.stdio import StdioServerParameters

from gateway.storage.records import Records
from gateway.storage.state_folder import StateFolder
from tests.fakes.nursery import sooner
from tests.fakes.running import ROOT, gateway_command, gateway_http, write_config
from tests.interaction.asking_flows import FILES, MODULE
from tests.interaction.ways import MODERN, Era
from tests.interaction.wire import over_http

pytestmark = pytest.mark.timeout(60)
ERAS = get_args(Era)


@dataclass(frozen=True)
class Served:
    url: str
    folder: Path
    config: Path


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Generator[Served]:
    folder = tmp_path_factory.mktemp("workflows")
    (folder / "asking_flows_module.py").write_text(MODULE)
    (folder / "agents").mkdir()
    for name, text in FILES.items():
        (folder / "agents" / f"{name}.workflow.yaml").write_text(text)
    config = {"expose": {"agents": ["agents"]}}
    with gateway_http(folder, config) as url:
        yield Served(url, folder, write_config(folder, config, "stdio"))


class Person:
    """Answers each form by the types of its fields, after `together` questions have arrived."""

    def __init__(self, *, together: int = 1, **answers: Any) -> None:
        self.asked: list[t.ElicitRequestFormParams] = []
        self._answers = answers
        self._together = together
        self._all_there = anyio.Event()

    async def elicit(self, context: Any, params: Any) -> t.ElicitResult:
        self.asked.append(params)
        if len(self.asked) >= self._together:
            self._all_there.set()
        with anyio.fail_after(20):
            await self._all_there.wait()
        fields: dict[str, Any] = params.requested_schema["properties"]
        by_kind = {"boolean": True, "integer": 7, "string": "Ada"}
        values = {name: self._answers.get(name, field.get("enum", [by_kind[field["type"]]])[-1]) for name, field in fields.items()}
        return t.ElicitResult(action="accept", content=values)


@asynccontextmanager
async def client_of(served: Served, era: Era, front: str, person: Person | None) -> AsyncGenerator[Client]:
    command, args = gateway_command(served.config)
    target = served.url if front == "http" else StdioServerParameters(command=command, args=args, cwd=ROOT)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        mode = "legacy" if era == "legacy" else MODERN
        async with Client(target, mode=mode, cache=None, elicitation_callback=person.elicit if person else None) as client:
            yield client


@pytest.mark.requirement("WF9")
@pytest.mark.parametrize("front", ["http", "stdio"])
@pytest.mark.parametrize("era", ERAS)
async def test_concurrent_questions_reach_person_and_answers_the_workflow(served: Served, era: Era, front: str) -> None:
    person = Person(together=2)
    async with client_of(served, era, front, person) as client:
        result = await client.call_tool("workflow__order", {"item": "tea", "count": 2})
    assert not result.is_error, result.content
    assert result.structured_content == {"item": "tea", "total": 14, "approved": True}
    ours = "Workflow 'order' asks:\n│ "
    assert all(params.message.startswith(ours) for params in person.asked)
    asked = {params.message.removeprefix(ours).removeprefix("question: "): params for params in person.asked}
    shown = {message: params.requested_schema["properties"] for message, params in asked.items()}
    assert shown == {
        "Approve tea?": {"approved": {"type": "boolean"}, "size": {"type": "string", "enum": ["small", "large"]}},
        "How much?": {"answer": {"type": "integer"}},
    }


@pytest.mark.requirement("WF9")
@pytest.mark.parametrize("era", ERAS)
async def test_questions_come_in_turn_and_a_declined_answer_counts(served: Served, era: Era) -> None:
    person = Person()
    async with client_of(served, era, "http", person) as client:
        result = await client.call_tool("workflow__page", {"text": "it"})
        assert [params.message for params in person.asked] == [f"Workflow 'page' asks:\n│ {asked}" for asked in ("Publish it?", "Really?")]
        assert result.structured_content == {"ok": True}
        no = await client.call_tool("workflow__order", {"item": "tea", "count": "two"})
    assert no.is_error


@pytest.mark.parametrize("era", ERAS)
async def test_workflow_in_code_takes_start_input_and_returns_its_outputs(served: Served, era: Era) -> None:
    told: list[str | None] = []

    async def note(progress: float, total: float | None, message: str | None) -> None:
        told.append(message)

    async with client_of(served, era, "http", None) as client:
        tools = {tool.name: tool for tool in (await client.list_tools()).tools}
        text = await client.call_tool("workflow__many", {"input": "hi"}, progress_callback=note)
        number = await client.call_tool("workflow__many", {"input": 4})
        failed = await client.call_tool("workflow__many", {"input": [1]})
    kinds = tools["workflow__many"].input_schema["properties"]["input"]["anyOf"]
    assert kinds == [{"type": "string"}, {"type": "integer"}, {"items": {"type": "integer"}, "type": "array"}]
    order = tools["workflow__order"]
    assert (order.input_schema["required"], set(order.input_schema["properties"])) == (["item"], {"item", "count"})
    assert order.output_schema is not None
    assert set(order.output_schema["properties"]) == {"item", "total", "approved"}
    assert [block.text for block in text.content if block.type == "text"] == ["HI", "bye"]
    assert [block.text for block in number.content if block.type == "text"] == ["8", "bye"]
    assert "many: heard hi" in told
    assert failed.is_error
    said = failed.content[0]
    assert said.type == "text"
    assert said.text == "Executor 'many' failed: RuntimeError: a secret"


@pytest.mark.requirement("WF9")
async def test_open_questions_of_a_task_are_listed_and_answered_in_it(served: Served) -> None:
    async with over_http(served.url, "modern") as wire:
        made = (await wire.send("tools/call", name="workflow__order", arguments={"item": "tea"}))["result"]
        assert made["resultType"] == "task"

        async def until(*statuses: str) -> dict[str, Any]:
            with anyio.fail_after(20):
                while True:
                    task = (await wire.send("tasks/get", taskId=made["taskId"]))["result"]
                    if task["status"] in statuses and len(task.get("inputRequests") or "12") == 2:
                        return task
                    await anyio.sleep(0.05)

        asking = await until("input_required")
        kinds = {key: asked["params"]["requestedSchema"]["properties"] for key, asked in asking["inputRequests"].items()}
        answers = {
            key: {"action": "accept", "content": {"answer": 3} if "answer" in fields else {"approved": False}}
            for key, fields in kinds.items()
        }
        await wire.send("tasks/update", taskId=made["taskId"], inputResponses=answers)
        done = await until("completed", "failed")
    assert done["result"]["structuredContent"] == {"item": "tea", "total": 3, "approved": False}


async def waiting(served: Served, count: int) -> dict[str, str]:
    """Wait until `count` questions are open, and return their ids by the names of their form fields."""
    records = Records(StateFolder(served.folder / "gateway-state"), audit_days=1)
    try:
        with anyio.fail_after(20):
            while True:
                rows = await (await records.questions()).list(only_open=True)
                if len(rows) == count:
                    return {",".join((row.form or {})["properties"]): row.id for row in rows}
                await anyio.sleep(0.1)
    finally:
        await records.aclose()


async def approvals(served: Served, *words: str, code: int = 0) -> Any:
    """A command in another process, on the state of the gateway."""
    config = str(served.folder / "gateway.json")
    command, args = sooner("gateway", "approvals", *words, "--json", "--config", config)
    done = await anyio.run_process([command, *args], check=False)
    assert done.returncode == code, done.stderr.decode()
    return json.loads((done.stdout or done.stderr.splitlines()[-1]).decode())


@pytest.mark.requirement("WF9")
async def test_questions_without_elicitation_are_answered_from_a_terminal(served: Served) -> None:
    results: list[Any] = []

    async def call() -> None:
        async with client_of(served, "modern", "http", None) as client:
            results.append(await client.call_tool("workflow__order", {"item": "tea", "count": 2}))

    with anyio.fail_after(50):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(call)
            ids = await waiting(served, 2)
            wrong = await approvals(served, "answer", ids["answer"], "answer=much", code=1)
            assert "answer" in wrong["error"]["message"]
            assert (await approvals(served, "answer", ids["answer"], "answer=5"))["taken"] is True
            await approvals(served, "answer", ids["approved,size"], "approved=true", "size=large")
    assert results[0].structured_content == {"item": "tea", "total": 10, "approved": True}

"""Wrong answers to a workflow's questions, on every path of an answer: the question stays open for a right answer."""

from __future__ import annotations

import json
from collections.abc import Generator
from typing import Any, get_args

import anyio
import mcp_types as t
import pytest

from gateway.tools.questions import MAX_WRONG_ANSWERS
from tests.fakes.nursery import sooner
from tests.fakes.running import gateway_http, write_config
from tests.interaction.test_workflows import Person, Served, client_of, waiting
from tests.interaction.ways import Era
from tests.interaction.wire import Wire, over_http

pytestmark = pytest.mark.timeout(60)
ERAS = get_args(Era)

MODULE = '''
from typing import Annotated
from pydantic import BaseModel, Field, field_validator
from gateway import RunContext, workflow


class Amount(BaseModel):
    count: Annotated[int, Field(gt=0, le=9)]
    colours: list[str] = []

    @field_validator("count")
    @classmethod
    def check(cls, count: int) -> int:
        if count == 7:
            raise LookupError("no luck with seven")
        if count == 5:
            raise ValueError("five is taken")
        return count


@workflow
async def amount(text: str, ctx: RunContext) -> str:
    given = await ctx.request_info("How many?", Amount)
    return f"{given.count} {','.join(given.colours)}"


@workflow
async def number(text: str, ctx: RunContext) -> str:
    return str(await ctx.request_info("How old?", int))
'''


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Generator[Served]:
    folder = tmp_path_factory.mktemp("answers")
    (folder / "wrong_answers_code.py").write_text(MODULE)
    (folder / "agents").mkdir()
    for name in ("amount", "number"):
        (folder / "agents" / f"{name}.workflow.yaml").write_text(f"name: {name}\ndescription: d\npython: wrong_answers_code:{name}\n")
    config = {"expose": {"agents": ["agents"]}}
    with gateway_http(folder, config) as url:
        yield Served(url, folder, write_config(folder, config, "stdio"))


def accept(**content: Any) -> dict[str, Any]:
    return {"action": "accept", "content": content}


async def begin(wire: Wire, era: Era, name: str) -> dict[str, Any]:
    """A task of the workflow that waits for its answer."""
    task: dict[str, Any] = {"task": {}} if era == "legacy" else {}
    made = (await wire.send("tools/call", name=f"workflow__{name}", arguments={"input": "x"}, **task))["result"]
    return await until(wire, (made.get("task") or made)["taskId"], "input_required")


async def until(wire: Wire, task_id: str, *statuses: str) -> dict[str, Any]:
    with anyio.fail_after(20):
        while True:
            task = (await wire.send("tasks/get", taskId=task_id))["result"]
            if task["status"] in statuses:
                return task
            await anyio.sleep(0.05)


def plain(message: str) -> str:
    """A framed question without its marks and line breaks."""
    return " ".join(message.replace("│", " ").split())


async def command(served: Served, *words: str, code: int = 0) -> Any:
    """A command in another process, on the state of the gateway."""
    program, args = sooner("gateway", *words, "--json", "--config", str(served.folder / "gateway.json"))
    done = await anyio.run_process([program, *args], check=False)
    assert done.returncode == code, done.stderr.decode()
    return json.loads((done.stdout or done.stderr.splitlines()[-1]).decode())


async def test_wrong_task_answer_is_an_error_and_question_stays_open(served: Served) -> None:
    async with over_http(served.url, "modern") as wire:
        task = await begin(wire, "modern", "number")
        [key] = task["inputRequests"]
        for wrong, said in (
            (accept(answer="old"), "field 'answer'"),
            (accept(), "field 'answer' is required"),
            ({"action": "maybe"}, "`action` must be"),
            ("forty", "it must be an object"),
        ):
            refused = (await wire.send("tasks/update", taskId=task["taskId"], inputResponses={key: wrong}))["error"]
            assert refused["code"] == -32602
            assert all(text in refused["message"] for text in ("How old?", "answer (integer)", said)), refused
        still = await until(wire, task["taskId"], "input_required", "failed")
        assert (still["status"], list(still["inputRequests"])) == ("input_required", [key])
        await wire.send("tasks/update", taskId=task["taskId"], inputResponses={key: accept(answer=44)})
        done = await until(wire, task["taskId"], "completed", "failed")
    assert done["result"]["content"][0]["text"] == "44"


async def test_answer_rejected_by_workflow_leaves_the_question_open(served: Served) -> None:
    async with over_http(served.url, "modern") as wire:
        task = await begin(wire, "modern", "amount")
        [(key, shown)] = task["inputRequests"].items()
        takes = "It takes count (integer, at most 9), colours (JSON for list[str]: […])."
        wrong = [
            (accept(count=10), "field 'count' is greater than the maximum of 9"),
            (accept(count=3, colours=["red"]), 'field \'colours\' is not of type "string" but an array'),
            (accept(count=3, color="red"), "there is no field 'color'"),
            (accept(count=0), "count: Input should be greater than 0"),
            (accept(count=3, colours="red"), "colours: Input should be a valid list"),
            (accept(count=5), "count: Value error, five is taken"),
            (accept(count=7), "LookupError: no luck with seven"),
        ] + [(accept(count=0), "count: Input should be greater than 0")] * MAX_WRONG_ANSWERS  # a task does not end by wrong answers
        for answer, said in wrong:
            refused = (await wire.send("tasks/update", taskId=task["taskId"], inputResponses={key: answer}))["error"]
            before, _, reason = refused["message"].partition("How many?")
            assert (refused["code"], before.count("answer")) == (-32602, 1), refused
            assert reason[1:] == f" cannot be used: {said}. {takes} The question {key!r} is still open."
            again = await until(wire, task["taskId"], "input_required", "completed", "failed")
            assert (again["status"], again.get("inputRequests")) == ("input_required", {key: shown})
        cli = await command(served, "tasks", "answer", task["taskId"][:12], "count=0", code=1)
        assert "count: Input should be greater than 0" in cli["error"]["message"]
        right = accept(count=2, colours='["red", "blue"]')
        assert "result" in await wire.send("tasks/update", taskId=task["taskId"], inputResponses={key: right})
        done = await until(wire, task["taskId"], "completed", "failed", "input_required")
    assert done["result"]["content"][0]["text"] == "2 red,blue"


@pytest.mark.parametrize(("era", "front"), [("legacy", "http"), ("modern", "http"), ("legacy", "stdio")])
async def test_wrong_client_answer_is_elicited_again_with_the_reason(served: Served, era: Era, front: str) -> None:
    class Careless(Person):
        async def elicit(self, context: Any, params: Any) -> t.ElicitResult:
            self.asked.append(params)
            return t.ElicitResult(action="accept", content={"answer": "old"} if len(self.asked) == 1 else {"answer": 44})

    person = Careless()
    async with client_of(served, era, front, person) as client:
        result = await client.call_tool("workflow__number", {"input": "x"})
    assert getattr(result.content[0], "text", "") == "44"
    again = plain(person.asked[1].message)
    refusal = """Your last answer cannot be used: field 'answer' is not of type "integer" but a string. It takes answer (integer)."""
    assert again == f"Workflow 'number' asks: How old? {refusal}"


@pytest.mark.parametrize("way", ["task_result", "plain call"])
async def test_waiting_client_is_elicited_again_after_workflow_rejection(served: Served, way: str) -> None:
    class Careless(Person):
        async def elicit(self, context: Any, params: Any) -> t.ElicitResult:
            self.asked.append(params)
            return t.ElicitResult(action="accept", content={"count": {1: "many", 2: 0}.get(len(self.asked), 4)})

    person = Careless()
    async with over_http(served.url, "modern") as wire, client_of(served, "legacy", "http", person) as client:
        if way == "plain call":
            result = await client.call_tool("workflow__amount", {"input": "x"})
        else:
            task = await begin(wire, "modern", "amount")
            result = await client.call_tool("task_result", {"task_id": task["taskId"]})
    assert getattr(result.content[0], "text", "") == "4 "
    messages = [plain(params.message) for params in person.asked]
    assert [message.count("cannot be used") for message in messages] == [0, 1, 1], messages
    assert "field 'count'" in messages[1] and "count: Input should be greater than 0" in messages[2]
    assert all(message.startswith("Workflow 'amount' asks: How many?") for message in messages)


async def test_status_and_commands_name_the_question_and_its_answer(served: Served) -> None:
    async with over_http(served.url, "modern") as wire, over_http(served.url, "legacy") as old:
        task = await begin(wire, "modern", "number")
        task_id = task["taskId"]
        answer = f"moongate tasks answer {task_id[:12]} answer=…"
        for told in (task, (await old.send("tasks/get", taskId=task_id))["result"]):
            assert told["statusMessage"].startswith("input_required: ") and "How old?" in told["statusMessage"]
            assert answer in told["statusMessage"]
        status = (await wire.send("tools/call", name="task_status", arguments={"task_id": task_id}))["result"]["structuredContent"]
        assert status["status"] == "input_required" and "How old?" in status["questions"][0]
        assert "task_result" in status["answerWith"][0] and answer in status["answerWith"]
        shown = await command(served, "tasks", "show", task_id[:12])
        [listed] = [row for row in (await command(served, "tasks", "list", "--status", "input_required"))["tasks"] if row["id"] == task_id]
        assert shown["answerWith"] == listed["answerWith"] == [answer]
        wrong = await command(served, "tasks", "answer", task_id[:12], "answer:=[1]", code=1)
        assert "field 'answer'" in wrong["error"]["message"] and "integer" in wrong["error"]["message"]
        misspelled = await command(served, "tasks", "answer", task_id[:12], "anwser=45", code=1)
        assert "no field 'anwser'. Did you mean 'answer'" in misspelled["error"]["message"]
        await command(served, "tasks", "answer", task_id[:12], "answer=45")
        done = await until(wire, task_id, "completed", "failed")
        late = await command(served, "tasks", "answer", task_id[:12], "answer=46", code=1)
        assert late["error"]["message"] == f"Task {task_id[:12]} is completed and has no open question."
    assert done["result"]["content"][0]["text"] == "45"


@pytest.mark.parametrize("era", ERAS)
async def test_task_of_client_without_elicitation_names_the_list_entry(served: Served, era: Era) -> None:
    async with over_http(served.url, era, capabilities={}) as wire:
        task: dict[str, Any] = {"task": {}} if era == "legacy" else {}
        made = (await wire.send("tools/call", name="workflow__number", arguments={"input": "x"}, **task))["result"]
        task_id = (made.get("task") or made)["taskId"]
        [ask_id] = (await waiting(served, 1)).values()
        answer = f"moongate approvals answer {ask_id} answer=…"
        status: dict[str, Any] = {}
        with anyio.fail_after(20):
            while "statusMessage" not in status:  # set after the question is in the list
                asked = await wire.send("tools/call", name="task_status", arguments={"task_id": task_id})
                status = asked["result"]["structuredContent"]
        assert (status["status"], status["answerWith"]) == ("input_required", [answer])
        assert status["statusMessage"].startswith("input_required: ") and f"moongate approvals answer {ask_id}" in status["statusMessage"]
        told = (await wire.send("tasks/get", taskId=task_id))["result"]
        assert told["status"] == "working", "its client cannot answer it"
        assert told["statusMessage"] == status["statusMessage"]
        assert (await command(served, "tasks", "show", task_id[:12]))["answerWith"] == [answer]
        await command(served, "approvals", "answer", ask_id, "answer=46")
        done = await until(wire, task_id, "completed", "failed")
        assert (done["status"], done["statusMessage"]) == ("completed", "Completed")

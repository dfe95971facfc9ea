"""Long-running tasks of a remote server, followed by a program's `MCPTool`: a real process that answers as scripted."""

from __future__ import annotations

import dataclasses
import json
import logging
import sys
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any, cast

import anyio
import pytest

from gateway import CallContext, MCPStdioTool, MCPTaskOptions, MCPTool
from gateway.errors import GatewayError, TaskError, ToolFailed
from gateway.json_types import JsonObject
from gateway.upstream.input_guard import Answered, Relayed
from gateway.upstream.task_follower import Resends, TaskFollower, poll_seconds
from tests.fakes.running import ROOT

pytestmark = pytest.mark.anyio

DONE = {"result": {"content": [{"type": "text", "text": "the result"}]}}
NOT_FOUND = {"error": {"code": -32601, "message": "no tasks here"}}
LATE = {"error": {"code": 408, "message": "Timed out"}}
CREATED = {"result": {"task": {"taskId": "t1", "status": "working", "createdAt": "2026-01-01T00:00:00Z", "pollInterval": 1}}}


def state(status: str, **more: Any) -> dict[str, Any]:
    return {"result": {"taskId": "t1", "status": status, **more}}


class Server:
    """A scripted server and what reached it."""

    def __init__(self, folder: Path, *, modern: bool = False, support: str | None = "required", **script: list[Any]) -> None:
        self._log = folder / "requests.jsonl"
        told = {"support": support, **{name.replace("_", "/"): answers for name, answers in script.items()}}
        flags = ["--modern"] if modern else []
        self.args = ["-m", "tests.fakes.task_script", *flags, "--log", str(self._log), json.dumps(told)]

    def requests(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self._log.read_text().splitlines()] if self._log.exists() else []

    def methods(self) -> list[str]:
        return [request["method"] for request in self.requests()]

    def count(self, method: str) -> int:
        return self.methods().count(method)

    @asynccontextmanager
    async def tool(self, options: MCPTaskOptions | None = None, **more: Any) -> AsyncGenerator[MCPTool]:
        with anyio.fail_after(30):
            async with MCPStdioTool("s", command=sys.executable, args=self.args, cwd=str(ROOT), task_options=options, **more) as tool:
                yield tool

    async def call(self, options: MCPTaskOptions | None = None, **arguments: Any) -> str:
        async with self.tool(options) as tool:
            return text_of(await tool.call_tool("job", **arguments))


def text_of(contents: Any) -> str:
    return contents if isinstance(contents, str) else "".join(str(content.text) for content in contents)


async def until_polled(server: Server) -> None:
    while "tasks/get" not in server.methods():
        await anyio.sleep(0.02)


# -- options ---------------------------------------------------------------------------------------------------------


@pytest.mark.requirement(52)
async def test_task_options_are_immutable_and_none_restores_the_defaults() -> None:
    options = MCPTaskOptions(default_ttl=timedelta(seconds=2))
    with pytest.raises(dataclasses.FrozenInstanceError):
        options.default_ttl = None  # type: ignore[misc]
    tool = MCPStdioTool("s", command="true", task_options=options)
    assert tool.task_options is options
    other = MCPTaskOptions(max_task_wait=timedelta(seconds=1))
    tool.task_options = other
    assert tool.task_options is other
    tool.task_options = None
    assert tool.task_options == MCPTaskOptions()


@pytest.mark.requirement(53)
async def test_task_defaults_have_no_ttl_and_no_longest_wait() -> None:
    defaults = MCPTaskOptions()
    assert (defaults.default_ttl, defaults.cancel_remote_task_on_local_cancellation, defaults.max_task_wait) == (None, True, None)


@pytest.mark.requirement(54)
@pytest.mark.parametrize("seconds", [0, -1])
@pytest.mark.parametrize("name", ["default_ttl", "max_task_wait"])
async def test_times_that_are_not_positive_are_refused(name: str, seconds: int) -> None:
    given: dict[str, Any] = {name: timedelta(seconds=seconds)}
    with pytest.raises(ValueError, match=name):
        MCPTaskOptions(**given)
    with pytest.raises(TypeError, match=f"{name} must be a timedelta.*not int"):
        MCPTaskOptions(**{name: cast("Any", seconds)})


@pytest.mark.requirement(55)
async def test_tasks_are_not_declared_for_a_program_that_runs_none(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, logger="gateway.upstream.task_follower")
    plain = Server(tmp_path, support=None, tools_call=[DONE])
    await plain.call(MCPTaskOptions(default_ttl=timedelta(seconds=5)))
    assert [r for r in caplog.records if r.name == "gateway.upstream.task_follower"] == []
    (tmp_path / "requests.jsonl").unlink()
    await Server(tmp_path, tools_call=[CREATED], tasks_get=[state("completed")], tasks_result=[DONE]).call()
    assert ["experimental" in r.getMessage() for r in caplog.records if r.name == "gateway.upstream.task_follower"] == [True]


# -- starting --------------------------------------------------------------------------------------------------------


@pytest.mark.requirement(56)
@pytest.mark.parametrize("support", ["optional", "forbidden", None])
async def test_only_a_tool_that_requires_a_task_is_called_as_one(support: str | None, tmp_path: Path) -> None:
    server = Server(tmp_path, support=support, tools_call=[DONE])
    assert await server.call() == "the result"
    assert ["task" in request["params"] for request in server.requests()] == [False]


@pytest.mark.requirement(57)
@pytest.mark.parametrize(("ttl", "sent"), [(None, {}), (timedelta(seconds=1.5), {"ttl": 1500}), (timedelta(microseconds=1500), {"ttl": 1})])
async def test_the_call_of_a_task_always_carries_its_settings(ttl: timedelta | None, sent: dict[str, int], tmp_path: Path) -> None:
    server = Server(tmp_path, tools_call=[CREATED], tasks_get=[state("completed")], tasks_result=[DONE])
    await server.call(MCPTaskOptions(default_ttl=ttl))
    assert server.requests()[0]["params"]["task"] == sent


@pytest.mark.requirement(58)
@pytest.mark.requirement("MC8", 66)
@pytest.mark.requirement(71)
@pytest.mark.requirement(86)
async def test_task_is_polled_until_done_and_its_result_read_once(tmp_path: Path) -> None:
    server = Server(tmp_path, tools_call=[CREATED], tasks_get=[state("working"), state("completed")], tasks_result=[DONE])
    assert await server.call(of="x") == "the result"
    assert server.methods() == ["tools/call", "tasks/get", "tasks/get", "tasks/result"]
    assert server.requests()[0]["params"]["arguments"] == {"of": "x"}
    assert {request["params"].get("taskId") for request in server.requests()[1:]} == {"t1"}


@pytest.mark.requirement(59)
async def test_plain_result_instead_of_a_task_is_returned_unchanged(tmp_path: Path) -> None:
    server = Server(tmp_path, tools_call=[DONE])
    assert await server.call() == "the result"
    assert server.methods() == ["tools/call"]


@pytest.mark.requirement(59)
async def test_plain_error_result_raises(tmp_path: Path) -> None:
    server = Server(tmp_path, tools_call=[{"result": {"content": [{"type": "text", "text": "no luck"}], "isError": True}}])
    with pytest.raises(ToolFailed, match="no luck"):
        await server.call()
    assert server.methods() == ["tools/call"]


@pytest.mark.parametrize(
    "code", [pytest.param(-32601, marks=pytest.mark.requirement(60)), pytest.param(-32602, marks=pytest.mark.requirement(61))]
)
async def test_server_without_tasks_is_called_plainly_once(code: int, tmp_path: Path) -> None:
    server = Server(tmp_path, tools_call=[{"error": {"code": code, "message": "no"}}, DONE])
    async with server.tool() as tool:
        assert text_of(await tool.call_tool("job", of="x", _meta={"example.com/k": "v"})) == "the result"
    first, second = (request["params"] for request in server.requests())
    assert first.pop("task") == {}
    for params in (first, second):
        params["_meta"].pop("progressToken", None)
    assert first == second


@pytest.mark.requirement(62)
async def test_any_other_refusal_is_raised(tmp_path: Path) -> None:
    server = Server(tmp_path, tools_call=[{"error": {"code": -32000, "message": "busy today"}}, DONE])
    with pytest.raises(GatewayError, match="busy today"):
        await server.call()
    assert server.methods() == ["tools/call"]


@pytest.mark.requirement(63)
async def test_response_that_is_neither_result_nor_task_is_an_error(tmp_path: Path) -> None:
    server = Server(tmp_path, tools_call=[{"result": {"hello": 1}}, DONE])
    with pytest.raises(GatewayError, match="neither"):
        await server.call()
    assert server.methods() == ["tools/call"]


@pytest.mark.requirement(64)
async def test_connection_lost_before_the_task_id_is_not_retried(tmp_path: Path) -> None:
    server = Server(tmp_path, tools_call=["die", CREATED])
    with pytest.raises(GatewayError, match="unknown"):
        await server.call()
    assert server.methods() == ["tools/call"]


@pytest.mark.requirement(87)
async def test_without_loaded_tools_nothing_is_sent(tmp_path: Path) -> None:
    server = Server(tmp_path, tools_call=[CREATED])
    async with server.tool(load_tools=False) as tool:
        with pytest.raises(ToolFailed, match="not loaded"):
            await tool.call_tool("job")
    assert server.methods() == []


# -- polling ---------------------------------------------------------------------------------------------------------


@pytest.mark.requirement(67)
@pytest.mark.parametrize(("told", "seconds"), [(None, 0.5), (0, 0.5), (-3, 0.5), (50, 0.5), (1200, 1.2), (60_000, 5.0), ("soon", 0.5)])
@pytest.mark.parametrize("key", ["pollInterval", "pollIntervalMs"])
async def test_the_wait_between_polls_is_the_servers_within_bounds(key: str, told: Any, seconds: float) -> None:
    assert poll_seconds({} if told is None else {key: told}) == seconds


@pytest.mark.requirement(68)
async def test_poll_that_timed_out_is_repeated(tmp_path: Path) -> None:
    server = Server(tmp_path, tools_call=[CREATED], tasks_get=[LATE, LATE, LATE, state("completed")], tasks_result=[DONE])
    assert await server.call() == "the result"
    assert (server.count("tasks/get"), server.count("tools/call"), server.count("tasks/cancel")) == (4, 1, 0)


@pytest.mark.parametrize(
    "answer",
    [
        pytest.param({"error": {"code": -32000, "message": "broken"}}, marks=pytest.mark.requirement(69)),
        pytest.param({"result": {"nothing": True}}, marks=pytest.mark.requirement(70)),
        pytest.param(state("dreaming"), marks=pytest.mark.requirement(70)),
    ],
)
async def test_unusable_poll_response_abandons_and_cancels_the_task(answer: Any, tmp_path: Path) -> None:
    server = Server(tmp_path, tools_call=[CREATED], tasks_get=[answer], tasks_cancel=[state("cancelled")])
    with pytest.raises(ToolFailed):
        await server.call()
    assert server.methods() == ["tools/call", "tasks/get", "tasks/cancel"]


@pytest.mark.requirement(65)
@pytest.mark.requirement(72)
async def test_server_that_dies_once_while_polled_is_restarted(tmp_path: Path) -> None:
    server = Server(tmp_path, tools_call=[CREATED], tasks_get=["die", state("working"), state("completed")], tasks_result=[DONE])
    assert await server.call() == "the result"
    assert server.methods() == ["tools/call", "tasks/get", "tasks/get", "tasks/get", "tasks/result"]


@pytest.mark.requirement(65)
@pytest.mark.requirement(73)
async def test_server_that_dies_twice_while_polled_is_given_up(tmp_path: Path) -> None:
    server = Server(tmp_path, tools_call=[CREATED], tasks_get=["die", "die"], tasks_cancel=[state("cancelled")])
    with pytest.raises(ToolFailed, match="lost"):
        await server.call()
    assert server.methods() == ["tools/call", "tasks/get", "tasks/get", "tasks/cancel"]


@pytest.mark.requirement(73)
async def test_server_that_dies_again_after_a_good_poll_is_given_up(tmp_path: Path) -> None:
    server = Server(tmp_path, tools_call=[CREATED], tasks_get=["die", state("working"), "die", "die"], tasks_cancel=[state("cancelled")])
    with pytest.raises(ToolFailed, match="lost"):
        await server.call()
    assert server.methods() == ["tools/call", *["tasks/get"] * 3, "tasks/cancel"]


# -- the result ------------------------------------------------------------------------------------------------------


@pytest.mark.requirement(74)
async def test_server_that_dies_once_during_the_result_read_is_restarted(tmp_path: Path) -> None:
    server = Server(tmp_path, tools_call=[CREATED], tasks_get=[state("completed")], tasks_result=["die", DONE])
    assert await server.call() == "the result"
    assert server.methods() == ["tools/call", "tasks/get", "tasks/result", "tasks/result"]


@pytest.mark.requirement(75)
async def test_server_that_dies_twice_during_the_result_read_is_given_up(tmp_path: Path) -> None:
    server = Server(tmp_path, tools_call=[CREATED], tasks_get=[state("completed")], tasks_result=["die"], tasks_cancel=[state("cancelled")])
    with pytest.raises(ToolFailed, match="lost"):
        await server.call()
    assert server.methods() == ["tools/call", "tasks/get", "tasks/result", "tasks/result", "tasks/cancel"]


@pytest.mark.parametrize(
    ("answer", "text"),
    [
        pytest.param(LATE, "Timed out", marks=pytest.mark.requirement(76)),
        pytest.param({"error": {"code": -32603, "message": "broken"}}, "broken", marks=pytest.mark.requirement(76)),
        pytest.param({"result": {"content": "?"}}, "cannot be read", marks=pytest.mark.requirement(77)),
        pytest.param(
            {"result": {"content": [{"type": "text", "text": "one"}, {"type": "text", "text": "two"}], "isError": True}},
            "one(?s:.)*two",
            marks=pytest.mark.requirement(78),
        ),
    ],
)
async def test_malformed_task_result_is_an_error(answer: Any, text: str, tmp_path: Path) -> None:
    server = Server(tmp_path, tools_call=[CREATED], tasks_get=[state("completed")], tasks_result=[answer, DONE])
    with pytest.raises(ToolFailed, match=text):
        await server.call()
    assert server.methods() == ["tools/call", "tasks/get", "tasks/result"]


@pytest.mark.requirement(79)
@pytest.mark.parametrize("modern", [False, True])
@pytest.mark.parametrize(
    ("status", "message", "text"),
    [
        ("failed", "disk full", "disk full"),
        ("cancelled", "by the owner", "by the owner"),
        ("input_required", "a name, please", "a name, please"),
        ("input_required", None, "needs input|does not answer"),
    ],
)
async def test_unsuccessful_task_fails_with_its_name_status_and_message(
    modern: bool, status: str, message: str | None, text: str, tmp_path: Path
) -> None:
    said = {} if message is None else {"statusMessage": message}
    ask: dict[str, Any] = {"method": "elicitation/create", "params": {"message": "?", "requestedSchema": {}}}
    asks: dict[str, Any] = {"inputRequests": {"k": ask}} if modern else {}
    created = MODERN if modern else CREATED
    server = Server(tmp_path, modern=modern, tools_call=[created], tasks_get=[state(status, **said, **asks)])
    with pytest.raises(ToolFailed, match=rf"job.*{status}.*{text}"):
        await server.call()
    assert server.methods() == ["tools/call", "tasks/get", *(["tasks/cancel"] if status == "input_required" else [])]


# -- giving up -------------------------------------------------------------------------------------------------------


@pytest.mark.requirement(80)
@pytest.mark.parametrize(("wanted", "cancels"), [(True, 1), (False, 0)])
async def test_cancelling_the_call_cancels_the_task_if_that_is_wanted(wanted: bool, cancels: int, tmp_path: Path) -> None:
    server = Server(tmp_path, tools_call=[CREATED], tasks_get=[state("working")], tasks_cancel=[state("cancelled")])
    async with server.tool(MCPTaskOptions(cancel_remote_task_on_local_cancellation=wanted)) as tool:
        seen: list[BaseException] = []

        async def call() -> None:
            try:
                await tool.call_tool("job")
            except BaseException as error:
                seen.append(error)
                raise

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(call)
            await until_polled(server)
            tasks.cancel_scope.cancel()
        assert [isinstance(error, anyio.get_cancelled_exc_class()) for error in seen] == [True]
    assert (server.count("tasks/cancel"), server.count("tools/call")) == (cancels, 1)


@pytest.mark.requirement(81)
@pytest.mark.requirement(82)
@pytest.mark.parametrize("answer", [state("working"), "hang", LATE])
async def test_task_over_its_time_is_given_up_and_always_cancelled(answer: Any, tmp_path: Path) -> None:
    server = Server(tmp_path, tools_call=[CREATED], tasks_get=[answer], tasks_cancel=[state("cancelled")])
    options = MCPTaskOptions(max_task_wait=timedelta(seconds=0.8), cancel_remote_task_on_local_cancellation=False)
    with pytest.raises(ToolFailed, match=r"0\.8 s"):
        await server.call(options)
    assert (server.count("tasks/cancel"), server.count("tools/call")) == (1, 1)


class LateLine:
    """A connection to a server that raises a local timeout while a task is polled."""

    def __init__(self) -> None:
        self.sent: list[str] = []

    async def send(
        self, method: str, params: JsonObject, ctx: CallContext, headers: Mapping[str, str] | None = None, resends: Resends | None = None
    ) -> JsonObject:
        self.sent.append(method)
        if method == "tasks/get":
            raise TimeoutError("the proxy was slow")
        return {}

    async def judge_input_request(self, request: JsonObject, ctx: CallContext) -> Relayed | Answered:
        return Relayed(request)

    async def answer_input_request(self, request: JsonObject, key: str, ctx: CallContext) -> JsonObject:
        return {}


@pytest.mark.requirement(83)
@pytest.mark.parametrize("limit", [None, timedelta(seconds=20)])
async def test_inner_timeout_is_reported_as_itself_and_not_as_the_deadline(limit: timedelta | None) -> None:
    line = LateLine()
    follower = TaskFollower("s", line, MCPTaskOptions(max_task_wait=limit))
    with anyio.fail_after(20), pytest.raises(TaskError) as caught:
        await follower.follow("job", {"taskId": "t1", "status": "working"}, CallContext(), "modern")
    assert "the proxy was slow" in str(caught.value)
    assert "limit" not in str(caught.value)
    assert line.sent == ["tasks/get", "tasks/cancel"]


@pytest.mark.requirement(84)
@pytest.mark.parametrize("answer", [{"error": {"code": -32000, "message": "will not"}}, "hang"])
@pytest.mark.faults
async def test_failing_or_hanging_cancel_request_is_one_warning(answer: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    server = Server(tmp_path, tools_call=[CREATED], tasks_get=[{"error": {"code": -32000, "message": "first"}}], tasks_cancel=[answer])
    with pytest.raises(ToolFailed, match="first"):
        await server.call()
    warnings = [r.getMessage() for r in caplog.records if r.name == "gateway.upstream.task_follower" and r.levelno == logging.WARNING]
    assert [("t1" in text) for text in warnings] == [True]


@pytest.mark.requirement(85)
async def test_closing_the_connection_waits_for_a_running_cancel_request(tmp_path: Path) -> None:
    server = Server(tmp_path, tools_call=[CREATED], tasks_get=[state("working")], tasks_cancel=[state("cancelled")])
    async with anyio.create_task_group() as tasks:
        async with server.tool() as tool:
            tasks.start_soon(tool.call_tool, "job")
            await until_polled(server)
            tasks.cancel_scope.cancel()
    assert server.count("tasks/cancel") == 1


# -- the modern dialect ----------------------------------------------------------------------------------------------

MODERN = {"result": {"resultType": "task", "taskId": "t1", "status": "working", "ttlMs": None, "pollIntervalMs": 1}}


@pytest.mark.requirement(88)
async def test_modern_task_is_followed_and_its_result_is_in_the_last_poll(tmp_path: Path) -> None:
    done = state("completed", result=DONE["result"])
    server = Server(tmp_path, modern=True, support=None, tools_call=[MODERN], tasks_get=[state("working"), done])
    assert await server.call() == "the result"
    assert server.methods() == ["tools/call", "tasks/get", "tasks/get"]
    declared = server.requests()[0]["params"]["_meta"]["io.modelcontextprotocol/clientCapabilities"]
    assert "io.modelcontextprotocol/tasks" in declared["extensions"]


@pytest.mark.requirement(88)
async def test_modern_task_survives_one_server_death_but_not_two(tmp_path: Path) -> None:
    server = Server(tmp_path, modern=True, tools_call=[MODERN], tasks_get=["die", "die"], tasks_cancel=[{"result": {}}])
    with pytest.raises(ToolFailed, match="lost"):
        await server.call()
    assert server.methods() == ["tools/call", "tasks/get", "tasks/get", "tasks/cancel"]


@pytest.mark.requirement(88)
async def test_task_whose_request_nobody_can_answer_is_cancelled(tmp_path: Path) -> None:
    form: Any = {"method": "elicitation/create", "params": {"message": "?", "requestedSchema": {"type": "object", "properties": {}}}}
    asking = state("input_required", inputRequests={"q": form})
    server = Server(tmp_path, modern=True, tools_call=[MODERN], tasks_get=[asking], tasks_cancel=[{"result": {}}])
    with pytest.raises(ToolFailed, match="input_required"):
        await server.call()
    assert server.methods() == ["tools/call", "tasks/get", "tasks/cancel"]

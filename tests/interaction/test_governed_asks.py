"""Sampling and calls under a person's or the operator's control, with both client eras and both kinds of server, over real sockets."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import AsyncGenerator, Generator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
import mcp_types as t
import pytest
from mcp.client.client import Client

from tests.cli.processes import moongate
from tests.fakes.openai_server import ScriptedServer, openai_server
from tests.fakes.running import gateway_http, upstream_http, upstream_stdio
from tests.interaction.ways import MODERN, Era

pytestmark = [pytest.mark.timeout(60)]
ERAS: list[Era] = ["legacy", "modern"]
SERVERS = [pytest.param((), id="new-upstream"), pytest.param(("--legacy",), id="old-upstream")]
PARIS: dict[str, Any] = {"text": "Paris", "repeat": True}


@pytest.fixture
def model() -> Generator[ScriptedServer]:
    with openai_server(PARIS) as server:
        yield server


def env(model: ScriptedServer) -> dict[str, str]:
    return {"OPENAI_BASE_URL": model.base_url, "OPENAI_API_KEY": "sk-test", "OPENAI_MODEL": "scripted"}


def config(url: str, **policy: Any) -> dict[str, Any]:
    return {"mcpServers": {"up": {"type": "http", "url": url}}, "policies": {"up": policy}}


@asynccontextmanager
async def client_of(url: str, era: Era, decision: str | None, asked: list[Any]) -> AsyncGenerator[Client]:
    """A client whose person answers approvals with `decision`; with `None` it has no forms."""

    async def elicit(context: Any, params: Any) -> t.ElicitResult:
        asked.append(params)
        return t.ElicitResult(action="accept", content={"decision": decision or "decline"})

    mode = "legacy" if era == "legacy" else MODERN
    async with Client(url, mode=mode, cache=None, elicitation_callback=elicit if decision else None) as client:
        yield client


def text(result: Any) -> str:
    return result.content[0].text


def audit(folder: Path) -> list[dict[str, Any]]:
    done = moongate("audit", "--json", "--config", str(folder / "gateway.json"), cwd=folder)
    return done.data["entries"]


@pytest.mark.parametrize("upstream", SERVERS)
@pytest.mark.parametrize("era", ERAS)
@pytest.mark.requirement("MC7", 28, 36, 39, 40, 41, 46, 48, 49, 51)
@pytest.mark.attack(16)
async def test_configured_model_samples_within_cap_without_logging_text(
    tmp_path: Path, model: ScriptedServer, era: Era, upstream: tuple[str, ...]
) -> None:
    with upstream_http(*upstream) as url:
        rules = config(url, sampling={"mode": "answer", "maxTokens": 50, "maxRequests": 2})
        with gateway_http(tmp_path, rules, env=env(model)) as front:
            async with client_of(front, era, None, []) as client:
                results = [await client.call_tool("up__ask_model", {}) for _ in range(3)]
    assert [text(r) for r in results[:2]] == ["Paris", "Paris"]
    assert (results[2].is_error and "sampling.maxRequests" in text(results[2])) or "budget" in text(results[2])
    requests = [r["body"] for r in await model.requests()]
    assert [body.get("max_completion_tokens", body.get("max_tokens")) for body in requests] == [50, 50]
    assert all(not body.get("tools") and len(body["messages"]) == 1 for body in requests)
    log = (tmp_path / "gateway.log").read_text()
    assert "max_tokens=100000 used=0 limit=2" in log and "max_tokens=100000 capped=50" in log
    assert "sampling refused" in log and "rule=sampling.maxRequests" in log
    assert "Capital of France" not in log and "Paris" not in log
    judged = [e for e in audit(tmp_path) if e["kind"] == "ask.judged"]
    lines = [(e["source"], e["outcome"], e.get("reason"), e["tokenCap"], e["maxTokens"]) for e in judged]
    assert lines == [("up", "answered", None, 50, 50)] * 2 + [("up", "refused", "sampling.maxRequests", 50, None)]


@pytest.mark.parametrize("upstream", SERVERS)
@pytest.mark.parametrize("era", ERAS)
@pytest.mark.parametrize("decision", ["approve", "decline"])
@pytest.mark.requirement(47, 48)
async def test_each_sampling_request_is_put_to_the_person_first(
    tmp_path: Path, model: ScriptedServer, era: Era, upstream: tuple[str, ...], decision: str
) -> None:
    asked: list[Any] = []
    with upstream_http(*upstream) as url, gateway_http(tmp_path, config(url, sampling={"mode": "ask"}), env=env(model)) as front:
        async with client_of(front, era, decision, asked) as client:
            result = await client.call_tool("up__ask_model", {})
    assert "'up' wants to use a model (up to 4096 tokens)" in asked[0].message
    assert "user: Capital of France?" in asked[0].message
    assert (text(result) == "Paris") is (decision == "approve")
    assert len(await model.requests()) == (decision == "approve")


@pytest.mark.requirement(47)
async def test_sampling_without_forms_is_rejected_unless_operator_decides(tmp_path: Path, model: ScriptedServer) -> None:
    servers = {"new": upstream_stdio(), "old": upstream_stdio("--legacy"), "listed": upstream_stdio("--legacy")}
    policies: dict[str, Any] = {name: {"sampling": {"mode": "ask"}} for name in servers}
    policies["listed"]["approval"] = {"by": "operator"}
    path = ("--config", str(tmp_path / "gateway.json"))
    told: list[str] = []
    with gateway_http(tmp_path, {"mcpServers": servers, "policies": policies}, env=env(model)) as front:
        for era in ERAS:
            async with client_of(front, era, None, []) as client:
                for name in ("new", "old"):
                    result: Any = await client.call_tool(f"{name}__ask_model", {})
                    told.append(text(result) if result.is_error else "")
        assert await model.requests() == []
        async with client_of(front, "legacy", None, []) as client, anyio.create_task_group() as tasks:

            async def call() -> None:
                told.append(text(await client.call_tool("listed__ask_model", {})))

            def approve() -> None:
                while not (waiting := moongate("approvals", "list", "--json", *path, cwd=tmp_path).data["approvals"]):
                    pass
                assert moongate("approvals", "approve", waiting[0]["id"], "--json", *path, cwd=tmp_path).data["taken"]

            tasks.start_soon(call)
            with anyio.fail_after(40):
                await anyio.to_thread.run_sync(approve)
    for said, name in zip(told, ("new", "old", "new", "old"), strict=False):
        assert f"policies.{name}.sampling.mode" in said and f"policies.{name}.approval.by" in said, told
    assert told[4:] == ["Paris"]


@pytest.mark.requirement(36, 38)
@pytest.mark.attack(16)
async def test_the_budget_holds_over_a_restart_of_the_gateway(tmp_path: Path, model: ScriptedServer) -> None:
    """The budget counts per configuration file: the third gateway has another file and the same state folder."""
    outcomes: list[bool] = []
    state = {"storage": {"dir": str(tmp_path / "state")}}
    with upstream_http() as url:
        settings = {**config(url, sampling={"mode": "answer", "maxRequests": 1}), **state}
        for name in ("gateway", "gateway", "other"):
            with gateway_http(tmp_path, settings, name, env=env(model)) as front:
                async with client_of(front, "modern", None, []) as client:
                    outcomes.append(bool((await client.call_tool("up__ask_model", {})).is_error))
    assert outcomes == [False, True, False]


@pytest.mark.requirement(28)
@pytest.mark.parametrize("upstream", SERVERS)
async def test_sampling_is_not_announced_where_no_model_could_answer(tmp_path: Path, upstream: tuple[str, ...]) -> None:
    empty = {"OPENAI_BASE_URL": "", "OPENAI_API_KEY": "", "OPENAI_MODEL": ""}
    with upstream_http(*upstream) as url, gateway_http(tmp_path, config(url, sampling={"mode": "answer"}), env=empty) as front:
        async with client_of(front, "modern", None, []) as client:
            seen: Any = (await client.call_tool("up__who", {})).structured_content
            result = await client.call_tool("up__ask_model", {})
    assert "sampling" not in seen["capabilities"]
    assert result.is_error
    assert "no model is configured" in (tmp_path / "gateway.log").read_text()


@pytest.mark.parametrize("upstream", SERVERS)
@pytest.mark.parametrize("era", ERAS)
async def test_call_runs_only_after_the_person_approves(tmp_path: Path, era: Era, upstream: tuple[str, ...]) -> None:
    rules = {"always": ["e*"], "never": ["extra*"]}
    with upstream_http(*upstream) as url, gateway_http(tmp_path, config(url, approval=rules)) as front:
        outcomes: list[tuple[bool, int]] = []
        for decision in ("decline", "approve"):
            asked: list[Any] = []
            async with client_of(front, era, decision, asked) as client:
                result: Any = await client.call_tool("up__echo", {"text": "h\u202ei"})
                stats: Any = (await client.call_tool("up__stats", {})).structured_content
            assert asked[0].message.startswith("Approve this call of 'echo' of 'up'?") and "text: hi" in asked[0].message
            outcomes.append((bool(result.is_error), stats["calls"].get("echo", 0)))
            if decision == "decline":
                assert result.meta["dev.moongate/rule"] == "approval"
    assert outcomes == [(True, 0), (False, 1)]


@pytest.mark.parametrize("decision", ["approve", "deny"])
@pytest.mark.parametrize("era", ERAS)
async def test_client_without_forms_waits_for_answer_from_another_process(tmp_path: Path, era: Era, decision: str) -> None:
    path = ("--config", str(tmp_path / "gateway.json"))
    with upstream_http() as url, gateway_http(tmp_path, config(url, approval="always", timeoutSeconds=1)) as front:
        async with client_of(front, era, None, []) as client:
            results: list[Any] = []
            said: list[Any] = []

            async def call() -> None:
                results.append(await client.call_tool("up__echo", {"text": "hello"}))

            def answer() -> Any:
                while not (waiting := moongate("approvals", "list", "--json", *path, cwd=tmp_path).data["approvals"]):
                    pass
                shown = moongate("approvals", "show", waiting[0]["id"], *path, cwd=tmp_path).out
                return shown, moongate("approvals", decision, waiting[0]["id"], "--json", *path, cwd=tmp_path).data

            with anyio.fail_after(40):
                async with anyio.create_task_group() as tasks:
                    tasks.start_soon(call)
                    said.extend(await anyio.to_thread.run_sync(answer))
    shown, answered = said
    assert "'echo' of 'up'" in shown and "text: hello" in shown
    assert results[0].is_error is (decision == "deny")
    assert answered["taken"] is (decision == "approve")
    assert [e["outcome"] for e in audit(tmp_path) if e["kind"] == "approval.decided"] == ["approved" if decision == "approve" else "denied"]
    assert moongate("audit", "--verify", *path, cwd=tmp_path).code == 0


async def test_unanswered_question_ends_in_readable_rejection(tmp_path: Path) -> None:
    with upstream_http() as url:
        with gateway_http(tmp_path, {**config(url, approval="always"), "server": {"askTimeoutSeconds": 1}}) as front:
            async with client_of(front, "legacy", None, []) as client:
                result: Any = await client.call_tool("up__echo", {"text": "x"})
    assert result.is_error and result.meta["dev.moongate/rule"] == "approval.expired"


async def test_approval_covers_every_leg_of_one_call_only(tmp_path: Path) -> None:
    asked: list[str] = []

    async def elicit(context: Any, params: Any) -> t.ElicitResult:
        asked.append(params.message)
        wanted = params.requested_schema["properties"]
        return t.ElicitResult(action="accept", content={"decision": "approve"} if "decision" in wanted else {"name": "Ada"})

    with upstream_http() as url, gateway_http(tmp_path, config(url, approval="always")) as front:
        for mode in ("legacy", MODERN):
            async with Client(front, mode=mode, cache=None, elicitation_callback=elicit) as client:
                assert text(await client.call_tool("up__ask_name", {})) == "accept: Ada"
    assert [message.split("?")[0] for message in asked] == ["Approve this call of 'ask_name' of 'up'", "Server 'up' asks:\n│ Your name"] * 2


def test_stdio_start_does_not_import_the_database(tmp_path: Path) -> None:
    probe = "import sys, gateway.app; print([m for m in ('sqlalchemy', 'aiosqlite', 'openai') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", probe], capture_output=True, text=True, timeout=30, check=True)
    assert done.stdout.strip() == "[]"

"""Which calls are resent, when a failing server gets no requests, and how it recovers: real gateways, processes and sockets."""

from __future__ import annotations

import json
import socket
import sys
import time
from email.utils import formatdate
from pathlib import Path
from typing import Any

import anyio
import pytest
from mcp_types import PromptReference

from tests.fakes.running import ROOT, child, free_port, gateway_http, upstream_http, wait_until_ready, write_config
from tests.faults.far import far_server
from tests.interaction.test_faults import sources
from tests.interaction.ways import Way, connected

pytestmark = pytest.mark.timeout(90)
MODERN = Way("http", "modern", "far")
LEGACY = Way("http", "legacy", "far")


def text_of(result: Any) -> str:
    return result.content[0].text


def config_of(far_url: str, **policy: Any) -> dict[str, Any]:
    servers = {"far": {"type": "http", "url": far_url}}
    return {"mcpServers": servers, "policies": {"far": {"timeoutSeconds": 20, "connectTimeoutSeconds": 10, **policy}}}


async def do(client: Any, name: str) -> Any:
    with anyio.fail_after(20):
        return await client.call_tool("far__do", {"id": name})


async def test_new_unresponsive_server_does_not_delay_the_first_listing(tmp_path: Path) -> None:
    with socket.socket() as silent, upstream_http() as good:
        silent.bind(("127.0.0.1", 0))
        silent.listen(16)
        servers = {"good": {"type": "http", "url": good}, "silent": {"type": "http", "url": f"http://127.0.0.1:{silent.getsockname()[1]}/"}}
        settings = {"mcpServers": servers, "server": {"startupTimeoutSeconds": 60}, "policies": {"silent": {"connectTimeoutSeconds": 60}}}
        config, log, place = write_config(tmp_path, settings), tmp_path / "gateway.log", f"127.0.0.1:{free_port()}"
        with child("-m", "gateway", "run", "--http", place, "--config", str(config), log=log) as process:
            wait_until_ready(process, f"http://{place}/health", log)
            async with connected(Way("http", "modern", "good"), f"http://{place}/mcp") as (client, _):
                with anyio.fail_after(30):
                    listed = await client.list_tools()
    assert "good__echo" in {tool.name for tool in listed.tools}


# -- what is resent ----------------------------------------------------------------------------------------------


REPEATS: list[tuple[dict[str, Any], dict[str, Any] | None, bool]] = [
    ({}, None, False),
    ({}, {"readOnlyHint": True, "idempotentHint": True}, False),
    ({"trustAnnotations": True}, None, False),
    ({"trustAnnotations": True}, {"readOnlyHint": False, "idempotentHint": "true"}, False),
    ({"trustAnnotations": True}, {"readOnlyHint": True}, True),
    ({"trustAnnotations": True}, {"idempotentHint": True}, True),
    ({"idempotent": ["undo", "*__do"]}, None, False),
    ({"idempotent": ["d?"]}, None, True),
]
"""The policy, the tool's own annotations, and whether the gateway resends a call that may have run."""


@pytest.mark.requirement("MC9")
@pytest.mark.parametrize("era", ["legacy", "modern"])
async def test_call_running_at_server_death_is_retried_only_if_allowed(tmp_path: Path, era: str) -> None:
    servers: dict[str, Any] = {}
    for number, (_, hints, _) in enumerate(REPEATS):
        folder = tmp_path / f"row{number}"
        folder.mkdir()
        if hints is not None:
            (folder / "annotations").write_text(json.dumps(hints))
        options = ["--modern"] if era == "modern" else []
        argv = ["-m", "tests.fakes.scripted_upstream", "--stdio", *options, str(folder), "after", "once"]
        servers[folder.name] = {"command": sys.executable, "args": argv, "cwd": str(ROOT)}
    policies = {f"row{number}": policy for number, (policy, _, _) in enumerate(REPEATS)}
    results: dict[str, Any] = {}
    with gateway_http(tmp_path, {"mcpServers": servers, "policies": policies}) as url:
        async with connected(MODERN, url) as (client, _):

            async def call(name: str) -> None:
                (tmp_path / name / "fault").touch()
                with anyio.fail_after(40):
                    results[name] = await client.call_tool(f"{name}__do", {"id": "one"})

            async with anyio.create_task_group() as tasks:
                for name in servers:
                    tasks.start_soon(call, name)
    for number, (policy, hints, again) in enumerate(REPEATS):
        folder, result = tmp_path / f"row{number}", results[f"row{number}"]
        assert not (folder / "fault").exists()
        assert (folder / "journal").read_text().split() == (["one", "one"] if again else ["one"]), (policy, hints, text_of(result))
        assert result.is_error is not again, text_of(result)
        assert again or "may have run" in text_of(result)


@pytest.mark.parametrize("era", ["legacy", "modern"])
async def test_read_running_at_server_death_is_sent_again(tmp_path: Path, era: str) -> None:
    servers: dict[str, Any] = {}
    for step in ("read", "prompt", "complete"):
        (tmp_path / step).mkdir()
        options = ["--modern"] if era == "modern" else []
        argv = ["-m", "tests.fakes.scripted_upstream", "--stdio", *options, str(tmp_path / step), step, "once"]
        servers[step] = {"command": sys.executable, "args": argv, "cwd": str(ROOT)}
    with gateway_http(tmp_path, {"mcpServers": servers}) as url:
        async with connected(MODERN, url) as (client, _):
            for step in servers:
                (tmp_path / step / "fault").touch()
            with anyio.fail_after(40):
                page = await client.read_resource("read+page://one")
                prompt = await client.get_prompt("prompt__greet")
                completed = await client.complete(PromptReference(name="complete__greet"), {"name": "city", "value": "P"})
    assert not [step for step in servers if (tmp_path / step / "fault").exists()]
    assert "text='page'" in str(page.contents[0])
    assert "hello" in str(prompt.messages[0])
    assert completed.completion.values == ["Paris"]


@pytest.mark.requirement("MC9")
@pytest.mark.parametrize("status", [404, 400])
@pytest.mark.parametrize("own", [False, True])
async def test_call_of_a_forgotten_session_is_resent_and_runs_once(tmp_path: Path, status: int, own: bool) -> None:
    # A caller that supports requests for input has its own session with a legacy server.
    with far_server(modern=False) as far, gateway_http(tmp_path, config_of(far.url)) as url:
        far.forgets_with = status
        async with connected(LEGACY, url, capable=own) as (client, _):
            assert not (await do(client, "before")).is_error
            for number in range(3):
                far.restart()
                began = far.count("initialize")
                assert not (await do(client, f"after-{number}")).is_error
                assert not (await do(client, f"next-{number}")).is_error
                # If the caller has its own session, the gateway may also reopen its shared session.
                assert 1 <= far.count("initialize") - began <= (2 if own else 1)
    assert len(far.runs) == len(set(far.runs)) == 7


async def test_server_that_forgets_every_session_fails_the_call(tmp_path: Path) -> None:
    with far_server(modern=False) as far, gateway_http(tmp_path, config_of(far.url)) as url:
        async with connected(MODERN, url, capable=False) as (client, _):
            assert not (await do(client, "before")).is_error
            begin, far.begin = far.begin, lambda: "never known"
            far.restart()
            began = len(far.seen)
            assert (await do(client, "lost")).is_error
            assert len(far.seen) - began < 12
            far.begin = begin
            with anyio.fail_after(20):
                while (await do(client, "again")).is_error:
                    await anyio.sleep(0.1)
    assert far.runs == ["before", "again"]


# -- what is left alone ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("era", "status", "form"), [("legacy", 429, "seconds"), ("modern", 503, "seconds"), ("modern", 503, "date")])
@pytest.mark.fault(21)
async def test_retry_after_of_a_server_is_respected(tmp_path: Path, era: str, status: int, form: str) -> None:
    with far_server(modern=era == "modern") as far, gateway_http(tmp_path, config_of(far.url)) as url:
        async with connected(MODERN, url, capable=False) as (client, _):
            assert not (await do(client, "before")).is_error
            far.refuse = (status, {"Retry-After": "200" if form == "seconds" else formatdate(int(time.time()) + 200, usegmt=True)})
            began = len(far.seen)
            answers: list[Any] = []

            async def call(number: int) -> None:
                answers.append(await do(client, f"busy-{number}"))

            async with anyio.create_task_group() as tasks:
                for number in range(10):
                    tasks.start_soon(call, number)
            under_way = len(far.seen) - began
            for number in range(10):
                await call(number)
            assert all(answer.is_error for answer in answers)
            said = {text_of(answer) for answer in answers}
            assert all(str(status) in text and "'far'" in text for text in said), said
            assert under_way <= 10 and len(far.seen) == began + under_way, "those that were under way, and no more"
            assert sources(url)["far"]["state"] == "down"
    assert far.runs == ["before"]


@pytest.mark.parametrize(("era", "form"), [("legacy", "seconds"), ("modern", "seconds"), ("modern", "date")])
@pytest.mark.fault(21)
async def test_server_serves_again_after_its_retry_after_time(tmp_path: Path, era: str, form: str) -> None:
    with far_server(modern=era == "modern") as far, gateway_http(tmp_path, config_of(far.url)) as url:
        async with connected(MODERN, url, capable=False) as (client, _):
            assert not (await do(client, "before")).is_error
            # A date has whole seconds, so a date two seconds ahead is more than one second away.
            wants = "1" if form == "seconds" else formatdate(int(time.time()) + 2, usegmt=True)
            far.refuse = (503, {"Retry-After": wants})
            refused = len(far.seen)
            assert (await do(client, "refused")).is_error
            far.refuse, quiet = None, len(far.seen)
            with anyio.fail_after(20):
                while (await do(client, "after")).is_error:
                    await anyio.sleep(0.05)
            assert far.seen[quiet][1] - far.seen[refused][1] > 0.9, "retried before its Retry-After time"
            assert sources(url)["far"]["state"] == "ready"
    assert far.runs == ["before", "after"]


async def test_server_that_rejects_credentials_is_reported(tmp_path: Path) -> None:
    with far_server(modern=True) as far, gateway_http(tmp_path, config_of(far.url)) as url:
        async with connected(MODERN, url) as (client, _):
            assert not (await do(client, "before")).is_error
            far.refuse = (401, {"WWW-Authenticate": "Bearer"})
            refused = await do(client, "refused")
            assert refused.is_error
            assert "credentials" in text_of(refused)
            row = sources(url)["far"]
            assert row["state"] == "auth needed"
            assert "401" in row["error"]
            far.refuse = None
            with anyio.fail_after(20):
                while (await do(client, "after")).is_error:
                    await anyio.sleep(0.05)
            assert sources(url)["far"]["state"] == "ready"
    assert far.runs == ["before", "after"]


@pytest.mark.fault(16)
async def test_one_call_tries_a_failing_server_and_others_fail_at_once(tmp_path: Path) -> None:
    with far_server(modern=True) as far, gateway_http(tmp_path, config_of(far.url)) as url:
        async with connected(MODERN, url) as (client, _):
            far.refuse = (503, {"Retry-After": "1"})
            assert (await do(client, "down")).is_error
            far.refuse = None
            far.gate.clear()
            began = far.count("tools/call")
            tried: list[Any] = []

            async def keep_trying() -> None:
                while not tried or tried[-1].is_error:
                    tried.append(await do(client, f"try-{len(tried)}"))
                    await anyio.sleep(0.02)

            async with anyio.create_task_group() as tasks:
                tasks.start_soon(keep_trying)
                with anyio.fail_after(20):
                    while far.count("tools/call") == began:
                        await anyio.sleep(0.01)
                others = [await do(client, f"other-{number}") for number in range(5)]  # the call that tries the server still waits
                assert all(other.is_error and "'far'" in text_of(other) for other in others)
                assert far.count("tools/call") == began + 1
                far.gate.set()
            assert not (await do(client, "after")).is_error
    assert not [run for run in far.runs if run.startswith("other")]
    assert far.runs[-1] == "after"


async def test_subscriptions_of_a_leaving_client_end_even_at_a_slow_server(tmp_path: Path) -> None:
    uris = ["page://one", "page://two", "page://three"]
    with far_server(modern=False) as far, gateway_http(tmp_path, config_of(far.url)) as url:
        async with connected(LEGACY, url) as (client, _):
            for uri in uris:
                await client.subscribe_resource(f"far+{uri}")  # pyright: ignore[reportDeprecated]  # the legacy wire is what is tested
            far.gate.clear()
            with anyio.fail_after(20):
                await client.unsubscribe_resource(f"far+{uris[0]}")  # pyright: ignore[reportDeprecated]
        far.gate.set()
        with anyio.fail_after(20):
            while len(far.said) < 2 * len(uris):
                await anyio.sleep(0.02)
    assert sorted(far.said) == sorted((f"resources/{verb}", uri) for verb in ("subscribe", "unsubscribe") for uri in uris)


async def test_unaccepted_cancellation_delays_no_other_call(tmp_path: Path) -> None:
    with far_server(modern=False) as far, gateway_http(tmp_path, config_of(far.url)) as url:
        async with connected(MODERN, url) as (client, _):
            assert not (await do(client, "before")).is_error
            far.hears.clear()
            far.gate.clear()
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(do, client, "cancelled")
                with anyio.fail_after(20):
                    while far.count("tools/call") < 2:
                        await anyio.sleep(0.01)
                tasks.cancel_scope.cancel()
            with anyio.fail_after(20):
                while not far.count("notifications/cancelled"):
                    await anyio.sleep(0.01)
            far.gate.set()
            with anyio.fail_after(20):
                assert not (await do(client, "after")).is_error

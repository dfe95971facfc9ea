"""Big results in object storage: gateways without a shared folder read each other's, and an unusable bucket stops nothing else."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from collections.abc import AsyncGenerator, Generator
from contextlib import asynccontextmanager, contextmanager, suppress
from pathlib import Path
from typing import Any

import anyio
import anyio.abc
import httpx2
import pytest
from mcp.client.client import Client
from mcp.client.streamable_http import streamable_http_client
from mcp.shared.exceptions import MCPError

from tests.cli.processes import moongate_process
from tests.fakes.large import lines_text
from tests.fakes.nursery import Child
from tests.fakes.object_storage import BUCKET, MISSING_BUCKET, ObjectStorage, object_storage
from tests.fakes.running import ROOT, child, free_port, gateway_http, upstream_stdio, wait_until_ready, write_config
from tests.faults.proxy import CLOSED, FaultProxy, fault_proxy
from tests.interaction.test_results import MEGABYTES_5, MODULE, SMALL, ids_of, new_key, read_all
from tests.interaction.ways import MODERN, Way, connected

pytestmark = [pytest.mark.s3, pytest.mark.timeout(120)]

WAY = Way("http", "modern", "up")


@pytest.fixture(scope="module")
def server() -> Generator[ObjectStorage]:
    with object_storage() as running:
        yield running


def config_for(server: ObjectStorage, folder: Path, prefix: str, *, results: str | None = None, **s3: Any) -> dict[str, Any]:
    """A gateway with a state folder of its own, as on a machine of its own, and the bucket."""
    storage = {"dir": str(folder), "results": results or f"s3://{BUCKET}/{prefix}", "s3": {**server.settings, **s3}}
    return {"mcpServers": {"up": upstream_stdio(module=MODULE)}, **SMALL, "storage": storage}


def env_of(server: ObjectStorage) -> dict[str, str]:
    return {"S3_SECRET": server.secret_key}


@asynccontextmanager
async def client_of(url: str, key: str) -> AsyncGenerator[Client]:
    """A client that sends this API key."""
    async with httpx2.AsyncClient(headers={"Authorization": f"Bearer {key}"}, timeout=60) as http:
        async with Client(streamable_http_client(url, http_client=http), mode=MODERN, cache=None) as client:
            yield client


def written_files(folder: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


async def test_second_gateway_without_shared_folder_reads_results_of_the_first(
    server: ObjectStorage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("S3_SECRET", server.secret_key)
    one, two = (config_for(server, tmp_path / name, "shared") for name in ("one", "two"))
    keys = [new_key(write_config(tmp_path, one, "keys"), name) for name in ("ada", "bob")]
    (tmp_path / "two").mkdir()
    shutil.copy(tmp_path / "one" / "keys.json", tmp_path / "two")
    with gateway_http(tmp_path, one, "one", env_of(server)) as first, gateway_http(tmp_path, two, "two", env_of(server)) as second:
        async with client_of(first, keys[0]) as ada:
            [small] = ids_of(await ada.call_tool("up__lines", {"count": 5_000}))
            [large] = ids_of(await ada.call_tool("up__lines", {"count": MEGABYTES_5}))  # stored by a helper process
        async with client_of(second, keys[0]) as ada, client_of(second, keys[1]) as bob:
            assert await read_all(ada, small) == lines_text(5_000)
            linked: Any = await ada.read_resource(f"moongate://results/{large}")
            assert linked.contents[0].text == lines_text(MEGABYTES_5)
            part: Any = await ada.call_tool("read_result", {"id": large, "lines": "79999"})
            assert part.content[0].text == lines_text(MEGABYTES_5).splitlines()[79_998]
            refused: Any = await bob.call_tool("read_result", {"id": small})
            assert refused.is_error
            assert "Unknown result" in refused.content[0].text
            with pytest.raises(MCPError):
                await bob.read_resource(f"moongate://results/{small}")
    assert len(server.names("shared")) == 2
    written = written_files(tmp_path)
    assert not any(path.parent.name == "results" for path in written)
    assert not any(server.secret_key.encode() in content for content in written.values())


async def test_expired_results_are_swept_by_each_of_two_gateways(server: ObjectStorage, tmp_path: Path) -> None:
    one, two = (config_for(server, tmp_path / name, "swept") for name in ("one", "two"))
    for config in (one, two):
        config["storage"]["resultTtlSeconds"] = 3
    with gateway_http(tmp_path, one, "one", env_of(server)) as first, gateway_http(tmp_path, two, "two", env_of(server)) as second:
        async with connected(WAY, first) as (client, _):
            [kept] = ids_of(await client.call_tool("up__lines", {"count": 5_000}))
            with anyio.fail_after(20):
                while server.names("swept"):
                    await anyio.sleep(0.2)
        async with connected(WAY, second) as (client, _):
            gone: Any = await client.call_tool("read_result", {"id": kept})
    assert "may have expired" in gone.content[0].text


async def test_silent_storage_refuses_only_results_that_must_be_kept(server: ObjectStorage, tmp_path: Path) -> None:
    config = config_for(server, tmp_path / "state", "silent", timeoutSeconds=3)
    with gateway_http(tmp_path, config, env=env_of(server)) as url:
        async with connected(WAY, url) as (client, _):
            [kept] = ids_of(await client.call_tool("up__lines", {"count": 5_000}))
            server.pause()
            try:
                with anyio.fail_after(10):
                    refused: Any = await client.call_tool("up__lines", {"count": 5_000})
                    unread: Any = await client.call_tool("read_result", {"id": kept})
                    small: Any = await client.call_tool("up__lines", {"count": 5})
            finally:
                server.go_on()
            with anyio.fail_after(20):
                while (again := await client.call_tool("up__lines", {"count": 5_000})).is_error:
                    await anyio.sleep(0.5)
            assert await read_all(client, kept) == lines_text(5_000)
            assert await read_all(client, *ids_of(again)) == lines_text(5_000)
    assert refused.is_error
    assert "it could not be kept to be read in parts" in refused.content[0].text
    assert unread.is_error
    assert "does not work at the moment" in unread.content[0].text
    assert not small.is_error
    assert small.content[0].text == lines_text(5)
    log = (tmp_path / "gateway.log").read_text()
    assert f"object storage unusable bucket={BUCKET} endpoint={server.url} reason='no answer within 2 s'" in log
    assert server.secret_key not in log


class HalfWay(FaultProxy):
    """Passes only the first bytes of what the gateway sends, once `is_armed`, and then nothing more."""

    is_armed = False
    passed = 0
    most = 300_000

    async def _up(self, client: anyio.abc.SocketStream, server: anyio.abc.SocketStream) -> None:
        with suppress(*CLOSED):
            async for data in client:
                if self.is_armed and self.passed + len(data) > self.most:
                    await anyio.sleep_forever()
                self.passed += len(data) if self.is_armed else 0
                await server.send(data)
            await server.send_eof()


@contextmanager
def killable(folder: Path, config: dict[str, Any], env: dict[str, str]) -> Generator[tuple[str, Child]]:
    port, log = free_port(), folder / "killed.log"
    path = write_config(folder, config, "killed")
    with child("-m", "gateway", "run", "--http", f"127.0.0.1:{port}", "--config", str(path), env=env, log=log) as process:
        wait_until_ready(process, f"http://127.0.0.1:{port}/ready", log)
        yield f"http://127.0.0.1:{port}/mcp", process


async def test_gateway_killed_while_it_writes_leaves_no_result(server: ObjectStorage, tmp_path: Path) -> None:
    port = int(server.url.rpartition(":")[2])
    proxy = HalfWay(port)
    async with fault_proxy(port, proxy):
        config = config_for(server, tmp_path / "state", "killed", endpoint=f"http://127.0.0.1:{proxy.port}")
        gateway = killable(tmp_path, config, env_of(server))
        url, process = await anyio.to_thread.run_sync(gateway.__enter__)
        try:
            async with anyio.create_task_group() as tasks:

                async def call() -> None:
                    with suppress(Exception):
                        async with connected(WAY, url) as (client, _):
                            proxy.is_armed = True
                            await client.call_tool("up__lines", {"count": 20_000})

                tasks.start_soon(call)
                with anyio.fail_after(20):
                    while proxy.passed < 200_000:
                        await anyio.sleep(0.05)
                process.kill()
                tasks.cancel_scope.cancel()
        finally:
            await anyio.to_thread.run_sync(gateway.__exit__, None, None, None)
    assert server.names("killed") == []


WRONG: dict[str, tuple[dict[str, Any], str]] = {
    "missing bucket": ({"results": f"s3://{MISSING_BUCKET}/x"}, "the bucket does not exist (NoSuchBucket)"),
    "bucket of others": ({"results": "s3://other-bucket"}, "access is denied (AccessDenied)"),
    "secret key": ({"secretKey": "wrong-secret-key"}, "the secret key is wrong (SignatureDoesNotMatch)"),
    "unreachable": ({"endpoint": "http://127.0.0.1:{port}"}, "no connection"),
}


@pytest.mark.parametrize("wrong", WRONG)
def test_gateway_with_unusable_bucket_does_not_start_and_says_why(server: ObjectStorage, tmp_path: Path, wrong: str) -> None:
    more, reason = WRONG[wrong]
    more = {key: value.format(port=free_port()) for key, value in more.items()}
    path = write_config(tmp_path, config_for(server, tmp_path / "state", "x", **more))
    began = time.monotonic()
    ended = moongate_process("run", "--http", f"127.0.0.1:{free_port()}", "--config", str(path), cwd=tmp_path, env=env_of(server))
    assert time.monotonic() - began < 10
    assert ended.code != 0
    bucket = more.get("results", f"s3://{BUCKET}").removeprefix("s3://").partition("/")[0]
    assert f"The bucket '{bucket}' at {more.get('endpoint', server.url)} cannot be used: {reason}." in ended.err
    assert server.secret_key not in ended.err
    assert "wrong-secret-key" not in ended.err
    checked = moongate_process("doctor", "--json", "--config", str(path), cwd=tmp_path, env=env_of(server))
    [failed] = [check for check in checked.data["checks"] if check["subject"] == "results"]
    assert failed["status"] == "fail"
    assert reason in failed["text"]


def test_silent_storage_ends_the_start_within_ten_seconds(server: ObjectStorage, tmp_path: Path) -> None:
    path = write_config(tmp_path, config_for(server, tmp_path / "state", "x"))
    server.pause()
    try:
        began = time.monotonic()
        ended = moongate_process("run", "--http", f"127.0.0.1:{free_port()}", "--config", str(path), cwd=tmp_path, env=env_of(server))
        assert time.monotonic() - began < 10
    finally:
        server.go_on()
    assert ended.code != 0
    assert f"The bucket '{BUCKET}' at {server.url} cannot be used: no answer within" in ended.err


def test_missing_client_library_is_named_with_the_command_that_installs_it(server: ObjectStorage, tmp_path: Path) -> None:
    hidden = tmp_path / "hidden" / "obstore"
    hidden.mkdir(parents=True)
    (hidden / "__init__.py").write_text("raise ImportError('hidden')")
    path = write_config(tmp_path, config_for(server, tmp_path / "state", "x"))
    env = {**os.environ, **env_of(server), "PYTHONPATH": f"{tmp_path / 'hidden'}:{ROOT}"}
    argv = [sys.executable, "-m", "gateway", "run", "--http", f"127.0.0.1:{free_port()}", "--config", str(path)]
    ended = subprocess.run(argv, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=30, check=False)
    assert ended.returncode != 0
    assert 'pip install "moongate[s3]"' in ended.stderr


def test_doctor_tries_the_bucket_with_credentials_of_the_environment(server: ObjectStorage, tmp_path: Path) -> None:
    config = config_for(server, tmp_path / "state", "doctor")
    del config["storage"]["s3"]
    names = ["AWS_ENDPOINT_URL", "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_REGION"]
    env: dict[str, str] = dict(zip(names, (server.url, server.access_key, server.secret_key, "us-east-1"), strict=True))
    ended = moongate_process("doctor", "--json", "--config", str(write_config(tmp_path, config)), cwd=tmp_path, env=env)
    [check] = [check for check in ended.data["checks"] if check["subject"] == "results"]
    assert (check["status"], check["text"]) == ("ok", f"an object in s3://{BUCKET}/doctor was written, read, listed and deleted")
    assert server.names("doctor") == []

"""A call that finds its server in need of a sign-in: the page is shown where a client can show one, and a kill costs no more."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import anyio.lowlevel
import httpx2
import mcp_types as t
import pytest
from mcp import Client
from mcp.shared.exceptions import MCPError

from tests.fakes.running import auth_server, child, free_port, gateway_http, wait_until_ready, write_config
from tests.interaction.ways import MODERN as VERSION
from tests.upstream.signing import SIGNED_IN, config, control, sign_in, token_requests

pytestmark = pytest.mark.timeout(60)
COMMAND = "moongate auth login docs"


@asynccontextmanager
async def signed_out(folder: Path) -> AsyncGenerator[tuple[str, str]]:
    """Start a gateway whose tokens are then revoked; yields the origin of the authorization server and the gateway's endpoint."""
    with auth_server() as origin:
        document = config(origin, SIGNED_IN)
        sign_in(write_config(folder, document))
        with gateway_http(folder, document) as url:
            await anyio.lowlevel.checkpoint()
            control(origin, revoke_all=True, forget=True)
            yield origin, url


async def browse(url: str) -> None:
    """A person with a browser on the machine of the gateway."""
    async with httpx2.AsyncClient(trust_env=False, follow_redirects=True) as browser:
        (await browser.get(url)).raise_for_status()


async def test_modern_client_is_shown_the_page_and_its_call_continues(tmp_path: Path) -> None:
    shown: list[Any] = []

    async def open_page(context: Any, params: Any) -> t.ElicitResult:
        shown.append(params)
        await browse(params.url)
        return t.ElicitResult(action="accept")

    async with signed_out(tmp_path) as (origin, url), Client(url, mode=VERSION, elicitation_callback=open_page) as client:
        result: Any = await client.call_tool("docs__echo", {"text": "hi"})
        again: Any = await client.call_tool("docs__echo", {"text": "again"})
    assert result.content[0].text == "hi"
    assert again.content[0].text == "again"
    [page] = shown
    assert page.mode == "url"
    assert page.url.startswith(f"{origin}/authorize?")
    assert "'docs' needs you to sign in" in page.message


async def test_client_2025_gets_the_page_in_the_url_error_and_calls_again(tmp_path: Path) -> None:
    async def never(context: Any, params: Any) -> t.ElicitResult:
        raise AssertionError("nobody is asked on the way")

    async with signed_out(tmp_path) as (_, url), Client(url, mode="legacy", elicitation_callback=never) as client:
        with pytest.raises(MCPError) as caught:
            await client.call_tool("docs__echo", {"text": "hi"})
        assert caught.value.error.code == -32042
        data: Any = caught.value.error.data
        [page] = data["elicitations"]
        await browse(page["url"])
        with anyio.fail_after(20):
            while True:
                try:
                    result: Any = await client.call_tool("docs__echo", {"text": "hi"})
                    break
                except MCPError:
                    await anyio.sleep(0.1)
    assert page["elicitationId"]
    assert result.content[0].text == "hi"


async def test_declined_sign_in_and_client_without_pages_get_a_remedy(tmp_path: Path) -> None:
    async def decline(context: Any, params: Any) -> t.ElicitResult:
        return t.ElicitResult(action="decline")

    async with signed_out(tmp_path) as (_, url):
        async with Client(url, mode=VERSION, elicitation_callback=decline) as client:
            declined: Any = await client.call_tool("docs__echo", {"text": "hi"})
        async with Client(url, mode=VERSION) as client:
            unable: Any = await client.call_tool("docs__echo", {"text": "hi"})
    assert declined.is_error
    assert "did not agree to open it" in declined.content[0].text
    assert unable.is_error
    assert COMMAND in unable.content[0].text


@pytest.mark.parametrize("rotated", [False, True], ids=["before the issuer took it", "after the issuer replaced the token"])
@pytest.mark.faults
async def test_gateway_killed_during_refresh_leaves_a_clean_state(tmp_path: Path, rotated: bool) -> None:
    with auth_server() as origin:
        document = {**config(origin, SIGNED_IN), "storage": {"dir": str(tmp_path / "shared")}}
        file = write_config(tmp_path, document, "one")
        sign_in(file)
        port, log = free_port(), tmp_path / "one.log"
        with gateway_http(tmp_path, document, "two") as other:
            with child("-m", "gateway", "run", "--http", f":{port}", "--config", str(file), log=log) as process:
                await anyio.to_thread.run_sync(wait_until_ready, process, f"http://127.0.0.1:{port}/ready", log)
                control(origin, revoke_all=True, hold=True)
                async with anyio.create_task_group() as tasks:

                    async def call() -> None:
                        async with Client(f"http://127.0.0.1:{port}/mcp", mode=VERSION) as client:
                            await client.call_tool("docs__echo", {"text": "lost"})

                    tasks.start_soon(call)
                    with anyio.fail_after(20):
                        while not [entry for entry in token_requests(origin) if entry["grant_type"] == "refresh_token"]:
                            await anyio.sleep(0.02)
                    tasks.cancel_scope.cancel()
                process.kill()
                process.wait()
            if rotated:
                control(origin, hold=False)  # the issuer completes the token exchange, but the killed gateway cannot store the tokens
                await anyio.lowlevel.checkpoint()
            else:
                control(origin, drop=True, hold=False)
            async with Client(other, mode=VERSION) as client:
                with anyio.fail_after(30):
                    result: Any = await client.call_tool("docs__echo", {"text": "hi"})
                if rotated:
                    assert result.is_error
                    assert COMMAND in result.content[0].text
                    sign_in(file)
                    with anyio.fail_after(30):
                        while (result := await client.call_tool("docs__echo", {"text": "hi"})).is_error:
                            await anyio.sleep(0.1)
            assert result.content[0].text == "hi"

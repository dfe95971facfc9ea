"""`server/discover` and the listings of plain 2026 requests read the same with and without the SDK."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest

from gateway.auth.principal import Principal
from gateway.tools.base import ToolDefinition
from tests.server.both_paths import ENVELOPE, META, VERSION, Echo, same, standing

METHODS = ("server/discover", "tools/list", "resources/list", "resources/templates/list", "prompts/list")


def ask(method: str, number: Any = 1, **params: Any) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "id": number, "method": method, "params": {"_meta": ENVELOPE, **params}}


def heads(method: str) -> dict[str, str]:
    wanted = {"accept": "application/json, text/event-stream", "content-type": "application/json"}
    return {**wanted, "mcp-protocol-version": VERSION, "mcp-method": method}


@pytest.mark.parametrize("method", METHODS)
async def test_plain_request_gets_the_sdks_response_without_the_sdk(tmp_path: Path, method: str) -> None:
    async with standing(tmp_path) as setup:
        status, kind, message = await same(setup, heads(method), json.dumps(ask(method, "é")).encode(), direct=True)
        assert (status, kind, message["id"]) == (200, "application/json", "é")
        assert message["result"]["_meta"][f"{META}serverInfo"] == {"name": "t", "version": "1"}
        await same(setup, heads(method), json.dumps(ask(method)).encode(), direct=True)


async def test_plain_requests_create_no_sdk_objects(tmp_path: Path) -> None:
    async with standing(tmp_path) as setup:
        setup.longer = setup.direct  # the SDK path receives no request
        for method in METHODS:
            await same(setup, heads(method), json.dumps(ask(method)).encode(), direct=None)
        assert not setup.server.has_sdk


ODD: list[Any] = [None, True, 1, 1.5, "", "x", [], {}, {"a": None}]


@pytest.mark.parametrize("method", METHODS)
async def test_every_request_gets_the_same_response_on_both_paths(tmp_path: Path, method: str) -> None:
    async with standing(tmp_path) as setup:
        bodies = [{**ask(method), key: value} for key in ("jsonrpc", "id", "method", "params") for value in ODD]
        bodies += [ask(method, **{key: value}) for key in ("cursor", "_meta", "odd") for value in ODD]
        metas = ("progressToken", f"{META}logLevel", f"{META}odd", f"{META}protocolVersion", f"{META}clientCapabilities")
        for key in (*metas, f"{META}clientInfo", "dev.moongate/via", "x/y"):
            bodies += [ask(method, _meta={**ENVELOPE, key: value}) for value in (*ODD, ["a"], VERSION)]
            bodies.append(ask(method, _meta={k: v for k, v in ENVELOPE.items() if k != key}))
        for body in bodies:
            await same(setup, heads(method), json.dumps(body).encode())
        for name in list(heads(method)):
            for value in ("", "x", "tools/call", "text/event-stream", "2025-11-25"):
                await same(setup, {**heads(method), name: value}, json.dumps(ask(method)).encode())


def entries(chance: random.Random) -> list[ToolDefinition]:
    """Tools as servers list them, well formed and not."""
    values: list[Any] = [None, True, 0, 0.5, "", "x", [], ["x"], {}, {"a": None}, {"a": 1}, [{"src": "x"}], [{"src": 1}]]
    made: list[ToolDefinition] = []
    for key in ("title", "description", "icons", "_meta", "annotations", "execution", "odd"):
        made += [ToolDefinition(name=f"t{len(made) + i}", input_schema={"type": "object"}, extra={key: v}) for i, v in enumerate(values)]
    for schema in ({}, {"type": "string"}, {"type": "object", "$schema": 1}, {"type": "object", "x": None, "y": {"z": None}}):
        made.append(ToolDefinition(name=f"t{len(made)}", input_schema=schema))
        made.append(ToolDefinition(name=f"t{len(made)}", input_schema={"type": "object"}, output_schema=schema))
    hints: list[Any] = [{"readOnlyHint": v, "title": w} for v in (True, None, 1, "x") for w in ("t", None, 1)]
    made += [ToolDefinition(name=f"t{len(made) + i}", input_schema={"type": "object"}, annotations=v) for i, v in enumerate(hints)]
    return made


async def test_every_server_listing_is_the_same_on_both_paths(tmp_path: Path) -> None:
    taken = 0
    async with standing(tmp_path) as setup:
        for definition in entries(random.Random(7)):
            setup.catalog._wire_tools = [definition.to_wire()]  # pyright: ignore[reportPrivateUsage]  # as if the source listed it
            before = setup.behind.count
            await same(setup, heads("tools/list"), json.dumps(ask("tools/list")).encode())
            taken += setup.behind.count == before
    assert taken > 40


async def test_pages_follow_each_other_and_a_change_is_seen_at_once(tmp_path: Path) -> None:
    async with standing(tmp_path) as setup:
        shown = [Echo(f"tool{i}", {"type": "object"}).definition.to_wire() for i in range(25)]
        setup.catalog._wire_tools = shown  # pyright: ignore[reportPrivateUsage]  # as if the source listed them
        names: list[str] = []
        cursor: dict[str, Any] = {}
        while True:
            _, _, message = await same(setup, heads("tools/list"), json.dumps(ask("tools/list", **cursor)).encode(), direct=True)
            names += [tool["name"] for tool in message["result"]["tools"]]
            if "nextCursor" not in message["result"]:
                break
            cursor = {"cursor": message["result"]["nextCursor"]}
        assert names == [wire["name"] for wire in shown]
        setup.catalog._wire_tools = shown[:1]  # pyright: ignore[reportPrivateUsage]
        _, _, message = await same(setup, heads("tools/list"), json.dumps(ask("tools/list")).encode(), direct=True)
        assert [tool["name"] for tool in message["result"]["tools"]] == ["tool0"]


@pytest.mark.parametrize("scopes", [None, (), ("tools:up/*",), ("tools:up/echo",), ("resources:*",)])
@pytest.mark.parametrize("method", METHODS)
async def test_caller_sees_only_its_key_scopes_on_both_paths(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, method: str, scopes: tuple[str, ...] | None
) -> None:
    def caller(*_: object) -> Principal:
        return Principal("key:a", "a", scopes)

    monkeypatch.setattr("gateway.server.key_gate.KeyGate._principal", caller)
    async with standing(tmp_path) as setup:
        for _ in range(2):
            await same(setup, heads(method), json.dumps(ask(method)).encode(), direct=True)

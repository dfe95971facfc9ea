"""The page about sign-in: its example serves people with tokens, and its table names every key."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel

from gateway.config.auth_settings import ClaimNames, InboundAuthSettings, IntrospectionSettings, TokenIssuer
from tests.architecture.documents import code_of, read, rows, section
from tests.docs.code_blocks import block_with
from tests.fakes.inside import gateway_inside, raw_inside
from tests.fakes.token_issuer import token_issuer
from tests.interaction.wire import over_http

PAGE = "docs/sign-in.md"
TOOLS = [{"name": name, "inputSchema": {"type": "object"}} for name in ("search_pages", "delete")]


@pytest.mark.timeout(60)
async def test_example_of_the_page_serves_people_with_tokens(tmp_path: Path) -> None:
    text = block_with(PAGE, '"challengeScopes"')
    with token_issuer() as issuer, raw_inside({"tools": TOOLS}) as docs:
        text = text.replace("https://docs.example.com/mcp", docs).replace("https://login.example.com", issuer.url)
        config: dict[str, Any] = json.loads(text)
        with gateway_inside(tmp_path, config) as inside:
            resource = config["server"]["auth"]["resource"]
            for scope, seen in (("mcp:read", {"docs__search_pages"}), ("mcp:write", {"docs__search_pages", "docs__delete"})):
                async with over_http(inside.url, "modern", token=issuer.token(resource, scope=scope)) as wire:
                    listed = (await wire.send("tools/list"))["result"]["tools"]
                    assert {tool["name"] for tool in listed if tool["name"].startswith("docs__")} == seen


def names_of(model: type[BaseModel]) -> set[str]:
    return {field.alias or name for name, field in model.model_fields.items()}


def test_page_names_every_key_with_its_default() -> None:
    table = {key: cells for cells in rows(section(read(PAGE), "## Keys of `server.auth`")) for key in code_of(cells[0])[:1]}
    expected = {f"issuers[].{key}" for key in names_of(TokenIssuer)} | (names_of(InboundAuthSettings) - {"issuers"})
    assert set(table) == expected
    for name, field in TokenIssuer.model_fields.items():
        written, default = table[f"issuers[].{field.alias or name}"][1].strip("`"), field.get_default(call_default_factory=True)
        if isinstance(default, list | float):
            assert json.loads(written) == default, name
    assert all(f"`{key}`" in table["issuers[].introspection"][2] for key in names_of(IntrospectionSettings))
    assert all(f"`{key}`" in table["issuers[].claims"][2] for key in names_of(ClaimNames))

"""The skills extension (SEP-2640) as programs read it: `skills/list` and `skills/get` over the SDK's client or session.

Asked only of a server that declares it. Loads the SDK's types when it is used: whoever has a session has them.
"""

from __future__ import annotations

from typing import Any, cast

import anyio

from gateway.json_types import JsonMapping, JsonObject, JsonValue
from gateway.policy.skills import judge_entry
from gateway.protocol import SKILLS_EXTENSION

MAX_PAGES = 1_000
"""Pages of one list; a server whose list never ends is cut off."""

REQUEST_SECONDS = 60.0
"""Time one request may take."""


def has_extension(session: object) -> bool:
    """Whether the server at the other end declares the extension; not before it was met."""
    extensions = getattr(getattr(session, "server_capabilities", None), "extensions", None)
    return isinstance(extensions, dict) and SKILLS_EXTENSION in extensions


async def list_entries(session: object) -> list[JsonMapping]:
    """Every entry that keeps the specification, in order. Raises `MCPError` or `TimeoutError`."""
    found: list[JsonMapping] = []
    params: JsonObject = {}
    for _ in range(MAX_PAGES):
        page = await _send(session, "skills/list", params)
        listed: JsonValue = page.get("skills")
        entries = cast("list[JsonValue]", listed) if isinstance(listed, list) else []
        found += [cast("JsonMapping", entry) for entry in entries if isinstance(entry, dict) and judge_entry(cast("JsonMapping", entry))]
        cursor = page.get("nextCursor")
        if not isinstance(cursor, str):
            break
        params = {"cursor": cursor}
    return found


async def get_entry(session: object, uri: str) -> JsonMapping | None:
    """The entry of a skill as it is now; `None` for one that breaks the specification. Raises `MCPError` or `TimeoutError`."""
    entry: JsonValue = (await _send(session, "skills/get", {"uri": uri})).get("skill")
    return cast("JsonMapping", entry) if isinstance(entry, dict) and judge_entry(cast("JsonMapping", entry)) else None


async def _send(session: object, method: str, params: JsonObject) -> JsonMapping:
    from mcp_types import Request  # loaded by whoever has a session
    from pydantic import TypeAdapter

    class _SkillRequest(Request[dict[str, Any], str]):
        name_param = "uri" if "uri" in params else None

    low: Any = getattr(session, "session", session)
    with anyio.fail_after(REQUEST_SECONDS):
        return await low.send_request(_SkillRequest(method=method, params=params), TypeAdapter(dict[str, Any]))

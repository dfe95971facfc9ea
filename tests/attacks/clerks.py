"""A call of the agent `clerk` whose scripted model calls given tools, and the audited calls of the gateway."""

from __future__ import annotations

from typing import Any

import anyio
import anyio.to_thread

from tests.interaction.place import Place
from tests.interaction.wire import over_http


async def audited(place: Place, count: int = 2) -> list[tuple[str, str, str]]:
    """Wait until the audit log has `count` entries, and return them.

    Entries are written after the calls return. The first entry is about code that was loaded.
    """
    with anyio.fail_after(10):
        while len(entries := (await anyio.to_thread.run_sync(place.cli, "audit"))["entries"]) < count:
            await anyio.sleep(0.05)
    return [(entry["kind"], entry["source"], entry["name"]) for entry in entries]


async def ask_clerk(place: Place, *calls: tuple[str, dict[str, Any]], decision: str = "") -> list[str]:
    """Have the agent's model make these calls in order; return the result of each. `decision` answers approvals."""
    turns = [{"when": {"last_role": "user"}, "tool_calls": [{"name": calls[0][0], "arguments": calls[0][1]}]}]
    turns += [{"when": {"last_role": "tool"}, "tool_calls": [{"name": name, "arguments": given}]} for name, given in calls[1:]]
    await place.model.play(*turns, {"text": "done"})
    async with over_http(place.url, "modern", tasks=False, capabilities={"elicitation": {"form": {}}} if decision else {}) as wire:
        request: dict[str, Any] = {"name": "agent__clerk", "arguments": {"task": "Go."}}
        result = (await wire.send("tools/call", **request))["result"]
        while result.get("resultType") == "input_required":
            answers = {key: {"action": "accept", "content": {"decision": decision}} for key in result["inputRequests"]}
            result = (await wire.send("tools/call", **request, requestState=result["requestState"], inputResponses=answers))["result"]
    assert result["content"][0]["text"] == "done", result
    return [message["content"] for message in await place.messages() if message["role"] == "tool"]

"""`gateway_status`: a tool that shows a model the state of every source, why a server is missing, and what the user can do about it.

It only reads the state of the sources. Errors are shown as one line without control characters; the sources have masked all known secrets.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import cast

from gateway.auth.principal import Principal
from gateway.errors import ToolFailed
from gateway.json_types import JsonObject
from gateway.telemetry.logging import escape_controls
from gateway.tools.base import Complete, SourceStatus, ToolDefinition, ToolOutcome
from gateway.tools.context import CallContext

STATUS_URI = "moongate://status"

MAX_ERROR_CHARS = 500
"""Maximum length of an error or another text in the status, in characters; longer texts are cut."""

ADVICE: Mapping[str, str] = {
    "starting": "The server is still starting; ask again in a few seconds.",
    "down": "The gateway retries by itself. If the server stays down, run `moongate doctor` on the machine of the gateway.",
    "disabled": "To use the server, change its entry in the gateway's configuration.",
    "auth needed": "Run `moongate auth login {name}` on the machine of the gateway.",
    "held": "Its command waits until a person accepts it: `moongate lock --accept {name}` on the machine of the gateway.",
    "idle": "The server starts with the next call of one of its tools.",
}
"""State of a server → advice for the user, in which `{name}` is the name of the server. Other states need no action by the user."""

QUARANTINE_ADVICE = (
    "Quarantined tools differ from what was accepted or first listed: "
    "`moongate lock --diff` shows how, `moongate lock --accept {name}` accepts them."
)
"""Advice for the user if tools of a server (`{name}`) are not served because nobody has accepted their definitions (quarantine)."""


def status_resource() -> JsonObject:
    """Return the entry of the resource `moongate://status`, as `resources/list` shows it."""
    return {
        "uri": STATUS_URI,
        "name": "gateway-status",
        "title": "Status of the gateway",
        "description": "Every server behind this gateway: its state, its tools, its last error, and advice.",
        "mimeType": "application/json",
    }


class GatewayStatus:
    """The MCP tool `gateway_status(server?)`: shows the state of every source, or of one, with its last error and advice for the user."""

    def __init__(self, seen: Callable[[Principal], tuple[Sequence[SourceStatus], Sequence[str]]]) -> None:
        """Create the tool.

        `seen` returns what a principal may see: the current status of each source, and the problems of the gateway, without secrets.
        """
        self._seen = seen
        self.definition = ToolDefinition(
            name="gateway_status",
            title="Status of the gateway",
            description=(
                "Show the state of the servers behind this gateway. Use it if a tool or server is missing or fails: it shows the reason "
                "and what the user can do."
            ),
            input_schema={
                "type": "object",
                "properties": {"server": {"type": "string", "minLength": 1, "description": "Only this server."}},
                "additionalProperties": False,
            },
            annotations={"readOnlyHint": True, "destructiveHint": False, "idempotentHint": True, "openWorldHint": False},
        )

    async def call(self, arguments: JsonObject, ctx: CallContext) -> ToolOutcome:
        """Return the status as text, with one line per source, and as structured content. Raises `ToolFailed` for an unknown source."""
        statuses, problems = self._seen(ctx.facts.on_behalf_of)
        entries = [self._entry(status) for status in statuses]
        problems = [self._clean(problem) for problem in problems]
        server = arguments.get("server")
        if server is not None:
            names = [entry["name"] for entry in entries]
            entries = [entry for entry in entries if entry["name"] == server]
            if not entries:
                raise ToolFailed(f"Unknown source {str(server)[:100]!r}. Sources: {', '.join(names) or 'none'}.")
        lines = [*problems, *map(_line, entries)]
        return Complete.text("\n".join(lines) or "No source is configured.", structured=_with_problems(entries, problems))

    def as_json(self, viewer: Principal) -> str:
        """Return the content of the resource `moongate://status`: the sources and problems that the principal `viewer` may see, as JSON."""
        statuses, problems = self._seen(viewer)
        content = _with_problems([self._entry(status) for status in statuses], [self._clean(problem) for problem in problems])
        return json.dumps(content, ensure_ascii=False, indent=2)

    def _entry(self, status: SourceStatus) -> JsonObject:
        entry: JsonObject = {}
        fields = cast("Mapping[str, str | int | float | Mapping[str, str] | list[str] | None]", status.to_json())
        for field, value in fields.items():
            if value is not None and value not in ("", {}, []):
                head, *rest = field.split("_")
                cleaned = {name: self._clean(text) for name, text in value.items()} if isinstance(value, Mapping) else value
                cleaned = [self._clean(text) for text in cleaned] if isinstance(cleaned, list) else cleaned
                entry[head + "".join(part.title() for part in rest)] = self._clean(cleaned) if isinstance(cleaned, str) else cleaned
        advice = ADVICE.get(status.state.replace("-", " "))
        if status.quarantined:
            advice = f"{advice or ''} {QUARANTINE_ADVICE}".lstrip()
        if advice is not None:
            entry["advice"] = advice.replace("{name}", status.name)
        return entry

    def _clean(self, text: str) -> str:
        plain = escape_controls(" ".join(text.split()))
        return plain if len(plain) <= MAX_ERROR_CHARS else plain[: MAX_ERROR_CHARS - 1] + "…"


def _with_problems(entries: list[JsonObject], problems: list[str]) -> JsonObject:
    return {"sources": entries, **({"problems": problems} if problems else {})}


def _line(entry: JsonObject) -> str:
    tools = entry["tools"]
    facts = [f"{entry['name']} ({entry['kind']}, {entry['transport']}): {entry['state']}", f"{tools} tool{'' if tools == 1 else 's'}"]
    facts += [f"{key} {entry[key]}" for key in ("protocolVersion", "since") if key in entry]
    line = ", ".join(facts)
    for text in (entry.get("error"), entry.get("advice")):
        if text:
            line = f"{line.rstrip('.')}. {text}"
    for text in entry.get("questions", ()):
        line = f"{line.rstrip('.')}. It {text}"
    if "quarantined" in entry:
        line = f"{line.rstrip('.')}. Quarantined: {', '.join(entry['quarantined'])}"
    if "suspicious" in entry:
        line = f"{line.rstrip('.')}. Reads like orders to a model: {', '.join(entry['suspicious'])}"
    return line

"""`TerminalCaller`: connects a tool call to the user at the terminal. It prints progress and log messages, and asks for input.

Questions are printed on stderr and answered on stdin. Without a terminal, requests for input fail. Used by `call`.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from typing import cast

import anyio
import anyio.to_thread
import click

from gateway.cli.output import print_note
from gateway.errors import InputUnavailable
from gateway.json_types import JsonMapping, JsonObject, JsonValue
from gateway.policy.approval_policy import Decision, decision_answer, offered_decisions
from gateway.policy.framing import BAR, fit, frame, quote, shown
from gateway.tools.ports import LogLevel, capability_of

MAX_MESSAGE = 400
"""Maximum characters of a progress message that are printed."""

MAX_LABEL = 200
"""Maximum characters of a form field's title or default that are printed."""

TERMINAL_CAPABILITIES: JsonObject = {"elicitation": {"form": {}, "url": {}}}
"""MCP client capabilities that a command declares if it runs in a terminal."""


class TerminalCaller:
    """Implements the protocol `Caller` (requests for input, progress, log messages) for the user at a terminal.

    `interactive` is whether stdin and stderr are a terminal.
    """

    def __init__(self, *, interactive: bool) -> None:
        self._interactive = interactive
        self._one_at_a_time = anyio.Lock()

    @property
    def capabilities(self) -> JsonObject:
        """The MCP client capabilities to declare; empty without a terminal."""
        return TERMINAL_CAPABILITIES if self._interactive else {}

    async def progress(self, progress: float, total: float | None, message: str | None) -> None:
        """Print one line for a progress notification. A heartbeat (a fraction of a step, without a message) is not printed."""
        if not message and not total and progress % 1:
            return
        done = f"{progress:g}/{total:g}" if total else f"{progress:g}"
        print_note(f"  {done}  {shown(message or '', MAX_MESSAGE)}".rstrip())

    async def log(self, level: LogLevel, data: JsonValue, logger: str | None) -> None:
        """Print a log message of the tool's server."""
        text = data if isinstance(data, str) else json.dumps(data, ensure_ascii=False)
        who = f"  {level}{f' {shown(logger, MAX_LABEL)}' if logger else ''}:"
        print_note(f"{who} {text}" if "\n" not in text and text.isprintable() else frame(who, text))

    async def ask(self, request: JsonObject, key: str = "") -> JsonObject:
        """Ask the user to fill in a form or to open a link, and return the answer. `key` is not used.

        Raises:
            InputUnavailable: The command has no terminal, or the request is not an elicitation.
        """
        if request.get("method") != "elicitation/create" or not self._interactive:
            raise InputUnavailable(
                f"The tool requests {request.get('method')!r}, which this command cannot answer; run it in a terminal.",
                capability=capability_of(request),
            )
        params = cast("JsonMapping", request.get("params") or {})
        async with self._one_at_a_time:
            return await anyio.to_thread.run_sync(lambda: _ask_person(params), abandon_on_cancel=True)


def _ask_person(params: JsonMapping) -> JsonObject:
    """Print an elicitation request, read the user's answer and return it as the result. The server's text is marked as a quotation."""
    columns = shutil.get_terminal_size().columns
    print_note()
    print_note("\n".join(fit(str(params.get("message", "")), columns)))
    if params.get("mode") == "url":
        print_note(f"Open this page yourself if you trust it: {params.get('url', '')}")
        return {"action": _choose("Done there?", accept="yes", decline="no")}
    schema = cast("JsonMapping", params.get("requestedSchema") or {})
    if offered := offered_decisions(schema):
        return decision_answer(_ask_decision(offered))
    fields = cast("dict[str, JsonMapping]", schema.get("properties") or {})
    required = cast("list[str]", schema.get("required") or [])
    action = _choose("Answer?", accept="yes", decline="no")
    if action != "accept":
        return {"action": action}
    content: JsonObject = {}
    for name, field in fields.items():
        value = _ask_field(name, field, is_required=name in required)
        if value is not None:
            content[name] = value
    return {"action": "accept", "content": content}


_DECISION_WORDS: dict[Decision, str] = {
    "approve": "yes",
    "approve_always_with_arguments": "arguments",
    "approve_always": "always",
    "decline": "no",
}
"""Word that the user types for each decision about a call that needs approval."""


def _ask_decision(offered: Mapping[Decision, str]) -> Decision:
    """Ask the user for one of the `offered` decisions about a call, until the answer is clear; an empty answer declines."""
    words: dict[str, Decision] = {_DECISION_WORDS[decision]: decision for decision in offered}
    if len(words) > 2:
        print_note("\n".join(f"  {word}: {offered[decision]}" for word, decision in words.items()))
    while True:
        text = str(click.prompt(f"Approve? ({', '.join(words)})", default="no", err=True)).strip().lower()
        meant = [word for word in words if word.startswith(text)]
        if len(meant) == 1:
            return words[meant[0]]
        print_note(f"Type one of {', '.join(words)}.")


def _choose(question: str, *, accept: str, decline: str) -> str:
    answer = click.prompt(question, type=click.Choice([accept, decline, "cancel"]), default=accept, err=True)
    return {accept: "accept", decline: "decline"}.get(answer, "cancel")


def _ask_field(name: str, field: JsonMapping, *, is_required: bool) -> JsonValue:
    """Ask the user for one field of a form and return the value; `None` if an optional field is left empty."""
    label = BAR + shown(str(field.get("title") or name), MAX_LABEL)
    if field.get("description"):
        _print_quoted(str(field["description"]))
    kind = field.get("type")
    if kind == "boolean":
        return click.confirm(label, default=bool(field.get("default", False)), err=True)
    options = _options(field)
    if options:
        _print_quoted(", ".join(f"{value}" if value == title else f"{value} ({title})" for value, title in options))
    default = "" if field.get("default") is None else _offered(field["default"])
    offered = f"{label} [{shown(default, MAX_LABEL)}]" if default else label
    while True:
        text = str(click.prompt(offered, default="", show_default=False, err=True)).strip() or default
        if not text and not is_required:
            return None
        try:
            return _parse_field(text, field, [value for value, _ in options], is_required=is_required)
        except ValueError as error:
            print_note(str(error))


def _offered(default: JsonValue) -> str:
    return ",".join(map(str, cast("list[JsonValue]", default))) if isinstance(default, list) else str(default)


def _print_quoted(text: str) -> None:
    print_note("\n".join(fit("\n".join(quote(text)), shutil.get_terminal_size().columns)))


def _options(field: JsonMapping) -> list[tuple[str, str]]:
    """Return `(value, title)` for each choice of a form field, in every form that MCP allows in elicitation schemas."""
    source = cast("JsonMapping", field.get("items") or {}) if field.get("type") == "array" else field
    titled = cast("list[JsonMapping]", source.get("oneOf") or source.get("anyOf") or [])
    if titled:
        return [(str(option.get("const")), str(option.get("title", option.get("const")))) for option in titled]
    values = [str(value) for value in cast("list[JsonValue]", source.get("enum") or [])]
    titles = [str(title) for title in cast("list[JsonValue]", source.get("enumNames") or values)]
    return list(zip(values, titles, strict=False))


def _parse_field(text: str, field: JsonMapping, options: list[str], *, is_required: bool) -> JsonValue:
    if not text and is_required:
        raise ValueError("This one is required.")
    match field.get("type"):
        case "integer":
            return int(text)
        case "number":
            return float(text)
        case "array":
            chosen = [part.strip() for part in text.split(",") if part.strip()]
            unknown = [part for part in chosen if options and part not in options]
            if unknown:
                raise ValueError(f"{', '.join(unknown)}: not among the choices.")
            return cast("list[JsonValue]", chosen)
        case _:
            if options and text not in options:
                raise ValueError(f"{text!r} is not among the choices.")
            return text

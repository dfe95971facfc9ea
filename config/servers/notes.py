"""A small MCP server to start with: notes you can add, find, read and delete. Speaks MCP on standard input and output.

    NOTES_FILE=~/notes.json python notes.py

Without `NOTES_FILE` the notes live as long as the process. With it they are kept in that JSON file; several servers may
share one file. Needs only the `mcp` package and knows nothing of Moongate: any MCP host can start it.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from collections.abc import Awaitable, Callable, Generator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import mcp_types as t
from anyio import to_thread
from mcp.server.context import ServerRequestContext
from mcp.server.lowlevel import NotificationOptions, Server
from mcp.server.stdio import stdio_server
from mcp.server.subscriptions import InMemorySubscriptionBus, ListenHandler, ResourcesListChanged
from mcp.shared.exceptions import MCPError

MAX_TEXT_CHARS = 20_000
"""Longest note; what is longer belongs in a file."""

MAX_NOTES = 5_000
"""Notes in one notebook; the whole file is rewritten on every change."""

Ctx = ServerRequestContext[Any]
Arguments = dict[str, Any]


@dataclass(frozen=True)
class Note:
    """One note."""

    id: int
    text: str
    tags: list[str]
    created: str
    """UTC, ISO 8601."""

    @property
    def title(self) -> str:
        """The first line, shortened."""
        first = self.text.strip().partition("\n")[0]
        return first if len(first) <= 60 else first[:59] + "…"


class Refused(Exception):
    """A call that cannot be done; the text goes to the model."""


class Notebook:
    """Notes in order of their ids, in a file or in memory. Methods block; the server calls them in a thread."""

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self._memory = _empty()

    def all(self) -> list[Note]:
        """Every note, oldest first."""
        return [Note(**row) for row in self._read()["notes"]]

    def get(self, number: int) -> Note:
        """The note with this id."""
        for note in self.all():
            if note.id == number:
                return note
        raise Refused(f"There is no note {number}; list_notes shows which there are.")

    def add(self, text: str, tags: list[str]) -> Note:
        """Keep a new note."""
        with self._changing() as book:
            if len(book["notes"]) >= MAX_NOTES:
                raise Refused(f"The notebook is full ({MAX_NOTES} notes); delete some first.")
            created = datetime.now(UTC).isoformat(timespec="seconds")
            note = Note(book["next"], text, sorted({tag.strip().lower() for tag in tags if tag.strip()}), created)
            book["notes"].append(asdict(note))
            book["next"] += 1
        return note

    def delete(self, number: int) -> Note:
        """Remove a note and return what it was."""
        note = self.get(number)
        with self._changing() as book:
            book["notes"] = [row for row in book["notes"] if row["id"] != number]
        return note

    def search(self, query: str) -> list[Note]:
        """Notes that hold every word of `query` in text or tags, those that name the words most often first."""
        words = query.lower().split()
        found: list[tuple[int, Note]] = []
        for note in self.all():
            body = f"{note.text} {' '.join(note.tags)}".lower()
            if all(word in body for word in words):
                found.append((sum(body.count(word) for word in words), note))
        return [note for _, note in sorted(found, key=lambda hit: (-hit[0], -hit[1].id))]

    def _read(self) -> dict[str, Any]:
        if self._path is None:
            return self._memory
        try:
            return json.loads(self._path.read_text(encoding="utf-8"))
        except FileNotFoundError:
            return _empty()
        except (OSError, ValueError) as error:
            raise Refused(f"The notes file cannot be read ({error}); repair it or set NOTES_FILE to another one.") from None

    @contextmanager
    def _changing(self) -> Generator[dict[str, Any]]:
        """The notebook for changing, alone among all processes that share the file; stored on a clean exit."""
        if self._path is None:
            yield self._memory
            return
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            with _locked(self._path.with_name(self._path.name + ".lock")):
                book = self._read()
                yield book
                handle, name = tempfile.mkstemp(dir=self._path.parent, prefix=self._path.name)
                with os.fdopen(handle, "w", encoding="utf-8") as out:
                    json.dump(book, out, indent=1, ensure_ascii=False)
                Path(name).replace(self._path)
        except OSError as error:
            raise Refused(f"The notes file cannot be written: {error.strerror}.") from None


def _empty() -> dict[str, Any]:
    return {"next": 1, "notes": []}


@contextmanager
def _locked(path: Path) -> Generator[None]:
    """An exclusive lock shared with other processes; on Windows, where there is no `fcntl`, none."""
    with path.open("w") as handle:
        if sys.platform != "win32":
            import fcntl

            fcntl.flock(handle, fcntl.LOCK_EX)
        yield


def _schema(required: tuple[str, ...] = (), **properties: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "required": list(required), "additionalProperties": False}


_TEXT = {"type": "string", "minLength": 1, "maxLength": MAX_TEXT_CHARS, "description": "The note; its first line is its title."}
_TAGS = {"type": "array", "items": {"type": "string", "maxLength": 40}, "maxItems": 10, "description": "Words to group notes by."}
_ID = {"type": "integer", "minimum": 1, "description": "The number of a note."}
_LIMIT = {"type": "integer", "minimum": 1, "maximum": 100, "default": 20, "description": "At most so many."}
_NOTE = _schema(("id", "text", "tags", "created"), id=_ID, text=_TEXT, tags=_TAGS, created={"type": "string"})
_NOTES = _schema(("notes", "total"), notes={"type": "array", "items": _NOTE}, total={"type": "integer"})


class NotesServer:
    """The MCP side: tools, one resource per note, one prompt."""

    def __init__(self, book: Notebook) -> None:
        self._book = book
        self._bus = InMemorySubscriptionBus()
        self._session: Any = None
        read, change = t.ToolAnnotations(read_only_hint=True), t.ToolAnnotations(read_only_hint=False, destructive_hint=False)
        gone = t.ToolAnnotations(read_only_hint=False, destructive_hint=True, idempotent_hint=True)
        tag = {"type": "string", "description": "Only notes with this tag."}
        query = {"type": "string", "minLength": 1, "description": "Words that must all occur in the text or the tags."}
        self._tools: dict[str, tuple[Callable[[Arguments], Awaitable[Any]], t.Tool]] = {}
        for handler, description, hints, schema, output in (
            (self._add_note, "Keep a note for later.", change, _schema(("text",), text=_TEXT, tags=_TAGS), _NOTE),
            (self._search_notes, "Find notes by words.", read, _schema(("query",), query=query, limit=_LIMIT), _NOTES),
            (self._list_notes, "List notes, newest first.", read, _schema((), tag=tag, limit=_LIMIT), _NOTES),
            (self._delete_note, "Delete a note for good.", gone, _schema(("id",), id=_ID), _NOTE),
        ):
            name = handler.__name__.lstrip("_")
            tool = t.Tool(name=name, description=description, annotations=hints, input_schema=schema, output_schema=output)
            self._tools[name] = (handler, tool)

    def build(self) -> Server[Any]:
        """The SDK's server over these handlers."""
        server: Server[Any] = Server(
            "notes",
            version="1.0",
            instructions="Keeps short notes. Each is also a resource, note://ID.",
            get_tool_input_schema=lambda name: self._tools[name][1].input_schema if name in self._tools else None,
            on_list_tools=self._list_tools,
            on_call_tool=self._call_tool,
            on_list_resources=self._list_resources,
            on_list_resource_templates=self._list_templates,
            on_read_resource=self._read_resource,
            on_list_prompts=self._list_prompts,
            on_get_prompt=self._get_prompt,
            on_subscriptions_listen=ListenHandler(self._bus),
        )
        server.middleware.append(self._remember_session)
        return server

    async def _remember_session(self, ctx: Ctx, call_next: Callable[[Ctx], Awaitable[Any]]) -> Any:
        if ctx.method == "notifications/initialized":
            self._session = ctx.session
        return await call_next(ctx)

    async def _notes_changed(self) -> None:
        """Tell clients of both eras that the list of resources is another one now."""
        await self._bus.publish(ResourcesListChanged())
        if self._session is not None:
            await self._session.send_notification(t.ResourceListChangedNotification())

    async def _add_note(self, arguments: Arguments) -> dict[str, Any]:
        note = await to_thread.run_sync(self._book.add, arguments["text"], arguments.get("tags", []))
        await self._notes_changed()
        return asdict(note)

    async def _delete_note(self, arguments: Arguments) -> dict[str, Any]:
        note = await to_thread.run_sync(self._book.delete, arguments["id"])
        await self._notes_changed()
        return asdict(note)

    async def _search_notes(self, arguments: Arguments) -> dict[str, Any]:
        found = await to_thread.run_sync(self._book.search, arguments["query"])
        return {"notes": [asdict(note) for note in found[: arguments.get("limit", 20)]], "total": len(found)}

    async def _list_notes(self, arguments: Arguments) -> dict[str, Any]:
        tag = str(arguments.get("tag", "")).strip().lower()
        notes = [note for note in reversed(await to_thread.run_sync(self._book.all)) if not tag or tag in note.tags]
        return {"notes": [asdict(note) for note in notes[: arguments.get("limit", 20)]], "total": len(notes)}

    async def _list_tools(self, ctx: Ctx, params: t.PaginatedRequestParams | None) -> t.ListToolsResult:
        return t.ListToolsResult(tools=[tool for _, tool in self._tools.values()])

    async def _call_tool(self, ctx: Ctx, params: t.CallToolRequestParams) -> t.CallToolResult:
        if params.name not in self._tools:
            raise MCPError(-32602, f"Unknown tool: {params.name}")
        try:
            value = await self._tools[params.name][0](params.arguments or {})
        except Refused as refusal:
            return t.CallToolResult(content=[t.TextContent(type="text", text=str(refusal))], is_error=True)
        text = json.dumps(value, ensure_ascii=False)
        return t.CallToolResult(content=[t.TextContent(type="text", text=text)], structured_content=value)

    async def _list_resources(self, ctx: Ctx, params: t.PaginatedRequestParams | None) -> t.ListResourcesResult:
        notes = await self._for_resources(self._book.all)
        return t.ListResourcesResult(
            resources=[t.Resource(uri=f"note://{n.id}", name=f"note-{n.id}", title=n.title, mime_type="text/plain") for n in notes]
        )

    async def _list_templates(self, ctx: Ctx, params: t.PaginatedRequestParams | None) -> t.ListResourceTemplatesResult:
        template = t.ResourceTemplate(uri_template="note://{id}", name="note", description="A note by its number.", mime_type="text/plain")
        return t.ListResourceTemplatesResult(resource_templates=[template])

    async def _read_resource(self, ctx: Ctx, params: t.ReadResourceRequestParams) -> t.ReadResourceResult:
        uri = str(params.uri)
        number = uri.removeprefix("note://")
        if not (uri.startswith("note://") and number.isascii() and number.isdecimal()):
            raise MCPError(-32602, f"No such resource: {uri}", {"uri": uri})
        note = await self._for_resources(partial(self._book.get, int(number)), uri)
        return t.ReadResourceResult(contents=[t.TextResourceContents(uri=uri, mime_type="text/plain", text=note.text)])

    async def _for_resources(self, work: Callable[[], Any], uri: str = "") -> Any:
        """Run notebook work where a refusal has to be a protocol error."""
        try:
            return await to_thread.run_sync(work)
        except Refused as refusal:
            raise MCPError(-32602, str(refusal), {"uri": uri} if uri else None) from None

    async def _list_prompts(self, ctx: Ctx, params: t.PaginatedRequestParams | None) -> t.ListPromptsResult:
        argument = t.PromptArgument(name="topic", description="What the notes are about.", required=True)
        prompt = t.Prompt(name="sum_up", description="Sum up your notes on a topic.", arguments=[argument])
        return t.ListPromptsResult(prompts=[prompt])

    async def _get_prompt(self, ctx: Ctx, params: t.GetPromptRequestParams) -> t.GetPromptResult:
        topic = (params.arguments or {}).get("topic", "").strip()
        if params.name != "sum_up" or not topic:
            raise MCPError(-32602, "There is one prompt, sum_up, and it needs a topic.")
        notes = await self._for_resources(partial(self._book.search, topic))
        listed = "\n\n".join(f"[{note.id}] {note.created}\n{note.text}" for note in notes) or "(no note mentions it)"
        text = f"Sum up these notes about {topic}: what is decided, what is open, what contradicts. Cite note numbers.\n\n{listed}"
        return t.GetPromptResult(messages=[t.PromptMessage(role="user", content=t.TextContent(type="text", text=text))])


async def serve(path: Path | None) -> None:
    """Serve until the host closes standard input."""
    server = NotesServer(Notebook(path)).build()
    options = server.create_initialization_options(NotificationOptions(resources_changed=True))
    async with stdio_server() as (read, write):
        await server.run(read, write, options)


if __name__ == "__main__":
    named = os.environ.get("NOTES_FILE")
    anyio.run(serve, Path(named).expanduser() if named else None)

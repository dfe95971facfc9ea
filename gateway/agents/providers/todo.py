"""`TodoProvider`: gives an agent a todo list for each session. The API and the tools are agent-framework's."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NotRequired
from weakref import WeakKeyDictionary

import anyio
from typing_extensions import TypedDict

from gateway.agents.providers.todo_store import TodoCompleteInput, TodoInput, TodoItem, TodoSessionStore, TodoStore
from gateway.json_types import JsonObject
from gateway.sessions.session import AgentSession, SupportsAgentRun
from gateway.sessions.session_context import ContextProvider, SessionContext
from gateway.tools.function import FunctionTool
from gateway.tools.run_state_tool import RunStateTool
from gateway.types.messages import Message

DEFAULT_TODO_SOURCE_ID = "todo"

DEFAULT_TODO_INSTRUCTIONS = """\
## Todo list

You keep a todo list for this conversation. It is kept from turn to turn.
- Before work with more than one step, write the steps down with `todos_add`; one call takes several.
- When a step is done, tick it off with `todos_complete` and say how it was done.
- When the user changes course, add new items and remove those that no longer apply with `todos_remove`.
- `todos_get_remaining` lists the open items, `todos_get_all` the whole list."""


class TodoEntry(TypedDict):
    """An item to add to the todo list."""

    title: str
    description: NotRequired[str]


class CompletedEntry(TypedDict):
    """An item of the todo list that is done."""

    id: int
    reason: str


class TodoProvider(ContextProvider):
    """Context provider that gives an agent tools for a todo list, and adds the current list to each run."""

    def __init__(self, source_id: str = DEFAULT_TODO_SOURCE_ID, *, instructions: str | None = None, store: TodoStore | None = None) -> None:
        """Configure the provider. The list is stored in `store`, by default in the session's state."""
        super().__init__(source_id)
        self.instructions = instructions or DEFAULT_TODO_INSTRUCTIONS
        self.store = store or TodoSessionStore()
        self._locks: WeakKeyDictionary[AgentSession, anyio.Lock] = WeakKeyDictionary()

    @property
    def written_folders(self) -> Sequence[Path]:
        """The folder to which the store writes; empty if the store is not on disk.

        A gateway rejects a folder that contains code or configuration that the gateway runs.
        """
        return () if self.store.folder is None else (self.store.folder,)

    async def before_run(self, *, agent: SupportsAgentRun, session: AgentSession, context: SessionContext, state: JsonObject) -> None:
        """Add instructions, the todo tools and the session's current todo list to the run."""
        tools = _TodoTools(self.store, session, self.source_id, self._locks.setdefault(session, anyio.Lock()))
        context.extend_instructions(self.source_id, [self.instructions])
        context.extend_tools(self.source_id, tools.as_tools())
        items = await self.store.load_items(session, source_id=self.source_id)
        lines = [_line(item) for item in items] or ["- none yet"]
        context.extend_messages(self.source_id, [Message("user", ["### Current todo list\n" + "\n".join(lines)])])


class _TodoTools:
    """The tools for the todo list of one session. Models receive their names and docstrings; a lock serializes changes."""

    def __init__(self, store: TodoStore, session: AgentSession, source_id: str, lock: anyio.Lock) -> None:
        self._store = store
        self._session = session
        self._source_id = source_id
        self._lock = lock

    def as_tools(self) -> list[FunctionTool[..., Any]]:
        functions: Mapping[str, Callable[..., Any]] = {
            "todos_add": self.add,
            "todos_complete": self.complete,
            "todos_remove": self.remove,
            "todos_get_remaining": self.remaining,
            "todos_get_all": self.everything,
        }
        hints = {"todos_get_remaining": {"readOnlyHint": True}, "todos_get_all": {"readOnlyHint": True}}
        made = RunStateTool[..., Any] if isinstance(self._store, TodoSessionStore) else FunctionTool[..., Any]
        return [made(function, name=name, annotations=hints.get(name)) for name, function in functions.items()]

    async def add(self, todos: list[TodoEntry]) -> str:
        """Add one or more items to the todo list."""
        wanted = [TodoInput.from_dict(todo) for todo in _some(todos, "todos")]
        async with self._lock:
            items, next_id = await self._store.load_state(self._session, source_id=self._source_id)
            added = [TodoItem(next_id + n, todo.title, (todo.description or "").strip() or None) for n, todo in enumerate(wanted)]
            await self._save([*items, *added], next_id + len(added))
        return _dump(added)

    async def complete(self, items: list[CompletedEntry]) -> str:
        """Tick off one or more items; each entry has the item's id and the reason, which says how it was done."""
        done = {TodoCompleteInput.from_dict(entry).id for entry in _some(items, "items")}
        async with self._lock:
            known, next_id = await self._store.load_state(self._session, source_id=self._source_id)
            ticked = [item for item in known if item.id in done and not item.is_complete]
            for item in ticked:
                item.is_complete = True
            if ticked:
                await self._save(known, next_id)
        return json.dumps({"completed": len(ticked)})

    async def remove(self, ids: list[int]) -> str:
        """Remove one or more items from the list."""
        gone = set(_some(ids, "ids"))
        async with self._lock:
            known, next_id = await self._store.load_state(self._session, source_id=self._source_id)
            kept = [item for item in known if item.id not in gone]
            if len(kept) < len(known):
                await self._save(kept, next_id)
        return json.dumps({"removed": len(known) - len(kept)})

    async def remaining(self) -> str:
        """List the open items."""
        items = await self._store.load_items(self._session, source_id=self._source_id)
        return _dump([item for item in items if not item.is_complete])

    async def everything(self) -> str:
        """List all items, including completed ones."""
        return _dump(await self._store.load_items(self._session, source_id=self._source_id))

    async def _save(self, items: list[TodoItem], next_id: int) -> None:
        await self._store.save_state(self._session, items, next_id=next_id, source_id=self._source_id)


def _some(given: Sequence[Any], name: str) -> Sequence[Any]:
    if not given:
        raise ValueError(f"{name} must have at least one entry.")
    return given


def _dump(items: Sequence[TodoItem]) -> str:
    return json.dumps([item.to_dict(exclude_none=False) for item in items], ensure_ascii=False)


def _line(item: TodoItem) -> str:
    detail = f": {item.description}" if item.description else ""
    return f"- {item.id} [{'done' if item.is_complete else 'open'}] {item.title}{detail}"

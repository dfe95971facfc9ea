"""`Mem0ContextProvider`: memories of mem0, its hosted service or its own library. The extra `mem0` brings the client."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, ClassVar, Protocol, Self, cast

import anyio
import anyio.to_thread

from gateway.agents.providers.recalling import RecallingProvider
from gateway.errors import SettingNotFoundError
from gateway.json_types import JsonMapping, JsonObject
from gateway.lazy import import_extra
from gateway.sessions.context import SessionContext


class Mem0Client(Protocol):
    """What `AsyncMemoryClient` (hosted) and `AsyncMemory` (own) of the package `mem0ai` have in common."""

    async def search(self, query: str, **settings: Any) -> Any:
        """The memories nearest to a text."""
        ...

    async def add(self, messages: Any, **settings: Any) -> Any:
        """Take memories from messages."""
        ...


class Mem0ContextProvider(RecallingProvider):
    """Looks memories up before a run, and has mem0 take new ones from what was said."""

    DEFAULT_SOURCE_ID: ClassVar[str] = "mem0"

    def __init__(
        self,
        source_id: str = DEFAULT_SOURCE_ID,
        mem0_client: Mem0Client | None = None,
        api_key: str | None = None,
        application_id: str | None = None,
        agent_id: str | None = None,
        user_id: str | None = None,
        *,
        search_user_id: str | None = None,
        search_agent_id: str | None = None,
        context_prompt: str | None = None,
    ) -> None:
        """New memories belong to the user, the agent and the application that are given; at least one must be.

        Memories of `search_user_id` are looked up, which is `user_id` unless given. Those of a whole agent, which its users share,
        are looked up only for a `search_agent_id`. Without `mem0_client` the hosted service is used with `api_key`, or with
        `MEM0_API_KEY` of the environment.

        The hosted service is first reached in a run, so a program starts without it.

        Raises:
            ValueError: No owner for new memories is given.
            SettingNotFoundError: No client and no key is given.
            ModuleNotFoundError: No client is given and the extra is not installed.
        """
        super().__init__(source_id, context_prompt=context_prompt)
        self._owner = {key: value for key, value in _ids(user_id, agent_id, application_id).items() if value}
        if not self._owner:
            raise ValueError("Mem0ContextProvider needs at least one of user_id, agent_id and application_id.")
        self._scopes = [{"user_id": search_user_id or user_id}, {"agent_id": search_agent_id}]
        self.mem0_client = mem0_client
        self._made: Any = None
        self._making = anyio.Lock()
        if mem0_client is None:
            mem0 = import_extra("mem0", extra="mem0", purpose="Mem0ContextProvider")
            key = api_key or os.environ.get("MEM0_API_KEY")
            if not key:
                raise SettingNotFoundError("Mem0ContextProvider needs mem0_client=, or api_key= (MEM0_API_KEY).")
            self._make = partial(mem0.AsyncMemoryClient, api_key=key)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc: object) -> None:
        if self._made is not None and hasattr(self._made, "__aexit__"):
            await self._made.__aexit__(*exc)

    async def search(self, asked: Sequence[str], *, context: SessionContext, state: JsonObject) -> Sequence[str]:
        """Find memories, each once."""
        found: dict[str, None] = {}
        for scope in self._scopes:
            if all(scope.values()):
                answer = await (await self._client()).search("\n".join(asked), filters=dict(scope))
                found |= dict.fromkeys(_texts(answer))
        return list(found)

    async def store(self, said: Sequence[tuple[str, str]], *, context: SessionContext, state: JsonObject) -> None:
        """Have mem0 take memories from what was said."""
        await (await self._client()).add([{"role": role, "content": text} for role, text in said], **self._owner)

    async def _client(self) -> Mem0Client:
        """Return the client. That of the hosted service asks it about the key when it is made, and blocks meanwhile."""
        async with self._making:
            if self.mem0_client is None:
                self.mem0_client = self._made = await anyio.to_thread.run_sync(self._make)
        return self.mem0_client


def _ids(user_id: str | None, agent_id: str | None, application_id: str | None) -> dict[str, str | None]:
    return {"user_id": user_id, "agent_id": agent_id, "app_id": application_id}


def _texts(answer: object) -> list[str]:
    """The texts of an answer, which is a list of memories or an object with `results`."""
    results = cast("JsonMapping", answer).get("results") if isinstance(answer, Mapping) else answer
    items = cast("list[object]", results) if isinstance(results, list) else []
    return [str(cast("JsonMapping", item).get("memory") or "") for item in items if isinstance(item, Mapping)]

"""`Mem0ContextProvider`: stores and finds memories in mem0 (hosted service or library). The extra `mem0` installs the client."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, ClassVar, Protocol, cast

import anyio
import anyio.to_thread

from gateway.agents.providers.recalling import RecallingProvider
from gateway.errors import SettingNotFoundError
from gateway.json_types import JsonMapping, JsonObject, objects_in
from gateway.lazy import import_extra
from gateway.sessions.session_context import SessionContext


class Mem0Client(Protocol):
    """The common interface of `AsyncMemoryClient` (hosted) and `AsyncMemory` (library) of the package `mem0ai`."""

    async def search(self, query: str, **settings: Any) -> Any:
        """Return the stored memories that are most similar to the text `query`."""
        ...

    async def add(self, messages: Any, **settings: Any) -> Any:
        """Extract memories from messages and store them."""
        ...


class Mem0ContextProvider(RecallingProvider):
    """Context provider that adds memories that match a run's input, and sends the run's messages to mem0, which extracts new memories."""

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
        """Configure the owners of memories. New memories belong to `user_id`, `agent_id` and `application_id`; at least one is required.

        The search covers memories of `search_user_id` (default: `user_id`) and, if `search_agent_id` is given, the memories of that agent,
        which all its users share. Without `mem0_client` the hosted service is used with `api_key`, or `MEM0_API_KEY` of the environment.

        The first request to the hosted service is sent in a run, so that a program can start while the service is not reachable.

        Raises:
            ValueError: No owner for new memories is given.
            SettingNotFoundError: Neither `mem0_client` nor an API key is given.
            ModuleNotFoundError: `mem0_client` is not given and the extra is not installed.
        """
        super().__init__(source_id, context_prompt=context_prompt)
        owners = {"user_id": user_id, "agent_id": agent_id, "app_id": application_id}
        self._owner = {key: value for key, value in owners.items() if value}
        if not self._owner:
            raise ValueError("Mem0ContextProvider needs at least one of user_id, agent_id and application_id.")
        self._scopes = [{"user_id": search_user_id or user_id}, {"agent_id": search_agent_id}]
        self.mem0_client = mem0_client
        self._making = anyio.Lock()
        if mem0_client is None:
            mem0 = import_extra("mem0", extra="mem0", purpose="Mem0ContextProvider")
            key = api_key or os.environ.get("MEM0_API_KEY")
            if not key:
                raise SettingNotFoundError("Mem0ContextProvider needs mem0_client=, or api_key= (MEM0_API_KEY).")
            self._make = partial(mem0.AsyncMemoryClient, api_key=key)

    async def search(self, asked: Sequence[str], *, context: SessionContext, state: JsonObject) -> Sequence[str]:
        """Return the memories of the configured owners that match the run's input, without duplicates."""
        found: dict[str, None] = {}
        for scope in self._scopes:
            if all(scope.values()):
                answer = await (await self._client()).search("\n".join(asked), filters=dict(scope))
                found |= dict.fromkeys(_texts(answer))
        return list(found)

    async def store(self, spoken: Sequence[tuple[str, str]], *, context: SessionContext, state: JsonObject) -> None:
        """Send the run's messages to mem0, which extracts and stores memories."""
        await (await self._client()).add([{"role": role, "content": text} for role, text in spoken], **self._owner)

    async def _client(self) -> Mem0Client:
        """Return the mem0 client. It is created in a worker thread, because the hosted client's constructor sends a request and blocks."""
        async with self._making:
            if self.mem0_client is None:
                self.mem0_client = await anyio.to_thread.run_sync(self._make)
                self._opened.push_async_exit(self.mem0_client)
        return self.mem0_client


def _texts(answer: object) -> list[str]:
    """Return the texts of the memories in a response of mem0, which is a list of memories or an object with such a list as `results`."""
    results = cast("JsonMapping", answer).get("results") if isinstance(answer, Mapping) else answer
    return [str(item.get("memory") or "") for item in objects_in(results)]

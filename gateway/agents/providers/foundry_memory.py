"""`FoundryMemoryProvider`: memories of an agent in the memory store of a Microsoft Foundry project.

The extra `foundry-memory` installs the project client.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar, TypedDict

from gateway.agents.providers.recalling import RecallingProvider
from gateway.config.settings import load_settings
from gateway.errors import SettingNotFoundError
from gateway.json_types import JsonObject
from gateway.lazy import import_extra
from gateway.sessions.session_context import SessionContext

DEFAULT_UPDATE_DELAY = 300
"""Seconds without messages after which the service extracts memories from a conversation."""


class _Settings(TypedDict, total=False):
    project_endpoint: str | None


class FoundryMemoryProvider(RecallingProvider):
    """Context provider that adds memories that match a run's input, and sends the run's messages to Foundry, which extracts memories."""

    DEFAULT_SOURCE_ID: ClassVar[str] = "foundry_memory"

    def __init__(
        self,
        source_id: str = DEFAULT_SOURCE_ID,
        *,
        memory_store_name: str,
        scope: str | None = None,
        project_client: Any = None,
        project_endpoint: str | None = None,
        credential: Any = None,
        context_prompt: str | None = None,
        update_delay: int = DEFAULT_UPDATE_DELAY,
    ) -> None:
        """Configure the memory store. `scope` is the owner of the memories, such as a user id. Default: the session's id.

        `project_client` is an `AIProjectClient` of `azure.ai.projects.aio`, which the program closes. By default it is created from
        `project_endpoint` (or `FOUNDRY_PROJECT_ENDPOINT`) and `credential`.

        Raises:
            SettingNotFoundError: No project client is given, and the endpoint or the credential to create it is missing, too.
            ModuleNotFoundError: No project client is given and the extra is not installed.
        """
        super().__init__(source_id, context_prompt=context_prompt)
        self.memory_store_name = memory_store_name
        self.scope = scope
        self.update_delay = update_delay
        if project_client is None:
            endpoint = project_endpoint or load_settings(_Settings, env_prefix="FOUNDRY_").get("project_endpoint")
            if not endpoint or credential is None:
                text = "FoundryMemoryProvider needs project_client=, or project_endpoint= (FOUNDRY_PROJECT_ENDPOINT) and credential=."
                raise SettingNotFoundError(text)
            projects: Any = import_extra("azure.ai.projects.aio", extra="foundry-memory", purpose="FoundryMemoryProvider")
            project_client = projects.AIProjectClient(endpoint=endpoint, credential=credential)
            self._opened.push_async_callback(project_client.close)
        self.project_client = project_client

    async def search(self, asked: Sequence[str], *, context: SessionContext, state: JsonObject) -> Sequence[str]:
        """Return the owner's memories: general memories, and those that match the run's input.

        General memories do not depend on the input, so they are requested from the service once per session.
        """
        stores, whose = self.project_client.beta.memory_stores, {"name": self.memory_store_name, "scope": self._scope_of(context)}
        if "general" not in state:
            state["general"] = _texts(await stores.search_memories(**whose))
        items = [_item("user", text) for text in asked]
        found = await stores.search_memories(**whose, items=items, previous_search_id=state.get("search"))
        state["search"] = getattr(found, "search_id", None) or state.get("search")
        return list(dict.fromkeys([*state["general"], *_texts(found)]))

    async def store(self, spoken: Sequence[tuple[str, str]], *, context: SessionContext, state: JsonObject) -> None:
        """Send the user's and assistant's messages to Foundry, which extracts memories later; do not wait for the result."""
        update = await self.project_client.beta.memory_stores.begin_update_memories(
            name=self.memory_store_name,
            scope=self._scope_of(context),
            items=[_item(role, text) for role, text in spoken if role in ("user", "assistant")],
            previous_update_id=state.get("update"),
            update_delay=self.update_delay,
        )
        state["update"] = getattr(update, "update_id", None)

    def _scope_of(self, context: SessionContext) -> str:
        return self.scope or str(context.session_id)


def _item(role: str, text: str) -> JsonObject:
    return {"type": "message", "role": role, "content": text}


def _texts(found: Any) -> list[str]:
    return [str(memory.memory_item.content) for memory in found.memories]

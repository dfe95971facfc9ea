"""`FoundryAgentProvider`: agents that a Foundry project keeps, made and found there, run as agents here (requirements AG8).

The project knows such an agent's model, instructions and tools; a run names the agent and sends what was said. Functions
run here: whoever gets an agent brings those that it was made with. The agents of a provider share its connections.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast
from urllib.parse import quote

from gateway.agents.agent import Agent
from gateway.chat.base import BaseChatClient
from gateway.chat.foundry import API_PATH, FoundryChatClient
from gateway.chat.openai_endpoint import Credential, Key
from gateway.chat.responses import OpenAIChatClient
from gateway.chat.responses_request import to_request
from gateway.errors import ChatClientInvalidResponseException
from gateway.json_types import JsonMapping, JsonObject
from gateway.tools.given import normalize_tools, tell_apart
from gateway.types.messages import Message
from gateway.types.options import ChatOptions

if TYPE_CHECKING:
    from openai import AsyncOpenAI

API_VERSION = "v1"
"""Of the project's agents; what is below `API_PATH` has none."""

_KEPT_THERE = ("model", "instructions", "tools", "tool_choice", "parallel_tool_calls", "temperature", "top_p", "reasoning", "text")
"""Of a request: what the project has from the agent's definition, and refuses beside it."""


@dataclass(frozen=True, slots=True)
class AgentReference:
    """An agent that a project keeps: `name`, and a `version` where it is not the newest."""

    name: str
    version: str | None = None


@dataclass(frozen=True, slots=True)
class _Own:
    """What an agent has here and not in the project."""

    tools: Any
    middleware: Any
    context_providers: Sequence[Any] | None


class FoundryAgentProvider:
    """Makes and finds a project's agents. Owns its connections: `aclose` it, after its agents."""

    def __init__(
        self,
        *,
        project_endpoint: str | None = None,
        credential: Credential | None = None,
        api_key: Key | None = None,
        model: str | None = None,
        async_client: AsyncOpenAI | None = None,
        env_file_path: str | None = None,
    ) -> None:
        """As `FoundryChatClient`; `model` is that of agents which are made without one.

        Raises:
            SettingNotFoundError: Endpoint or a way in are missing; the text says what to set.
        """
        self._default_model = model
        self._client: FoundryChatClient[ChatOptions] = FoundryChatClient(
            project_endpoint=project_endpoint,
            model=model or "of the agent",
            credential=credential,
            api_key=api_key,
            async_client=async_client,
            env_file_path=env_file_path,
        )

    async def create_agent(
        self,
        name: str,
        *,
        model: str | None = None,
        instructions: str | None = None,
        description: str | None = None,
        tools: Any = None,
        options: JsonMapping | None = None,
        middleware: Any = None,
        context_providers: Sequence[Any] | None = None,
    ) -> Agent:
        """Make an agent in the project, or a new version of it, and give it as an agent here.

        `options` are more keys of its definition (`temperature`, `text`, …); the last two are `Agent`'s.

        Raises:
            ModelError: The project refused.
            ValueError: There is no model.
        """
        chosen = model or self._default_model
        if not chosen:
            raise ValueError(f"Agent {name!r} needs a model: pass model= here or to the provider.")
        offered = to_request([Message("user", [""])], {"tools": await _all_tools(tools)}).get("tools")
        definition: JsonObject = {"kind": "prompt", "model": chosen, **(options or {})}
        definition |= {key: value for key, value in (("instructions", instructions), ("tools", offered)) if value}
        body: JsonObject = {"definition": definition, **({"description": description} if description else {})}
        made = await self._ask(name, f"{self._agents(name)}/versions", body)
        return self._agent({"description": description, **_version(name, made)}, _Own(tools, middleware, context_providers))

    async def get_agent(
        self,
        name: str,
        *,
        version: str | None = None,
        tools: Any = None,
        middleware: Any = None,
        context_providers: Sequence[Any] | None = None,
    ) -> Agent:
        """Find an agent of the project. `tools` are the functions that it was made with; the last two are `Agent`'s.

        Raises:
            ModelError: The project has no such agent.
            ValueError: It has a function that is not among `tools`.
        """
        path = self._agents(name) + (f"/versions/{quote(version, safe='')}" if version else "")
        found = _version(name, await self._ask(name, path, None))
        definition = cast("JsonObject", found.get("definition") or {})
        there = cast("list[JsonObject]", definition.get("tools") or [])
        wanted = {str(tool.get("name")) for tool in there if tool.get("type") == "function"}
        here, _ = await tell_apart(normalize_tools(tools))
        if missing := sorted(wanted - {tool.definition.name for tool in here}):
            raise ValueError(f"Agent {name!r} has the functions {', '.join(map(repr, missing))}: pass them as tools=, they run here.")
        return self._agent(found, _Own(tools, middleware, context_providers))

    def as_agent(
        self,
        reference: AgentReference | JsonMapping | str,
        *,
        tools: Any = None,
        middleware: Any = None,
        context_providers: Sequence[Any] | None = None,
    ) -> Agent:
        """An agent for one that is known: its name, an `AgentReference`, or the project's own object. Asks nobody."""
        known: JsonObject
        if isinstance(reference, Mapping):
            known = _version(str(reference.get("name")), dict(reference))
        else:
            found = AgentReference(reference) if isinstance(reference, str) else reference
            known = {"name": found.name, "version": found.version}
        return self._agent(known, _Own(tools, middleware, context_providers))

    async def aclose(self) -> None:
        """Close the connections; the project keeps its agents."""
        await self._client.aclose()

    def _agents(self, name: str) -> str:
        return f"{self._client.service_url().rstrip('/').removesuffix(API_PATH)}/agents/{quote(name, safe='')}"

    async def _ask(self, name: str, path: str, body: JsonObject | None) -> JsonObject:
        return await self._client.connection.answer(name, f"{path}?api-version={API_VERSION}", body, subject=f"agent {name!r}")

    def _agent(self, known: JsonObject, own: _Own) -> Agent:
        reference = AgentReference(str(known["name"]), cast("str | None", known.get("version")))
        return Agent(
            FoundryAgentClient(self._client, reference),
            name=reference.name,
            description=cast("str | None", known.get("description")),
            tools=own.tools,
            middleware=own.middleware,
            context_providers=own.context_providers,
        )


class FoundryAgentClient(OpenAIChatClient[ChatOptions]):
    """The Responses API in the name of an agent of the project."""

    OTEL_PROVIDER_NAME = "azure.ai.foundry"

    def __init__(self, owner: FoundryChatClient[Any], reference: AgentReference) -> None:
        BaseChatClient.__init__(self, reference.name)  # the connection is the owner's
        self.connection = owner.connection
        self.instruction_role = None
        self.reference = reference

    def _request(self, messages: Sequence[Message], options: ChatOptions, model: str) -> JsonObject:
        """The request without what the agent's definition says."""
        sent = super()._request(messages, options, model)
        named = {"type": "agent_reference", "name": self.reference.name}
        if self.reference.version:
            named["version"] = self.reference.version
        return {"agent_reference": named, **{key: value for key, value in sent.items() if key not in _KEPT_THERE}}


async def _all_tools(tools: Any) -> list[Any]:
    ours, hosted = await tell_apart(normalize_tools(tools))
    return [*ours, *hosted]


def _version(name: str, found: JsonObject) -> JsonObject:
    """The version of an agent in what a project says of it: the version itself, or an agent with its newest one.

    Raises:
        ChatClientInvalidResponseException: It is neither.
    """
    newest = cast("JsonObject", found.get("versions") or {}).get("latest")
    version = cast("JsonObject", newest) if isinstance(newest, dict) else found
    if not isinstance(version.get("name", name), str) or not (version.get("version") or version.get("name")):
        raise ChatClientInvalidResponseException(f"The project said nothing that describes agent {name!r}.")
    return {"name": name, **version}

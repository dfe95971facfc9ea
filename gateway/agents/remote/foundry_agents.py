"""`FoundryAgentProvider`: creates and finds agents that a Microsoft Foundry project stores, and returns them as `Agent` objects.

The project stores an agent's definition: its model, instructions, tool definitions and some options. A run sends the agent's name, its
version if one was chosen, the messages, and the options that a definition does not set. Function tools are executed in this process, so
the program must pass the functions with which the agent was created. All agents of a provider share the provider's connections.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypedDict, Unpack, cast
from urllib.parse import quote

from gateway.agents.agent import Agent
from gateway.chat.chat_client import BaseChatClient
from gateway.chat.foundry_client import API_PATH, FoundryChatClient
from gateway.chat.openai_endpoint import Credential, Key
from gateway.chat.responses_client import OpenAIChatClient
from gateway.chat.responses_request import to_request
from gateway.errors import ChatClientInvalidResponseException
from gateway.json_types import JsonMapping, JsonObject
from gateway.tools.tool_lists import normalize_tools, separate_hosted_tools
from gateway.types.messages import Message
from gateway.types.options import ChatOptions

if TYPE_CHECKING:
    from openai import AsyncOpenAI

API_VERSION = "v1"
"""Value of the query parameter `api-version` in requests for the agents of a Foundry project."""

_KEPT_THERE = ("model", "instructions", "tools", "tool_choice", "parallel_tool_calls", "temperature", "top_p", "reasoning", "text")
"""Keys of a model request that the agent's definition in the Foundry project sets; the project rejects requests that contain them."""


@dataclass(frozen=True, slots=True)
class AgentReference:
    """Identifies an agent of a Foundry project by name and version. Without a version, the newest version is used."""

    name: str
    version: str | None = None


class OwnParts(TypedDict, total=False):
    """Arguments of `Agent` that a Foundry project does not store with its agent."""

    tools: Any
    middleware: Sequence[object] | None
    context_providers: Sequence[Any] | None


class FoundryAgentProvider:
    """Creates and finds the agents of a Foundry project, and returns them as `Agent` objects.

    The provider owns the connections that these agents use; call `aclose` after their last run.
    """

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
        """Configure the connection with the arguments of `FoundryChatClient`. `model` is the default model for `create_agent`.

        Raises:
            SettingNotFoundError: The endpoint or the credentials are missing; the text names the setting.
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
        options: JsonMapping | None = None,
        **own: Unpack[OwnParts],
    ) -> Agent:
        """Create an agent, or a new version of an existing agent, in the Foundry project, and return it as an `Agent`.

        `options` are keys of the agent's definition that are not parameters here (`temperature`, `text`, …). Functions in `tools` are
        executed in this process; `middleware` and `context_providers` are passed to `Agent`.

        Raises:
            ModelError: The project rejected the request.
            ValueError: No model is given, and the provider has no default.
        """
        chosen = model or self._default_model
        if not chosen:
            raise ValueError(f"Agent {name!r} needs a model: pass model= here or to the provider.")
        ours, hosted = await separate_hosted_tools(normalize_tools(own.get("tools")))
        offered = to_request([Message("user", [""])], {"tools": [*ours, *hosted]}).get("tools")
        definition: JsonObject = {"kind": "prompt", "model": chosen, **(options or {})}
        definition |= {key: value for key, value in (("instructions", instructions), ("tools", offered)) if value}
        body: JsonObject = {"definition": definition, **({"description": description} if description else {})}
        made = await self._ask(name, f"{self._agents(name)}/versions", body)
        return self._agent({"description": description, **_version(name, made)}, own)

    async def get_agent(
        self,
        name: str,
        *,
        version: str | None = None,
        **own: Unpack[OwnParts],
    ) -> Agent:
        """Find an agent of the Foundry project, and return it as an `Agent`.

        `own` are arguments of the returned `Agent`; the argument `tools` must contain the functions with which the agent was created.

        Raises:
            ModelError: The project has no such agent, or the request failed.
            ValueError: The agent has a function that is not in `tools`.
        """
        path = self._agents(name) + (f"/versions/{quote(version, safe='')}" if version else "")
        found = _version(name, await self._ask(name, path, None))
        definition = cast("JsonObject", found.get("definition") or {})
        there = cast("list[JsonObject]", definition.get("tools") or [])
        wanted = {str(tool.get("name")) for tool in there if tool.get("type") == "function"}
        here, _ = await separate_hosted_tools(normalize_tools(own.get("tools")))
        if missing := sorted(wanted - {tool.definition.name for tool in here}):
            raise ValueError(f"Agent {name!r} has the functions {', '.join(map(repr, missing))}: pass them as tools=, they run here.")
        return self._agent(found, own)

    def as_agent(
        self,
        reference: AgentReference | JsonMapping | str,
        **own: Unpack[OwnParts],
    ) -> Agent:
        """Return an `Agent` for an agent of the Foundry project, without sending a request.

        `reference` is a name, an `AgentReference`, or the JSON object that the project returned for the agent.
        """
        known: JsonObject
        if isinstance(reference, Mapping):
            known = _version(str(reference.get("name")), dict(reference))
        else:
            found = AgentReference(reference) if isinstance(reference, str) else reference
            known = {"name": found.name, "version": found.version}
        return self._agent(known, own)

    async def aclose(self) -> None:
        """Close the connections. The agents stay in the Foundry project."""
        await self._client.aclose()

    def _agents(self, name: str) -> str:
        return f"{self._client.service_url().rstrip('/').removesuffix(API_PATH)}/agents/{quote(name, safe='')}"

    async def _ask(self, name: str, path: str, body: JsonObject | None) -> JsonObject:
        return await self._client.connection.answer(name, f"{path}?api-version={API_VERSION}", body, subject=f"agent {name!r}")

    def _agent(self, known: JsonObject, own: OwnParts) -> Agent:
        reference = AgentReference(str(known["name"]), cast("str | None", known.get("version")))
        return Agent(
            FoundryAgentClient(self._client, reference),
            name=reference.name,
            description=cast("str | None", known.get("description")),
            **own,
        )


class FoundryAgentClient(OpenAIChatClient[ChatOptions]):
    """A chat client of the Responses API whose requests name an agent of a Foundry project instead of a model."""

    OTEL_PROVIDER_NAME = "azure.ai.foundry"

    def __init__(self, owner: FoundryChatClient[Any], reference: AgentReference) -> None:
        BaseChatClient.__init__(self, reference.name)  # not super(): the connection belongs to the owner
        self.connection = owner.connection
        self.instruction_role = None
        self.reference = reference

    def _request(self, messages: Sequence[Message], options: ChatOptions, model: str) -> JsonObject:
        """Return the body of a model request that names the agent, without the keys that the agent's definition sets."""
        sent = super()._request(messages, options, model)
        named = {"type": "agent_reference", "name": self.reference.name}
        if self.reference.version:
            named["version"] = self.reference.version
        return {"agent_reference": named, **{key: value for key, value in sent.items() if key not in _KEPT_THERE}}


def _version(name: str, found: JsonObject) -> JsonObject:
    """Return the JSON object that describes a version of an agent, from a response of the Foundry project.

    The response is that object itself, or an object that contains the newest version under `versions.latest`.

    Raises:
        ChatClientInvalidResponseException: The response does not describe an agent.
    """
    newest = cast("JsonObject", found.get("versions") or {}).get("latest")
    version = cast("JsonObject", newest) if isinstance(newest, dict) else found
    if not isinstance(version.get("name", name), str) or not (version.get("version") or version.get("name")):
        raise ChatClientInvalidResponseException(f"The project's response does not describe agent {name!r}.")
    return {"name": name, **version}

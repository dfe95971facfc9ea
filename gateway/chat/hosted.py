"""Hosted tools, which the model's provider runs: functions that return their settings, and protocols that show which client has which tool.

`isinstance(client, SupportsWebSearchTool)` is true if a client's provider can search the web; the protocol's static method returns the
settings to add to the tools of a model call. The names are those of Microsoft's agent framework. A program may replace the hosted shell by
a function of its own, which then runs on this machine.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Literal, Protocol, cast, runtime_checkable

from gateway.json_types import JsonMapping, JsonObject
from gateway.tools.function import FunctionTool


@runtime_checkable
class SupportsCodeInterpreterTool(Protocol):
    """Interface of a chat client whose provider can run code."""

    @staticmethod
    def get_code_interpreter_tool(*, file_ids: Sequence[str] | None = None) -> JsonObject:
        """Return the settings of the code interpreter tool, to be added to the tools of a model call.

        The given files are copied into the container in which the provider runs the code.
        """
        ...


@runtime_checkable
class SupportsWebSearchTool(Protocol):
    """Interface of a chat client whose provider can search the web."""

    @staticmethod
    def get_web_search_tool(*, user_location: JsonMapping | None = None) -> JsonObject:
        """Return the settings of the web search tool, to be added to the tools of a model call."""
        ...


@runtime_checkable
class SupportsImageGenerationTool(Protocol):
    """Interface of a chat client whose provider can generate images."""

    @staticmethod
    def get_image_generation_tool() -> JsonObject:
        """Return the settings of the image generation tool, to be added to the tools of a model call."""
        ...


@runtime_checkable
class SupportsMCPTool(Protocol):
    """Interface of a chat client whose provider can call remote MCP servers."""

    @staticmethod
    def get_mcp_tool(*, name: str, url: str | None = None) -> JsonObject:
        """Return the settings with which the provider calls one MCP server, to be added to the tools of a model call."""
        ...


@runtime_checkable
class SupportsFileSearchTool(Protocol):
    """Interface of a chat client whose provider can search in its vector stores."""

    @staticmethod
    def get_file_search_tool(*, vector_store_ids: Sequence[str]) -> JsonObject:
        """Return the settings of the file search tool, to be added to the tools of a model call."""
        ...


@runtime_checkable
class SupportsShellTool(Protocol):
    """Interface of a chat client whose provider has a shell tool."""

    @staticmethod
    def get_shell_tool() -> JsonObject | FunctionTool[..., object]:
        """Return the settings of the provider's shell tool. If a function is passed, return a tool that runs commands with it."""
        ...


def _settings(kind: str, **given: object) -> JsonObject:
    return {"type": kind, **{key: value for key, value in given.items() if value is not None}}


class ResponsesTools:
    """Mixin class whose methods return the settings of the hosted tools (run by the provider) of OpenAI's Responses API."""

    @staticmethod
    def get_code_interpreter_tool(
        *, file_ids: Sequence[str] | None = None, container: Literal["auto"] | JsonMapping = "auto"
    ) -> JsonObject:
        """Return the settings of a tool that runs Python in a container of the provider, into which the given files are copied."""
        place: JsonObject = dict(container) if isinstance(container, Mapping) else {"type": "auto"}
        return {"type": "code_interpreter", "container": place | ({"file_ids": list(file_ids)} if file_ids else {})}

    @staticmethod
    def get_web_search_tool(
        *,
        user_location: JsonMapping | None = None,
        search_context_size: Literal["low", "medium", "high"] | None = None,
        filters: JsonMapping | None = None,
    ) -> JsonObject:
        """Return the settings of the web search tool. `user_location` may have `city`, `country`, `region` and `timezone`."""
        place = {"type": "approximate", **user_location} if user_location else None
        return _settings("web_search", user_location=place, search_context_size=search_context_size, filters=filters)

    @staticmethod
    def get_image_generation_tool(
        *,
        size: str | None = None,
        output_format: Literal["png", "jpeg", "webp"] | None = None,
        model: str | None = None,
        quality: Literal["low", "medium", "high", "auto"] | None = None,
        partial_images: int | None = None,
        background: Literal["transparent", "opaque", "auto"] | None = None,
        moderation: Literal["auto", "low"] | None = None,
        output_compression: int | None = None,
    ) -> JsonObject:
        """Return the settings of the image generation tool. `size` is text such as `1024x1024`; `output_compression` is from 0 to 100."""
        return _settings(
            "image_generation",
            size=size,
            output_format=output_format,
            model=model,
            quality=quality,
            partial_images=partial_images,
            background=background,
            moderation=moderation,
            output_compression=output_compression,
        )

    @staticmethod
    def get_mcp_tool(
        *,
        name: str,
        url: str | None = None,
        description: str | None = None,
        approval_mode: Literal["always_require", "never_require"] | Mapping[str, Sequence[str]] | None = None,
        allowed_tools: Sequence[str] | None = None,
        headers: Mapping[str, str] | None = None,
        project_connection_id: str | None = None,
        authorization: str | None = None,
    ) -> JsonObject:
        """Return the settings with which the provider calls a remote MCP server. `headers` and `authorization` are sent to the provider.

        `approval_mode` is a mode for all tools, or a mapping with lists of tools under `always_require_approval` and
        `never_require_approval`.
        """
        approval: object = None
        if isinstance(approval_mode, str):
            approval = approval_mode.removesuffix("_require")
        elif approval_mode is not None:
            sides = {side: approval_mode.get(f"{side}_require_approval") for side in ("always", "never")}
            approval = {side: {"tool_names": list(names)} for side, names in sides.items() if names}
        return _settings(
            "mcp",
            server_label=name.replace(" ", "_"),
            server_url=url,
            server_description=description,
            require_approval=approval,
            allowed_tools=list(allowed_tools) if allowed_tools is not None else None,
            headers=dict(headers) if headers else None,
            project_connection_id=project_connection_id,
            authorization=authorization,
        )

    @staticmethod
    def get_file_search_tool(*, vector_store_ids: Sequence[str], max_num_results: int | None = None) -> JsonObject:
        """Return the settings of a tool that searches in vector stores of the provider."""
        return _settings("file_search", vector_store_ids=list(vector_store_ids), max_num_results=max_num_results)

    @staticmethod
    def get_shell_tool(
        *,
        func: Callable[..., object] | FunctionTool[..., object] | None = None,
        environment: Literal["auto"] | JsonMapping = "auto",
        name: str | None = None,
        description: str | None = None,
    ) -> JsonObject | FunctionTool[..., object]:
        """Return the settings of a shell in a container of the provider. If `func` is given, return a tool that calls it instead.

        `func` receives a command as its only argument, and runs it on this machine. Policies apply to these calls, like to calls of any
        other function tool.
        """
        if func is None:
            return {"type": "shell", "environment": {"type": "container_auto"} if environment == "auto" else dict(environment)}
        if isinstance(func, FunctionTool):
            return cast("FunctionTool[..., object]", func)
        return FunctionTool(func, name=name or "shell", description=description or "Runs a shell command and returns what it printed.")


class CompletionsTools:
    """Mixin class whose method returns the settings of web search, the only tool that OpenAI itself runs in its Chat Completions API."""

    @staticmethod
    def get_web_search_tool(*, web_search_options: JsonMapping | None = None) -> JsonObject:
        """Return the settings of web search, for models that support it. `web_search_options` is the object that the API defines."""
        return {"type": "web_search", **(web_search_options or {})}

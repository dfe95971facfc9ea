"""Tools that the provider runs itself: settings to put among the tools of a call, and what says which client has which.

`isinstance(client, SupportsWebSearchTool)` asks whether a client's provider can search the web (requirements CL6); the
static method gives the settings. Names are agent-framework's. Nothing of this runs on this machine, except a shell that
a program gives itself.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Literal, Protocol, cast, runtime_checkable

from gateway.json_types import JsonMapping, JsonObject
from gateway.tools.function import FunctionTool


@runtime_checkable
class SupportsCodeInterpreterTool(Protocol):
    """A client whose provider runs code."""

    @staticmethod
    def get_code_interpreter_tool(*, file_ids: Sequence[str] | None = None) -> JsonObject:
        """The tool's settings; the files are put into its container."""
        ...


@runtime_checkable
class SupportsWebSearchTool(Protocol):
    """A client whose provider searches the web."""

    @staticmethod
    def get_web_search_tool(*, user_location: JsonMapping | None = None) -> JsonObject:
        """The tool's settings."""
        ...


@runtime_checkable
class SupportsImageGenerationTool(Protocol):
    """A client whose provider makes images."""

    @staticmethod
    def get_image_generation_tool() -> JsonObject:
        """The tool's settings."""
        ...


@runtime_checkable
class SupportsMCPTool(Protocol):
    """A client whose provider calls remote MCP servers itself."""

    @staticmethod
    def get_mcp_tool(*, name: str, url: str | None = None) -> JsonObject:
        """The tool's settings for one server."""
        ...


@runtime_checkable
class SupportsFileSearchTool(Protocol):
    """A client whose provider searches vector stores."""

    @staticmethod
    def get_file_search_tool(*, vector_store_ids: Sequence[str]) -> JsonObject:
        """The tool's settings."""
        ...


@runtime_checkable
class SupportsShellTool(Protocol):
    """A client whose provider has a shell."""

    @staticmethod
    def get_shell_tool() -> JsonObject | FunctionTool[..., object]:
        """The tool's settings, or the function that stands for it."""
        ...


def _settings(kind: str, **given: object) -> JsonObject:
    return {"type": kind, **{key: value for key, value in given.items() if value is not None}}


class ResponsesTools:
    """The hosted tools of the Responses API."""

    @staticmethod
    def get_code_interpreter_tool(
        *, file_ids: Sequence[str] | None = None, container: Literal["auto"] | JsonMapping = "auto"
    ) -> JsonObject:
        """Runs Python in a container of the provider, with these of its files."""
        place: JsonObject = dict(container) if isinstance(container, Mapping) else {"type": "auto"}
        return {"type": "code_interpreter", "container": place | ({"file_ids": list(file_ids)} if file_ids else {})}

    @staticmethod
    def get_web_search_tool(
        *,
        user_location: JsonMapping | None = None,
        search_context_size: Literal["low", "medium", "high"] | None = None,
        filters: JsonMapping | None = None,
    ) -> JsonObject:
        """Searches the web; `user_location` may have `city`, `country`, `region` and `timezone`."""
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
        """Makes images; `size` is such as `1024x1024`, `output_compression` 0 to 100."""
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
        """Calls a remote MCP server from the provider's side; `headers` and `authorization` are sent to the provider.

        `approval_mode` may name tools under `always_require_approval` and `never_require_approval`.
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
        """Searches the provider's vector stores."""
        return _settings("file_search", vector_store_ids=list(vector_store_ids), max_num_results=max_num_results)

    @staticmethod
    def get_shell_tool(
        *,
        func: Callable[..., object] | FunctionTool[..., object] | None = None,
        environment: Literal["auto"] | JsonMapping = "auto",
        name: str | None = None,
        description: str | None = None,
    ) -> JsonObject | FunctionTool[..., object]:
        """A shell in a container of the provider; or, with `func`, a tool that runs commands here, through the same gate as any.

        `func` takes the command as its one argument.
        """
        if func is None:
            return {"type": "shell", "environment": {"type": "container_auto"} if environment == "auto" else dict(environment)}
        if isinstance(func, FunctionTool):
            return cast("FunctionTool[..., object]", func)
        return FunctionTool(func, name=name or "shell", description=description or "Runs a shell command and returns what it printed.")


class CompletionsTools:
    """The hosted tools of Chat Completions: one."""

    @staticmethod
    def get_web_search_tool(*, web_search_options: JsonMapping | None = None) -> JsonObject:
        """Searches the web, with the models that can; the options are the API's `web_search_options`."""
        return {"type": "web_search", **(web_search_options or {})}

"""The keyword settings of `MCPTool`, which have agent-framework's names, and their conversion to a gateway policy."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Literal, TypedDict, cast

from mcp_types import CallToolResult, CreateMessageRequestParams, GetPromptResult

from gateway.config.policies import SamplingPolicy, SourcePolicy
from gateway.config.suggest import did_you_mean
from gateway.types.content import Content
from gateway.upstream.task_follower import MCPTaskOptions

if TYPE_CHECKING:
    from mcp import ClientSession

    from gateway.chat.chat_context import SupportsChatGetResponse

SamplingApprovalCallback = Callable[[CreateMessageRequestParams], bool | Awaitable[bool]]
"""Function that decides on one sampling request, as the server sent it.

A truthy result approves the request. A falsy result or an exception refuses it.
"""

DEFAULT_SAMPLING_MAX_TOKENS = 4096
"""Default of the maximum number of tokens in one answer to a sampling request."""

DEFAULT_SAMPLING_MAX_REQUESTS = 25
"""Default of the maximum number of sampling requests per connection."""


class MCPSpecificApproval(TypedDict, total=False):
    """Names of the tools that always need, and that never need, a person's approval for each call: remote, normalised or local names.

    A tool in both lists needs approval.
    """

    always_require_approval: Collection[str] | None
    never_require_approval: Collection[str] | None


ApprovalMode = Literal["always_require", "never_require"] | MCPSpecificApproval


class MCPToolOptions(TypedDict, total=False):
    """Keyword settings of every `MCPTool`. The description of each setting states its default."""

    description: str | None
    """Description of the server for people; empty by default."""
    approval_mode: ApprovalMode | None
    """Which calls of a model a person must approve; `None`, the default: no calls."""
    allowed_tools: Collection[str] | None
    """Remote, normalised or local names of the tools and prompts that become functions. `None`, the default: all. Empty: none."""
    tool_name_prefix: str | None
    """Prefix of the functions' local names, joined to them with `_`; `None`, the default: no prefix."""
    load_tools: bool
    """Whether to list tools when connecting; true by default."""
    load_prompts: bool
    """Whether to list prompts when connecting; true by default."""
    parse_tool_results: Callable[[CallToolResult], str | list[Content]] | None
    """Function that converts results of tools, in place of the built-in conversion; `None` by default."""
    parse_prompt_results: Callable[[GetPromptResult], str] | None
    """Function that converts results of prompts, in place of the built-in conversion; `None` by default."""
    session: ClientSession | None
    """A session that the program opens and closes itself. Then no connection is opened, and the sampling settings do not apply."""
    request_timeout: float | None
    """Seconds for connecting, and for each call of a tool or prompt; by default 30 to connect and 120 for a call."""
    client: SupportsChatGetResponse | None
    """Chat client that answers sampling requests. With `None`, the default, sampling is not declared to the server."""
    sampling_approval_callback: SamplingApprovalCallback | None
    """Function that approves or refuses each sampling request. With `None`, the default, all requests are refused."""
    sampling_max_tokens: int | None
    """Maximum number of tokens in one answer to a sampling request; 4096 by default. `None`: no limit."""
    sampling_max_requests: int | None
    """Maximum number of sampling requests per connection; 25 by default. `None`: no limit, 0: no requests."""
    additional_properties: Mapping[str, object] | None
    """Values for the program's own use, stored as `MCPTool.additional_properties`; `None` by default."""
    task_options: MCPTaskOptions | None
    """Settings for calls that the server runs as long-running tasks; `None`: the defaults of `MCPTaskOptions`."""
    use_progressive_disclosure: bool
    """Whether a model first sees only three helper functions, with which it loads other functions; false by default."""
    always_load: Collection[str] | None
    """Names of functions that a model sees from the start if `use_progressive_disclosure` is true; none by default."""
    additional_tool_argument_names: str | Sequence[str] | Mapping[str, str | Sequence[str]] | None
    """Names of arguments that are sent although a tool does not declare them; none by default.

    A name or a sequence of names applies to all tools. In a mapping, each key is the remote name of the tool to which the names apply, or
    `*` for all tools.
    """


_APPROVAL_WORDS = ("always_require", "never_require")
_BY_TOOL = tuple(MCPSpecificApproval.__annotations__)


def check_options(options: MCPToolOptions) -> None:
    """Check the names of settings and the value of `approval_mode`, because ignoring a misspelled restriction would allow calls.

    Raises:
        TypeError: A setting is unknown, or `task_options` has another type.
        ValueError: `approval_mode` has an unknown value or key.
    """
    for name in options:
        if name not in MCPToolOptions.__annotations__:
            raise TypeError(f"Unknown setting {name!r}. {did_you_mean(name, MCPToolOptions.__annotations__)}".rstrip())
    tasks = cast("object", options.get("task_options"))
    if tasks is not None and not isinstance(tasks, MCPTaskOptions):
        raise TypeError(f"task_options must be MCPTaskOptions, not {type(tasks).__name__}.")
    mode = cast("object", options.get("approval_mode"))
    if mode is None:
        return
    words, known = ([mode], _APPROVAL_WORDS) if not isinstance(mode, Mapping) else (list(cast("Mapping[str, object]", mode)), _BY_TOOL)
    for word in words:
        if word not in known:
            raise ValueError(f"approval_mode: {word!r} is unknown. Known: {', '.join(known)}. {did_you_mean(str(word), known)}".rstrip())


def to_policy(options: MCPToolOptions) -> SourcePolicy:
    """Convert the settings to a gateway policy, which is the only policy for calls and requests for input of an `MCPTool`."""
    policy = SourcePolicy(
        additional_arguments=_extras(options.get("additional_tool_argument_names")),
        hidden_text="allow",
        sampling=SamplingPolicy(
            mode="answer" if options.get("client") is not None else "deny",
            max_tokens=options.get("sampling_max_tokens", DEFAULT_SAMPLING_MAX_TOKENS),
            max_requests=options.get("sampling_max_requests", DEFAULT_SAMPLING_MAX_REQUESTS),
        ),
    )
    seconds = options.get("request_timeout")
    return policy if seconds is None else policy.model_copy(update={"timeout_seconds": seconds, "connect_timeout_seconds": seconds})


def _extras(names: str | Sequence[str] | Mapping[str, str | Sequence[str]] | None) -> list[str] | dict[str, list[str]]:
    if names is None:
        return []
    if isinstance(names, str):
        return [names]
    if isinstance(names, Mapping):
        return {tool: [value] if isinstance(value, str) else list(value) for tool, value in names.items()}
    return list(names)


def needs_approval(mode: ApprovalMode | None, names: Collection[str]) -> bool | None:
    """Return whether a person must approve calls of a function, according to the setting `approval_mode`.

    `names` are the function's local, normalised and remote name. Return `None` if the setting does not mention the function.
    """
    if mode is None:
        return None
    if isinstance(mode, str):
        return mode == "always_require"
    if any(name in (mode.get("always_require_approval") or ()) for name in names):
        return True
    if any(name in (mode.get("never_require_approval") or ()) for name in names):
        return False
    return None

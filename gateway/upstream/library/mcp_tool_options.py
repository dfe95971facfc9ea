"""The settings of `MCPTool` under agent-framework's names, and the policy that they stand for."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Literal, TypedDict, cast

from mcp_types import CallToolResult, CreateMessageRequestParams, GetPromptResult

from gateway.config.policies import SamplingPolicy, SourcePolicy
from gateway.config.suggest import did_you_mean
from gateway.types.content import Content
from gateway.upstream.tasks import MCPTaskOptions

if TYPE_CHECKING:
    from mcp import ClientSession

    from gateway.chat.chat_context import SupportsChatGetResponse

SamplingApprovalCallback = Callable[[CreateMessageRequestParams], bool | Awaitable[bool]]
"""Decides on one sampling request, as the server sent it. A truthy result approves; a falsy one, or an exception, refuses."""

DEFAULT_SAMPLING_MAX_TOKENS = 4096
"""Maximum tokens of one sampling answer."""

DEFAULT_SAMPLING_MAX_REQUESTS = 25
"""Maximum sampling requests per connection."""


class MCPSpecificApproval(TypedDict, total=False):
    """Approval by tool. Names are remote, normalised or local ones. A tool in both lists requires approval."""

    always_require_approval: Collection[str] | None
    never_require_approval: Collection[str] | None


ApprovalMode = Literal["always_require", "never_require"] | MCPSpecificApproval


class MCPToolOptions(TypedDict, total=False):
    """Keyword settings of every `MCPTool`. The text of each setting names its default."""

    description: str | None
    """Description of the server for people; empty by default."""
    approval_mode: ApprovalMode | None
    """Which calls a person must approve; `None`: no call."""
    allowed_tools: Collection[str] | None
    """Remote, normalised or local names that become functions; `None`: all names. An empty collection: no name."""
    tool_name_prefix: str | None
    """Prefix of local names, joined with `_`; `None`: no prefix."""
    load_tools: bool
    """Whether to list tools when connecting; true by default."""
    load_prompts: bool
    """Whether to list prompts when connecting; true by default."""
    parse_tool_results: Callable[[CallToolResult], str | list[Content]] | None
    """Replaces the built-in parsing of tool results."""
    parse_prompt_results: Callable[[GetPromptResult], str] | None
    """Replaces the built-in parsing of prompt results."""
    session: ClientSession | None
    """A session that the program keeps. Then nothing is opened or closed, and the sampling settings do not apply."""
    request_timeout: float | None
    """Seconds for connecting and for each request; 30 to connect and 120 for a call by default."""
    client: SupportsChatGetResponse | None
    """Chat client that answers sampling requests; `None`: the server learns that sampling is not supported."""
    sampling_approval_callback: SamplingApprovalCallback | None
    """Decides on each sampling request; `None` refuses all."""
    sampling_max_tokens: int | None
    """Maximum tokens of one answer; 4096 by default. `None`: no limit."""
    sampling_max_requests: int | None
    """Sampling requests per connection; 25 by default. `None`: no limit, 0: none."""
    additional_properties: Mapping[str, object] | None
    """Values for the program's own use, kept as `MCPTool.additional_properties`."""
    task_options: MCPTaskOptions | None
    """How long-running calls are followed; `None`: the defaults."""
    use_progressive_disclosure: bool
    """Whether to show three helper functions, by which a model loads the others, instead of all; false by default."""
    always_load: Collection[str] | None
    """Names that progressive disclosure shows from the start."""
    additional_tool_argument_names: str | Sequence[str] | Mapping[str, str | Sequence[str]] | None
    """Arguments sent although undeclared: for every tool, or by remote tool name with `*` for all."""


_APPROVAL_WORDS = ("always_require", "never_require")
_BY_TOOL = tuple(MCPSpecificApproval.__annotations__)


def check_options(options: MCPToolOptions) -> None:
    """Reject unknown settings, because a misspelled restriction that is ignored would let calls through.

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
    """Return the gateway policy for these settings. Calls and requests for input are judged by this policy alone."""
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
    """Return whether a function known by any of `names` needs approval; `None` if the settings do not mention it."""
    if mode is None:
        return None
    if isinstance(mode, str):
        return mode == "always_require"
    if any(name in (mode.get("always_require_approval") or ()) for name in names):
        return True
    if any(name in (mode.get("never_require_approval") or ()) for name in names):
        return False
    return None

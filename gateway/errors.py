"""The one exception tree. Everything Moongate raises on purpose is in it.

    GatewayError
    ├── ConfigError(path)              the configuration cannot be used; `path` is a JSON path
    │   └── SettingNotFoundError       a required setting of `load_settings` has no value
    ├── PolicyDenied(rule, subject)    policy refused
    ├── NotFound(kind, name)           unknown or hidden: the two are never told apart
    ├── Collision(name, first, second) two sources claim one exposed name
    ├── AskUnavailable                 the caller cannot be asked (capability, policy or transport)
    │   └── AskExpired                 it was asked, and nobody answered in time
    │       └── AskWithdrawn           its question was withdrawn before that time
    ├── UpstreamError(server)          a remote MCP server failed
    │   ├── UpstreamUnavailable        nothing was delivered: not connected, refused, gone
    │   │   ├── AuthNeeded             the server wants credentials the gateway does not have
    │   │   ├── SessionGone            the server no longer knows our session and did not take the request
    │   │   └── UpstreamBusy           the server turned the request away for now (`retry_after_seconds`)
    │   ├── UpstreamLost               the connection broke while the call ran; it may have run
    │   ├── UpstreamTimeout            no answer within the deadline
    │   └── UpstreamRefused            it answered with a JSON-RPC error (`code`, `data`)
    ├── ToolFailed                     a tool could not do its work; the text is for the model
    │   └── UserInputRequired(contents) a tool needs a person first; inside an agent's run these contents end it
    ├── ContentError                   a content of a message is unusable
    │   └── AdditionItemMismatch       two contents are no parts of one thing
    ├── MiddlewareException            middleware is unusable, or says how the call goes on
    │   ├── MiddlewareTermination      stop here, with the result there is
    │   └── MiddlewareFailure          fail the whole run, also from around a tool call
    ├── ModelError                     a chat model failed (`status`, `retryable`, `retry_after_seconds`); also `ChatClientException`
    │   ├── ChatClientInvalidAuthException      the endpoint refused the key
    │   ├── ChatClientInvalidRequestException   it rejected the request, or does not know the model
    │   ├── ChatClientInvalidResponseException  what it answered could not be read
    │   └── ChatClientContentFilterException    its content filter refused; also `OpenAIContentFilterException`
    ├── AgentError                     an agent definition or run is unusable
    │   ├── AgentInvalidRequestException  it cannot be asked this, or not in this way
    │   └── UnknownTool(name)          the model called a tool that does not exist, and the run may not go on then
    ├── WorkflowError
    │   ├── WorkflowInvalid            the graph cannot be built
    │   │   └── WorkflowValidationError  … which check refused it (`validation_type`): edges twice, types, reachability
    │   ├── WorkflowFailed             an executor failed while running
    │   └── WorkflowRunnerException    a run cannot go on
    │       ├── WorkflowConvergenceException  it did not come to rest
    │       └── WorkflowCheckpointException   a checkpoint cannot be kept, read, or used with this graph
    ├── TaskError                      long-running work failed
    ├── SkillError                     a skill cannot be read
    └── StorageError                   the gateway's own state cannot be read or written
        ├── StorageUnusable(passes)    its database or folder does not work; the text is the operator's, not a caller's
        └── TooLargeToKeep             more than one caller may keep

Constructors only store fields. Messages say what, which name, and what to do; they never carry secrets
or a peer's raw body. `server.errors` is the only place that turns these into wire errors.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import cast, overload

from gateway.json_types import JsonMapping, JsonObject, JsonValue


class GatewayError(Exception):
    """Base of everything Moongate raises on purpose."""

    def __init__(self, message: object = "", *args: object, inner_exception: BaseException | None = None) -> None:
        """`inner_exception` is what it came from, as agent-framework's own code says it; `raise … from` does the same."""
        super().__init__(message, *args)
        if inner_exception is not None:
            self.__cause__ = inner_exception


class ConfigError(GatewayError):
    """The configuration cannot be used. `path` is a JSON path such as `mcpServers.docs.url`, or a file."""

    def __init__(self, message: str, *, path: str = "") -> None:
        super().__init__(message)
        self.path = path


class SettingNotFoundError(ConfigError):
    """A required setting has no value, or more than one of those that exclude each other has."""


class PolicyDenied(GatewayError):
    """Policy refused `subject`; `rule` is a stable id such as `arguments.read_text.path`."""

    def __init__(self, message: str, *, rule: str, subject: str) -> None:
        super().__init__(message)
        self.rule = rule
        self.subject = subject


class NotFound(GatewayError):
    """No such thing, or one the caller may not see. `kind` is `tool`, `resource`, `prompt`, `skill`, …"""

    def __init__(self, kind: str, name: str, message: str = "") -> None:
        super().__init__(message or f"Unknown {kind}: {name}")
        self.kind = kind
        self.name = name


class Collision(GatewayError):
    """Two sources claim one exposed name."""

    def __init__(self, message: str, *, name: str, first: str, second: str) -> None:
        super().__init__(message)
        self.name = name
        self.first = first
        self.second = second


class AskUnavailable(GatewayError):
    """The caller cannot be asked. `capability` is what it would have had to declare, e.g. `sampling`."""

    def __init__(self, message: str, *, capability: str) -> None:
        super().__init__(message)
        self.capability = capability


class AskExpired(AskUnavailable):
    """The caller was asked and did not answer in time; `capability` is empty, because nothing is missing."""

    def __init__(self, message: str) -> None:
        super().__init__(message, capability="")


class AskWithdrawn(AskExpired):
    """The question was withdrawn before its time was over: the client was lost, or other callers waited for the server."""


class UpstreamError(GatewayError):
    """The remote MCP server `server` failed."""

    def __init__(self, message: str, *, server: str) -> None:
        super().__init__(message)
        self.server = server


class UpstreamUnavailable(UpstreamError):
    """Nothing was delivered to the server, so trying again cannot run anything twice."""


class AuthNeeded(UpstreamUnavailable):
    """The server wants credentials that the gateway does not have; the text names the command or the key that helps."""


class SessionGone(UpstreamUnavailable):
    """The server no longer knows our session and did not take the request; a new session helps."""


class UpstreamBusy(UpstreamUnavailable):
    """The server turned the request away and asked to be left alone for `retry_after_seconds`."""

    def __init__(self, message: str, *, server: str, retry_after_seconds: float) -> None:
        super().__init__(message, server=server)
        self.retry_after_seconds = retry_after_seconds


class UpstreamLost(UpstreamError):
    """The connection broke after the request went out; the call may have run."""


class UpstreamTimeout(UpstreamError):
    """No answer within the deadline; the call may have run."""


class UpstreamRefused(UpstreamError):
    """The server answered with a JSON-RPC error."""

    def __init__(self, message: str, *, server: str, code: int, data: JsonValue = None) -> None:
        super().__init__(message, server=server)
        self.code = code
        self.data = data


class ToolFailed(GatewayError):
    """A tool could not do its work. The text becomes an `isError` result that the model reads."""


class AnswerRefused(ToolFailed):
    """An answer does not fit its question, which stays open. The text names the question, what it takes and what is wrong."""


class UserInputRequired(ToolFailed):
    """A tool needs a person first. Inside an agent's run `contents` end the run and wait for an answer (requirements TL15)."""

    def __init__(self, contents: Sequence[object], message: str = "This tool needs a person's answer first.") -> None:
        super().__init__(message)
        self.contents = list(contents)


class ContentError(GatewayError, ValueError):
    """A content of a message is unusable."""


class AdditionItemMismatch(ContentError):
    """Two contents are no parts of one thing, so they cannot be joined."""


class MiddlewareException(GatewayError):
    """Middleware is unusable. The two below it are raised by middleware on purpose."""


class MiddlewareTermination(MiddlewareException):
    """Stop the chain here. The outcome is `context.result` where that was set, else `result` (requirements C15)."""

    def __init__(self, message: str = "Middleware ended this.", *, result: object = None) -> None:
        super().__init__(message)
        self.result = result


class MiddlewareFailure(MiddlewareException):
    """Fail closed: the whole run ends with this error, even when it comes from around a tool call (requirements MW16)."""


class ModelError(GatewayError):
    """A chat model failed. `status` is the HTTP status where there was one."""

    retry_after_seconds: float | None = None
    """How long the endpoint asked to be left alone, where it did."""

    def __init__(self, message: str, *, status: int | None = None, retryable: bool = False) -> None:
        super().__init__(message)
        self.status = status
        self.retryable = retryable


class ChatClientInvalidAuthException(ModelError):
    """The endpoint refused the key."""


class ChatClientInvalidRequestException(ModelError):
    """The endpoint rejected the request, or does not know the model; sending the same again gives the same."""


class ChatClientInvalidResponseException(ModelError):
    """What the endpoint answered could not be read."""


class ChatClientContentFilterException(ModelError):
    """The provider's content filter refused; `content_filter_result` says by category what it found, where it says so."""

    def __init__(self, message: str, *, status: int | None = None, content_filter_result: JsonObject | None = None) -> None:
        super().__init__(message, status=status)
        self.content_filter_result: JsonObject = content_filter_result or {}


OpenAIContentFilterException = ChatClientContentFilterException
"""agent-framework's name for the one of its OpenAI clients."""


class AgentError(GatewayError):
    """An agent definition or run is unusable."""


class AgentInvalidRequestException(AgentError):
    """An agent cannot be asked this, or not in this way."""


class UnknownTool(AgentError, KeyError):
    """The model called tool `name`, which does not exist, and the run's limits say that this ends it."""

    def __init__(self, name: str | None) -> None:
        super().__init__(f'Error: Requested function "{name}" not found: the model called it, and it is no tool of this run.')
        self.name = name

    __str__ = Exception.__str__  # KeyError's shows the repr


class WorkflowError(GatewayError):
    """Base of workflow failures."""


class WorkflowInvalid(WorkflowError):
    """The graph cannot be built; the text names the executor or edge."""


class WorkflowFailed(WorkflowError):
    """Executor `executor` failed while the workflow ran."""

    def __init__(self, message: str, *, executor: str) -> None:
        super().__init__(message)
        self.executor = executor


class WorkflowRunnerException(WorkflowError):
    """A run of a workflow cannot go on."""


class WorkflowConvergenceException(WorkflowRunnerException):
    """A run did not come to rest within its rounds."""


class WorkflowCheckpointException(WorkflowRunnerException):
    """A checkpoint cannot be kept or read, or belongs to another graph."""


class TaskError(GatewayError):
    """Long-running work failed."""


class SkillError(GatewayError):
    """A skill cannot be read. `code` is a stable diagnostic code such as `no-frontmatter`."""

    def __init__(self, message: str, *, code: str = "") -> None:
        super().__init__(message)
        self.code = code


class StorageError(GatewayError):
    """The gateway's own state cannot be read or written."""


class StorageUnusable(StorageError):
    """The gateway's database, or its folder, does not work. The text names it and what is wrong: it is for the log and the operator
    (`text_for_caller`). It `passes` where the same may work later: a server that is away, a disk that is full.
    """

    def __init__(self, message: str, *, passes: bool = True) -> None:
        super().__init__(message)
        self.passes = passes


class TooLargeToKeep(StorageError):
    """More than the configuration lets one caller keep; its text is fit for the caller."""


STORAGE_TEXT = "The gateway's own database or state folder does not work at the moment; its log says why. Try again later."
"""What callers read in place of a `StorageUnusable`'s text."""


def text_for_caller(error: BaseException) -> str:
    """What a caller may read of an error of ours: where the gateway keeps its state, and how that fails, is the operator's business."""
    text = str(error)
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, StorageUnusable):
            text = text.replace(str(cause), STORAGE_TEXT)
        cause = cause.__cause__
    return text


def said_by(error: BaseException) -> str:
    """An exception of the operator's own code in words: its class and its text. Whoever shows the result masks secrets."""
    text = text_for_caller(error).strip()
    name = type(error).__name__
    return f"{name}: {text}" if text else name


CODE_ERRORS = (Exception, SystemExit, KeyboardInterrupt)
"""What calls of the operator's own code catch. In a task, `SystemExit` and `KeyboardInterrupt` would end the whole process. A Ctrl-C of the
operator is not among them: the gateway's signal handlers take it in the event loop."""


def without_exit(error: BaseException, wrap: Callable[[str], GatewayError]) -> Exception:
    """Return an error of `CODE_ERRORS`, or a group's one error; if it is not an `Exception`, what `wrap` makes of its text."""
    cause = error if isinstance(error, Exception) else only_cause(error)
    return cause if isinstance(cause, Exception) else wrap(said_by(cause))


def mask_secrets(error: GatewayError, mask: Callable[[str], str]) -> None:
    """Take secrets out of what an error says: a server may repeat what it was given."""
    error.args = tuple(mask(part) if isinstance(part, str) else part for part in error.args)
    if isinstance(error, UpstreamRefused):
        error.data = masked(error.data, mask)


def masked(value: JsonValue, mask: Callable[[str], str]) -> JsonValue:
    """A JSON value without secrets."""
    if isinstance(value, str):
        return mask(value)
    if isinstance(value, dict):
        return {mask(key): masked(inner, mask) for key, inner in cast("JsonMapping", value).items()}
    if isinstance(value, list):
        return [masked(inner, mask) for inner in cast("list[JsonValue]", value)]
    return value


@overload
def only_cause(error: Exception) -> Exception: ...
@overload
def only_cause(error: BaseException) -> BaseException: ...
def only_cause(error: BaseException) -> BaseException:
    """The one exception inside nested groups of one, as task groups make them; else `error` itself."""
    cause = error
    while isinstance(cause, BaseExceptionGroup):
        group = cast("BaseExceptionGroup[BaseException]", cause)
        if len(group.exceptions) != 1:
            return group
        cause = group.exceptions[0]
    return cause


# Agent-framework's names, where they differ.
AgentFrameworkException = GatewayError
AgentException = AgentError
ChatClientException = ModelError
IntegrationException = UpstreamError
ToolException = ToolFailed
ToolExecutionException = ToolFailed
UserInputRequiredException = UserInputRequired
WorkflowException = WorkflowError

"""The exception tree: every exception that Moongate raises on purpose.

    GatewayError
    ├── ConfigError(path)              the configuration cannot be used; `path` is a JSON path
    │   └── SettingNotFoundError       a required setting of `load_settings` has no value
    ├── PolicyDenied(rule, subject)    policy refused a call or another access
    ├── NotFound(kind, name)           unknown or hidden; callers cannot distinguish the two
    ├── Collision(name, first, second) two sources claim one exposed name
    ├── InputUnavailable                 the caller cannot receive a request for input (capability, policy or transport)
    │   └── InputExpired                 the caller did not answer a request for input in time
    │       └── InputWithdrawn           the request for input was withdrawn before the timeout
    ├── UpstreamError(server)          a remote MCP server failed
    │   ├── RequestFailure             one request failed; the subclass shows whether the server may have executed it
    │   │   ├── NotSent                the request was not delivered, or the server rejected it unread
    │   │   │   ├── Unreachable        no connection to the server could be made
    │   │   │   ├── NotReadyInTime     the server did not become ready within `connectTimeoutSeconds`
    │   │   │   ├── Unauthorized       the server requires credentials that the gateway does not have (HTTP 401)
    │   │   │   ├── SessionGone        the server has ended the session and did not accept the request
    │   │   │   └── Busy               the server is overloaded (HTTP 429, 503; `retry_after_seconds`)
    │   │   ├── OutcomeUnknown         the connection broke after the request was sent; the call may have run
    │   │   │   └── Malformed          the response is not a JSON-RPC response to the request; the call may have run
    │   │   ├── TooLarge               the response exceeds a size limit, or is large and was not processed in time
    │   │   ├── Forbidden              the credentials do not permit this request (HTTP 403)
    │   │   └── Rejected               the server answered with a JSON-RPC error (`code`, `data`)
    │   └── UpstreamTimeout            no response within the deadline; the call may have run
    ├── ToolFailed                     a tool could not do its work; the text is for the model
    │   ├── AnswerRefused              an answer does not fit the question of a task; the question stays open
    │   └── UserInputRequired(contents) a tool needs a person's answer first; inside an agent's run these contents end the run
    ├── ContentError                   a content of a message is unusable
    │   └── AdditionItemMismatch       two contents cannot be joined
    ├── MiddlewareException            middleware is unusable, or ends the call on purpose
    │   ├── MiddlewareTermination      end the chain with the current result
    │   └── MiddlewareFailure          fail the whole run, also from around a tool call
    ├── ModelError                     a chat model failed (`status`, `retryable`, `retry_after_seconds`); also `ChatClientException`
    │   ├── ChatClientInvalidAuthException      the endpoint refused the key
    │   ├── ChatClientInvalidRequestException   the endpoint rejected the request, or does not know the model
    │   ├── ChatClientInvalidResponseException  the response could not be parsed
    │   └── ChatClientContentFilterException    the provider's content filter refused; also `OpenAIContentFilterException`
    ├── AgentError                     an agent definition or run is unusable
    │   ├── AgentInvalidRequestException  the agent does not support this request
    │   └── UnknownTool(name)          the model called an unknown tool, which ends the run
    ├── WorkflowError                  a workflow failed
    │   ├── WorkflowInvalid            the graph cannot be built
    │   │   └── WorkflowValidationError  a check of the graph failed (`validation_type`): duplicate edges, types, reachability
    │   ├── WorkflowFailed             an executor failed while running
    │   └── WorkflowRunnerException    a run cannot continue
    │       ├── WorkflowConvergenceException  the run still had messages to deliver after its maximum number of rounds
    │       └── WorkflowCheckpointException   a checkpoint cannot be stored, read, or used with this graph
    ├── TaskError                      a task of a remote MCP server failed
    ├── SkillError                     a skill cannot be read
    └── StorageError                   the gateway's own state cannot be read or written
        ├── StorageUnusable(passes)    the gateway's database, folder or bucket does not work; callers do not see the message
        └── TooLargeToKeep             a caller exceeds its quota of stored results

Constructors only store fields. A message says what failed, names the object and says what to do; it never contains secrets or the raw body
of a response. Only `gate.rpc_errors` converts these exceptions to JSON-RPC errors.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import cast, overload

from gateway.json_types import JsonMapping, JsonObject, JsonValue


class GatewayError(Exception):
    """Base of every exception that Moongate raises on purpose."""

    def __init__(self, message: object = "", *args: object, inner_exception: BaseException | None = None) -> None:
        """Set `__cause__` to `inner_exception`, as agent-framework's exceptions do; `raise … from` has the same effect."""
        super().__init__(message, *args)
        if inner_exception is not None:
            self.__cause__ = inner_exception


class ConfigError(GatewayError):
    """The configuration of the gateway cannot be used. `path` is a JSON path such as `mcpServers.docs.url`, or a file."""

    def __init__(self, message: str, *, path: str = "") -> None:
        super().__init__(message)
        self.path = path


class SettingNotFoundError(ConfigError):
    """A required setting of a chat client or other library class has no value, or several settings that exclude each other have values."""


class PolicyDenied(GatewayError):
    """The gateway's policy refused access to a tool or object (`subject`). `rule` is a stable id such as `arguments.read_text.path`."""

    def __init__(self, message: str, *, rule: str, subject: str) -> None:
        super().__init__(message)
        self.rule = rule
        self.subject = subject


class NotFound(GatewayError):
    """A tool, resource or other object does not exist, or the caller may not see it. `kind` is `tool`, `resource`, `prompt` or similar."""

    def __init__(self, kind: str, name: str, message: str = "") -> None:
        super().__init__(message or f"Unknown {kind}: {name}")
        self.kind = kind
        self.name = name


class Collision(GatewayError):
    """Two sources (servers, agent files, …) would publish a tool under the same name."""

    def __init__(self, message: str, *, name: str, first: str, second: str) -> None:
        super().__init__(message)
        self.name = name
        self.first = first
        self.second = second


class InputUnavailable(GatewayError):
    """The caller cannot receive a request for input or sampling. `capability` is the missing client capability, for example `sampling`."""

    def __init__(self, message: str, *, capability: str) -> None:
        super().__init__(message)
        self.capability = capability


class InputExpired(InputUnavailable):
    """The caller did not answer a request for input in time. No client capability is missing, so `capability` is empty."""

    def __init__(self, message: str) -> None:
        super().__init__(message, capability="")


ASK_AGAIN = "call again when somebody can answer; the operator can raise `server.askTimeoutSeconds`, for tasks `tasks.askTimeoutSeconds`"
"""What to do after an `InputExpired`, as the end of a sentence."""


class InputWithdrawn(InputExpired):
    """The gateway withdrew a request for input before the timeout.

    The client disconnected, or the remote server that waits for the answer serves one client at a time, and other clients waited for it.
    """


class UpstreamError(GatewayError):
    """The remote MCP server `server` failed."""

    def __init__(self, message: str, *, server: str) -> None:
        super().__init__(message)
        self.server = server


class RequestFailure(UpstreamError):
    """One request to a remote server failed. Every transport raises one of the subclasses; `policy.retry_safety` decides by the subclass
    whether the request may be resent.
    """


class NotSent(RequestFailure):
    """The request to a remote server was not delivered, or was rejected unread, so resending it cannot run a call twice."""


class Unreachable(NotSent):
    """No connection to the remote server could be made: nothing listens there, or the network or TLS failed."""


class NotReadyInTime(NotSent):
    """The remote server did not become ready within `connectTimeoutSeconds`."""


class Unauthorized(NotSent):
    """The remote server requires credentials that the gateway does not have. The message names the command or the key that helps."""


class SessionGone(NotSent):
    """The remote server has ended the MCP session and did not accept the request; a new session helps."""


class Busy(NotSent):
    """The remote server is overloaded and rejected the request. It accepts requests again after `retry_after_seconds`."""

    def __init__(self, message: str, *, server: str, retry_after_seconds: float) -> None:
        super().__init__(message, server=server)
        self.retry_after_seconds = retry_after_seconds


class OutcomeUnknown(RequestFailure):
    """The connection to a remote server broke after the request was sent, so the call may have run."""


class Malformed(OutcomeUnknown):
    """The response of a remote server is not a JSON-RPC response to the request; the call may have run."""


class TooLarge(RequestFailure):
    """The response of a remote server exceeds a size limit, or is large and could not be read or parsed in time.

    The call has run or still runs, and a second call would probably have a response of the same size.
    """


class Forbidden(RequestFailure):
    """The gateway's credentials for a remote server do not permit this request (HTTP 403)."""


class Rejected(RequestFailure):
    """The remote server answered with the JSON-RPC error `code`; the exception's message is the server's."""

    def __init__(self, message: str, *, server: str, code: int, data: JsonValue = None) -> None:
        super().__init__(message, server=server)
        self.code = code
        self.data = data


class UpstreamTimeout(UpstreamError):
    """The remote server did not respond within the deadline; the call may have run."""


class ToolFailed(GatewayError):
    """A tool could not do its work. The exception's text becomes an `isError` result that the model reads."""


class AnswerRefused(ToolFailed):
    """A client's answer does not fit the question of a background task.

    The question stays open. The exception's text names the question and the problem.
    """


class UserInputRequired(ToolFailed):
    """Raised by a tool that needs a person's answer before it can work. `contents` are the requests to the person.

    If an agent called the tool, the agent's run ends. The response of the run contains these requests, so that the agent's caller can send
    them to a person.
    """

    def __init__(self, contents: Sequence[object], message: str = "This tool needs a person's answer first.") -> None:
        super().__init__(message)
        self.contents = list(contents)


class ContentError(GatewayError, ValueError):
    """A content (a part of a message, such as a text or a tool call) is unusable."""


class AdditionItemMismatch(ContentError):
    """Two contents of a message cannot be joined with `+`: their types or ids differ, or their type does not support it."""


class MiddlewareException(GatewayError):
    """Middleware is unusable. Middleware raises the two subclasses on purpose, to end a call or a run."""


class MiddlewareTermination(MiddlewareException):
    """Raised by middleware to end the call at once.

    The result of the call is `context.result` if middleware has set it, otherwise the exception's `result`.
    """

    def __init__(self, message: str = "Middleware ended this.", *, result: object = None) -> None:
        super().__init__(message)
        self.result = result


class MiddlewareFailure(MiddlewareException):
    """Raised by middleware to end the whole agent run with this error; any other exception around a tool call becomes the tool's result."""


class ModelError(GatewayError):
    """A call of a chat model failed. `status` is the HTTP status, or `None` without a response; `retryable` is true if a retry may help."""

    retry_after_seconds: float | None = None
    """Seconds after which the model's endpoint accepts requests again; `None` if it sent no such time."""

    def __init__(self, message: str, *, status: int | None = None, retryable: bool = False) -> None:
        super().__init__(message)
        self.status = status
        self.retryable = retryable


class ChatClientInvalidAuthException(ModelError):
    """The chat model's endpoint refused the API key, or the key has characters that cannot be sent."""


class ChatClientInvalidRequestException(ModelError):
    """The chat model's endpoint rejected the request or does not know the model, or the request is invalid; a retry fails likewise."""


class ChatClientInvalidResponseException(ModelError):
    """The response of a chat model's endpoint could not be parsed, lacks required data or is too large."""


class ChatClientContentFilterException(ModelError):
    """The model provider's content filter blocked the request or response.

    `content_filter_result` has the filter's findings by category; it is empty if the provider sent none.
    """

    def __init__(self, message: str, *, status: int | None = None, content_filter_result: JsonObject | None = None) -> None:
        super().__init__(message, status=status)
        self.content_filter_result: JsonObject = content_filter_result or {}


OpenAIContentFilterException = ChatClientContentFilterException
"""Agent-framework's name of `ChatClientContentFilterException` if an OpenAI chat client raises it (a content filter blocked the call)."""


class AgentError(GatewayError):
    """An agent definition or run is unusable."""


class AgentInvalidRequestException(AgentError):
    """The agent cannot run a request with these arguments or in this configuration."""


class UnknownTool(AgentError, KeyError):
    """The model called tool `name`, which does not exist, and the option `terminate_on_unknown_calls` ends the run in this case."""

    def __init__(self, name: str | None) -> None:
        super().__init__(f'Error: Requested function "{name}" not found: the model called a tool that this run does not have.')
        self.name = name

    __str__ = Exception.__str__  # `str()` of a `KeyError` is the repr


class WorkflowError(GatewayError):
    """Base class of exceptions about workflows."""


class WorkflowInvalid(WorkflowError):
    """A workflow's graph cannot be built; the text names the executor or edge."""


class WorkflowFailed(WorkflowError):
    """The executor (a node of a workflow) with the id `executor` failed while the workflow ran."""

    def __init__(self, message: str, *, executor: str) -> None:
        super().__init__(message)
        self.executor = executor


class WorkflowRunnerException(WorkflowError):
    """A run of a workflow cannot continue."""


class WorkflowConvergenceException(WorkflowRunnerException):
    """A run of a workflow still had messages to deliver after its maximum number of rounds."""


class WorkflowCheckpointException(WorkflowRunnerException):
    """A checkpoint of a workflow run cannot be stored or read, or belongs to another graph."""


class TaskError(GatewayError):
    """A task of a remote MCP server (a call that continues in the background) failed, or its result could not be read."""


class SkillError(GatewayError):
    """A skill's files cannot be read. `code` is a stable diagnostic code such as `no-frontmatter`."""

    def __init__(self, message: str, *, code: str = "") -> None:
        super().__init__(message)
        self.code = code


class StorageError(GatewayError):
    """The gateway's own state, in its database or files, cannot be read or written."""


class StorageUnusable(StorageError):
    """The gateway's database, folder or object storage does not work. The message names it and the problem, for the operator.

    Callers see `STORAGE_TEXT` instead. `passes` is true if a retry may succeed later, for example when a full disk has space again.
    """

    def __init__(self, message: str, *, passes: bool = True) -> None:
        super().__init__(message)
        self.passes = passes


class TooLargeToKeep(StorageError):
    """A caller exceeds its quota of stored results. The exception's message may be shown to the caller."""


STORAGE_TEXT = "The gateway's own database, state folder or object storage does not work at the moment; its log says why. Try again later."
"""Text that callers see instead of the message of a `StorageUnusable`."""


def text_for_caller(error: BaseException) -> str:
    """Return an error's text without parts that only operators may see, such as paths of the gateway's state."""
    text = str(error)
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, StorageUnusable):
            text = text.replace(str(cause), STORAGE_TEXT)
        cause = cause.__cause__
    return text


def describe_error(error: BaseException) -> str:
    """Return the class name and message of an exception that the operator's own code, such as a Python tool, has raised.

    The caller of this function masks secrets.
    """
    text = text_for_caller(error).strip()
    name = type(error).__name__
    return f"{name}: {text}" if text else name


CODE_ERRORS = (Exception, SystemExit, KeyboardInterrupt)
"""Exceptions to catch around calls of code that the operator supplied, because `SystemExit` and `KeyboardInterrupt` in a task would end the
whole process. Ctrl-C still works: the gateway's signal handlers receive it in the event loop.
"""


def without_exit(error: BaseException, wrap: Callable[[str], GatewayError]) -> Exception:
    """Return `error` if it is an `Exception`; otherwise (such as `SystemExit`) return `wrap(text)`; `text` describes `error`.

    If `error` is a `BaseExceptionGroup` with a single exception inside, this rule is applied to the inner exception.
    """
    cause = error if isinstance(error, Exception) else only_cause(error)
    return cause if isinstance(cause, Exception) else wrap(describe_error(cause))


def mask_secrets(error: GatewayError, mask: Callable[[str], str]) -> None:
    """Mask secrets in the message and data of an error, because a server may repeat secrets in its error texts."""
    error.args = tuple(mask(part) if isinstance(part, str) else part for part in error.args)
    if isinstance(error, Rejected):
        error.data = masked(error.data, mask)


def masked(value: JsonValue, mask: Callable[[str], str]) -> JsonValue:
    """Return a JSON value with `mask` applied to each string and key in it."""
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
    """Return the only exception inside the exception group `error`, which may be nested. Task groups raise their errors in such groups.

    A group with several exceptions, or an `error` that is not a group, is returned unchanged.
    """
    cause = error
    while isinstance(cause, BaseExceptionGroup):
        group = cast("BaseExceptionGroup[BaseException]", cause)
        if len(group.exceptions) != 1:
            return group
        cause = group.exceptions[0]
    return cause


def first_cause(error: BaseException) -> BaseException:
    """Return the first exception inside the exception group `error`, which may be nested; any other exception unchanged."""
    while isinstance(error, BaseExceptionGroup):
        error = cast("BaseExceptionGroup[BaseException]", error).exceptions[0]
    return error


# Agent-framework's names of these exceptions.
AgentFrameworkException = GatewayError
AgentException = AgentError
ChatClientException = ModelError
IntegrationException = UpstreamError
ToolException = ToolFailed
ToolExecutionException = ToolFailed
UserInputRequiredException = UserInputRequired
WorkflowException = WorkflowError
IntegrationInitializationError = NotSent
IntegrationInvalidAuthException = Unauthorized
IntegrationInvalidRequestException = Rejected


# Agent-framework's exceptions that Moongate never raises; programs raise and catch them.


class AgentInvalidAuthException(AgentError):
    """A service that runs an agent rejected the credentials. Moongate never raises this exception; programs can."""


class AgentInvalidResponseException(AgentError):
    """The response of an agent is invalid. Moongate never raises this exception; programs can."""


class AgentContentFilterException(AgentError):
    """A content filter blocked a request to an agent, or the agent's response. Moongate never raises this exception; programs can."""


class IntegrationInvalidResponseException(UpstreamError):
    """The response of an external service, such as a search service, is invalid. Moongate never raises this exception; programs can."""


class IntegrationContentFilterException(UpstreamError):
    """The content filter of an external service blocked a request or response. Moongate never raises this exception; programs can."""

"""Runs a workflow to its end for one tool call, and gets the responses to the workflow's requests (`request_info`) from a person.

A request becomes a form with the fields of its response type. `CallContext.ask` sends the form to the client of the tool call: as an MCP
elicitation, as a result `input_required`, or through an MCP task.
"""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable, Mapping, Sequence
from enum import Enum
from types import NoneType
from typing import Any, Literal, cast, get_args, get_origin

import anyio
from pydantic import BaseModel, TypeAdapter, ValidationError
from pydantic.fields import FieldInfo

from gateway.errors import AnswerRefused, GatewayError, ToolFailed, WorkflowFailed, describe_error, text_for_caller
from gateway.json_types import JsonObject, JsonValue
from gateway.policy.approval_policy import describe_call
from gateway.policy.input_answers import JSON_FOR, judge_answer, refused_answer
from gateway.tools.context import CallContext
from gateway.tools.questions import ask_until_usable
from gateway.tools.toolbox import guard_in
from gateway.types.call_arguments import decoded, read_arguments
from gateway.types.content import Content
from gateway.types.messages import Message, to_messages
from gateway.workflows.agent_executor import AgentExecutorResponse, is_request
from gateway.workflows.definition import object_schema
from gateway.workflows.encoding import encode
from gateway.workflows.events import EventLog, OnEvent, WorkflowEvent, WorkflowRunResult
from gateway.workflows.executor_failures import failed_executor, first_failure
from gateway.workflows.orchestrations.handoff import HandoffAgentUserRequest
from gateway.workflows.orchestrations.magentic import MagenticPlanReviewRequest, MagenticPlanReviewResponse
from gateway.workflows.orchestrations.participants import AgentRequestInfoResponse
from gateway.workflows.run_request import RunRequest
from gateway.workflows.runnable import Runnable
from gateway.workflows.steps import Question
from gateway.workflows.task_checkpoints import TaskCheckpoints
from gateway.workflows.type_hints import members, name_of, resolved

MAX_ASK_ROUNDS = 100
"""How often a workflow may stop to ask a person during one call. If it stops once more, it is considered stuck, and the call fails."""

_ANSWER = "answer"
_KINDS: dict[Any, JsonObject] = {
    str: {"type": "string"},
    bool: {"type": "boolean"},
    int: {"type": "integer"},
    float: {"type": "number"},
}


async def run_to_end(
    workflow: Runnable, message: Any, ctx: CallContext, on_event: OnEvent, *, person: CallContext | None = None
) -> WorkflowRunResult:
    """Run a workflow with `message`. Have a person answer its requests, and continue it until no request is open. Return the result.

    `ctx` is the tool call that the workflow serves, and the function `on_event` receives each event of the run. A person is asked through
    the call context `person`, by default `ctx`. In a durable task (background call that resumes after a restart), the run continues from
    the latest checkpoint that is stored with the task.

    Raises:
        WorkflowFailed: An executor failed (the text names the executor and its error), or the workflow asked too often.
        InputUnavailable: The client cannot ask a person.
        ToolFailed: The person declined to answer, or gave too many unusable answers (`AnswerRefused`).
    """
    events: list[WorkflowEvent[Any]] = []
    storage = TaskCheckpoints(ctx.ports.durable, events) if ctx.ports.durable is not None else None
    request = RunRequest(message, checkpoint_storage=storage, ctx=ctx)
    if storage is not None and storage.latest_id is not None:
        events += storage.outputs(workflow.book())
        request = RunRequest(checkpoint_id=storage.latest_id, checkpoint_storage=storage, ctx=ctx)
    for rounds in range(MAX_ASK_ROUNDS + 1):
        try:
            await workflow.perform(request, EventLog(events, on_event))
        except Exception as error:  # executors are user code and may raise any exception
            raise _failure(error) from error
        pending = list(workflow.pending.values())
        if not pending:
            return WorkflowRunResult.of(events)
        if rounds < MAX_ASK_ROUNDS:
            request = RunRequest(responses=await _ask_all(pending, person or ctx), checkpoint_storage=storage, ctx=ctx)
    raise WorkflowFailed(f"The workflow asked more than {MAX_ASK_ROUNDS} times, so it was stopped.", executor=workflow.entry_id)


async def _ask_all(pending: Sequence[WorkflowEvent[Any]], ctx: CallContext) -> dict[str, Any]:
    """Ask a person for responses to all open requests of the workflow, and return the responses by request id.

    The requests are sent concurrently, so that a client may show them together.

    The responses are sorted by the name of the request (`WorkflowEvent.question`). A task that resumes after a restart therefore delivers
    them in the same order, and its recorded steps get the same names as before.
    """
    answers: dict[str, Any] = {}

    async def put(event: WorkflowEvent[Any]) -> None:
        answers[event.request_id] = await ask(event, ctx)

    try:
        async with anyio.create_task_group() as tasks:
            for event in pending:
                tasks.start_soon(put, event)
    except ExceptionGroup as group:
        raise first_failure(group) from None
    return {event.request_id: answers[event.request_id] for event in sorted(pending, key=lambda event: event.question)}


def _failure(error: Exception) -> WorkflowFailed:
    executor = failed_executor(error)
    text = text_for_caller(error) if isinstance(error, GatewayError) else describe_error(error)
    if executor is None:
        return WorkflowFailed(text if isinstance(error, GatewayError) else f"The workflow failed: {text}", executor="")
    return WorkflowFailed(f"Executor {executor!r} failed: {text}", executor=executor)


async def ask(event: WorkflowEvent[Any], ctx: CallContext) -> Any:
    """Have a person answer one request of the workflow (`event`) through the client of the tool call `ctx`. Return the response.

    Raises:
        InputUnavailable: The client cannot ask a person.
        ToolFailed: The person declined to answer.
        AnswerRefused: Too many answers did not have the required form.
    """
    data, key = event.data, ctx.question(event.question)
    if isinstance(data, Content) and is_request(data):
        return await _ask_approval(data, ctx, key)
    if isinstance(data, Question):
        return await _ask_question(data, ctx, key)
    question = question_of(data)
    if (reader := _READERS.get(event.response_type)) is not None:
        hint, to_answer = reader
        form = _object({_ANSWER: (hint, False)})
        return await _put(question, form, ctx, key, lambda content: to_answer(str(content.get(_ANSWER) or "").strip()))
    form, is_whole = form_of(event.response_type)

    def read(content: JsonObject) -> Any:
        return _read(event.response_type, content if is_whole else content.get(_ANSWER))

    return await _put(question, form, ctx, key, read, judges=event.response_type not in _KINDS)


async def _put(
    question: str, form: JsonObject, ctx: CallContext, key: str, read: Callable[[JsonObject], Any], *, judges: bool = False
) -> Any:
    """Ask a person to fill in the form (a JSON Schema) until `read` accepts the answer. Return the result of `read`.

    `read` converts the content of the answer, and raises an exception to reject it. `key` identifies the question in a durable task
    (background call that resumes after a restart). `judges` means that `read` may reject an answer which fits the form; the durable task
    then records whether each answer was accepted.

    Raises:
        InputUnavailable: The client cannot ask a person.
        ToolFailed: The person declined to answer.
        AnswerRefused: Too many answers were rejected.
    """
    params: JsonObject = {"mode": "form", "message": question, "requestedSchema": form}
    request: JsonObject = {"method": "elicitation/create", "params": params}

    async def use(answer: JsonObject) -> Any:
        if (problem := judge_answer(request, answer)) is not None:
            raise AnswerRefused(problem)
        if answer.get("action") != "accept":
            raise ToolFailed(f"The workflow asked {question!r}, and the answer was {answer.get('action')!r}, so it did not continue.")
        try:
            return read(answer.get("content") or {})
        except ValidationError as error:
            found = [": ".join([*map(str, item["loc"]), item["msg"]]) for item in error.errors()[:3]]
            raise AnswerRefused(refused_answer(request, "; ".join(found))) from None
        except Exception as error:  # validators are user code
            raise AnswerRefused(refused_answer(request, describe_error(error))) from error

    return await ask_until_usable(ctx, request, use, key, judges=judges)


def _read(kind: Any, value: Any) -> Any:
    """Convert the value from a form to the response type `kind` of the request.

    Lists and objects may be given as JSON text, because MCP forms have no fields for lists and objects.

    Raises:
        ValidationError: The value cannot be converted to the type.
    """
    adapter = TypeAdapter[Any](kind)
    try:
        return adapter.validate_python(value)
    except ValidationError:
        written = cast("JsonObject", value)
        parsed = {name: _parsed(item) for name, item in written.items()} if isinstance(value, dict) else _parsed(value)
        if parsed == value:
            raise
        return adapter.validate_python(parsed)


def _parsed(value: JsonValue) -> JsonValue:
    """Parse a string that contains a JSON list or object, and return the list or object. Return any other value unchanged."""
    return decoded(value) if isinstance(value, str) and value.lstrip().startswith(("[", "{")) else value


async def _ask_question(data: Question, ctx: CallContext, key: str) -> JsonValue:
    """Ask a person a question from a workflow file. Return an object with the fields that the file declares; a text if it declares none."""
    fields = data.fields or {_ANSWER: _KINDS[str]}

    def read(content: JsonObject) -> JsonValue:
        values = {name: content.get(name, schema.get("default")) for name, schema in fields.items()}
        return values if data.fields is not None else values[_ANSWER]

    return await _put(data.prompt, object_schema(fields, is_closed=False), ctx, key, read)


def _as_messages(text: str) -> list[Message]:
    return to_messages(text) if text else []


_READERS: dict[Any, tuple[JsonObject, Callable[[str], Any]]] = {
    list[Message]: (
        {"type": "string", "title": "Answer", "description": "What you say; leave it empty to end the conversation."},
        _as_messages,
    ),
    AgentRequestInfoResponse: (
        {"type": "string", "title": "Remarks", "description": "What to change; leave it empty to let the answer stand."},
        lambda text: AgentRequestInfoResponse(_as_messages(text)),
    ),
    MagenticPlanReviewResponse: (
        {"type": "string", "title": "Remarks", "description": "What to change; leave it empty to go ahead."},
        lambda text: MagenticPlanReviewResponse(_as_messages(text)),
    ),
}
"""Response types for which a person enters a single text instead of the fields of the type. Orchestrations request them.

Response type → JSON Schema of the text field, and the function that converts the text to a response.
"""


async def _ask_approval(request: Content, ctx: CallContext, key: str) -> Content:
    """Ask a person to approve the tool call for which an agent of the workflow requests approval. Return the approval response.

    In a gateway, the configuration decides who may approve. Outside of a gateway, the caller of the workflow is asked.
    """
    call = request.function_call or Content("function_call")
    arguments = read_arguments(call.arguments)
    message = describe_call("the workflow's agent", call.name or "a tool", arguments)
    if (guard := guard_in(ctx)) is not None:
        approved = await guard.approve(call.name or "", message, ctx, key) is None
        return Content.from_function_approval_response(approved, request.id or "", call)
    schema: JsonObject = {"type": "object", "properties": {"approve": {"type": "boolean", "title": "Approve"}}, "required": ["approve"]}
    params: JsonObject = {"mode": "form", "message": message, "requestedSchema": schema}
    answer = await ctx.ask({"method": "elicitation/create", "params": params}, key)
    content: JsonObject = answer.get("content") or {}
    approved = answer.get("action") == "accept" and content.get("approve") is True
    return Content.from_function_approval_response(approved, request.id or "", call)


def question_of(data: Any) -> str:
    """Return the text that a person sees for the data of a workflow's request.

    For an object with fields, the text is the first of the fields `prompt`, `question`, `message` and `text`, followed by the other fields;
    without such a field, it is the list of all fields. For an agent's answer or a plan, it is the text of the answer or plan.
    """
    if isinstance(data, str):
        return data
    if isinstance(data, HandoffAgentUserRequest | AgentExecutorResponse):
        return data.agent_response.text or "It is your turn."
    if isinstance(data, MagenticPlanReviewRequest):
        return data.plan.text
    fields = _fields_of(data)
    for name in ("prompt", "question", "message", "text"):
        if isinstance(fields.get(name), str):
            rest = {key: value for key, value in fields.items() if key != name and value not in (None, "")}
            return "\n".join([fields[name], *(f"{key}: {_shown(value)}" for key, value in rest.items())])
    return "\n".join(f"{key}: {_shown(value)}" for key, value in fields.items()) or str(data)


def _fields_of(data: Any) -> Mapping[str, Any]:
    if isinstance(data, Mapping):
        return cast("Mapping[str, Any]", data)
    if isinstance(data, BaseModel):
        return {name: getattr(data, name) for name in type(data).model_fields}
    names: Mapping[str, Any] = getattr(data, "__dataclass_fields__", {})
    return {name: getattr(data, name) for name in names}


def _shown(value: Any) -> str:
    return value if isinstance(value, str) else str(encode(value))


def form_of(kind: Any) -> tuple[JsonObject, bool]:
    """Return the form (JSON Schema) with which a person enters a value of the response type `kind`, and whether it has the type's fields.

    For a dataclass or pydantic model the form has one field per field of the type, and the second value is true. For other types it has the
    single field `answer`.
    """
    alternatives = [item for item in members(kind) if item is not NoneType]
    is_optional = len(alternatives) < len(members(kind))
    if len(alternatives) == 1:
        kind = alternatives[0]
    fields: dict[str, tuple[Any, bool]] = {}
    make: Any = kind
    if isinstance(kind, type) and issubclass(kind, BaseModel):
        fields = {
            name: ({**_property(field.annotation), **_limits(field)}, field.is_required()) for name, field in kind.model_fields.items()
        }
    elif dataclasses.is_dataclass(make):
        parameters = inspect.signature(cast("Callable[..., Any]", kind)).parameters.values()
        fields = {item.name: (resolved(item.annotation, make.__init__), item.default is item.empty) for item in parameters}
    if not fields:
        return _object({_ANSWER: (make, not is_optional)}), False
    return _object(fields), True


def _object(fields: Mapping[str, tuple[Any, bool]]) -> JsonObject:
    properties: JsonObject = {name: _property(kind) for name, (kind, _) in fields.items()}
    return {"type": "object", "properties": properties, "required": [name for name, (_, is_required) in fields.items() if is_required]}


def _limits(field: FieldInfo) -> JsonObject:
    """Return the constraints of a pydantic field, such as `minimum`, as JSON Schema keywords, so that the form rejects wrong answers."""
    kind = field.annotation
    plain = [item for item in members(kind) if item is not NoneType]
    if plain not in ([int], [float], [str]):
        return {}
    names = {"min_length": "minLength", "max_length": "maxLength"} if plain == [str] else {"ge": "minimum", "le": "maximum"}
    found: JsonObject = {}
    for name, key in names.items():
        for limit in field.metadata:
            if isinstance(value := getattr(limit, name, None), int | float):
                found[key] = value
    return found


def _property(kind: Any) -> JsonObject:
    if isinstance(kind, dict):
        return dict(cast("JsonObject", kind))
    alternatives = [item for item in members(kind) if item is not NoneType]
    kind = alternatives[0] if len(alternatives) == 1 else kind
    if kind in _KINDS:
        return dict(_KINDS[kind])
    if get_origin(kind) is Literal:
        return {"type": "string", "enum": [str(item) for item in get_args(kind)]}
    if isinstance(kind, type) and issubclass(kind, Enum):
        return {"type": "string", "enum": [str(item.value) for item in kind]}
    made = cast("Any", get_origin(kind) or kind)
    if isinstance(made, type) and (dataclasses.is_dataclass(made) or issubclass(made, BaseModel | list | dict | tuple | set)):
        shape = "[…]" if issubclass(made, list | tuple | set) else "{…}"
        return {"type": "string", "description": f"{JSON_FOR}{name_of(kind)}: {shape}"}
    return {"type": "string"}

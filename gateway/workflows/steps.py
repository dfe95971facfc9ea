"""The executors (graph nodes) of workflow files: they ask an agent, call a tool, another workflow or a function, or ask a person.

`file_graph` creates them. Stored checkpoints contain the names of the classes in this module, so they must not be renamed or moved.
Progress of the calls that an executor makes is passed to the client with the executor's id. Tool results are reduced to the value that
templates and edges use.
"""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, cast

from gateway.errors import ToolFailed
from gateway.json_types import JsonMapping, JsonObject, JsonValue, as_text, members_of
from gateway.policy.schema_check import SchemaCheck, measure
from gateway.tools.base import Complete, InputRequired, TaskStarted, Tool
from gateway.tools.context import CallContext
from gateway.tools.drive import drive
from gateway.tools.function import FunctionTool
from gateway.workflows.callers import LabelledCaller
from gateway.workflows.definition import AgentStep, AskStep, PythonStep, ToolStep, WorkflowStep, object_schema
from gateway.workflows.executor import Executor, handler, response_handler
from gateway.workflows.gated_functions import Reference, run_gated
from gateway.workflows.messages import START_SOURCE
from gateway.workflows.step_templates import Template, constants, fill
from gateway.workflows.workflow_context import WorkflowContext

INPUT_KEY = "input"
"""Key, in the state that executors share, of the run's arguments. The output of each executor has the key `output:<id>`."""

MAX_ANSWERS = 2
"""Maximum number of times that an agent is asked for an answer with the fields that the file declares.

Each repeated question contains the problem of the last answer."""

_FENCE = re.compile(r"```(?:json)?\s*\n(.*?)\n\s*```", re.DOTALL)
_TASK_NAMES = ("task", "prompt", "message", "input", "query")


StepContext = WorkflowContext[JsonValue, Complete]


class StepExecutor(Executor):
    """Base class of the executors of workflow files, each of which performs one step: ask an agent or person, call a tool or function.

    All messages that arrive in one superstep (round of the run) start the step once, because templates read outputs of executors and not
    messages.
    """

    joins = True

    def __init__(self, id: str, names: Sequence[str]) -> None:
        """Create the executor `id`. `names` are the ids of all executors of the graph, to which templates can refer."""
        super().__init__(id)
        self._names = names

    @handler
    async def step(self, messages: list[Any], ctx: StepContext) -> None:
        """Handle all messages of one superstep (round of the run): perform the step once, and publish its output.

        The message of the run, if it is among them, is stored as the input to which templates refer.
        """
        if ctx.source_executor_ids == [START_SOURCE]:
            ctx.set_state(INPUT_KEY, messages[0])
        # Only outputs of earlier supersteps, so that the result does not depend on the speed of other executors in this superstep.
        scope: JsonObject = dict(ctx.get_state(INPUT_KEY))
        scope.update((name, ctx.state.get_committed(f"output:{name}")) for name in self._names)
        await self.act(scope, messages, ctx)

    async def act(self, scope: JsonMapping, messages: list[JsonValue], ctx: StepContext) -> None:
        """Perform the step and publish its output. `scope` has the values to which templates refer, by name.

        The subclass that asks a person overrides this method, because it publishes the output only after the answer.
        """
        await self.give(*await self.perform(scope, messages, inner_context(ctx.call, self.id)), ctx)

    async def give(self, value: JsonValue, result: Complete, ctx: StepContext) -> None:
        """Publish the output of the step.

        `value` is stored for templates and sent along the edges. `result` is the same output as a tool result, which the caller of the
        workflow gets.
        """
        ctx.set_state(f"output:{self.id}", value)
        await ctx.send_message(value)
        await ctx.yield_output(result)

    async def perform(self, scope: JsonMapping, messages: list[JsonValue], call: CallContext) -> tuple[JsonValue, Complete]:
        """Run the step, and return its output twice: as a value for templates and edges, and as a tool result for the workflow's caller.

        `scope` has the values to which templates refer, by name; `call` is the context for tool calls.
        """
        raise NotImplementedError


class AskAgent(StepExecutor):
    """Executor of a workflow file that asks an agent. If the file declares output fields, the answer must be an object with them."""

    def __init__(self, id: str, step: AgentStep, tool: Tool, names: Sequence[str]) -> None:
        """Create the executor for `step`. `tool` is the agent as a tool, whose text argument gets the prompt.

        `names` are the ids of all executors of the graph, to which templates can refer.

        Raises:
            ToolFailed: The tool has no text argument.
        """
        super().__init__(id, names)
        self._prompt = Template.parse(step.prompt) if step.prompt is not None else None
        self._fields = step.output
        self._tool = tool
        self._argument = task_argument(tool)

    async def perform(self, scope: JsonMapping, messages: list[JsonValue], call: CallContext) -> tuple[JsonValue, Complete]:
        """Ask the agent, and ask again if its answer does not have the declared fields. Return the answer as value and as tool result.

        Raises:
            ToolFailed: The agent failed, or the repeated answer does not have the declared fields either.
        """
        prompt = self._prompt.text(scope) if self._prompt is not None else incoming_text(messages)
        if self._fields is None:
            result = await invoke(self._tool, {self._argument: prompt}, call)
            return result.as_text(), Complete({"content": result.content})
        schema = json.dumps(object_schema(self._fields, is_closed=False), ensure_ascii=False)
        prompt += f"\n\nAnswer with one JSON object and nothing else. It must fit this JSON Schema:\n{schema}"
        question, problem = prompt, ""
        for _ in range(MAX_ANSWERS):
            result = await invoke(self._tool, {self._argument: question}, call)
            value, problem = read_fields(result, self._fields)
            if value is not None:
                return value, as_result(value)
            question = f"{prompt}\n\nYour last answer was:\n{result.as_text()}\n\nIt cannot be used: {problem}. Answer again."
        raise ToolFailed(f"The answer does not fit `output`: {problem}.")


class CallTool(StepExecutor):
    """Executor of a workflow file that calls a tool or another workflow."""

    def __init__(self, id: str, step: ToolStep | WorkflowStep, tool: Tool, names: Sequence[str]) -> None:
        """Create the executor for `step`. `tool` is the tool or workflow that the step names.

        `names` are the ids of all executors of the graph, to which templates can refer.
        """
        super().__init__(id, names)
        self._step = step
        self._tool = tool
        self._constants = constants(step.arguments)

    async def perform(self, scope: JsonMapping, messages: list[JsonValue], call: CallContext) -> tuple[JsonValue, Complete]:
        """Call the tool with the filled-in arguments. Return its output as value and as tool result.

        Raises:
            ToolFailed: The tool failed, or its result does not have the declared fields.
        """
        arguments = cast("JsonObject", fill(self._step.arguments, scope))
        result = await invoke(self._tool, arguments, call.named_in_file(self._constants))
        if self._step.output is not None:
            return demand_fields(result, self._step.output)
        return value_of(result), result


class CallFunction(StepExecutor):
    """Executor of a workflow file that calls a Python function."""

    def __init__(self, id: str, step: PythonStep, function: FunctionTool[..., Any], names: Sequence[str]) -> None:
        """Create the executor for `step`. `function` is the imported function that `step.python` names.

        If the step has no `arguments`, the function must have at most one parameter. `names` are the ids of all executors of the graph, to
        which templates can refer.
        """
        super().__init__(id, names)
        self._step = step
        self._function = function
        self._reference = Reference(step.python, function)

    async def perform(self, scope: JsonMapping, messages: list[JsonValue], call: CallContext) -> tuple[JsonValue, Complete]:
        """Call the function. Return its output as value, with the JSON type that the function returned, and as tool result.

        If the gate (policy) shortened the result, the value is that of the shortened result. Without `arguments` in the file, the only
        parameter gets the message, or a list of the messages if there are several.
        """
        if self._step.arguments is not None:
            arguments = cast("JsonObject", fill(self._step.arguments, scope))
        else:
            message = messages[0] if len(messages) == 1 else messages
            arguments = dict.fromkeys(self._function.definition.input_schema.get("properties", {}), message)
        run = _FunctionRun(self._function, self._step.output)
        outcome = await run_gated(self._reference, run, arguments, call)
        if run.result is not None and outcome.content == run.result.content:
            return run.value, run.result
        return value_of(outcome), outcome  # the gate changed the result, because it exceeds a limit of the workflow's policy


class _FunctionRun:
    """A `Tool` for one call of a Python function. `value` is the returned value with its JSON type, which a tool result may lose."""

    def __init__(self, function: FunctionTool[..., Any], output: dict[str, JsonObject] | None) -> None:
        self.definition = function.definition
        self._function = function
        self._output = output
        self.value: JsonValue = None
        self.result: Complete | None = None

    async def call(self, arguments: JsonObject, ctx: CallContext) -> Complete:
        """Run the function, and store the returned value and the tool result in this object.

        In a durable task (background call that resumes after a restart), the call is recorded as a step. If the call is interrupted, it is
        repeated only if a person decides so, because the effects of the function are unknown.
        """
        if ctx.ports.durable is not None:
            form = await ctx.ports.durable.step("python", lambda _: self._to_json(arguments, ctx), repeatable=False, ctx=ctx)
            self.value, self.result = form["value"], Complete(form["result"])
        else:
            self.value, self.result = await self._run(arguments, ctx)
        return self.result

    async def _to_json(self, arguments: JsonObject, ctx: CallContext) -> JsonObject:
        value, result = await self._run(arguments, ctx)
        return {"value": value, "result": result.result}

    async def _run(self, arguments: JsonObject, ctx: CallContext) -> tuple[JsonValue, Complete]:
        value: Any = await self._function.run(arguments, ctx)
        if isinstance(value, InputRequired | TaskStarted):
            raise ToolFailed("The function asks for input or starts a task, which only a tool can do; use `tool: function/NAME`.")
        result = value if isinstance(value, Complete) else as_result(value)
        if result.is_error:
            raise ToolFailed(result.as_text() or "The function failed without an error text.")
        if self._output is not None:
            return demand_fields(result, self._output)
        return (value_of(result) if isinstance(value, Complete) else value), result


@dataclass(frozen=True, slots=True)
class Question:
    """A question that an executor of a workflow file asks a person: the data of the executor's request."""

    prompt: str
    fields: dict[str, JsonObject] | None = None
    """Fields of the answer, as name → JSON Schema; `None` if the answer is a single text."""


class AskPerson(StepExecutor):
    """Executor of a workflow file that asks a person, and publishes the answer as its output."""

    def __init__(self, id: str, step: AskStep, names: Sequence[str]) -> None:
        """Create the executor for `step`. The person's answer has the fields of `step.output`, or is a text.

        `names` are the ids of all executors of the graph, to which templates can refer.
        """
        super().__init__(id, names)
        self._prompt = Template.parse(step.ask)
        self._fields = step.output

    async def act(self, scope: JsonMapping, messages: list[JsonValue], ctx: StepContext) -> None:
        """Request the answer from the caller of the workflow. The method `answered` handles the response."""
        await ctx.request_info(Question(self._prompt.text(scope), self._fields), str if self._fields is None else dict)

    @response_handler
    async def answered(self, original_request: Question, response: object, ctx: StepContext) -> None:
        """Publish the person's answer as the output of the executor."""
        value = cast("JsonValue", response)
        await self.give(value, as_result(value), ctx)


async def invoke(tool: Tool, arguments: JsonObject, call: CallContext) -> Complete:
    """Call a tool, have the workflow's caller answer its requests for input, and return its final result.

    The result is returned without its `_meta`, which describes this call and not the call of the workflow.

    Raises:
        ToolFailed: The result is an error, or the tool started a background task.
    """
    outcome = await drive(tool, arguments, call)
    if isinstance(outcome, TaskStarted):
        raise ToolFailed(f"Tool {tool.definition.name!r} started a background task; a workflow cannot wait for one.")
    if outcome.is_error:
        raise ToolFailed(outcome.as_text() or f"Tool {tool.definition.name!r} failed without an error text.")
    return Complete({key: value for key, value in outcome.result.items() if key != "_meta"})


def inner_context(call: CallContext, label: str) -> CallContext:
    """Return a context for the tool calls that the executor `label` of a workflow makes.

    The calls have the client, rights and deadline of `call`. Their progress messages reach the client with `label` in front.
    """
    caller = LabelledCaller(call.ports.caller, label)
    child = call.child().with_caller(caller)
    return child.with_facts(dataclasses.replace(child.facts, wants_progress=call.facts.wants_progress))


def value_of(result: Complete) -> JsonValue:
    """Return the value of a tool result that templates and edges use: the structured content if there is any, otherwise the text."""
    return result.structured if result.structured is not None else result.as_text()


def as_result(value: JsonValue) -> Complete:
    """Convert a JSON value to a tool result. The value becomes text content; an object also becomes the structured content."""
    return Complete.text(as_text(value), structured=value if isinstance(value, dict) else None)


def demand_fields(result: Complete, fields: dict[str, JsonObject]) -> tuple[JsonValue, Complete]:
    """Extract the fields that the workflow file declares (name → JSON Schema) from a tool result. Return them as value and as tool result.

    Raises:
        ToolFailed: The result has no JSON object, a field without `default` is missing, or a value does not fit its schema.
    """
    value, problem = read_fields(result, fields)
    if value is None:
        raise ToolFailed(f"The result does not fit `output`: {problem}.")
    return value, as_result(value)


def read_fields(result: Complete, fields: dict[str, JsonObject]) -> tuple[JsonObject | None, str]:
    """Extract the fields that the workflow file declares (name → JSON Schema) from a tool result.

    The fields come from the structured content, or from a JSON object in the text. Missing fields get the `default` of their schema. Return
    the fields and an empty string, or `None` and the problem if there is no JSON object, or fields without `default` are missing or do not
    fit.
    """
    structured = result.structured
    found = cast("JsonObject", structured) if isinstance(structured, dict) else find_object(result.as_text())
    if found is None:
        return None, "there is no JSON object in it"
    problem = SchemaCheck(object_schema(fields, is_closed=False)).find(found, measure(found))
    if problem is not None:
        return None, problem
    return {name: found.get(name, schema.get("default")) for name, schema in fields.items()}, ""


def task_argument(tool: Tool) -> str:
    """Return the name of the text argument in which a tool, usually an agent, expects its task.

    The function prefers an argument with a usual name such as `task` or `prompt`, then the first required text argument, then the first
    text argument.

    Raises:
        ToolFailed: The tool has no text argument.
    """
    schema = tool.definition.input_schema
    properties = cast("dict[str, JsonObject]", schema.get("properties") or {})
    texts = [name for name, item in properties.items() if item.get("type") == "string"]
    required = [name for name in texts if name in (schema.get("required") or [])]
    for name in (*_TASK_NAMES, *required, *texts):
        if name in texts:
            return name
    raise ToolFailed(f"{tool.definition.name!r} has no text argument, so it cannot be asked as an agent; use `tool:` with `arguments`.")


def incoming_text(messages: Sequence[JsonValue]) -> str:
    """Combine messages, which are outputs of earlier executors or the run's arguments, into one text that serves as a prompt.

    Strings are used as they are, other values as JSON. An object with a single field is represented by the value of this field. Empty
    texts are left out.
    """
    texts: list[str] = []
    for message in messages:
        fields = members_of(message)
        texts.append(as_text(next(iter(fields.values())) if len(fields) == 1 else message))
    return "\n\n".join(text for text in texts if text)


def find_object(text: str) -> JsonObject | None:
    """Find the JSON object in a model's answer, and return it, or `None` if the answer does not contain one.

    The function tries the whole text, then the first fenced code block, then the text between the first and the last brace.
    """
    candidates: list[Callable[[], str]] = [
        lambda: text,
        lambda: (_FENCE.search(text) or [text, text])[1],
        lambda: text[text.find("{") : text.rfind("}") + 1],
    ]
    for candidate in candidates:
        try:
            value = json.loads(candidate())
        except (ValueError, RecursionError):
            continue
        if isinstance(value, dict):
            return cast("JsonObject", value)
    return None

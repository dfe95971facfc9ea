"""Executors of workflow files: they ask an agent, call a tool, a workflow or a function, or ask a person.

Each fills in its templates, calls, and makes its output known under its id: to templates as a JSON value (an object
where there is structured content, else text), to the caller as the whole result. Putting them into a graph is
`plan`'s.
"""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, cast

from gateway.errors import ToolFailed
from gateway.json_types import JsonMapping, JsonObject, JsonValue, as_text
from gateway.policy.checking import SchemaCheck, measure
from gateway.tools.base import Complete, InputRequired, TaskStarted, Tool
from gateway.tools.context import CallContext, Caller, LogLevel
from gateway.tools.drive import drive
from gateway.tools.function import FunctionTool
from gateway.workflows.context import WorkflowContext
from gateway.workflows.definition import AgentStep, AskStep, PythonStep, ToolStep, WorkflowStep, object_schema
from gateway.workflows.executor import Executor, handler, response_handler
from gateway.workflows.functions import Reference, run_gated
from gateway.workflows.runner import START_SOURCE
from gateway.workflows.templates import Template, constants, fill

INPUT_KEY = "input"
"""Shared-state key of the run's arguments; outputs are under `output:<id>`."""

MAX_ANSWERS = 2
"""Answers asked of an agent that must give fields: models that miss once mostly succeed when told what was wrong."""

_FENCE = re.compile(r"```(?:json)?\s*\n(.*?)\n\s*```", re.DOTALL)
_TASK_NAMES = ("task", "prompt", "message", "input", "query")


StepContext = WorkflowContext[JsonValue, Complete]


class StepExecutor(Executor):
    """What the three kinds share. Messages of one round are one step, because templates read outputs, not messages."""

    joins = True

    def __init__(self, id: str, names: Sequence[str]) -> None:
        """`names` are all executors of the graph: what templates can refer to besides inputs."""
        super().__init__(id)
        self._names = names

    @handler
    async def step(self, messages: list[Any], ctx: StepContext) -> None:
        """Perform the step and make its output known."""
        if ctx.source_executor_ids == [START_SOURCE]:
            ctx.set_state(INPUT_KEY, messages[0])
        # What earlier rounds wrote, never what a step of this round happened to finish first.
        scope: JsonObject = dict(ctx.get_state(INPUT_KEY))
        scope.update((name, ctx.state.get_committed(f"output:{name}")) for name in self._names)
        await self.act(scope, messages, ctx)

    async def act(self, scope: JsonMapping, messages: list[JsonValue], ctx: StepContext) -> None:
        """Perform it at once; a step that waits for somebody gives its value later."""
        await self.give(*await self.perform(scope, messages, inner_context(ctx.call, self.id)), ctx)

    async def give(self, value: JsonValue, result: Complete, ctx: StepContext) -> None:
        """Make the output known to templates, edges and the caller."""
        ctx.set_state(f"output:{self.id}", value)
        await ctx.send_message(value)
        await ctx.yield_output(result)

    async def perform(self, scope: JsonMapping, messages: list[JsonValue], call: CallContext) -> tuple[JsonValue, Complete]:
        """The step's value for templates and edges, and its result for the caller."""
        raise NotImplementedError


class AskAgent(StepExecutor):
    """Asks an agent, and insists on the fields that the file demands."""

    def __init__(self, id: str, step: AgentStep, tool: Tool, names: Sequence[str]) -> None:
        """`tool` is the agent as a tool; its one text argument gets the prompt."""
        super().__init__(id, names)
        self._prompt = Template.parse(step.prompt) if step.prompt is not None else None
        self._fields = step.output
        self._tool = tool
        self._argument = task_argument(tool)

    async def perform(self, scope: JsonMapping, messages: list[JsonValue], call: CallContext) -> tuple[JsonValue, Complete]:
        """One question; a second one when the first answer lacks the fields."""
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
        raise ToolFailed(f"The answer lacks what `output` demands: {problem}.")


class CallTool(StepExecutor):
    """Calls a tool, or another workflow, which is one."""

    def __init__(self, id: str, step: ToolStep | WorkflowStep, tool: Tool, names: Sequence[str]) -> None:
        """`tool` is what the step names."""
        super().__init__(id, names)
        self._step = step
        self._tool = tool
        self._constants = constants(step.arguments)

    async def perform(self, scope: JsonMapping, messages: list[JsonValue], call: CallContext) -> tuple[JsonValue, Complete]:
        """One call."""
        arguments = cast("JsonObject", fill(self._step.arguments, scope))
        result = await invoke(self._tool, arguments, call.named_in_file(self._constants))
        if self._step.output is not None:
            return demand_fields(result, self._step.output)
        return value_of(result), result


class CallFunction(StepExecutor):
    """Calls a Python function."""

    def __init__(self, id: str, step: PythonStep, function: FunctionTool[..., Any], names: Sequence[str]) -> None:
        """`function` is what `step.python` names; without `arguments` it has at most one parameter."""
        super().__init__(id, names)
        self._step = step
        self._function = function
        self._reference = Reference(step.python, function)

    async def perform(self, scope: JsonMapping, messages: list[JsonValue], call: CallContext) -> tuple[JsonValue, Complete]:
        """One call; the value keeps its JSON type."""
        if self._step.arguments is not None:
            arguments = cast("JsonObject", fill(self._step.arguments, scope))
        else:
            message = messages[0] if len(messages) == 1 else messages
            arguments = dict.fromkeys(self._function.definition.input_schema.get("properties", {}), message)
        run = _FunctionRun(self._function, self._step.output)
        outcome = await run_gated(self._reference, run, arguments, call)
        if run.result is not None and outcome.content == run.result.content:
            return run.value, run.result
        return value_of(outcome), outcome  # a limit of the workflow's rules shortened it


class _FunctionRun:
    """One call of a function as a `Tool`. Keeps the value, which has a JSON type that a result does not show."""

    def __init__(self, function: FunctionTool[..., Any], output: dict[str, JsonObject] | None) -> None:
        self.definition = function.definition
        self._function = function
        self._output = output
        self.value: JsonValue = None
        self.result: Complete | None = None

    async def call(self, arguments: JsonObject, ctx: CallContext) -> Complete:
        """Run the function, as a step of its own in a durable task: nobody knows what it does, so it is not repeated without asking."""
        if ctx.durable is not None:
            form = await ctx.durable.step("python", lambda _: self._to_json(arguments, ctx), repeatable=False, ctx=ctx)
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
            raise ToolFailed("The function asks for input or starts a task, which only a tool can; use `tool: function/NAME`.")
        result = value if isinstance(value, Complete) else as_result(value)
        if result.is_error:
            raise ToolFailed(result.as_text() or "It failed without saying why.")
        if self._output is not None:
            return demand_fields(result, self._output)
        return (value_of(result) if isinstance(value, Complete) else value), result


@dataclass(frozen=True, slots=True)
class Question:
    """What a workflow file asks a person: a request of the workflow."""

    prompt: str
    fields: dict[str, JsonObject] | None = None
    """Fields of the answer; `None`: one text."""


class AskPerson(StepExecutor):
    """Asks a person, and goes on with the answer."""

    def __init__(self, id: str, step: AskStep, names: Sequence[str]) -> None:
        """The answer has the fields of `step.output`, or is one text."""
        super().__init__(id, names)
        self._prompt = Template.parse(step.ask)
        self._fields = step.output

    async def act(self, scope: JsonMapping, messages: list[JsonValue], ctx: StepContext) -> None:
        """Ask; `answered` has the rest."""
        await ctx.request_info(Question(self._prompt.text(scope), self._fields), str if self._fields is None else dict)

    @response_handler
    async def answered(self, original_request: Question, response: object, ctx: StepContext) -> None:
        """The answer is the step's output."""
        value = cast("JsonValue", response)
        await self.give(value, as_result(value), ctx)


async def invoke(tool: Tool, arguments: JsonObject, call: CallContext) -> Complete:
    """Call a tool to its end and return its result without `_meta`, which is about the inner call.

    Raises:
        ToolFailed: The result is an error, or the tool started a task.
    """
    outcome = await drive(tool, arguments, call)
    if isinstance(outcome, TaskStarted):
        raise ToolFailed(f"Tool {tool.definition.name!r} started a background task; a workflow cannot wait for one.")
    if outcome.is_error:
        raise ToolFailed(outcome.as_text() or f"Tool {tool.definition.name!r} failed without saying why.")
    return Complete({key: value for key, value in outcome.result.items() if key != "_meta"})


def inner_context(call: CallContext, label: str) -> CallContext:
    """A context for calls made by the executor `label`: its progress reaches the caller as labelled messages."""
    caller = _Labelled(call.caller, label)
    return dataclasses.replace(call.child(), caller=caller, wants_progress=call.wants_progress)


def value_of(result: Complete) -> JsonValue:
    """What templates and edges see of a result: structured content where there is some, else its text."""
    return result.structured if result.structured is not None else result.as_text()


def as_result(value: JsonValue) -> Complete:
    """A JSON value as a result: an object is structured content too."""
    return Complete.text(as_text(value), structured=value if isinstance(value, dict) else None)


def demand_fields(result: Complete, fields: dict[str, JsonObject]) -> tuple[JsonValue, Complete]:
    """The declared fields of a result.

    Raises:
        ToolFailed: They are missing or do not fit.
    """
    value, problem = read_fields(result, fields)
    if value is None:
        raise ToolFailed(f"The result lacks what `output` demands: {problem}.")
    return value, as_result(value)


def read_fields(result: Complete, fields: dict[str, JsonObject]) -> tuple[JsonObject | None, str]:
    """The declared fields of a result, defaults filled in and others left out; or `None` and what is wrong."""
    structured = result.structured
    found = cast("JsonObject", structured) if isinstance(structured, dict) else find_object(result.as_text())
    if found is None:
        return None, "there is no JSON object in it"
    problem = SchemaCheck(object_schema(fields, is_closed=False)).find(found, measure(found))
    if problem is not None:
        return None, problem
    return {name: found.get(name, schema.get("default")) for name, schema in fields.items()}, ""


def task_argument(tool: Tool) -> str:
    """The text argument of an agent tool that says what to do.

    Raises:
        ToolFailed: There is no such argument.
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
    """What came before, as one prompt: the texts of all messages; a sole argument of the run is its text."""
    texts: list[str] = []
    for message in messages:
        fields = cast("JsonObject", message) if isinstance(message, dict) else {}
        texts.append(as_text(next(iter(fields.values())) if len(fields) == 1 else message))
    return "\n\n".join(text for text in texts if text)


def find_object(text: str) -> JsonObject | None:
    """The JSON object in a model's answer: the whole text, a fenced block, or the outermost braces."""
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


class _Labelled:
    """A caller that hears the progress of one executor under its name."""

    def __init__(self, caller: Caller, label: str) -> None:
        self._caller = caller
        self._label = label

    async def progress(self, progress: float, total: float | None, message: str | None) -> None:
        """Only messages say something about a part; its numbers are about itself."""
        if message:
            await self._caller.progress(progress, total, f"{self._label}: {message}")

    async def log(self, level: LogLevel, data: JsonValue, logger: str | None) -> None:
        await self._caller.log(level, data, logger)

    async def ask(self, request: JsonObject, key: str = "") -> JsonObject:
        return await self._caller.ask(request, key)

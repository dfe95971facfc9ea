"""`record_call`: runs a call inside a durable task as a step of the task, or returns the recorded outcome. Used by `gate.tools`."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import cast

from gateway.json_types import JsonObject, JsonValue
from gateway.tools.base import Complete, InputRequired, TaskStarted, Tool, ToolOutcome
from gateway.tools.context import CallContext, DurablePort
from gateway.tools.drive import digest_of

FOLLOWED_TASK = "task"
"""Name under which a tool that follows tasks of a server stores the server's `CreateTaskResult` in the step log of a durable task."""

PASSED = "passed"
"""Key in a recorded outcome: true if the gate judged the outcome before it was recorded. Records of earlier versions lack the key."""

Settle = Callable[[CallContext], Awaitable[ToolOutcome]]


async def record_call(
    durable: DurablePort,
    tool: Tool,
    exposed_name: str,
    arguments: JsonObject,
    ctx: CallContext,
    settle: Settle,
    *,
    is_repeatable: bool = False,
) -> tuple[ToolOutcome, bool]:
    """Call `settle` as a step of the durable task, and return its outcome, or the recorded outcome of an earlier attempt.

    Also return whether the gate judged the outcome before it was recorded.

    A step whose process died may run again if the tool records its own steps (`records_steps`: an agent, a workflow), if the tool kept
    the id of a server's task, which it then follows, or if policy says that a second call changes nothing (`is_repeatable`). Otherwise a
    person is asked.

    Raises:
        ToolFailed: The outcome of an earlier attempt is unknown, and the call must not be repeated.
    """
    name = f"{exposed_name}:{digest_of([arguments, ctx.facts.request_state])}"
    records_itself = bool(getattr(tool, "records_steps", False))
    follows = bool(getattr(tool, "keeps_tasks", False))

    def repeatable(key: str) -> bool:
        if is_repeatable or records_itself:
            return True
        return follows and durable.scoped(key.rpartition("/")[2]).kept(FOLLOWED_TASK) is not None

    async def work(key: str) -> JsonValue:
        inner = durable.scoped(key.rpartition("/")[2]) if records_itself or follows else None
        return {**_to_json(await settle(ctx.as_step(inner, key))), PASSED: True}

    form = cast("JsonObject", await durable.step(name, work, repeatable=repeatable, ctx=ctx))
    return _from_json(form), PASSED in form


def _to_json(outcome: ToolOutcome) -> JsonObject:
    match outcome:
        case Complete():
            return {"result": outcome.result}
        case InputRequired():
            return {"requests": dict(outcome.requests), "state": outcome.state, "meta": outcome.meta}
        case TaskStarted():
            return {"task": outcome.task}


def _from_json(form: JsonObject) -> ToolOutcome:
    if "result" in form:
        return Complete(form["result"])
    return TaskStarted(form["task"]) if "task" in form else InputRequired(form["requests"], form["state"], form["meta"])

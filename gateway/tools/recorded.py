"""A call inside a durable task as a step of it: not run again when it is on record. Only `guard` calls it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import cast

from gateway.json_types import JsonObject, JsonValue
from gateway.tools.base import Complete, InputRequired, TaskStarted, Tool, ToolOutcome
from gateway.tools.context import CallContext, DurablePort
from gateway.tools.drive import digest_of

FOLLOWED_TASK = "task"
"""Name under which a tool that `keeps_tasks` keeps the create answer of a server's own task (`DurablePort.keep`)."""

PASSED = "passed"
"""Key in what is recorded of an outcome that had passed the gate. The outcomes that earlier versions recorded had not."""

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
    """The outcome of `settle`, which has passed the gate, or the one on record; and whether that had passed the gate.

    A tool that records what it does itself (`records_steps`: an agent, a workflow) may be run again at any time, as may one that
    kept the id of a server's own task, which it then goes on following; any other only where policy says that a second time changes
    nothing (`is_repeatable`). Otherwise a person is asked.

    Raises:
        ToolFailed: Nobody knows whether it took effect, and it is not to be repeated.
    """
    name = f"{exposed_name}:{digest_of([arguments, ctx.request_state])}"
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

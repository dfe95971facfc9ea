"""`record_call`: runs a tool call in a durable task as a recorded step. Used by `gate.tools`.

A durable task is a call in the background that continues after a restart of the gateway; it does not repeat recorded steps.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import cast

from gateway.json_types import JsonObject, JsonValue
from gateway.tools.base import Complete, InputRequired, TaskStarted, Tool, ToolOutcome
from gateway.tools.context import CallContext, DurablePort
from gateway.tools.drive import digest_of

FOLLOWED_TASK = "task"
"""Name of the entry, in the record of a durable task's steps, in which a tool stores a remote server's `CreateTaskResult`.

With this entry, a resumed task follows the server's task instead of starting another."""

PASSED = "passed"
"""Key in the recorded outcome of a tool call, which is a step of a durable task: true if policy judged the outcome before recording it.

Outcomes that earlier versions of the gateway recorded do not have this key."""

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
    """Run a tool call as a step of a durable task, which continues after a restart. Return its outcome, and whether policy has judged it.

    `settle` makes the call. If an earlier attempt of the task recorded the outcome of the step, that outcome is returned without a call.

    If the process died during the step, the step runs again in three cases: the tool records its own steps (`records_steps`: an agent, a
    workflow); the tool stored the id of a remote server's task, which it then follows; or a second call changes nothing
    (`is_repeatable`). In other cases, a person is asked whether the call may be repeated.

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

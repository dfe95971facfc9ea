"""`drive`: call a tool and answer its input requests on the way, until it completes.

Used wherever the one calling cannot hand an `InputRequired` on: for legacy clients, inside agents and
workflows, and by the CLI. The server hands it on unchanged to modern clients instead.
"""

from __future__ import annotations

import dataclasses

from gateway.errors import ToolFailed
from gateway.json_types import JsonObject
from gateway.tools.base import Complete, InputRequired, TaskStarted, Tool
from gateway.tools.context import CallContext

MAX_ROUNDS = 10
"""Input rounds per call; a server that asks more often than this is taken for stuck."""


async def drive(tool: Tool, arguments: JsonObject, ctx: CallContext) -> Complete | TaskStarted:
    """Call `tool`, putting each input request to `ctx.ask` and retrying with the answers.

    Raises:
        AskUnavailable: The caller cannot be asked what the tool needs.
        ToolFailed: More than `MAX_ROUNDS` rounds.
    """
    for _ in range(MAX_ROUNDS):
        outcome = await tool.call(arguments, ctx)
        if not isinstance(outcome, InputRequired):
            return outcome
        answers: JsonObject = {}
        for key, request in outcome.requests.items():
            answers[key] = await ctx.ask(dict(request))
        ctx = dataclasses.replace(ctx, input_responses=answers, request_state=outcome.state)
    raise ToolFailed(f"Tool {tool.definition.name!r} asked for input more than {MAX_ROUNDS} times; giving up.")

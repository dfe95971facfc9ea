"""Implementations of `Caller` (the port through which a tool call reaches its client) for calls that a workflow makes.

They pass progress, log messages and requests for input of the workflow's steps to the client that called the workflow. `tool` and `steps`
use them.
"""

from __future__ import annotations

from typing import Protocol

from gateway.errors import InputUnavailable
from gateway.json_types import JsonObject
from gateway.policy.framing import frame
from gateway.tools.context import CallContext
from gateway.tools.ports import Caller, PassingCaller


class Forms(Protocol):
    """Puts questions on the list that a person answers at the command line (`moongate approvals list`), for clients without forms."""

    async def put_form(
        self, source: str, name: str, message: str, form: JsonObject, ctx: CallContext, key: str = ""
    ) -> JsonObject:
        """Put a form on the list of pending questions, wait for a person's answer, and return it as an elicitation result of MCP.

        `source` and `name` identify the tool or workflow that asks. `key` identifies the question if the call runs as a task that can be
        resumed (`CallContext.question`).
        """
        ...


class LabelledCaller(PassingCaller):
    """A `Caller` (port from a tool call to its client) that puts the id of a workflow executor in front of progress messages.

    It passes log messages and requests for input to another `Caller` unchanged.
    """

    def __init__(self, caller: Caller, label: str) -> None:
        super().__init__(caller)
        self._label = label

    async def progress(self, progress: float, total: float | None, message: str | None) -> None:
        """Report progress that has a message to the client, with the executor's id in front of the message.

        Progress without a message is dropped, because its numbers count the work of one executor and not of the workflow.
        """
        if message:
            await self._caller.progress(progress, total, f"{self._label}: {message}")


class QuestionCaller(PassingCaller):
    """A `Caller` (port from a tool call to its client) for the questions that a workflow itself asks a person.

    It asks through the client, or through the list of pending questions (`moongate approvals list`) if the client cannot be asked. Tools
    that the workflow calls do not use it.
    """

    def __init__(self, workflow: str, caller: Caller, forms: Forms, ctx: CallContext) -> None:
        super().__init__(caller)
        self._workflow = workflow
        self._forms = forms
        self._ctx = ctx

    async def ask(self, request: JsonObject, key: str = "") -> JsonObject:
        """Ask the workflow's question through the client, or put it on the list of pending questions if the client cannot be asked.

        The client gets the question quoted line by line under a heading that names the workflow, because templates may insert texts of
        tools and models.
        """
        params: JsonObject = request["params"]
        framed = frame(f"Workflow {self._workflow!r} asks:", str(params["message"]))
        try:
            return await self._caller.ask({**request, "params": {**params, "message": framed}}, key)
        except InputUnavailable:
            return await self._forms.put_form("workflow", self._workflow, params["message"], params["requestedSchema"], self._ctx, key)

"""`Caller` objects that pass progress, logs and requests for input of a workflow's steps to the client that called the workflow.

Used by `tool` and `steps`.
"""

from __future__ import annotations

from typing import Protocol

from gateway.errors import AskUnavailable
from gateway.json_types import JsonObject, JsonValue
from gateway.policy.framing import frame
from gateway.tools.context import CallContext
from gateway.tools.ports import Caller, LogLevel


class Forms(Protocol):
    """Asks people through the pending list (`moongate approvals list`), if the client cannot show the question."""

    async def put_form(
        self, source: str, name: str, message: str, form: JsonObject, ctx: CallContext, key: str = ""
    ) -> JsonObject:
        """Put a form on the pending list, and return the answer in the form of an elicitation result.

        `key` identifies the question in a durable task (`CallContext.question`).
        """
        ...


class PassingCaller:
    """Passes progress, log messages and requests for input to another `Caller`. Base of the other classes in this module."""

    def __init__(self, caller: Caller) -> None:
        self._caller = caller

    async def progress(self, progress: float, total: float | None, message: str | None) -> None:
        """Pass a progress report to the other caller."""
        await self._caller.progress(progress, total, message)

    async def log(self, level: LogLevel, data: JsonValue, logger: str | None) -> None:
        """Pass a log message to the other caller."""
        await self._caller.log(level, data, logger)

    async def ask(self, request: JsonObject, key: str = "") -> JsonObject:
        """Pass a request for input to the other caller, and return its answer."""
        return await self._caller.ask(request, key)


class LabelledCaller(PassingCaller):
    """Passes everything to another `Caller`, with an executor's id in front of progress messages."""

    def __init__(self, caller: Caller, label: str) -> None:
        super().__init__(caller)
        self._label = label

    async def progress(self, progress: float, total: float | None, message: str | None) -> None:
        """Pass messages only: the numbers count the work of one executor, not of the run."""
        if message:
            await self._caller.progress(progress, total, f"{self._label}: {message}")


class QuestionCaller(PassingCaller):
    """Asks the questions of a workflow: through its client, or through the pending list if the client cannot be asked.

    Questions of tools that the workflow calls do not come here.
    """

    def __init__(self, workflow: str, caller: Caller, forms: Forms, ctx: CallContext) -> None:
        super().__init__(caller)
        self._workflow = workflow
        self._forms = forms
        self._ctx = ctx

    async def ask(self, request: JsonObject, key: str = "") -> JsonObject:
        """Ask through the client, or put the question on the pending list.

        The text is quoted line by line under a heading, because templates may insert texts of tools and models.
        """
        params: JsonObject = request["params"]
        framed = frame(f"Workflow {self._workflow!r} asks:", str(params["message"]))
        try:
            return await self._caller.ask({**request, "params": {**params, "message": framed}}, key)
        except AskUnavailable:
            return await self._forms.put_form("workflow", self._workflow, params["message"], params["requestedSchema"], self._ctx, key)

"""`RecordModelCalls`: model calls of an agent inside a durable task, so that none that answered is paid for twice."""

from __future__ import annotations

from typing import cast

from gateway.chat.middleware import ChatContext, ChatMiddleware
from gateway.json_types import JsonObject
from gateway.middleware import CallNext
from gateway.tools.context import CallContext, DurablePort
from gateway.types.responses import ChatResponse
from gateway.types.streams import ResponseStream


class RecordModelCalls(ChatMiddleware):
    """Chat middleware; outermost, so that everything else happens once."""

    def __init__(self, ctx: CallContext, durable: DurablePort, *, is_remote_agent: bool = False) -> None:
        """`ctx` is the call that the run serves, `durable` its port.

        `is_remote_agent`: in the model's place is an agent elsewhere, whose run may have effects and is not repeated unasked.
        """
        self._ctx = ctx
        self._durable = durable
        self._name = "remote agent" if is_remote_agent else "model"
        self._repeatable = not is_remote_agent

    async def process(self, context: ChatContext, call_next: CallNext) -> None:
        """Ask the model, or give its recorded answer."""
        step = await self._durable.begin(self._name, repeatable=self._repeatable, ctx=self._ctx)
        if step.is_done:
            recorded = step.value
            context.result = ChatResponse.from_dict(cast("JsonObject", recorded)) if recorded is not None else ChatResponse([])
            return

        async def record(response: ChatResponse) -> None:
            await step.finish(response.to_dict())

        await call_next()
        result = context.result
        if isinstance(result, ResponseStream):
            context.result = result.with_result_hook(record)  # its parts go on to whoever reads
        elif result is not None:
            await record(result)

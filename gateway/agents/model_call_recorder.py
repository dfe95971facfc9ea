"""`RecordModelCalls`: records an agent's model calls in a durable task (a call that continues after a restart of the gateway).

After the restart, completed model calls are not repeated, so they are paid for only once.
"""

from __future__ import annotations

from typing import cast

from gateway.chat.chat_context import ChatContext
from gateway.chat.chat_middleware import ChatMiddleware
from gateway.json_types import JsonObject
from gateway.middleware import CallNext
from gateway.tools.context import CallContext, DurablePort
from gateway.types.responses import ChatResponse
from gateway.types.streams import ResponseStream


class RecordModelCalls(ChatMiddleware):
    """Chat middleware that records each model call of a durable task, and returns the recorded answer after a restart.

    It must be the outermost chat middleware, so that no other middleware runs again for a recorded call.
    """

    def __init__(self, ctx: CallContext, durable: DurablePort, *, is_remote_agent: bool = False) -> None:
        """Store the call that the run serves (`ctx`), and the step log (stored steps) of the durable task of the call (`durable`).

        With `is_remote_agent`, the chat client calls a remote agent instead of a model. Runs of the remote agent may have effects, so a
        person decides whether an interrupted call is repeated.
        """
        self._ctx = ctx
        self._durable = durable
        self._name = "remote agent" if is_remote_agent else "model"
        self._repeatable = not is_remote_agent

    async def process(self, context: ChatContext, call_next: CallNext) -> None:
        """Call the model and record its answer, or return the recorded answer if the call completed before a restart."""
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
            context.result = result.with_result_hook(record)  # records the response once the stream has been read
        elif result is not None:
            await record(result)

"""`RecordModelCalls`: model calls of an agent inside a durable task, so that none that answered is paid for twice."""

from __future__ import annotations

from typing import cast

from gateway.chat.middleware import ChatContext, ChatMiddleware
from gateway.json_types import JsonObject, JsonValue
from gateway.middleware import CallNext
from gateway.tools.context import DurablePort
from gateway.types.responses import ChatResponse
from gateway.types.streams import ResponseStream


class RecordModelCalls(ChatMiddleware):
    """Chat middleware; outermost, so that everything else happens once."""

    def __init__(self, durable: DurablePort) -> None:
        self._durable = durable

    async def process(self, context: ChatContext, call_next: CallNext) -> None:
        """Ask the model, or give its recorded answer."""

        async def ask(key: str) -> JsonValue:
            await call_next()
            result = context.result
            if isinstance(result, ResponseStream):
                result = await result.get_final_response()
            return result.to_dict() if result is not None else None

        recorded = await self._durable.step("model", ask, repeatable=True)
        response = ChatResponse.from_dict(cast("JsonObject", recorded)) if recorded is not None else ChatResponse([])
        context.result = response

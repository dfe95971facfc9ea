"""`FunctionInvocationLayer`: mixin of chat clients that executes the tool calls in the model's answers, with the run loop of agents.

An agent runs that loop itself and requests single model calls from its chat client, so tool calls are never executed twice.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, Unpack, cast

from gateway.agents.run_loop import RunPlan, answer_stream
from gateway.agents.run_updates import ChatUpdates, ReplacedAnswer, with_replaced
from gateway.chat.chat_client import BaseChatClient, OptionsT, ResponseArguments
from gateway.chat.chat_context import ClientRequest
from gateway.chat.loop_options import check_tool_values, loop_options, normalize_function_invocation_configuration
from gateway.json_types import JsonMapping
from gateway.middleware import around_models, check_layer, listed, sort_middleware
from gateway.sessions.compaction_provider import RunCompaction
from gateway.tools.context import CallContext
from gateway.tools.tool_lists import normalize_tools, separate_hosted_tools
from gateway.types.copying import last_raw
from gateway.types.messages import AgentRunInputs, own_copies, to_messages
from gateway.types.options import ChatOptions
from gateway.types.responses import ChatResponse, ChatResponseUpdate
from gateway.types.streams import ResponseStream

if TYPE_CHECKING:
    from gateway.chat.chat_context import ChatStream


class FunctionInvocationLayer(Generic[OptionsT]):
    """Mixin of chat clients that executes the tools that the model calls, and sends the results to the model until it answers.

    Every `BaseChatClient` includes this behavior, so listing the mixin as a base class of such a client has no effect. With any other
    class of chat clients, the mixin runs the loop of model and tool calls.
    """

    is_layer = True

    def __init__(
        self,
        *args: Any,
        middleware: Sequence[object] | None = None,
        function_invocation_configuration: JsonMapping | None = None,
        **kwargs: Any,
    ) -> None:
        """Store function middleware and loop limits. Other arguments, and chat middleware, go to the class that this mixin wraps.

        Raises:
            MiddlewareException: An item of `middleware` is not middleware, or is agent middleware.
            ValueError: A loop limit is unknown or out of range.
            TypeError: The class has no other base that accepts the arguments.
        """
        check_layer(FunctionInvocationLayer, self, args)
        if isinstance(self, BaseChatClient):
            how = {"middleware": middleware, "function_invocation_configuration": function_invocation_configuration}
            kwargs |= {key: value for key, value in how.items() if value is not None}
        else:
            given = around_models(sort_middleware(middleware))
            self.function_middleware: list[Any] = list(given.function)
            self.function_invocation_configuration = normalize_function_invocation_configuration(function_invocation_configuration)
            kwargs |= {"middleware": given.chat} if given.chat else {}
        cast("Any", super()).__init__(*args, **kwargs)

    if not TYPE_CHECKING:  # type checkers use the signature of the wrapped class's method

        def get_response(self, messages: Any, **how: Any) -> Any:
            """Return the model's response. Tools that the model calls are executed first, and the model receives their results."""
            inner = super().get_response
            return inner(messages, **how) if isinstance(self, BaseChatClient) else _looped(self, inner, messages, **how)

    @staticmethod
    def answers(request: ClientRequest) -> ChatStream:
        """Start a run of model and tool calls, and return its stream of answers and tool results in order.

        The stream's final response contains all messages of the run. Reading the stream raises `ModelError` if a model call failed,
        `UnknownTool` if the model called an unknown tool and the limits make that an error, or `MiddlewareFailure` if middleware failed.
        """
        replaced: list[ReplacedAnswer] = []

        def fold(updates: Sequence[ChatResponseUpdate]) -> ChatResponse:
            whole = with_replaced(updates, replaced, ChatUpdates("")) if replaced else updates
            response = ChatResponse.from_updates(whole, output_format_type=request.options.get("response_format"))
            if not request.stream:
                response.raw_representation = last_raw(response.raw_representation)
            return response

        return ResponseStream(_answers(request, replaced), fold)


@dataclass(frozen=True, slots=True)
class _NextClient:
    """Chat client that the run loop calls for each model call.

    `get_response` is the method of the class that `FunctionInvocationLayer` wraps.
    """

    get_response: Callable[..., Any]
    model: str


class _StreamedArguments(ResponseArguments[ChatOptions], total=False):
    """Keyword arguments of a chat client's `get_response`, including `stream`."""

    stream: bool


def _looped(
    client: FunctionInvocationLayer[Any], inner: Callable[..., Any], messages: AgentRunInputs, **how: Unpack[_StreamedArguments]
) -> Awaitable[ChatResponse] | ChatStream:
    """Call the model with `inner` and execute its tool calls, until the model answers without tool calls or a limit is reached.

    `inner` is the `get_response` of a chat client that is not a `BaseChatClient`.
    """
    values = how.get("function_invocation_kwargs") or {}
    check_tool_values(values)
    layers = listed(how.get("middleware"))
    around_models(sort_middleware(layers))
    given = cast("ChatOptions", dict(how.get("options") or {}))
    request = ClientRequest(
        client=_NextClient(inner, str(getattr(client, "model", ""))),
        client_limits=client.function_invocation_configuration,
        messages=to_messages(messages),
        limits=given.pop("loop", None),
        options=given,
        stream=how.get("stream", False),
        middleware=[*client.function_middleware, *layers],
        compaction_strategy=how.get("compaction_strategy"),
        tokenizer=how.get("tokenizer"),
        client_kwargs=how.get("client_kwargs") or {},
        function_invocation_kwargs=values,
        session=None,
    )
    answer = FunctionInvocationLayer.answers(request)
    return answer if request.stream else answer.get_final_response()


async def _answers(request: ClientRequest, replaced: list[ReplacedAnswer]) -> AsyncGenerator[ChatResponseUpdate, None]:
    options = cast("dict[str, Any]", dict(request.options))
    tools, hosted = await separate_hosted_tools(normalize_tools(options.pop("tools", None)))
    around = sort_middleware(list(request.middleware))
    strategy = request.compaction_strategy
    plan = RunPlan(
        client=request.client,
        messages=own_copies(request.messages),
        tools=tools,
        hosted_tools=hosted,
        options=cast("Any", options),
        loop=loop_options(request.client_limits, request.limits),
        ctx=CallContext(),
        stream=request.stream,
        function_middleware=around.function,
        chat_middleware=around.chat,
        session=request.session,
        function_invocation_kwargs=request.function_invocation_kwargs,
        client_kwargs=request.client_kwargs,
        compaction=RunCompaction(strategy, request.tokenizer) if strategy or request.tokenizer else None,
        replaced=replaced,
    )
    async with aclosing(answer_stream(plan)) as updates:
        async for update in updates:
            yield update

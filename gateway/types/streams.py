"""`ResponseStream`: a response that arrives in parts. Every streamed call of a chat client or an agent returns such a stream.

The parts may have any type. The module `responses` defines the types for models and agents, and joins their parts to complete responses.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterable, AsyncIterator, Awaitable, Callable, Generator, Sequence
from functools import partial
from inspect import isawaitable
from typing import Any, Generic, TypeVar, cast

UpdateT = TypeVar("UpdateT")
"""Type of the parts of a response stream."""
FinalT = TypeVar("FinalT")
"""Type of the complete response that a response stream makes from its parts."""
OuterUpdateT = TypeVar("OuterUpdateT")
"""Type of the converted parts in the stream that `ResponseStream.map` returns."""
OuterFinalT = TypeVar("OuterFinalT")
"""Type of the complete response of the stream that `ResponseStream.map` or `with_finalizer` returns."""

CLEANUP_SECONDS = 5.0
"""Maximum time in seconds for the cleanup hooks of a response stream whose reader was cancelled."""


class ResponseStream(Generic[UpdateT, FinalT]):
    """A response that arrives in parts. Iterate over it to read the parts, or await `get_final_response` for the complete response.

    The request is sent when the stream is first read or awaited. A stream can be read only once; call `aclose` to stop early. Hooks are
    functions, sync or async, that run in the order in which they were added. A hook that returns `None` does not replace its argument.
    """

    def __init__(
        self,
        stream: AsyncIterable[UpdateT] | Awaitable[AsyncIterable[UpdateT]],
        finalizer: Callable[[Sequence[UpdateT]], FinalT | Awaitable[FinalT]] | None = None,
        *,
        transform_hooks: Sequence[Callable[[UpdateT], Any]] | None = None,
        cleanup_hooks: Sequence[Callable[[], Any]] | None = None,
        result_hooks: Sequence[Callable[[FinalT], Any]] | None = None,
    ) -> None:
        """Create a stream of the parts in `stream`. When the stream has ended, `finalizer` makes the complete response from all parts.

        Without a finalizer, the complete response is that of `stream` if `stream` is a `ResponseStream`, otherwise the list of parts. The
        methods `with_transform_hook`, `with_cleanup_hook` and `with_result_hook` describe the three kinds of hooks.
        """
        self._source = stream
        self._iterator: AsyncIterator[UpdateT] | None = None
        self._finalizer = finalizer
        self._convert: Callable[[Any], Any] | None = None
        self._transform_hooks = list(transform_hooks or ())
        self._cleanup_hooks = list(cleanup_hooks or ())
        self._result_hooks = list(result_hooks or ())
        self._pull_contexts: list[Callable[[], contextlib.AbstractContextManager[Any]]] = []
        self._seen: list[UpdateT] = []
        self._ended = False
        self._error: Exception | None = None
        self._final: list[FinalT] = []

    @classmethod
    def from_awaitable(cls, awaitable: Awaitable[ResponseStream[UpdateT, FinalT]]) -> ResponseStream[UpdateT, FinalT]:
        """Return a stream for an awaitable whose result is a stream. The first read or `await` of the returned stream awaits it."""
        return cls(awaitable)

    def map(
        self,
        transform: Callable[[UpdateT], OuterUpdateT | Awaitable[OuterUpdateT]],
        finalizer: Callable[[Sequence[OuterUpdateT]], OuterFinalT | Awaitable[OuterFinalT]],
    ) -> ResponseStream[OuterUpdateT, OuterFinalT]:
        """Return a new stream of this stream's parts, each converted by `transform`. `finalizer` makes the new stream's complete response.

        The hooks of this stream still run.
        """
        made: ResponseStream[OuterUpdateT, OuterFinalT] = ResponseStream(cast("Any", self), finalizer)
        made._convert = transform
        return made

    def with_finalizer(
        self, finalizer: Callable[[Sequence[UpdateT]], OuterFinalT | Awaitable[OuterFinalT]]
    ) -> ResponseStream[UpdateT, OuterFinalT]:
        """Return a stream of the same parts. Its complete response is the result of `finalizer`."""
        return ResponseStream(self, finalizer)

    def with_transform_hook(self, hook: Callable[[UpdateT], Any]) -> ResponseStream[UpdateT, FinalT]:
        """Add a hook that gets each part and may return another part for the reader. Returns this stream.

        The finalizer, which makes the complete response, gets the unchanged parts, unless `with_context_hooks` is called afterwards.
        """
        self._transform_hooks.append(hook)
        return self

    def with_result_hook(self, hook: Callable[[FinalT], Any]) -> ResponseStream[UpdateT, FinalT]:
        """Add a hook that gets the complete response and may return another one. Returns this stream."""
        self._result_hooks.append(hook)
        self._final.clear()
        return self

    def with_cleanup_hook(self, hook: Callable[[], Any]) -> ResponseStream[UpdateT, FinalT]:
        """Add a hook that runs once, when the source of the parts ends or fails, or the stream is closed early. Returns this stream."""
        self._cleanup_hooks.append(hook)
        return self

    def with_pull_context_manager(
        self, cm_factory: Callable[[], contextlib.AbstractContextManager[Any]]
    ) -> ResponseStream[UpdateT, FinalT]:
        """Add a function that returns a context manager, such as an active trace span, to enter around the wait for each part.

        Returns this stream.
        """
        self._pull_contexts.append(cm_factory)
        return self

    def with_context_hooks(
        self,
        fold: Callable[[Sequence[UpdateT]], FinalT],
        *,
        transform_hooks: Sequence[Callable[[UpdateT], Any]],
        result_hooks: Sequence[Callable[[FinalT], Any]],
        cleanup_hooks: Sequence[Callable[[], Any]],
    ) -> ResponseStream[UpdateT, FinalT]:
        """Add the hooks of middleware to this stream, which must be unread, and return the stream that the caller must read instead.

        If there is a transform hook, `fold` makes the complete response from the parts that the hooks returned. Therefore data that
        middleware removed from a part is missing in the complete response, too.
        """
        transforms = [*self._transform_hooks, *transform_hooks]
        stream = self
        if transforms:
            stream = self.map(partial(_apply, transforms), fold)
            stream._result_hooks, self._result_hooks, self._transform_hooks = self._result_hooks, [], []
        stream._result_hooks += result_hooks
        stream._cleanup_hooks += cleanup_hooks
        return stream

    @property
    def updates(self) -> Sequence[UpdateT]:
        """The parts that have arrived so far, as the finalizer gets them (`with_transform_hook` says whether hooks changed them)."""
        return self._seen

    def __await__(self) -> Generator[Any, None, ResponseStream[UpdateT, FinalT]]:
        """Resolve the source of the parts, and return this stream. No part is read.

        This method exists because programs for Microsoft's agent-framework await streams.
        """
        return self._resolved().__await__()

    async def _resolved(self) -> ResponseStream[UpdateT, FinalT]:
        await self._iterate()
        return self

    async def _iterate(self) -> AsyncIterator[UpdateT]:
        if self._iterator is None:
            if not isinstance(self._source, AsyncIterable):
                self._source = await self._source
            self._iterator = aiter(self._source)
        return self._iterator

    def __aiter__(self) -> AsyncIterator[UpdateT]:
        return self

    async def __anext__(self) -> UpdateT:
        if self._ended:
            raise StopAsyncIteration
        try:
            update = await self._pull()
        except StopAsyncIteration:
            self._ended = True
            await self._clean_up()
            await self.get_final_response()
            raise
        except Exception as error:
            self._ended, self._error = True, error
            await self._clean_up()
            raise
        except BaseException:
            self._ended = True
            if self._cleanup_hooks:
                import anyio  # imported here because plain messages must not load anyio

                with anyio.move_on_after(CLEANUP_SECONDS, shield=True):
                    await self._clean_up()
            raise
        if self._convert is not None:
            update = await _settled(self._convert(update))
        self._seen.append(update)
        return await _apply(self._transform_hooks, update) if self._transform_hooks else update

    async def _pull(self) -> UpdateT:
        if not self._pull_contexts:
            return await anext(self._iterator or await self._iterate())
        with contextlib.ExitStack() as stack:
            for factory in self._pull_contexts:
                stack.enter_context(factory())
            return await anext(await self._iterate())

    async def get_final_response(self) -> FinalT:
        """Read the remaining parts and return the complete response. After `aclose`, it contains only the parts that were read before.

        If the source of the parts fails, this method raises the exception of the source, also in later calls.
        """
        if self._error is not None:
            raise self._error
        if not self._ended:
            async for _ in self:
                pass
        if not self._final:
            self._final.append(await self._finalized())
        return self._final[0]

    async def _finalized(self) -> FinalT:
        if self._finalizer is not None:
            result = await _settled(self._finalizer(self._seen))
        elif isinstance(source := cast("object", self._source), ResponseStream):
            result = await cast("ResponseStream[UpdateT, FinalT]", source).get_final_response()
        else:
            result = cast("FinalT", list(self._seen))
        return await _apply(self._result_hooks, result)

    async def aclose(self) -> None:
        """Stop reading the stream: close the source of the parts and run the cleanup hooks. Do nothing if the stream has ended."""
        if self._ended:
            return
        self._ended = True
        close = getattr(self._source, "aclose" if hasattr(self._source, "__aiter__") else "close", None)
        if close is not None:
            await _settled(close())
        await self._clean_up()

    async def _clean_up(self) -> None:
        hooks, self._cleanup_hooks = self._cleanup_hooks, []
        for hook in hooks:
            await _settled(hook())


async def _apply(hooks: Sequence[Callable[[Any], Any]], value: Any) -> Any:
    """Call the hooks in order, pass each the result of the previous hook, and return the result of the last hook.

    If a hook returns `None`, the value stays as it was.
    """
    for hook in hooks:
        hooked = await _settled(hook(value))
        value = value if hooked is None else hooked
    return value


async def _settled(value: Any) -> Any:
    return await value if isawaitable(value) else value

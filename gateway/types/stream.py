"""`ResponseStream`: updates as they arrive, and the final value they fold into.

Lazy: nothing runs before the first iteration or `get_final_response`. Returned by chat clients and agents
for `stream=True`; the non-streaming call folds one of these.
"""

from __future__ import annotations

from collections.abc import AsyncIterable, AsyncIterator, Awaitable, Callable, Sequence
from typing import Generic, TypeVar, cast

UpdateT = TypeVar("UpdateT")
FinalT = TypeVar("FinalT")
OtherUpdateT = TypeVar("OtherUpdateT")
OtherFinalT = TypeVar("OtherFinalT")


class ResponseStream(Generic[UpdateT, FinalT]):
    """An async iterable of updates that also knows the final value.

    Iterate it once, or ask for the final value, which consumes what is left. Leaving an iteration early
    should be followed by `aclose` (or use it as an async context manager) so that the source is closed.
    """

    def __init__(self, source: AsyncIterable[UpdateT], finalizer: Callable[[Sequence[UpdateT]], FinalT | Awaitable[FinalT]]) -> None:
        """`finalizer` folds all updates once the source is exhausted; it runs at most once."""
        self._source: AsyncIterable[UpdateT] | None = source
        self._opening: Callable[[], Awaitable[ResponseStream[UpdateT, FinalT]]] | None = None
        self._inner: ResponseStream[UpdateT, FinalT] | None = None
        self._iterator: AsyncIterator[UpdateT] | None = None
        self._finalizer = finalizer
        self._updates: list[UpdateT] = []
        self._exhausted = False
        self._final: FinalT | None = None
        self._finished = False
        self._result_hooks: list[Callable[[FinalT], FinalT | None | Awaitable[FinalT | None]]] = []
        self._cleanup_hooks: list[Callable[[], None | Awaitable[None]]] = []

    @classmethod
    def from_awaitable(cls, opening: Callable[[], Awaitable[ResponseStream[UpdateT, FinalT]]]) -> ResponseStream[UpdateT, FinalT]:
        """A stream whose source is only known after some work, which is done on first use.

        `opening` is a function, not a coroutine, so an unused stream leaves nothing un-awaited behind.
        """
        stream = cls(_empty(), lambda updates: cast("FinalT", updates))
        stream._opening = opening
        return stream

    def map(
        self, transform: Callable[[UpdateT], OtherUpdateT], finalizer: Callable[[Sequence[OtherUpdateT]], OtherFinalT | Awaitable[OtherFinalT]]
    ) -> ResponseStream[OtherUpdateT, OtherFinalT]:
        """A stream of transformed updates with its own final value. Consuming it consumes this one."""

        async def transformed() -> AsyncIterator[OtherUpdateT]:
            async for update in self:
                yield transform(update)

        return ResponseStream(transformed(), finalizer).with_cleanup_hook(self.aclose)

    def with_result_hook(
        self, hook: Callable[[FinalT], FinalT | None | Awaitable[FinalT | None]]
    ) -> ResponseStream[UpdateT, FinalT]:
        """Run `hook` on the final value; what it returns, unless `None`, replaces the value. Returns this stream."""
        self._result_hooks.append(hook)
        return self

    def with_cleanup_hook(self, hook: Callable[[], None | Awaitable[None]]) -> ResponseStream[UpdateT, FinalT]:
        """Run `hook` once when the stream ends, fails or is closed. Returns this stream."""
        self._cleanup_hooks.append(hook)
        return self

    @property
    def updates(self) -> Sequence[UpdateT]:
        """Updates seen so far."""
        return tuple(self._updates)

    def __aiter__(self) -> AsyncIterator[UpdateT]:
        return self

    async def __anext__(self) -> UpdateT:
        if self._exhausted:
            raise StopAsyncIteration
        try:
            if self._iterator is None:
                self._iterator = await self._open()
            update = await anext(self._iterator)
        except StopAsyncIteration:
            self._exhausted = True
            await self._clean_up()
            await self._finish()
            raise
        except BaseException:
            self._exhausted = True
            await self._clean_up()
            raise
        self._updates.append(update)
        return update

    async def get_final_response(self) -> FinalT:
        """Consume what is left and return the final value."""
        async for _ in self:
            pass
        await self._finish()
        return cast("FinalT", self._final)

    async def aclose(self) -> None:
        """Stop early and release the source. Idempotent; the final value then covers what was seen."""
        if not self._exhausted:
            self._exhausted = True
            close = getattr(self._iterator or self._source, "aclose", None)
            if close is not None:
                await close()
        await self._clean_up()

    async def __aenter__(self) -> ResponseStream[UpdateT, FinalT]:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    async def _open(self) -> AsyncIterator[UpdateT]:
        if self._opening is not None:
            opening, self._opening = self._opening, None
            self._inner = await opening()
            return aiter(self._inner)
        assert self._source is not None
        return aiter(self._source)

    async def _finish(self) -> None:
        if self._finished:
            return
        self._finished = True
        if self._inner is not None:
            final = await self._inner.get_final_response()
        else:
            outcome = self._finalizer(self._updates)
            final = await outcome if isinstance(outcome, Awaitable) else outcome
        for hook in self._result_hooks:
            replaced = hook(final)
            replaced = await replaced if isinstance(replaced, Awaitable) else replaced
            final = final if replaced is None else replaced
        self._final = final

    async def _clean_up(self) -> None:
        hooks, self._cleanup_hooks = self._cleanup_hooks, []
        for hook in hooks:
            outcome = hook()
            if isinstance(outcome, Awaitable):
                await outcome


async def _empty() -> AsyncIterator[UpdateT]:  # pyright: ignore[reportInvalidTypeVarUse]  # placeholder source of `from_awaitable`
    return
    yield

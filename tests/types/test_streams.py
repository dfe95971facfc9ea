"""`ResponseStream`: hooks, mapping, and reading that ends early or fails."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncGenerator, Generator
from typing import Any

import anyio
import pytest

from gateway import ResponseStream


async def numbers(upto: int = 3) -> AsyncGenerator[int, None]:
    for number in range(1, upto + 1):
        yield number


def stream_of(source: Any = None, **hooks: Any) -> ResponseStream[int, int]:
    return ResponseStream[int, int](source if source is not None else numbers(), finalizer=sum, **hooks)


@pytest.mark.requirement("CL3")
@pytest.mark.parametrize("iterated", [True, False], ids=["iterated", "only-the-end"])
async def test_hooks_see_each_part_then_cleanup_then_the_whole_once(iterated: bool) -> None:
    log: list[Any] = []

    async def clean_up() -> None:
        log.append("clean")

    def doubled(total: int) -> int:
        log.append(total)
        return total * 2

    stream = stream_of().with_transform_hook(lambda n: n * 10).with_cleanup_hook(clean_up).with_result_hook(doubled)
    if iterated:
        assert [n async for n in stream] == [10, 20, 30]
        assert log == ["clean", 6]
    assert [await stream.get_final_response() for _ in range(2)] == [12, 12]
    assert log == ["clean", 6]
    assert list(stream.updates) == [1, 2, 3]


@pytest.mark.requirement("CL3")
async def test_mapped_stream_runs_the_inner_hooks() -> None:
    wholes: list[int] = []
    inner = stream_of().with_result_hook(wholes.append)
    outer = inner.map(str, lambda parts: "".join(parts))
    assert [part async for part in outer] == ["1", "2", "3"]
    assert (await outer.get_final_response(), wholes) == ("123", [6])
    assert await stream_of().with_finalizer(len).get_final_response() == 3


@pytest.mark.requirement("CL3", "AG3")
async def test_stream_from_an_awaitable_starts_on_first_read() -> None:
    started: list[bool] = []

    async def later() -> ResponseStream[int, int]:
        started.append(True)
        return stream_of()

    stream = ResponseStream[int, int].from_awaitable(later())
    assert started == []
    assert await (await stream).get_final_response() == 6
    assert started == [True]


@pytest.mark.requirement("CL3")
async def test_failed_stream_cleans_up_and_raises_again_for_the_whole() -> None:
    log: list[str] = []

    async def failing() -> AsyncGenerator[int, None]:
        yield 1
        raise RuntimeError("lost")

    stream = stream_of(failing()).with_cleanup_hook(lambda: log.append("clean"))
    with pytest.raises(RuntimeError, match="lost"):
        _ = [n async for n in stream]
    with pytest.raises(RuntimeError, match="lost"):
        await stream.get_final_response()
    assert log == ["clean"]


@pytest.mark.requirement("CL3")
@pytest.mark.parametrize("how", ["closed", "cancelled"])
async def test_leaving_early_cleans_up_and_stops_the_source(how: str) -> None:
    log: list[str] = []
    waiting = anyio.Event()

    async def endless() -> AsyncGenerator[int, None]:
        try:
            yield 1
            waiting.set()
            await anyio.sleep_forever()
        finally:
            log.append("stopped")

    async def clean_up() -> None:
        await anyio.lowlevel.checkpoint()
        log.append("clean")

    stream = stream_of(endless()).with_cleanup_hook(clean_up)
    assert await anext(aiter(stream)) == 1
    with anyio.fail_after(20):
        if how == "closed":
            await stream.aclose()
        else:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(stream.__anext__)
                await waiting.wait()
                tasks.cancel_scope.cancel()
    assert sorted(log) == ["clean", "stopped"]


async def test_pull_context_is_entered_around_each_wait_and_always_left() -> None:
    log: list[str] = []

    @contextlib.contextmanager
    def around() -> Generator[None]:
        log.append("in")
        yield
        log.append("out")

    assert await stream_of(numbers(1)).with_pull_context_manager(around).get_final_response() == 1
    assert log[:2] == ["in", "out"]


async def test_stream_without_a_finalizer_gives_its_parts() -> None:
    assert await ResponseStream[int, Any](numbers()).get_final_response() == [1, 2, 3]

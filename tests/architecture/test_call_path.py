"""One plain proxied call executes code of few files, so that a reader can follow it."""

from __future__ import annotations

from tests.architecture.trace_call import MAX_FILES, traced_functions


async def test_plain_call_executes_few_files() -> None:
    files = {function.partition(" ")[0] for function in await traced_functions()}
    assert "gateway/gate/pipeline.py" in files
    assert len(files) <= MAX_FILES, sorted(files)

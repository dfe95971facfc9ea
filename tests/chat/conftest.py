"""One scripted OpenAI-compatible server for all chat tests; each test sets its own script."""

from __future__ import annotations

from collections.abc import Generator

import pytest

from tests.fakes.openai_server import ScriptedServer, openai_server


@pytest.fixture(scope="module")
def server() -> Generator[ScriptedServer]:
    with openai_server() as running:
        yield running

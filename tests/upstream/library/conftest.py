"""Test servers of both eras over HTTP, and `MCPTool` objects for each era and transport."""

from __future__ import annotations

from collections.abc import Generator

import pytest

from tests.fakes.running import upstream_http
from tests.upstream.library.made_tools import Make

WAYS = ("stdio modern", "stdio legacy", "http modern", "http legacy")


@pytest.fixture(scope="module")
def urls() -> Generator[dict[str, str]]:
    with upstream_http() as modern, upstream_http("--legacy") as legacy:
        yield {"modern": modern, "legacy": legacy}


@pytest.fixture(params=WAYS)
def way(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def make(way: str, urls: dict[str, str]) -> Make:
    return Make(way, urls)

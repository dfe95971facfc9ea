"""Every test runs in an environment of its own, without the configuration, state, keys or models of the developer."""

from __future__ import annotations

import functools
import gc
import os
from collections import Counter
from collections.abc import Generator
from pathlib import Path

import httpcore2
import pytest
from hypothesis import HealthCheck, settings

from tests.cli.processes import untouched_logging
from tests.fakes.running import TASK_ENGINE
from tests.fakes.temporal import TemporalServer, temporal

FOREIGN = ("MOONGATE_", "AWS_", "OPENAI_", "AZURE_OPENAI_", "FOUNDRY_", "OTEL_", "ENABLE_", "NOTES_FILE", "UNITS_PORT")
"""Prefixes of environment variables that change a gateway's behaviour."""

LOOPBACK = "127.0.0.1,localhost,::1"
"""Hosts that tests never reach through the machine's HTTP proxy."""

settings.register_profile("gate", deadline=None, derandomize=True, database=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("gate")
"""The hypothesis profile of ordinary runs: the same examples in each run, without a deadline per example."""


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Collect the tests without garbage collection, which would scan a growing number of modules and tests that are never freed."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put the files with the longest time limits first, so that no process runs one of them when all others have ended."""
    limits: Counter[Path] = Counter()
    counts = Counter(item.path for item in items)
    for item in items:
        if (limit := item.get_closest_marker("timeout")) is not None:
            limits[item.path] = max(limits[item.path], int(limit.args[0]))
    items.sort(key=lambda item: (-limits[item.path], -counts[item.path]))  # stable: the tests of a file stay in order


@pytest.fixture(scope="session", autouse=True)
def own_environment(tmp_path_factory: pytest.TempPathFactory) -> Generator[None]:
    """Set the environment of tests and of the processes that tests start."""
    with pytest.MonkeyPatch.context() as patch:
        for name in [name for name in os.environ if name.startswith(FOREIGN)]:
            patch.delenv(name)
        for name in ("NO_PROXY", "no_proxy"):
            patch.setenv(name, ",".join(filter(None, (os.environ.get(name), LOOPBACK))))
        patch.setenv("XDG_STATE_HOME", str(tmp_path_factory.mktemp("state-home")))
        # Reading the certificates takes each of a few thousand clients 20 ms.
        patch.setattr(httpcore2, "default_ssl_context", functools.cache(httpcore2.default_ssl_context))
        yield


@pytest.fixture(autouse=True)
def own_logging() -> Generator[None]:
    """Restore logging after each test, because a command in this process configures logging and any test may run next."""
    with untouched_logging():
        yield


@pytest.fixture(scope="session")
def temporal_server(tmp_path_factory: pytest.TempPathFactory) -> Generator[TemporalServer]:
    """A Temporal server that tests share, each with a task queue of its own."""
    with temporal(tmp_path_factory.mktemp("temporal")) as server:
        yield server


@pytest.fixture(params=["local", pytest.param("temporal", marks=pytest.mark.temporal)])
def task_engine(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """The engine of the test's tasks: the gateway, or a Temporal server. Gateways and runners of the test use it."""
    if request.param == "temporal":
        monkeypatch.setenv(TASK_ENGINE, request.getfixturevalue("temporal_server").address)
    return request.param

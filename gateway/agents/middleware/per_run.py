"""`PerRun`: stores a value for each run of an agent, for function middleware whose state must not be shared by runs."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import Generic, TypeVar

from gateway.tools.base import Tool

T = TypeVar("T")

MAX_RUNS = 256
"""Maximum number of runs whose value is stored; the value of the oldest run is dropped."""


class PerRun(Generic[T]):
    """Stores one value per run of an agent, created by `make` on first use.

    The list object with the run's tools identifies the run. The list is stored with the value, so that its `id()` is not reused.
    """

    def __init__(self, make: Callable[[], T]) -> None:
        self._make = make
        self._runs: OrderedDict[int, tuple[list[Tool], T]] = OrderedDict()

    def of(self, tools: list[Tool]) -> T:
        """Return the value of the run that has the list `tools`. The value is created on first use."""
        found = self._runs.get(id(tools))
        if found is None:
            found = self._runs[id(tools)] = (tools, self._make())
            while len(self._runs) > MAX_RUNS:
                self._runs.popitem(last=False)
        return found[1]

    def put(self, tools: list[Tool], value: T) -> None:
        """Replace the value of the run that has the list `tools`."""
        self.of(tools)
        self._runs[id(tools)] = (tools, value)

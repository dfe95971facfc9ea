"""`RunLock`: limits a workflow object to one run at a time. Used by `workflow` and `functional`."""

from __future__ import annotations

import weakref


class RunSlot:
    """The permission for one run, as a context manager. If a run is dropped before it starts, the slot becomes free."""

    __slots__ = ("__weakref__", "is_over")

    def __init__(self) -> None:
        self.is_over = False

    def __enter__(self) -> RunSlot:
        return self

    def __exit__(self, *exc: object) -> None:
        self.is_over = True


class RunLock:
    """Permits one run at a time: each run holds a `RunSlot`."""

    def __init__(self) -> None:
        self._current: weakref.ref[RunSlot] | None = None

    def begin(self, name: str) -> RunSlot:
        """Return the slot for a run of the workflow `name`.

        Raises:
            RuntimeError: Another run has not ended.
        """
        current = self._current() if self._current is not None else None
        if current is not None and not current.is_over:
            raise RuntimeError(
                f"Workflow is already running. Concurrent executions are not allowed: {name!r} does one run at a time. "
                "Await the other run, or read its stream to the end. To run in parallel, build another workflow."
            )
        slot = RunSlot()
        self._current = weakref.ref(slot)
        return slot

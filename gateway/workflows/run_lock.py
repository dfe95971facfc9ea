"""`RunLock`: limits a workflow object to one run at a time. Used by graph workflows (`graph`) and functional workflows (`functional`)."""

from __future__ import annotations

import weakref


class RunSlot:
    """Permission for one run of a workflow, as a context manager around the run.

    While the object exists and the context has not been left, no other run can begin. A run that is dropped before it starts therefore does
    not block others.
    """

    __slots__ = ("__weakref__", "is_over")

    def __init__(self) -> None:
        self.is_over = False

    def __enter__(self) -> RunSlot:
        return self

    def __exit__(self, *exc: object) -> None:
        self.is_over = True


class RunLock:
    """Permits one run of a workflow at a time. It holds a weak reference to the `RunSlot` of the current run."""

    def __init__(self) -> None:
        self._current: weakref.ref[RunSlot] | None = None

    def begin(self, name: str) -> RunSlot:
        """Return the slot (permission) for a run of this workflow, whose name `name` is used in the error text.

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

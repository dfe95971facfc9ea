"""`OneRun`: a workflow object does one run at a time. Used by `workflow` and `functional`."""

from __future__ import annotations

import weakref


class Turn:
    """The right to be the one run. Whatever does the run keeps it; a run that is dropped unread gives it back."""

    __slots__ = ("__weakref__", "is_over")

    def __init__(self) -> None:
        self.is_over = False

    def __enter__(self) -> Turn:
        return self

    def __exit__(self, *exc: object) -> None:
        self.is_over = True


class OneRun:
    """Hands out turns, one at a time."""

    def __init__(self) -> None:
        self._current: weakref.ref[Turn] | None = None

    def begin(self, name: str) -> Turn:
        """A turn for a run of the workflow `name`.

        Raises:
            RuntimeError: Another run is not over.
        """
        current = self._current() if self._current is not None else None
        if current is not None and not current.is_over:
            raise RuntimeError(
                f"Workflow is already running. Concurrent executions are not allowed: {name!r} does one run at a time. "
                "Await the other run, or read its stream to the end; for runs side by side build another one."
            )
        turn = Turn()
        self._current = weakref.ref(turn)
        return turn

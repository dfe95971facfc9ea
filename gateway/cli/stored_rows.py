"""Reads rows of the gateway's database for commands: approvals, audit entries, sessions and tasks."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Sequence
from typing import TYPE_CHECKING, Protocol, TypeVar

from gateway.cli.common import load, run_async, state_folder_of
from gateway.config.suggest import did_you_mean
from gateway.errors import NotFound

if TYPE_CHECKING:
    from gateway.config.models import GatewayConfig
    from gateway.storage.records import Records

T = TypeVar("T")


class _Row(Protocol):
    @property
    def id(self) -> str: ...


RowT = TypeVar("RowT", bound=_Row)


def with_records(config_path: str | None, work: Callable[[Records], Awaitable[T]]) -> T:
    """Open the database of a configuration, call `work` with it, close it, and return the result of `work`."""
    return with_configured_records(config_path, lambda records, _: work(records))


def with_configured_records(config_path: str | None, work: Callable[[Records, GatewayConfig], Awaitable[T]]) -> T:
    """Like `with_records`, but also call `work` with the configuration."""
    from gateway.storage.records import Records
    from gateway.upstream.hop_id import configuration_id

    loaded = load(config_path, fetches=False)
    storage = loaded.config.storage

    async def inner() -> T:
        state = state_folder_of(loaded)
        records = Records(state, audit_days=storage.audit_days, url=storage.url, gateway=configuration_id(state, loaded))
        try:
            return await work(records, loaded.config)
        finally:
            await records.aclose()

    return run_async(inner)


def empty_text(what: str, *filters: tuple[str | None, Collection[str]]) -> str:
    """Return the sentence that is printed if a list of `what` (such as `tasks`) is empty. It suggests a value for a misspelled filter.

    Each of `filters` is a pair. The first member is the value that the user gave for a filter option (`None`: not given). The second has
    the known values of the option, from which a similar one is suggested.
    """
    if all(given is None for given, _ in filters):
        return f"No {what} are kept."
    hints = [did_you_mean(given, known) for given, known in filters if given is not None and given not in known]
    return f"No such {what} are kept. {next(filter(None, hints), '')}".rstrip()


def pick(rows: Sequence[RowT], row_id: str, what: str, listing: str) -> RowT:
    """Return the row with the id `row_id`, or the only row whose id begins with it.

    For error messages, `what` names a row, such as `task`, and `listing` the command that lists the rows, such as `tasks list`.

    Raises:
        NotFound: No row has the id, or several rows have an id that begins with it.
    """
    found = [row for row in rows if row.id == row_id] or [row for row in rows if row_id and row.id.startswith(row_id)]
    if len(found) == 1:
        return found[0]
    hint = "Several begin so; write more of it." if found else did_you_mean(row_id, [row.id[: max(len(row_id), 8)] for row in rows])
    raise NotFound(what, row_id, f"Unknown {what} {row_id!r}. {hint or f'`moongate {listing}` shows them.'}")

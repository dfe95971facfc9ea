"""Writes the rows of the gateway's tables as JSON lines, and reads them back, for `backup` and `restore`. Works on SQLite and PostgreSQL.

The first line of a table is the list of its columns, and each further line has the values of one row. Bytes are `{"base64": …}`.
"""

from __future__ import annotations

import json
from base64 import b64decode, b64encode
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import IO, Any, cast

import sqlalchemy as sa

from gateway.errors import StorageError
from gateway.storage.engine import storable
from gateway.storage.tables import TABLES

MAX_LINE_BYTES = 268_435_456
"""Maximum size in bytes of one row as JSON. The largest rows, conversations and checkpoints, are far smaller."""

_BATCH = 500
"""Number of rows per statement."""


def table_names(connection: sa.Connection) -> list[str]:
    """Return the names of those of the gateway's tables that exist."""
    found = set(sa.inspect(connection).get_table_names())
    return [table.name for table in TABLES if table.name in found]


def write_rows(connection: sa.Connection, table: str, file: IO[bytes]) -> int:
    """Write all rows of a table, and return their number."""
    columns = [column["name"] for column in sa.inspect(connection).get_columns(table)]
    file.write(_line(columns))
    query = sa.select(*map(sa.column, columns)).select_from(sa.table(table))
    count = 0
    for row in connection.execution_options(stream_results=True, yield_per=_BATCH).execute(query):
        file.write(_line([{"base64": b64encode(value).decode()} if isinstance(value, bytes) else value for value in row]))
        count += 1
    return count


def read_rows(connection: sa.Connection, table: str, file: IO[bytes]) -> int:
    """Replace all rows of a table by those of a file, and return their number. The table has the schema of the time of the backup.

    Raises:
        StorageError: The file does not contain rows of this table.
    """
    lines = _lines(table, file)
    columns = next(lines, None)
    known = {column["name"] for column in sa.inspect(connection).get_columns(table)}
    if columns is None or set(columns) != known or len(columns) != len(known):
        raise _malformed(table)
    connection.execute(sa.delete(sa.table(table)))
    is_server = connection.dialect.name == "postgresql"
    # The numbers of rows are kept, because entries of the audit log name each other by number.
    overriding = "OVERRIDING SYSTEM VALUE " if is_server else ""
    places = ", ".join(f":v{number}" for number in range(len(columns)))
    insert = sa.text(f"INSERT INTO {table} ({', '.join(columns)}) {overriding}VALUES ({places})")
    fitting = (row for row in lines if _fits(row, columns, table))
    rows = ({f"v{number}": _value(value, table, is_server) for number, value in enumerate(row)} for row in fitting)
    count = 0
    while batch := list(islice(rows, _BATCH)):
        connection.execute(insert, batch)
        count += len(batch)
    return count


def last_numbers(connection: sa.Connection) -> dict[str, int]:
    """Return the highest number that was given to a row, for each table that numbers its rows and has had rows."""
    if connection.dialect.name == "sqlite":
        found = connection.exec_driver_sql("SELECT name, seq FROM sqlite_sequence").all()
        return {str(name): int(number) for name, number in found if name in {table.name for table in TABLES}}
    numbers: dict[str, int] = {}
    for table, sequence in _sequences(connection).items():
        number, is_called = connection.exec_driver_sql(f"SELECT last_value, is_called FROM {sequence}").one()
        if is_called:
            numbers[table] = int(number)
    return numbers


def continue_numbers(connection: sa.Connection, numbers: dict[str, int]) -> None:
    """Let tables number their next rows after `numbers`, which `last_numbers` returned."""
    if connection.dialect.name == "sqlite":
        for table, number in numbers.items():
            values = {"name": table, "seq": number}
            connection.execute(sa.text("DELETE FROM sqlite_sequence WHERE name = :name"), values)
            connection.execute(sa.text("INSERT INTO sqlite_sequence (name, seq) VALUES (:name, :seq)"), values)
        return
    for table, sequence in _sequences(connection).items():
        if number := numbers.get(table):
            connection.execute(sa.text("SELECT setval(CAST(:sequence AS regclass), :number)"), {"sequence": sequence, "number": number})


def _sequences(connection: sa.Connection) -> dict[str, str]:
    """Return the sequences that number the rows of tables on a PostgreSQL server, as quoted names by table."""
    columns = "SELECT table_name, pg_get_serial_sequence(quote_ident(table_schema) || '.' || quote_ident(table_name), column_name)"
    where = "FROM information_schema.columns WHERE table_schema = current_schema() AND is_identity = 'YES'"
    ours = {table.name for table in TABLES}
    return {str(table): str(sequence) for table, sequence in connection.exec_driver_sql(f"{columns} {where}") if table in ours}


def _line(values: Sequence[Any]) -> bytes:
    return json.dumps(values, separators=(",", ":")).encode() + b"\n"


def _lines(table: str, file: IO[bytes]) -> Iterator[list[Any]]:
    while line := file.readline(MAX_LINE_BYTES + 1):
        try:
            row = json.loads(line) if line.endswith(b"\n") else None
        except (ValueError, RecursionError):
            row = None
        if not isinstance(row, list):
            raise _malformed(table)
        yield cast("list[Any]", row)


def _fits(row: list[Any], columns: list[Any], table: str) -> bool:
    if len(row) != len(columns):
        raise _malformed(table)
    return True


def _value(value: Any, table: str, is_server: bool) -> Any:
    match value:
        case None | int() | float() if not isinstance(value, bool):
            return value
        case str():
            # PostgreSQL rejects NUL characters; SQLite stores them.
            return storable(value) if is_server else value
        case {"base64": str(text)}:
            try:
                return b64decode(text, validate=True)
            except ValueError:
                raise _malformed(table) from None
        case _:
            raise _malformed(table)


def _malformed(table: str) -> StorageError:
    return StorageError(f"The backup cannot be restored: its rows of the table `{table}` do not fit the table. Use another backup.")

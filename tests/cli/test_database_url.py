"""A malformed `storage.url` is refused by every command, and no part of its password is shown."""

from __future__ import annotations

from pathlib import Path

import pytest

from gateway.database_url import database_url_mistake
from gateway.errors import StorageError
from gateway.storage.database_location import DatabaseLocation
from gateway.storage.engine import place_of
from tests.cli.processes import Ended, moongate, write_gateway

COMMANDS = [
    ("run", "--http", "127.0.0.1:0"), ("run", "--stdio"), ("doctor",), ("keys", "list"), ("keys", "add", "laptop"), ("db", "check"),
    ("db", "migrate"), ("tasks", "list"), ("audit",),
]  # fmt: skip
PASSWORDS = ["a@hunter2secret", "a/b@hunter2secret/x", "a?hunter2secret", "a#hunter2secret", "a/hunter2secret", "hunter2secret@"]


def ended(folder: Path, url: str, *arguments: str, password: str = "hunter2secret") -> Ended:
    write_gateway(folder, storage={"url": url})
    return moongate(*arguments, cwd=folder, env={"DBPW": password})


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
@pytest.mark.parametrize("password", PASSWORDS[:2])
def test_unescaped_password_is_refused_and_never_shown(command: tuple[str, ...], password: str, tmp_path: Path) -> None:
    done = ended(tmp_path, "postgresql://u:${DBPW}@127.0.0.1:1/x", *command, password=password)
    text = done.out + done.err
    assert done.code == 2, text
    assert "storage.url: an `@`, `/`, `?` or `#` is in the password" in text
    assert "%40" in text
    assert "hunter2" not in text


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_malformed_port_is_refused_with_its_host(command: tuple[str, ...], tmp_path: Path) -> None:
    done = ended(tmp_path, "postgresql://u:${DBPW}@127.0.0.1:54x2/x", *command)
    text = done.out + done.err
    assert done.code == 2, text
    assert "storage.url: the host or the port is malformed at '127.0.0.1:54x2'. Write" in text
    assert "hunter2" not in text
    assert "Traceback" not in text


@pytest.mark.parametrize("password", PASSWORDS)
@pytest.mark.parametrize("scheme", ["postgresql", "postgres", "postgresql+psycopg"])
def test_every_border_in_a_password_is_refused(password: str, scheme: str) -> None:
    mistake = database_url_mistake(f"{scheme}://u:{password}@db.example.com/x")
    assert mistake is not None
    assert "Percent-encode" in mistake
    assert "hunter2" not in mistake


@pytest.mark.parametrize(
    ("location", "shown"),
    [
        ("u:hunter2secret@127.0.0.1:/x", "'127.0.0.1:'"),
        ("u:hunter2secret@[::1/x", "'[::1'"),
        ("u:hunter2secret@[::1]x/x", "'[::1]x'"),
        ("u:hunter2secret@db:70000/x", "'db:70000'"),
        ("u:hunter2secret@db:0?connect_timeout=3", "'db:0'"),
        ("u:hunter2secret/x", "'u'"),
        ("127.0.0.1:54x2/x", "'127.0.0.1'"),
    ],
)
def test_malformed_location_is_named_without_the_password(location: str, shown: str) -> None:
    with pytest.raises(StorageError, match="The database URL: the host or the port is malformed") as caught:
        place_of(f"postgresql://{location}")
    assert f"malformed at {shown}." in str(caught.value)
    assert "hunter2" not in str(caught.value)


@pytest.mark.parametrize(
    "url",
    [
        "postgresql://u:p%40a%2Fb%3Fc%23d@db.example.com:5432/x?sslmode=require",
        "postgresql://u:a:b@[::1]:5432/x",
        "postgresql://u:p@/x?host=db-1:5432&host=db-2:5432",
        "postgresql:///x",
        "sqlite:////home/a@b/x#1.db",
    ],
)
def test_well_formed_url_has_no_mistake(url: str) -> None:
    assert database_url_mistake(url) is None
    assert DatabaseLocation.of(Path(), url).place == place_of(url)


def test_malformed_url_of_another_database_is_refused() -> None:
    with pytest.raises(StorageError, match="does not begin with `postgresql://` or `sqlite:///`"):
        place_of("sqlite://u:hunter2secret/x.db")


@pytest.mark.parametrize("location", ["u:hunter2secret@127.0.0.1:1/x?", "u@127.0.0.1:1/x?password=hunter2secret&"])
def test_password_in_a_message_of_the_driver_is_masked(location: str) -> None:
    pytest.importorskip("psycopg")
    place = DatabaseLocation.of(Path(), f"postgresql://{location}sslmode=hunter2secret")
    for use in (place.migrate, lambda: place.snapshot().__enter__()):
        with pytest.raises(StorageError, match=r'invalid sslmode value: "\[secret\]"') as caught:
            use()
        assert "hunter2" not in str(caught.value)

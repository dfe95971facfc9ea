"""`KeyStore`: keys are valid as configured, in every process; damaged files admit nobody."""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, cast

import pytest

from gateway.auth.api_keys import KeyStore
from gateway.auth.principal import Principal
from gateway.errors import NotFound, StorageError


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "state" / "keys.json"


def edit(path: Path, **changes: Any) -> None:
    """Change the first stored key by hand."""
    document = cast("dict[str, Any]", json.loads(path.read_text()))
    document["keys"][0].update(changes)
    path.write_text(json.dumps(document))


def principal_of(keys: KeyStore, token: str) -> Principal:
    """Return the principal of a token, which must be valid."""
    key = keys.find(token)
    assert key is not None
    return key.principal


def test_new_key_is_one_principal(path: Path) -> None:
    keys = KeyStore(path)
    new = keys.add("laptop")
    assert new.token.startswith(f"gk_{new.id}_")
    assert principal_of(keys, new.token) == Principal(f"key:{new.id}", "laptop")
    other = keys.add("laptop")
    assert principal_of(keys, other.token) == Principal(f"key:{other.id}", "laptop")
    assert [info.name for info in keys.list()] == ["laptop", "laptop"]


def test_missing_file_means_no_keys_and_nothing_is_created(path: Path) -> None:
    keys = KeyStore(path)
    assert list(keys.list()) == []
    assert keys.find("gk_abc_def") is None
    assert not path.parent.exists()


def test_the_secret_is_nowhere_but_in_the_hand_of_the_maker(path: Path) -> None:
    keys = KeyStore(path)
    new = keys.add("laptop")
    secret = new.token.split("_", 2)[2]
    assert len(secret) >= 43  # 256 bits
    assert secret not in path.read_text()
    assert secret not in repr(new)
    assert secret not in repr(keys.list())
    if os.name == "posix":
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700


def test_anything_but_the_whole_token_is_refused(path: Path) -> None:
    keys = KeyStore(path)
    token = keys.add("laptop").token
    other = keys.add("phone").token
    mixed = "_".join([*token.split("_", 2)[:2], other.split("_", 2)[2]])
    near = [token[:-1], token + "x", token.upper(), f" {token}", token + "\n", mixed]
    for wrong in [*near, "", "gk", "gk__", "x" * 1_000_000, "gk_\ud800_x"]:
        assert keys.find(wrong) is None, wrong[:80]


def test_revoked_key_stops_working(path: Path) -> None:
    keys = KeyStore(path)
    first, second = keys.add("one"), keys.add("two")
    assert keys.revoke(first.id).name == "one"
    assert keys.find(first.token) is None
    assert keys.find(second.token) is not None
    with pytest.raises(NotFound) as caught:
        keys.revoke(first.id)
    assert caught.value.kind == "key"


def test_revoking_without_any_keys_is_reported(path: Path) -> None:
    with pytest.raises(NotFound):
        KeyStore(path).revoke("abc")


def test_expired_key_stops_working_but_is_still_listed(path: Path) -> None:
    keys = KeyStore(path)
    new = keys.add("guest", expires_days=1)
    assert keys.find(new.token) is not None
    (info,) = keys.list()
    assert info.expires_at is not None
    assert 86_000 < info.expires_at - time.time() <= 86_400
    edit(path, expiresAt=time.time() - 1)
    assert keys.find(new.token) is None
    assert keys.list()[0].is_expired(time.time())


def test_change_by_another_store_is_seen_at_once(path: Path) -> None:
    running, command = KeyStore(path), KeyStore(path)
    assert list(running.list()) == []
    new = command.add("laptop")
    assert running.find(new.token) is not None
    command.revoke(new.id)
    assert running.find(new.token) is None
    path.unlink()
    assert list(running.list()) == []


ADD = """
import sys
from pathlib import Path
from gateway.auth.api_keys import KeyStore
keys = KeyStore(Path(sys.argv[1]))
for number in range(20):
    print(keys.add(f"{sys.argv[2]}{number}").token)
"""


def test_keys_made_by_two_processes_at_once_all_work(path: Path) -> None:
    makers = [subprocess.Popen([sys.executable, "-c", ADD, str(path), name], stdout=subprocess.PIPE, text=True) for name in "ab"]
    tokens = [token for maker in makers for token in maker.communicate(timeout=30)[0].split()]
    keys = KeyStore(path)
    assert len(tokens) == len(keys.list()) == 40
    assert all(keys.find(token) for token in tokens)


@pytest.mark.parametrize(
    "content",
    [
        "", "{", "[]", "null", '{"version": 1}', '{"version": 1, "keys": {}}x', '{"version": 1, "keys": [1]}',
        '{"version": 1, "keys": "abc"}',
        '{"version": 1, "keys": [{"id": "a", "name": "n", "sha256": "short", "createdAt": 1, "expiresAt": null}]}',
        '{"version": 1, "keys": [{"id": "a", "name": "n", "createdAt": 1, "expiresAt": null}]}',
    ],
)  # fmt: skip
def test_damaged_key_file_rejects_all_callers_and_names_the_repair(path: Path, content: str) -> None:
    keys = KeyStore(path)
    token = keys.add("laptop").token
    path.write_text(content)
    for attempt in (lambda: keys.find(token), keys.list, lambda: keys.add("x"), lambda: keys.find(token)):
        with pytest.raises(StorageError, match=r"keys\.json.*damaged"):
            attempt()


def test_file_of_a_later_version_is_not_guessed_at(path: Path) -> None:
    keys = KeyStore(path)
    keys.add("laptop")
    path.write_text('{"version": 3, "keys": []}')
    with pytest.raises(StorageError, match="version 3"):
        keys.list()


@pytest.mark.parametrize(
    ("name", "days"), [("", None), ("  ", None), ("a\nb", None), ("x" * 101, None), ("a", 0), ("a", -1), ("a", float("nan"))]
)
def test_nonsense_is_refused(path: Path, name: str, days: float | None) -> None:
    with pytest.raises(ValueError, match="key"):
        KeyStore(path).add(name, expires_days=days)
    assert not path.exists()

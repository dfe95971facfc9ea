"""Writing whole files, reading state, locking between processes."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from gateway.errors import StorageError
from gateway.storage.atomic_files import locked, read_json, write_atomic


def mode_of(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


posix = pytest.mark.skipif(os.name != "posix", reason="POSIX modes and links")


def test_write_replaces_the_whole_file_and_leaves_nothing_else(tmp_path: Path) -> None:
    file = tmp_path / "a.json"
    write_atomic(file, b"first, and long")
    write_atomic(file, b"second")
    assert file.read_bytes() == b"second"
    assert [path.name for path in tmp_path.iterdir()] == ["a.json"]


@posix
@pytest.mark.attack(29)
def test_files_are_private_by_default(tmp_path: Path) -> None:
    file = tmp_path / "a"
    file.write_text("open to all")
    file.chmod(0o644)
    write_atomic(file, b"x")
    assert mode_of(file) == 0o600
    file.chmod(0o640)
    write_atomic(file, b"y", mode=None)
    assert mode_of(file) == 0o640


@posix
def test_linked_file_stays_linked(tmp_path: Path) -> None:
    real = tmp_path / "real"
    real.write_text("old")
    link = tmp_path / "link"
    link.symlink_to(real)
    write_atomic(link, b"new")
    assert link.is_symlink()
    assert real.read_bytes() == b"new"


def test_failed_write_leaves_the_old_file_and_names_it(tmp_path: Path) -> None:
    target = tmp_path / "folder"
    target.mkdir()
    (target / "inside").write_text("x")
    with pytest.raises(StorageError, match="folder"):
        write_atomic(target, b"x")
    assert [path.name for path in tmp_path.iterdir()] == ["folder"]
    with pytest.raises(StorageError, match="missing"):
        write_atomic(tmp_path / "missing" / "a", b"x")


@posix
def test_readers_only_see_whole_contents(tmp_path: Path) -> None:
    file = tmp_path / "a"
    contents = {bytes([letter]) * 200_000 for letter in b"abcd"}
    write_atomic(file, b"a" * 200_000)
    done = threading.Event()
    torn: list[int] = []

    def read() -> None:
        while not done.is_set():
            data = file.read_bytes()
            if data not in contents:
                torn.append(len(data))

    reader = threading.Thread(target=read)
    reader.start()
    for content in [*contents] * 5:
        write_atomic(file, content)
    done.set()
    reader.join(10)
    assert torn == []


def test_json_is_read_and_damage_is_named(tmp_path: Path) -> None:
    file = tmp_path / "a.json"
    with pytest.raises(FileNotFoundError):
        read_json(file)
    file.write_text('{"a": [1]}')
    assert read_json(file) == {"a": [1]}
    for damage in (b'{"a": ', b"\xff\xfe\x00", b"[" * 100_000, b""):
        file.write_bytes(damage)
        with pytest.raises(StorageError, match=r"a\.json"):
            read_json(file)
    with pytest.raises(StorageError):
        read_json(tmp_path)


COUNT = """
import sys
from pathlib import Path
from gateway.storage.atomic_files import locked, write_atomic
file = Path(sys.argv[1])
for _ in range(50):
    with locked(file):
        write_atomic(file, str(int(file.read_text()) + 1).encode())
"""


def test_lock_keeps_two_processes_apart(tmp_path: Path) -> None:
    file = tmp_path / "count"
    file.write_text("0")
    workers = [subprocess.Popen([sys.executable, "-c", COUNT, str(file)]) for _ in range(2)]
    assert [worker.wait(30) for worker in workers] == [0, 0]
    assert file.read_text() == "100"


def test_lock_is_free_again_when_its_holder_dies(tmp_path: Path) -> None:
    file = tmp_path / "state"
    program = (
        "import sys, os; from pathlib import Path; from gateway.storage.atomic_files import locked\n"
        "with locked(Path(sys.argv[1])): os._exit(9)"
    )
    assert subprocess.run([sys.executable, "-c", program, str(file)], timeout=20, check=False).returncode == 9
    with locked(file):
        pass


def test_lock_in_a_missing_folder_is_an_error_that_names_it(tmp_path: Path) -> None:
    with pytest.raises(StorageError, match="nowhere"), locked(tmp_path / "nowhere" / "a"):
        pass

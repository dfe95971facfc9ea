"""The state folder: its location, its permissions, and one installation key for all processes."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from gateway.errors import StorageError
from gateway.storage.state_folder import StateFolder, default_state_dir


@pytest.mark.parametrize(
    ("environ", "platform", "expected"),
    [
        ({"HOME": "/home/u"}, "linux", "/home/u/.local/state/moongate"),
        ({"HOME": "/home/u", "XDG_STATE_HOME": "/data/state"}, "linux", "/data/state/moongate"),
        ({"HOME": "/home/u", "XDG_STATE_HOME": "relative"}, "linux", "/home/u/.local/state/moongate"),
        ({"HOME": "/home/u", "XDG_STATE_HOME": ""}, "linux", "/home/u/.local/state/moongate"),
        ({"HOME": "/Users/u"}, "darwin", "/Users/u/Library/Application Support/moongate"),
        ({"USERPROFILE": "/u", "LOCALAPPDATA": "/u/Local"}, "win32", "/u/Local/moongate"),
        ({"USERPROFILE": "/u"}, "win32", "/u/AppData/Local/moongate"),
    ],
)
def test_the_default_folder_follows_the_platform(environ: dict[str, str], platform: str, expected: str) -> None:
    assert default_state_dir(environ, platform).as_posix() == expected


def test_nothing_is_created_until_something_is_written(tmp_path: Path) -> None:
    StateFolder(tmp_path / "state")
    assert list(tmp_path.iterdir()) == []


def test_installation_key_is_made_once_in_a_private_folder(tmp_path: Path) -> None:
    folder = StateFolder(tmp_path / "deep" / "state")
    first = folder.key("x")
    assert len(first) == 32
    assert folder.key("x") == first
    assert StateFolder(folder.path).key("x") == first
    assert StateFolder(tmp_path / "other").key("x") != first
    if os.name == "posix":
        assert stat.S_IMODE(folder.path.stat().st_mode) == 0o700
        assert stat.S_IMODE((folder.path / "installation-key").stat().st_mode) == 0o600


ASK = """
import sys
from pathlib import Path
from gateway.storage.state_folder import StateFolder
sys.stdin.readline()
print(StateFolder(Path(sys.argv[1])).key("x").hex())
"""


def test_processes_that_start_at_once_get_the_same_key(tmp_path: Path) -> None:
    for attempt in range(3):
        folder = tmp_path / str(attempt) / "state"
        starters = [
            subprocess.Popen([sys.executable, "-c", ASK, str(folder)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
            for _ in range(3)
        ]
        for starter in starters:
            assert starter.stdin is not None
            starter.stdin.write("go\n")
            starter.stdin.flush()
        keys = {starter.communicate(timeout=30)[0].strip() for starter in starters}
        assert len(keys) == 1
        assert len(keys.pop()) == 64


def test_folder_that_cannot_be_made_is_an_error_with_the_fix(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    for path in (tmp_path / "file", tmp_path / "file" / "below"):
        with pytest.raises(StorageError, match=r"storage\.dir"):
            StateFolder(path).ensure()


def test_keys_differ_by_purpose_and_not_by_process(tmp_path: Path) -> None:
    folder = StateFolder(tmp_path / "state")
    handles, tokens = folder.key("handles"), folder.key("tokens")
    code = "import sys, pathlib, gateway.storage.state_folder as s; print(s.StateFolder(pathlib.Path(sys.argv[1])).key('handles').hex())"
    other = subprocess.run([sys.executable, "-c", code, str(folder.path)], capture_output=True, text=True, check=True).stdout.strip()
    assert len(handles) == 32
    assert handles != tokens
    assert other == handles.hex()
    assert stat.S_IMODE((folder.path / "installation-key").stat().st_mode) == 0o600


def test_damaged_key_is_named(tmp_path: Path) -> None:
    folder = StateFolder(tmp_path)
    (tmp_path / "installation-key").write_bytes(b"short")
    with pytest.raises(StorageError, match="installation-key"):
        folder.key("handles")

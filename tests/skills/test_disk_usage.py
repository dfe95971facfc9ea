"""Disk usage of runs without their own file system: real processes that keep deleted files."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import pytest

from gateway.skills.sandbox.disk_usage import Usage

pytestmark = [
    pytest.mark.attack(10),
    pytest.mark.timeout(60),
    pytest.mark.skipif(not sys.platform.startswith("linux"), reason="the sandbox is for Linux"),
]

PASSED = """
import os, socket, sys, time
ours, theirs = socket.socketpair()
socket.send_fds(ours, [b"x"], [0])
print("ready", flush=True)
sys.stdin.readline()
socket.recv_fds(theirs, 1, 1)
print("received", flush=True)
time.sleep(60)
"""

APART = """
import ctypes, os, threading, time
def work():
    if ctypes.CDLL(None).unshare(0x400) != 0:
        print("refused", flush=True)
    file = os.open("x", os.O_RDWR | os.O_CREAT)
    os.unlink("x")
    os.write(file, b"x" * 1_000_000)
    print("ready", flush=True)
    time.sleep(60)
threading.Thread(target=work).start()
time.sleep(60)
"""


@contextmanager
def child(folder: Path, *command: str) -> Generator[subprocess.Popen[bytes]]:
    """Start a program in `folder`."""
    with subprocess.Popen(command, cwd=folder, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        try:
            yield process
        finally:
            process.kill()


def usage_of(folder: Path, max_bytes: int, *, max_file_bytes: int = 1) -> Usage:
    """Return the disk usage of this process's children."""
    return Usage(str(folder), os.getpid(), max_bytes=max_bytes, max_files=100, max_file_bytes=max_file_bytes)


def test_unreceived_descriptors_count(tmp_path: Path) -> None:
    with child(tmp_path, sys.executable, "-c", PASSED) as process:
        assert process.stdout is not None and process.stdin is not None
        process.stdout.readline()
        used = usage_of(tmp_path, 10**9)
        assert not used.is_exceeded()
        assert used.is_exceeded()
        process.stdin.write(b"\n")
        process.stdin.flush()
        process.stdout.readline()
        assert not used.is_exceeded()
        assert not used.is_exceeded()


def test_deleted_file_of_separate_thread_counts(tmp_path: Path) -> None:
    with child(tmp_path, sys.executable, "-c", APART) as process:
        assert process.stdout is not None
        if process.stdout.readline() == b"refused\n":
            pytest.skip("this machine does not allow unshare")
        used = usage_of(tmp_path, 500_000)
        assert used.is_exceeded()
        assert not usage_of(tmp_path, 2_000_000).is_exceeded()
    assert used.is_exceeded(), "a file may have been passed to another process between two checks"


def test_deleted_program_counts_with_its_size(tmp_path: Path) -> None:
    shutil.copy("/bin/sleep", tmp_path / "rest")
    size = (tmp_path / "rest").stat().st_blocks * 512
    with child(tmp_path, str(tmp_path / "rest"), "60"):
        (tmp_path / "rest").unlink()
        assert usage_of(tmp_path, size - 1).is_exceeded()
        assert not usage_of(tmp_path, size, max_file_bytes=10**9).is_exceeded()


def test_mapped_deleted_file_counts_with_largest_size(tmp_path: Path) -> None:
    code = "import ctypes, os, sys, time; l = ctypes.CDLL(None); l.mmap.restype = ctypes.c_void_p; f = os.open('x', 66)"
    code += "; os.write(f, b'x'); l.mmap(None, ctypes.c_size_t(1), 1, 2, f, ctypes.c_long(0)); os.unlink('x'); os.close(f)"
    code += "; print(1, flush=True); time.sleep(60)"
    with tempfile.TemporaryDirectory() as folder, child(Path(folder), sys.executable, "-c", code) as process:
        (tmp_path / "linked").symlink_to(folder)
        assert process.stdout is not None
        process.stdout.readline()
        assert usage_of(tmp_path / "linked", 999_999, max_file_bytes=10**6).is_exceeded()
        assert not usage_of(tmp_path / "linked", 10**6, max_file_bytes=10**6).is_exceeded()


GROWS = """
import ctypes, os, sys
libc = ctypes.CDLL(None)
libc.mmap.restype = ctypes.c_void_p
file = os.open("x", os.O_RDWR | os.O_CREAT)
os.unlink("x")
print("small", flush=True)
sys.stdin.readline()
libc.mmap(None, ctypes.c_size_t(1), 1, 2, file, ctypes.c_long(0))
os.write(file, b"x" * 1_000_000)
os.close(file)
print("large", flush=True)
sys.stdin.readline()
"""


def test_deleted_file_that_grew_counts_with_largest_size(tmp_path: Path) -> None:
    with child(tmp_path, sys.executable, "-c", GROWS) as process:
        assert process.stdout is not None and process.stdin is not None
        process.stdout.readline()
        used = usage_of(tmp_path, 900_000, max_file_bytes=10**6)
        assert not used.is_exceeded()
        process.stdin.write(b"\n")
        process.stdin.flush()
        process.stdout.readline()
        assert used.is_exceeded()

"""What a hostile script of a skill tries on the machine it runs on, in every kind of sandbox: looked at from outside, not by its errors."""

from __future__ import annotations

import fcntl
import json
import os
import platform
import shutil
import sys
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from gateway.errors import SkillError
from gateway.skills.sandbox import NOBODY
from gateway.skills.sandbox.kernel import MACHINES, NUMBERS
from gateway.skills.sandbox.sandbox import SAFE_PATH, Job, Limits, Sandbox
from tests.skills.sandboxes import HIDES_NAMES, KINDS, PYTHON, Kind, run, sandbox_of

pytestmark = [
    pytest.mark.attack(10),
    pytest.mark.timeout(120),
    pytest.mark.skipif(not sys.platform.startswith("linux"), reason="the sandbox is for Linux"),
]

FS_IOC_GETFLAGS, FS_IOC_SETFLAGS, NO_DUMP = 0x80086601, 0x40086602, 0x40

CHANGES = """
import ctypes, fcntl, json, os, struct, sys
numbers, paths = json.loads(sys.argv[1]), sys.argv[2:]
libc = ctypes.CDLL(None, use_errno=True)
AT_FDCWD, AT_EMPTY_PATH = -100, 0x1000
times = struct.pack("4q", 1, 0, 1, 0)
old_times = struct.pack("2q", 1, 1)
attribute = struct.pack("=QII", ctypes.addressof(ctypes.create_string_buffer(b"x")), 1, 0)
flags = struct.pack("=QIIII", 0x40, 0, 0, 0, 0)
worked = []
def call(name, *arguments):
    if name in numbers:
        wide = [ctypes.c_long(a) if isinstance(a, int) else a for a in arguments]
        if libc.syscall(ctypes.c_long(numbers[name]), *wide) >= 0:
            worked.append(name)
for path in paths:
    fd, name = os.open(path, os.O_RDONLY), path.encode()
    call("chmod", name, 0o666), call("fchmod", fd, 0o666), call("fchmodat", AT_FDCWD, name, 0o666)
    call("fchmodat2", fd, b"", 0o666, AT_EMPTY_PATH)
    call("chown", name, -1, os.getgid()), call("lchown", name, -1, os.getgid()), call("fchown", fd, -1, os.getgid())
    call("fchownat", AT_FDCWD, name, -1, os.getgid(), 0)
    call("utime", name, old_times), call("utimes", name, times), call("futimesat", AT_FDCWD, name, times)
    call("utimensat", AT_FDCWD, name, times, 0), call("utimensat", fd, None, times, 0), call("utimensat", AT_FDCWD, name, None, 0)
    for kind in ("setxattr", "lsetxattr"):
        call(kind, name, b"user.evil", b"x", 1, 0)
    call("fsetxattr", fd, b"user.evil", b"x", 1, 0)
    call("setxattrat", AT_FDCWD, name, 0, b"user.evil", attribute, 16)
    call("removexattr", name, b"user.kept"), call("lremovexattr", name, b"user.kept"), call("fremovexattr", fd, b"user.kept")
    call("removexattrat", AT_FDCWD, name, 0, b"user.kept")
    call("file_setattr", AT_FDCWD, name, flags, 24, 0)
    for request in (0x40086602, 0x40046602, 0x401C5820, 0x40087602, 0x40806685):
        try:
            fcntl.ioctl(fd, request, bytearray(128))
            worked.append(hex(request))
        except OSError:
            pass
print(json.dumps(sorted(set(worked))))
"""

PRETENDED = {
    *("chmod", "fchmod", "fchmodat", "fchmodat2", "utime", "utimes", "futimesat", "utimensat"),
    *("chown", "fchown", "fchownat", "lchown"),
}


def numbers() -> str:
    """System calls of this processor, as a script gets them."""
    at = MACHINES.index(platform.machine())
    return json.dumps({name: pair[at] for name, pair in NUMBERS.items() if pair[at] is not None})


def facts(path: Path) -> tuple[Any, ...]:
    """Everything about a file that a call could change; the change time also reveals a change that was reverted."""
    found = path.stat()
    flags = bytearray(8)
    with path.open("rb") as file, suppress(OSError):
        fcntl.ioctl(file, FS_IOC_GETFLAGS, flags)
    return found.st_mode, found.st_uid, found.st_gid, found.st_mtime_ns, found.st_ctime_ns, os.listxattr(path), bytes(flags)


def own_files(folder: Path) -> list[Path]:
    """Files of the users that a script may be, in a folder that it may read."""
    folder.mkdir(parents=True)
    folder.chmod(0o777)
    made: list[Path] = []
    for owner in (os.getuid(), NOBODY) if os.geteuid() == 0 else (os.getuid(),):
        path = folder / f"of-{owner}"
        path.write_text("content")
        os.chmod(path, 0o644)
        with suppress(OSError):
            os.setxattr(path, "user.kept", b"value")
        os.chown(path, owner, -1)
        made.append(path)
    return made


@pytest.mark.parametrize("network", [False, True], ids=["alone", "network"])
@pytest.mark.parametrize("kind", KINDS)
async def test_script_changes_no_metadata_outside(kind: Kind, network: bool) -> None:
    sandbox = await sandbox_of(kind)
    with tempfile.TemporaryDirectory() as folder:  # unlike `tmp_path`, inside folders that the user `nobody` may enter
        os.chmod(folder, 0o755)
        files = own_files(Path(folder, "readable"))
        before = [facts(path) for path in files]
        ran = await run(sandbox, CHANGES, numbers(), *map(str, files), read=(f"{folder}/readable",), network=network)
        assert (ran.exit_code, ran.stderr) == (0, "")
        assert [facts(path) for path in files] == before
    assert set(json.loads(ran.stdout)) <= PRETENDED


@pytest.mark.parametrize("kind", KINDS)
async def test_script_changes_no_metadata_of_its_copy(kind: Kind) -> None:
    sandbox = await sandbox_of(kind)
    code = f"""
import os, stat
def facts():
    found = os.stat("given.txt")
    return found.st_mode, found.st_uid, found.st_mtime_ns, found.st_ctime_ns, os.listxattr("given.txt")
before = facts()
sys_argv = __import__("sys").argv
{CHANGES}
print(before == facts())
"""
    ran = await run(sandbox, code, numbers(), "given.txt", files={"given.txt": b"as granted"})
    assert (ran.stdout.splitlines()[-1:], ran.stderr) == (["True"], "")
    assert set(json.loads(ran.stdout.splitlines()[0])) <= PRETENDED


LOOKS = """
import json, os, sys
seen = []
for path in sys.argv[1:]:
    for look in (os.stat, os.lstat, os.statvfs, os.listxattr, lambda path: os.access(path, os.F_OK) or os.stat(path), os.open):
        try:
            look(path, os.O_PATH) if look is os.open else look(path)
            seen.append(path)
        except OSError:
            pass
print(json.dumps(sorted(set(seen))))
"""


@pytest.mark.parametrize("network", [False, True], ids=["alone", "network"])
@pytest.mark.parametrize("kind", KINDS)
async def test_names_outside_are_hidden_or_the_gap_is_named(kind: Kind, network: bool, tmp_path: Path) -> None:
    sandbox = await sandbox_of(kind)
    (tmp_path / "secret").write_text("secret")
    places = [str(tmp_path / "secret"), str(tmp_path), "/etc/passwd", "/etc/shadow", "/sys", "/var", str(Path(__file__).parent)]
    places += ["/../etc/passwd", f"/..{tmp_path}", "/proc/1/root/etc/passwd", "/proc/1/cwd/etc/passwd"]
    ran = await run(sandbox, LOOKS, *places, network=network)
    seen = json.loads(ran.stdout)
    if kind in HIDES_NAMES:
        assert (seen, ran.gap) == ([], "")
    else:
        assert "/etc/passwd" in seen and ran.gap == sandbox.gap != ""


FILES = "for n in range(10**6): open({place}, 'wb').write(b'x' * 900_000)"
KEEPING = "kept = []\nfor n in range(50):\n kept.append({opened}); os.write(kept[-1], b'x' * 900_000)"
KEPT = """for n in range(50):
 file = unlinked(); os.write(file, b'x' * 900_000); {keep}; os.close(file)"""
HIDING = (
    KEEPING.format(opened="unlinked()")
    + """
with open('/bin/sleep', 'rb') as program, open('sleep', 'wb', opener=lambda path, flags: os.open(path, flags, 0o111)) as copy:
 shutil.copyfileobj(program, copy)
if os.fork() == 0:
 [os.set_inheritable(file, True) for file in kept]
 os.execv('./sleep', ['sleep', '9'])
[os.close(file) for file in kept]"""
)
HANDED = (
    KEEPING.format(opened="unlinked()")
    + """
if os.fork() == 0:
 while True:
  if os.fork() > 0: os._exit(0)
[os.close(file) for file in kept]"""
)
WRITERS = {
    "many files": FILES.format(place="f'x{n}'"),
    "files without a name": KEEPING.format(opened="unlinked()"),
    "files that never had a name": KEEPING.format(opened="os.open('.', os.O_RDWR | os.O_TMPFILE)"),
    "temporary files": FILES.format(place="f'/tmp/x{n}'"),
    "home": FILES.format(place="os.environ['HOME'] + f'/x{n}'"),
    "shared memory": FILES.format(place="f'/dev/shm/x{n}'"),
    "deleted files that are mapped": KEPT.format(keep="mapped(file)"),
    "deleted files in messages": KEPT.format(keep="sent(file)"),
    "deleted files of a process that hides": "libc.prctl(4, 0, 0, 0, 0)\n" + KEEPING.format(opened="unlinked()"),
    "deleted files of a program that hides": HIDING,
    "deleted files handed from process to process": HANDED,
    "deeper than the launcher can look": "for n in range(1200):\n os.mkdir('d'); os.chdir('d')\n" + FILES.format(place="f'x{n}'"),
    "memory files": KEEPING.format(opened="os.memfd_create('x')"),
    "a folder that nobody may list": "os.mkdir('h', 0o300); os.chdir('h')\n" + FILES.format(place="f'x{n}'"),
}


WRITING = [
    pytest.param(kind, writer, marks=() if writer == "files without a name" else pytest.mark.faults)
    for kind in KINDS
    for writer in WRITERS
]


@pytest.mark.parametrize(("kind", "writer"), WRITING)
async def test_run_cannot_write_more_than_its_limit(kind: Kind, writer: str) -> None:
    limits = Limits(seconds=20, file_bytes=1_000_000, disk_bytes=10_000_000)
    sandbox = await sandbox_of(kind, limits)
    code = f"""
import array, ctypes, os, shutil, socket, sys, time
libc = ctypes.CDLL(None)
libc.mmap.restype = ctypes.c_void_p
ends = []
def unlinked():
    file = os.open("x", os.O_RDWR | os.O_CREAT)
    os.unlink("x")
    return file
def mapped(file):
    assert libc.mmap(None, ctypes.c_size_t(4096), 1, 2, file, ctypes.c_long(0)) != 2 ** 64 - 1
def sent(file):
    ends.extend(() if ends else socket.socketpair())
    ends[0].sendmsg([b"x"], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [file]))])
def work():
    {WRITERS[writer].replace(chr(10), chr(10) + "    ")}
try:
    work()
except OSError as error:
    print(error.strerror)
else:
    time.sleep(3)
    print("went on")
"""
    ran = await run(sandbox, code)
    said = ran.stdout.splitlines()[:1]
    refused = said[:1] in (["No space left on device"], ["Operation not permitted"], ["Permission denied"], ["Read-only file system"])
    if writer == "deleted files handed from process to process":  # a quick program reaches the limit of processes first, and ends
        refused |= said == ["Resource temporarily unavailable"]
    assert ran.stopped or refused, (ran, said)
    if writer == "memory files":
        assert said == ["Operation not permitted"]
    elif kind == "own root":
        assert (said, ran.is_over_disk) == (["No space left on device"], False)


@pytest.mark.parametrize("kind", KINDS)
async def test_run_cannot_make_more_files_than_its_limit(kind: Kind) -> None:
    sandbox = await sandbox_of(kind, Limits(seconds=20, disk_files=200))
    code = "import os, time\nfor n in range(100_000): os.mkdir(f'd{n}')\ntime.sleep(3)\nprint('went on')"
    ran = await run(sandbox, code)
    assert "went on" not in ran.stdout
    assert ran.is_over_disk or "No space left on device" in ran.stderr


@pytest.mark.parametrize("kind", KINDS)
async def test_script_has_its_interpreters_library_and_no_capabilities(kind: Kind) -> None:
    sandbox = await sandbox_of(kind)
    ran = await run(sandbox, "import json, os; print(json.__file__); os.setgroups([])")
    assert ran.stdout.startswith(str(Path(PYTHON).parents[1] / "lib")) and "PermissionError" in ran.stderr, ran


async def test_interpreter_that_only_root_can_read_runs(tmp_path: Path) -> None:
    await sandbox_of("own root")
    if os.geteuid() != 0:
        pytest.skip("needs root")
    closed, own = tmp_path / "closed", Path(PYTHON).parents[1]
    (closed / "bin").mkdir(parents=True)
    (closed / "lib").symlink_to(own / "lib")
    python = shutil.copy(PYTHON, closed / "bin" / "python3")
    closed.chmod(0o700)
    sandbox = Sandbox(Limits(seconds=20), python=str(python))
    assert (await sandbox.probe(), sandbox.gap) == ("", "")
    job = Job((str(python), "-B", "-c", "import json; print(json.__file__)"), {}, read_paths=(str(closed), str(own)))
    ran = await sandbox.run(job)
    assert (ran.stdout.startswith(f"{closed}/lib/"), ran.stderr) == (True, ""), ran


PROCESSES = """
import ctypes, json, os
libc = ctypes.CDLL(None, use_errno=True)
CLONE, PARENT, THREAD = json.loads(os.environ["NUMBERS"])["clone"], 0x8000, 0x10000 | 0x800 | 0x100
print(libc.prctl(36, 1, 0, 0, 0), ctypes.get_errno())
for flags in (PARENT | 17, THREAD):
    made = libc.syscall(ctypes.c_long(CLONE), ctypes.c_long(flags), None, None, None, None)
    if made == 0:
        libc._exit(0)
    print(made, ctypes.get_errno())
print(libc.prctl(4, 0, 0, 0, 0), libc.prctl(3, 0, 0, 0, 0))
file = os.open("x", os.O_RDWR | os.O_CREAT)
print(libc.fallocate(file, 1, ctypes.c_long(0), ctypes.c_long(4096)), ctypes.get_errno(), os.posix_fallocate(file, 0, 4096))
print(libc.syscall(ctypes.c_long(444), None, ctypes.c_long(0), ctypes.c_long(1)), ctypes.get_errno())
"""


@pytest.mark.parametrize("kind", KINDS)
async def test_script_keeps_nothing_where_the_launcher_cannot_look(kind: Kind) -> None:
    sandbox = await sandbox_of(kind)
    ran = await run(sandbox, PROCESSES, environment={"NUMBERS": numbers()})
    not_permitted, pretended, not_supported, missing = "-1 1", "0 1", "-1 95 None", "-1 38"
    expected = [not_permitted, not_permitted, not_permitted, pretended, not_supported, missing]
    assert (ran.stdout.splitlines(), ran.stderr) == (expected, "")


@pytest.mark.parametrize("kind", KINDS)
async def test_deep_folders_are_removed_after_the_run(kind: Kind, monkeypatch: pytest.MonkeyPatch) -> None:
    sandbox = await sandbox_of(kind)
    with tempfile.TemporaryDirectory() as folder:
        os.chmod(folder, 0o755)
        monkeypatch.setattr(tempfile, "tempdir", folder)
        code = "import os\nfor n in range(1200): os.mkdir('d'); open('f', 'w').close(); os.symlink('d', 'l'); os.chdir('d')\nprint('made')"
        ran = await run(sandbox, code)
        assert ran.stdout == "made\n" or ran.is_over_disk
        assert os.listdir(folder) == []


@pytest.mark.parametrize("kind", KINDS)
async def test_copy_of_the_skill_does_not_count_as_written(kind: Kind) -> None:
    sandbox = await sandbox_of(kind, Limits(disk_bytes=2_000_000))
    ran = await run(sandbox, "open('new', 'wb').write(b'x' * 1_000_000); print('written')", files={"big": b"x" * 5_000_000})
    assert (ran.stdout, ran.is_over_disk, ran.gap) == ("written\n", False, sandbox.gap)


async def test_run_that_cannot_be_sandboxed_like_the_trial_is_rejected() -> None:
    sandbox = await sandbox_of("own root")
    sandbox.refuse("mount")
    with pytest.raises(SkillError, match="mounts are not allowed"):
        await run(sandbox, "print('ran')")


@pytest.mark.parametrize("kind", KINDS)
async def test_script_has_no_capabilities(kind: Kind) -> None:
    sandbox = await sandbox_of(kind)
    code = """
import ctypes
data = (ctypes.c_uint32 * 6)()
assert ctypes.CDLL(None).capget((ctypes.c_uint32 * 2)(0x20080522, 0), data) == 0
print(list(data)[:2], list(data)[3:5])
"""
    ran = await run(sandbox, code)
    assert ran.stdout == "[0, 0] [0, 0]\n"


GIT = "GIT_CONFIG_NOSYSTEM=1 git -c user.name=x -c user.email=x@y"
COMMANDS = {
    "cp": ["cp", "-p", "a.txt", "b.txt"],
    "cp -a": ["cp", "-a", "folder", "copied"],
    "touch": ["touch", "a.txt", "new.txt"],
    "chmod": ["chmod", "600", "b.txt"],
    "tar": ["sh", "-c", "tar -cf x.tar folder && mkdir out && tar -xpf x.tar -C out"],
    "git": ["sh", "-c", f"{GIT} init -q r && cd r && echo x > f && {GIT} add f && {GIT} commit -qm m && {GIT} clone -q . ../c"],
    "node": ["node", "-e", "const f=require('fs');f.copyFileSync('a.txt','n');f.chmodSync('n',0o600);f.utimesSync('n',1,1)"],
}

PYTHON_WORK = """
import os, shutil, tarfile, tempfile
shutil.copy("a.txt", "c1"); shutil.copy2("a.txt", "c2"); shutil.copytree("folder", "c3"); shutil.move("c1", "c4")
with tempfile.NamedTemporaryFile() as file, tempfile.TemporaryDirectory() as folder:
    file.write(b"x"), open(folder + "/x", "w").close()
shutil.make_archive("z", "zip", "folder"), shutil.unpack_archive("z.zip", "unpacked")
with tarfile.open("t.tar", "w") as archive:
    archive.add("folder")
with tarfile.open("t.tar") as archive:
    archive.extract("folder", "t")
os.makedirs("deep/er"), os.chmod("c2", 0o755), os.utime("c2")
import sqlite3
sqlite3.connect("db").execute("create table t (x)").connection.commit()
print("done")
"""


RUN_ALL = """
import json, subprocess, sys
for name, words in json.loads(sys.argv[1]).items():
    done = subprocess.run(words, capture_output=True, text=True)
    print(name, done.returncode, done.stderr.strip())
"""


@pytest.mark.parametrize("kind", KINDS)
async def test_ordinary_programs_work(kind: Kind) -> None:
    sandbox = await sandbox_of(kind, Limits(seconds=60, memory_bytes=8 << 30))
    files = {"a.txt": b"a", "folder/b.txt": b"b", "folder/run.sh": b"#!/bin/sh\necho hi\n"}
    ran = await run(sandbox, PYTHON_WORK, files=files)
    assert (ran.stdout, ran.stderr) == ("done\n", "")
    available = {name: words for name, words in COMMANDS.items() if shutil.which(name.split()[0], path=SAFE_PATH)}
    ran = await run(sandbox, RUN_ALL, json.dumps(available), files=files)
    assert ran.stdout.splitlines() == [f"{name} 0 " for name in available], ran

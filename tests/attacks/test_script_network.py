"""A script of a skill with `network: true` reaches nothing on the machine it runs on: real listeners count what arrives."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import socket
import sys
import tempfile
import threading
from collections.abc import Generator
from pathlib import Path

import pytest

from gateway.config.skill_settings import ScriptSettings
from gateway.policy.addresses import is_loopback_host
from gateway.skills.sandbox import connection_broker
from gateway.skills.sandbox.sandbox import Limits, Sandbox
from gateway.skills.scripts import ScriptRunner
from gateway.skills.source import SkillSource
from tests.fakes.running import gateway_http
from tests.interaction.wire import over_http
from tests.skills.on_disk import call, write_skill
from tests.skills.sandboxes import KINDS, SMALL, Kind, RestrictedSandbox, need_sandbox, run, sandbox_of
from tests.skills.test_scripts import granted

pytestmark = [
    pytest.mark.attack(10),
    pytest.mark.timeout(120),
    pytest.mark.skipif(not sys.platform.startswith("linux"), reason="the sandbox is for Linux"),
]


class Listener:
    """Takes connections on one port of every address of this machine and counts them; answers with what it was sent."""

    def __init__(self) -> None:
        self.sockets = [socket.create_server(("0.0.0.0", 0))]
        self.port: int = self.sockets[0].getsockname()[1]
        with contextlib.suppress(OSError):
            self.sockets.append(socket.create_server(("::", self.port), family=socket.AF_INET6, dualstack_ipv6=False))
        self.count = 0
        for listening in self.sockets:
            threading.Thread(target=self._serve, args=(listening,), daemon=True).start()

    def _serve(self, listening: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while True:
                connection, _ = listening.accept()
                self.count += 1
                threading.Thread(target=self._echo, args=(connection,), daemon=True).start()

    def _echo(self, connection: socket.socket) -> None:
        with connection, contextlib.suppress(OSError):
            while data := connection.recv(65_536):
                connection.sendall(data)

    def close(self) -> None:
        """Stop listening."""
        for listening in self.sockets:
            listening.close()


@pytest.fixture
def listener() -> Generator[Listener]:
    made = Listener()
    yield made
    made.close()


def own_addresses() -> list[str]:
    """Addresses of this machine besides loopback."""
    found: list[str] = []
    for family, far in ((socket.AF_INET, "192.0.2.1"), (socket.AF_INET6, "2001:db8::1")):
        with contextlib.suppress(OSError), socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.connect((far, 9))
            found.append(probe.getsockname()[0])
    return found


NEAR = ["127.0.0.1", "127.1.2.3", "0.0.0.0", "0.1.2.3", "::1", "::", "::ffff:127.0.0.1", "::ffff:0.0.0.0", "::127.0.0.1", "localhost"]

WAYS = """
import asyncio, json, socket, sys
port, hosts = int(sys.argv[1]), sys.argv[2:]
reached, errors = [], []

def blocking(host):
    for family, kind, number, _, address in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM):
        with socket.socket(family, kind, number) as s:
            s.connect(address)
            return True

def waiting(host):
    with socket.create_connection((host, port), 3):
        return True

def not_blocking(host):
    for family, kind, number, _, address in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM):
        s = socket.socket(family, kind, number)
        s.setblocking(False)
        s.connect_ex(address)
        s.settimeout(2)
        s.sendall(b"x")
        return s.recv(1) == b"x"

def several_paths(host):
    for family, kind, _, _, address in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM):
        with socket.socket(family, kind, 262) as s:
            s.connect(address)
            return True

def fast_open(host, how):
    for family, kind, number, _, address in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM):
        s = socket.socket(family, kind, number)
        s.settimeout(2)
        how(s, address)
        return s.recv(1) == b"x"

def fast_open_option(host):
    for family, kind, number, _, address in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM):
        s = socket.socket(family, kind, number)
        s.settimeout(2)
        s.setsockopt(socket.IPPROTO_TCP, 30, 1)
        s.connect(address)
        s.sendall(b"x")
        return s.recv(1) == b"x"

async def by_loop(host):
    reader, writer = await asyncio.open_connection(host, port)
    writer.write(b"x")
    return await reader.readexactly(1) == b"x"

ways = {
    "blocking": blocking,
    "waiting": waiting,
    "not blocking": not_blocking,
    "several paths": several_paths,
    "fast open": lambda host: fast_open(host, lambda s, address: s.sendto(b"x", 0x20000000, address)),
    "fast open by message": lambda host: fast_open(host, lambda s, address: s.sendmsg([b"x"], [], 0x20000000, address)),
    "fast open by option": fast_open_option,
    "event loop": lambda host: asyncio.run(by_loop(host)),
}
for host in hosts:
    for name, way in ways.items():
        try:
            if way(host):
                reached.append([name, host])
        except OSError as error:
            errors.append(error.errno)
print(json.dumps([reached, len(errors)]))
"""


@pytest.mark.parametrize("kind", KINDS)
async def test_script_with_a_network_reaches_nothing_on_its_machine(kind: Kind, listener: Listener) -> None:
    sandbox = await sandbox_of(kind, Limits(seconds=60))
    for host in own_addresses():
        with socket.create_connection((host, listener.port), 5) as reached_by_others:
            reached_by_others.sendall(b"x")
            assert reached_by_others.recv(1) == b"x"
    before = listener.count
    ran = await run(sandbox, WAYS, str(listener.port), *NEAR, *own_addresses(), network=True)
    assert (ran.exit_code, ran.stderr) == (0, "")
    reached, failed = json.loads(ran.stdout)
    assert (reached, listener.count - before) == ([], 0)
    assert failed >= 8 * (len(NEAR) + len(own_addresses())) - 16, "nearly every attempt must have been made and refused"


RACE = """
import ctypes, socket, struct, sys, threading, time
port = int(sys.argv[1])
libc = ctypes.CDLL(None, use_errno=True)
near = struct.pack("=HH4s8x", 2, socket.htons(port), bytes([127, 0, 0, 1]))
far = struct.pack("=HH4s8x", 2, socket.htons(9), bytes([192, 0, 2, 1]))
address = ctypes.create_string_buffer(far, 16)
done = False
def flip():
    while not done:
        ctypes.memmove(address, near, 16)
        ctypes.memmove(address, far, 16)
threading.Thread(target=flip).start()
until = time.monotonic() + 4
tries = 0
while time.monotonic() < until:
    s = socket.socket()
    s.setblocking(False)
    libc.connect(s.fileno(), address, 16)
    s.close()
    tries += 1
done = True
print(tries > 100)
"""


@pytest.mark.faults
async def test_address_that_changes_while_it_is_judged_reaches_nothing(listener: Listener) -> None:
    sandbox = await sandbox_of("own root", Limits(seconds=60))
    ran = await run(sandbox, RACE, str(listener.port), network=True)
    assert (ran.stdout, ran.stderr, listener.count) == ("True\n", "", 0)


@pytest.mark.parametrize("kind", KINDS)
async def test_script_without_a_network_has_no_sockets(kind: Kind, listener: Listener) -> None:
    sandbox = await sandbox_of(kind)
    ran = await run(sandbox, WAYS.replace("asyncio.run(by_loop(host))", "None"), str(listener.port), "127.0.0.1")
    assert (json.loads(ran.stdout)[0], listener.count) == ([], 0)


START_WITH_A_FAR_LOOPBACK = """
import sys
sys.path.append({folder!r})
from sandbox import connection_broker
connection_broker.is_near = lambda packed: packed != bytes([127, 0, 0, 2]) and packed[-1] == 1
connection_broker.is_own = lambda packed: False
from sandbox.launcher import main
main()
"""
"""A launcher that treats 127.0.0.2 as a remote address, so that allowed connections can be tested without a network."""


@pytest.fixture
async def far_loopback() -> Sandbox:
    await need_sandbox(network=True)
    start = START_WITH_A_FAR_LOOPBACK.format(folder=str(Path(connection_broker.__file__).parents[1]))
    return RestrictedSandbox(Limits(seconds=60, memory_bytes=4 << 30), "acct", start=start)


TALK = """
import asyncio, selectors, socket, sys, threading
port = int(sys.argv[1])
def talk(text, timeout):
    with socket.create_connection(("127.0.0.2", port), timeout) as s:
        s.sendall(text)
        return s.recv(100)
print(talk(b"blocking", None), talk(b"timeout", 5))
async def loop():
    reader, writer = await asyncio.open_connection("127.0.0.2", port)
    writer.write(b"loop")
    return await reader.read(100)
print(asyncio.run(loop()))
answers = []
threads = [threading.Thread(target=lambda n=n: answers.append(talk(b"%d" % n, None))) for n in range(30)]
[thread.start() for thread in threads], [thread.join() for thread in threads]
print(sorted(map(int, answers)) == list(range(30)))
s = socket.socket(); s.connect(("127.0.0.2", port))
try:
    s.connect(("127.0.0.2", port))
except OSError as error:
    print(error.strerror)
try:
    socket.create_connection(("127.0.0.2", 1))
except OSError as error:
    print(error.strerror)
d = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); d.connect(("127.0.0.1", 9)); print(d.send(b"x"))
"""


async def test_allowed_connections_work_as_without_a_sandbox(far_loopback: Sandbox, listener: Listener) -> None:
    ran = await run(far_loopback, TALK, str(listener.port), network=True)
    expected = ["b'blocking' b'timeout'", "b'loop'", "True", "Transport endpoint is already connected", "Connection refused", "1"]
    assert (ran.stdout.splitlines(), ran.stderr) == (expected, "")


CROWD = """
import errno, os, socket, sys, time
for _ in range(120):
    if os.fork() == 0:
        try:
            socket.create_connection(("127.0.0.2", int(sys.argv[1])))
        except OSError as error:
            os._exit(1 if error.errno == errno.EAGAIN else 2)
        os._exit(0)
ended = [os.waitstatus_to_exitcode(os.wait()[1]) for _ in range(20)]
print(ended.count(1), flush=True)
"""


async def test_connections_that_hang_cannot_pile_up(far_loopback: Sandbox) -> None:
    with socket.create_server(("127.0.0.2", 0), backlog=0) as full, contextlib.ExitStack() as stack:
        for _ in range(4):
            filler = stack.enter_context(socket.socket())
            filler.setblocking(False)
            filler.connect_ex(full.getsockname())
        far_loopback.limits = Limits(seconds=60, processes=200)
        ran = await run(far_loopback, CROWD, str(full.getsockname()[1]), network=True)
    assert (ran.stdout, ran.timed_out) == ("20\n", False), ran


LOCAL_SOCKETS = """
import ctypes, errno, json, os, socket, sys
libc = ctypes.CDLL(None, use_errno=True)
names = [text.replace("@", chr(0), 1) for text in sys.argv[1:]]
ways = {
    "connect": lambda s, name: s.connect(name),
    "send": lambda s, name: s.sendto(b"evil", name),
    "send a message": lambda s, name: s.sendmsg([b"evil"], [], 0, name),
    "bind": lambda s, name: s.bind(name),
}
pairs, others, answers = [], [], []
for family in range(46):
    for kind in range(16):
        for flags in (0, socket.SOCK_NONBLOCK, socket.SOCK_CLOEXEC):
            pair = (ctypes.c_int * 2)()
            if family != socket.AF_UNIX:
                others.append(0 if libc.socketpair(family, kind | flags, 0, pair) == 0 else ctypes.get_errno())
                continue
            if libc.socketpair(family, kind | flags, 0, pair):
                continue
            pairs.append(kind)
            for way, work in ways.items():
                found = set()
                for name in names:
                    with socket.socket(fileno=os.dup(pair[0])) as s:
                        try:
                            work(s, name)
                            found.add("done")
                        except OSError as error:
                            found.add(errno.errorcode[error.errno])
                answers.append([kind, way, *sorted(found)])
print(json.dumps([sorted(set(pairs)), sorted(set(others)), sorted(map(list, set(map(tuple, answers))))]))
"""


@pytest.mark.parametrize("network", [False, True], ids=["alone", "network"])
@pytest.mark.parametrize("kind", KINDS)
async def test_script_reaches_no_local_socket_and_sees_none(kind: Kind, network: bool) -> None:
    sandbox = await sandbox_of(kind)
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
        os.chmod(folder, 0o755)
        names: list[str] = [f"{folder}/nothing", f"{folder}/nothing/at/all", f"@nothing-{os.getpid()}", f"@free-{os.getpid()}", folder]
        listening: list[socket.socket] = []
        for at, kind_of_socket in enumerate((socket.SOCK_DGRAM, socket.SOCK_STREAM, socket.SOCK_SEQPACKET)):
            for name in (f"{folder}/{at}", f"@moongate-{os.getpid()}-{at}"):
                made = stack.enter_context(socket.socket(socket.AF_UNIX, kind_of_socket))
                made.bind(name.replace("@", "\0", 1))
                made.setblocking(False)
                if kind_of_socket != socket.SOCK_DGRAM:
                    made.listen()
                names, listening = [*names, name], [*listening, made]
        for at in range(3):
            os.chmod(f"{folder}/{at}", 0o777)
        ran = await run(sandbox, LOCAL_SOCKETS, *names, network=network)
        for made in listening:
            with pytest.raises(BlockingIOError):
                made.recv(10) if made.type == socket.SOCK_DGRAM else made.accept()
    assert ran.stderr == ""
    pairs, others, answers = json.loads(ran.stdout)
    refused = "EACCES" if network else "EPERM"
    both = (socket.SOCK_STREAM, socket.SOCK_SEQPACKET)
    sent = [[pair, way, "EISCONN" if pair == socket.SOCK_STREAM else "done"] for pair in both for way in ("send", "send a message")]
    expected = sorted([*([pair, way, refused] for pair in both for way in ("bind", "connect")), *sent])
    assert (pairs, others, answers) == ([1, 5], [errno.EPERM], expected)


SERVING = """
import errno, json, socket
worked = []
def attempt(name, work):
    try:
        work()
        worked.append(name)
    except OSError as error:
        assert error.errno in (errno.EPERM, errno.EACCES, errno.EAFNOSUPPORT), (name, error)
def bound(kind, host, port, family=socket.AF_INET):
    s = socket.socket(family, kind)
    s.bind((host, port))
    return s
attempt("datagrams from any port", lambda: bound(socket.SOCK_DGRAM, "", 0).sendto(b"x", ("127.0.0.1", 9)))
attempt("stream from any port", lambda: bound(socket.SOCK_STREAM, "0.0.0.0", 0))
attempt("names of interfaces", lambda: socket.if_nameindex())
attempt("names of hosts", lambda: socket.getaddrinfo("localhost", 80))
attempt("route", lambda: socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 0).bind((0, 0)))
attempt("port of a service", lambda: bound(socket.SOCK_STREAM, "127.0.0.1", 18080))
attempt("privileged port", lambda: bound(socket.SOCK_DGRAM, "0.0.0.0", 1))
attempt("port of a service in IPv6", lambda: bound(socket.SOCK_DGRAM, "::", 18080, socket.AF_INET6))
attempt("listening", lambda: socket.socket().listen())
attempt("list of sockets", lambda: socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 4))
attempt("events of devices", lambda: socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 15))
attempt("messages that connect", lambda: socket.socket(socket.AF_INET, socket.SOCK_STREAM, 132))
attempt("virtual machines", lambda: socket.socket(40, socket.SOCK_STREAM))
print(json.dumps(worked))
"""


@pytest.mark.parametrize("kind", ["own root", "no namespaces"])
async def test_script_with_a_network_offers_nothing_on_its_machine(kind: Kind) -> None:
    sandbox = await sandbox_of(kind)
    ran = await run(sandbox, SERVING, network=True)
    expected = ["datagrams from any port", "stream from any port", "names of interfaces", "names of hosts", "route"]
    assert (json.loads(ran.stdout or "[]"), ran.stderr) == (expected, "")


ADDRESSES = {
    "127.0.0.1": True, "127.255.255.255": True, "0.0.0.0": True, "169.254.169.254": True, "::": True, "::1": True, "::ffff:127.0.0.1": True,
    "::ffff:169.254.169.254": True, "64:ff9b::7f00:1": True, "fe80::1": True, "febf::1": True, "192.0.2.1": False, "10.0.0.1": False,
    "128.0.0.1": False, "2001:db8::1": False, "::ffff:192.0.2.1": False, "64:ff9b::c000:201": False, "fec0::1": False,
}  # fmt: skip


def socket_address(text: str, port: int = 80) -> bytes:
    """Return the address as the bytes of a `sockaddr_in` or `sockaddr_in6`."""
    network_port = port.to_bytes(2, "big")
    if ":" in text:
        return socket.AF_INET6.to_bytes(2, sys.byteorder) + network_port + bytes(4) + socket.inet_pton(socket.AF_INET6, text) + bytes(4)
    return socket.AF_INET.to_bytes(2, sys.byteorder) + network_port + socket.inet_aton(text) + bytes(8)


@pytest.mark.parametrize("text", ADDRESSES)
def test_near_addresses_are_refused_in_every_spelling(text: str) -> None:
    assert connection_broker.Judge("/nonexistent").refuses(socket_address(text)) == ADDRESSES[text]
    assert not is_loopback_host(text) or ADDRESSES[text]


UNREADABLE = [b"", b"\x02", b"\x02\x00\x00\x50\x7f", b"\x0a\x00" + bytes(14), b"\x01\x00/run/socket", bytes([99]) + bytes(40)]


@pytest.mark.parametrize("address", UNREADABLE)
def test_addresses_that_cannot_be_read_are_refused(address: bytes) -> None:
    assert connection_broker.Judge("/nonexistent").refuses(address)


@pytest.mark.parametrize("kind", [socket.SOCK_DGRAM, socket.SOCK_STREAM, socket.SOCK_SEQPACKET])
def test_launcher_makes_no_call_on_a_local_socket(kind: int) -> None:
    judge = connection_broker.Judge("/nonexistent")
    addresses = [b"\x01\x00/run/socket", b"\x01\x00\x00\x00name", bytes(16), socket_address("192.0.2.1"), socket_address("192.0.2.1", 0)]
    with socket.socket(socket.AF_UNIX, kind) as ours:
        assert all(judge.refuses_call(ours, address, is_bind=is_bind) for address in addresses for is_bind in (False, True))


def test_own_addresses_are_refused() -> None:
    for text in own_addresses():
        assert connection_broker.Judge("/nonexistent").refuses(socket_address(text))


def test_name_servers_are_reachable_on_their_port_only(tmp_path: Path) -> None:
    (tmp_path / "resolv.conf").write_text("# nameserver 127.0.0.9\nnameserver 127.0.0.53\nnameserver ::1\noptions edns0\nnameserver\n")
    judge = connection_broker.Judge(str(tmp_path / "resolv.conf"))
    asked = [("127.0.0.53", 53), ("127.0.0.53", 8765), ("::1", 53), ("127.0.0.9", 53), ("127.0.0.1", 53)]
    assert [judge.refuses(socket_address(*each)) for each in asked] == [False, True, False, True, True]


ASK = """
import json, sys, urllib.request
url = sys.argv[1]
for host in ("127.0.0.1", "localhost", "[::1]", "0.0.0.0", "[::ffff:127.0.0.1]"):
    for path in ("/health", "/mcp", "/status.json"):
        try:
            request = urllib.request.Request(url.replace("127.0.0.1", host).replace("/mcp", path), headers={"Host": "127.0.0.1"})
            print(host, path, urllib.request.urlopen(request, timeout=3).read(100))
        except urllib.error.HTTPError as error:
            print(host, path, error.code)
        except OSError:
            pass
print("asked")
"""


async def test_script_with_a_network_cannot_reach_its_keyless_gateway(tmp_path: Path) -> None:
    await need_sandbox(network=True)
    write_skill(tmp_path / "skills" / "ask", files={"ask.py": ASK})
    (grant,) = granted(tmp_path / "skills", "ask", "ask.py")
    allow = [grant.model_copy(update={"network": True}).model_dump(by_alias=True)]
    config = {
        "expose": {"skills": [str(tmp_path / "skills")]},
        "skills": {"scripts": {"enabled": True, "allow": allow, "approval": "never"}},
    }
    with gateway_http(tmp_path, config) as url:
        async with over_http(url, "modern", tasks=False) as wire:
            arguments = {"skill_name": "ask", "script_name": "ask.py", "args": [url]}
            ran = (await wire.send("tools/call", name="run_skill_script", arguments=arguments))["result"]["structuredContent"]
    assert (ran["stdout"], ran["stderr"], ran["exitCode"]) == ("asked\n", "", 0)


async def test_network_is_refused_where_connections_cannot_be_checked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    await need_sandbox()
    write_skill(tmp_path / "net", files={"net.py": "print('ran')"})
    (grant,) = granted(tmp_path, "net", "net.py")
    settings = ScriptSettings(enabled=True, allow=[grant.model_copy(update={"network": True})])
    runner = ScriptRunner(settings, {})
    monkeypatch.setattr(runner, "_sandbox", RestrictedSandbox(SMALL, "pidfd_getfd"))
    await runner.start()
    assert runner.problem == "" and "connecting to this machine" in runner.network_problem
    async with SkillSource([tmp_path], refresh_seconds=0, scripts=runner) as source:
        refused = await call(source, "run_skill_script", skill_name="net", script_name="net.py")
    assert refused.is_error and "needs the network, which is unavailable" in refused.as_text()

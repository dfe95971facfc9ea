"""Makes the network connections of a sandboxed script that has network access, except connections to this machine.

The kernel passes every `connect` and `bind` of the script to the launcher, the program that confines the script (seccomp user notification,
seccomp_unotify(2)), and the script waits. The launcher copies the address out of the script's memory, checks the copy, and makes the call
itself on its own descriptor of the same socket. The checked address is therefore the one that is used, even if other threads of the script
overwrite the original.

The launcher is outside of the script's namespaces and Landlock rules. It therefore makes calls on internet sockets only, and binds netlink
sockets. A local socket (`AF_UNIX`) is always refused, because its address would be resolved among the files and sockets of the machine. A
script may bind only to a port that the kernel chooses.

Stream connections to this machine are refused: to loopback, unspecified and link-local addresses, and to every address of its interfaces,
because the gateway, its servers and other programs there trust local callers. DNS over TCP to a configured name server, and datagrams, are
allowed, because the DNS resolver may be on this machine and no gateway receives datagrams.
"""

from __future__ import annotations

import _thread
import ctypes
import errno
import fcntl
import os
import select
import socket
import struct

from .kernel import LIBC, number_of, system_call

RECEIVE, ANSWER, IS_VALID = 0xC0502100, 0xC0182101, 0x40082102
"""`ioctl` requests on the notification descriptor: `SECCOMP_IOCTL_NOTIF_RECV`, `_SEND` and `_ID_VALID` (linux/seccomp.h)."""

REQUEST = struct.Struct("=QIIiIQ6Q")
"""Format of the kernel's notification of a call (`seccomp_notif`): id, thread, flags, call, architecture, instruction, arguments."""

REPLY = struct.Struct("=QqiI")
"""Format of the answer to a notification (`seccomp_notif_resp`): id, value, error, flags."""

MAX_ADDRESS_BYTES = 128
"""Size in bytes of the kernel's largest socket address (`sockaddr_storage`)."""

MAX_AT_ONCE = 64
"""Maximum number of `connect` and `bind` calls in progress; further calls fail with `EAGAIN`. It equals the default limit on processes and
threads of a script."""

RESOLVER_PORT = 53
RESOLVERS = "/etc/resolv.conf"

_ANY_PORT = 9
_V4_BYTES, _V6_BYTES = 16, 24
"""Smallest sizes of `sockaddr_in` and `sockaddr_in6` that the kernel accepts."""

_CARRIES_V4 = (bytes(10) + b"\xff\xff", b"\x00\x64\xff\x9b" + bytes(8))
"""Prefixes of IPv6 addresses that end with an IPv4 address: IPv4-mapped addresses, and NAT64 (RFC 6052)."""


class Judge:
    """Decides which `connect` and `bind` calls of a script are allowed, by the socket and the address."""

    def __init__(self, resolvers: str = RESOLVERS) -> None:
        """Read the name servers from the `resolv.conf` at the path `resolvers`. DNS over TCP to them is allowed, even on this machine."""
        self._resolvers = {packed for text in _name_servers(resolvers) if (packed := _pack(text)) is not None}

    def refuses_call(self, ours: socket.socket, address: bytes, *, is_bind: bool) -> bool:
        """Return whether to refuse a script's `connect` call, or with `is_bind` its `bind` call, on a socket.

        `ours` is a descriptor of the script's socket in this process, the launcher, which makes the call for the script. `address` is the
        packed socket address. A script may bind only to port 0 (chosen by the kernel), because the launcher may be root.
        """
        if is_bind and ours.family == socket.AF_NETLINK:
            return False
        if ours.family not in (socket.AF_INET, socket.AF_INET6):
            return True
        return address[2:4] != bytes(2) if is_bind else ours.type != socket.SOCK_DGRAM and self.refuses(address)

    def refuses(self, address: bytes) -> bool:
        """Return whether to refuse a script's stream connection to the packed socket address. A malformed address is refused."""
        family = int.from_bytes(address[:2], "little") if len(address) >= 2 else -1
        if family == socket.AF_UNSPEC:
            return False  # disconnects the socket
        if family == socket.AF_INET and len(address) >= _V4_BYTES:
            port, packed = address[2:4], address[4:8]
        elif family == socket.AF_INET6 and len(address) >= _V6_BYTES:
            port, packed = address[2:4], address[8:24]
            packed = packed[12:] if packed.startswith(_CARRIES_V4) else packed
        else:
            return True
        if int.from_bytes(port, "big") == RESOLVER_PORT and packed in self._resolvers:
            return False
        return is_near(packed) or is_own(packed)


def is_near(packed: bytes) -> bool:
    """Return whether a packed IP address (4 or 16 bytes) is loopback, unspecified or link-local, or in `0.0.0.0/8` or `::/96`."""
    if len(packed) == 4:
        return packed[0] in (0, 127) or packed[:2] == b"\xa9\xfe"
    return packed[:12] == bytes(12) or (packed[0] == 0xFE and packed[1] & 0xC0 == 0x80)


def is_own(packed: bytes) -> bool:
    """Return whether a packed IP address is an address of this machine.

    It is one if the kernel would choose the same address as the source of a packet to the address.
    """
    family = socket.AF_INET if len(packed) == 4 else socket.AF_INET6
    text = socket.inet_ntop(family, packed)
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect((text, _ANY_PORT))  # chooses a route, and sends no packet
        except OSError:
            return False  # the address is unreachable
        return socket.inet_pton(family, probe.getsockname()[0].partition("%")[0]) == packed


def _name_servers(path: str) -> list[str]:
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            words = [line.split() for line in file]
    except OSError:
        return []
    return [line[1] for line in words if len(line) > 1 and line[0] == "nameserver"]


def _pack(text: str) -> bytes | None:
    for family in (socket.AF_INET, socket.AF_INET6):
        try:
            return socket.inet_pton(family, text)
        except OSError:
            continue
    return None


def serve(listener: int) -> None:
    """Answer the `connect` and `bind` calls of a script, each in its own thread, until the script's last process has ended.

    `listener` is the descriptor that receives the calls (seccomp user notification). Threads are needed because a connection may take
    minutes.
    """
    judge = Judge()
    busy = 0
    lock = _thread.allocate_lock()

    def work(request: tuple[int, ...]) -> None:
        nonlocal busy
        _answer(listener, request, judge)
        with lock:
            busy -= 1

    arrivals = select.poll()
    arrivals.register(listener, select.POLLIN)
    while any(event & select.POLLIN for _, event in arrivals.poll()):
        received = bytearray(REQUEST.size)
        try:
            fcntl.ioctl(listener, RECEIVE, received)
        except OSError as error:
            if error.errno in (errno.EINTR, errno.ENOENT):
                continue  # the calling process has ended
            return
        request = REQUEST.unpack(received)
        with lock:
            is_full = busy >= MAX_AT_ONCE
            busy += not is_full
        if is_full:
            _send(listener, request[0], errno.EAGAIN)
        else:
            _thread.start_new_thread(work, (request,))


def _answer(listener: int, request: tuple[int, ...], judge: Judge) -> None:
    try:
        error = _make_call(listener, request, judge)
    except OSError as problem:
        error = problem.errno or errno.EACCES
    _send(listener, request[0], error)


def _send(listener: int, number: int, error: int) -> None:
    try:
        fcntl.ioctl(listener, ANSWER, REPLY.pack(number, 0, -error, 0))
    except OSError:
        pass  # the calling process has ended


def _make_call(listener: int, request: tuple[int, ...], judge: Judge) -> int:
    """Make a `connect` or `bind` call for the script. Return the error number of the script's call; 0 means success.

    `request` has the fields of `REQUEST`, the kernel's notification of the call.
    """
    number, thread, _, call = request[:4]
    descriptor, at, size = request[6:9]
    if size > MAX_ADDRESS_BYTES:
        return errno.EINVAL
    with open(f"/proc/{thread}/mem", "rb", buffering=0) as memory:
        address = os.pread(memory.fileno(), size, at)
    process = os.pidfd_open(_process_of(thread))
    try:
        mine = system_call("pidfd_getfd", process, descriptor, 0)
    finally:
        os.close(process)
    with socket.socket(fileno=mine) as ours:
        fcntl.ioctl(listener, IS_VALID, struct.pack("=Q", number))  # fails if the thread has ended, as its id may be reused
        is_bind = call == number_of("bind")
        if judge.refuses_call(ours, address, is_bind=is_bind):
            return errno.EACCES
        done = (LIBC.bind if is_bind else LIBC.connect)(ours.fileno(), address, len(address))
        return ctypes.get_errno() if done != 0 else 0


def _process_of(thread: int) -> int:
    with open(f"/proc/{thread}/status", "rb") as file:
        return next(int(line.split()[1]) for line in file if line.startswith(b"Tgid:"))

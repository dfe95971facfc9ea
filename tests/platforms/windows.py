"""Runs code of the gateway in a process that lacks what Windows lacks: modules, functions, signals and methods of event loops.

`python -m tests.platforms.windows imports` imports every module of the gateway, and prints a line for each module that cannot be imported.
`python -m tests.platforms.windows moongate ARGUMENTS` runs the command line.

The process is still a process of this system. So paths, permissions, pipes and the start of programs are not those of Windows.
"""

from __future__ import annotations

import asyncio
import functools
import importlib
import os
import pkgutil
import select
import signal
import socket
import sys
from types import ModuleType
from typing import Any, NoReturn

MODULES = ("crypt", "fcntl", "grp", "nis", "posix", "pty", "pwd", "readline", "resource", "spwd", "syslog", "termios", "tty", "uvloop")
"""Modules that Python for Windows does not have, and uvloop, which is not published for Windows."""

MISSING: dict[ModuleType, str] = {
    os: "chown chroot fchmod fchown fork forkpty getegid geteuid getgid getgroups getpgid getpgrp getsid getuid killpg lchown mkfifo mknod "
    "nice pread preadv pwrite posix_spawn register_at_fork sched_getaffinity setgid setgroups setpgid setsid setuid uname wait waitid "
    "O_CLOEXEC O_DIRECTORY O_NOCTTY O_NOFOLLOW O_NONBLOCK O_PATH O_SYNC",
    signal: "SIGALRM SIGCHLD SIGCONT SIGHUP SIGKILL SIGPIPE SIGQUIT SIGSTOP SIGUSR1 SIGUSR2 alarm pthread_sigmask setitimer",
    select: "epoll poll POLLERR POLLHUP POLLIN POLLOUT",
    socket: "AF_UNIX SCM_RIGHTS",
}
"""Attributes of modules that Python for Windows does not have, separated by spaces."""

LIBRARIES = ("mcp.client.stdio", "mcp.server.lowlevel", "sqlalchemy.dialects.sqlite.aiosqlite", "starlette.routing", "uvicorn")
"""Libraries that the gateway loads on first use. They are imported before the process changes, and stay those of this system."""

LOOP_METHODS = ("add_reader", "add_signal_handler", "add_writer", "create_unix_connection", "create_unix_server", "connect_read_pipe")
"""Methods that asyncio's default event loop of Windows does not implement."""


def become_windows() -> None:
    """Remove everything from this process that Python for Windows does not have, and import the gateway's modules anew from now on.

    The signal SIGUSR2 of this system becomes SIGBREAK, which Windows sends for Ctrl-Break.
    """
    gateway_modules()
    for name in LIBRARIES:
        importlib.import_module(name)
    for name in [name for name in sys.modules if name.partition(".")[0] == "gateway"]:
        del sys.modules[name]
    socket.socketpair = functools.partial(socket.socketpair, socket.AF_UNIX)  # on Windows it is a pair of TCP sockets
    signal.SIGBREAK = signal.SIGUSR2  # type: ignore[attr-defined]
    socket.SO_EXCLUSIVEADDRUSE = socket.SO_REUSEADDR  # type: ignore[attr-defined]
    sys.modules["msvcrt"] = _msvcrt()
    sys.modules.update(dict.fromkeys(MODULES))  # type: ignore[arg-type]  # None makes the import fail
    for module, names in MISSING.items():
        for name in names.split():
            if hasattr(module, name):
                delattr(module, name)
    for name in LOOP_METHODS:
        setattr(asyncio.SelectorEventLoop, name, _not_implemented)
    sys.platform = "win32"


def gateway_modules() -> list[str]:
    """Import every module of the gateway except its program and its bundled files, and return their names."""
    import gateway

    names = ["gateway", *(found.name for found in pkgutil.walk_packages(gateway.__path__, "gateway."))]
    names = [name for name in names if not name.endswith(".__main__") and "._bundled" not in name]
    for name in names:
        importlib.import_module(name)
    return names


def _not_implemented(*arguments: object, **named: object) -> NoReturn:
    raise NotImplementedError


def _msvcrt() -> ModuleType:
    """A module `msvcrt` whose locks are those of this system."""
    import fcntl

    module: Any = ModuleType("msvcrt")
    module.LK_LOCK, module.LK_NBLCK = fcntl.LOCK_EX, fcntl.LOCK_EX | fcntl.LOCK_NB
    flock = fcntl.flock

    def locking(descriptor: int, mode: int, count: int) -> None:
        flock(descriptor, mode)

    module.locking = locking
    return module


def report_imports() -> None:
    """Print `MODULE: ERROR` for each module of the gateway that cannot be imported on Windows."""
    names = gateway_modules()
    become_windows()
    for name in names:
        try:
            importlib.import_module(name)
        except (ImportError, AttributeError, NotImplementedError) as error:
            sys.stdout.write(f"{name}: {error}\n")


if __name__ == "__main__":
    if sys.argv[1] == "imports":
        report_imports()
    else:
        become_windows()
        from gateway.cli.main import main

        main(sys.argv[2:])

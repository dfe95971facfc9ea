"""The checks of `moongate doctor` that start no process: configuration, programs, lock file, state folder, API keys and port."""

from __future__ import annotations

import json
import os
import shutil
import socket
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from gateway import __version__
from gateway.errors import ConfigError, StorageError
from gateway.json_types import JsonObject
from gateway.policy.packages import floating_packages

if TYPE_CHECKING:
    from gateway.cli.failures import Code
    from gateway.config.load import LoadedConfig
    from gateway.config.models import StdioServer

Status = Literal["ok", "warn", "fail"]

PIN_FIX = "Write the version that you reviewed, as in `some-server@1.2.3`, so that a later release does not run here."


@dataclass(frozen=True, slots=True)
class Check:
    """The result of one check of `moongate doctor`: whether `subject` works."""

    status: Status
    subject: str
    text: str
    fix: str
    """How to fix the problem; empty if nothing needs fixing, or if `text` says how to fix it."""
    code: Code = "config-invalid"
    """Error code that determines the command's exit code if the check failed."""

    def to_json(self) -> JsonObject:
        """Return the JSON object that `doctor --json` prints for this check."""
        return {"status": self.status, "subject": self.subject, "text": self.text, "fix": self.fix or None}


def local_checks(loaded: LoadedConfig) -> list[Check]:
    """Run every check that starts no process, in the order in which `doctor` prints them."""
    version = ".".join(map(str, sys.version_info[:3]))
    return [
        Check("ok", "version", f"moongate {__version__}, Python {version}", ""),
        Check("ok", "configuration", str(loaded.path or "none found; defaults are used"), ""),
        *[Check("warn", "note", problem, "") for problem in loaded.problems],
        *[Check("ok", "note", note, "") for note in loaded.notes],
        *[_disabled(server.json_path, server.reason) for server in loaded.disabled],
        *_programs(loaded),
        *_pins(loaded),
        *_state_and_bind(loaded),
    ]


def _disabled(path: str, reason: str) -> Check:
    from gateway.config.read_entries import SWITCHED_OFF

    return Check("ok" if reason == SWITCHED_OFF else "fail", f"entry {path}", reason, "")


def _programs(loaded: LoadedConfig) -> list[Check]:
    from gateway.config.models import StdioServer

    checks: list[Check] = []
    for name, entry in loaded.config.mcp_servers.items():
        if isinstance(entry, StdioServer):
            found = _which(entry, loaded.base_dir)
            subject = f"program {entry.command}"
            if found is None:
                fix = "Install it, or write its full path as `command`."
                if len(words := entry.command.split()) > 1 and not entry.args:
                    fix = f"`command` is the program alone: write `\"command\": {json.dumps(words[0])}, \"args\": {json.dumps(words[1:])}`."
                checks.append(Check("fail", subject, f"not found, but mcpServers.{name} starts it", fix))
            else:
                checks.append(Check("ok", subject, found, ""))
            checks += [Check("warn", f"package of server {name}", text, PIN_FIX) for text in floating_packages(entry.command, entry.args)]
    return checks


def _pins(loaded: LoadedConfig) -> list[Check]:
    """Check whether the lock file can be read, and whether it contains the accepted tool definitions of each server.

    Return no checks if the file does not exist.
    """
    from gateway.upstream.pins import read_pins

    path = loaded.lock_path
    if path is None or not path.exists():
        return []
    try:
        pins = read_pins(path)
    except ConfigError as error:
        return [Check("fail", "lock file", str(error), "")]
    config = loaded.config
    left_out = [name for name in config.mcp_servers if name not in pins.servers and config.policy(name).pins != "off"]
    checks = [
        Check(
            "warn",
            f"lock file {path.name}",
            f"server {name!r} is not in it, so only changes of tools that it has listed before are quarantined",
            f"`moongate lock {name}`.",
        )
        for name in left_out
    ]
    return checks or [Check("ok", f"lock file {path.name}", f"pins {len(pins.servers)} server{'' if len(pins.servers) == 1 else 's'}", "")]


def _which(entry: StdioServer, base_dir: Path) -> str | None:
    """Return the path of the program that a stdio server's command starts; `None` if the program does not exist."""
    if os.sep in entry.command:
        path = Path(entry.cwd or base_dir) / entry.command
        return str(path) if path.is_file() and os.access(path, os.X_OK) else None
    return shutil.which(entry.command, path=entry.env.get("PATH") or os.environ.get("PATH"))


def _state_and_bind(loaded: LoadedConfig) -> list[Check]:
    from gateway.cli.common import state_folder_of
    from gateway.cli.key_access import key_access
    from gateway.server.key_gate import check_bind
    from gateway.server.origins import is_loopback

    config = loaded.config
    checks: list[Check] = []
    try:
        folder = state_folder_of(loaded).ensure()
        usable = os.access(folder, os.W_OK)
        checks.append(Check("ok" if usable else "fail", "state", str(folder), "" if usable else "Make it writable, or set storage.dir."))
    except StorageError as error:
        return [Check("fail", "state", str(error), ""), *_bind_note(loaded), _port(loaded)]
    try:
        keys = key_access(loaded)
        count = len(keys.list())
        if not is_loopback(config.server.http.host) or config.server.auth.issuers:
            check_bind(config.server.http.host, keys, config.server.auth)
        checks.append(Check("ok", "keys", f"{count} API key{'' if count == 1 else 's'}", ""))
    except StorageError as error:
        checks.append(Check("fail", "keys", str(error), "", "unreachable" if config.storage.url is not None else "config-invalid"))
    except ConfigError as error:
        checks.append(Check("fail", "keys", str(error), "moongate keys add NAME"))
    return [*checks, *_bind_note(loaded), *_certificate(loaded), _port(loaded)]


def _bind_note(loaded: LoadedConfig) -> list[Check]:
    from gateway.server.origins import bind_note

    note = bind_note(loaded.config.server.http.host, loaded.config.server.http.allowed_hosts)
    return [Check("warn", "bind", note, "")] if note is not None else []


def _certificate(loaded: LoadedConfig) -> list[Check]:
    """Check whether the gateway can serve HTTPS with the configured certificate and key. Return no checks without TLS."""
    tls = loaded.config.server.http.tls
    if tls is None:
        return []
    from gateway.server.certificate import ServerCertificate

    try:
        certificate = ServerCertificate(tls)
    except ConfigError as error:
        return [Check("fail", "certificate", str(error), "")]
    notes = [Check("warn", "certificate", note, "") for note in certificate.problems()]
    return notes or [Check("ok", "certificate", f"{tls.certificate} is valid until {certificate.expires:%Y-%m-%d %H:%M} UTC", "")]


def _taken_port(loaded: LoadedConfig, address: str, error: OSError) -> Check:
    """Return the check for a port that is in use. It names the program that listens there, which may be the running gateway."""
    from gateway.cli.common import run_async
    from gateway.cli.endpoint import endpoint_of, find_listener

    found = run_async(lambda: find_listener(endpoint_of(loaded), loaded))
    if found is not None and found.is_own:
        return Check("ok", "port", f"{address} is used by {found.description()}", "")
    holder = found.description() if found is not None else error.strerror or str(error)
    return Check("warn", "port", f"{address} cannot be used now: {holder}", "Stop it, or choose another server.http.port.")


def _port(loaded: LoadedConfig) -> Check:
    from gateway.server.origins import host_port

    host, port = loaded.config.server.http.host, loaded.config.server.http.port
    address = host_port(host, port)
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            return _taken_port(loaded, address, error)
    return Check("ok", "port", f"{address} is free", "")

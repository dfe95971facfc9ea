"""`moongate run`: serves over HTTP or over standard input and output, and prints the endpoint and the sources on stderr.

After SIGINT or SIGTERM the process stops its child processes and exits with code 0.
"""

from __future__ import annotations

import contextlib
import gc
import json
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import click

from gateway import __version__
from gateway.cli.common import config_option, load
from gateway.errors import ConfigError, StorageError
from gateway.json_types import JsonObject

if TYPE_CHECKING:
    import socket

    from gateway.app import Gateway
    from gateway.cli.endpoint import Listener
    from gateway.config.load import LoadedConfig
    from gateway.config.watch import FileWatch
    from gateway.gate.acceptance import Acceptance
    from gateway.server.startup_answers import StartupAnswers
    from gateway.telemetry.audit_logs import AuditLogs
    from gateway.telemetry.logging import SecretMask

ANNOUNCE_TIMEOUT_SECONDS = 10.0
"""Seconds after which the sources are printed. A source that has not connected by then is printed as `starting`."""

PORTS_TRIED = 64
"""Maximum number of ports that `--or-any-port` tries."""

GARBAGE_THRESHOLDS = (10_000, 20, 20)
"""Thresholds for `gc.set_threshold` while the gateway serves. A call creates some hundred objects without reference cycles; with Python's
default of 700 the garbage collector takes 5 % of the CPU and frees nothing.
"""


@click.command()
@click.option("--stdio", is_flag=True, help="Serve one client over standard input and output, as IDEs start servers.")
@click.option("--http", "address", metavar="HOST:PORT", help="Address to serve over HTTP. Default: server.http of the configuration.")
@click.option("--or-any-port", is_flag=True, help="If another program has the configured port, listen on the next free one.")
@click.option("--json", "as_json", is_flag=True, help="Print endpoint, sources, notes and snippet as one JSON line on stderr.")
@config_option
def run(stdio: bool, address: str | None, or_any_port: bool, as_json: bool, config_path: str | None) -> None:
    """Start the gateway (over HTTP unless --stdio is given)."""
    if stdio and address is not None:
        raise click.UsageError("--stdio and --http exclude each other; start two gateways for both.")
    gc.disable()
    try:
        first = first_answers(config_path) if stdio else None
        if first is not None:
            first.begin()  # these imports take most of the time to the first answer
        from gateway.cli.common import configure_log, export_telemetry, run_async
        from gateway.gate.acceptance import Acceptance

        watch = watch_of(config_path)
        acceptance = Acceptance(records_start=True)
        loaded = load(config_path, acceptance=acceptance)
        http = loaded.config.server.http
        host, port = _parse_address(address, http.host, http.port) if address is not None else (http.host, http.port)
        mask = configure_log(loaded)
        if not stdio:
            from gateway.cli.key_access import key_access
            from gateway.server.key_gate import check_bind
            from gateway.server.origins import is_loopback

            if loaded.config.storage.url is None or not is_loopback(host):  # the gateway itself reads the keys in a database
                check_bind(host, key_access(loaded), loaded.config.server.auth)
            if http.tls is not None:
                from gateway.server.certificate import ServerCertificate

                ServerCertificate(http.tls)  # fails here before a server starts; `Gateway.serve_http` reads the files again
        logs = _open_audit_logs(loaded)
        listener = None if stdio else _listen(loaded, host, port, searches=or_any_port and address is None)
        metrics = _listen_for_metrics(loaded, listener) if listener is not None else None
        export_telemetry(mask, for_prometheus=metrics is not None)
        follow = _Follow(loaded, watch, mask, acceptance)
        announcer = _Announcer(loaded, None if stdio else host, as_json=as_json)
        endpoint = (host, port, listener) if listener is not None else None
        run_async(lambda: _serve(follow, announcer, endpoint, first, metrics, logs), serves=not stdio)
    finally:
        gc.enable()


def first_answers(config_path: str | None) -> StartupAnswers | None:
    """Return an object that answers the first requests of a client over stdio (`initialize`, `ping`, listings) while the gateway loads.

    The object sends the results that an earlier start of the gateway stored in a cache file. It also names the file in which the loaded
    gateway stores its own results for the next start. `config_path` is the path that the user gave, or `None` to search for the file.
    Return `None` in each of these cases: the configuration file or a usable folder for the cache is missing; the system is Windows; the
    environment variable `ENABLE_INSTRUMENTATION` is set.
    """
    from gateway.config.paths import find_config
    from gateway.server.startup_answers import StartupAnswers

    path = find_config(config_path, os.environ)
    # With instrumentation every request needs its trace.
    if path is None or sys.platform == "win32" or os.environ.get("ENABLE_INSTRUMENTATION"):
        return None
    with contextlib.suppress(OSError, StorageError):
        return StartupAnswers(path, __version__)
    return None


def _listen(loaded: LoadedConfig, host: str, port: int, *, searches: bool) -> socket.socket:
    """Return a socket that is bound to the port. If another program has the port and `searches` is true, bind the next free port.

    The socket is bound before anything else starts. If two gateways start at once, one of them therefore fails here. If `searches` is true,
    only one gateway of a configuration may run. Clients can connect at once.

    With `storage.url`, clients can connect only when the gateway serves, and the second of two gateways that start at once fails then.

    Raises:
        ConfigError: The port is in use, or, with `searches`, a gateway of this configuration is running.
    """
    from gateway.cli.common import run_async
    from gateway.cli.endpoint import endpoint_of, find_listener
    from gateway.cli.running import sole_start
    from gateway.server.serving import AddressTaken, bind

    listens = loaded.config.storage.url is None
    found = run_async(lambda: sole_start(loaded)) if searches else None
    if found is None or not found.is_own:
        with contextlib.suppress(AddressTaken):
            return bind(host, port, listens=listens)
    if found is None:  # not searched, or the program started to listen after the probe
        found = run_async(lambda: find_listener(endpoint_of(loaded, host, port), loaded))
    if not searches:
        raise _taken(found, host, port)
    if found is not None and found.is_own:
        text = f"{found.description()} already serves this configuration at {found.url}. Use it, or stop it first."
        raise ConfigError(f"No second gateway was started: {text}")
    for other in range(port + 1, min(port + PORTS_TRIED, 65_536)):
        with contextlib.suppress(AddressTaken):
            listener = bind(host, other, listens=listens)
            _print_moved(found, host, port, other)
            return listener
    raise _taken(found, host, port)


def _listen_for_metrics(loaded: LoadedConfig, listener: socket.socket) -> _Address | None:
    """Return the address of `telemetry.prometheus` with a socket that listens there; `None` if the key is left out.

    If this fails, `listener`, the socket for clients, is closed.

    Raises:
        ConfigError: The port is in use, or this process cannot listen at the address.
    """
    address = loaded.config.telemetry.prometheus_address
    if address is None:
        return None
    from gateway.server.metrics_address import bind_metrics

    try:
        return (*address, bind_metrics(address))
    except ConfigError:
        listener.close()
        raise


def _open_audit_logs(loaded: LoadedConfig) -> AuditLogs | None:
    """Return the object that sends the audit log by OTLP; `None` unless `audit.otlp` is set. Raises `ConfigError`."""
    if not loaded.config.audit.otlp:
        return None
    from gateway.telemetry.audit_logs import AuditLogs

    return AuditLogs()


def _print_moved(found: Listener | None, host: str, port: int, other: int) -> None:
    from gateway.cli.output import print_note
    from gateway.server.origins import host_port

    holder = found.description() if found is not None else "another program"
    print_note(f"note: {holder} listens on {host_port(host, port)}, so this gateway listens on {host_port(host, other)}.")


def _taken(found: Listener | None, host: str, port: int) -> ConfigError:
    """Return the error to raise if a port is in use. It names the program `found` that listens there, and says what to do."""
    from gateway.server.origins import host_port

    holder = found.description() if found is not None else "another program"
    if found is not None and found.is_own:
        reason = f"{holder} already serves this configuration there. Use it, stop it"
    else:
        reason = f"{holder} listens there. Stop it"
    text = f"Cannot listen on {host_port(host, port)}: {reason}, or choose another port with `--http {host_port(host, 'PORT')}`."
    return ConfigError(text, path="server.http.port")


def _collect_from_here() -> None:
    """Enable the garbage collector, except for the objects that exist now, most of which exist as long as the process.

    The collector is disabled during the start, because it would take a quarter of the time to the first response.
    """
    gc.freeze()
    gc.set_threshold(*GARBAGE_THRESHOLDS)
    gc.enable()


def _parse_address(text: str, host: str, port: int) -> tuple[str, int]:
    """Parse the value of `--http`: `HOST:PORT`, `:PORT`, `PORT`, `HOST` or `[IPv6]:PORT`. `host` and `port` replace missing parts."""
    written_host, colon, written_port = text.rpartition(":")
    if not colon:
        written_host, written_port = ("", text) if text.isdigit() else (text, "")
    elif text.startswith("[") and text.endswith("]"):
        written_host, written_port = text, ""
    if ":" in written_host and not (written_host.startswith("[") and written_host.endswith("]")):
        raise click.UsageError(f"--http {text!r}: write an IPv6 address in brackets, like [::1]:8765.")
    if written_port and not (written_port.isdigit() and int(written_port) <= 65535):
        raise click.UsageError(f"--http {text!r} is not HOST:PORT with a port from 0 to 65535.")
    return written_host.strip("[]") or host, int(written_port) if written_port else port


def watch_of(config_path: str | None) -> FileWatch | None:
    """Return an object that detects changes of the configuration file, or `None` without a file.

    It is made before the file is read, so that no change is missed.
    """
    from gateway.config.paths import find_config
    from gateway.config.watch import FileWatch

    path = find_config(config_path, os.environ)
    return FileWatch(path) if path is not None else None


@dataclass(frozen=True, slots=True)
class _Follow:
    """The configuration with which the gateway starts, and a method that reads its file again after a change."""

    loaded: LoadedConfig
    watch: FileWatch | None
    mask: SecretMask
    """Masks the secrets of every version of the file in the log, because servers of an earlier version may still be stopping."""
    acceptance: Acceptance

    def read(self) -> LoadedConfig:
        """Read the configuration file again, and register its secrets with the log's mask. Blocks. Raises `ConfigError`."""
        from gateway.cli.common import configure_log, load_quietly

        loaded = load_quietly(str(self.loaded.path) if self.loaded.path is not None else None, acceptance=self.acceptance)
        configure_log(loaded, mask=self.mask)
        return loaded


_Address = tuple[str, int, "socket.socket"]
"""Host and port as they are configured, and the socket that is bound to them."""


async def _serve(
    follow: _Follow,
    announcer: _Announcer,
    address: _Address | None,
    first: StartupAnswers | None,
    metrics: _Address | None,
    logs: AuditLogs | None,
) -> None:
    """Serve until the client disconnects (over stdio) or a signal arrives, and then release every resource."""
    import anyio

    from gateway.cli.common import running
    from gateway.cli.running import findable_at
    from gateway.stop_signals import stop_signals
    from gateway.telemetry.instrumentation import OBSERVABILITY_SETTINGS
    from gateway.upstream.hop_id import STDIO

    with contextlib.ExitStack() as leaving:
        endpoint = STDIO if address is None else str(address[1])
        if logs is not None:
            leaving.callback(logs.close)
        async with running(follow.loaded, follow.acceptance, endpoint) as gateway, anyio.create_task_group() as tasks:
            _collect_from_here()
            if logs is not None:
                gateway.journal.export_to(logs.export)
            if metrics is not None:
                tasks.start_soon(_serve_metrics, metrics, gateway)
            elif OBSERVABILITY_SETTINGS.enable_instrumentation:
                leaving.callback(_record_metrics(gateway))
            gateway.follow(follow.read, follow.watch)

            def announce(url: str | None) -> None:
                leaving.enter_context(findable_at(url, follow.loaded))
                tasks.start_soon(announcer.announce, gateway, url)

            if address is None:
                announce(None)
                await gateway.serve_stdio(first)
            else:
                await gateway.serve_http(*address[:2], on_ready=announce, listener=address[2])
            # The server has handled the first signal; a second one must not interrupt the stopping of child processes.
            leaving.enter_context(stop_signals())
            tasks.cancel_scope.cancel()


async def _serve_metrics(address: _Address, gateway: Gateway) -> None:
    """Serve metrics for Prometheus until cancelled."""
    import anyio

    from gateway.server.metrics_address import serving_metrics

    host, _, listener = address
    async with serving_metrics(listener, host, lambda: _record_metrics(gateway)):
        await anyio.sleep_forever()


def _record_metrics(gateway: Gateway) -> Callable[[], None]:
    """Record the gateway's metrics from now on. Return a function that stops this."""
    from gateway.telemetry.prometheus import record_events

    return record_events(gateway.events, gateway.journal.count_calls(), gateway.load)


class _Announcer:
    """Prints the sources, the endpoint and a configuration snippet for an IDE once, when the sources have connected."""

    def __init__(self, loaded: LoadedConfig, bound: str | None, *, as_json: bool) -> None:
        """`bound` is the host on which the gateway listens; `None` over stdio."""
        self._loaded = loaded
        self._bound = bound
        self._as_json = as_json

    async def announce(self, gateway: Gateway, url: str | None) -> None:
        """Print the notes on the configuration, one line for each source, the endpoint, and the configuration snippet for an IDE."""
        from dataclasses import asdict

        import anyio

        from gateway.cli.output import camel_keys, json_line, print_note, source_line
        from gateway.config.paths import is_bundled_config
        from gateway.server.origins import bind_note

        await gateway.ready(ANNOUNCE_TIMEOUT_SECONDS)
        sources = [camel_keys(asdict(source)) for source in gateway.inspection.sources()]
        has_keys = url is not None and await anyio.to_thread.run_sync(gateway.callers.keys.are_required)
        snippet = paste_snippet(self._loaded, url, has_keys=has_keys)
        notes = [*self._loaded.problems, *self._loaded.notes]
        if self._bound is not None and (note := bind_note(self._bound, self._loaded.config.server.http.allowed_hosts)) is not None:
            notes.append(note)
        notes += gateway.inspection.endpoint_problems()
        if self._as_json:
            print_note(json_line({"endpoint": url, "sources": sources, "notes": notes, "snippet": snippet}))
            return
        for note in notes:
            print_note(f"note: {note}")
        name_columns = max((len(str(source["name"])) for source in sources), default=0)
        for source in sources:
            print_note(source_line(source, name_columns))
        print_note()
        place = url or "standard input and output"
        print_note(f"{self._loaded.config.server.name} serves {place}  (configuration: {self._loaded.path or 'none'})")
        if self._loaded.path is None or is_bundled_config(self._loaded.path):
            print_note("These are the examples that ship with Moongate. To serve your own servers:")
            print_note("  moongate add NAME URL")
            print_note("  moongate add NAME -- COMMAND ARGS...")
            if not (os.environ.get("OPENAI_API_KEY") or os.environ.get("OPENAI_BASE_URL")):
                print_note("Agents use the model of the connected client. OPENAI_API_KEY or OPENAI_BASE_URL gives them another one.")
        print_note("For your IDE:")
        print_note(json.dumps(snippet, indent=2), folds=False)


def paste_snippet(loaded: LoadedConfig, url: str | None, *, has_keys: bool) -> JsonObject:
    """Return the `mcpServers` object that connects an IDE to this gateway: by `url`, or by a command if `url` is `None`."""
    if url is not None:
        entry: JsonObject = {"type": "http", "url": url}
        if has_keys:
            entry["headers"] = {"Authorization": "Bearer <API key>"}
    else:
        command, *args = own_command()
        entry = {"command": command, "args": [*args, "run", "--stdio", *(["--config", str(loaded.path)] if loaded.path else [])]}
    return {"mcpServers": {loaded.config.server.name: entry}}


def own_command() -> list[str]:
    """Return a command with absolute paths that starts Moongate, because an IDE's PATH rarely contains it."""
    program = Path(sys.argv[0])
    if program.stem == "moongate" and program.exists() and os.access(program, os.X_OK):
        return [str(program.absolute())]
    return [sys.executable, "-m", "gateway"]

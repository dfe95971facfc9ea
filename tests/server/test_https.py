"""A gateway that serves HTTPS itself: clients, commands, renewed certificates, and files that cannot be used."""

from __future__ import annotations

import signal
import socket
import ssl
import subprocess
import sys
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import httpx2
import pytest
from mcp.client.client import Client
from mcp.client.streamable_http import streamable_http_client

from tests.cli.processes import environment, moongate, moongate_process, write_gateway
from tests.fakes.certificates import Pair, make_pair
from tests.fakes.nursery import Child
from tests.fakes.running import ROOT, child, free_port, until, upstream_stdio, wait_until_ready

pytestmark = pytest.mark.fleet

PAIR = make_pair(name="hub.example.com")


@dataclass(frozen=True)
class Running:
    """A running gateway that serves HTTPS."""

    folder: Path
    port: int
    process: Child

    @property
    def url(self) -> str:
        return f"https://127.0.0.1:{self.port}/mcp"

    @property
    def log(self) -> str:
        return (self.folder / "log").read_text()

    def connect(self) -> ssl.SSLSocket:
        """Return a connection whose client trusts every certificate."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        return context.wrap_socket(socket.create_connection(("127.0.0.1", self.port), timeout=20))

    def certificate(self) -> bytes:
        """Return the certificate that a new connection receives."""
        with self.connect() as stream:
            found = stream.getpeercert(binary_form=True)
            assert found is not None
            return found


@contextmanager
def serving(folder: Path, pair: Pair, **document: Any) -> Generator[Running]:
    port = free_port()
    write_gateway(folder, storage={"dir": "state"}, server={"http": {"port": port, "tls": pair.write(folder)}}, **document)
    log = folder / "log"
    with child("-m", "gateway", "run", "--config", str(folder / "gateway.json"), env=environment(folder), log=log) as process:
        wait_until_ready(process, f"https://127.0.0.1:{port}/ready", log, tls=pair.trusted())
        yield Running(folder, port, process)


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Generator[Running]:
    with serving(tmp_path_factory.mktemp("https"), PAIR, mcpServers={"up": upstream_stdio()}) as running:
        yield running


@pytest.mark.parametrize("mode", ["legacy", "2026-07-28"])
async def test_client_of_each_era_calls_tools(gateway: Running, mode: Any) -> None:
    parts: list[float] = []

    async def report(progress: float, total: float | None, message: str | None) -> None:
        parts.append(progress)

    async with httpx2.AsyncClient(verify=PAIR.trusted(), timeout=30) as http:
        async with Client(streamable_http_client(gateway.url, http_client=http), mode=mode) as client:
            assert (await client.call_tool("up__add", {"a": 1, "b": 2})).content[0].text == "3"  # type: ignore[union-attr]  # a text
            long = "x" * 1_000_000
            assert (await client.call_tool("up__echo", {"text": long})).content[0].text.endswith(long[:1000])  # type: ignore[union-attr]
            await client.call_tool("up__progress", {}, progress_callback=report)
    assert parts


def test_commands_trust_the_certificate_whatever_its_name(gateway: Running) -> None:
    called = moongate_process("call", "up__add", "a=1", "b=2", cwd=gateway.folder)
    assert (called.code, called.out, called.err) == (0, "3\n", f"gateway: {gateway.url} (configuration: {gateway.folder}/gateway.json)\n")
    given = moongate("call", "up__add", "a=1", "b=2", "--url", gateway.url, cwd=gateway.folder)
    assert (given.code, given.out) == (0, "3\n"), given
    second = moongate("run", cwd=gateway.folder)
    assert (second.code, "already serves this configuration there" in second.err) == (2, True), second
    checked = moongate("doctor", "--json", cwd=gateway.folder)
    subjects = {check["subject"]: (check["status"], check["text"]) for check in checked.data["checks"]}
    assert subjects["certificate"][0] == "ok" and "is valid until" in subjects["certificate"][1]
    assert subjects["port"][0] == "ok" and "is used by the gateway 'moongate'" in subjects["port"][1]


def test_gateway_on_another_port_is_found(gateway: Running, tmp_path: Path) -> None:
    """With `--or-any-port` the gateway listens on the next free port, and commands find it there."""
    write_gateway(tmp_path, storage={"dir": "state"}, server={"http": {"port": gateway.port, "tls": PAIR.write(tmp_path)}})
    arguments, log = ["run", "--or-any-port", "--config", str(tmp_path / "gateway.json")], tmp_path / "log"
    with child("-m", "gateway", *arguments, env=environment(tmp_path), log=log):
        until(lambda: "serves https://" in log.read_text())
        listed = moongate_process("list", "--json", cwd=tmp_path)
    assert (listed.code, f"(configuration: {tmp_path / 'gateway.json'})" in listed.err) == (0, True), listed
    assert "gateway: https://127.0.0.1:" in listed.err


def test_certificate_of_another_program_is_not_trusted(gateway: Running, tmp_path: Path) -> None:
    """A command sends nothing to a program on its port that has another certificate."""
    write_gateway(tmp_path, storage={"dir": "state"}, server={"http": {"port": gateway.port, "tls": make_pair().write(tmp_path)}})
    listed = moongate("list", cwd=tmp_path)
    assert f"gateway: none at {gateway.url}" in listed.err, listed
    started = moongate("run", cwd=tmp_path)
    assert (started.code, "a program whose TLS certificate is not the one in server.http.tls" in started.err) == (2, True), started
    unknown = moongate("list", "--url", f"https://localhost:{gateway.port}/mcp", cwd=tmp_path)
    assert (unknown.code != 0, "is not trusted (" in unknown.err, "$SSL_CERT_FILE" in unknown.err) == (True, True, True), unknown
    write_gateway(tmp_path, storage={"dir": "state"}, server={"http": {"port": free_port()}})
    # A new interpreter, because the processes that tests usually fork have read the authorities already.
    command = [sys.executable, "-m", "gateway", "call", "up__add", "a=1", "b=2", "--url", gateway.url]
    env = {**environment(tmp_path, {"SSL_CERT_FILE": str(gateway.folder / "cert.pem")}), "PYTHONPATH": str(ROOT)}
    trusted = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=40, check=False)
    assert (trusted.returncode, trusted.stdout) == (0, "3\n"), trusted


def test_renewed_certificate_is_for_new_connections(tmp_path: Path) -> None:
    with serving(tmp_path, PAIR) as gateway, gateway.connect() as open_connection:
        renewed = make_pair()
        renewed.write(tmp_path)
        until(lambda: gateway.certificate() == renewed.der)
        until(lambda: f"certificate applied file={tmp_path / 'cert.pem'} expires=" in gateway.log)
        open_connection.sendall(b"GET /health HTTP/1.1\r\nhost: localhost\r\n\r\n")
        assert open_connection.recv(1000).startswith(b"HTTP/1.1 200 ")
        # A certificate without its key, and then a file without a certificate: the gateway keeps the renewed one.
        (tmp_path / "cert.pem").write_bytes(PAIR.certificate)
        until(lambda: f"The TLS key {tmp_path / 'key.pem'} does not belong to the first certificate in" in gateway.log)
        assert gateway.certificate() == renewed.der
        page = httpx2.get(f"https://127.0.0.1:{gateway.port}/status.json", verify=renewed.trusted()).json()
        assert "renewed certificate is not applied" in page["problems"][0] and str(tmp_path / "key.pem") in page["problems"][0]
        (tmp_path / "cert.pem").write_bytes(b"broken")
        until(lambda: f"The TLS certificate {tmp_path / 'cert.pem'} is not a PEM certificate" in gateway.log)
        (tmp_path / "cert.pem").unlink()
        until(lambda: f"The TLS certificate {tmp_path / 'cert.pem'} cannot be read: No such file or directory" in gateway.log)
        assert gateway.certificate() == renewed.der
        PAIR.write(tmp_path)
        until(lambda: gateway.certificate() == PAIR.der)
        before = gateway.log.count("certificate applied")
        gateway.process.send_signal(signal.SIGHUP)
        until(lambda: gateway.log.count("certificate applied") > before)


def _changed(folder: Path, **tls: Any) -> None:
    write_gateway(folder, storage={"dir": "state"}, server={"http": {"port": free_port(), "tls": tls}})


def test_start_fails_with_the_file_and_the_fix(tmp_path: Path) -> None:
    good = PAIR.write(tmp_path)
    other, expired = make_pair(), make_pair(days=-0.5)
    (tmp_path / "other.pem").write_bytes(other.key)
    (tmp_path / "expired.pem").write_bytes(expired.certificate)
    (tmp_path / "expired-key.pem").write_bytes(expired.key)
    (tmp_path / "text.pem").write_text("text")
    (tmp_path / "encrypted.pem").write_bytes(make_pair(password="secret words").key)
    cases: list[tuple[dict[str, str], str, str]] = [
        ({**good, "certificate": "none.pem"}, "none.pem", "cannot be read: No such file or directory"),
        ({**good, "key": "none.pem"}, "none.pem", "cannot be read: No such file or directory"),
        ({**good, "certificate": "text.pem"}, "text.pem", "-----BEGIN CERTIFICATE-----"),
        ({**good, "key": "text.pem"}, "text.pem", "-----BEGIN PRIVATE KEY-----"),
        ({**good, "key": "other.pem"}, "other.pem", "does not belong to the first certificate"),
        ({"certificate": "expired.pem", "key": "expired-key.pem"}, "expired.pem", "expired on "),
        ({**good, "key": "encrypted.pem"}, "encrypted.pem", '"keyPassword": "${TLS_KEY_PASSWORD}"'),
        ({**good, "key": "encrypted.pem", "keyPassword": "${WRONG}"}, "encrypted.pem", "Correct the password"),
    ]
    for tls, file, text in cases:
        _changed(tmp_path, **tls)
        done = moongate("run", cwd=tmp_path, env={"WRONG": "not this one"})
        assert (done.code, str(tmp_path / file) in done.err, text in done.err) == (2, True, True), (tls, done)
        assert "not this one" not in done.err
        checked = moongate("doctor", "--json", cwd=tmp_path, env={"WRONG": "not this one"})
        [check] = [check for check in checked.data["checks"] if check["subject"] == "certificate"]
        assert (check["status"], text in check["text"]) == ("fail", True), check


def test_encrypted_key_is_read_with_its_password(tmp_path: Path) -> None:
    _changed(tmp_path, **make_pair(password="secret words").write(tmp_path), keyPassword="${file:password}")
    (tmp_path / "password").write_text("secret words\n")
    checked = moongate("doctor", "--json", cwd=tmp_path)
    [check] = [check for check in checked.data["checks"] if check["subject"] == "certificate"]
    assert check["status"] == "ok", check


def test_readable_key_and_near_expiry_are_noted(tmp_path: Path) -> None:
    pair = make_pair(days=5)
    until_day = datetime.now(UTC).year
    with serving(tmp_path, pair) as gateway:
        until(lambda: f"note: The TLS certificate {tmp_path / 'cert.pem'} expires on {until_day}" in gateway.log)
    (tmp_path / "key.pem").chmod(0o644)
    checked = moongate("doctor", "--json", cwd=tmp_path)
    texts = [check["text"] for check in checked.data["checks"] if check["subject"] == "certificate"]
    assert f"Other users of this machine can read or change the TLS key {tmp_path / 'key.pem'}. Run `chmod o-rwx` on it." in texts


def test_gateway_with_open_connections_stops(tmp_path: Path) -> None:
    """A handshake that never ends and an idle connection do not delay the stop."""
    with serving(tmp_path, PAIR) as gateway:
        with socket.create_connection(("127.0.0.1", gateway.port)), gateway.connect() as idle:
            idle.sendall(b"GET /health HTTP/1.1\r\nhost: localhost\r\n\r\n")
            assert idle.recv(1000)
            gateway.process.terminate()
            try:
                assert gateway.process.wait(8) == 0, gateway.log
            except subprocess.TimeoutExpired:
                pytest.fail(gateway.log)
        assert "Traceback" not in gateway.log

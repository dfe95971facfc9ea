"""nginx with `deploy/nginx.conf` asks again for the addresses of the gateways: a replaced container has another address.

A name server of this test answers in Docker's place. nginx resolves names in an `upstream` since 1.27.3; an older one is skipped by name.
"""

from __future__ import annotations

import re
import shutil
import socket
import ssl
import subprocess
import threading
import urllib.error
import urllib.request
from collections.abc import Generator
from contextlib import ExitStack, contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from tests.fakes.running import ROOT, free_port, until
from tests.packaging.test_compose import nginx_with, secrets_in


def nginx_version() -> tuple[int, ...]:
    """The version of the installed nginx; `(0,)` if there is none."""
    if shutil.which("nginx") is None:
        return (0,)
    shown = subprocess.run(["nginx", "-v"], capture_output=True, text=True, timeout=20, check=False).stderr
    found = re.search(r"/([\d.]+)", shown)
    return tuple(map(int, found[1].split("."))) if found else (0,)


@contextmanager
def name_server(addresses: dict[str, str]) -> Generator[int]:
    """Answer DNS queries for IPv4 addresses from `addresses`, valid for ten minutes as Docker's, and yield the UDP port."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as server:
        server.bind(("127.0.0.1", 0))
        ended = threading.Event()
        server.settimeout(0.1)

        def serve() -> None:
            while not ended.is_set():
                try:
                    query, peer = server.recvfrom(512)
                except TimeoutError:
                    continue
                server.sendto(_answer(query, addresses), peer)

        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield server.getsockname()[1]
        finally:
            ended.set()
            thread.join(5)


def _answer(query: bytes, addresses: dict[str, str]) -> bytes:
    """Return the response to a DNS query with one question: one address, or that the name does not exist."""
    end = query.index(0, 12) + 5
    labels, position = list[str](), 12
    while length := query[position]:
        labels.append(query[position + 1 : position + 1 + length].decode())
        position += 1 + length
    address = addresses.get(".".join(labels))
    flags, count = (b"\x81\x80", 1) if address else (b"\x81\x83", 0)
    head = query[:2] + flags + b"\0\1" + count.to_bytes(2, "big") + bytes(4) + query[12:end]
    return head + (b"\xc0\x0c\0\1\0\1" + (600).to_bytes(4, "big") + b"\0\4" + socket.inet_aton(address) if address else b"")


@contextmanager
def named(address: str, port: int) -> Generator[None]:
    """Run a server that answers every request with its address, in place of a gateway."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("Content-Length", str(len(address)))
            self.end_headers()
            self.wfile.write(address.encode())

        def log_message(self, format: str, *args: object) -> None:
            del format, args

    server = ThreadingHTTPServer((address, port), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield
    finally:
        server.shutdown()
        server.server_close()
        thread.join(5)


@pytest.mark.nginx
@pytest.mark.skipif(nginx_version() < (1, 27, 3), reason="nginx is missing or older than 1.27.3")
@pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl is missing")
def test_replaced_gateway_is_found_at_its_new_address(tmp_path: Path) -> None:
    secrets, port = secrets_in(tmp_path), free_port()
    addresses = {"gateway-1": "127.0.0.2", "gateway-2": "127.0.0.3"}
    with ExitStack() as stack:
        names = stack.enter_context(name_server(addresses))
        for number in (2, 3, 4):
            stack.enter_context(named(f"127.0.0.{number}", port))
        text = (ROOT / "deploy" / "nginx.conf").read_text(encoding="utf-8")
        text = text.replace("resolver 127.0.0.11 ", f"resolver 127.0.0.1:{names} ").replace(":8765 resolve", f":{port} resolve")
        https = stack.enter_context(nginx_with(tmp_path, secrets, text))
        trusted = ssl.create_default_context(cafile=str(secrets / "tls.crt"))

        def answering() -> set[str]:
            url = f"https://localhost:{https}/health"
            with suppress(urllib.error.HTTPError):  # before nginx has the first address
                return {urllib.request.urlopen(url, timeout=10, context=trusted).read().decode() for _ in range(6)}
            return set()

        until(lambda: answering() == {"127.0.0.2", "127.0.0.3"})
        addresses["gateway-1"] = "127.0.0.4"
        until(lambda: answering() == {"127.0.0.4", "127.0.0.3"})
        del addresses["gateway-2"]
        until(lambda: answering() == {"127.0.0.4"})

"""Remote servers behind the proxy that the environment names: a real gateway, a real proxy, and a name that nothing else resolves."""

from __future__ import annotations

import threading
from collections.abc import Generator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit
from urllib.request import ProxyHandler, Request, build_opener

import httpx2
import pytest

from gateway.egress.proxies import proxy_for
from gateway.errors import NotSent
from tests.fakes.running import gateway_http, raw_http
from tests.interaction.ways import Way, connected

pytestmark = pytest.mark.timeout(60)
NAME = "docs.test"
TOOL = {"name": "search", "inputSchema": {"type": "object"}}


@contextmanager
def proxy() -> Generator[tuple[str, list[str]]]:
    """Run a forward proxy that resolves every name to this machine; yield its address and the requested targets."""
    asked: list[str] = []
    direct = build_opener(ProxyHandler({}))

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            asked.append(f"{self.command} {urlsplit(self.path).hostname}")
            parts = urlsplit(self.path)
            body = self.rfile.read(int(self.headers["Content-Length"]))
            headers = {"Content-Type": self.headers["Content-Type"], "Accept": self.headers["Accept"]}
            with direct.open(Request(f"http://127.0.0.1:{parts.port}{parts.path}", body, headers), timeout=10) as answer:
                data = answer.read()
                self.reply(answer.status, data)

        def do_GET(self) -> None:
            self.reply(405, b"")

        def do_CONNECT(self) -> None:
            asked.append(f"CONNECT {self.path}")
            self.reply(403, b"")

        def reply(self, status: int, body: bytes) -> None:
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: Any) -> None:
            """Log nothing: stderr belongs to the test."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}", asked
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


async def test_proxy_is_used_except_for_local_and_excepted_servers(tmp_path: Path) -> None:
    with raw_http({"tools": [TOOL]}, "--modern") as here, proxy() as (address, asked):
        port = urlsplit(here).port
        servers = {
            "docs": {"type": "http", "url": f"http://{NAME}:{port}/mcp"},
            "sealed": {"type": "http", "url": "https://sealed.test/mcp"},
            "here": {"type": "http", "url": here},
            "excepted": {"type": "http", "url": f"http://inner.corp.test:{port}/mcp"},
        }
        env = {"http_proxy": address, "https_proxy": address, "no_proxy": ".corp.test"}
        with gateway_http(tmp_path, {"mcpServers": servers}, env=env) as url:
            async with connected(Way("http", "modern", "docs"), url) as (client, _):
                assert not (await client.call_tool("docs__search", {})).is_error
                assert not (await client.call_tool("here__search", {})).is_error
            rows = httpx2.get(url.replace("/mcp", "/status.json"), trust_env=False).json()["sources"]
    states = {row["name"]: row["state"] for row in rows}
    assert states == {"docs": "ready", "here": "ready", "sealed": "down", "excepted": "down"}
    assert set(asked) == {f"POST {NAME}", "CONNECT sealed.test:443"}


@pytest.mark.parametrize(
    ("url", "excepted", "through"),
    [
        ("https://a.example.com/mcp", "", True),
        ("https://a.example.com/mcp", "example.com", False),
        ("https://a.example.com/mcp", "*.example.com:443", False),
        ("https://a.example.com/mcp", "example.com:8443", True),
        ("https://notexample.com/mcp", "example.com", True),
        ("https://10.1.2.3/mcp", "10.0.0.0/8", False),
        ("https://11.1.2.3/mcp", "10.0.0.0/8", True),
        ("https://a.example.com/mcp", "b.test, *", False),
        ("https://localhost/mcp", "", False),
        ("https://[::1]:9/mcp", "", False),
        ("http://a.example.com/mcp", "", False),
    ],
)
def test_no_proxy_names_hosts_domains_networks_and_ports(url: str, excepted: str, through: bool) -> None:
    found = proxy_for("docs", url, {"HTTPS_PROXY": "http://proxy.test:3128", "NO_PROXY": excepted})
    assert (found is not None) is through


@pytest.mark.parametrize("value", ["socks5://user:canary@proxy.test:1080", "http://[", "ftp://proxy.test"])
def test_malformed_proxy_is_an_error_that_does_not_show_it(value: str) -> None:
    with pytest.raises(NotSent, match="ALL_PROXY") as caught:
        proxy_for("docs", "https://a.example.com/mcp", {"ALL_PROXY": value})
    assert "canary" not in str(caught.value)

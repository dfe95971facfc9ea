"""The contenders: for each measured gateway or proxy, how to find its program, start it in front of an upstream and send requests to it.

`setup.sh` installs each peer (a contender from another project) into its own environment below `$BENCH_HOME` (default
`~/.cache/moongate-bench`). Every contender gets its fastest settings: uvloop and httptools for Python peers, no access log, only errors
logged, no rate limit, and a CA bundle with one certificate, because some peers read the bundle for each request.
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import hmac
import json
import os
import shutil
import ssl
import subprocess
import sys
import time
from collections.abc import AsyncGenerator, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import anyio

from benchmarks.driver import CallFailed, Wire, listing, post_json
from benchmarks.machine import ROOT, Command, cpu_seconds, free_port, has_ended, megabytes, python, started

HOME = Path(os.environ.get("BENCH_HOME") or Path.home() / ".cache" / "moongate-bench")

NGINX = """daemon off; master_process off; error_log stderr crit; pid {folder}/nginx.pid;
events {{ worker_connections 1024; }}
http {{ access_log off; client_body_temp_path {folder}; proxy_temp_path {folder}; fastcgi_temp_path {folder};
  uwsgi_temp_path {folder}; scgi_temp_path {folder}; keepalive_requests 1000000; client_max_body_size 8m; {buffers}
  upstream up {{ server 127.0.0.1:{upstream}; keepalive 64; keepalive_requests 1000000; }}
  server {{ listen 127.0.0.1:{port};
    location / {{ proxy_pass http://up; proxy_http_version 1.1; proxy_set_header Connection ""; proxy_set_header Host $http_host; }} }} }}
"""
"""nginx configuration with a plain `proxy_pass` and keep-alive upstream connections: the baseline for ratios."""

LARGE_BUFFERS = "client_body_buffer_size 4m; proxy_buffers 16 256k; proxy_buffer_size 256k; proxy_busy_buffers_size 512k;"
"""Buffer settings that are large enough for every benchmark message, so nginx does not write messages to temporary files."""

FASTMCP = """
import sys
from fastmcp.server import create_proxy

quiet = {"access_log": False, "log_level": "error"}
create_proxy(sys.argv[2]).run("http", host="127.0.0.1", port=int(sys.argv[1]), show_banner=False, uvicorn_config=quiet)
"""

SECRET = "a-benchmark-on-the-loopback-interface-Has-No-Secret-0"
ADMIN = "admin@example.com"


@dataclass(frozen=True)
class Place:
    """The folder and ports of a started contender."""

    folder: Path
    """The folder for the configuration, state and log of this contender."""
    port: int
    upstream: int
    """Port of the upstream server; 0 if the upstream is a stdio server."""
    server: Sequence[str] = ()
    """Command line of the stdio server; empty if the upstream is an HTTP server."""

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.upstream}/mcp"


@dataclass(frozen=True)
class Contender:
    """A gateway, proxy or server that is measured, with its start command, version and request format."""

    name: str
    title: str
    command: Callable[[Place], Command]
    program: Callable[[], str | None]
    """Return the path of the installed program, or `None` if the program is not installed."""
    version: Callable[[], str]
    reach: Callable[[Place], Wire] = lambda place: Wire(place.port)
    register: Callable[[Place], Any] | None = None
    """Register the upstream after the start; `None` if the command or the configuration file names the upstream."""
    start_seconds: float = 30.0
    eras: tuple[str, ...] = ("modern", "legacy")


@dataclass
class Running:
    """A started contender that has sent its first complete tool list."""

    contender: Contender
    wire: Wire
    child: subprocess.Popen[bytes]
    seconds: float
    """Seconds from the start of the process to the first tool list that contains the called tool."""

    @property
    def name(self) -> str:
        return self.contender.name

    def cpu(self) -> float:
        return cpu_seconds(self.child.pid)

    def megabytes(self) -> float:
        return megabytes(self.child.pid)


@contextlib.asynccontextmanager
async def running(
    contender: Contender, folder: Path, upstream: int = 0, *, core: int | None = None, server: Sequence[str] = ()
) -> AsyncGenerator[Running]:
    """Start a contender, wait until its tool list contains the called tool, and stop the contender on exit.

    Raises:
        CallFailed: The process ended, or the tool was not listed within `contender.start_seconds`.
    """
    own = folder / f"{contender.name}-{free_port()}"
    own.mkdir()
    place = Place(own, free_port(), upstream, server)
    command = contender.command(place)
    began = time.monotonic()
    with started(command, core=core, log=own / "log") as child:
        try:
            with anyio.fail_after(contender.start_seconds):
                if contender.register is not None:
                    await contender.register(place)
                wire = contender.reach(place)
                while not await _lists(wire, contender.eras[0]):
                    if has_ended(child):
                        raise CallFailed(f"it ended: {_last_words(own / 'log')}")
                    await anyio.sleep(0.005)
        except TimeoutError:
            raise CallFailed(f"no listing in {contender.start_seconds:g} s: {_last_words(own / 'log')}") from None
        yield Running(contender, wire, child, time.monotonic() - began)


async def _lists(wire: Wire, era: str) -> bool:
    """Return whether the tool list of the contender contains the called tool."""
    try:
        return b'"%s"' % wire.tool.encode() in await listing(wire, era)
    except (OSError, CallFailed):
        return False


def _last_words(log: Path) -> str:
    lines = log.read_text(errors="replace").strip().splitlines()
    return lines[-1][:200] if lines else "it said nothing"


# -- the gateway -----------------------------------------------------------------------------------------------------


def gateway(
    place: Place,
    *,
    urls: Sequence[str] = (),
    policy: dict[str, Any] | None = None,
    settings: dict[str, Any] | None = None,
    checkout: Path = ROOT,
) -> Command:
    """Write a configuration file and return the command that starts the gateway of `checkout`.

    With `urls` the gateway has one upstream per URL, each with its own tool name prefix. Otherwise its only upstream is that of `place`,
    and tool names are unchanged.
    """
    if urls:
        servers: dict[str, Any] = {f"up{n}": {"type": "http", "url": url} for n, url in enumerate(urls)}
        policies: dict[str, Any] = {}
    else:
        over_stdio = {"command": place.server[0], "args": list(place.server[1:])} if place.server else {}
        servers = {"up": over_stdio or {"type": "http", "url": place.url}}
        policies = {"up": {"prefix": "", **(policy or {})}}
    config = place.folder / "gateway.json"
    whole = {"mcpServers": servers, "policies": policies, "storage": {"dir": str(place.folder / "state")}, **(settings or {})}
    config.write_text(json.dumps(whole))
    return python("-m", "gateway", "run", "--http", f"127.0.0.1:{place.port}", "--config", str(config), checkout=checkout)


# -- peers -----------------------------------------------------------------------------------------------------------


def one_certificate(folder: Path) -> dict[str, str]:
    """Write a CA bundle with the first system certificate only, and return the environment variables that select it."""
    bundle = os.environ.get("SSL_CERT_FILE") or ssl.get_default_verify_paths().cafile or ""
    if not Path(bundle).is_file():
        return {}
    first = Path(bundle).read_text(errors="replace").partition("-----END CERTIFICATE-----")
    (folder / "one.pem").write_text(first[0] + first[1] + "\n")
    return {"SSL_CERT_FILE": str(folder / "one.pem"), "SSL_CERT_DIR": str(folder)}


def nginx(place: Place, buffers: str = "") -> Command:
    config = place.folder / "nginx.conf"
    config.write_text(NGINX.format(folder=place.folder, port=place.port, upstream=place.upstream, buffers=buffers))
    return Command(("nginx", "-c", str(config), "-e", "stderr"))


def contextforge(place: Place) -> Command:
    settings = {
        "DATABASE_URL": f"sqlite:///{place.folder}/mcp.db",
        "CACHE_TYPE": "memory",
        "LOG_LEVEL": "ERROR",
        "RATE_LIMITING_ENABLED": "false",
        "TOOL_RATE_LIMIT": "100000000",
        "SSRF_ALLOW_LOCALHOST": "true",
        "SSRF_ALLOW_PRIVATE_NETWORKS": "true",
        "PLATFORM_ADMIN_EMAIL": ADMIN,
        "PASSWORD_CHANGE_ENFORCEMENT_ENABLED": "false",
        "REQUIRE_STRONG_SECRETS": "false",
    }
    for name in ("JWT_SECRET_KEY", "AUTH_ENCRYPTION_SECRET", "PLATFORM_ADMIN_PASSWORD", "DEFAULT_USER_PASSWORD", "BASIC_AUTH_PASSWORD"):
        settings[name] = SECRET
    argv = ("-m", "uvicorn", "mcpgateway.main:app", "--host", "127.0.0.1", "--port", str(place.port), "--log-level", "error")
    return Command((str(HOME / "contextforge/bin/python"), *argv, "--no-access-log"), settings | one_certificate(place.folder))


def token() -> str:
    """Return a signed JWT that ContextForge accepts as a token of its administrator."""
    now = int(time.time())
    claims = {"sub": ADMIN, "iss": "mcpgateway", "aud": "mcpgateway-api", "iat": now, "exp": now + 86_400, "jti": str(now), "teams": None}
    claims |= {"is_admin": True, "user": {"email": ADMIN, "is_admin": True, "auth_provider": "cli"}}
    parts = [base64.urlsafe_b64encode(json.dumps(part).encode()).rstrip(b"=") for part in ({"alg": "HS256", "typ": "JWT"}, claims)]
    signature = hmac.new(SECRET.encode(), b".".join(parts), hashlib.sha256).digest()
    return b".".join([*parts, base64.urlsafe_b64encode(signature).rstrip(b"=")]).decode()


async def register_with_contextforge(place: Place) -> None:
    entry = {"name": "up", "url": place.url, "transport": "STREAMABLEHTTP"}
    while True:
        with contextlib.suppress(OSError, CallFailed):
            await post_json(Wire(place.port, "/gateways", headers=(f"authorization: Bearer {token()}",)), entry)
            return
        await anyio.sleep(0.1)


def reach_contextforge(place: Place) -> Wire:
    return Wire(place.port, "/mcp/", "up-tool-1", (f"authorization: Bearer {token()}",))


def _fastmcp(place: Place) -> Command:
    argv = (str(HOME / "fastmcp/bin/python"), "-c", FASTMCP, str(place.port), place.url)
    return Command(argv, one_certificate(place.folder))


def _mcp_proxy(place: Place) -> Command:
    argv = ("--host", "127.0.0.1", "--port", str(place.port), "--pass-environment", "--log-level", "ERROR", "--", *place.server)
    return Command((str(HOME / "mcp-proxy/bin/mcp-proxy"), *argv))


def _npm_mcp_proxy(place: Place) -> Command:
    argv = ("--host", "127.0.0.1", "--port", str(place.port), "--server", "stream", "--", *place.server)
    path = f"{HOME / 'node/bin'}:{os.environ['PATH']}"
    return Command((str(HOME / "node/js/node_modules/.bin/mcp-proxy"), *argv), {"PATH": path})


# -- locations --------------------------------------------------------------------------------------------------


def installed() -> str:
    """Return the path of the running Python interpreter."""
    return sys.executable


def at(path: str) -> Callable[[], str | None]:
    """Return a function that returns the absolute path of `path` below `$BENCH_HOME`, or `None` if the file does not exist."""
    return lambda: str(HOME / path) if (HOME / path).exists() else None


def version_of(package: str, interpreter: str = "") -> Callable[[], str]:
    """Return a function that returns the name and version of a Python package installed for `interpreter` (default: the running one)."""
    command = f"from importlib.metadata import version; print(version({package!r}))"
    return lambda: f"{package} {_output(str(HOME / interpreter) if interpreter else sys.executable, '-c', command)}"


def _npm_version() -> str:
    package = HOME / "node/js/node_modules/mcp-proxy/package.json"
    return f"mcp-proxy {json.loads(package.read_text())['version']} on Node {_output(str(HOME / 'node/bin/node'), '--version')}"


def _output(*argv: str) -> str:
    done = subprocess.run(argv, capture_output=True, text=True, check=True, timeout=60)
    return (done.stdout or done.stderr).strip()


def _nginx_version() -> str:
    return _output("nginx", "-v").removeprefix("nginx version: ")


def _repository() -> str:
    return f"{version_of('moongate')()} (this repository)"


# -- the table -------------------------------------------------------------------------------------------------------

GATEWAY = Contender("gateway", "Moongate", gateway, installed, _repository)
RELAY = Contender(
    "relay",
    "tuned SDK relay",
    lambda place: python("-m", "benchmarks.relay", str(place.port), place.url),
    installed,
    version_of("mcp"),
)

UPSTREAM = Contender(
    "direct", "direct (no proxy)", lambda place: python("-m", "benchmarks.upstream", str(place.port), "2"), installed, _repository
)
"""The upstream server, called directly without a proxy."""

OVER_HTTP = [
    Contender("nginx", "nginx, plain `proxy_pass`", nginx, lambda: shutil.which("nginx"), _nginx_version),
    Contender(
        "nginx-large", "nginx, large buffers", lambda place: nginx(place, LARGE_BUFFERS), lambda: shutil.which("nginx"), _nginx_version
    ),
    Contender(
        "raw",
        "raw ASGI byte proxy",
        lambda place: python("-m", "benchmarks.raw", str(place.port), place.url),
        installed,
        version_of("uvicorn"),
    ),
    GATEWAY,
    RELAY,
    Contender("fastmcp", "FastMCP `create_proxy(url)`", _fastmcp, at("fastmcp/bin/fastmcp"), version_of("fastmcp", "fastmcp/bin/python")),
    Contender(
        "contextforge",
        "ContextForge, SQLite",
        contextforge,
        at("contextforge/bin/mcpgateway"),
        version_of("mcp-contextforge-gateway", "contextforge/bin/python"),
        reach_contextforge,
        register_with_contextforge,
        start_seconds=90.0,
    ),
]
"""Contenders that forward to an upstream HTTP server."""

OVER_STDIO = [
    GATEWAY,
    Contender(
        "mcp-proxy",
        "mcp-proxy (PyPI)",
        _mcp_proxy,
        at("mcp-proxy/bin/mcp-proxy"),
        version_of("mcp-proxy", "mcp-proxy/bin/python"),
        eras=("legacy",),
    ),
    Contender("npm-mcp-proxy", "mcp-proxy (npm)", _npm_mcp_proxy, at("node/js/node_modules/.bin/mcp-proxy"), _npm_version),
]
"""Contenders that forward HTTP requests to a stdio server."""

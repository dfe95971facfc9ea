"""Gateways of one user that share the default state folder: chains of them work, and circles of them are found and reported."""

from __future__ import annotations

import json
from collections.abc import Generator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args

import anyio
import pytest
from mcp.client.stdio import StdioServerParameters

from tests.cli.processes import moongate_process
from tests.fakes.running import ROOT, child, free_port, gateway_command, upstream_http, upstream_stdio, wait_until_ready
from tests.interaction.test_faults import marked
from tests.interaction.ways import Era, Way, connected

pytestmark = pytest.mark.timeout(120)
ERAS = get_args(Era)
LEGACY_LINKS = {"two", "piped", "round", "again"}
"""Servers that a gateway reaches with protocol version 2025-11-25; for all others it uses 2026-07-28."""


def text_of(result: Any) -> str:
    return result.content[0].text


@dataclass
class User:
    """A user whose gateways keep their state in the default folder, or below `$XDG_STATE_HOME` if `state` is set."""

    home: Path
    stack: ExitStack
    state: Path | None = None

    @property
    def env(self) -> dict[str, str]:
        return {"HOME": str(self.home), "XDG_STATE_HOME": str(self.state or "")}

    def write(self, name: str, servers: dict[str, Any], port: int = 0) -> Path:
        path = self.home / f"{name}.json"
        settings = {"startupTimeoutSeconds": 30, "http": {"port": port, "drainSeconds": 1, "allowedHosts": ["127.0.0.2:*"]}}
        policies = {name: {"connectTimeoutSeconds": 60, "era": "legacy" if name in LEGACY_LINKS else "auto"} for name in servers}
        path.write_text(json.dumps({"mcpServers": servers, "policies": policies, "server": settings}))
        return path

    def run(self, path: Path, *, port: int, host: str = "127.0.0.1", env: dict[str, str] | None = None) -> str:
        """Start a gateway over HTTP; returns the URL of its endpoint once it is ready."""
        log = self.home / f"{path.stem}-{host}-{port}.log"
        argv = ["-m", "gateway", "run", "--config", str(path), "--http", f"{host}:{port}"]
        process = self.stack.enter_context(child(*argv, env={**self.env, **(env or {})}, log=log))
        wait_until_ready(process, f"http://{host}:{port}/ready", log)
        return f"http://{host}:{port}/mcp"


def started(path: Path, mark: str) -> dict[str, Any]:
    """A `mcpServers` entry that starts a gateway over stdio, in a process that shows its environment."""
    command, args = gateway_command(path)
    return {"command": command, "args": args, "cwd": str(ROOT), "env": {"MARK": mark}}


def reached(url: str) -> dict[str, Any]:
    return {"type": "http", "url": url}


@dataclass(frozen=True)
class Chain:
    """A front with a chain of two gateways over HTTP, and chains of two and three over stdio and HTTP behind it."""

    url: str
    command: StdioServerParameters


@pytest.fixture(scope="module")
def chain(tmp_path_factory: pytest.TempPathFactory) -> Generator[Chain]:
    with ExitStack() as stack:
        user = User(tmp_path_factory.mktemp("chain"), stack)
        ports = {name: free_port() for name in ("behind", "middle", "front")}
        # One configuration at two addresses is two gateways.
        shared = user.write("shared", {"next": reached("${NEXT_URL}")})
        behind = user.run(shared, port=ports["behind"], env={"NEXT_URL": stack.enter_context(upstream_http())})
        middle = user.run(shared, port=ports["middle"], env={"NEXT_URL": behind})
        command, args = gateway_command(user.write("piped", {"near": reached(behind), "own": upstream_stdio()}))
        piped = {"command": command, "args": args, "cwd": str(ROOT)}
        servers = {"one": reached(behind), "two": reached(middle), "piped": piped}
        front = user.write("front", servers, ports["front"])
        url = user.run(front, port=ports["front"])
        command, args = gateway_command(front)
        yield Chain(url, StdioServerParameters(command=command, args=args, cwd=ROOT, env=user.env))
        assert (user.home / ".local/state/moongate/installation-key").exists()


@pytest.mark.parametrize("transport", ["http", "stdio"])
@pytest.mark.parametrize("era", ERAS)
async def test_two_and_three_gateways_of_one_user_chain(chain: Chain, transport: str, era: Era) -> None:
    target = chain.url if transport == "http" else chain.command
    async with connected(Way("http", era, "front"), target) as (client, _):
        names = {tool.name for tool in (await client.list_tools()).tools}
        for name in ("one__next__echo", "two__next__next__echo", "piped__own__echo", "piped__near__next__echo"):
            assert name in names
            assert text_of(await client.call_tool(name, {"text": name})) == name


@dataclass(frozen=True)
class Circle:
    """A gateway with one server of its own and four servers that lead back to the gateway."""

    url: str
    config: Path
    env: dict[str, str]
    mark: str
    log: Path

    def cli(self, *words: str) -> Any:
        return moongate_process(*words, "--config", str(self.config), cwd=self.config.parent, env=self.env)


@pytest.fixture(scope="module")
def circle(tmp_path_factory: pytest.TempPathFactory) -> Generator[Circle]:
    with ExitStack() as stack:
        user = User(tmp_path_factory.mktemp("circle"), stack, tmp_path_factory.mktemp("state"))
        ports = {name: free_port() for name in ("first", "second")}
        first, second = user.home / "first.json", f"http://127.0.0.1:{ports['second']}/mcp"
        mark = str(user.home / "mark")
        deeper = user.write("deeper", {"back": started(first, mark)})
        over_http = {"me": reached(f"http://127.0.0.1:{ports['first']}/mcp"), "round": reached(second)}
        over_stdio = {"again": started(first, mark), "deep": started(deeper, mark)}
        user.write("first", {"own": upstream_stdio(), **over_http, **over_stdio}, ports["first"])
        user.run(user.write("second", {"first": over_http["me"], "kept": upstream_stdio()}), port=ports["second"])
        url = user.run(first, port=ports["first"])
        yield Circle(url, first, user.env, mark, user.home / f"first-127.0.0.1-{ports['first']}.log")


SELF = {"me", "again"}
BACK = {"round", "deep"}


@pytest.mark.attack(35)
@pytest.mark.parametrize("era", ERAS)
async def test_status_tool_names_servers_that_lead_back(circle: Circle, era: Era) -> None:
    async with connected(Way("http", era, "first"), circle.url) as (client, _):
        names = {tool.name for tool in (await client.list_tools()).tools}
        assert {"own__echo", "round__kept__echo"} <= names
        assert not [name for name in names if name.startswith(("me__", "again__", "round__first__", "deep__back__"))]
        assert text_of(await client.call_tool("round__kept__echo", {"text": "across"})) == "across"
        via: Any = {"dev.moongate/via": [str(n) for n in range(8)]}
        refused = text_of(await client.call_tool("own__echo", {"text": "x"}, meta=via))
        said: dict[str, str] = {}
        with anyio.fail_after(30):  # the loop through `round` exists once both gateways have listed each other
            while not all("this gateway" in said.get(name, "") for name in SELF | BACK):
                status: Any = (await client.call_tool("gateway_status", {})).structured_content
                said = {source["name"]: source.get("error", "") for source in status["sources"]}
                await anyio.sleep(0.1)
    assert "'own' refused: it passed 8 gateways" in refused
    assert {name for name, text in said.items() if "is this gateway itself" in text} == SELF
    assert {name for name, text in said.items() if "leads back to this gateway" in text} == BACK
    assert all(f"mcpServers.{name}" in said[name] for name in SELF | BACK)
    assert not said["own"]
    with anyio.fail_after(30):
        while circle.log.read_text().count("loop between gateways server=me ") != 1:
            await anyio.sleep(0.1)
    assert len(marked(circle.mark)) == 3  # `again`, `deep` and what `deep` starts: none of them starts further ones


@pytest.mark.attack(35)
def test_list_and_doctor_name_servers_that_lead_back(circle: Circle) -> None:
    rows = {row["name"]: row["error"] or "" for row in circle.cli("list", "--json").data["sources"]}
    assert {name for name in rows if "this gateway" in rows[name]} == SELF | BACK
    tools = circle.cli("list", "tools")
    assert all(f"server {name!r}: " in tools.err for name in SELF | BACK)
    checks = circle.cli("doctor", "--json").data["checks"]
    loops = {check["subject"].rpartition(" ")[2]: check for check in checks if check["subject"].startswith("loop through server ")}
    expected = dict.fromkeys(SELF, "fail") | dict.fromkeys(BACK, "warn")
    assert {name: check["status"] for name, check in loops.items()} == expected, checks
    assert all(check["fix"] for check in loops.values())


def test_replicas_are_one_gateway(tmp_path: Path) -> None:
    with ExitStack() as stack:
        user, port = User(tmp_path, stack), free_port()
        path = user.write("site", {"peer": reached("http://${PEER}:" + f"{port}/mcp")}, port)
        hosts = ("127.0.0.1", "127.0.0.2")
        for host, peer in (hosts, hosts[::-1]):
            folder = tmp_path / host / "moongate"
            folder.mkdir(parents=True)
            (folder / "installation-key").write_bytes(bytes(range(32)))
            user.run(path, port=port, host=host, env={"PEER": peer, "XDG_STATE_HOME": str(tmp_path / host)})
        row = user_row(user, f"http://{hosts[1]}:{port}/mcp")
    assert "is this gateway itself" in row["error"]


def user_row(user: User, url: str) -> dict[str, Any]:
    return moongate_process("list", "--json", "--url", url, cwd=user.home, env=user.env).data["sources"][0]

"""A first job: two chained gateways of one user, in a fresh folder, with the `moongate` command and the default state folder.

The gateway behind serves a published server. The one in front reaches it over HTTP, and a third one starts it over stdio.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Generator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.accept import clients
from tests.accept.clients import Era, TypeScript, text_of
from tests.accept.test_servers import node_server
from tests.cli.processes import Ended
from tests.fakes.running import free_port, wait_until_ready

pytestmark = [pytest.mark.interop, pytest.mark.timeout(240)]

MOONGATE = str(Path(sys.executable).with_name("moongate"))
SECONDS = 80.0
"""Timeout of one command on a busy machine, in seconds."""


@dataclass(frozen=True)
class User:
    """A person with an empty home folder who runs commands in its folders."""

    home: Path

    @property
    def env(self) -> dict[str, str]:
        kept = {key: value for key, value in os.environ.items() if not key.startswith(("MOONGATE_", "XDG_", "OPENAI_"))}
        return {**kept, "HOME": str(self.home), "PATH": os.pathsep.join([str(Path(MOONGATE).parent), os.environ["PATH"]])}

    def types(self, folder: Path, *words: str) -> Ended:
        """Run one command to its end; it must succeed."""
        done = subprocess.run(
            [MOONGATE, *words], cwd=folder, env=self.env, capture_output=True, text=True, timeout=SECONDS, check=False
        )
        assert done.returncode == 0, done.stderr
        return Ended(done.returncode, done.stdout, done.stderr)

    def serves(self, stack: ExitStack, folder: Path, port: int) -> str:
        """Keep `moongate run` running in a terminal; return its endpoint's URL."""
        log = folder / "run.log"
        with log.open("wb") as stderr:
            process = subprocess.Popen([MOONGATE, "run", "--http", f":{port}"], cwd=folder, env=self.env, stderr=stderr)
        stack.callback(process.wait, SECONDS)
        stack.callback(process.terminate)
        wait_until_ready(process, f"http://127.0.0.1:{port}/ready", log, SECONDS)
        return f"http://127.0.0.1:{port}/mcp"


@dataclass(frozen=True)
class Chained:
    """The folders of the three gateways, and the endpoint of the front."""

    user: User
    front: Path
    piped: Path
    url: str
    files: Path


@pytest.fixture(scope="module")
def chained(tmp_path_factory: pytest.TempPathFactory) -> Generator[Chained]:
    if not clients.are_installed():
        pytest.skip(f"the clients are not installed in {clients.HOME}; run `make accept`")
    home = tmp_path_factory.mktemp("home")
    behind, front, piped, files = (home / name for name in ("behind", "front", "piped", "files"))
    for folder in (behind, front, piped, files):
        folder.mkdir()
    (files / "tides.txt").write_text("High water is at noon.")
    user, port, front_port = User(home), free_port(), free_port()
    published = node_server("filesystem", str(files))
    user.types(behind, "add", "files", "--", published["command"], *published["args"])
    user.types(front, "add", "hub", f"http://127.0.0.1:{port}/mcp")
    user.types(piped, "add", "hub", "--", "moongate", "run", "--stdio", "--config", str(behind / "gateway.json"))
    with ExitStack() as stack:
        user.serves(stack, behind, port)
        url = user.serves(stack, front, front_port)
        yield Chained(user, front, piped, url, files)


def test_commands_reach_server_behind_second_gateway_over_http(chained: Chained) -> None:
    user, where = chained.user, ("--url", chained.url)
    assert "hub__files__read_text_file" in user.types(chained.front, "list", "tools", *where).out
    rows = user.types(chained.front, "list", *where).out
    assert "hub" in rows and "this gateway" not in rows
    told = user.types(chained.front, "call", "hub__files__read_text_file", f"path={chained.files / 'tides.txt'}", *where)
    assert "High water is at noon." in told.out


def test_commands_reach_server_behind_second_gateway_over_stdio(chained: Chained) -> None:
    told = chained.user.types(chained.piped, "call", "hub__files__read_text_file", f"path={chained.files / 'tides.txt'}", "--standalone")
    assert "High water is at noon." in told.out
    checks = chained.user.types(chained.piped, "doctor").out
    assert "server hub: stdio" in checks and "loop" not in checks
    assert (chained.user.home / ".local/state/moongate/installation-key").exists()


def test_published_clients_reach_server_behind_second_gateway(chained: Chained, era: Era, tmp_path: Path) -> None:
    over_stdio: dict[str, Any] = {"command": MOONGATE, "args": ["run", "--stdio"], "cwd": str(chained.piped), "env": chained.user.env}
    for target in ({"type": "http", "url": chained.url}, over_stdio):
        client = TypeScript(tmp_path, target, era)
        assert "hub__files__read_text_file" in client.list_tools()
        result = client.call("hub__files__read_text_file", {"path": str(chained.files / "tides.txt")})
        assert text_of(result) == "High water is at noon."


def test_gateway_that_reaches_itself_is_named(chained: Chained) -> None:
    folder = chained.user.home / "self"
    folder.mkdir()
    port = free_port()
    chained.user.types(folder, "add", "hub", f"http://127.0.0.1:{port}/mcp")
    chained.user.types(folder, "add", "again", "--", "moongate", "run", "--stdio", "--config", str(folder / "gateway.json"))
    with ExitStack() as stack:
        url = chained.user.serves(stack, folder, port)
        rows = chained.user.types(folder, "list", "--url", url).out.splitlines()
    named = {row.split()[0] for row in rows if "is this gateway itself" in row}
    assert named == {"hub", "again"}

"""Runs third-party clients as their users run them: the MCP Inspector's command line and the TypeScript SDKs.

Each call starts a process that connects, runs its steps and exits. `setup.sh` installs the clients.
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

HOME = Path(os.environ.get("ACCEPT_HOME") or Path.home() / ".cache" / "moongate-accept")
NODE = HOME / "bin" / "node"
INSPECTOR = HOME / "js/node_modules/@modelcontextprotocol/inspector/clients/launcher/build/index.js"
CLIENT = Path(__file__).with_name("client.mjs")
TIMEOUT_SECONDS = 60

Era = Literal["legacy", "modern"]
Target = Mapping[str, Any]
"""An entry of `mcpServers`, as `moongate run` prints it."""


def are_installed() -> bool:
    """Whether `setup.sh` has run."""
    return NODE.exists() and INSPECTOR.exists()


@dataclass(frozen=True)
class Ended:
    """Exit code and output of a client process."""

    code: int
    out: str
    err: str


def run_node(*argv: str, cwd: Path) -> Ended:
    """Run a Node program until it exits, with a home folder of its own."""
    env = {**os.environ, "HOME": str(cwd), "ACCEPT_HOME": str(HOME), "NO_COLOR": "1"}
    done = subprocess.run([str(NODE), *argv], cwd=cwd, env=env, capture_output=True, text=True, timeout=TIMEOUT_SECONDS, check=False)
    return Ended(done.returncode, done.stdout, done.stderr)


class Inspector:
    """The Inspector in CLI mode, pointed at one server entry."""

    def __init__(self, folder: Path, target: Target, era: Era) -> None:
        self._folder = folder
        self._era = era
        (folder / "ide.json").write_text(json.dumps({"mcpServers": {"moongate": target}}))

    def run(self, method: str, *options: str) -> Ended:
        """Run one MCP method; `options` holds `--strict`, `--verify` and the method's options."""
        entry = ("--config", str(self._folder / "ide.json"), "--server", "moongate", "--protocol-era", self._era)
        how = ("--format", "json", "--quiet", "--method", method)
        return run_node(str(INSPECTOR), "--cli", *entry, *how, *options, cwd=self._folder)

    def list_tools(self) -> list[str]:
        """Return the tool names in the server's order."""
        return [tool["name"] for tool in self._result("tools/list")["tools"]]

    def call(self, name: str, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """Return the result of one tool call."""
        return self._result("tools/call", "--tool-name", name, "--tool-args-json", json.dumps(arguments))

    def read(self, uri: str) -> dict[str, Any]:
        """Return the result of one `resources/read`."""
        return self._result("resources/read", "--uri", uri)

    def _result(self, method: str, *options: str) -> dict[str, Any]:
        ended = self.run(method, *options)
        lines = [line for line in ended.out.splitlines() if line.startswith('{"result"')]
        assert lines, ended.err or ended.out
        return json.loads(lines[0])["result"]


class TypeScript:
    """The TypeScript SDK of one era: `@modelcontextprotocol/sdk` for 2025, `@modelcontextprotocol/client` for 2026."""

    def __init__(self, folder: Path, target: Target, era: Era) -> None:
        self._folder = folder
        self._target = target
        self._era = era

    def list_tools(self) -> list[str]:
        """Names in the server's order."""
        return self.run([["list"]])[0]

    def call(self, name: str, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """The result of one call."""
        return self.run([["call", name, arguments]])[0]

    def read(self, uri: str) -> dict[str, Any]:
        """The result of one `resources/read`."""
        return self.run([["read", uri]])[0]

    def run(self, steps: Sequence[Sequence[Any]]) -> list[Any]:
        """The results of several steps on one connection: `["list"]`, `["call", name, arguments]`, `["read", uri]`,
        `["watch", name, arguments, answer]`, `["task", name, arguments]`."""
        ended = run_node(str(CLIENT), self._era, json.dumps(self._target), json.dumps(steps), cwd=self._folder)
        assert ended.code == 0, ended.err
        return json.loads(ended.out)


def text_of(result: Mapping[str, Any]) -> str:
    """The first text block of a tool result."""
    return next(block["text"] for block in result["content"] if block["type"] == "text")

"""What the OAuth tests share: steering the scripted authorization server, configurations, and a browser that is a script."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx2

from tests.cli.processes import environment
from tests.fakes.auth_server import CLIENT, SECRET
from tests.fakes.nursery import sooner


def control(origin: str, **script: Any) -> None:
    """Change the script of the server at `origin`."""
    httpx2.post(f"{origin}/control", json=script).raise_for_status()


def told(origin: str) -> dict[str, list[dict[str, Any]]]:
    """Return the requests that the server at `origin` received: `log` (authorization) and `calls` (MCP)."""
    return httpx2.get(f"{origin}/log").json()


def token_requests(origin: str) -> list[dict[str, Any]]:
    return [entry for entry in told(origin)["log"] if entry["path"] == "/token"]


def credentials(issuer: str, **more: Any) -> dict[str, Any]:
    return {"type": "client-credentials", "issuer": issuer, "clientId": CLIENT, "clientSecret": "${ROBOT_SECRET}", **more}


def config(origin: str, auth: dict[str, Any], **policy: Any) -> dict[str, Any]:
    """One server `docs` at `origin` with this `auth`."""
    return {
        "mcpServers": {"docs": {"type": "http", "url": f"{origin}/mcp"}},
        "policies": {"docs": {"auth": auth, "connectTimeoutSeconds": 20, **policy}},
        "server": {"logLevel": "debug"},
    }


SIGNED_IN: dict[str, Any] = {"type": "authorization-code"}
ENV = {"ROBOT_SECRET": SECRET}


@contextmanager
def signing_in(file: Path, *options: str, env: dict[str, str] | None = None) -> Generator[tuple[subprocess.Popen[str], str, list[str]]]:
    """`moongate auth login docs` that waits for its browser; yields the process, the address and the lines before it."""
    command, args = sooner("gateway", "auth", "login", "docs", "--no-browser", "--config", str(file), *options)
    with subprocess.Popen(
        [command, *args], cwd=file.parent, env=environment(file.parent, env), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        try:
            assert process.stderr is not None
            lines: list[str] = []
            for line in process.stderr:
                lines.append(line.strip())
                if line.startswith(("http://", "https://", "error:", "{")):
                    break
            yield process, lines[-1], lines[:-1]
        finally:
            process.kill()


def ended(process: subprocess.Popen[str]) -> tuple[int, str, str]:
    """Wait for a login's end: its code, stdout and the rest of stderr."""
    out, err = process.communicate(timeout=30)
    return process.returncode, out, err


def sign_in(file: Path) -> None:
    """Sign in like a person with a browser; the scripted authorization server shows no form."""
    with signing_in(file) as (process, address, _):
        httpx2.get(address, follow_redirects=True).raise_for_status()
        code, _, err = ended(process)
        assert code == 0, err


def everything_under(folder: Path) -> bytes:
    """All files below, as one text to look for secrets in."""
    return b"".join(path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file())


def own_environment() -> dict[str, str]:
    return {**os.environ, **ENV}

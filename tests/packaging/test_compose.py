"""`compose.yaml`: valid by the published schema, and its parts run on this machine with the files and arguments that it gives them.

No test starts a container: names of services, ports and paths inside containers are replaced by those of this machine.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import ssl
import stat
import subprocess
import sysconfig
from collections.abc import Generator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import jsonschema_rs
import pytest
import yaml

from tests.fakes.postgres import postgres
from tests.fakes.running import ROOT, child, free_port, listens, until, upstream_http, wait_until_ready
from tests.packaging.smoke import call

DATA = Path(__file__).parent / "data"
ECHO = {"name": "up__echo", "arguments": {"text": "through nginx"}}


def composed() -> Any:
    """The content of compose.yaml; aliases are replaced by what they name."""
    return yaml.safe_load((ROOT / "compose.yaml").read_text(encoding="utf-8"))


def test_compose_file_is_valid_by_the_published_schema() -> None:
    schema = (DATA / "compose-spec.json").read_bytes()
    assert hashlib.sha256(schema).hexdigest() in (DATA / "README.md").read_text(encoding="utf-8")
    check = jsonschema_rs.validator_for(json.loads(schema))
    assert [error.message for error in check.iter_errors(composed())] == []
    broken = composed()
    broken["services"]["nginx"]["portz"] = []
    assert not check.is_valid(broken)


def test_compose_file_names_only_what_exists() -> None:
    found = composed()
    services = found["services"]
    assert set(services) == {"gateway-1", "gateway-2", "nginx", "postgres", "temporal"}
    for name, service in services.items():
        assert set(service.get("depends_on", {})) <= set(services), name
        assert set(service.get("secrets", [])) <= set(found["secrets"]), name
        for volume in service.get("volumes", []):
            source = volume.partition(":")[0]
            assert (ROOT / source).is_file() if source.startswith("./") else source in found["volumes"], volume


def test_every_service_for_clients_has_a_read_only_root_and_no_capabilities() -> None:
    services = composed()["services"]
    for name in ("gateway-1", "gateway-2", "nginx"):
        service = services[name]
        assert (service["read_only"], service["cap_drop"], service["tmpfs"]) == (True, ["ALL"], ["/tmp"]), name
        assert "no-new-privileges:true" in service["security_opt"], name


def test_images_of_others_have_a_full_version() -> None:
    services = composed()["services"]
    images = {name: services[name]["image"] for name in ("nginx", "postgres", "temporal")}
    assert all(re.fullmatch(r"docker\.io/[\w/]+:\d+\.\d+[\w.-]*", image) for image in images.values()), images
    base = re.search(r"^ARG PYTHON_IMAGE=docker\.io/library/python:(\S+)$", (ROOT / "Dockerfile").read_text(), re.MULTILINE)
    assert base is not None and re.fullmatch(r"\d+\.\d+\.\d+-slim-\w+", base[1])


def test_ports_are_published_on_loopback_only() -> None:
    published = [port for service in composed()["services"].values() for port in service.get("ports", [])]
    assert published and all(port.startswith("127.0.0.1:") for port in published)


def secrets_in(folder: Path) -> Path:
    """Let `deploy/up.sh` create its secrets below `folder`, and return the folder with the secrets."""
    (folder / "deploy").mkdir()
    shutil.copy(ROOT / "deploy" / "up.sh", folder / "deploy")
    subprocess.run(["bash", "deploy/up.sh", "--secrets-only"], cwd=folder, check=True, timeout=30)
    return folder / "deploy" / "secrets"


@pytest.mark.packaging
@pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl is missing")
def test_secrets_are_created_once_in_a_closed_folder(tmp_path: Path) -> None:
    folder = secrets_in(tmp_path)
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    assert set(before) == {"database-password", "tls.crt", "tls.key"}
    subprocess.run(["bash", "deploy/up.sh", "--secrets-only"], cwd=tmp_path, check=True, timeout=30)
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before


@contextmanager
def two_gateways(folder: Path, secrets: Path, database: str, upstream: str, engine: str) -> Generator[tuple[list[int], list[Any], str]]:
    """Start both gateways as compose.yaml does, with one state folder; yield their ports, their processes and an API key."""
    text = (ROOT / "deploy" / "gateway.json").read_text(encoding="utf-8")
    replaced = {
        '"mcpServers": {}': json.dumps({"mcpServers": {"up": {"type": "http", "url": upstream}}})[1:-1],
        "/run/secrets/": f"{secrets}/",
        "@postgres/moongate": database.partition("moongate")[2],
        "temporal:7233": engine,
    }
    for before, after in replaced.items():
        assert before in text
        text = text.replace(before, after)
    path = folder / "gateway.json"
    path.write_text(text)
    env = {"HOME": str(folder), "XDG_STATE_HOME": str(folder / "state")}
    argv = ["-m", "gateway", "keys", "add", "first", "--config", str(path)]
    with child(*argv, env=env, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        key = process.stdout.readline().decode().strip()
        assert process.wait(30) == 0
    ports, processes = [free_port(), free_port()], list[Any]()
    with ExitStack() as stack:
        for number, port in enumerate(ports, 1):
            command = composed()["services"][f"gateway-{number}"]["command"]
            assert command[-1] == "0.0.0.0:8765"
            log = folder / f"gateway-{number}.log"
            argv = ["-m", "gateway", *command[:-1], f"127.0.0.1:{port}", "--config", str(path)]
            processes.append(stack.enter_context(child(*argv, env=env, log=log)))
            wait_until_ready(processes[-1], f"http://127.0.0.1:{port}/ready", log, 60)
        yield ports, processes, key


@contextmanager
def nginx(folder: Path, secrets: Path, gateways: list[int]) -> Generator[int]:
    """Run nginx with deploy/nginx.conf, and yield the port on which it listens. The gateways have fixed addresses."""
    text = (ROOT / "deploy" / "nginx.conf").read_text(encoding="utf-8")
    text, removed = re.subn(r" resolve(?= max_fails)|^ +resolver .+$", "", text, flags=re.MULTILINE)
    assert removed == 3
    for number, gateway in enumerate(gateways, 1):
        text = text.replace(f"gateway-{number}:8765", f"127.0.0.1:{gateway}")
    with nginx_with(folder, secrets, text) as port:
        yield port


@contextmanager
def nginx_with(folder: Path, secrets: Path, text: str) -> Generator[int]:
    """Run nginx with this text of deploy/nginx.conf, whose places inside the container are replaced, and yield its port."""
    port = free_port()
    text = text.replace("/tmp/", f"{folder}/").replace("/run/secrets/", f"{secrets}/").replace("8443 ssl", f"127.0.0.1:{port} ssl")
    path = folder / "nginx.conf"
    path.write_text(text)
    user = ["user root;"] if os.geteuid() == 0 else []
    argv = ["nginx", "-c", str(path), "-g", " ".join(["daemon off;", *user])]
    checked = subprocess.run([*argv, "-t"], capture_output=True, text=True, timeout=20, check=False)
    assert checked.returncode == 0, checked.stderr
    process = subprocess.Popen(argv, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        until(lambda: listens(str(port)))
        yield port
    finally:
        process.terminate()
        process.wait(20)


def temporal() -> str | None:
    """The path of Temporal's command line: beside this Python, or on PATH."""
    beside = Path(sysconfig.get_path("scripts"), "temporal")
    return str(beside) if beside.exists() else shutil.which("temporal")


@contextmanager
def temporal_server(folder: Path) -> Generator[str]:
    """Run Temporal with the arguments of compose.yaml, check that it is healthy as compose.yaml does, and yield its address."""
    port, pages = free_port(), free_port()
    replaced = {"0.0.0.0": "127.0.0.1", "/data/temporal.db": str(folder / "temporal.db")}
    service = composed()["services"]["temporal"]
    given = [replaced.get(argument, argument) for argument in map(str, service["command"])]
    argv = [str(temporal()), *given, "--port", str(port), "--ui-port", str(pages), "--http-port", str(free_port())]
    process = subprocess.Popen(argv, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        until(lambda: process.poll() is None and listens(str(port)) and listens(str(pages)))
        kind, program, *check = map(str, service["healthcheck"]["test"])
        assert (kind, program) == ("CMD", "temporal")
        healthy = subprocess.run([str(temporal()), *check, "--address", f"127.0.0.1:{port}"], capture_output=True, timeout=20, check=False)
        assert healthy.returncode == 0, healthy.stderr
        yield f"127.0.0.1:{port}"
    finally:
        process.terminate()
        process.wait(20)


@pytest.mark.packaging
@pytest.mark.postgres
@pytest.mark.timeout(240)
@pytest.mark.skipif(None in (shutil.which("nginx"), shutil.which("openssl"), temporal()), reason="nginx, openssl or Temporal is missing")
def test_either_gateway_behind_nginx_answers_also_after_one_died(tmp_path: Path) -> None:
    secrets = secrets_in(tmp_path)
    with ExitStack() as stack:
        database = stack.enter_context(postgres()).database("compose")
        upstream = stack.enter_context(upstream_http())
        engine = stack.enter_context(temporal_server(tmp_path))
        ports, processes, key = stack.enter_context(two_gateways(tmp_path, secrets, database, upstream, engine))
        port = stack.enter_context(nginx(tmp_path, secrets, ports))
        trusted = ssl.create_default_context(cafile=str(secrets / "tls.crt"))
        url = f"https://localhost:{port}/mcp"
        for _ in range(10):
            assert "through nginx" in json.dumps(call(url, key=key, tool=ECHO, tls=trusted))
        connections = [_open_connections(port) for port in ports]
        assert all(connections), connections
        processes[0].kill()
        processes[0].wait(30)
        for _ in range(10):
            assert "through nginx" in json.dumps(call(url, key=key, tool=ECHO, tls=trusted))


def _open_connections(port: int) -> int:
    """How many connections from nginx a gateway has, by the system's table of sockets. nginx keeps them open after a request."""
    table = Path("/proc/net/tcp").read_text(encoding="ascii")
    return len(re.findall(rf"^ *\d+: 0100007F:{port:04X} 0100007F:\w+ 01 ", table, re.MULTILINE))


@pytest.mark.packaging
@pytest.mark.skipif(temporal() is None, reason="Temporal's command line is missing")
def test_temporal_starts_with_the_arguments_of_the_compose_file(tmp_path: Path) -> None:
    with temporal_server(tmp_path):
        assert (tmp_path / "temporal.db").exists()

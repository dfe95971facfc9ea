"""Checks an image that `deploy/build-image.sh` built: `python -m tests.packaging.image FOLDER`. Needs Linux and root.

The image runs in namespaces of its own for mounts, processes and the network, as its own user, without rights, with a read-only root
file system. Only the volume and /tmp can be written. Checked are the user, the health check over HTTP and HTTPS, a call with an API key,
that nothing else was written, the stop, the packages in the SBOM, and the compressed size. `buildah run` has no read-only root, so it is
not used.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.packaging.smoke import call

MAX_MEGABYTES = 200
"""Maximum size of the compressed image, in units of 1,000,000 bytes."""

URL = "http://127.0.0.1:8765"
START_SECONDS = 120.0
PACKAGES = {
    "pkg:pypi": {"mcp", "uvloop", "sqlalchemy", "psycopg", "opentelemetry-sdk", "temporalio", "obstore", "cedarpy", "moongate"},
    "pkg:deb": {"libc6", "libssl3", "openssl", "ca-certificates", "dpkg"},
    "pkg:generic": {"python"},
}
"""Packages that the SBOM must list, among others, by the beginning of their package URL."""


class Image:
    """The files and the configuration of a built image, with a folder for its volume."""

    def __init__(self, folder: Path) -> None:
        self.root = folder / "rootfs"
        self.config: Mapping[str, Any] = json.loads((folder / "config.json").read_text(encoding="utf-8"))
        self.state = folder / "state"

    def mount(self) -> None:
        """Mount the root read-only, and an empty volume and /tmp over it. For a process with a mount namespace of its own."""
        user, _, group = self.config["User"].partition(":")
        subprocess.run(["rm", "-rf", str(self.state)], check=True)
        self.state.mkdir(mode=0o700)
        os.chown(self.state, int(user), int(group))
        root = str(self.root)
        for argv in (
            ["--bind", root, root],
            ["-o", "remount,bind,ro", root],
            ["--bind", str(self.state), f"{root}/var/lib/moongate"],
            ["-t", "tmpfs", "-o", "mode=1777,nosuid,nodev", "tmpfs", f"{root}/tmp"],
            ["-t", "proc", "proc", f"{root}/proc"],
            ["--rbind", "/dev", f"{root}/dev"],
        ):
            subprocess.run(["mount", *argv], check=True)
        subprocess.run(["ip", "link", "set", "lo", "up"], check=True)

    def command(self, argv: Sequence[str]) -> list[str]:
        """Return the command that runs `argv` as the image's user, in its working folder, with its environment and nothing else."""
        inside = f'cd {self.config["WorkingDir"]} && exec "$@"'
        isolated = ["setpriv", "--no-new-privs", "chroot", f"--userspec={self.config['User']}", str(self.root)]
        return [*isolated, "/usr/bin/env", "-i", *self.config["Env"], "/bin/sh", "-c", inside, "sh", *argv]

    def run(self, argv: Sequence[str]) -> subprocess.CompletedProcess[str]:
        """Run a command in the image until it ends."""
        return subprocess.run(self.command(argv), capture_output=True, text=True, timeout=START_SECONDS, check=False)


def check(image: Image) -> dict[str, Any]:
    """Run the image, and return what was measured. Raises `AssertionError` if a check fails."""
    image.mount()
    made = image.run([*image.config["Entrypoint"], "keys", "add", "first"])
    assert made.returncode == 0, made.stderr
    refused = image.run(["touch", "/opt/moongate/x"])
    assert "Read-only file system" in refused.stderr, refused
    with running(image) as (process, seconds):
        answer = call(f"{URL}/mcp", key=made.stdout.strip())
        assert not answer["result"].get("isError"), answer
        owner = Path(f"/proc/{process.pid}").stat().st_uid
        memory = next(line for line in Path(f"/proc/{process.pid}/status").read_text().splitlines() if line.startswith("VmRSS"))
    with running(image, with_tls(image)):
        pass
    return {"seconds until healthy": round(seconds, 1), "user": owner, "resident": memory.split(maxsplit=1)[1]}


@contextmanager
def running(image: Image, arguments: Sequence[str] = ()) -> Generator[tuple[subprocess.Popen[bytes], float]]:
    """Run the image until its health check passes; yield the process and the seconds that this took. Afterwards check that it stops."""
    health = image.config["Healthcheck"]["Test"]
    assert health[0] == "CMD"
    assert image.run(health[1:]).returncode == 1, "the health check passes without a gateway"
    started = time.monotonic()
    with (image.state.parent / "gateway.log").open("ab") as log:
        process = subprocess.Popen(image.command([*image.config["Entrypoint"], *image.config["Cmd"], *arguments]), stdout=log, stderr=log)
    try:
        while image.run(health[1:]).returncode != 0:
            assert process.poll() is None and time.monotonic() - started < START_SECONDS, "the gateway did not become healthy"
        yield process, time.monotonic() - started
        process.terminate()
        assert process.wait(30) == 0, "the gateway did not stop with exit code 0"
    finally:
        process.kill()


def with_tls(image: Image) -> list[str]:
    """Write a configuration with a self-signed certificate into the volume, and return the arguments that name it."""
    user, _, group = image.config["User"].partition(":")
    key, certificate, configuration = (image.state / name for name in ("key.pem", "cert.pem", "tls.json"))
    argv = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "1", "-subj", "/CN=hub.example.com"]
    subprocess.run([*argv, "-keyout", str(key), "-out", str(certificate)], check=True, capture_output=True)
    tls = {"certificate": certificate.name, "key": key.name}
    configuration.write_text(json.dumps({"mcpServers": {}, "server": {"http": {"tls": tls}}}), encoding="utf-8")
    for path in (key, certificate, configuration):
        os.chown(path, int(user), int(group))
    return ["--config", f"/var/lib/moongate/{configuration.name}"]


def sbom_packages(path: Path) -> dict[str, set[str]]:
    """Return the names of the packages in a CycloneDX file, by the beginning of their package URL, such as `pkg:deb`."""
    document = json.loads(path.read_text(encoding="utf-8"))
    assert document["bomFormat"] == "CycloneDX"
    found: dict[str, set[str]] = {}
    for component in document["components"]:
        kind = component.get("purl", "").partition("/")[0]
        found.setdefault(kind, set()).add(component["name"].lower().replace("_", "-"))
    return found


def check_sbom(folder: Path) -> dict[str, int]:
    """Check that the SBOM lists the packages of Python and of Debian, each of those that are installed, and return their numbers."""
    found = sbom_packages(folder / "sbom.cdx.json")
    for kind, names in PACKAGES.items():
        assert found[kind] >= names, names - found[kind]
    installed = {path.name.partition(".list")[0].partition(":")[0] for path in (folder / "rootfs/var/lib/dpkg/info").glob("*.list")}
    assert found["pkg:deb"] == installed, found["pkg:deb"] ^ installed
    assert (folder / "rootfs/opt/moongate/share/moongate/sbom.cdx.json").read_bytes() == (folder / "sbom.cdx.json").read_bytes()
    return {kind: len(names) for kind, names in found.items() if kind in PACKAGES}


def check_manifest(folder: Path) -> float:
    """Check that the stored image has the health check and the user, and return its compressed size in MB."""
    layout = folder / "image"
    manifest = json.loads((layout / "manifest.json").read_text(encoding="utf-8"))
    stored = json.loads((layout / manifest["config"]["digest"].partition(":")[2]).read_text(encoding="utf-8"))["config"]
    configured = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    for name in ("User", "Healthcheck", "Entrypoint", "Cmd"):
        assert stored[name] == configured[name], name
    assert all(layer["mediaType"].endswith("gzip") for layer in manifest["layers"]), manifest["layers"]
    megabytes = sum(layer["size"] for layer in manifest["layers"]) / 1_000_000
    assert megabytes <= MAX_MEGABYTES, f"the compressed image has {megabytes:.0f} MB"
    return round(megabytes, 1)


def main() -> None:
    """Check the image in new namespaces, and print the figures as one JSON line."""
    folder = Path(sys.argv[-1]).absolute()
    if sys.argv[1] != "--inside":
        isolated = ["unshare", "--mount", "--net", "--pid", "--fork", "--mount-proc", "--kill-child"]
        argv = [*isolated, sys.executable, "-m", "tests.packaging.image"]
        raise SystemExit(subprocess.run([*argv, "--inside", str(folder)], check=False).returncode)
    print(json.dumps({"compressed MB": check_manifest(folder), "packages": check_sbom(folder), **check(Image(folder))}))


if __name__ == "__main__":
    main()

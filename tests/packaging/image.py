"""Checks an image that `deploy/build-image.sh` built: `python -m tests.packaging.image FOLDER`. Needs Linux and root.

The image runs in namespaces of its own for mounts, processes and the network, as its own user, without rights, with a read-only root
file system. Only the volume and /tmp can be written. Checked are the user, the health check, a call with an API key, that nothing else was
written, the stop, the packages in the SBOM, and the compressed size. `buildah run` has no read-only root, so it is not used.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tests.packaging.smoke import call

MAX_MEGABYTES = 200
"""Maximum size of the compressed image, in units of 1,000,000 bytes."""

URL = "http://127.0.0.1:8765"
START_SECONDS = 120.0
PACKAGES = {"mcp", "uvloop", "sqlalchemy", "psycopg", "opentelemetry-sdk", "moongate"}
"""Packages that the SBOM must list, among others."""


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
    entrypoint, arguments = image.config["Entrypoint"], image.config["Cmd"]
    health = image.config["Healthcheck"]["Test"]
    assert health[0] == "CMD"
    made = image.run([*entrypoint, "keys", "add", "first"])
    assert made.returncode == 0, made.stderr
    refused = image.run(["touch", "/opt/moongate/x"])
    assert "Read-only file system" in refused.stderr, refused
    started = time.monotonic()
    with (image.state.parent / "gateway.log").open("wb") as log:
        process = subprocess.Popen(image.command([*entrypoint, *arguments]), stdout=log, stderr=log)
    try:
        while image.run(health[1:]).returncode != 0:
            assert process.poll() is None and time.monotonic() - started < START_SECONDS, "the gateway did not become healthy"
        seconds = time.monotonic() - started
        answer = call(f"{URL}/mcp", key=made.stdout.strip())
        assert not answer["result"].get("isError"), answer
        owner = Path(f"/proc/{process.pid}").stat().st_uid
        memory = next(line for line in Path(f"/proc/{process.pid}/status").read_text().splitlines() if line.startswith("VmRSS"))
        process.terminate()
        assert process.wait(30) == 0, "the gateway did not stop with exit code 0"
    finally:
        process.kill()
    assert image.run(health[1:]).returncode == 1, "the health check passes without a gateway"
    return {"seconds until healthy": round(seconds, 1), "user": owner, "resident": memory.split(maxsplit=1)[1]}


def sbom_packages(path: Path) -> set[str]:
    """Return the names of the packages in a CycloneDX file."""
    document = json.loads(path.read_text(encoding="utf-8"))
    assert document["bomFormat"] == "CycloneDX"
    return {component["name"].lower().replace("_", "-") for component in document["components"]}


def main() -> None:
    """Check the image in new namespaces, and print the figures as one JSON line."""
    folder = Path(sys.argv[-1]).absolute()
    if sys.argv[1] != "--inside":
        isolated = ["unshare", "--mount", "--net", "--pid", "--fork", "--mount-proc", "--kill-child"]
        argv = [*isolated, sys.executable, "-m", "tests.packaging.image"]
        raise SystemExit(subprocess.run([*argv, "--inside", str(folder)], check=False).returncode)
    megabytes = (folder / "image.tar").stat().st_size / 1_000_000
    packages = sbom_packages(folder / "sbom.cdx.json")
    assert packages >= PACKAGES, PACKAGES - packages
    assert megabytes <= MAX_MEGABYTES, f"the compressed image has {megabytes:.0f} MB"
    print(json.dumps({"compressed MB": round(megabytes, 1), "packages in the SBOM": len(packages), **check(Image(folder))}))


if __name__ == "__main__":
    main()

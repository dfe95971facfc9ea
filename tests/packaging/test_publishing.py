"""The scripts of the release workflow: the chart is packaged, and chart and image are pushed to a registry on this machine."""

from __future__ import annotations

import gzip
import hashlib
import json
import os
import shutil
import subprocess
import urllib.request
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.fakes.running import ROOT, free_port, listens, until
from tests.packaging.test_chart import helm, needs_helm

pytestmark = pytest.mark.packaging

REGISTRY, SKOPEO = shutil.which("docker-registry"), shutil.which("skopeo")
MANIFEST = "application/vnd.docker.distribution.manifest.v2+json"


def script(name: str, *arguments: object, **env: str) -> subprocess.CompletedProcess[str]:
    argv = ["bash", str(ROOT / "deploy" / name), *map(str, arguments)]
    env = {**os.environ, "HELM": str(helm()), **env}
    return subprocess.run(argv, env=env, capture_output=True, text=True, timeout=60, check=False)


def packaged(folder: Path, version: str, repository: str) -> Path:
    """Package the chart, and return its archive."""
    done = script("package-chart.sh", version, repository, folder)
    assert done.returncode == 0, done.stderr
    (archive,) = folder.glob("moongate-*.tgz")
    return archive


@needs_helm
@pytest.mark.parametrize(("version", "of_chart"), [("0.2.0", "0.2.0"), ("0.2.0rc1", "0.2.0-rc.1")])
def test_packaged_chart_uses_the_image_of_its_version(tmp_path: Path, version: str, of_chart: str) -> None:
    archive = packaged(tmp_path, version, "ghcr.io/acme/hub")
    assert archive.name == f"moongate-{of_chart}.tgz"
    done = subprocess.run([str(helm()), "template", "hub", str(archive)], capture_output=True, text=True, timeout=60, check=True)
    (deployment,) = [found for found in yaml.safe_load_all(done.stdout) if found and found["kind"] == "Deployment"]
    assert deployment["spec"]["template"]["spec"]["containers"][0]["image"] == f"ghcr.io/acme/hub:{version}"


@contextmanager
def registry(folder: Path) -> Generator[str]:
    """Run a registry on this machine, and yield its address."""
    address = f"127.0.0.1:{free_port()}"
    path = folder / "registry.yml"
    storage = {"filesystem": {"rootdirectory": str(folder / "registry")}}
    path.write_text(json.dumps({"version": 0.1, "storage": storage, "http": {"addr": address}}))
    process = subprocess.Popen([str(REGISTRY), "serve", str(path)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        until(lambda: listens(address.partition(":")[2]))
        yield address
    finally:
        process.terminate()
        process.wait(20)


def image_in(folder: Path) -> str:
    """Write an image with one empty layer, in the form that `deploy/build-image.sh` leaves, and return its digest."""
    layout = folder / "image"
    layout.mkdir(parents=True)
    (layout / "version").write_text("Directory Transport Version: 1.1\n")

    def stored(content: bytes, kind: str) -> dict[str, Any]:
        name = hashlib.sha256(content).hexdigest()
        (layout / name).write_bytes(content)
        return {"mediaType": f"application/vnd.docker.{kind}", "size": len(content), "digest": f"sha256:{name}"}

    layer = bytes(1024)
    health = {"Test": ["CMD", "true"]}
    configuration = {
        "architecture": "amd64",
        "os": "linux",
        "config": {"Healthcheck": health},
        "rootfs": {"type": "layers", "diff_ids": [f"sha256:{hashlib.sha256(layer).hexdigest()}"]},
    }
    manifest = {
        "schemaVersion": 2,
        "mediaType": MANIFEST,
        "config": stored(json.dumps(configuration).encode(), "container.image.v1+json"),
        "layers": [stored(gzip.compress(layer, mtime=0), "image.rootfs.diff.tar.gzip")],
    }
    text = json.dumps(manifest).encode()
    (layout / "manifest.json").write_bytes(text)
    digest = f"sha256:{hashlib.sha256(text).hexdigest()}"
    (folder / "digest").write_text(digest + "\n")
    return digest


def read(url: str) -> Any:
    accepted = {"Accept": f"{MANIFEST}, application/vnd.oci.image.manifest.v1+json"}
    with urllib.request.urlopen(urllib.request.Request(url, headers=accepted), timeout=10) as answer:
        return json.loads(answer.read())


@needs_helm
@pytest.mark.skipif(None in (REGISTRY, SKOPEO), reason="docker-registry or skopeo is missing")
def test_pushed_image_and_chart_have_the_digests_that_were_signed(tmp_path: Path) -> None:
    digest = image_in(tmp_path / "built")
    with registry(tmp_path) as address:
        archive = packaged(tmp_path, "0.2.0", f"{address}/acme/hub")
        done = script("push.sh", tmp_path / "built", archive, f"{address}/acme/hub", "0.2.0", PLAIN_HTTP="1")
        assert done.returncode == 0 and f"with {digest}" in done.stdout, done.stderr
        image = read(f"http://{address}/v2/acme/hub/manifests/{digest}")
        assert read(f"http://{address}/v2/acme/hub/manifests/0.2.0") == image
        assert read(f"http://{address}/v2/acme/hub/blobs/{image['config']['digest']}")["config"]["Healthcheck"] == {"Test": ["CMD", "true"]}
        (layer,) = read(f"http://{address}/v2/acme/hub/chart/moongate/manifests/0.2.0")["layers"]
        assert layer["digest"] == f"sha256:{hashlib.sha256(archive.read_bytes()).hexdigest()}"

"""The program that completes the SBOM of the image. `image.py` compares the SBOM of a built image with what is installed in it."""

from __future__ import annotations

import json
import platform
import runpy
from collections.abc import Callable
from typing import Any, cast

import pytest

from tests.fakes.running import ROOT

PROGRAM = runpy.run_path(str(ROOT / "deploy" / "sbom.py"))
added = cast("Callable[[dict[str, Any], str, str], dict[str, Any]]", PROGRAM["added"])

PYTHON = [
    {"type": "library", "bom-ref": "mcp==2.0.0", "name": "mcp", "version": "2.0.0", "purl": "pkg:pypi/mcp@2.0.0"},
    {"type": "library", "bom-ref": "moongate==0.1.0", "name": "moongate", "version": "0.1.0", "externalReferences": [{"url": "file:///src"}]},
]
RELEASE = 'PRETTY_NAME="Debian GNU/Linux 12 (bookworm)"\nVERSION_ID="12"\nID=debian\n'
STATUS = """Package: libstdc++6
Status: install ok installed
Architecture: amd64
Multi-Arch: same
Version: 1:12.2.0-14+deb12u1
Description: GNU Standard C++ Library
 This package contains: a library.

Package: gone
Status: deinstall ok config-files
Architecture: amd64
Version: 1

Package: base-files
Status: install ok installed
Architecture: all
Version: 12.4
"""


def packages() -> dict[str, str]:
    """The package URLs by name; of those with the same name, that of the environment, not that beside the interpreter of this test."""
    document = added({"bomFormat": "CycloneDX", "components": PYTHON}, STATUS, RELEASE)
    assert document["bomFormat"] == "CycloneDX"
    return {component["name"]: component.get("purl", "") for component in reversed(document["components"])}


def test_sbom_lists_installed_packages_of_debian_with_their_urls() -> None:
    found = packages()
    assert found["libstdc++6"] == "pkg:deb/debian/libstdc%2B%2B6@1%3A12.2.0-14%2Bdeb12u1?arch=amd64&distro=debian-12"
    assert found["base-files"] == "pkg:deb/debian/base-files@12.4?arch=all&distro=debian-12"
    assert "gone" not in found


def test_sbom_lists_python_packages_the_gateway_and_the_interpreter() -> None:
    found = packages()
    assert (found["mcp"], found["moongate"]) == ("pkg:pypi/mcp@2.0.0", "pkg:pypi/moongate@0.1.0")
    assert found["python"] == f"pkg:generic/python@{platform.python_version()}"
    assert "file:///" not in json.dumps(added({"components": PYTHON}, STATUS, RELEASE))


@pytest.mark.parametrize("status", ["", STATUS.replace("install ok installed", "deinstall ok config-files")])
def test_sbom_is_not_written_without_packages_of_the_system(status: str) -> None:
    with pytest.raises(ValueError, match="use a base image of Debian or Ubuntu"):
        added({"components": PYTHON}, status, RELEASE)

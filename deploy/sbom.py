"""Adds what the Python environment does not contain to an SBOM: `python3 deploy/sbom.py FILE`, for the Dockerfile.

FILE is a CycloneDX document with the Python packages of the gateway. Added are the packages of Debian (`dpkg`), the operating system, the
interpreter that runs this program, and the Python packages beside it. So the document covers the whole image. Needs only the standard
library. The program fails if the image has no packages of Debian, because its SBOM would then be incomplete.
"""

from __future__ import annotations

import json
import platform
import sys
from importlib.metadata import distributions
from pathlib import Path
from typing import Any
from urllib.parse import quote

Component = dict[str, Any]

STATUS = Path("/var/lib/dpkg/status")
"""The database of installed packages."""

RELEASE = Path("/etc/os-release")


def stanzas(text: str) -> list[dict[str, str]]:
    """Return the fields of each paragraph of a file in Debian's control format; continued lines are left out."""
    def fields(paragraph: str) -> dict[str, str]:
        return dict(line.split(": ", 1) for line in paragraph.splitlines() if ": " in line and not line.startswith((" ", "\t")))

    return [fields(paragraph) for paragraph in text.split("\n\n") if paragraph.strip()]


def os_release(text: str) -> dict[str, str]:
    """Return the variables of `/etc/os-release` without their quotes."""
    return {name: value.strip("\"'") for name, _, value in (line.partition("=") for line in text.splitlines()) if value}


def debian_components(status: str, release: dict[str, str]) -> list[Component]:
    """Return one component for each installed package of Debian, sorted by name, after one for the operating system."""
    distribution, version = release.get("ID", "debian"), release.get("VERSION_ID", "")
    found = [{"type": "operating-system", "name": distribution, "version": version, "bom-ref": f"os:{distribution}@{version}"}]
    for package in sorted(stanzas(status), key=lambda fields: fields.get("Package", "")):
        if package.get("Status") != "install ok installed":
            continue
        query = f"arch={package['Architecture']}&distro={distribution}-{version}"
        purl = f"pkg:deb/{distribution}/{quote(package['Package'])}@{quote(package['Version'], safe='')}?{query}"
        found.append({"type": "library", "name": package["Package"], "version": package["Version"], "purl": purl, "bom-ref": purl})
    return found


def interpreter_components() -> list[Component]:
    """Return components for the interpreter that runs this program, and for the Python packages that it can import."""
    version = platform.python_version()
    found = [{"type": "platform", "name": "python", "version": version, "purl": f"pkg:generic/python@{version}"}]
    for item in sorted(distributions(), key=lambda item: item.name.lower()):
        name = item.name.lower().replace("_", "-")
        found.append({"type": "library", "name": name, "version": item.version, "purl": f"pkg:pypi/{name}@{item.version}"})
    return [component | {"bom-ref": f"interpreter:{component['purl']}"} for component in found]


def published(component: Component) -> Component:
    """Return a component with a package URL. The gateway has none, because it was installed from a folder of the build."""
    given = {name: value for name, value in component.items() if name != "externalReferences"}
    return component if "purl" in component else given | {"purl": f"pkg:pypi/{component['name']}@{component['version']}"}


def added(document: Component, status: str, release: str) -> Component:
    """Return the document with the components of the image; `status` and `release` are the contents of the two files.

    Raises:
        ValueError: `status` names no installed package, or the document already has a component with the same reference.
    """
    system = debian_components(status, os_release(release))
    if len(system) < 2:
        raise ValueError(f"{STATUS} names no installed package: use a base image of Debian or Ubuntu")
    components = [*map(published, document["components"]), *system, *interpreter_components()]
    references = [component["bom-ref"] for component in components]
    if len(set(references)) < len(references):
        raise ValueError("two components have the same bom-ref")
    return document | {"components": components}


def main() -> None:
    """Rewrite the file in the arguments."""
    path = Path(sys.argv[1])
    status = STATUS.read_text(encoding="utf-8") if STATUS.exists() else ""
    release = RELEASE.read_text(encoding="utf-8") if RELEASE.exists() else ""
    document = added(json.loads(path.read_text(encoding="utf-8")), status, release)
    path.write_text(json.dumps(document, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()

"""Prints the changelog section of a release, and checks that the tag, the version and the changelog belong together.

    python .ci/release_notes.py v0.1.0

The release workflow runs it before it builds anything, and uses what it prints as the text of the release. It needs no packages.
"""

from __future__ import annotations

import re
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]

_TAG = re.compile(r"v(\d+\.\d+\.\d+(?:(?:a|b|rc)\d+)?)")
_HEADING = re.compile(r"^## (.+)$", re.MULTILINE)


class NotReady(Exception):
    """The repository is not in the state that a release needs."""


def notes(tag: str, changelog: str, versions: dict[str, str]) -> str:
    """Return the text of the changelog's section for a tag such as `v0.1.0`.

    The heading of the section begins with the version, and may end with a date: `## 0.1.0 (2026-12-01)`. `versions` are the versions that
    files of the repository state, by the name of the file.

    Raises:
        NotReady: The tag is malformed, a file has another version, or the section is missing, empty or not unique.
    """
    matched = _TAG.fullmatch(tag)
    if matched is None:
        raise NotReady(f"The tag {tag!r} is not a version, like v0.1.0 or v0.2.0rc1.")
    version = matched[1]
    for name, stated in versions.items():
        if stated != version:
            raise NotReady(f"{name} has version {stated}, and the tag is {tag}. Set the version, and tag that commit.")
    headings = list(_HEADING.finditer(changelog))
    found = [number for number, heading in enumerate(headings) if re.split(r"[\s(]", heading[1], maxsplit=1)[0].strip("[]") == version]
    if len(found) != 1:
        raise NotReady(f"CHANGELOG.md has {len(found)} sections for {version}. Rename `## Unreleased` to `## {version} (YYYY-MM-DD)`.")
    [number] = found
    end = headings[number + 1].start() if number + 1 < len(headings) else len(changelog)
    text = changelog[headings[number].end() : end].strip()
    if not re.search(r"^- ", text, re.MULTILINE):
        raise NotReady(f"The section for {version} in CHANGELOG.md lists no changes.")
    return text


def stated_versions() -> dict[str, str]:
    """Return the versions in `pyproject.toml` and in the package."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["version"]
    matched = re.search(r'^__version__ = "(.+)"$', (ROOT / "gateway/__init__.py").read_text(encoding="utf-8"), re.MULTILINE)
    return {"pyproject.toml": project, "gateway/__init__.py": matched[1] if matched else "none"}


def main() -> int:
    """Print the notes of the tag in the arguments; return the exit code."""
    if len(sys.argv) != 2:
        sys.stderr.write("usage: python .ci/release_notes.py TAG\n")
        return 2
    try:
        sys.stdout.write(notes(sys.argv[1], (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"), stated_versions()) + "\n")
    except NotReady as error:
        sys.stderr.write(f"{error}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""CONTRIBUTING.md names the packages and modules that exist, and all packages."""

from __future__ import annotations

import re

from tests.architecture.documents import code_of, read, section
from tests.architecture.sources import ROOT

PAGE = read("CONTRIBUTING.md")
PACKAGES = section(PAGE, "## The packages")
PLACES = (ROOT, ROOT / "gateway")
"""Folders that paths on the page start from."""


def packages_with_a_paragraph() -> list[str]:
    """The names in bold at the start of a paragraph, in order."""
    paragraphs = re.findall(r"^((?:\*\*\w+\*\*(?:, )?)+):", PACKAGES, re.MULTILINE)
    return [name for paragraph in paragraphs for name in re.findall(r"\w+", paragraph)]


def test_every_path_on_the_page_exists() -> None:
    named = [code for line in PAGE.replace(PACKAGES, "").splitlines() if not line.startswith("```") for code in code_of(line)]
    paths = [code for code in named if re.fullmatch(r"[\w.-]+/([\w./-]*(/|\.\w+))?", code)]
    assert len(paths) >= 40
    assert [path for path in paths if not any((place / path).exists() for place in PLACES)] == []


def test_modules_of_a_paragraph_exist() -> None:
    for name, text in re.findall(r"^\*\*(\w+)\*\*: (.*?)\n\n", PACKAGES, re.MULTILINE | re.DOTALL):
        package = ROOT / "gateway" / name
        inside = [code for code in code_of(text) if code.endswith((".py", "/"))]
        assert [code for code in inside if not (package / code).exists()] == [], name


def test_every_package_has_a_paragraph() -> None:
    layers = PACKAGES.partition("```text\n")[2].partition("```")[0]
    assert sorted(packages_with_a_paragraph()) == sorted(re.findall(r"\w+", layers))

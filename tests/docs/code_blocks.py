"""The fenced blocks of README, CONTRIBUTING and `docs/`, and the kind of test that executes each of them.

`test_code_blocks` fails if a block has no kind, or if it is named in `NOT_EXECUTED` and does not exist.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

from tests.architecture.documents import DOCUMENTS
from tests.architecture.sources import name_of

Kind = Literal[
    "walkthrough", "commands", "configuration", "arguments", "program", "file", "output", "navigation", "layers", "access", "none"
]  # fmt: skip

WALKTHROUGHS = ("docs/first-gateway.md", "docs/team-servers.md", "docs/audit.md", "docs/own-tools.md", "docs/three-gateways.md")
"""Pages that `test_walkthroughs` and `test_three_gateways` follow from top to bottom."""

NOT_EXECUTED = {
    "   MCP clients ": "a drawing of the packages; test_contributing compares its names with the folders",
    "git clone ": "needs the network",
    "make -C moongate run": "is `make run` in the clone",
    "make run": "serves until it is stopped; tests/interaction/test_bundled.py starts its script",
    "moongate policy test ": "needs a table; tests/docs/test_access_page.py runs it",
    "npx ": "a published program; tests/accept runs it, and test_command_blocks the gateway that it starts",
    "docker ": "needs Docker",
    "temporal ": "a program of Temporal; tests/tasks/test_temporal.py starts its server",
    "make wheels": "builds a wheel for minutes; it is itself a check",
    "pipx ": "installs for the user; `make wheels` does the same elsewhere",
    "uvx ": "needs uv; `make wheels` does the same",
    "make bench-fleet": "measures for an hour; tests/faults/test_fleet.py runs its parts",
    "make up": "needs Docker; tests/packaging/test_compose.py runs the parts without it",
    "make down": "needs Docker",
    "curl --cacert deploy/": "asks what `make up` started",
    "helm ": "needs a cluster; tests/packaging/test_chart.py renders the chart",
    "kubectl ": "needs a cluster",
    "sudo ": "changes the system",
    "pip install ": "needs the network",
    "gh attestation ": "needs the network, and a published release",
    "gh release ": "needs the network, and a published release",
    "sha256sum --check ": "needs the files of a published release",
    ". .venv": "activates a virtual environment; the tests have one",
}
"""Blocks and commands that are not executed, by their beginning, with the reason."""

_FENCE = re.compile(r"^```([^\n`]*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


@dataclass(frozen=True)
class CodeBlock:
    """One fenced block of a page."""

    page: str
    line: int
    language: str
    body: str

    @property
    def kind(self) -> Kind | None:
        """The kind of test that executes the block, or `None` if no test does."""
        if self.page in WALKTHROUGHS:
            return "walkthrough"
        if all(map(is_excused, self.body.splitlines() if self.language == "sh" else [self.body])):
            return "none"
        if self.page == "CONTRIBUTING.md":
            return "layers" if self.language == "text" else None
        if self.page == "docs/access.md" and self.language in ("yaml", "cedar"):
            return "access"
        if self.language == "json":
            return "arguments" if '"task":' in self.body else "configuration"
        return _KINDS.get(self.language)


_KINDS: dict[str, Kind] = {
    "sh": "commands",
    "python": "program",
    "markdown": "file",
    "yaml": "file",
    "text": "output",
    "console": "output",
    "{toctree}": "navigation",
}


def is_excused(text: str) -> bool:
    """Return whether `NOT_EXECUTED` has a reason for this block or command."""
    return text.startswith(tuple(NOT_EXECUTED))


def code_blocks(*kinds: Kind) -> list[CodeBlock]:
    """Return the blocks of these kinds on all pages, or all blocks."""
    found: list[CodeBlock] = []
    for path in DOCUMENTS:
        text = path.read_text(encoding="utf-8")
        found += [CodeBlock(name_of(path), text.count("\n", 0, match.start()) + 1, *match.groups()) for match in _FENCE.finditer(text)]
    return [block for block in found if not kinds or block.kind in kinds]


def block_id(block: CodeBlock) -> str:
    """Return the name of a block in the list of tests."""
    return f"{block.page}:{block.line}"


def block_with(page: str, text: str) -> str:
    """Return the one block of a page that contains a text."""
    [found] = [block.body for block in code_blocks() if block.page == page and text in block.body]
    return found

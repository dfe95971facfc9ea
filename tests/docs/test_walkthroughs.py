"""The guides of the documentation work when followed step by step."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from tests.architecture.documents import read
from tests.docs.demo import DEMO, record
from tests.docs.walkthrough import Walkthrough

FIRST = "docs/first-gateway.md"


@pytest.mark.timeout(300)
def test_first_gateway_works_as_printed(tmp_path: Path) -> None:
    with Walkthrough(tmp_path) as reader:
        done = Counter(reader.follow(read(FIRST)))
    assert done == {"file": 2, "sh": 5, "text": 5}


@pytest.mark.timeout(300)
@pytest.mark.parametrize(("page", "files"), [("docs/team-servers.md", 1), ("docs/audit.md", 1), ("docs/own-tools.md", 4)])
def test_guide_works_as_printed(tmp_path: Path, page: str, files: int) -> None:
    server = read(FIRST).partition("```python\n")[2].partition("```")[0]
    with Walkthrough(tmp_path) as reader:
        (reader.work / "orders.py").write_text(server)
        done = Counter(reader.follow(read(page)))
    assert done["file"] == files and done["sh"] >= 1 and done["text"] >= 1


@pytest.mark.timeout(300)
def test_demo_shows_the_current_output_of_the_commands() -> None:
    assert record() == DEMO.read_text(), "record it again: `python -m tests.docs.demo`"

"""Records `docs/demo.svg`: commands of `docs/first-gateway.md` and their output. `python -m tests.docs.demo` writes the file anew."""

from __future__ import annotations

import io
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

from rich.console import Console
from rich.text import Text

from tests.architecture.documents import read
from tests.architecture.sources import ROOT
from tests.docs.walkthrough import Walkthrough

COLUMNS = 118
FONTS = re.compile(r"@font-face \{.*?\}\s*", re.DOTALL)
"""Fonts that the picture would load from the network; the next font of its list is the system's."""
COMMANDS = (
    "moongate add orders -- '${MOONGATE_PYTHON:-python3}' orders.py",
    "moongate list tools",
    "moongate call orders__find_order number=A-17",
    "moongate policy explain orders__refund number=A-17 cents=9000",
)


DEMO = ROOT / "docs" / "demo.svg"


def record() -> str:
    """Run the commands in a fresh folder, and return the picture of a terminal with their output."""
    page = read("docs/first-gateway.md")
    console = Console(record=True, width=COLUMNS, file=io.StringIO())
    with tempfile.TemporaryDirectory() as name, Walkthrough(Path(name)) as reader:
        (reader.work / "orders.py").write_text(page.partition("```python\n")[2].partition("```")[0], encoding="utf-8")
        rules = page.partition("```json\n")[2].partition("```")[0]
        for command in COMMANDS:
            console.print(Text.assemble(("$ ", "bold green"), (command, "bold")))
            env = {**os.environ, **reader.env, "COLUMNS": str(COLUMNS - 2)}
            done = subprocess.run(["bash", "-c", command], cwd=reader.work, env=env, capture_output=True, text=True, check=False)
            console.print(Text(done.stdout.rstrip().replace(str(reader.work), "~/shop")))
            console.print()
            if "call" in command:
                (reader.work / "gateway.json").write_text(rules, encoding="utf-8")
                console.print(Text('  # gateway.json: "arguments": { "refund": { "cents": { "maximum": 5000 } } }', "dim"))
    return FONTS.sub("", console.export_svg(title="moongate"))


def main() -> None:
    """Write the picture."""
    DEMO.write_text(record(), encoding="utf-8")
    sys.stdout.write("docs/demo.svg\n")


if __name__ == "__main__":
    main()

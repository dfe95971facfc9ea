"""Code written for agent-framework's workflows runs on Moongate with only the import changed, and sees the same."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.accept.clients import HOME, TIMEOUT_SECONDS
from tests.fakes.running import ROOT

pytestmark = [pytest.mark.interop, pytest.mark.timeout(120)]

PYTHON = HOME / "agent-framework/bin/python"
PROGRAM = Path(__file__).with_name("ported_workflows.py")


def seen(python: str, program: Path) -> Any:
    env = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    argv = [python, "-W", "ignore", str(program)]
    done = subprocess.run(argv, cwd=ROOT, env=env, capture_output=True, text=True, timeout=TIMEOUT_SECONDS, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.requirement("WF1")
@pytest.mark.requirement("WF10")
def test_program_sees_the_same_with_only_the_import_changed(tmp_path: Path) -> None:
    if not PYTHON.exists():
        pytest.skip(f"agent-framework is not installed in {HOME}; run `make accept`")
    ported = tmp_path / PROGRAM.name
    ported.write_text(PROGRAM.read_text().replace("from agent_framework import", "from gateway import"))
    assert seen(sys.executable, ported) == seen(str(PYTHON), PROGRAM)

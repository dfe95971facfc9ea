"""The systemd unit: without mistakes for systemd, and with few rights."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.fakes.running import ROOT

UNIT = ROOT / "docs" / "moongate.service"
MAX_EXPOSURE = 2.0
"""Maximum of systemd's figure for what a service may do: 0 is nothing, 10 everything."""

pytestmark = [
    pytest.mark.packaging,
    pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd-analyze is missing"),
]


def analyzed(folder: Path, text: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Let systemd judge the unit's text. The program of the unit is replaced by one that exists on this machine."""
    path = folder / "moongate.service"
    path.write_text(text.replace("/opt/moongate/bin/moongate", "/bin/true"))
    argv = ["systemd-analyze", *arguments, str(path)]
    return subprocess.run(argv, capture_output=True, text=True, timeout=60, check=False)


def test_systemd_finds_no_mistake_in_the_unit(tmp_path: Path) -> None:
    done = analyzed(tmp_path, UNIT.read_text(), "verify")
    assert (done.returncode, done.stderr) == (0, "")
    assert "on-failur" in analyzed(tmp_path, UNIT.read_text().replace("on-failure", "on-failur"), "verify").stderr


def test_service_has_few_rights(tmp_path: Path) -> None:
    done = analyzed(tmp_path, UNIT.read_text(), "security", "--offline=true", "--no-pager")
    level = re.search(r"Overall exposure level for moongate.service: ([\d.]+)", done.stdout)
    assert level is not None and float(level[1]) <= MAX_EXPOSURE, done.stdout[-300:] + done.stderr

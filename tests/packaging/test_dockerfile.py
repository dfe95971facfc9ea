"""The Dockerfile: what it promises to those who run the image. `image.py` checks a built image."""

from __future__ import annotations

import re
import shutil
import subprocess
import sysconfig
from pathlib import Path

import pytest

from tests.fakes.running import ROOT

DOCKERFILE = ROOT / "Dockerfile"


def instructions() -> list[tuple[str, str]]:
    """The instructions of the Dockerfile with their arguments; continued lines are joined, comments are left out."""
    lines = [line for line in DOCKERFILE.read_text(encoding="utf-8").splitlines() if not line.startswith("#")]
    joined = re.sub(r"\\\n\s*", " ", "\n".join(lines))
    return [(name, argument) for name, _, argument in (line.partition(" ") for line in joined.splitlines() if line.strip())]


def last_stage() -> dict[str, str]:
    """The instructions of the image itself, by name; of a name that occurs twice the last one counts."""
    found = instructions()
    start = max(number for number, (name, _) in enumerate(found) if name == "FROM")
    return dict(found[start:])


def hadolint() -> str | None:
    """The path of the linter: beside this Python, or on PATH."""
    beside = Path(sysconfig.get_path("scripts"), "hadolint")
    return str(beside) if beside.exists() else shutil.which("hadolint")


@pytest.mark.packaging
@pytest.mark.skipif(hadolint() is None, reason="hadolint is missing: make packaging")
def test_linter_finds_nothing(tmp_path: Path) -> None:
    def lint(path: Path) -> subprocess.CompletedProcess[str]:
        return subprocess.run([str(hadolint()), str(path)], capture_output=True, text=True, timeout=30, check=False)

    done = lint(DOCKERFILE)
    assert (done.returncode, done.stdout) == (0, "")
    broken = tmp_path / "Dockerfile"
    broken.write_text(DOCKERFILE.read_text() + "RUN sudo ls\nENTRYPOINT moongate\n")
    assert lint(broken).returncode == 1


def test_image_runs_as_a_numbered_user_without_a_package_manager_of_python() -> None:
    found = last_stage()
    assert re.fullmatch(r"[1-9]\d+:[1-9]\d+", found["USER"])
    assert found["ENTRYPOINT"] == '["moongate"]' and found["VOLUME"] == "/var/lib/moongate"
    assert any(name == "RUN" and "pip uninstall --yes pip" in argument for name, argument in instructions())


def test_health_check_needs_only_python() -> None:
    assert last_stage()["HEALTHCHECK"].endswith('CMD ["python", "-I", "/opt/moongate/share/moongate/health.py"]')
    assert any(name == "RUN" and "deploy/health.py /opt/moongate/share/moongate/health.py" in argument for name, argument in instructions())


def test_build_context_has_what_the_dockerfile_copies() -> None:
    ignored = {line for line in (ROOT / ".dockerignore").read_text().splitlines() if line}
    copied = [path for name, argument in instructions() if name == "COPY" and "--from" not in argument for path in argument.split()[:-1]]
    assert copied and all((ROOT / path).exists() for path in copied)
    assert ignored.isdisjoint(copied)
    below = {path for path in copied if f"{path.partition('/')[0]}/*" in ignored}
    assert {f"!{path}" for path in below} <= ignored

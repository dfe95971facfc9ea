"""Builds the source archive and the wheel, and checks the installed wheel on every Python 3.11 to 3.14 of this machine: `make wheels`.

`smoke` is run in a new virtual environment of each Python, and with `pipx install` and `uvx`, always from an empty folder. A Python that
this machine does not have is reported as skipped. The last line says how many checks passed, failed and were skipped.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from tests.packaging.smoke import SmokeFailure, smoke

ROOT = Path(__file__).resolve().parents[2]
VERSIONS = ("3.11", "3.12", "3.13", "3.14")
"""Versions of Python on which a wheel must work."""

INSTALL_SECONDS = 900.0


class Skipped(Exception):
    """A part that a check needs is not on this machine."""


def build(folder: Path) -> Path:
    """Build the source archive, build the wheel from it, and return the path of the wheel. Both are left in `folder`."""
    _run([sys.executable, "-m", "build", "--quiet", "--outdir", str(folder), str(ROOT)])
    (archive,) = folder.glob("*.tar.gz")
    (wheel,) = folder.glob("*.whl")
    print(f"built {archive.name} ({archive.stat().st_size // 1024} KB) and {wheel.name} ({wheel.stat().st_size // 1024} KB)")
    return wheel


def interpreter(version: str) -> str:
    """Return the path of the Python with this version: on PATH, or among the versions of pyenv.

    Raises:
        Skipped: This machine does not have it.
    """
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"), "versions")
    found = [str(path) for path in sorted(pyenv.glob(f"{version}.*/bin/python{version}"))]
    if (on_path := shutil.which(f"python{version}")) is not None:
        found.append(on_path)
    for path in found:  # a launcher of pyenv exists also for versions that are not installed or not selected
        if subprocess.run([path, "-c", "import ssl, sqlite3, venv"], capture_output=True, check=False).returncode == 0:
            return path
    raise Skipped(f"this machine has no Python {version}")


def in_environment(wheel: Path, version: str, folder: Path) -> str:
    """Install the wheel in a new virtual environment of a Python version, and check it there."""
    environment = folder / f"env-{version}"
    _run([_tool("uv"), "venv", "--quiet", "--python", interpreter(version), str(environment)])
    python = environment / "bin" / "python"
    _run([_tool("uv"), "pip", "install", "--quiet", "--python", str(python), str(wheel)])
    return smoke([str(environment / "bin" / "moongate")])


def by_pipx(wheel: Path, folder: Path) -> str:
    """Install the wheel with `pipx install` into a home of its own, and check the command that pipx offers."""
    places = {"PIPX_HOME": str(folder / "pipx"), "PIPX_BIN_DIR": str(folder / "pipx-bin"), "PIPX_MAN_DIR": str(folder / "pipx-man")}
    _run([sys.executable, "-m", "pipx", "install", "--quiet", "--python", sys.executable, str(wheel)], places)
    return smoke([str(folder / "pipx-bin" / "moongate")])


def by_uvx(wheel: Path, folder: Path) -> str:
    """Check `uvx --from WHEEL moongate`, which installs the wheel in the cache of uv."""
    return smoke([_tool("uvx"), "--python", sys.executable, "--from", str(wheel), "moongate"])


def _tool(name: str) -> str:
    """Return the path of a program beside this Python."""
    return str(Path(sysconfig.get_path("scripts"), name))


def _run(argv: Sequence[str], env: Mapping[str, str] | None = None) -> None:
    given = {name: value for name, value in os.environ.items() if name not in {"VIRTUAL_ENV", "PYTHONPATH"}} | dict(env or {})
    done = subprocess.run(argv, env=given, cwd="/", capture_output=True, text=True, timeout=INSTALL_SECONDS, check=False)
    if done.returncode != 0:
        raise SmokeFailure(f"`{' '.join(map(str, argv))}` failed with exit code {done.returncode}: {done.stderr[-2000:]}")


def main() -> int:
    """Run the checks, print one line for each, and return 1 if one failed, otherwise 0."""
    parser = argparse.ArgumentParser(prog="python -m tests.packaging.wheels", description=__doc__)
    parser.add_argument("--out", type=Path, help="keep the built files in this folder")
    parser.add_argument("--python", action="append", choices=VERSIONS, help="check only this Python; can be repeated")
    parser.add_argument("--only-environments", action="store_true", help="do not check pipx and uvx")
    given = parser.parse_args()
    counts = {"passed": 0, "failed": 0, "skipped": 0}
    with tempfile.TemporaryDirectory(prefix="moongate-wheels-") as temporary:
        folder = Path(temporary)
        wheel = build(given.out.absolute() if given.out else folder)
        checks: dict[str, Callable[[], str]] = {
            f"Python {version}": lambda version=version: in_environment(wheel, version, folder) for version in given.python or VERSIONS
        }
        if not given.only_environments:
            checks |= {"pipx install": lambda: by_pipx(wheel, folder), "uvx": lambda: by_uvx(wheel, folder)}
        for name, check in checks.items():
            counts[_report(name, check)] += 1
    print(", ".join(f"{count} {outcome}" for outcome, count in counts.items()))
    return 1 if counts["failed"] else 0


def _report(name: str, check: Callable[[], str]) -> str:
    start = time.monotonic()
    try:
        version = check()
    except Skipped as reason:
        print(f"SKIPPED {name}: {reason}")
        return "skipped"
    except SmokeFailure as failure:
        print(f"FAILED  {name}: {failure}")
        return "failed"
    print(f"passed  {name}: moongate {version}, a call over stdio and HTTP, {time.monotonic() - start:.0f} s", flush=True)
    return "passed"


if __name__ == "__main__":
    sys.exit(main())

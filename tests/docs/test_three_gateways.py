"""The tutorial "From one gateway to three" works as printed, with a real PostgreSQL server and nginx; gateways are replaced and killed."""

from __future__ import annotations

import os
import re
import shutil
import signal
import sys
from collections import Counter
from collections.abc import Generator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from tests.architecture.documents import read
from tests.docs.walkthrough import Walkthrough
from tests.fakes.postgres import postgres
from tests.fakes.running import ROOT, free_port

PAGE = "docs/three-gateways.md"
DATABASE = "postgresql://moongate:secret@127.0.0.1/moongate"
NGINX = shutil.which("nginx", path=f"{os.environ.get('PATH', '')}:/usr/sbin:/usr/local/sbin")
NEEDED = (NGINX, shutil.which("openssl"), shutil.which("curl"))

pytestmark = [pytest.mark.nginx, pytest.mark.fleet, pytest.mark.skipif(not all(NEEDED), reason="nginx, openssl or curl is missing")]


class Site(Walkthrough):
    """A reader whose commands start processes in the background. They are real processes, because the page kills them."""

    @property
    def env(self) -> dict[str, str]:
        """Environment with the default state folder of Linux, `~/.local/state`."""
        path = f"{super().env['PATH']}:/usr/sbin"
        return {**super().env, "XDG_STATE_HOME": str(self.folder / "home/.local/state"), "PATH": path, "PYTHONPATH": str(ROOT)}

    def kill_all(self) -> None:
        """Kill the processes whose ids the page has stored in files `*.pid`."""
        for path in self.work.glob("*.pid"):
            with suppress(ProcessLookupError, ValueError):
                os.kill(int(path.read_text()), signal.SIGKILL)


@contextmanager
def site(folder: Path, database: str) -> Generator[Site]:
    """A reader with ports of this machine and the URL of an empty database in place of the printed ones."""
    ports = {printed: str(free_port()) for printed in ("8766", "8767", "8443")}
    root = {"pid nginx.pid;": "user root;\npid nginx.pid;"} if os.geteuid() == 0 else {}  # else nginx cannot read the folder
    with Site(folder, replaced={**ports, DATABASE: database, **root}) as reader:
        reader.add_command("moongate", f'exec {sys.executable} -m gateway "$@"')
        reader.add_command("python", f'exec {sys.executable} "$@"')
        try:
            yield reader
        finally:
            reader.kill_all()
            for path in reader.work.glob("*.log"):  # pytest shows this if the test fails
                sys.stderr.write(f"== {path.name}\n{path.read_text()[-4000:]}\n")


@pytest.mark.timeout(420)
def test_three_gateways_work_as_printed(tmp_path: Path) -> None:
    with postgres() as server, site(tmp_path, server.database("moongate")) as reader:
        done = Counter(reader.follow(read(PAGE)))
        left = sorted(path.name for path in reader.work.glob("*.pid"))
        counted = re.search(r"(\d+) calls answered in one session, (\d+) sent again", (reader.work / "client.log").read_text())
    assert done == {"file": 6, "sh": 15, "text": 7}
    assert len(left) == 4 and counted is not None and int(counted[1]) > 20 and int(counted[2]) <= 3

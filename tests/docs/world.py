"""A reader's folder with everything that the pages of the documentation name, and the commands that the reader enters in it."""

from __future__ import annotations

import os
import pty
import re
import subprocess
import sys
import time
from contextlib import suppress
from typing import Self

from tests.architecture.sources import ROOT
from tests.docs.walkthrough import COMMAND_SECONDS, Walkthrough

EXPECTED = {"moongate policy explain files__read_text_file": 6}
"""Exit codes, by the beginning of a command; all others exit with 0."""

SECRET = "x" * 8

NPX = """cd {root} && exec {python} -m tests.fakes.raw_upstream --stdio \\
  '{{"tools": [{{"name": "list_directory", "inputSchema": {schema}}}]}}'"""
"""A program that stands for `npx`: a server with a tool that lists a folder."""


class World(Walkthrough):
    """A reader whose folder has what the pages name, beside a running gateway."""

    waiting = revoked = model_url = ""
    """Ids that stand for those on the pages, and the URL of the model; empty if there is none."""

    def __enter__(self) -> Self:
        super().__enter__()
        schema = '{"type": "object", "properties": {"path": {"type": "string"}}}'
        self.add_command("npx", NPX.format(root=ROOT, python=sys.executable, schema=schema))
        return self

    @property
    def env(self) -> dict[str, str]:
        """Environment of the commands and of the gateway."""
        secrets = {"OPENAI_API_KEY": SECRET, "DOCS_TOKEN": SECRET, "ROOMS_KEY": SECRET, "BROWSER": str(self.folder / "bin/browser")}
        return {**super().env, **secrets, **({"OPENAI_BASE_URL": self.model_url} if self.model_url else {})}

    def run(self, command: str, *, stdin: str = "") -> str:
        """Run a command and return what it prints; ids that pages print stand for those that exist here.

        Raises:
            AssertionError: The command ended with another exit code than expected.
        """
        for printed, there in (("3f9a", self.waiting), ("1a2b3c4d", self.revoked)):
            command = command.replace(printed, there) if there else command
        code = next((code for start, code in EXPECTED.items() if command.startswith(start)), 0)
        done = subprocess.run(
            ["bash", "-uo", "pipefail", "-c", command],
            cwd=self.work,
            env={**os.environ, **self.env},
            input=stdin,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=COMMAND_SECONDS,
            check=False,
        )
        assert done.returncode == code, f"$ {command}\n{done.stdout}"
        return done.stdout

    def answer(self, command: str, answer: str) -> str:
        """Run a command in a terminal, answer its question, and return what the terminal shows."""
        ours, theirs = pty.openpty()
        process = subprocess.Popen(
            ["bash", "-c", command], cwd=self.work, env={**os.environ, **self.env}, stdin=theirs, stdout=theirs, stderr=theirs
        )
        os.close(theirs)
        os.write(ours, f"{answer}\n".encode())
        shown = b""
        with suppress(OSError):  # a terminal whose program has ended raises EIO on Linux
            while part := os.read(ours, 4096):
                shown += part
        os.close(ours)
        assert process.wait(COMMAND_SECONDS) == 0, shown.decode()
        return shown.decode()

    def wait_for(self, command: str, text: str) -> None:
        """Run a command until it prints a text."""
        until = time.monotonic() + COMMAND_SECONDS
        while text not in (printed := self.run(command)):
            assert time.monotonic() < until, printed


def assert_printed(shown: str, printed: str) -> None:
    """Check that each line of a block was printed: `…` stands for any text, spaces for spaces, a number of three digits for any number."""
    for line in filter(str.strip, shown.splitlines()):
        parts = [re.sub(r"\b\d{3}\b", r"\\d+", r"\s+".join(map(re.escape, part.split()))) for part in line.split("…")]
        assert re.search(r".*".join(parts), printed), f"not printed: {line}\n{printed}"

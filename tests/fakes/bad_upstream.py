"""Remote servers that misbehave, as real processes over stdio.

    python -m tests.fakes.bad_upstream MODE

`exit` ends at once with a line on stderr; `hang` never answers; `garbage` prints lines that are not JSON-RPC, then works;
`no-newline` floods stdout without ever ending a line; `deaf` ignores SIGTERM and a closed standard input; `parent` serves and has a
deaf child; `stderr` serves and floods standard error.
"""

from __future__ import annotations

import os
import runpy
import signal
import subprocess
import sys
import threading
import time


def _flood() -> None:
    line = b"w" * 200 + b"\n"
    while True:
        os.write(2, line * 50)
        os.write(2, b"v" * 65_536)


def main(mode: str) -> None:
    """Misbehave in this mode."""
    match mode:
        case "exit":
            sys.stderr.write("cannot find my database\n")
            sys.exit(7)
        case "hang":
            while True:
                time.sleep(1)
        case "deaf":
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            while True:
                time.sleep(1)
        case "parent":  # has a child of its own that holds on to nothing of its parent's and ignores SIGTERM
            subprocess.Popen(
                [sys.executable, "-m", "tests.fakes.bad_upstream", "deaf"],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
            )
            sys.argv = ["upstream", "--stdio"]
            runpy.run_module("tests.fakes.upstream", run_name="__main__")
        case "stderr":  # floods standard error, in lines and without, while it serves
            threading.Thread(target=_flood, daemon=True).start()
            sys.argv = ["upstream", "--stdio"]
            runpy.run_module("tests.fakes.upstream", run_name="__main__")
        case "garbage":
            os.write(1, b"Starting up...\n\xff\xfe{]\n\n" + b"y" * 100_000 + b"\n")
            sys.argv = ["upstream", "--stdio"]
            runpy.run_module("tests.fakes.upstream", run_name="__main__")
        case "no-newline":
            block = b"z" * 65_536
            while True:
                os.write(1, block)
        case other:
            raise SystemExit(f"unknown mode {other!r}")


if __name__ == "__main__":
    main(sys.argv[1])

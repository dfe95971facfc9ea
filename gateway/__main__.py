"""`python -m gateway` runs the command line, as the command `moongate` does."""

from __future__ import annotations

from gateway.cli.main import main

if __name__ == "__main__":
    main()

"""`python -m gateway`: the same as the `moongate` command."""

from __future__ import annotations

from gateway.cli.main import main

if __name__ == "__main__":
    main()

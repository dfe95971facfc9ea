"""The functions of the workflow; the second one waits until the file `go` exists."""

import pathlib
import time

HERE = pathlib.Path(__file__).parent


def note(line: str) -> None:
    with (HERE / "journal").open("a") as file:
        file.write(f"{line}\n")


def first(x: str) -> str:
    note("first")
    return x + "1"


def second(x: str) -> str:
    note("second")
    while not (HERE / "go").exists():
        time.sleep(0.02)
    return x + "2"

"""A remote server that opens every file that a path may name once decoded, normalized or expanded. For attacks on path and URL rules.

    python -m tests.fakes.careless_files --stdio | --http [--modern] FOLDER

`FOLDER` is where relative paths start and `~` leads. `read_text_file` and `read_media_file` (`path`), `read_multiple_files` (`paths`)
and `read_any` (`where`, without a type) answer with the content of every file that any reading of any text in their argument leads to;
`get` (`url`) answers with every host that some parser reads. It speaks bare JSON-RPC, as `raw_upstream`, which it is built on.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

from tests.fakes.bypasses import ROOT, hosts_of, places_of
from tests.fakes.raw_upstream import Raw, over_http, over_stdio

STRING = {"type": "string"}
TOOLS: list[dict[str, Any]] = [
    {"name": name, "inputSchema": {"type": "object", "properties": {argument: kind}, "required": [argument]}}
    for name, argument, kind in (
        ("read_text_file", "path", STRING),
        ("read_media_file", "path", STRING),
        ("read_multiple_files", "paths", {"type": "array", "items": STRING}),
        ("read_any", "where", {}),
        ("get", "url", STRING),
    )
]


class CarelessFiles(Raw):
    """A server that follows every reading of its arguments."""

    def __init__(self, folder: Path, *, modern: bool) -> None:
        super().__init__({"tools": TOOLS}, modern=modern)
        self.files = folder.resolve()

    def call(self, params: dict[str, Any], headers: dict[str, str]) -> dict[str, Any]:
        """Return the content of all files, or the names of all hosts, to which any text in the arguments can lead."""
        texts = list(_texts(params.get("arguments")))
        if params["name"] == "get":
            found = {host for text in texts for host in hosts_of(text).values() if host}
        else:
            found = {content for text in texts for content in self.contents(text)}
        return {"content": [{"type": "text", "text": json.dumps(sorted(found))}]}

    def contents(self, text: str) -> Iterator[str]:
        """Yield the content of every file to which a path can lead."""
        for place in dict.fromkeys(places_of(text)):
            for path in (Path(place), self.files / place.removeprefix(ROOT).lstrip("/"), self.files / place.removeprefix("/home/ann/")):
                if "\0" not in str(path) and path.is_relative_to(self.files) and path.is_file():
                    yield path.read_text()


def _texts(value: object) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, list | dict):
        items = cast("dict[str, object]", value).values() if isinstance(value, dict) else cast("list[object]", value)
        for item in items:
            yield from _texts(item)


def main() -> None:
    cli = argparse.ArgumentParser()
    cli.add_argument("--stdio", action="store_true")
    cli.add_argument("--http", action="store_true")
    cli.add_argument("--modern", action="store_true")
    cli.add_argument("folder", type=Path)
    options = cli.parse_args()
    careless = CarelessFiles(options.folder, modern=options.modern)
    if options.stdio:
        over_stdio(careless)
    else:
        over_http(careless, 0)


if __name__ == "__main__":
    main()

"""Benchmark of `skills/list`: time and memory of this gateway and of FastMCP's skills extension on the same folder.

    python -m benchmarks.skills --fastmcp /path/to/python [--skills N] [--rounds N]

`--fastmcp` is the Python interpreter of an environment with FastMCP. Each contender runs in its own process, and an in-process client of
its own SDK sends the requests. Each contender lists all skills once before the measurement. Rounds are interleaved, and the medians of
both contenders are compared.
"""

from __future__ import annotations

import argparse
import asyncio  # noqa: TID251 - this file also runs in the FastMCP environment
import json
import random
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

PAGES = 1_000
"""Maximum number of pages in one complete listing."""

Page = Callable[[str | None], Awaitable[tuple[int, str | None]]]
"""A function that sends `skills/list` with a cursor, and returns the number of entries and the next cursor."""


def write_skills(folder: Path, count: int) -> None:
    """Write `count` skills: each has a `SKILL.md` of 5 KB, and two of three also have one or two files of 10 KB."""
    words = random.Random(7)
    for number in range(count):
        skill = folder / f"skill-{number:05}"
        (skill / "references").mkdir(parents=True)
        text = "".join(words.choice("abcdefghij klmnop\n") for _ in range(5000))
        header = f"name: {skill.name}\ndescription: Does number {number} of many things. Use it when that is needed.\nlicense: MIT\n"
        (skill / "SKILL.md").write_text(f"---\n{header}---\n# Skill\n{text}")
        for file in range(number % 3):
            (skill / "references" / f"{file}.md").write_text(text * 2)


async def measure(page: Page, rounds: int) -> None:
    """Wait for a line on stdin before each round, then time a complete listing and a first page.

    Print the seconds of both, the number of entries and the peak memory in bytes, one JSON line per round.
    """

    async def listing() -> int:
        cursor, seen = None, 0
        for _ in range(PAGES):
            found, cursor = await page(cursor)
            seen += found
            if cursor is None:
                break
        return seen

    entries = await listing()
    for _ in range(rounds):
        sys.stdin.readline()
        started = time.perf_counter()
        await listing()
        whole = time.perf_counter() - started
        started = time.perf_counter()
        await page(None)
        first = time.perf_counter() - started
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
        print(json.dumps({"entries": entries, "whole": whole, "first": first, "peak": peak}), flush=True)  # noqa: T201


async def run_own(folder: str, rounds: int) -> None:
    """Measure the server of this gateway with a catalog of one skill source."""
    from typing import cast

    import mcp
    import mcp_types as t
    from pydantic import BaseModel, ConfigDict

    from gateway.catalog import Catalog, CatalogEntry
    from gateway.config.policies import SourcePolicy
    from gateway.gate.pipeline import GateServices
    from gateway.server.gateway_server import GatewayServer
    from gateway.skills.source import SkillSource
    from gateway.telemetry.gateway_events import EventStream

    class Anything(BaseModel):
        model_config = ConfigDict(extra="allow")

    async def settled() -> None:
        """Return at once, because no source is still starting."""

    async with SkillSource([Path(folder)]) as source:
        entry = CatalogEntry(source, SourcePolicy(), "", source, is_local=True)
        catalog = Catalog([entry], GateServices(EventStream()), name_budget=64, settled=settled)
        await catalog.refresh()
        server = GatewayServer(
            catalog,
            name="bench",
            version="0",
            own_id="bench",
            page_size=1000,
            instructions=lambda _: "",
            ask_timeout_seconds=60,
            state_key=bytes(32),
        )
        async with server, mcp.Client(server.mcp) as client:

            async def page(cursor: str | None) -> tuple[int, str | None]:
                params = {} if cursor is None else {"cursor": cursor}
                request = cast("Any", t.Request[dict[str, Any], str](method="skills/list", params=params))
                result = (await client.session.send_request(request, Anything)).model_dump()
                return len(result["skills"]), result.get("nextCursor")

            await measure(page, rounds)


async def run_fastmcp(folder: str, rounds: int) -> None:
    """Measure FastMCP with its skills extension. Its modules are typed as `Any`, because this environment may lack FastMCP."""
    from importlib import import_module

    fastmcp: Any = import_module("fastmcp")
    provider: Any = import_module("fastmcp.server.providers.skills").SkillsDirectoryProvider(roots=folder, experimental_skills=True)
    extension: Any = import_module("fastmcp.skills.extension").SkillsExtension(providers=[provider])
    server: Any = fastmcp.FastMCP("bench", providers=[provider])
    server.add_extension(extension)
    told: Any = import_module("fastmcp.skills").SkillsClientExtension()
    async with fastmcp.Client(server, extensions=[told]) as client:

        async def page(cursor: str | None) -> tuple[int, str | None]:
            result = await client.list_skills_mcp(cursor=cursor, cache_mode="bypass")
            return len(result.skills), result.next_cursor

        await measure(page, rounds)


def contender(python: str, kind: str, folder: str, rounds: int) -> subprocess.Popen[str]:
    """Start a contender process. The process lists all skills once and then waits for its first round."""
    root = Path(__file__).resolve().parents[1]
    argv = [python, __file__, "--as", kind, "--folder", folder, "--rounds", str(rounds)]
    env = {"PYTHONPATH": str(root), "PATH": "/usr/bin:/bin"}
    return subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=env)


def compare(fastmcp: str, skills: int, rounds: int) -> dict[str, Any]:
    """Measure both contenders, and return the ratios of their medians, their entries and their peak memory."""
    with tempfile.TemporaryDirectory() as folder:
        write_skills(Path(folder), skills)
        children = {"own": contender(sys.executable, "own", folder, rounds), "fastmcp": contender(fastmcp, "fastmcp", folder, rounds)}
        seen: dict[str, list[dict[str, Any]]] = {kind: [] for kind in children}
        for _ in range(rounds):
            for kind, child in children.items():
                assert child.stdin is not None and child.stdout is not None
                child.stdin.write("\n")
                child.stdin.flush()
                seen[kind].append(json.loads(child.stdout.readline()))
        for child in children.values():
            child.communicate()

    def median(kind: str, figure: str) -> float:
        return statistics.median(each[figure] for each in seen[kind])

    return {
        "entries listed": {kind: rounds_of[0]["entries"] for kind, rounds_of in seen.items()},
        "whole listing, FastMCP / gateway": round(median("fastmcp", "whole") / median("own", "whole"), 1),
        "first page, FastMCP / gateway": round(median("fastmcp", "first") / median("own", "first"), 1),
        "peak memory in MB": {kind: round(median(kind, "peak") / 1e6) for kind in children},
    }


def memory_per_thousand(skills: int) -> float:
    """Return the megabytes of live Python objects per 1,000 skills of an index."""
    import tracemalloc

    from gateway.skills.index import build_index

    with tempfile.TemporaryDirectory() as folder:
        write_skills(Path(folder), skills)
        tracemalloc.start()
        index = build_index([folder])
        held = tracemalloc.get_traced_memory()[0]
        tracemalloc.stop()
    return round(held / len(index.skills) * 1000 / 1e6, 1)


def main() -> None:
    """Parse the command line. With `--as`, measure as a contender process; otherwise compare both and print the figures."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--fastmcp", default=sys.executable)
    parser.add_argument("--skills", type=int, default=1000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--as", dest="kind", choices=("own", "fastmcp"))
    parser.add_argument("--folder")
    given = parser.parse_args()
    if given.kind:
        asyncio.run((run_own if given.kind == "own" else run_fastmcp)(given.folder, given.rounds))
        return
    figures = {**compare(given.fastmcp, given.skills, given.rounds), "index of 1,000 skills in MB": memory_per_thousand(given.skills)}
    print(json.dumps(figures, indent=1))  # noqa: T201


if __name__ == "__main__":
    main()

"""`FunctionSource` over real modules in a folder."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import anyio
import pytest

from gateway.tools.base import Complete
from gateway.tools.context import CallContext
from gateway.tools.functions_source import FunctionSource


@pytest.fixture(autouse=True)
def forget_modules() -> Iterator[None]:
    before = set(sys.modules)
    yield
    for name in set(sys.modules) - before:
        if name.startswith("fs_"):
            del sys.modules[name]


def write(folder: Path, name: str, text: str) -> None:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("from gateway.tools.function import tool\n" + text)


async def load(folder: Path, *modules: str, seconds: float = 30) -> tuple[list[str], list[str], FunctionSource]:
    async with FunctionSource(modules, base_dir=folder, import_timeout_seconds=seconds) as source:
        assert source.id == "function"
        return [item.definition.name for item in await source.tools()], [str(p) for p in source.problems], source


async def test_tools_are_in_order_of_modules_and_definitions(tmp_path: Path) -> None:
    write(tmp_path, "fs_b.py", "@tool\ndef zeta() -> str: return 'z'\n@tool\ndef alpha() -> str: return 'a'\ndef plain(): ...\n")
    write(tmp_path, "fs_pkg/__init__.py", "")
    write(tmp_path, "fs_pkg/more.py", "@tool(name='renamed')\nasync def beta(x: int) -> int: return x + 1\n")
    path = list(sys.path)
    names, problems, source = await load(tmp_path, "fs_b", "fs_pkg.more", "fs_b")
    assert sys.path == path
    assert names == ["zeta", "alpha", "renamed"]
    assert problems == []
    outcome = await (await source.tools())[2].call({"x": 1}, CallContext())
    assert isinstance(outcome, Complete)
    assert outcome.as_text() == "2"


async def test_broken_module_is_reported_and_others_load(tmp_path: Path) -> None:
    write(tmp_path, "fs_good.py", "@tool\ndef ok() -> str: return 'ok'\n")
    write(tmp_path, "fs_raises.py", "raise RuntimeError('no database')\n")
    write(tmp_path, "fs_exits.py", "raise SystemExit(1)\n")
    write(tmp_path, "fs_needs.py", "import fs_not_there_at_all\n")
    write(tmp_path, "fs_empty.py", "")
    names, problems, _ = await load(tmp_path, "fs_raises", "fs_exits", "fs_needs", "fs_missing", "fs_empty", "fs_good")
    assert names == ["ok"]
    assert [p.split(":")[0] for p in problems] == ["fs_raises", "fs_exits", "fs_needs", "fs_missing", "fs_empty"]
    assert "RuntimeError: no database" in problems[0]
    assert "'fs_not_there_at_all', which is not installed" in problems[2]
    assert "check the spelling" in problems[3]
    assert "decorate one" in problems[4]


async def test_hanging_import_is_abandoned(tmp_path: Path) -> None:
    write(tmp_path, "fs_gate.py", "import threading\ndone = threading.Event()\n")
    write(tmp_path, "fs_hangs.py", "import fs_gate\nfs_gate.done.wait(20)\n")
    write(tmp_path, "fs_fine.py", "@tool\ndef ok() -> str: return 'ok'\n")
    with anyio.fail_after(20):
        names, problems, _ = await load(tmp_path, "fs_hangs", "fs_fine", seconds=1)
    sys.modules["fs_gate"].done.set()
    assert names == ["ok"]
    assert "longer than 1 s" in problems[0]


@pytest.mark.requirement("TL13")
async def test_first_of_two_functions_of_one_name_is_kept(tmp_path: Path) -> None:
    write(tmp_path, "fs_one.py", "@tool\ndef same() -> str: return 'one'\n")
    write(tmp_path, "fs_two.py", "from fs_one import same as shared\n@tool\ndef same() -> str: return 'two'\n")
    names, problems, _ = await load(tmp_path, "fs_one", "fs_two")
    assert names == ["same"]
    assert problems == ["fs_two: tool 'same' is already defined in 'fs_one'; rename one with @tool(name=…)."]


async def test_undescribable_function_is_left_out(tmp_path: Path) -> None:
    write(
        tmp_path,
        "fs_odd.py",
        "from gateway.tools.function import FunctionTool\n"
        "@tool\ndef many(*things): ...\n@tool\ndef ok() -> str: return ''\n"
        "later = FunctionTool(None, name='later', schema={'type': 'object'})\n",
    )
    names, problems, _ = await load(tmp_path, "fs_odd")
    assert names == ["ok"]
    assert len(problems) == 2
    assert "*things" in problems[0]
    assert "only declared" in problems[1]

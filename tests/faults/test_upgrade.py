"""An upgrade: this version finishes the tasks that an earlier version left unfinished."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from tests.fakes.inside import gateway_inside
from tests.fakes.postgres import postgres
from tests.faults import golden
from tests.interaction.wire import over_http
from tests.tasks.test_gateways import until

pytestmark = [pytest.mark.timeout(90), pytest.mark.usefixtures("task_engine")]


@pytest.mark.fault(15)
@pytest.mark.parametrize("name", sorted(path.stem for path in golden.FOLDER.glob("*.sql")))
async def test_tasks_of_an_earlier_version_are_finished_by_this_one(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = golden.lay_out(tmp_path)
    await _finishes(config, golden.restore(name, tmp_path / "state"), tmp_path, monkeypatch)


@pytest.mark.fault(15)
@pytest.mark.parametrize("name", [f"postgres-{path.stem}" for path in sorted(golden.SERVER_FOLDER.glob("*.sql"))])
async def test_tasks_on_a_server_are_finished_after_an_upgrade(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = golden.lay_out(tmp_path)
    with postgres() as server:
        config["storage"]["url"] = server.database("golden")
        tasks = golden.restore_server(name.removeprefix("postgres-"), config["storage"]["url"])
        await _finishes(config, tasks, tmp_path, monkeypatch)


async def _finishes(config: dict[str, Any], tasks: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Start a gateway on a golden database and check that it finishes the database's tasks, given by `golden.TASKS`."""
    monkeypatch.delitem(sys.modules, "durable_functions", raising=False)  # it may be imported from another folder
    (tmp_path / "go").touch()
    with gateway_inside(tmp_path, config) as gateway:
        async with over_http(gateway.url, "modern") as wire:
            for kind in golden.TASKS:
                # An earlier version did not store which step an answer was for, so the same question may be asked again.
                while (state := await until(wire, tasks[kind], "completed", "input_required"))["status"] != "completed":
                    await golden.answer(wire, tasks[kind])
                assert state["result"]["content"] == [{"type": "text", "text": f"{kind}12"}]
    steps = (tmp_path / "journal").read_text().splitlines()
    assert steps == ["second"] * 3  # what was finished before did not run again

"""The official suite, end to end: suite → gateway → `upstream`, and every leg passes what can cross a hop.

The floors are the suite's whole count, but for one check of 2025-11-25 (`server-sse-disconnect-resume`): an upstream that hangs up
in the middle of a stream cannot be seen from before the gateway.
"""

from __future__ import annotations

import subprocess
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.conformance import suite
from tests.fakes.running import ROOT, child, gateway_http

pytestmark = [pytest.mark.conformance, pytest.mark.timeout(180)]

TASK_SCENARIOS = (
    "lifecycle",
    "capability-negotiation",
    "wire-fields",
    "request-state-removal",
    "mrtr-input",
    "request-headers",
    "dispatch-and-envelope",
    "required-task-error",
    "mrtr-composition",
)
"""All but `status-notifications`, which the suite itself skips."""

SKILL_SCENARIOS = ("directory", "enumeration", "manifest")


@pytest.fixture(scope="module")
def upstream() -> Generator[str]:
    if not suite.is_installed():
        pytest.skip(f"the conformance suite is not installed in {suite.HOME}; run `make conformance`")
    with child("-m", "tests.conformance.upstream", stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        yield process.stdout.readline().decode().strip()


@contextmanager
def gateway_before(upstream: str, folder: Path, **more: Any) -> Generator[str]:
    """Run a gateway that exposes the upstream's names unchanged and relays its requests to the client."""
    policy: dict[str, Any] = {"prefix": "", "sampling": {"mode": "relay", "maxRequests": None}, "roots": {"mode": "relay"}, **more}
    config = {
        "mcpServers": {"upstream": {"type": "http", "url": upstream}},
        "policies": {"upstream": policy},
        "expose": {"skills": [str(ROOT / "skills")]},
    }
    with gateway_http(folder, config) as url:
        yield url


@pytest.fixture(scope="module")
def gateway(upstream: str, tmp_path_factory: pytest.TempPathFactory) -> Generator[str]:
    with gateway_before(upstream, tmp_path_factory.mktemp("conformance")) as url:
        yield url


HURRIED = "sep-2575-http-server-no-independent-requests-on-stream"
"""A check that gives the first event of a stream 600 ms, which a busy machine can exceed. Where only it fails, the suite runs again."""


def check_version(url: str, folder: Path, version: str, floor: int, what: str) -> None:
    """The whole suite of one protocol version passes."""
    options = "--suite", "all", "--spec-version", version
    code, said, tally = suite.run_suite(url, folder / "first", *options)
    if tally.failures and all(failure.startswith(HURRIED) for failure in tally.failures):
        print(f"\nconformance {version}: {HURRIED} failed within its 600 ms; the suite runs once more")
        code, said, tally = suite.run_suite(url, folder / "second", *options)
    print(f"\nconformance {version} {what}: {tally.passed} passed, {dict(tally.counts)}")
    assert tally.failures == []
    assert code == 0, said[-2000:]
    assert tally.passed >= floor


@pytest.mark.parametrize(("version", "floor"), [("2025-11-25", 83), ("2026-07-28", 152)])
def test_every_check_that_can_cross_a_hop_passes(gateway: str, version: str, floor: int, tmp_path: Path) -> None:
    check_version(gateway, tmp_path, version, floor, "through the gateway")


@pytest.mark.parametrize(("version", "era", "floor"), [("2025-11-25", "modern", 83), ("2026-07-28", "legacy", 152)])
def test_client_of_one_era_finds_everything_on_the_other_era(
    upstream: str, version: str, era: str, floor: int, tmp_path: Path
) -> None:
    with gateway_before(upstream, tmp_path, era=era) as url:
        check_version(url, tmp_path / "results", version, floor, f"through the gateway, {era} upstream")


@pytest.mark.parametrize(("version", "floor"), [("2025-11-25", 84), ("2026-07-28", 152)])
def test_the_upstream_itself_passes_every_check(upstream: str, version: str, floor: int, tmp_path: Path) -> None:
    check_version(upstream, tmp_path, version, floor, "of the upstream itself")


def check_skills(url: str, folder: Path, what: str) -> None:
    total = suite.Tally()
    for scenario in SKILL_SCENARIOS:
        code, said, _ = suite.run_suite(url, folder / scenario, "--scenario", f"sep-2640-skills-{scenario}")
        total.add(folder / scenario)
        assert code == 0, said[-2000:]
    print(f"\nconformance skills {what}: {total.passed} passed, {dict(total.counts)}")
    assert total.failures == []
    assert total.unexercised == []
    assert total.passed >= 45


def test_every_check_of_the_skills_extension_passes(gateway: str, tmp_path: Path) -> None:
    check_skills(gateway, tmp_path, "of folders")


def test_every_skills_extension_check_passes_on_server_skills(gateway: str, tmp_path: Path) -> None:
    with gateway_http(tmp_path, {"mcpServers": {"behind": {"type": "http", "url": gateway}}}, "front") as url:
        check_skills(url, tmp_path / "results", "of a server")


def check_tasks(url: str, folder: Path, what: str) -> None:
    total = suite.Tally()
    for scenario in TASK_SCENARIOS:
        code, said, _ = suite.run_suite(url, folder / scenario, "--scenario", f"tasks-{scenario}")
        total.add(folder / scenario)
        assert code == 0, said[-2000:]
    print(f"\nconformance tasks {what}: {total.passed} passed, {dict(total.counts)}")
    assert total.failures == []
    assert total.passed >= 44


def test_every_tasks_extension_check_passes_on_relayed_tasks(upstream: str, tmp_path: Path) -> None:
    with gateway_before(upstream, tmp_path, tasks={"follow": False}) as url:
        check_tasks(url, tmp_path, "relayed")


OWN_JOB = """\
name: failing_job
description: Fails, and only runs as a task.
task: required
executors:
  fail: {python: "own_jobs:fail"}
start: fail
"""


def test_every_tasks_extension_check_passes_on_gateway_tasks(upstream: str, tmp_path: Path) -> None:
    """Promoted 2025 tools and a workflow run as tasks of the gateway; the tool that requests input before its task is relayed."""
    (tmp_path / "failing_job.workflow.yaml").write_text(OWN_JOB)
    (tmp_path / "own_jobs.py").write_text("def fail() -> str:\n    raise RuntimeError\n")
    jobs = ["slow_compute", "protocol_error_job", "confirm_delete", "multi_input"]
    plain: dict[str, Any] = {"prefix": "", "era": "legacy", "tools": {"allow": [*jobs, "greet"]}, "tasks": {"promote": jobs}}
    relayed: dict[str, Any] = {"prefix": "", "tools": {"allow": ["test_tool_with_task"]}}
    config = {
        "mcpServers": {name: {"type": "http", "url": upstream} for name in ("plain", "relayed")},
        "policies": {"plain": plain, "relayed": relayed, "workflow": {"prefix": ""}},
        "expose": {"agents": ["."]},
    }
    with gateway_http(tmp_path, config) as url:
        check_tasks(url, tmp_path, "of the gateway itself")

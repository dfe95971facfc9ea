"""The audit log's batches: what a kill loses, what a database that does not answer costs, and that refusals are stored first."""

from __future__ import annotations

import os
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, closing
from pathlib import Path

import anyio
import pytest

from gateway.auth.principal import Principal
from gateway.config.audit_settings import AuditSettings
from gateway.gate.call_journal import CallJournal
from gateway.gate.function_rules import FunctionRules
from gateway.gate.own_tools import OwnToolGates
from gateway.gate.pipeline import GateServices
from gateway.policy.metadata import VIA_KEY
from gateway.storage.audit_export import public_key, verify_export, write_export
from gateway.storage.audit_writer import MAX_CALLS, SETTLE_SECONDS
from gateway.storage.record_types import AuditEntry, ChainReport
from gateway.storage.records import Records
from gateway.storage.state_folder import StateFolder
from gateway.telemetry.gateway_events import EventStream
from gateway.tools.call_facts import CallFacts
from gateway.tools.context import CallContext
from gateway.tools.ports import ClientProfile
from gateway.tools.toolbox import guarded_by
from tests.fakes.running import ROOT
from tests.storage.kept.restored import restored

CALLER = Principal("key:ada", kind="key", client="oauth-client", owner="user:ada")

CALLING = """
import sys, time, anyio, pathlib
from gateway.auth.principal import Principal
from gateway.config.audit_settings import AuditSettings
from gateway.gate.audited_events import audit
from gateway.gate.call_journal import CallJournal
from gateway.storage.records import Records
from gateway.storage.state_folder import StateFolder
from gateway.telemetry.gateway_events import EventStream
from gateway.tools.call_facts import CallFacts
from gateway.tools.context import CallContext

async def main(folder, name):
    records, events = Records(StateFolder(pathlib.Path(folder)), audit_days=30), EventStream()
    journal = CallJournal(AuditSettings(), records.writer)
    audit(events, records)
    ctx = CallContext(CallFacts(principal=Principal("key:" + name)))
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(records.run)
        for number in range(1_000_000):
            journal.note("call.finished", name, str(number), ctx, {"outcome": "complete", "milliseconds": 1.0}, 10)
            if number % 50 == 0:
                events.emit("call.refused", source=name, name=f"refused-{number}", fields={"outcome": "refused", "rule": "scopes"})
                await events.stored()
                print("refused", number, time.time(), flush=True)
            await anyio.sleep(0.002)
            print("call", number, time.time(), flush=True)

anyio.run(main, *sys.argv[1:])
"""
"""A gateway's part that records calls, and reports each call and refusal that a caller would have got an answer for."""


def context(principal: Principal = CALLER, client: str = "Inspector") -> CallContext:
    return CallContext(CallFacts(principal=principal, client=ClientProfile(name=client)))


@asynccontextmanager
async def opened(folder: Path, settings: AuditSettings | None = None, *, runs: bool = False) -> AsyncGenerator[tuple[Records, CallJournal]]:
    records = Records(StateFolder(folder), audit_days=30)
    journal = CallJournal(settings or AuditSettings(), records.writer, b"k" * 32)
    try:
        async with anyio.create_task_group() as tasks:
            if runs:
                tasks.start_soon(records.run)
            yield records, journal
            tasks.cancel_scope.cancel()
    finally:
        await records.aclose()


async def entries(records: Records) -> list[AuditEntry]:
    return await (await records.audit()).read(with_calls=True, limit=100_000)


async def verified_entries(folder: Path) -> list[AuditEntry]:
    async with opened(folder) as (records, _):
        assert (await (await records.audit()).verify()).problem == ""
        return await entries(records)


@pytest.mark.timeout(80)
def test_kill_loses_at_most_a_second_of_calls_and_no_refusal(tmp_path: Path) -> None:
    """Two processes share one state folder; both are killed while they answer."""
    argv = [sys.executable, "-c", CALLING, str(tmp_path)]
    processes = [subprocess.Popen([*argv, name], cwd=ROOT, stdout=subprocess.PIPE, text=True) for name in "ab"]
    answered: dict[str, list[list[str]]] = {}
    for process in processes:
        assert process.stdout is not None
        for _ in range(600):
            process.stdout.readline()
    for name, process in zip("ab", processes, strict=True):
        assert process.stdout is not None
        lines = [process.stdout.readline() for _ in range(600)]
        killed_at = time.time()
        os.kill(process.pid, signal.SIGKILL)
        lines += [line for line in process.stdout.read().splitlines(keepends=True) if line.endswith("\n")]
        process.wait()
        process.stdout.close()
        answered[name] = [[*line.split(), str(killed_at)] for line in lines]
    stored = anyio.run(verified_entries, tmp_path)
    for name, lines in answered.items():
        found = {entry.name for entry in stored if entry.source == name}
        refused = [number for kind, number, *_ in lines if kind == "refused"]
        assert len(refused) > 5 and not [number for number in refused if f"refused-{number}" not in found]
        lost = [float(killed) - float(at) for kind, number, at, killed in lines if kind == "call" and number not in found]
        assert max(lost, default=0) < 1, f"calls of {name} that were answered more than a second before the kill are lost"
        assert len([number for kind, number, *_ in lines if kind == "call" and number in found]) > 300


async def test_entry_of_a_call_names_caller_client_endpoint_and_size(tmp_path: Path) -> None:
    async with opened(tmp_path) as (records, journal):
        journal.endpoint = "/mcp"
        journal.note("call.finished", "docs", "docs__search", context(), {"outcome": "complete", "milliseconds": 1.5}, 120)
        await records.flush()
        (found,) = await entries(records)
        assert await (await records.audit()).read() == [], "a list of decisions leaves calls out"
    assert (found.kind, found.source, found.name, found.principal) == ("call.finished", "docs", "docs__search", "key:ada")
    assert found.fields == {
        "outcome": "complete", "milliseconds": 1.5, "owner": "user:ada", "client": "Inspector", "oauthClient": "oauth-client",
        "endpoint": "/mcp", "bytes": 120,
    }  # fmt: skip


@pytest.mark.parametrize(("calls", "recorded"), [("authenticated", ["key:ada"]), ("all", ["local", "key:ada"]), ("none", [])])
async def test_setting_chooses_whose_calls_are_recorded(tmp_path: Path, calls: str, recorded: list[str]) -> None:
    async with opened(tmp_path, AuditSettings.model_validate({"calls": calls})) as (records, journal):
        for principal in (Principal("local", kind="local"), CALLER):
            journal.note("call.finished", "docs", "read", context(principal), {"outcome": "complete"}, None)
        await records.flush()
        assert [entry.principal for entry in await entries(records)] == recorded


async def test_successful_reads_are_sampled_and_failed_ones_kept(tmp_path: Path) -> None:
    settings = AuditSettings(read_sample=0.1, call_sample={"docs/find*": 0})
    async with opened(tmp_path, settings) as (records, journal):
        for number in range(400):
            for outcome in ("complete", "timeout"):
                read = {"method": "resources/read", "outcome": outcome}
                journal.note("read.finished", "docs", f"doc://{number}", context(), {**read}, None)
                call = {"outcome": outcome}
                journal.apply_rules("docs", "find_all", {}, call)
                journal.note("call.finished", "docs", "docs__find_all", context(), {**call}, None)
        await records.flush()
        found = await entries(records)
    kinds = [(entry.kind, entry.fields["outcome"]) for entry in found]
    assert 5 < kinds.count(("read.finished", "complete")) < 120
    assert kinds.count(("read.finished", "timeout")) == kinds.count(("call.finished", "timeout")) == 400
    assert kinds.count(("call.finished", "complete")) == 0
    assert {entry.fields.get("sample") for entry in found if entry.fields["outcome"] == "complete"} == {0.1}


async def test_arguments_are_recorded_only_as_rules_say(tmp_path: Path) -> None:
    rules = AuditSettings.model_validate({"arguments": {"docs/*": {"path": "keep", "secret*": "omit", "*": "hash"}}})
    arguments = {"path": "/notes/" + "x" * 1000, "secretToken": "hunter2", "text": "low entropy", "other": {"a": 1}}
    async with opened(tmp_path, rules) as (records, journal):
        for source in ("docs", "files"):
            fields = {"outcome": "complete"}
            journal.apply_rules(source, "write", arguments, fields)
            journal.note("call.finished", source, "write", context(), {**fields}, None)
        await records.flush()
        docs, files = await entries(records)
    kept = docs.fields["arguments"]
    assert kept["path"] == "/notes/" + "x" * 249 + "…" and sorted(kept) == ["other", "path", "text"]
    assert all(kept[name].startswith("hmac-sha256:") for name in ("other", "text")) and kept["other"] != kept["text"]
    assert "arguments" not in files.fields and "low entropy" not in str(docs.fields)


@pytest.mark.fault(13)
async def test_locked_database_delays_no_call_and_a_refusal_by_a_second(tmp_path: Path) -> None:
    async with opened(tmp_path, runs=True) as (records, journal):
        await records.audit()
        with closing(sqlite3.connect(tmp_path / "gateway.db", isolation_level=None)) as other:
            other.execute("BEGIN IMMEDIATE")
            records.note(AuditEntry(time.time(), "call.refused", "docs", "first"))
            started = time.monotonic()
            await records.writer.settle()
            assert SETTLE_SECONDS * 0.9 < time.monotonic() - started < SETTLE_SECONDS + 1
            started = time.monotonic()
            for number in range(MAX_CALLS + 7):
                journal.note("call.finished", "docs", str(number), context(), {"outcome": "complete"}, None)
            assert time.monotonic() - started < 5
            assert (records.writer.queued, records.writer.dropped) == (MAX_CALLS + 1, 7)
            other.execute("ROLLBACK")
        with anyio.fail_after(30):
            while records.writer.queued:
                await anyio.sleep(0.05)
        stored = await (await records.audit()).read(limit=10)
        assert [(entry.kind, entry.name, entry.fields.get("calls")) for entry in stored] == [
            ("call.refused", "first", None), ("audit.dropped", "", 7),
        ]  # fmt: skip
        assert (await (await records.audit()).verify()).entries == MAX_CALLS + 2


async def test_refusals_do_not_wait_again_while_the_database_fails(tmp_path: Path) -> None:
    async with opened(tmp_path, runs=True) as (records, _):
        await records.audit()
        with closing(sqlite3.connect(tmp_path / "gateway.db", isolation_level=None)) as other:
            other.execute("BEGIN IMMEDIATE")
            records.note(AuditEntry(time.time(), "call.refused", "docs", "first"))
            with anyio.fail_after(20):
                while not records.writer.is_failing:
                    await anyio.sleep(0.05)
            started = time.monotonic()
            for number in range(20):
                records.note(AuditEntry(time.time(), "call.refused", "docs", str(number)))
                await records.writer.settle()
            assert time.monotonic() - started < 0.5
            other.execute("ROLLBACK")
        with anyio.fail_after(20):
            while records.writer.queued:
                await anyio.sleep(0.05)
        assert len(await (await records.audit()).read()) == 21


async def test_oldest_entries_beyond_the_maximum_are_deleted(tmp_path: Path) -> None:
    records = Records(StateFolder(tmp_path), audit_days=30)
    records.writer.max_entries = 10
    try:
        for number in range(25):
            records.note(AuditEntry(time.time(), "ask.judged", "docs", str(number)))
        await records.flush()
        log = await records.audit()
        assert [entry.name for entry in await log.read()] == [str(number) for number in range(15, 25)]
        assert (await log.verify()).problem == ""
    finally:
        await records.aclose()


async def test_entry_has_the_gateways_and_the_agent_that_a_call_came_through(tmp_path: Path) -> None:
    services = GateServices(EventStream())
    gates = OwnToolGates(FunctionRules(lambda _: None, lambda _: ()), services)
    agent = guarded_by(context().with_meta({VIA_KEY: ["a" * 32, "b" * 32], "com.example/other": 1}), gates.guard_of("agent/clerk"))
    async with opened(tmp_path) as (records, journal):
        journal.note("call.finished", "docs", "docs__search", agent, {"outcome": "complete"}, None)
        await records.flush()
        (found,) = await entries(records)
    assert (found.fields["via"], found.fields["within"]) == (["a" * 32, "b" * 32], "agent/clerk")
    assert "com.example/other" not in found.fields


async def test_log_of_an_earlier_version_goes_on_as_one_chain(tmp_path: Path) -> None:
    """Entries of version 0.1 and of this one verify together, and are exported together."""
    kept = restored("0.1", tmp_path / "kept")
    async with opened(kept.folder / "state") as (records, journal):
        before = await records.key("audit-export")
        log = await records.audit()
        old = await log.verify()
        journal.note("call.finished", "docs", "docs__søk", context(), {"outcome": "complete", "milliseconds": 0.1, "tool": "\ud800"}, 3)
        await records.flush()
        assert old.problem == "" and old.entries > 0
        assert await log.verify() == ChainReport(old.entries + 1)
        done = await write_export(log, tmp_path / "out", "jsonl", since=0, seed=before, version="1")
    assert done.problem == "" and verify_export(tmp_path / "out", public_key(before))["entries"] == old.entries + 1

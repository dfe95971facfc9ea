"""Checks of `moongate doctor` about the gateways that share the database of `storage.url`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gateway.cli.checks import Check
from gateway.json_types import JsonObject

if TYPE_CHECKING:
    from gateway.storage.engine import Database
    from gateway.storage.refused_replicas import RefusedReplica
    from gateway.storage.replica_rows import SeenReplica


async def read_replicas(database: Database) -> tuple[list[SeenReplica], list[RefusedReplica]]:
    """Return the gateways in the database, and those that were refused within a day. Raises `StorageError`."""
    from gateway.storage.refused_replicas import recent_refusals
    from gateway.storage.replica_rows import ReplicaRows

    return await ReplicaRows(database).all(), await recent_refusals(database)


def replica_checks(seen: list[SeenReplica], refused: list[RefusedReplica]) -> list[Check]:
    """Return one check per gateway, and a warning if the running ones differ in version or configuration."""
    checks = [_seen_check(replica) for replica in seen]
    running = [replica.row for replica in seen if replica.is_running]
    versions = sorted({row.version for row in running})
    if len(versions) > 1:
        text = f"they run different versions of Moongate ({', '.join(versions)}), as during an upgrade"
        checks.append(Check("warn", "replicas", text, "Finish the upgrade: a release supports the release before it, and no other."))
    for address in sorted({row.address for row in running}):
        if sum(row.address == address for row in running) > 1:
            text = f"several of them name the address {address}, so requests that are forwarded to one reach another"
            fix = "Set `server.http.replicaAddress` of each gateway to the URL at which the others reach it."
            checks.append(Check("warn", "replicas", text, fix))
    known = sorted({row.configuration for row in running if row.configuration})
    if len(known) > 1:
        text = f"they have different configurations ({', '.join(known)}), so they answer differently"
        fix = "Give all of them the same file and secrets; changes in `storage`, `sessions`, `tasks` and most of `server` need a restart."
        checks.append(Check("warn", "replicas", text, fix))
    for peer in refused:
        text = f"refused {_ago(peer.seconds)} (Moongate {peer.version}): {peer.reason}"
        checks.append(Check("warn", f"replica {peer.name}", text, ""))
    return checks


def _seen_check(replica: SeenReplica) -> Check:
    row, subject = replica.row, f"replica {replica.row.name or replica.row.id}"
    about = f"{row.address}, Moongate {row.version}, configuration {row.configuration or 'unknown'}, seen {_ago(replica.seconds)}"
    if replica.is_running:
        return Check("ok", subject, about, "")
    return Check("warn", subject, f"{about}; it does not run any more, and did not stop in the usual way", "Look at its log.")


def _ago(seconds: float) -> str:
    if seconds < 120:
        return f"{round(seconds)} s ago"
    return f"{round(seconds / 60)} min ago" if seconds < 7200 else f"{round(seconds / 3600)} h ago"


def replicas_json(seen: list[SeenReplica], refused: list[RefusedReplica]) -> list[JsonObject]:
    """Return the gateways as `doctor --json` prints them. `state` is `running`, `silent` or `refused`."""
    found: list[JsonObject] = [
        {
            "name": replica.row.name, "address": replica.row.address, "version": replica.row.version,
            "configuration": replica.row.configuration, "seenSecondsAgo": round(replica.seconds, 1),
            "state": "running" if replica.is_running else "silent", "reason": None,
        }
        for replica in seen
    ]  # fmt: skip
    return found + [
        {
            "name": peer.name, "address": None, "version": peer.version, "configuration": None, "seenSecondsAgo": round(peer.seconds, 1),
            "state": "refused", "reason": peer.reason,
        }
        for peer in refused
    ]  # fmt: skip

"""Builds the `SourceStatus` (state, number of tools, error) of each source, for `moongate list`, `gateway_status` and the status page."""

from __future__ import annotations

import dataclasses
from typing import Literal

from gateway.config.models import ServerEntry, Transport
from gateway.config.read_entries import DisabledServer
from gateway.policy.caller_rights import Rights, admits
from gateway.tools.base import SourceStatus, ToolSource


def local_status(name: str, source: ToolSource, tools: int) -> SourceStatus:
    """Return the status of a source that runs in the gateway. `name` is its id, such as `agent`; `tools` is how many tools it serves."""
    problems = getattr(source, "problems", None)
    return SourceStatus(
        name=name,
        kind=name,  # pyright: ignore[reportArgumentType]  # the names of own sources are the other kinds
        transport="local",
        protocol_version="",
        state="ready",
        tools=tools,
        error=f"{len(problems)} problem(s); see `moongate doctor`" if problems else None,
    )


def server_status(status: SourceStatus, *, tools: int, withheld: int, waits_for: str | None) -> SourceStatus:
    """Return the status of a remote server, completed with facts that only the gateway has.

    `tools` is the number of the server's tools that clients see. `withheld` is the number of definitions (such as tools and prompts) that
    the gateway does not publish, because policy refuses them. `waits_for` is the name under which a person can accept a changed
    configuration entry of the server, or `None` if no change waits for acceptance.
    """
    note = f"{withheld} definition{'' if withheld == 1 else 's'} withheld; see `moongate doctor`" if withheld else None
    if waits_for is not None:
        accept = f"`moongate lock --accept {waits_for}` shows the change and accepts it"
        note = f"Its changed entry waits for acceptance, and the earlier one is in use: {accept}."
    return dataclasses.replace(status, tools=tools, error=status.error or status.loop or note)


def seen_status(status: SourceStatus, rights: Rights, tools: int) -> SourceStatus:
    """Return a status as a caller with these rights may see it. `tools` is the number of tools of the source that the caller may use."""
    native = [name for name in (*status.quarantined, *status.suspicious) if admits(rights, "tools", status.name, name)]
    return dataclasses.replace(
        status,
        tools=tools,
        quarantined={name: reason for name, reason in status.quarantined.items() if name in native},
        suspicious={name: reason for name, reason in status.suspicious.items() if name in native},
    )


def switched_off_status(name: str, entry: ServerEntry) -> SourceStatus:
    """Return the status of a server with `disabled: true` in the configuration."""
    return _status(name, entry.type, "disabled", "disabled in the configuration")


def unused_status(server: DisabledServer) -> SourceStatus:
    """Return the status of a server whose configuration entry is invalid, or waits until a person accepts the command in it."""
    error = f"{server.json_path}: {server.reason}"
    return _status(server.name, server.transport, "held" if server.waits_for else "disabled", error)


def _status(name: str, transport: Transport, state: Literal["held", "disabled"], error: str) -> SourceStatus:
    return SourceStatus(name=name, kind="server", transport=transport, protocol_version="", state=state, tools=0, error=error)

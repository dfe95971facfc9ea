"""`CallJournal`: records every call and read that passes the gate, for the audit log and for metrics. Used by `gate.pipeline`.

On the path of a call, `note` appends one small tuple to bounded queues. Everything else happens later, in batches: `storage.audit_writer`
makes the entries of the audit log with `CallJournal.entry`, and `telemetry` counts the calls. Refused calls are not queued here: their
event, with the same facts (`describe`), is stored before the answer is sent (`gate.audited_events`).
"""

from __future__ import annotations

import hmac
import random
import time
from collections.abc import Awaitable, Callable, Sequence

import anyio.to_thread

from gateway.auth.principal import Principal
from gateway.config.audit_settings import ArgumentForm, AuditSettings
from gateway.json_types import JsonMapping, JsonObject
from gateway.policy.audit_policy import recorded_arguments, rule_for
from gateway.policy.metadata import VIA_KEY, via_of
from gateway.policy.result_limits import measure_bytes
from gateway.storage.audit_writer import AuditWriter
from gateway.storage.record_types import AuditEntry
from gateway.storage.records import Records
from gateway.storage.state_folder import StateFolder
from gateway.telemetry.call_counts import CallCounts
from gateway.telemetry.gateway_load import Load
from gateway.tools.base import Complete, ToolOutcome
from gateway.tools.context import NO_RUN, CallContext
from gateway.tools.toolbox import guard_in

MAX_CLIENT_CHARS = 64
"""Maximum characters of the client's name in an entry. Clients choose their names."""

MAX_NAME_CHARS = 512
"""Maximum characters of the name or URI of what was called or read in an entry. Clients choose the URIs that they read."""

MAX_KNOWN_TOOLS = 10_000
"""Maximum number of tools whose rules are cached. At the limit the cache is cleared."""

_POLLS = "tasks/get"

Call = tuple[float, str, str, str, Principal, str, JsonObject, int | None, JsonObject | None]
"""A queued call: end (seconds since the epoch), kind of the event, source, name, principal, client, fields of the event, bytes of the
result (`None`: unknown), and further facts. Strings and principals are shared with other objects, or short."""

_Rules = tuple[dict[str, ArgumentForm] | None, float]


class CallJournal:
    """Records the calls and reads of one gateway for the audit log (`writer`) and the metrics (`counts`)."""

    def __init__(self, settings: AuditSettings, writer: AuditWriter | None, key: bytes = b"") -> None:
        """`key` is the secret key of the digests of arguments. Without `writer`, nothing is written to the audit log."""
        self._settings = settings
        self._writer = writer
        self._key = key
        self._records_local = settings.calls == "all"
        self._records = settings.calls != "none" and writer is not None
        self.notes_local = self._records and self._records_local
        """Whether calls of the local user are recorded or counted. If not, `note` need not be called for them."""
        self._rules: dict[tuple[str, str], _Rules] = {}
        self.has_rules = bool(settings.arguments or settings.call_sample)
        """Whether the configuration has rules for single tools, so that calls must record what the rules need (`apply_rules`)."""
        self.endpoint = ""
        """Path at which clients reach the gateway, such as `/mcp`; `stdio` over standard input and output."""
        self.counts: CallCounts | None = None
        """Counts the calls for metrics; `None` without metrics (`count_calls`)."""
        if writer is not None:
            writer.form = self.entry

    def count_calls(self) -> CallCounts:
        """From now on, count the calls for metrics. Return the counts."""
        if self.counts is None:
            self.counts = CallCounts(lambda: self.endpoint)
            self.notes_local = True
        return self.counts

    def export_to(self, send: Callable[[Sequence[AuditEntry]], Awaitable[None]]) -> None:
        """From now on, pass the entries of each batch to `send` after they were written to the audit log."""
        if self._writer is not None:
            self._writer.on_stored = send

    def load(self) -> Load:
        """Return the numbers of entries of the audit log that wait, and that were dropped, for metrics."""
        queued, dropped = (0, 0) if self._writer is None else (self._writer.queued, self._writer.dropped)
        return {"moongate.audit.queued": [(queued, {})], "moongate.audit.dropped": [(dropped, {})]}

    def note(self, kind: str, source: str, name: str, ctx: CallContext, fields: JsonObject, size: int | None) -> None:
        """Queue a finished call or read. `fields` are those of its event, and are not changed afterwards; `size` is that of the result.

        A refused call is only counted, because its event is written to the audit log.
        """
        facts = ctx.facts
        principal, counts = facts.principal, self.counts
        is_recorded = self._records and (self._records_local or principal.kind != "local") and fields["outcome"] != "refused"
        if not is_recorded and counts is None:
            return
        further = self._further(ctx) if facts.meta or ctx.run is not NO_RUN else None
        call = (time.time(), kind, source, name, principal, facts.client.name[:MAX_CLIENT_CHARS], fields, size, further)
        if is_recorded and self._writer is not None:
            self._writer.note_call(call)
        if counts is not None:
            counts.note(call)

    @staticmethod
    def size_of(outcome: ToolOutcome) -> int | None:
        """Return the bytes of a result as JSON, estimated if its JSON is unknown; `None` for another outcome."""
        if not isinstance(outcome, Complete):
            return None
        encoded = outcome.encoded
        return measure_bytes(outcome.result, 1 << 62) if encoded is None else sum(map(len, encoded))

    def apply_rules(self, source: str, tool: str, arguments: JsonMapping, fields: JsonObject) -> None:
        """Add to `fields` what the rules of the section `audit` need or request: the tool's name at its source, and arguments."""
        forms, rate = self._rules_of(source, tool)
        if rate < 1:
            fields["tool"] = tool
        if forms:
            fields["arguments"] = recorded_arguments(arguments, forms, self._digest)

    def describe(self, ctx: CallContext, size: int | None = None) -> JsonObject:
        """Return the facts about a call's caller and origin that its entry in the audit log has, besides those of the event."""
        facts = ctx.facts
        client = facts.client.name[:MAX_CLIENT_CHARS]
        return self._facts(facts.principal, client, size, self._further(ctx))

    def entry(self, call: Call) -> AuditEntry | None:
        """Return the entry of a queued call for the audit log; `None` if the call is not part of the sample."""
        at, kind, source, name, principal, client, fields, size, further = call
        described = {**fields, **self._facts(principal, client, size, further)}
        if fields.get("outcome") == "complete":
            rate = self._rate(kind, source, fields)
            if rate < 1:
                if random.random() >= rate:
                    return None
                described["sample"] = rate
        return AuditEntry(at, kind, source, name[:MAX_NAME_CHARS], principal.id, described)

    def _rate(self, kind: str, source: str, fields: JsonObject) -> float:
        if kind == "read.finished" or fields.get("method") == _POLLS:
            return self._settings.read_sample
        return self._rules_of(source, str(fields["tool"]))[1] if "tool" in fields else 1

    def _rules_of(self, source: str, tool: str) -> _Rules:
        known = self._rules.get((source, tool))
        if known is None:
            if len(self._rules) >= MAX_KNOWN_TOOLS:
                self._rules.clear()
            rate = rule_for(self._settings.call_sample, source, tool)
            known = self._rules[source, tool] = (rule_for(self._settings.arguments, source, tool), 1 if rate is None else rate)
        return known

    def _digest(self, value: bytes) -> str:
        return hmac.digest(self._key, value, "sha256").hex()[:32]

    def _facts(self, principal: Principal, client: str, size: int | None, further: JsonObject | None) -> JsonObject:
        facts: JsonObject = {"endpoint": self.endpoint} if self.endpoint else {}
        if principal.owner != principal.id:
            facts["owner"] = principal.owner
        if client:
            facts["client"] = client
        if principal.client:
            facts["oauthClient"] = principal.client
        if size is not None:
            facts["bytes"] = size
        return facts | further if further else facts

    def _further(self, ctx: CallContext) -> JsonObject | None:
        """Return the gateways that the call passed, and the agent or workflow that makes it; `None` for a direct call."""
        further: JsonObject = {}
        if VIA_KEY in ctx.facts.meta and (via := via_of(ctx.facts.meta)):
            further["via"] = list(via)
        if (guard := guard_in(ctx)) is not None:
            further["within"] = guard.source
        if ctx.facts.provenance.agent_depth > 1:
            further["depth"] = ctx.facts.provenance.agent_depth
        return further or None


async def open_journal(settings: AuditSettings, records: Records, state: StateFolder) -> CallJournal:
    """Return a journal that writes to the audit log of `records`. Raises `StorageError`."""
    key = await anyio.to_thread.run_sync(state.key, "audit-arguments") if settings.arguments else b""
    records.writer.max_entries = settings.max_entries
    return CallJournal(settings, records.writer, key)

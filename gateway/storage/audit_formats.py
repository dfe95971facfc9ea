"""Encodes entries of the audit log as JSON lines, CSV or OCSF events. Used by `audit_export`.

An OCSF event is one of the class *API Activity* (https://schema.ocsf.io) of version 1.3.0, with the profile *security control*.
"""

from __future__ import annotations

import csv
import io
import json
import time
from typing import Literal

from gateway.json_types import JsonObject, JsonValue
from gateway.storage.audit import StoredEntry

Format = Literal["jsonl", "csv", "ocsf"]

CSV_COLUMNS = (
    "id", "time", "kind", "source", "name", "principal", "owner", "client", "oauthClient", "endpoint", "outcome", "rule", "milliseconds",
    "bytes", "via", "within", "other", "digest",
)  # fmt: skip
"""Columns of a CSV export. `other` has all further facts as JSON."""

OCSF_VERSION = "1.3.0"

_FORMULA = ("=", "+", "-", "@", "\t", "\r", "\n")
"""First characters of a cell that a spreadsheet program may take for a formula."""

_API_ACTIVITY = 6003
_CATEGORY = 6
_READ, _OTHER = 2, 99
_SUCCEEDED, _FAILED = 1, 2
_GOOD = frozenset({"complete", "task", "input_required", "approved", "approved_always", "answered", "relayed", "allowed", ""})
"""Outcomes of successful entries."""


def to_line(stored: StoredEntry, form: Format, version: str) -> str:
    """Return an entry as a line of an export in the format `form`, with its line break. `version` is that of Moongate."""
    if form == "csv":
        return _csv_line(_cells(stored))
    return json.dumps(_to_json(stored) if form == "jsonl" else to_ocsf(stored, version), ensure_ascii=False) + "\n"


def header(form: Format) -> str:
    """Return the line that begins an export; empty if the format has none."""
    return _csv_line(list(CSV_COLUMNS)) if form == "csv" else ""


def moment(seconds: float) -> str:
    """Return a Unix time as ISO 8601 text in UTC, to the millisecond."""
    whole = int(seconds)
    return f"{time.strftime('%Y-%m-%dT%H:%M:%S', time.gmtime(whole))}.{int((seconds - whole) * 1000):03d}Z"


def _to_json(stored: StoredEntry) -> JsonObject:
    return {"id": stored.id, "time": moment(stored.entry.at), **stored.entry.to_json(), "digest": stored.digest}


def _cells(stored: StoredEntry) -> list[JsonValue]:
    facts = _to_json(stored)
    other = {key: value for key, value in facts.items() if key not in CSV_COLUMNS and key != "at"}
    cells = [facts.get(column) for column in CSV_COLUMNS]
    cells[CSV_COLUMNS.index("other")] = json.dumps(other, ensure_ascii=False) if other else None
    return cells


def _csv_line(cells: list[JsonValue]) -> str:
    out = io.StringIO()
    csv.writer(out, lineterminator="\n").writerow([_cell(value) for value in cells])
    return out.getvalue()


def _cell(value: JsonValue) -> str:
    """Return a cell's text. A text that a spreadsheet program could run as a formula gets an apostrophe before it."""
    if value is None:
        return ""
    if isinstance(value, bool | int | float):
        return json.dumps(value)
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return f"'{text}" if text.startswith(_FORMULA) else text


def to_ocsf(stored: StoredEntry, version: str) -> JsonObject:
    """Return an entry as an OCSF event of the class *API Activity*. Facts without an attribute of OCSF are in `unmapped`."""
    entry, fields = stored.entry, dict(stored.entry.fields)
    outcome = str(fields.pop("outcome", ""))
    is_refused = entry.kind.endswith(".refused") or outcome in ("refused", "denied", "expired")
    activity = _READ if entry.kind.startswith("read.") else _OTHER
    user: JsonObject = {"uid": str(fields.pop("owner", entry.principal)) or "gateway"}
    api: JsonObject = {"operation": entry.name or entry.kind, "service": {"name": entry.source or "gateway"}}
    event: JsonObject = {
        "class_uid": _API_ACTIVITY, "category_uid": _CATEGORY, "activity_id": activity, "type_uid": _API_ACTIVITY * 100 + activity,
        "activity_name": entry.kind, "time": round(entry.at * 1000), "severity_id": 2 if is_refused else 1,
        "status_id": _FAILED if is_refused or outcome not in _GOOD else _SUCCEEDED, "status": outcome or "complete",
        "action_id": 2 if is_refused else 1, "disposition_id": 2 if is_refused else 1,
        "metadata": {
            "version": OCSF_VERSION, "profiles": ["security_control"], "uid": str(stored.id), "log_name": "audit",
            "product": {"name": "Moongate", "vendor_name": "Moongate", "version": version},
        },
        "actor": {"user": user, "app_name": str(fields.pop("client", "")) or "unknown"},
        "src_endpoint": {"name": str(fields.pop("endpoint", "")) or "gateway", "uid": entry.principal or "gateway"},
        "api": api,
    }  # fmt: skip
    if "rule" in fields:
        event["status_detail"] = fields.pop("rule")
    if isinstance(milliseconds := fields.pop("milliseconds", None), int | float):
        event["duration"] = round(milliseconds)
    if "error" in fields:
        api["response"] = {"error": fields.pop("error")}
    event["unmapped"] = {**fields, "digest": stored.digest}
    return event

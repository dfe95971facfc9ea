"""Docstrings, comments and pages name modules of the package that exist."""

from __future__ import annotations

import re
from pathlib import Path

from gateway.config.json_schemas import build_schema
from gateway.json_types import JsonValue, children_of, members_of
from tests.architecture.sources import ROOT, name_of, python_files

PACKAGE = ROOT / "gateway"
REFERENCE = re.compile(r"`(?:gateway\.)?([a-z_0-9]+(?:\.[A-Za-z_0-9]+)+)`")
"""A dotted name in backticks, such as `server.dispatch` or `gate.pipeline.pass_gate`."""

EVENTS = {"catalog.changed"}
"""Names of events that begin like a package."""


def property_names(schema: JsonValue) -> set[str]:
    """Names of all properties anywhere in a JSON Schema: the last parts of configuration keys."""
    return set(members_of(members_of(schema).get("properties"))).union(*map(property_names, children_of(schema)))


def leads_to_code(reference: str) -> bool:
    """Whether a dotted name begins with a module, or a package, and goes on with a name that stands in the module."""
    place = PACKAGE
    parts = reference.split(".")
    for number, part in enumerate(parts):
        if (place / part).is_dir():
            place = place / part
            continue
        module = place / f"{part}.py"
        if not module.exists():
            return False
        return number + 1 == len(parts) or re.search(rf"\b{parts[number + 1]}\b", module.read_text(encoding="utf-8")) is not None
    return True


def stale_references(path: Path, keys: set[str]) -> list[str]:
    """The references of a file that begin with a package and lead neither to code nor to a configuration key."""
    found = REFERENCE.findall(path.read_text(encoding="utf-8"))
    others = [name for name in found if name not in EVENTS and name.rpartition(".")[2] not in keys]
    return [name for name in others if (PACKAGE / name.partition(".")[0]).is_dir() and not leads_to_code(name)]


def test_references_to_modules_lead_to_code() -> None:
    keys = property_names(build_schema())
    assert {"port", "auditDays", "issuer"} <= keys
    stale = {name_of(path): found for path in python_files("gateway") if (found := stale_references(path, keys))}
    assert stale == {}


def test_reference_to_a_missing_module_is_noticed(tmp_path: Path) -> None:
    page = tmp_path / "page.py"
    page.write_text("`gate.pipeline`, `gateway.gate.pipeline.pass_gate`, `server.http.port`, `gate.nothing`, `gate.pipeline.no_such_name`")
    assert stale_references(page, {"port"}) == ["gate.nothing", "gate.pipeline.no_such_name"]

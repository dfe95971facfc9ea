"""The JSON Schemas in `config/` match the schemas that the models generate."""

from __future__ import annotations

from pathlib import Path

from gateway.cli.schemas import KINDS, write_schemas
from tests.architecture.sources import ROOT


def test_the_committed_schemas_are_the_generated_ones(tmp_path: Path) -> None:
    for fresh in write_schemas(tmp_path):
        committed = ROOT / "config" / fresh.name
        assert committed.read_text(encoding="utf-8") == fresh.read_text(encoding="utf-8"), "run `make schemas`"


def test_every_kind_of_file_has_a_schema() -> None:
    assert {path.name for path in (ROOT / "config").glob("*.schema.json")} == {f"{kind}.schema.json" for kind in KINDS}

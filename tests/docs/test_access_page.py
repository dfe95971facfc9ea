"""The example of docs/access.md: its configuration, its table of decisions, and its Cedar policies."""

from __future__ import annotations

from pathlib import Path

from gateway.access.cedar_files import parse_policies
from gateway.access.cedar_schema import validate
from tests.docs.code_blocks import block_with, code_blocks
from tests.fakes.inside import command

PAGE = "docs/access.md"


def test_table_of_the_page_holds_for_its_configuration(tmp_path: Path) -> None:
    (tmp_path / "gateway.json").write_text(block_with(PAGE, '"mcpServers"'))
    (tmp_path / "table.yaml").write_text(table := block_with(PAGE, "callers:"))
    place = "--config", str(tmp_path / "gateway.json")
    done = command("policy", "test", str(tmp_path / "table.yaml"), *place)
    assert (done.code, done.out) == (0, "All 7 decisions are as expected.\n"), done.err
    (tmp_path / "table.yaml").write_text(table.replace("expect: approval", "expect: allow"))
    done = command("policy", "test", str(tmp_path / "table.yaml"), *place)
    assert done.code == 1 and "rows[1]  ann, github/merge_pull_request: expected allow, decided approval" in done.out


def test_cedar_policies_of_the_page_are_valid() -> None:
    schema = {"type": "object", "properties": {"amount": {"type": "number"}}, "required": ["amount"]}
    tools = {"billing": {"pay": schema}, "github": {"delete_repository": {"type": "object"}}}
    [block] = [block for block in code_blocks("access") if block.language == "cedar"]
    policies = parse_policies(block.body, "page.cedar")
    assert len(policies) == 3 and validate(policies, tools) == []

"""The argument rules that the documentation and the shipped configurations show: each is attacked, and lint finds nothing on them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gateway.config.jsonc import parse
from gateway.config.policies import SourcePolicy
from gateway.policy.argument_policy import ANY_TOOL, ArgumentPolicy
from gateway.policy.decision import Reject
from gateway.policy.lint import lint_names, lint_policy
from gateway.policy.tool_policy import judge_tool
from tests.architecture.documents import DOCUMENTS, blocks
from tests.architecture.sources import ROOT, name_of
from tests.fakes.bypasses import OTHER_TYPES, PATHS, RECIPIENTS, URLS, hosts_of, is_inside, places_of


def tool(*required: str, **properties: Any) -> dict[str, Any]:
    kinds = {name: {"type": kind} if isinstance(kind, str) else kind for name, kind in properties.items()}
    return {"type": "object", "properties": kinds, "required": list(required)}


STRINGS = {"type": "array", "items": {"type": "string"}}
SERVERS: dict[str, dict[str, Any]] = {
    "files": {
        **dict.fromkeys(("read_file", "read_text_file"), tool("path", path="string", head="number", tail="number")),
        **dict.fromkeys(("read_media_file", "list_directory", "get_file_info", "create_directory"), tool("path", path="string")),
        "read_multiple_files": tool("paths", paths=STRINGS),
        "list_directory_with_sizes": tool("path", path="string", sortBy={"enum": ["name", "size"]}),
        "directory_tree": tool("path", path="string", excludePatterns=STRINGS),
        "search_files": tool("path", "pattern", path="string", pattern="string", excludePatterns=STRINGS),
        "list_allowed_directories": tool(),
        "write_file": tool("path", "content", path="string", content="string"),
        "edit_file": tool("path", "edits", path="string", edits={"type": "array", "items": tool(oldText="string", newText="string")}),
        "move_file": tool("source", "destination", source="string", destination="string"),
    },
    "fetch": {"fetch": tool("url", url={"type": "string", "format": "uri"}, max_length="integer", start_index="integer", raw="boolean")},
    "notes": {
        "add_note": tool("text", text="string", tags=STRINGS),
        "find_notes": tool("query", query="string"),
        **dict.fromkeys(("read_note", "delete_note"), tool("id", id="integer")),
    },
    "orders": {"find_order": tool("number", number="string"), "refund": tool("number", "cents", number="string", cents="integer")},
    "web": {"get": tool("url", url="string"), "crawl": tool("url", url="string", depth="integer")},
    "mail": {"send": tool("to", to=STRINGS, subject="string", text="string")},
    "agent/clerk": {
        "file_access_save_file": tool("file_name", "content", file_name="string", content="string", overwrite="boolean"),
        **dict.fromkeys(("file_access_read_file", "file_access_delete_file"), tool("file_name", file_name="string")),
        **dict.fromkeys(("file_access_list_files", "file_access_list_subdirectories"), tool(directory={"type": ["string", "null"]})),
        "file_access_search_files": tool("regex_pattern", regex_pattern="string", file_pattern="string"),
        "write_memory": tool("text", text="string"),
    },
    "search": {"find": tool("query", query="string", limit="integer", project="string")},
}
"""The tools of the servers that examples name, with the argument names of the published ones."""


def policies() -> Iterator[tuple[str, str, SourcePolicy]]:
    """File, source and policy of every example with argument rules."""
    shipped = [ROOT / "config" / "gateway.json", *sorted((ROOT / "config" / "examples").glob("*.json"))]
    texts: list[tuple[Path, str]] = [(path, path.read_text()) for path in shipped]
    texts += [(path, block) for path in DOCUMENTS for language in ("json", "jsonc") for block in blocks(path, language)]
    for path, text in texts:
        if '"arguments"' not in text or '"policies"' not in text:
            continue
        for source, written in parse(text)["policies"].items():
            policy = SourcePolicy.model_validate(written)
            if policy.arguments:
                yield name_of(path), source, policy


EXAMPLES = list(policies())
IDS = [f"{path}:{source}" for path, source, _ in EXAMPLES]


def test_examples_with_rules_are_found_where_they_are_shown() -> None:
    shown = {path for path, _, _ in EXAMPLES}
    assert shown >= {"README.md", "docs/configuration.md", "config/gateway.json", "config/examples/filesystem.json"}
    assert {source for _, source, _ in EXAMPLES} <= SERVERS.keys(), "describe the tools of the new example's server above"


@pytest.mark.attack(20)
@pytest.mark.parametrize(("path", "source", "policy"), EXAMPLES, ids=IDS)
def test_lint_finds_nothing_on_an_example(path: str, source: str, policy: SourcePolicy) -> None:
    assert lint_names([source], SERVERS, SERVERS) == {}
    assert [f"{finding.path}: {finding.text}" for finding in lint_policy(policy, SERVERS[source]) if finding.kind != "note"] == []


def ruled(source: str, policy: SourcePolicy) -> Iterator[tuple[str, dict[str, Any], str, dict[str, Any]]]:
    """Yield tool name, schema, argument and rule for every served tool to which a rule applies."""
    for key, rules in policy.arguments.items():
        for name, schema in SERVERS[source].items():
            if key in (ANY_TOOL, name) and judge_tool(name, policy.tools.allow, policy.tools.deny):
                yield from ((name, schema, argument, rule) for argument, rule in rules.items() if argument in schema["properties"])


@pytest.mark.attack(20)
@pytest.mark.parametrize(("path", "source", "policy"), EXAMPLES, ids=IDS)
def test_no_known_bypass_passes_the_rules_of_an_example(path: str, source: str, policy: SourcePolicy) -> None:
    seen = 0
    for name, schema, argument, rule in ruled(source, policy):
        compiled = ArgumentPolicy.build(name, {**schema, "required": []}, (), policy.arguments)
        declared = schema["properties"][argument].get("type")
        is_list, takes_null = declared == "array", "null" in (declared or ())
        for bypass in bypasses(rule):
            if bypass is None and takes_null:
                continue
            value = ["harmless", bypass] if is_list and bypass is not None else bypass
            for given in (value, [value], {"path": value}, [bypass]) if isinstance(bypass, str) else (value,):
                verdict = compiled.judge({argument: given})
                assert isinstance(verdict, Reject), (name, argument, given)
                seen += 1
    assert seen


def bypasses(rule: dict[str, Any]) -> list[Any]:
    """Values that this rule must refuse, besides other types."""
    found: list[Any] = [value for value in OTHER_TYPES if not isinstance(value, list | int | float)]
    if "within" in rule:
        folders = [rule["within"]] if isinstance(rule["within"], str) else rule["within"]
        for path in PATHS:
            inside = [place for place in places_of(path) if any(is_inside(place, folder) for folder in folders)]
            if len(inside) < len(list(places_of(path))):
                found.append(path)
        found += [".git/config", "docs/.env"] if "not" in rule else []
    if "oneOfHosts" in rule:
        first = rule["oneOfHosts"][0].replace("*", "a")
        urls = [url.replace("api.example.com", first) for url in URLS]
        found += [url for url in urls if not url.startswith(f"https://x{first}/")] + [f"http://{first}/"]
    if "oneOfRecipients" in rule:
        found += RECIPIENTS
    if "maxLength" in rule:
        found.append("x" * (rule["maxLength"] + 1))
    if "maximum" in rule:
        found += ["1", rule["maximum"] + 1]
    if "enum" in rule:
        found.append("another")
    return found


@pytest.mark.parametrize(("path", "source", "policy"), EXAMPLES, ids=IDS)
def test_allowed_example_passes(path: str, source: str, policy: SourcePolicy) -> None:
    meant = {
        "path": "docs/guide.md", "file_name": "notes/a.md", "directory": "notes",
        "paths": ["docs/guide.md", "docs/a/b.png"], "text": "a note", "max_length": 5000, "limit": 10,
        "project": "alpha", "to": ["ann@example.com", "ops@example.org"], "cents": 4200,
    }  # fmt: skip
    for name, schema, argument, rule in ruled(source, policy):
        value = f"https://{rule['oneOfHosts'][0].replace('*', 'en')}/page" if "oneOfHosts" in rule else meant[argument]
        verdict = ArgumentPolicy.build(name, {**schema, "required": []}, (), policy.arguments).judge({argument: value})
        assert not isinstance(verdict, Reject), (name, argument, verdict)


def test_bypass_models_separate_good_values_from_bad() -> None:
    assert all(is_inside(place, "docs") for place in places_of("docs/a b/c.txt"))
    for path in ("docs/../x", "docs/%2e%2e/x", "docs\\..\\..\\x", "/etc/passwd", "~/x", "docs/\uff0e\uff0e/x", "docs/.. /../x"):
        assert not all(is_inside(place, "docs") for place in places_of(path)), path
    assert set(hosts_of("https://api.example.com/x").values()) == {"api.example.com"}
    assert set(hosts_of("https://api.example.com\\@evil.example/").values()) >= {"evil.example", "api.example.com"}

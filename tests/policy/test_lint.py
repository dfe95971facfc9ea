"""`lint_policy` and related functions name each rule that has no effect or cannot work, with its path."""

from __future__ import annotations

from typing import Any

import pytest

from gateway.config.policies import SourcePolicy
from gateway.policy.argument_policy import ArgumentPolicy
from gateway.policy.lint import lint_names, lint_policy, lint_unlisted

SCHEMAS: dict[str, Any] = {"read_text": {"properties": {"path": {"type": "string"}}}, "search": {"properties": {"q": {}}}, "gone": {}}


def policy_remarks(policy: SourcePolicy, schemas: dict[str, Any]) -> tuple[str, ...]:
    """Return path and text of each finding except notes."""
    return tuple(f"{finding.path}: {finding.text}" for finding in lint_policy(policy, schemas) if finding.kind != "note")


@pytest.mark.requirement(26)
@pytest.mark.parametrize(
    ("rules", "path"),
    [
        ({"tools": {"allow": ["read_*", "wrte_*"]}}, "tools.allow[1]"),
        ({"tools": {"deny": ["Search"]}}, "tools.deny[0]"),
        ({"additionalArguments": {"docs__search": ["x"]}}, "additionalArguments.docs__search"),
        ({"arguments": {"read_txt": {"path": {}}}}, "arguments.read_txt"),
        ({"arguments": {"read_text": {"pth": {}}}}, "arguments.read_text.pth"),
        ({"arguments": {"*": {"nowhere": {}}}}, "arguments.*.nowhere"),
        ({"arguments": {"read_text": {"path": {"type": "strng"}}}}, "arguments.read_text.path"),
        ({"arguments": {"read_text": {"path": {"$ref": "#/x"}}}}, "arguments.read_text.path"),
    ],
)
def test_rule_without_effect_is_named(rules: dict[str, Any], path: str) -> None:
    (remark,) = policy_remarks(SourcePolicy.model_validate(rules), SCHEMAS)
    assert remark.startswith(f"{path}: ")


def test_rules_that_work_are_not_mentioned() -> None:
    rules = {
        "tools": {"allow": ["*"], "deny": ["gone"]},
        "additionalArguments": {"*": ["trace"], "search": ["limit"]},
        "arguments": {
            "*": {"trace": {"type": "string"}, "q": {"type": "string", "maxLength": 9}},
            "search": {"limit": {"type": "integer", "maximum": 5}},
        },
    }
    assert policy_remarks(SourcePolicy.model_validate(rules), SCHEMAS) == ()
    assert policy_remarks(SourcePolicy(), {}) == ()


TOOLS: dict[str, Any] = {
    "read": {
        "properties": {
            "path": {"type": "string"},
            "any": {},
            "maybe": {"anyOf": [{"type": "string"}, {"type": "null"}]},
            "n": {"type": "integer"},
        },
        "required": ["path"],
    },
    "write": {"properties": {"session": {}, "path": {"$ref": "#/$defs/p"}}, "required": ["session"], "$defs": {"p": {"type": "string"}}},
}

Expected = list[tuple[str, str]]


@pytest.mark.parametrize(
    ("rules", "expected"),
    [
        ({"arguments": {"read": {"any": {"pattern": "^a$"}}}}, []),
        ({"arguments": {"read": {"any": {"pattern": "^a$", "type": "string"}}}}, []),
        ({"arguments": {"read": {"any": {"pattern": "^a$", "type": ["string", "array"]}}}}, [("arguments.read.any", "open")]),
        ({"arguments": {"read": {"maybe": {"pattern": "^a$"}}}}, []),
        ({"arguments": {"write": {"path": {"maxLength": 5}}}}, [("arguments.write.path", "open")]),
        ({"arguments": {"read": {"any": {"maximum": 5}}}}, []),
        ({"arguments": {"read": {"n": {"pattern": "^a$"}}}}, [("arguments.read.n", "conflict")]),
        ({"arguments": {"*": {"path": {"pattern": "docs"}}}}, [("arguments.*.path", "open")]),
        ({"arguments": {"*": {"path": {"pattern": "^(docs|[|]etc)$"}}}}, []),
        ({"arguments": {"*": {"path": {"patern": "^docs$"}}}}, [("arguments.*.path", "unusable")]),
        ({"arguments": {"read": {"path": {"description": "A file."}}}}, [("arguments.read.path", "open")]),
        ({"approval": {"always": ["delete_*"], "never": ["read"]}}, [("approval.always[0]", "open")]),
        ({"tools": {"deny": ["delete_*"]}}, [("tools.deny[0]", "open")]),
        ({"idempotent": ["nope"], "tasks": {"promote": ["read"]}}, [("idempotent[0]", "dead")]),
        ({"additionalArguments": {"read": ["path"]}}, [("additionalArguments.read", "dead")]),
        ({"tools": {"deny": ["read"]}, "arguments": {"read": {"n": {"maximum": 1}}}}, [("arguments.read", "dead")]),
        ({"overrides": {"raed": {}}}, [("overrides.raed", "dead")]),
        (
            {"overrides": {"read": {"fixed": {"tenant": 1}, "hide": ["x"]}}},
            [("overrides.read.hide", "dead"), ("overrides.read.fixed", "dead")],
        ),
        ({"overrides": {"read": {"fixed": {"n": "one"}}}}, [("overrides.read.fixed.n", "conflict")]),
        (
            {"overrides": {"read": {"fixed": {"n": 9}}}, "arguments": {"read": {"n": {"maximum": 5}}}},
            [("overrides.read.fixed.n", "conflict")],
        ),
        ({"overrides": {"read": {"defaults": {"n": 1}, "fixed": {"n": 2}}}}, [("overrides.read.defaults", "dead")]),
        ({"overrides": {"read": {"hide": ["path"]}}}, [("overrides.read.hide", "conflict")]),
        ({"overrides": {"read": {"hide": ["path"], "fixed": {"path": "a"}}}}, []),
        ({"overrides": {"read": {"name": "write"}}}, [("overrides.read.name", "conflict")]),
    ],
)
@pytest.mark.attack(20)
def test_open_and_contradicting_rules_are_found(rules: dict[str, Any], expected: Expected) -> None:
    policy = SourcePolicy.model_validate({"additionalArguments": {"write": ["session"]}, **rules})
    schemas: dict[str, Any] = {**TOOLS, "write": {**TOOLS["write"], "required": []}}
    found = [(finding.path, finding.kind) for finding in lint_policy(policy, schemas) if finding.kind != "note"]
    assert found == expected


def test_required_framework_name_is_a_conflict_for_servers_only() -> None:
    (finding,) = lint_policy(SourcePolicy(), TOOLS)
    assert (finding.path, finding.kind) == ("additionalArguments", "conflict")
    assert "'session'" in finding.text
    assert lint_policy(SourcePolicy(), TOOLS, is_local=True) == ()


def test_optional_argument_is_worth_a_note() -> None:
    policy = SourcePolicy.model_validate({"arguments": {"read": {"path": {"within": "docs/"}, "n": {"maximum": 5}}}})
    (note,) = lint_policy(policy, {"read": TOOLS["read"]})
    assert (note.path, note.kind) == ("arguments.read.n", "note")
    assert "optional" in note.text


# -- patterns --------------------------------------------------------------------------------------------------------

FILE: dict[str, Any] = {"read": {"properties": {"path": {"type": "string"}, "word": {"type": "string"}}, "required": ["path", "word"]}}
PAGE: dict[str, Any] = {"get": {"properties": {"url": {"type": "string"}}, "required": ["url"]}}
ADDRESSES: dict[str, Any] = {"type": "array", "items": {"type": "string", "format": "email"}}
MAIL: dict[str, Any] = {"send": {"properties": {"to": ADDRESSES}, "required": ["to"]}}


def findings(argument: str, rule: dict[str, Any], schemas: dict[str, Any]) -> list[str]:
    """Return the findings about one rule for all tools except notes."""
    policy = SourcePolicy.model_validate({"arguments": {"*": {argument: rule}}})
    return [f"{finding.kind}: {finding.text}" for finding in lint_policy(policy, schemas) if finding.kind != "note"]


@pytest.mark.attack(20)
@pytest.mark.parametrize(
    ("pattern", "says"),
    [
        ("abc", "begin it with '^'"),
        ("abc$", "begin it with '^'"),
        ("^abc", "end the pattern with '$'"),
        ("^abc\\$", "end the pattern with '$'"),
        ("^a|b", "belong to one alternative each"),
        ("^a|b$", "belong to one alternative each"),
        ("a|b", "begin it with '^'"),
        ("(?i)^abc$", "'(?i)' also accepts other letters"),
        ("^(?i:abc)$", "'(?i)' also accepts other letters"),
        ("(?m)^abc$", "match at every line"),
        ("(?sm)^abc$", "match at every line"),
        ("^(?!x)abc\\Z", "line break"),
    ],
)
def test_pattern_that_admits_unexpected_values_is_reported(pattern: str, says: str) -> None:
    assert any(says in text for text in findings("word", {"pattern": pattern}, FILE))
    assert any(says in text for text in findings("word", {"anyOf": [{"pattern": pattern}, {"const": "x"}]}, FILE))


@pytest.mark.parametrize("pattern", ["^abc$", "^(a|b)$", "^a$|^b$", "^[|$]$", "^(?:a|b)\\.md$", "^a\\|b$", "^PROJ-.*$", "^(?!x)[a-z]+$"])
def test_anchored_pattern_is_not_mentioned(pattern: str) -> None:
    assert findings("word", {"pattern": pattern}, FILE) == []


def test_dollar_refuses_a_line_break_at_the_end() -> None:
    for pattern in ("^abc$", "^(?=a)abc$", "^abc$|^x$"):
        check = ArgumentPolicy.build("read", FILE["read"], (), {"*": {"word": {"pattern": pattern}}})
        assert check.problem_of("arguments.*.word", "abc") is None
        assert check.problem_of("arguments.*.word", "abc\n") is not None


@pytest.mark.attack(20)
@pytest.mark.parametrize(
    ("schemas", "argument", "rule"),
    [
        (FILE, "path", {"pattern": "^docs/.*$"}),
        (FILE, "path", {"pattern": "^docs/[a-z/.]+\\.md$"}),
        (FILE, "path", {"pattern": "^docs/(?!.*\\.\\./).*$"}),
        (FILE, "path", {"pattern": "^[^/].*$"}),
        (FILE, "path", {"pattern": "^.*$"}),
        (FILE, "path", {"not": {"pattern": "\\.\\."}}),
        (FILE, "path", {"anyOf": [{"pattern": "^docs/.*$"}, {"const": "x"}]}),
        (PAGE, "url", {"pattern": "^https://.*$"}),
        (PAGE, "url", {"pattern": "^https://api\\.example\\.com.*$"}),
        (PAGE, "url", {"pattern": "^https://[a-z.]+/.*$"}),
        (PAGE, "url", {"pattern": "^https://api.example.com/.*$"}),
        (PAGE, "url", {"not": {"pattern": "localhost"}}),
        (MAIL, "to", {"pattern": "^.*@example\\.com$"}),
        (MAIL, "to", {"pattern": "^[a-z]+@example\\.com.*$"}),
        (MAIL, "to", {"pattern": "^[a-z]+@example.com$"}),
    ],
    ids=str,
)
def test_pattern_that_a_known_bypass_passes_is_found(
    schemas: dict[str, Any], argument: str, rule: dict[str, Any]
) -> None:
    found = findings(argument, rule, schemas)
    assert found and all(text.startswith("open: ") for text in found)
    assert any("within" in text or "oneOf" in text for text in found)


LOOSE: list[dict[str, Any]] = [
    {"minLength": 1}, {"maxLength": 300}, {"type": "string"}, {"type": "string", "minLength": 1}, {"format": "uri-reference"},
    {"not": {"const": "/etc/passwd"}}, {"items": {"minLength": 1}},
]  # fmt: skip


@pytest.mark.attack(20)
@pytest.mark.parametrize("rule", LOOSE, ids=str)
@pytest.mark.parametrize(("schemas", "argument", "word"), [(FILE, "path", "within"), (PAGE, "url", "oneOfHosts"), (MAIL, "to", "oneOf")])
def test_rule_that_does_not_confine_its_argument_is_found(
    schemas: dict[str, Any], argument: str, word: str, rule: dict[str, Any]
) -> None:
    assert any(text.startswith("open: the rule does not confine") and word in text for text in findings(argument, rule, schemas))
    assert not any("confine" in text for text in findings("word", rule, FILE))


@pytest.mark.parametrize(
    "rule", [{"maxItems": 3}, {"enum": ["a"]}, {"const": "a"}, {"not": {"pattern": "^/"}}, {"minLength": 1, "within": "."}], ids=str
)
def test_rule_that_confines_another_property_is_not_reported(rule: dict[str, Any]) -> None:
    assert not any("does not confine" in text for text in findings("paths", rule, {"read": {"properties": {"paths": {}}}}))


@pytest.mark.parametrize(
    ("schemas", "argument", "rule"),
    [
        (FILE, "path", {"within": "docs/"}),
        (FILE, "path", {"within": "docs/", "not": {"pattern": "(^|/)[.]"}}),
        (FILE, "path", {"pattern": "^docs/[a-z]+\\.md$"}),
        (FILE, "path", {"enum": ["docs/a", "docs/b"]}),
        (PAGE, "url", {"oneOfHosts": ["api.example.com"], "maxLength": 200}),
        (PAGE, "url", {"pattern": "^https://api\\.example\\.com/[a-z]*$"}),
        (MAIL, "to", {"oneOfRecipients": ["example.com"], "maxItems": 3}),
    ],
    ids=str,
)
def test_rule_that_holds_is_not_mentioned(schemas: dict[str, Any], argument: str, rule: dict[str, Any]) -> None:
    assert findings(argument, rule, schemas) == []


# -- gaps ------------------------------------------------------------------------------------------------------------


def text(**properties: Any) -> dict[str, Any]:
    schemas = {name: kind or {"type": "string"} for name, kind in properties.items()}
    return {"type": "object", "properties": schemas, "required": [*schemas]}


TEXTS = {"type": "array", "items": {"type": "string"}}
FILES: dict[str, Any] = {
    "read_text_file": text(path=None, head={"type": "number"}),
    "read_media_file": text(path=None),
    "read_multiple_files": text(paths=TEXTS),
    "move_file": text(source=None, destination=None),
    "edit_files": text(edits={"type": "array", "items": {"$ref": "#/$defs/edit"}}) | {"$defs": {"edit": text(filePath=None, text=None)}},
    "search": text(query=None, file_type=None, path_count={"type": "integer"}, path={"enum": ["a", "b"]}),
}
GAPS = {
    "arguments.edit_files.edits", "arguments.move_file.destination", "arguments.move_file.source", "arguments.read_media_file.path",
    "arguments.read_multiple_files.paths",
}  # fmt: skip


def gaps(policy: dict[str, Any], schemas: dict[str, Any] = FILES) -> set[str]:
    """Return the places where lint finds an argument without the rule that similar arguments have."""
    found = lint_policy(SourcePolicy.model_validate(policy), schemas)
    return {finding.path for finding in found if finding.kind == "open"}


@pytest.mark.attack(20)
@pytest.mark.parametrize("rule", [{"within": "docs/"}, {"pattern": "^docs/[a-z]+$"}, {"enum": ["docs/a"]}], ids=str)
def test_argument_of_another_tool_without_the_rule_is_a_gap(rule: dict[str, Any]) -> None:
    assert gaps({"arguments": {"read_text_file": {"path": rule}}}) == GAPS


CLOSED: list[tuple[dict[str, Any], set[str]]] = [
    ({"arguments": {"*": {"path": {"within": "docs/"}}}}, GAPS - {"arguments.read_media_file.path"}),
    ({"arguments": {"*": {"path": {"within": "docs/"}}}, "tools": {"allow": ["read_text_file", "read_media_file", "search"]}}, set()),
    ({"arguments": {"*": {"path": {"within": "docs/"}, "paths": {"within": "docs/"}}}, "tools": {"allow": ["read_*"]}}, set()),
    (
        {"arguments": {"*": {"path": {"within": "docs/"}}}, "tools": {"allow": ["read_text_file", "move_file"]}},
        {"arguments.move_file.destination", "arguments.move_file.source"},
    ),
    (
        {
            "arguments": {"read_text_file": {"path": {"within": "docs/"}}},
            "tools": {"allow": ["read_text_file", "read_media_file", "move_file"]},
            "overrides": {"read_media_file": {"fixed": {"path": "docs/logo.png"}}, "move_file": {"enabled": False}},
        },
        set(),
    ),
    ({"arguments": {"*": {"path": {"within": "docs/"}, "edits": {"items": {"properties": {"filePath": {"within": "docs/"}}}}}},
      "tools": {"allow": ["read_*_file", "edit_files"]}}, set()),
    ({"arguments": {"read_text_file": {"path": {"within": "docs/"}}, "*": {"path": {"maxLength": 9}}},
      "tools": {"allow": ["read_*_file"]}}, {"arguments.read_media_file.path", "arguments.*.path"}),
    ({"arguments": {"read_text_file": {"path": {"within": "docs/"}}, "*": {"path": {"maxLength": 9}}},
      "tools": {"allow": ["read_text_file"]}}, set()),
    ({"arguments": {"read_text_file": {"head": {"maximum": 9}}}}, set()),
    ({"arguments": {"*": {"path": {"maxLength": 9}}}}, {"arguments.*.path"}),
    ({"arguments": {"read_text_file": {"path": {"within": "docs/"}}, "read_media_file": {"path": {"within": ["/", "."]}}},
      "tools": {"allow": ["read_*_file"]}}, set()),
]  # fmt: skip


@pytest.mark.parametrize(("policy", "left"), CLOSED, ids=range(len(CLOSED)))
def test_gap_ends_with_a_rule_a_denied_tool_or_a_fixed_value(policy: dict[str, Any], left: set[str]) -> None:
    assert gaps(policy) == left


def test_gaps_are_found_for_any_argument_with_a_rule_keyword() -> None:
    at = {"type": "string", "format": "uri"}
    web: dict[str, Any] = {"get": text(url=None), "crawl": text(startUrl=None, q=None), "page": text(at=at)}
    assert gaps({"arguments": {"get": {"url": {"oneOfHosts": ["a.example"]}}}}, web) == {"arguments.crawl.startUrl", "arguments.page.at"}
    mail: dict[str, Any] = {"send": text(to=None, cc=TEXTS, subject=None), "invite": text(emails=TEXTS)}
    rules = {"send": {"to": {"oneOfRecipients": ["a.example"]}}}
    assert gaps({"arguments": rules}, mail) == {"arguments.send.cc", "arguments.invite.emails"}
    odd: dict[str, Any] = {"a": text(where=None), "b": text(where=None), "c": text(other=None)}
    assert gaps({"arguments": {"a": {"where": {"within": "docs/"}}}}, odd) == {"arguments.b.where"}


LISTING: dict[str, Any] = {
    "read_file": text(path=None),
    "write_file": text(path=None),
    "list_files": {"properties": {"path": {"anyOf": [{"type": "string"}, {"type": "null"}]}}},
    "find_text": {"properties": {"path": {"type": "string"}, "word": {"type": "string"}}, "required": ["word"]},
    "create_folder": {"properties": {"path": {"type": "string"}}},
    "search_files": text(regex=None),
    "list_roots_directories": {"properties": {}},
    "list_issues": text(query=None),
}
WITHIN: dict[str, Any] = {"*": {"path": {"within": "docs/"}}}
TEXT: dict[str, Any] = {"*": {"path": {"within": "docs/", "type": "string"}}}
DEFAULTS = {name: {"defaults": {"path": "docs"}} for name in ("list_files", "find_text")}
WHOLE = {"arguments.list_files.path", "arguments.find_text.path", "arguments.search_files"}

UNJUDGED: list[tuple[dict[str, Any], set[str]]] = [
    ({"arguments": WITHIN}, WHOLE),
    ({"arguments": TEXT}, WHOLE),
    ({"arguments": WITHIN, "overrides": DEFAULTS}, WHOLE - {"arguments.find_text.path"}),
    ({"arguments": TEXT, "overrides": DEFAULTS, "tools": {"deny": ["search_files"]}}, set()),
    ({"arguments": WITHIN, "overrides": {"list_files": {"fixed": {"path": "docs"}}}}, WHOLE - {"arguments.list_files.path"}),
    ({"arguments": WITHIN, "tools": {"allow": ["*_file", "create_folder", "list_issues"]}}, set()),
    ({"arguments": {**WITHIN, "search_files": {"regex": {"maxLength": 9}}}}, WHOLE - {"arguments.search_files"}),
    ({"arguments": {"*": {"path": {"within": ["docs/", "."]}}, "search_files": {"regex": {"maxLength": 9}}}}, set()),
    ({"arguments": {"write_file": {"path": {"maxLength": 9}}}}, {"arguments.write_file.path"}),
]


@pytest.mark.attack(20)
@pytest.mark.parametrize(("policy", "left"), UNJUDGED, ids=range(len(UNJUDGED)))
def test_reading_tool_that_runs_without_a_judged_path_is_a_gap(policy: dict[str, Any], left: set[str]) -> None:
    assert gaps(policy, LISTING) == left


# -- names -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("rules", "says"),
    [
        ({"arguments": {"read_txet": {"path": {"maxLength": 9}}}}, "Did you mean 'read_text'?"),
        ({"arguments": {"docs__read_text": {"path": {"maxLength": 9}}}}, "Did you mean 'read_text'?"),
        ({"arguments": {"read_text": {"pth": {"maxLength": 9}}}}, "Did you mean 'path'?"),
        ({"tools": {"deny": ["serch"]}}, "Did you mean 'search'?"),
        ({"overrides": {"saerch": {}}}, "Did you mean 'search'?"),
        ({"arguments": {"other": {"path": {"maxLength": 9}}}}, "Use the server's own name of the tool."),
    ],
)
def test_misspelled_name_comes_with_the_likely_one(rules: dict[str, Any], says: str) -> None:
    (remark,) = policy_remarks(SourcePolicy.model_validate(rules), SCHEMAS)
    assert remark.endswith(says)


def test_policy_of_an_unknown_source_is_dead() -> None:
    known = ["time", "agent", "workflow", "skill", "function", "gateway", "agent/clerk", "workflow/publish"]
    found = lint_names([*known, "tme", "xyz", "agent/clrk", "workflow/clerk"], ["time", "docs"], ["agent/clerk", "workflow/publish"])
    assert set(found) == {"tme", "xyz", "agent/clrk", "workflow/clerk"}
    assert {(finding.path, finding.kind) for of_name in found.values() for finding in of_name} == {("", "dead")}
    assert "Did you mean 'time'?" in found["tme"][0].text
    assert "Did you mean 'agent/clerk'?" in found["agent/clrk"][0].text


def test_rules_of_tools_known_only_in_a_run_are_checked() -> None:
    rules = {
        "save": {"file_name": {"pattern": "^notes/"}, "content": {"maxLength": 9}},
        "*": {"directory": {"within": "notes/"}, "x": {"patern": "a"}},
    }
    found = lint_unlisted(SourcePolicy.model_validate({"arguments": rules}), {})
    assert [(finding.path, finding.kind) for finding in found] == [
        ("arguments.save.file_name", "open"),
        ("arguments.save.file_name", "open"),
        ("arguments.*.x", "unusable"),
    ]


def test_rule_for_every_tool_that_fits_only_a_denied_tool_is_dead() -> None:
    policy = SourcePolicy.model_validate({"arguments": {"*": {"query": {"maxLength": 9}}}, "tools": {"deny": ["search"]}})
    assert [(f.path, f.kind) for f in lint_policy(policy, FILES) if f.kind != "note"] == [("arguments.*.query", "dead")]

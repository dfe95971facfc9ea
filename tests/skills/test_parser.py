"""The parser of `SKILL.md`: one case per row of the behaviour table, by code and level."""

from __future__ import annotations

import json

import pytest

from gateway.skills.model import SkillDocument
from gateway.skills.parser import LARGE_MANIFEST_BYTES, MAX_FRONTMATTER_BYTES, parse_skill


def parse(text: str | bytes, *, directory: str = "pdf", file_name: str = "SKILL.md") -> SkillDocument:
    return parse_skill(text if isinstance(text, bytes) else text.encode(), directory=directory, file_name=file_name)


def header(lines: str, body: str = "# Body\n") -> str:
    return f"---\n{lines.strip()}\n---\n{body}"


def levels(document: SkillDocument, level: str) -> set[str]:
    return {d.code for d in document.diagnostics if d.level == level}


GOOD = "name: pdf\ndescription: Reads PDF files."


def test_valid_skill_has_no_diagnostics() -> None:
    document = parse(header(GOOD + "\nlicense: MIT\ncompatibility: Any\nmetadata:\n  author: Ann"))
    assert document.diagnostics == ()
    assert document.conformant
    assert (document.name, document.description, document.body) == ("pdf", "Reads PDF files.", "# Body\n")


def test_unknown_keys_are_kept_with_info() -> None:
    document = parse(header(GOOD + "\nversion: 1.2.0\ntags: [a, b]"))
    assert levels(document, "info") == {"unknown-key"}
    assert not levels(document, "warning")
    assert document.frontmatter["tags"] == ["a", "b"]


@pytest.mark.requirement(102)
@pytest.mark.parametrize(
    ("extra", "code"),
    [
        ("metadata: {version: 1}", "metadata-type"),
        ("metadata: [a]", "metadata-type"),
        ("metadata: text", "metadata-type"),
        ("allowed-tools: [Read, Write]", "allowed-tools-type"),
        ("license: [MIT]", "license-type"),
        ("compatibility: [linux]", "compatibility-type"),
        (f"compatibility: {'x' * 501}", "compatibility-type"),
    ],
)
def test_wrong_field_types_are_warnings(extra: str, code: str) -> None:
    document = parse(header(f"{GOOD}\n{extra}"))
    assert levels(document, "warning") == {code}
    assert document.conformant
    assert next(d.line for d in document.diagnostics if d.code == code) == 4


@pytest.mark.requirement(99)
@pytest.mark.parametrize(("length", "expected"), [(1024, set[str]()), (1025, {"description-too-long"})])
def test_too_long_description_is_a_warning(length: int, expected: set[str]) -> None:
    document = parse(header(f"name: pdf\ndescription: {'x' * length}"))
    assert levels(document, "warning") == expected
    assert document.conformant


def test_compatibility_of_maximum_length_is_accepted() -> None:
    assert parse(header(f"{GOOD}\ncompatibility: {'x' * 500}")).diagnostics == ()


def test_byte_order_mark_is_a_warning() -> None:
    document = parse(b"\xef\xbb\xbf" + header(GOOD).encode())
    assert levels(document, "warning") == {"bom"}
    assert document.conformant
    assert document.name == "pdf"


def test_misspelled_file_name_is_a_warning() -> None:
    document = parse(header(GOOD), file_name="skill.md")
    assert levels(document, "warning") == {"file-name-case"}
    assert document.conformant


def test_name_unlike_folder_is_a_warning() -> None:
    document = parse(header(GOOD), directory="pdf-tools")
    assert levels(document, "warning") == {"name-not-directory"}
    assert document.conformant


def test_large_manifest_is_a_warning() -> None:
    document = parse(header(GOOD, body="x" * LARGE_MANIFEST_BYTES))
    assert levels(document, "warning") == {"large-manifest"}
    assert document.conformant


@pytest.mark.requirement(98)
@pytest.mark.parametrize("name", ["a", "sql-helper", "x" * 64, "a1-b2"])
def test_legal_names_are_accepted(name: str) -> None:
    document = parse(header(f'name: "{name}"\ndescription: d'), directory=name)
    assert document.diagnostics == ()


@pytest.mark.requirement(98)
@pytest.mark.parametrize("name", ["x" * 65, "PDF", "-a", "a-", "a--b", "a_b", "a b", "a/b", "größe", "..", "a\\u0000"])
def test_illegal_names_are_for_tools_only(name: str) -> None:
    document = parse(header(f'name: "{name}"\ndescription: d'))
    assert "name-illegal" in levels(document, "warning")
    assert not document.conformant
    assert not levels(document, "error")


@pytest.mark.parametrize("line", ["", "name:", 'name: ""'])
def test_missing_name_is_for_tools_only(line: str) -> None:
    document = parse(header(f"{line}\ndescription: d"))
    assert levels(document, "warning") == {"name-missing"}
    assert not document.conformant


def test_number_as_name_is_for_tools_only() -> None:
    document = parse(header("name: 123\ndescription: d"), directory="123")
    assert levels(document, "warning") == {"name-illegal"}


@pytest.mark.requirement(101)
@pytest.mark.parametrize(
    "value",
    ["Use when: always", "**Bold** start", "`code` first", "@mention", 'said "so": yes', "50% faster: really"],
)
def test_broken_yaml_is_parsed_line_by_line(value: str) -> None:
    document = parse(header(f"name: pdf\ndescription: {value}\nmetadata:\n  a: b"))
    assert levels(document, "warning") == {"yaml-repaired"}
    assert not document.conformant
    assert document.description == value
    assert document.frontmatter["metadata"] == {"a": "b"}
    assert next(d.line for d in document.diagnostics if d.code == "yaml-repaired") == 3


def test_repair_keeps_continuation_lines() -> None:
    document = parse(header("name: pdf\ndescription: Use when: a\n  second line\n  third"))
    assert document.description == "Use when: a second line third"


def test_irreparable_yaml_is_refused() -> None:
    document = parse(header("name: pdf\n{{{: [\n"))
    assert levels(document, "error") == {"yaml-syntax"}


@pytest.mark.parametrize("description", ["a\x07b", "a\x1b[31mred", '"a\\x07b"', "a\x85b"])
def test_control_characters_are_for_tools_only(description: str) -> None:
    document = parse(header(f"name: pdf\ndescription: {description}"))
    assert "control-characters" in levels(document, "warning")
    assert not document.conformant


def test_control_characters_in_body_have_a_line() -> None:
    document = parse(header(GOOD, body="fine\nnot \x1b[2J fine\n"))
    assert [(d.code, d.line) for d in document.diagnostics] == [("control-characters", 6)]


@pytest.mark.parametrize("hidden", ["\u202e", "\u2066", "\u200b", "\U000e0041"])
def test_hidden_text_is_a_warning(hidden: str) -> None:
    document = parse(header(GOOD, body=f"a{hidden}b"))
    assert levels(document, "warning") == {"hidden-characters"}
    assert document.conformant


@pytest.mark.requirement(101)
@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("# No frontmatter\n", "no-frontmatter"),
        ("", "no-frontmatter"),
        ("---\nname: pdf\ndescription: d\n", "unclosed-frontmatter"),
        ("---\n- a\n- b\n---\n", "frontmatter-not-mapping"),
        ("---\njust text\n---\n", "frontmatter-not-mapping"),
        ("---\nname: pdf\n---\n", "description-missing"),
        ("---\nname: pdf\ndescription:\n---\n", "description-missing"),
        ("---\nname: pdf\ndescription: '  '\n---\n", "description-missing"),
        ("---\nname: pdf\ndescription: [a]\n---\n", "description-missing"),
        ("---\n---\n", "description-missing"),
        ("---\nname: &n pdf\ndescription: *n\n---\n", "yaml-alias"),
        ("---\nname: !!str pdf\ndescription: d\n---\n", "yaml-tag"),
        ("---\nname: pdf\ndescription: d\nname: other\n---\n", "yaml-duplicate-key"),
        (f"---\nname: pdf\ndescription: d\nmetadata: {'[' * 100}{']' * 100}\n---\n", "yaml-depth"),
        (f"---\nname: pdf\ndescription: {'x' * MAX_FRONTMATTER_BYTES}\n---\n", "frontmatter-too-large"),
        (header(GOOD).encode("utf-16"), "not-utf8"),
        (header(GOOD, body="caf\xe9").encode("latin-1"), "not-utf8"),
    ],
)
def test_untrustworthy_yaml_is_refused_with_a_code(text: str | bytes, code: str) -> None:
    assert levels(parse(text), "error") == {code}


def test_alias_in_broken_yaml_is_refused() -> None:
    document = parse(header("name: pdf\ndescription: Use when: a\nmetadata:\n  a: &x [1]\n  b: *x"))
    assert levels(document, "error") == {"yaml-alias"}


def test_repeated_key_in_broken_yaml_is_refused() -> None:
    document = parse(header("name: pdf\ndescription: Use when: a\nname: other"))
    assert levels(document, "error") == {"yaml-duplicate-key"}


def test_diagnostic_lines_count_from_top_of_file() -> None:
    (finding,) = parse("---\nname: pdf\ndescription: d\nmetadata:\n  a: *x\n---\n").diagnostics
    assert finding.line == 5


@pytest.mark.parametrize("extra", ["hooks: {PreToolUse: x}", "model: opus", "context: fork", "allowed-tools: Bash(rm *)"])
def test_executable_fields_are_data_only(extra: str) -> None:
    document = parse(header(f"{GOOD}\n{extra}"))
    assert levels(document, "info") == {"executable-frontmatter"}
    assert not levels(document, "warning")


def test_command_expansions_stay_text() -> None:
    document = parse(header(GOOD, body="Now: !`date`\n"))
    assert [(d.code, d.line) for d in document.diagnostics] == [("executable-frontmatter", 5)]
    assert document.body == "Now: !`date`\n"


@pytest.mark.parametrize(
    ("value", "expected"),
    [("yes", "yes"), ("0123", 123), ("12:30:45", "12:30:45"), ("2026-01-31", "2026-01-31"), ("on", "on"), ("1e3", 1000.0)],
)
def test_values_follow_yaml_1_2(value: str, expected: object) -> None:
    assert parse(header(f"{GOOD}\nother: {value}")).frontmatter["other"] == expected


@pytest.mark.parametrize("value", [".inf", "-.inf", ".nan", "[1, .inf]", "{a: .nan}", "1e999"])
def test_non_json_numbers_are_for_tools_only(value: str) -> None:
    document = parse(header(f"{GOOD}\nother: {value}"))
    assert levels(document, "warning") == {"not-json"}
    assert not document.conformant


@pytest.mark.requirement(101)
@pytest.mark.parametrize(
    ("scalar", "expected"),
    [
        ("|\n  a\n  b", "a\nb\n"),
        (">\n  a\n  b", "a b\n"),
        (">-\n  a\n  b", "a b"),
        ('"a: b"', "a: b"),
        ("'it''s'", "it's"),
        ("a\n  b", "a b"),
    ],
)
def test_every_yaml_string_style_is_read(scalar: str, expected: str) -> None:
    document = parse(header(f"name: pdf\ndescription: {scalar}"))
    assert document.description == expected
    assert document.conformant


@pytest.mark.requirement(101)
@pytest.mark.parametrize("newline", ["\r\n", "\r"])
def test_other_line_ends_are_kept_in_body(newline: str) -> None:
    document = parse(header(GOOD, body="a\nb\n").replace("\n", newline))
    assert document.diagnostics == ()
    assert document.body == f"a{newline}b{newline}"


def test_dashes_in_body_do_not_end_frontmatter() -> None:
    document = parse(header("name: pdf\ndescription: 'a --- b'", body="one\n---\ntwo\n"))
    assert document.description == "a --- b"
    assert document.body == "one\n---\ntwo\n"


def test_body_start_is_offset_of_body() -> None:
    text = "\ufeff" + header(GOOD, body="größe\n")
    document = parse(text)
    assert text[document.body_start :] == "größe\n"


def test_diagnostic_is_json() -> None:
    (finding,) = parse("nothing").diagnostics
    assert json.loads(json.dumps(finding.to_json())) == {
        "code": "no-frontmatter",
        "level": "error",
        "message": finding.message,
        "line": 1,
    }

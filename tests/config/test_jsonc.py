"""Reading JSONC and editing it in place: everything but the one entry stays as it was."""

from __future__ import annotations

import json

import pytest

from gateway.config.jsonc import JsoncError, blank, insert_entry, parse, remove_entry
from gateway.errors import ConfigError

COMMENTED = """{
  // servers
  "mcpServers": {
    "a": {"url": "x"}, // about a
    /* b */ "b": {
      "command": "y" // no comma here
    } // end b
  }, // end
}
"""


def test_comments_and_trailing_commas_are_read() -> None:
    text = '\ufeff{"a": [1, 2, /* x */ ], // "b"\n "url": "http://x//y", "c": "/* no */",}'
    assert parse(text) == {"a": [1, 2], "url": "http://x//y", "c": "/* no */"}


def test_blanking_keeps_every_offset() -> None:
    assert len(blank(COMMENTED)) == len(COMMENTED)
    assert [line.rstrip() for line in blank(COMMENTED).splitlines()].index("") == 1


@pytest.mark.parametrize(
    ("text", "line", "column"),
    [
        ('{"a": 1,\n "b" 2}', 2, 6),
        ('{\n// c\n"a": [1,,2]}', 3, 9),
        ('{"a": [,]}', 1, 8),
        ('{\n "a": NaN}', 2, 7),
        ('{"a": 1} x', 1, 10),
        ('{"a": "x\ny"}', 1, 9),
        ("", 1, 1),
        ('{"a": {"k": 1,\n  "k": 2}}', 2, 3),
        ('[{"k": 1}, {"k": 1, "k": 2}]', 1, 21),
        ('{"a": 1} /* open', 1, 10),
    ],
)
def test_broken_text_is_an_error_with_line_and_column(text: str, line: int, column: int) -> None:
    with pytest.raises(JsoncError) as caught:
        parse(text)
    assert (caught.value.line, caught.value.column) == (line, column)


def test_absurd_nesting_is_refused_not_a_crash() -> None:
    with pytest.raises(JsoncError, match="Nested too deeply"):
        parse("[" * 200_000)


@pytest.mark.parametrize(
    "text",
    [
        COMMENTED,
        "{}",
        "{ // nothing yet\n}",
        '{"mcpServers": {}}',
        '{"mcpServers": {"a": {"command": "x"}}}',
        '{"mcpServers": {"a": {"command": "x"}, }, }',
        '{\n\t"mcpServers": {\n\t\t"a": {"command": "x"},\n\t},\n}\n',
        '{\r\n  "mcpServers": {\r\n    "a": {"command": "x"} // note\r\n  }\r\n}\r\n',
        '{\n    "mcpServers": { // here\n    },\n    "server": {}\n}',
        '{\n  "mcpServers": {\n    "a": {"command": "x"} /* a */ /* b\n */ , // c\n  }\n}',
        '{\n  "mcpServers": {"a": 1,\n    "b": {"x": [1, {"y": "}"}]}}\n}',
    ],
)
def test_inserted_entry_can_be_read_and_removed_again(text: str) -> None:
    value = {"command": "uvx", "args": ["a \"quoted\" // thing"], "env": {"K": "ü"}}
    inserted = insert_entry(text, ("mcpServers", "new"), value)
    assert parse(inserted)["mcpServers"]["new"] == value
    for line in text.splitlines():
        assert line.partition("//")[2] in inserted
    removed = remove_entry(inserted, ("mcpServers", "new"))
    assert parse(removed) == {"mcpServers": {}, **parse(text)}
    assert parse(removed) == parse(text) or "mcpServers" not in parse(text)


def test_removing_what_was_inserted_gives_the_same_text_back() -> None:
    inserted = insert_entry(COMMENTED, ("mcpServers", "docs"), {"url": "https://docs.example.com/mcp"})
    assert '    "docs": {"url": "https://docs.example.com/mcp"}\n' in inserted
    assert "    }, // end b\n" in inserted
    assert remove_entry(inserted, ("mcpServers", "docs")) == COMMENTED


def test_strict_json_stays_strict_json() -> None:
    text = json.dumps({"mcpServers": {"a": {"command": "x"}, "b": {"command": "y"}}}, indent=2)
    edited = insert_entry(text, ("mcpServers", "c"), {"command": "z" * 100, "args": ["1"]})
    assert list(json.loads(edited)["mcpServers"]) == ["a", "b", "c"]
    for name in ("c", "a", "b"):
        edited = remove_entry(edited, ("mcpServers", name))
        assert name not in json.loads(edited)["mcpServers"]


def test_line_ends_and_indentation_are_those_of_the_file() -> None:
    text = '{\r\n\t"mcpServers": {\r\n\t\t"a": 1\r\n\t}\r\n}\r\n'
    edited = insert_entry(text, ("mcpServers", "b"), {"args": ["x" * 60, "y" * 60]})
    assert "\n" not in edited.replace("\r\n", "")
    assert '\r\n\t\t"b": {\r\n\t\t\t"args": [\r\n' in edited


def test_existing_entry_is_replaced_only_on_request() -> None:
    with pytest.raises(ConfigError, match=r"mcpServers\.a exists already"):
        insert_entry(COMMENTED, ("mcpServers", "a"), 1)
    replaced = insert_entry(COMMENTED, ("mcpServers", "a"), {"url": "z"}, replace=True)
    assert replaced == COMMENTED.replace('{"url": "x"}', '{"url": "z"}')


def test_removing_a_missing_key_is_an_error() -> None:
    with pytest.raises(ConfigError, match=r"no mcpServers\.zzz"):
        remove_entry(COMMENTED, ("mcpServers", "zzz"))
    with pytest.raises(ConfigError, match=r"no policies\.zzz"):
        remove_entry(COMMENTED, ("policies", "zzz"))


def test_parent_that_is_not_an_object_is_an_error() -> None:
    with pytest.raises(ConfigError, match="mcpServers is not an object"):
        insert_entry('{"mcpServers": []}', ("mcpServers", "a"), {})

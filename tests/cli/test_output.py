"""Output on a terminal: every kind of content, without control characters from servers."""

from __future__ import annotations

import json

import pytest

from gateway.cli.output import block_text, clean, json_line, masked


def test_control_and_direction_characters_are_made_visible() -> None:
    assert clean("a\x1b[31mred\x07\u202e b\nc\r\nd\re") == "a\\x1b[31mred\\x07\\u202e b\nc\nd\\re"
    assert clean("a\tb") == "a   b"
    assert "\x1b" not in clean("\x1b]0;title\x07") and "\u202e" not in clean("\u202e")


def test_json_output_is_one_line_that_decodes_to_the_same() -> None:
    value = {"a": "\x1b[0m\u009b\u202e\u2028 ü 漢 \n"}
    line = json_line(value)
    assert json.loads(line) == value
    assert all(character.isprintable() for character in line)
    assert "ü 漢" in line


@pytest.mark.parametrize(
    ("block", "shown"),
    [
        ({"type": "text", "text": "hi"}, "hi"),
        ({"type": "image", "mimeType": "image/png", "data": "AAAA"}, "[image image/png, 3 bytes; use --json for the data]"),
        ({"type": "audio", "mimeType": "audio/wav", "data": "AAA="}, "[audio audio/wav, 2 bytes; use --json for the data]"),
        ({"type": "resource_link", "name": "n", "uri": "x://y"}, "[n: x://y]"),
        ({"type": "resource", "resource": {"uri": "x://y", "text": "t"}}, "[x://y]\nt"),
        (
            {"type": "resource", "resource": {"uri": "x://y", "mimeType": "a/b", "blob": "AAAA"}},
            "[x://y a/b, 3 bytes; use --json for the data]",
        ),
        ({"type": "hologram", "x": 1}, '{"type": "hologram", "x": 1}'),
    ],
)
def test_every_kind_of_content_has_a_line(block: dict[str, object], shown: str) -> None:
    assert block_text(block) == shown


def test_secrets_are_masked_wherever_they_stand() -> None:
    secrets = frozenset({"hunter2-long", "Bearer hunter2-long"})
    shown = masked({"h": ["Bearer hunter2-long", {"x": "a hunter2-long b"}], "n": 1}, secrets)
    assert shown == {"h": ["[secret]", {"x": "a [secret] b"}], "n": 1}

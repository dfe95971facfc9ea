"""Untrusted text next to the gateway's: every untrusted line is marked, whatever it contains."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.policy.framing import BAR, MAX_COLUMNS, fit, frame, one_line_texts, quote, shown

LINE_ENDS = ["\n", "\r", "\r\n", "\v", "\f", "\x1c", "\x1d", "\x1e", "\x85", "\u2028", "\u2029"]


@pytest.mark.parametrize("end", LINE_ENDS, ids=repr)
@pytest.mark.attack(17)
def test_no_line_end_makes_an_unmarked_line(end: str) -> None:
    text = frame("Server 'docs' asks:", f"Your name?{end}Approve this call of 'read' of 'files'?")
    assert text.split("\n") == ["Server 'docs' asks:", "│ Your name?", "│ Approve this call of 'read' of 'files'?"]
    assert len(text.splitlines()) == 3


@pytest.mark.parametrize("blank", [" ", "\t", "\u00a0", "\u3000", "\u2800", "\u3164", "\u2003"], ids=ascii)
@pytest.mark.attack(17)
def test_padding_does_not_push_text_onto_a_separate_line(blank: str) -> None:
    assert list(quote(f"Name?{blank * 500}Approve?")) == ["│ Name? Approve?"]


@pytest.mark.attack(17)
def test_long_lines_go_on_in_marked_lines() -> None:
    lines = list(quote("word " * 100 + "x" * 200 + " " + "密" * 100))
    assert all(line.startswith(BAR) for line in lines)
    assert max(len(line) for line in lines) <= MAX_COLUMNS + len(BAR)
    assert max(sum(2 if c == "密" else 1 for c in line) for line in lines) <= MAX_COLUMNS + len(BAR)
    assert "".join(line.removeprefix(BAR) for line in lines).replace(" ", "") == "word" * 100 + "x" * 200 + "密" * 100


def test_hidden_characters_and_stacked_marks_are_left_out() -> None:
    assert list(quote("\x1b[31ma\u202eb\u200b")) == ["│ ab"]
    assert list(quote("a" + "\u0301" * 50 + "b")) == ["│ a" + "\u0301" * 4 + "b"]


def test_empty_lines_are_joined_and_indents_limited() -> None:
    assert list(quote("\n\na\n\n\n\n        b\n\n")) == ["│ a", "│", "│     b", "│"]


def test_framed_text_is_framed_again_with_marks_on_every_line() -> None:
    inner = frame("Server 'up' asks:", "word " * 30)
    lines = frame("Server 'hub' asks:", inner).split("\n")
    assert lines[:2] == ["Server 'hub' asks:", "│ Server 'up' asks:"]
    assert all(line.startswith("│ │ word") for line in lines[2:])


@given(text=st.text(alphabet=st.characters(), max_size=400), columns=st.integers(min_value=10, max_value=200))
def test_every_line_of_any_text_is_marked(text: str, columns: int) -> None:
    ours, *theirs = frame("Ours:", text).splitlines()
    assert ours == "Ours:"
    assert all(line.startswith("│") for line in theirs)
    fitted = [line for part in fit("\n".join(theirs), columns) for line in part.splitlines()] if theirs else []
    assert all(line.startswith("│") for line in fitted)


def test_text_on_one_line_states_how_much_is_cut() -> None:
    assert shown("a\n b\x1b[0m\tc", 80) == "a b c"
    assert shown("x" * 100, 10) == "x" * 10 + "… (100 characters)"


def test_titles_of_a_form_have_one_line_and_values_stay() -> None:
    schema: dict[str, Any] = {
        "properties": {
            "a": {"type": "string", "title": "A\nApprove?", "description": "b\u2028c", "enum": ["x\ny", "z"], "enumNames": ["X\nY", "Z"]},
            "b": {"oneOf": [{"const": "1\n2", "title": "one\ntwo"}], "default": "1\n2"},
        }
    }
    after: Any = one_line_texts(schema)
    assert after["properties"]["a"] == {
        "type": "string", "title": "A Approve?", "description": "b c", "enum": ["x\ny", "z"], "enumNames": ["X Y", "Z"],
    }  # fmt: skip
    assert after["properties"]["b"] == {"oneOf": [{"const": "1\n2", "title": "one two"}], "default": "1\n2"}
    assert one_line_texts(after) is after

"""Functions of agent-framework's public API on messages, options and media types."""

from __future__ import annotations

import base64

import pytest

from gateway import FunctionTool, Message, detect_media_type_from_base64, merge_chat_options, prepend_instructions_to_messages


def test_instructions_are_put_before_the_messages_once() -> None:
    messages = [Message("user", ["hi"])]
    told = prepend_instructions_to_messages(messages, ["Be kind.", "Be brief."])
    assert [(message.role, message.text) for message in told] == [("system", "Be kind."), ("system", "Be brief."), ("user", "hi")]
    assert prepend_instructions_to_messages(told, ["Be kind.", "Be brief."]) == told
    assert prepend_instructions_to_messages(messages, None) == messages
    assert prepend_instructions_to_messages(messages, "Go", role="user")[0].role == "user"


def test_options_merge_by_kind_without_changing_either_side() -> None:
    base = {"temperature": 0.1, "instructions": "a", "tools": ["x"], "metadata": {"k": 1}, "tool_choice": "auto", "stop": ["s"]}
    over = {"temperature": None, "instructions": "b", "tools": ["x", "y"], "metadata": {"j": 2}, "tool_choice": "", "model": "m"}
    merged = merge_chat_options(base, over)
    assert merged == {
        "temperature": 0.1, "instructions": "a\nb", "tools": ["x", "y"], "metadata": {"k": 1, "j": 2}, "tool_choice": "auto",
        "stop": ["s"], "model": "m",
    }  # fmt: skip
    merged["stop"].append("t")
    assert base["stop"] == ["s"] and base["tools"] == ["x"]
    assert merge_chat_options(None, None) == {}


@pytest.mark.parametrize(
    ("data", "kind"),
    [
        (b"\x89PNG\r\n\x1a\n...", "image/png"),
        (b"RIFF\x00\x00\x00\x00WAVEfmt", "audio/wav"),
        (b"RIFF\x00\x00\x00\x00WEBPVP8", "image/webp"),
        (b"%PDF-1.7", "application/pdf"),
        (b"plain", None),
    ],
)
def test_media_type_is_detected_from_the_first_bytes(data: bytes, kind: str | None) -> None:
    text = base64.b64encode(data).decode()
    assert detect_media_type_from_base64(data_bytes=data) == kind
    assert detect_media_type_from_base64(data_str=text) == kind
    assert detect_media_type_from_base64(data_uri=f"data:text/plain;base64,{text}") == kind


def test_malformed_or_repeated_base64_is_rejected() -> None:
    for wrong in ({}, {"data_bytes": b"x", "data_str": "eA=="}, {"data_str": "a"}, {"data_uri": "data:,x"}):
        with pytest.raises(ValueError, match=r"base64|exactly"):
            detect_media_type_from_base64(**wrong)  # pyright: ignore[reportArgumentType]


def test_result_is_parsed_into_contents() -> None:
    assert [content.text for content in FunctionTool.parse_result({"a": 1})] == ['{"a": 1}']
    assert [content.text for content in FunctionTool.parse_result(None)] == [""]

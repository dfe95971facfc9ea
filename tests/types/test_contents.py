"""Contents of every type: factories, JSON form, and joining of streamed parts."""

from __future__ import annotations

import json
from typing import Any

import pytest

from gateway import AdditionItemMismatch, Annotation, ChatResponse, ChatResponseUpdate, Content, ContentError, Message, TextSpanRegion
from gateway.types.options import tool_mode

CALL = Content.from_function_call("c", "f", arguments={"a": 1})
REGION = TextSpanRegion(type="text_span", start_index=0, end_index=4)
CITED = Annotation(type="citation", title="Doc", url="https://x", snippet="s", annotated_regions=[REGION])

EVERY_KIND = [
    Content.from_text("hi", annotations=[CITED]),
    Content.from_text_reasoning(text="because", protected_data="opaque", id="r"),
    Content.from_uri("https://x/y.png", media_type="image/png"),
    Content.from_data(b"\x00\x01", media_type="image/png"),
    Content.from_error(message="m", error_code="c", error_details="d"),
    Content.from_usage({"input_token_count": 1}),
    CALL,
    Content.from_function_result("c", result=[Content.from_text("t"), Content.from_data(b"x", "image/png")], exception="e"),
    Content.from_function_approval_request(id="a", function_call=CALL),
    Content.from_function_approval_response(True, "a", CALL, additional_properties={"k": 1}),
    Content.from_hosted_file("f", media_type="text/csv", name="n"),
    Content.from_hosted_vector_store("v"),
    Content.from_code_interpreter_tool_call(call_id="c", inputs=[Content.from_text("1+1")]),
    Content.from_code_interpreter_tool_result(call_id="c", outputs=[Content.from_text("2")]),
    Content.from_image_generation_tool_call(image_id="i"),
    Content.from_image_generation_tool_result(image_id="i", outputs="data:image/png;base64,AA=="),
    Content.from_mcp_server_tool_call("c", "t", server_name="s", arguments="{}"),
    Content.from_mcp_server_tool_result("c", output={"type": "anything"}),
    Content.from_search_tool_call("c", tool_name="web", arguments={"q": "x"}, status="done"),
    Content.from_search_tool_result("c", tool_name="web", result={"n": 1}, items=[Content.from_uri("https://x")]),
    Content.from_shell_tool_call(call_id="c", commands=["ls"], timeout_ms=5, max_output_length=9, status="s"),
    Content.from_shell_tool_result(call_id="c", outputs=[Content.from_shell_command_output(stdout="o", exit_code=0)]),
    Content.from_shell_command_output(stdout="o", stderr="e", exit_code=1, timed_out=False),
    Content.from_oauth_consent_request("https://x/consent"),
]


@pytest.mark.parametrize("content", EVERY_KIND, ids=lambda content: content.type)
@pytest.mark.requirement("TY2", "TY10", "TY11")
def test_every_kind_of_content_survives_json(content: Content) -> None:
    again = Content.from_dict(json.loads(json.dumps(content.to_dict())))
    assert again == content
    assert again.to_dict() == content.to_dict()
    for nested in (again.items, again.inputs, again.function_call):
        assert nested is None or isinstance(nested, Content) or all(isinstance(item, Content) for item in nested)


@pytest.mark.requirement("TY2")
def test_there_are_the_kinds_that_agent_framework_has() -> None:
    assert len({content.type for content in EVERY_KIND}) == 24


@pytest.mark.requirement("TY2")
def test_unknown_fields_never_hide_the_methods_of_a_content() -> None:
    content = Content.from_dict({"type": "text", "text": "a", "to_dict": "no method", "new": [1]})
    content.text = "b"
    assert content.to_dict() == {"type": "text", "text": "b", "to_dict": "no method", "new": [1]}


@pytest.mark.parametrize(
    ("uri", "kind", "media_type"),
    [("https://x/a.png", "uri", None), ("data:image/png;base64,AA==", "data", "image/png"), ("data:,hi", "data", "text/plain")],
)
def test_data_uri_is_data_by_its_own_media_type(uri: str, kind: str, media_type: str | None) -> None:
    content = Content.from_uri(uri)
    assert (content.type, content.media_type) == (kind, media_type)
    assert content.has_top_level_media_type("image") is (media_type == "image/png")


@pytest.mark.requirement("AP1")
def test_only_an_approval_request_can_be_answered() -> None:
    answer = Content.from_function_approval_request("a", CALL).to_function_approval_response(False)
    assert (answer.type, answer.id, answer.approved, answer.function_call) == ("function_approval_response", "a", False, CALL)
    with pytest.raises(ContentError, match="function_approval_request"):
        CALL.to_function_approval_response(True)


def test_content_without_a_type_is_refused_with_a_reason() -> None:
    with pytest.raises(ContentError, match="type"):
        Message("user", [{"text": "?"}])


@pytest.mark.requirement("TY8")
def test_pieces_of_a_call_join_and_a_repeated_call_does_not() -> None:
    pieces = [("c1", "f", '{"a"'), ("", "", ": 1}"), ("c2", "g", "{}"), ("c2", "g", "{}")]
    updates = [ChatResponseUpdate(contents=[Content.from_function_call(i, n, arguments=a)], role="assistant") for i, n, a in pieces]
    [message] = ChatResponse.from_updates(updates).messages
    assert [(c.call_id, c.name, c.parse_arguments()) for c in message.contents] == [("c1", "f", {"a": 1}), ("c2", "g", {}), ("c2", "g", {})]


@pytest.mark.requirement("TY8", "TY10")
def test_annotation_that_comes_after_its_text_is_kept_with_it() -> None:
    updates = [ChatResponseUpdate([Content.from_text(t)], "assistant") for t in ("one ", "two ", "three")]
    updates.append(ChatResponseUpdate([Content.from_text("", annotations=[CITED])], "assistant"))
    [content] = ChatResponse.from_updates(updates).messages[0].contents
    assert (content.text, content.annotations) == ("one two three", [CITED])
    assert updates[0].text == "one "


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (Content.from_text("a"), CALL),
        (CALL, Content.from_function_call("other", "f", "")),
        (Content.from_text_reasoning("a", id="r1"), Content.from_text_reasoning("b", id="r2")),
        (EVERY_KIND[4], EVERY_KIND[4]),
    ],
)
def test_unrelated_contents_do_not_join(first: Content, second: Content) -> None:
    with pytest.raises(AdditionItemMismatch):
        _ = first + second


@pytest.mark.requirement("TY9", "TL10")
@pytest.mark.parametrize("choice", ["sometimes", {"mode": "auto", "required_function_name": "f"}, {}])
def test_tool_choice_that_means_nothing_is_refused(choice: Any) -> None:
    with pytest.raises(ValueError):
        tool_mode(choice)
    assert tool_mode("auto") == {"mode": "auto"}

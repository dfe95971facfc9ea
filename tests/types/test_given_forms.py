"""Forms in which callers may pass contents and times: dicts, strings, `datetime`; and what joined contents keep."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any

import pytest

from gateway import AgentResponse, AgentResponseUpdate, ChatResponse, ChatResponseUpdate, Content, Message
from gateway.errors import ContentError

TEXT: dict[str, Any] = {"type": "text", "text": "hi"}
MOMENT = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)

both_updates = pytest.mark.parametrize("kind", [AgentResponseUpdate, ChatResponseUpdate])
both_responses = pytest.mark.parametrize("kind", [AgentResponse, ChatResponse])


@both_updates
@pytest.mark.parametrize("contents", [[TEXT], ["hi"], TEXT, "hi", Content.from_text("hi"), (TEXT,)])
@pytest.mark.requirement("TY4")
def test_update_makes_contents_of_dicts_and_texts(kind: Any, contents: Any) -> None:
    update = kind(contents=contents, role="assistant")
    assert update.contents == [Content.from_text("hi")]
    assert (update.text, update.to_dict()["contents"]) == ("hi", [TEXT])


@pytest.mark.requirement("TY4", "TY5")
def test_types_of_an_update_let_texts_and_dicts_in() -> None:
    """Checked by `make types`, which fails if the parameter's type is narrower than the accepted values."""
    chat = ChatResponseUpdate(contents=[{"type": "text", "text": "hi"}, "ho"], created_at=MOMENT)
    agent = AgentResponseUpdate(contents=({"type": "text", "text": "hi"},), created_at=MOMENT)
    kept = [Content.from_text("a")]
    assert (chat.text, agent.text) == ("hiho", "hi")
    assert ChatResponseUpdate(kept).contents is kept, "a list of contents is not copied"


@pytest.mark.requirement("TY1", "TY4")
def test_content_of_another_type_is_refused_by_name() -> None:
    odd: Any = [5]
    for make in (lambda: AgentResponseUpdate(contents=odd), lambda: Message("user", odd)):
        with pytest.raises(ContentError, match="not int"):
            make()


@both_responses
@pytest.mark.requirement("TY1", "TY4", "TY5")
def test_response_takes_messages_in_json_form(kind: Any) -> None:
    message = {"role": "assistant", "contents": [TEXT]}
    assert kind(messages=[message]).text == kind(messages=message).text == "hi"
    assert Message("user", TEXT).text == "hi"


@both_updates
@pytest.mark.requirement("TY4", "TY5")
def test_datetime_is_iso_text_in_json_and_survives_folding(kind: Any) -> None:
    update = kind(contents=["a"], role="assistant", created_at=MOMENT)
    whole = AgentResponse.from_updates([update]) if kind is AgentResponseUpdate else ChatResponse.from_updates([update])
    assert update.created_at == whole.created_at == MOMENT
    assert json.loads(update.to_json())["created_at"] == whole.to_dict()["created_at"] == "2026-01-02T03:04:05+00:00"
    assert kind.from_json(update.to_json()).to_dict() == update.to_dict()


@pytest.mark.requirement("TY2")
def test_joined_contents_keep_every_raw_representation() -> None:
    one, two, three = (Content.from_text(text, raw_representation=raw) for text, raw in (("a", "r1"), ("b", "r2"), ("c", "r3")))
    assert (one + two + three).raw_representation == ["r1", "r2", "r3"]
    assert (Content.from_text("x") + two).raw_representation == "r2"
    assert (one + Content.from_text("x")).raw_representation == "r1"
    calls = [Content.from_function_call("1", "f", part, raw_representation=part) for part in ("{", "}")]
    assert (calls[0] + calls[1]).raw_representation == ["{", "}"]


@pytest.mark.requirement("TY2", "TY8")
def test_folded_stream_keeps_raw_representations_and_input_lists() -> None:
    given = ["mine"]
    raws = (None, given, "r2", "r3")
    updates = [ChatResponseUpdate([Content.from_text("t", raw_representation=raw)], "assistant") for raw in raws]
    for _ in range(2):
        [content] = ChatResponse.from_updates(updates).messages[0].contents
        assert (content.text, content.raw_representation) == ("tttt", ["mine", "r2", "r3"])
    assert given == ["mine"]


WHOLE: dict[Any, Any] = {AgentResponseUpdate: AgentResponse, ChatResponseUpdate: ChatResponse}


@both_updates
@pytest.mark.requirement("TY2", "TY8")
def test_folded_response_keeps_every_raw_representation(kind: Any) -> None:
    response = WHOLE[kind]
    given = ["r2"]
    updates = [kind(contents=["t"], role="assistant", raw_representation=raw) for raw in ("r1", None, given, "r3")]
    assert response.from_updates(updates).raw_representation == ["r1", "r2", "r3"]
    assert response.from_updates(updates[:2]).raw_representation == "r1"
    assert response.from_updates(updates[2:]).raw_representation == ["r2", "r3"] and given == ["r2"]


@both_updates
@pytest.mark.requirement("TY8")
def test_updates_of_two_authors_are_two_messages(kind: Any) -> None:
    response = WHOLE[kind]
    updates = [kind(contents=[text], role="assistant", author_name=author) for text, author in (("a", None), ("b", "ann"), ("c", "bob"))]
    assert [(message.text, message.author_name) for message in response.from_updates(updates).messages] == [("ab", "ann"), ("c", "bob")]


@pytest.mark.requirement("TY3")
def test_items_of_a_result_hold_its_text_or_json() -> None:
    result = Content.from_function_result("1", result="sunny")
    assert result.items == [Content.from_text("sunny")]
    assert Content.from_dict(result.to_dict()) == result
    assert "items" not in result.to_dict()  # stored once: the text is the result
    image = Content.from_data(b"a", "image/png")
    rich = Content.from_function_result("1", result=[Content.from_text("x"), image])
    assert rich.items == [Content.from_text("x"), image]
    assert Content.from_function_result("1", result={"a": "ä"}).items == [Content.from_text('{"a": "ä"}')]
    assert Content.from_function_result("1").items is None
    assert Content.from_text("x").items is None

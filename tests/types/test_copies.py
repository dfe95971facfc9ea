"""Deep copies share the provider's own object; parts of responses show their text and have a JSON form."""

from __future__ import annotations

import copy
from typing import Any, get_origin

import pytest

from gateway import (
    Agent,
    AgentResponse,
    AgentResponseUpdate,
    ChatOptions,
    ChatResponse,
    ChatResponseUpdate,
    Content,
    Message,
    ScriptedChatClient,
)
from gateway.types.annotations import add_usage


class Raw:
    """An object that cannot be copied, such as an open connection."""

    def __deepcopy__(self, memo: Any) -> Any:
        raise TypeError("not to be copied")


RAW = Raw()


@pytest.mark.requirement("TY1", "TY4")
@pytest.mark.parametrize(
    "original",
    [
        Content("text", text="hi", raw_representation=RAW, additional_properties={"a": [1]}),
        Message("user", ["hi"], raw_representation=RAW, additional_properties={"a": [1]}),
        ChatResponse([Message("user", ["hi"])], raw_representation=RAW, additional_properties={"a": [1]}),
        AgentResponse([Message("user", ["hi"])], raw_representation=RAW, additional_properties={"a": [1]}),
        ChatResponseUpdate([Content.from_text("hi")], raw_representation=RAW, additional_properties={"a": [1]}),
        AgentResponseUpdate([Content.from_text("hi")], raw_representation=RAW, additional_properties={"a": [1]}),
    ],
    ids=lambda original: type(original).__name__,
)
def test_deep_copy_is_its_own_but_for_the_providers_object(original: Any) -> None:
    made = copy.deepcopy(original)
    assert made.to_dict() == original.to_dict()
    assert made.raw_representation is RAW
    made.additional_properties["a"].append(2)
    assert original.additional_properties == {"a": [1]}


@pytest.mark.requirement("TY4")
@pytest.mark.parametrize("kind", [ChatResponseUpdate, AgentResponseUpdate])
def test_parts_of_responses_show_their_text_and_survive_json(kind: Any) -> None:
    contents = [Content.from_text("a"), Content.from_function_call("c", "look", {})]
    part = kind(contents, "assistant", finish_reason="stop", raw_representation=RAW)
    assert (str(part), f"{part}") == ("a", "a")
    assert kind.from_json(part.to_json()).to_dict() == part.to_dict()
    assert part.to_dict()["contents"][1]["name"] == "look"


def test_errors_show_their_message() -> None:
    assert str(Content.from_error(message="Oops", error_code="E1")) == "Error E1: Oops"
    assert str(Content.from_error(message="Oops")) == "Oops"


@pytest.mark.requirement("TY12")
def test_values_that_are_not_numbers_are_not_added() -> None:
    assert add_usage({"a": 1, "b": 2}, {"a": 2, "model": "x"}) == {"a": 3, "b": 2}  # pyright: ignore[reportArgumentType]  # as a provider sends it


@pytest.mark.requirement("AG9")
def test_agents_and_responses_accept_the_annotated_types() -> None:
    class Mine(ChatOptions, total=False):
        effort: str

    agent = Agent[Mine](ScriptedChatClient([]), default_options=Mine(effort="low"))
    assert agent.default_options == {"effort": "low"}
    assert (AgentResponse[int] == AgentResponse[str], get_origin(ChatResponse[int])) == (False, ChatResponse)

"""Contents of Responses API output besides text, and requests that send them back."""

from __future__ import annotations

from typing import Any

import pytest

from gateway import Content, FunctionTool, Message, OpenAIChatClient
from tests.chat.asking import STREAMED, WHOLE, ask, both_ways
from tests.fakes.openai_server import ScriptedServer

PNG = "iVBORw0KGgo="
SPAN = {"start_index": 0, "end_index": 5}
CITATIONS = [
    {"type": "url_citation", "url": "https://example.com/a", "title": "A", **SPAN},
    {"type": "file_citation", "file_id": "f1", "filename": "a.txt", "index": 3},
    {"type": "container_file_citation", "container_id": "c1", "file_id": "f2", "filename": "plot.png", **SPAN},
    {"type": "file_path", "file_id": "f3", "index": 1},
]
HOSTED = [
    {"type": "web_search_call", "id": "ws1", "status": "completed", "action": {"type": "search", "query": "moon"}},
    {"type": "file_search_call", "id": "fs1", "status": "completed", "queries": ["gate"], "results": [{"file_id": "f1", "score": 0.5}]},
    {
        "type": "code_interpreter_call",
        "id": "ci1",
        "container_id": "c1",
        "code": "print(1)",
        "outputs": [{"type": "logs", "logs": "1"}, {"type": "image", "url": "https://example.com/plot.png"}],
    },
    {"type": "mcp_call", "id": "mcp1", "server_label": "docs", "name": "read", "arguments": '{"a": 1}', "output": "text of a"},
    {"type": "image_generation_call", "id": "ig1", "result": PNG},
    {"type": "shell_call", "call_id": "sh1", "action": {"commands": ["ls"], "timeout_ms": 10}, "status": "completed"},
    {"type": "shell_call_output", "call_id": "sh1", "output": [{"stdout": "a", "stderr": "", "outcome": {"type": "exit", "exit_code": 0}}]},
    {"type": "brain_scan_call", "id": "bs1", "waves": [1, 2]},
]


def said(text: str, **part: Any) -> dict[str, Any]:
    content: list[Any] = [{"type": "output_text", "text": text, "annotations": [], **part}]
    return {"type": "message", "id": "m1", "role": "assistant", "content": content}


async def sent_back(client: OpenAIChatClient, server: ScriptedServer, messages: list[Message]) -> list[dict[str, Any]]:
    """Return the input items for a conversation."""
    await server.play({"text": "ok"})
    await ask(client, WHOLE, [*messages, Message("user", "go on")])
    [request] = await server.requests()
    return request["body"]["input"]


@both_ways
@pytest.mark.requirement("CL7", "CL8")
async def test_provider_side_work_arrives_as_calls_with_results(
    responses: OpenAIChatClient, server: ScriptedServer, stream: bool
) -> None:
    await server.play({"output": [*HOSTED, said("done")]})
    response = await ask(responses, stream)
    by_type: dict[str, Content] = {content.type: content for content in response.messages[0].contents}
    assert by_type["search_tool_call"].tool_name == "file_search"
    assert by_type["search_tool_result"].result == {"results": [{"file_id": "f1", "score": 0.5}]}
    assert by_type["code_interpreter_tool_call"].inputs == [Content.from_text("print(1)")]
    assert [output.type for output in by_type["code_interpreter_tool_result"].outputs] == ["text", "uri"]
    assert (by_type["mcp_server_tool_call"].server_name, by_type["mcp_server_tool_call"].tool_name) == ("docs", "read")
    assert by_type["mcp_server_tool_result"].output == [Content.from_text("text of a")]
    assert by_type["image_generation_tool_result"].outputs == Content.from_data(PNG, "image/png")
    assert by_type["shell_tool_call"].commands == ["ls"]
    assert by_type["shell_tool_result"].outputs[0].exit_code == 0
    assert response.text == "done"


@both_ways
@pytest.mark.requirement("CL7")
async def test_unknown_item_kind_survives_and_returns_unchanged(
    responses: OpenAIChatClient, server: ScriptedServer, stream: bool
) -> None:
    await server.play({"output": [HOSTED[-1], said("done")]})
    response = await ask(responses, stream)
    restored = Message.from_dict(response.messages[0].to_dict())
    assert restored.contents[0].type == "brain_scan_call"
    assert HOSTED[-1] in await sent_back(responses, server, [restored])


@both_ways
@pytest.mark.requirement("CL8")
async def test_citations_arrive_with_their_text_and_are_sent_back(
    responses: OpenAIChatClient, server: ScriptedServer, stream: bool
) -> None:
    await server.play({"output": [said("Moon!", annotations=CITATIONS)]})
    response = await ask(responses, stream)
    [text] = response.messages[0].contents
    assert text.text == "Moon!"
    found = list(text.annotations or ())
    assert [a.get("url") for a in found] == ["https://example.com/a", "a.txt", "plot.png", None]
    assert found[0].get("annotated_regions") == [{"type": "text_span", **SPAN}]
    [assistant, _] = await sent_back(responses, server, response.messages)
    assert assistant["content"] == [{"type": "output_text", "text": "Moon!", "annotations": CITATIONS}]


@both_ways
@pytest.mark.requirement("CL8")
async def test_only_encrypted_reasoning_is_sent_back(
    responses: OpenAIChatClient, server: ScriptedServer, stream: bool
) -> None:
    summary = [{"type": "summary_text", "text": "first"}, {"type": "summary_text", "text": "second"}]
    sealed = {"type": "reasoning", "id": "rs1", "summary": summary, "encrypted_content": "xyz"}
    plain = {"type": "reasoning", "id": "rs2", "summary": [{"type": "summary_text", "text": "third"}]}
    await server.play({"output": [sealed, said("one"), plain, HOSTED[3], said("two")]})
    response = await ask(responses, stream, options={"reasoning": {"effort": "low"}})
    assert "".join(c.text or "" for c in response.messages[0].contents if c.type == "text_reasoning") == "firstsecondthird"
    [request] = await server.requests()
    assert request["body"]["include"] == ["reasoning.encrypted_content"]
    items = await sent_back(responses, server, response.messages)
    [reasoning] = [item for item in items if item["type"] == "reasoning"]
    assert (reasoning["id"], reasoning["encrypted_content"]) == ("rs1", "xyz")
    assert "".join(part["text"] for part in reasoning["summary"]) == "firstsecond"
    assert not [item for item in items if item["type"] == "mcp_call"], "a remote call without its reasoning is rejected"


@pytest.mark.requirement("CL8")
async def test_remote_call_goes_back_as_one_item_with_its_output(responses: OpenAIChatClient, server: ScriptedServer) -> None:
    await server.play({"output": [HOSTED[3], said("done")]})
    response = await ask(responses, STREAMED)
    [call] = [item for item in await sent_back(responses, server, response.messages) if item["type"] == "mcp_call"]
    assert {key: call[key] for key in ("server_label", "name", "output")} == {"server_label": "docs", "name": "read", "output": "text of a"}


@both_ways
@pytest.mark.requirement("CL8")
async def test_refusal_is_text_marked_as_a_refusal(responses: OpenAIChatClient, server: ScriptedServer, stream: bool) -> None:
    refusal = {"type": "message", "id": "m1", "role": "assistant", "content": [{"type": "refusal", "refusal": "I will not."}]}
    await server.play({"output": [refusal]})
    response = await ask(responses, stream)
    [content] = response.messages[0].contents
    assert (content.text, content.additional_properties["refusal"]) == ("I will not.", True)
    [assistant, _] = await sent_back(responses, server, response.messages)
    assert assistant["content"] == [{"type": "refusal", "refusal": "I will not."}]


@both_ways
@pytest.mark.requirement("CL8")
async def test_approval_of_a_remote_call_is_requested_and_answered(
    responses: OpenAIChatClient, server: ScriptedServer, stream: bool
) -> None:
    request = {"type": "mcp_approval_request", "id": "ar1", "server_label": "docs", "name": "drop", "arguments": "{}"}
    await server.play({"output": [request]})
    response = await ask(responses, stream)
    [asked] = response.messages[0].contents
    assert asked.type == "function_approval_request" and asked.user_input_request
    answer = Message("user", [asked.to_function_approval_response(approved=True)])
    items = await sent_back(responses, server, [*response.messages, answer])
    assert request in items
    assert {"type": "mcp_approval_response", "approval_request_id": "ar1", "approve": True} in items


@both_ways
@pytest.mark.requirement("TY12")
async def test_cached_and_reasoning_tokens_are_counted(responses: OpenAIChatClient, server: ScriptedServer, stream: bool) -> None:
    await server.play({"text": "hi", "cached_tokens": 4, "reasoning_tokens": 2})
    usage = (await ask(responses, stream)).usage_details or {}
    assert (usage["cache_read_input_token_count"], usage["reasoning_output_token_count"]) == (4, 2)


@both_ways
@pytest.mark.requirement("CL8")
async def test_log_probabilities_are_among_the_additional_properties(
    responses: OpenAIChatClient, server: ScriptedServer, stream: bool
) -> None:
    await server.play({"output": [said("a", logprobs=[{"token": "a", "logprob": -0.1}])]})
    response = await ask(responses, stream, options={"top_logprobs": 1})
    assert response.additional_properties["logprobs"] == [{"token": "a", "logprob": -0.1}]


@pytest.mark.requirement("CL8")
async def test_images_audio_files_and_addresses_are_sent_in_their_form(responses: OpenAIChatClient, server: ScriptedServer) -> None:
    contents = [
        "look",
        Content.from_data(PNG, "image/png"),
        Content.from_uri("https://example.com/a.jpg", "image/jpeg"),
        Content.from_data("UklGRg==", "audio/wav"),
        Content.from_data("JVBERg==", "application/pdf", additional_properties={"filename": "a.pdf"}),
        Content.from_uri("https://example.com/b.pdf", "application/pdf"),
        Content.from_hosted_file("file-1"),
    ]
    [message, _] = await sent_back(responses, server, [Message("user", contents)])
    assert [part["type"] for part in message["content"]] == [
        "input_text",
        "input_image",
        "input_image",
        "input_audio",
        "input_file",
        "input_file",
        "input_file",
    ]
    assert message["content"][3]["input_audio"] == {"data": "UklGRg==", "format": "wav"}
    assert message["content"][4]["filename"] == "a.pdf"
    assert message["content"][5]["file_url"] == "https://example.com/b.pdf"
    assert message["content"][6]["file_id"] == "file-1"


@pytest.mark.requirement("CL8")
async def test_image_that_a_tool_gave_reaches_the_model(responses: OpenAIChatClient, server: ScriptedServer) -> None:
    result = Content.from_function_result("c1", "a plot", items=[Content.from_data(PNG, "image/png")])
    conversation = [Message("assistant", [Content.from_function_call("c1", "plot", "{}")]), Message("tool", [result])]
    items = await sent_back(responses, server, conversation)
    [output] = [item for item in items if item["type"] == "function_call_output"]
    assert [part["type"] for part in output["output"]] == ["input_text", "input_image"]


@pytest.mark.requirement("CL6", "CL7")
async def test_hosted_tools_are_sent_as_they_are_beside_functions(responses: OpenAIChatClient, server: ScriptedServer) -> None:
    def look(place: str) -> str:
        """Looks."""
        return place

    hosted = [
        OpenAIChatClient.get_web_search_tool(user_location={"city": "Kiel"}, search_context_size="low"),
        responses.get_code_interpreter_tool(file_ids=["f1"]),
        responses.get_file_search_tool(vector_store_ids=["v1"], max_num_results=5),
        responses.get_image_generation_tool(size="auto"),
        responses.get_mcp_tool(name="my docs", url="https://example.com/mcp", approval_mode={"always_require_approval": ["drop"]}),
        responses.get_shell_tool(),
    ]
    await server.play({"text": "ok"})
    await ask(responses, WHOLE, options={"tools": [FunctionTool(look), *hosted]})
    [request] = await server.requests()
    assert [tool["type"] for tool in request["body"]["tools"]] == [
        "function",
        "web_search",
        "code_interpreter",
        "file_search",
        "image_generation",
        "mcp",
        "shell",
    ]
    assert request["body"]["tools"][5]["server_label"] == "my_docs"
    assert request["body"]["tools"][5]["require_approval"] == {"always": {"tool_names": ["drop"]}}


async def test_stored_conversation_is_named_and_its_items_not_repeated(responses: OpenAIChatClient, server: ScriptedServer) -> None:
    await server.play({"text": "one"}, {"text": "two"})
    first = await ask(responses, WHOLE, options={"store": True})
    assert first.conversation_id == "resp_1"
    call = Message("assistant", [Content.from_function_call("c1", "look", "{}")])
    result = Message("tool", [Content.from_function_result("c1", "seen")])
    await ask(responses, WHOLE, [call, result], options={"conversation_id": first.conversation_id or ""})
    body = (await server.requests())[1]["body"]
    assert (body["previous_response_id"], body["store"]) == ("resp_1", True)
    assert [item["type"] for item in body["input"]] == ["function_call_output"]

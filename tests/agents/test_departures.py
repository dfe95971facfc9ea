"""Deliberate differences from agent-framework, and the errors that name the replacement for code written for agent-framework."""

from __future__ import annotations

from typing import Any

import pytest

import gateway
from gateway import Agent, BaseChatClient, ChatResponse, Message, ScriptedChatClient, WorkflowBuilder
from gateway.former_names import FORMER
from tests.architecture.documents import read


@pytest.mark.requirement("C4", "TY13")
def test_former_name_names_its_replacement() -> None:
    with pytest.raises(ImportError, match="'ChatAgent': use Agent"):
        exec("from gateway import ChatAgent")  # an `import` statement here would fail the type check
    with pytest.raises(AttributeError, match="'AgentThread': use AgentSession"):
        getattr(gateway, "AgentThread")  # noqa: B009  # a type checker knows that the name is not there
    assert getattr(gateway, "ChatAgent", None) is None
    for now in FORMER.values():
        name, _, member = now.partition(".")
        assert hasattr(getattr(gateway, name), member or "__name__")
    with pytest.raises(ImportError, match="cannot import name 'Nothing'"):
        exec("from gateway import Nothing")


@pytest.mark.requirement("C2", "C4")
def test_former_methods_and_arguments_name_their_replacements() -> None:
    agent: Any = Agent(ScriptedChatClient(["ok"]))
    with pytest.raises(AttributeError, match=r"'run_stream'; use run\(…, stream=True\)"):
        agent.run_stream("go")
    with pytest.raises(AttributeError, match=r"use create_session\(\)"):
        agent.get_new_thread()
    with pytest.raises(AttributeError, match=r"no attribute 'nothing'$"):
        agent.nothing()
    with pytest.raises(TypeError, match="pass session="):
        agent.run("go", thread=object())
    flow: Any = WorkflowBuilder(start_executor=agent).build()
    for former, now in (("run_stream", r"run\(…, stream=True\)"), ("send_responses", r"run\(responses=…\)")):
        with pytest.raises(AttributeError, match=f"'Workflow' object has no attribute '{former}'; use {now}"):
            getattr(flow, former)
    with pytest.raises(AttributeError, match=r"use get_response\(…, stream=True\)"):
        agent.client.get_streaming_response("go")


def test_agent_without_a_chat_client_is_rejected() -> None:
    name: Any = "gpt"
    with pytest.raises(TypeError, match="needs a chat client, not 'gpt'"):
        Agent(name)


@pytest.mark.requirement("CL2", "C3")
def test_second_stream_hook_is_rejected_at_class_definition() -> None:
    with pytest.raises(TypeError, match=r"TwoHooks\._inner_get_streaming_response would never be called"):

        class TwoHooks(BaseChatClient[Any]):  # pyright: ignore[reportUnusedClass]  # the class definition raises
            async def _inner_get_response(self, **_: Any) -> ChatResponse:
                return ChatResponse(messages=[Message("assistant", ["x"])])

            def _inner_get_streaming_response(self, **_: Any) -> None: ...


def test_every_departure_stands_in_the_docs() -> None:
    page = read("docs/library.md").partition("## What works differently on purpose")[2]
    names = ["`config`", "_inner_get_streaming_response", "`ChatAgent`", "thread=", "run_stream", '`Agent("gpt")`', "additional_tools"]
    assert [name for name in names if name not in page] == []

"""Context providers over third-party services: their requests, their failures, and the error if a package is missing."""

from __future__ import annotations

import json
import sys
import threading
from collections.abc import Callable, Generator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import SimpleNamespace
from typing import Any

import pytest

from gateway import Agent, ContextProvider, ScriptedChatClient
from gateway.azure import AzureAISearchContextProvider
from gateway.errors import SettingNotFoundError, StorageError
from gateway.former_names import MISSING
from gateway.foundry import FoundryMemoryProvider
from gateway.mem0 import Mem0ContextProvider
from gateway.redis import RedisHistoryProvider


async def ask(provider: ContextProvider, *texts: str, answers: int = 9, session_id: str = "s1") -> list[list[str]]:
    """Return the messages that the model received in runs with these inputs, in one session."""
    client = ScriptedChatClient([f"Answer {number}." for number in range(answers)])
    agent = Agent(client, context_providers=[provider])
    session = agent.create_session(session_id=session_id)
    for text in texts:
        await agent.run(text, session=session)
    return [[message.text for message in messages] for messages, _ in client.requests]


# -- mem0 ----------------------------------------------------------------------------------------------------------


class Mem0:
    """A mem0 client that records its requests."""

    def __init__(self, *, fails: bool = False) -> None:
        self.searched: list[tuple[str, dict[str, Any]]] = []
        self.added: list[tuple[Any, dict[str, Any]]] = []
        self._fails = fails

    async def search(self, query: str, **settings: Any) -> Any:
        if self._fails:
            raise ConnectionError("down")
        self.searched.append((query, settings))
        found = [{"id": "1", "memory": "Ada likes figs."}, {"id": "2", "memory": "Ada likes figs."}, {"id": "3", "memory": ""}]
        return {"results": found} if "user_id" in settings["filters"] else [{"memory": "Figs are out."}]

    async def add(self, messages: Any, **settings: Any) -> Any:
        if self._fails:
            raise ConnectionError("down")
        self.added.append((messages, settings))


@pytest.mark.requirement("SE8")
async def test_mem0_memories_of_user_are_shown_and_new_texts_stored() -> None:
    client = Mem0()
    provider = Mem0ContextProvider(mem0_client=client, user_id="ada", agent_id="cook")
    assert provider.source_id == "mem0"
    (shown,) = await ask(provider, "What do I like?")
    assert shown == [f"{provider.context_prompt}\nAda likes figs.", "What do I like?"]
    assert client.searched == [("What do I like?", {"filters": {"user_id": "ada"}})]  # `agent_id` is for storing, not for searching
    said = [{"role": "user", "content": "What do I like?"}, {"role": "assistant", "content": "Answer 0."}]
    assert client.added == [(said, {"user_id": "ada", "agent_id": "cook"})]


async def test_mem0_memories_of_agent_need_search_agent_id() -> None:
    client = Mem0()
    provider = Mem0ContextProvider("own", client, application_id="app", search_agent_id="cook")
    (shown,) = await ask(provider, "Figs?")
    assert (provider.source_id, shown[0].splitlines()[1:]) == ("own", ["Figs are out."])
    assert [settings["filters"] for _, settings in client.searched] == [{"agent_id": "cook"}]
    assert client.added[0][1] == {"app_id": "app"}


async def test_failing_service_costs_memories_and_not_the_answer(caplog: pytest.LogCaptureFixture) -> None:
    assert await ask(Mem0ContextProvider(mem0_client=Mem0(fails=True), user_id="ada"), "Figs?") == [["Figs?"]]
    assert "context search failed source=mem0" in caplog.text and "context not stored source=mem0" in caplog.text


async def test_unreachable_mem0_service_does_not_fail_the_start(monkeypatch: pytest.MonkeyPatch) -> None:
    client, made = Mem0(), list[str]()

    def make(api_key: str) -> Mem0:
        made.append(api_key)
        if len(made) < 3:
            raise ConnectionError("no route to the service")
        return client

    monkeypatch.setitem(sys.modules, "mem0", SimpleNamespace(AsyncMemoryClient=make))
    provider = Mem0ContextProvider(user_id="ada", api_key="k")
    assert made == []
    seen = await ask(provider, "Figs?", "Figs again?")
    assert (made, seen[0]) == (["k"] * 3, ["Figs?"]) and "Ada likes figs." in seen[1][0]
    monkeypatch.delenv("MEM0_API_KEY", raising=False)
    with pytest.raises(SettingNotFoundError, match="MEM0_API_KEY"):
        Mem0ContextProvider(user_id="ada")


def test_mem0_needs_an_owner() -> None:
    with pytest.raises(ValueError, match="user_id, agent_id and application_id"):
        Mem0ContextProvider(mem0_client=Mem0())


# -- Redis ---------------------------------------------------------------------------------------------------------


class Redis:
    """Lists of a Redis server, with the commands that are used."""

    def __init__(self) -> None:
        self.lists: dict[str, list[bytes]] = {}

    async def lrange(self, key: str, start: int, end: int) -> list[bytes]:
        return list(self.lists.get(key, []))

    async def delete(self, key: str) -> None:
        self.lists.pop(key, None)

    def pipeline(self, *, transaction: bool) -> Redis:
        assert transaction
        self._steps: list[Callable[[], None]] = []
        return self

    async def __aenter__(self) -> Redis:
        return self

    async def __aexit__(self, *exc: object) -> None:
        self._steps = []

    def rpush(self, key: str, *values: str) -> None:
        self._steps.append(lambda: self.lists.setdefault(key, []).extend(value.encode() for value in values))

    def ltrim(self, key: str, start: int, end: int) -> None:
        assert end == -1
        self._steps.append(lambda: self.lists.update({key: self.lists[key][start:]}))

    async def execute(self) -> None:
        for step in self._steps:
            step()


@pytest.mark.requirement("SE8", "SE12")
async def test_redis_keeps_conversation_of_session_and_newest_messages() -> None:
    server = Redis()
    provider = RedisHistoryProvider(redis_client=server, application_id="my app")
    assert provider.source_id == "redis_memory"
    shown = await ask(provider, "One?", "Two?", session_id="s:1")
    assert shown[1] == ["One?", "Answer 0.", "Two?"]
    assert list(server.lists) == ["chat_messages:my%20app:redis_memory:s%3A1"]
    short = RedisHistoryProvider(redis_client=server, key_prefix="short", max_messages=3)
    await ask(short, "One?", "Two?")
    assert [message.text for message in await short.get_messages("s1")] == ["Answer 0.", "Two?", "Answer 1."]
    await short.clear("s1")
    assert await short.get_messages("s1") == []
    server.lists["short:redis_memory:s1"] = [b"[]"]
    with pytest.raises(StorageError, match="damaged"):
        await short.get_messages("s1")


@pytest.mark.parametrize("given", [{}, {"redis_url": "redis://x", "redis_client": Redis()}, {"redis_client": Redis(), "max_messages": 0}])
def test_redis_refuses_settings_that_make_no_sense(given: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"redis_url or redis_client|max_messages"):
        RedisHistoryProvider(**given)


# -- Azure AI Search -----------------------------------------------------------------------------------------------


class Search:
    """A search service over HTTP that returns fixed documents and records the requests."""

    def __init__(self) -> None:
        self.requests: list[tuple[str, dict[str, str], dict[str, Any]]] = []
        self.documents: list[dict[str, Any]] = []
        self.url = ""


@pytest.fixture(scope="module")
def search() -> Generator[Search]:
    service = Search()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["content-length"])))
            service.requests.append((self.path, {key.lower(): value for key, value in self.headers.items()}, body))
            answer = json.dumps({"value": service.documents}).encode()
            self.send_response(200 if self.headers.get("api-key") != "wrong" else 403)
            self.send_header("content-type", "application/json")
            self.send_header("content-length", str(len(answer)))
            self.end_headers()
            self.wfile.write(answer)

        def log_message(self, format: str, *args: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
    service.url = f"http://127.0.0.1:{server.server_port}"
    yield service
    server.shutdown()
    server.server_close()


@pytest.mark.requirement("SE8")
async def test_documents_of_search_index_are_shown(search: Search) -> None:
    search.documents = [{"@search.score": 2.0, "id": "1", "chunk": "Figs ripen in August."}, {"title": "Plums", "price": 3}]
    async with AzureAISearchContextProvider(endpoint=search.url, index_name="fruit/1", api_key="k", top_k=2) as provider:
        assert provider.source_id == "azure_ai_search"
        (shown,) = await ask(provider, "When do figs ripen?")
    assert shown[0] == f"{provider.context_prompt}\nFigs ripen in August.\ntitle: Plums"
    path, headers, body = search.requests[-1]
    assert path.startswith("/indexes/fruit%2F1/docs/search?api-version=") and headers["api-key"] == "k"
    assert body == {"search": "When do figs ripen?", "top": 2}


async def test_search_ranks_by_meaning_and_by_vectors_with_a_credential(search: Search) -> None:
    search.documents = [{"content": "shown no more", "page": "Page one."}]

    async def embed(text: str) -> list[float]:
        return [1.0, float(len(text))]

    provider = AzureAISearchContextProvider(
        "own",
        search.url,
        "fruit",
        credential=lambda: "token",
        semantic_configuration_name="by-meaning",
        vector_field_name="vector",
        embedding_function=embed,
        content_field_name="page",
    )
    (shown,) = await ask(provider, "Figs?")
    await provider.aclose()
    assert shown[0].endswith("\nPage one.")
    _, headers, body = search.requests[-1]
    assert headers["authorization"] == "Bearer token" and "api-key" not in headers
    assert (body["queryType"], body["semanticConfiguration"]) == ("semantic", "by-meaning")
    assert body["vectorQueries"] == [{"kind": "vector", "vector": [1.0, 5.0], "fields": "vector", "k": 5}]


async def test_search_that_is_refused_costs_documents_only(search: Search, caplog: pytest.LogCaptureFixture) -> None:
    async with AzureAISearchContextProvider(endpoint=search.url, index_name="fruit", api_key="wrong") as provider:
        assert await ask(provider, "Figs?") == [["Figs?"]]
    assert "status 403" in caplog.text


def test_search_names_missing_and_unsupported_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    for variable in ("ENDPOINT", "INDEX_NAME", "API_KEY"):
        monkeypatch.delenv(f"AZURE_SEARCH_{variable}", raising=False)
    with pytest.raises(SettingNotFoundError, match="AZURE_SEARCH_ENDPOINT"):
        AzureAISearchContextProvider()
    with pytest.raises(SettingNotFoundError, match="AZURE_SEARCH_API_KEY"):
        AzureAISearchContextProvider(endpoint="https://x", index_name="i")
    with pytest.raises(ValueError, match="agentic"):
        AzureAISearchContextProvider(endpoint="https://x", index_name="i", api_key="k", mode="agentic")
    with pytest.raises(TypeError, match="knowledge_base_name"):
        AzureAISearchContextProvider(endpoint="https://x", index_name="i", api_key="k", knowledge_base_name="b")  # pyright: ignore[reportCallIssue]  # that is the point


# -- Foundry memory ------------------------------------------------------------------------------------------------


class Stores:
    """The memory stores of a project's client."""

    def __init__(self) -> None:
        self.searches: list[dict[str, Any]] = []
        self.updates: list[dict[str, Any]] = []

    async def search_memories(self, **query: Any) -> Any:
        self.searches.append(query)
        texts = ["Likes figs."] if "items" in query else ["Is called Ada."]
        found = [SimpleNamespace(memory_item=SimpleNamespace(content=text)) for text in texts]
        return SimpleNamespace(memories=found, search_id=f"search-{len(self.searches)}")

    async def begin_update_memories(self, **update: Any) -> Any:
        self.updates.append(update)
        return SimpleNamespace(update_id=f"update-{len(self.updates)}")


@pytest.mark.requirement("SE8")
async def test_foundry_memories_are_added_and_each_run_is_sent() -> None:
    stores = Stores()
    project = SimpleNamespace(beta=SimpleNamespace(memory_stores=stores))
    provider = FoundryMemoryProvider(memory_store_name="people", scope="ada", project_client=project, update_delay=5)
    assert provider.source_id == "foundry_memory"
    shown = await ask(provider, "Who am I?", "And?")
    assert [texts[0].splitlines()[1:] for texts in shown] == [["Is called Ada.", "Likes figs."]] * 2
    assert [query.get("previous_search_id", "none") for query in stores.searches] == ["none", None, "search-2"]
    assert {(query["name"], query["scope"]) for query in stores.searches} == {("people", "ada")}
    assert [(update["previous_update_id"], update["update_delay"]) for update in stores.updates] == [(None, 5), ("update-1", 5)]
    assert [item["role"] for item in stores.updates[0]["items"]] == ["user", "assistant"]


def test_foundry_memory_names_missing_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("FOUNDRY_PROJECT_ENDPOINT", raising=False)
    with pytest.raises(SettingNotFoundError, match="FOUNDRY_PROJECT_ENDPOINT"):
        FoundryMemoryProvider(memory_store_name="people")


# -- without the packages --------------------------------------------------------------------------------------------


@pytest.mark.requirement("AG10", "AG11")
@pytest.mark.parametrize(
    ("package", "extra", "make"),
    [
        ("mem0", "mem0", lambda: Mem0ContextProvider(user_id="ada", api_key="k")),
        ("redis.asyncio", "redis", lambda: RedisHistoryProvider(redis_url="redis://localhost")),
        (
            "azure.ai.projects.aio",
            "foundry-memory",
            lambda: FoundryMemoryProvider(memory_store_name="m", project_endpoint="https://x", credential=object()),
        ),
    ],
)
def test_missing_package_is_named_with_its_extra(
    package: str, extra: str, make: Callable[[], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(ModuleNotFoundError, match=rf"pip install 'moongate\[{extra}\]'"):
        make()


@pytest.mark.requirement("AG10", "AG11")
@pytest.mark.parametrize(
    ("statement", "reason"),
    [
        ("from gateway.redis import RedisContextProvider", "SemanticMemoryProvider"),
        ("from gateway.azure import CosmosHistoryProvider", "SqlHistoryProvider"),
        ("from gateway.openai import OpenAIResponsesClient", "named OpenAIChatClient"),
        ("from gateway.azure import AzureOpenAIChatClient", r"OpenAIChatCompletionClient\(azure_endpoint=…\)"),
        ("from gateway import MCPWebsocketTool", "WebSocket"),
        ("from gateway import BaseVectorStore", "SemanticMemoryProvider"),
        *((f"from gateway import {name}", ": ") for names in MISSING.values() for name in names),
    ],
)
def test_import_of_name_that_is_not_here_fails_with_the_reason(statement: str, reason: str) -> None:
    with pytest.raises(ImportError, match=reason):
        exec(statement, {})

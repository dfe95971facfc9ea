"""`A2AAgent`: calls a remote agent with the A2A protocol, and has the interface of an `Agent` that runs in this process.

The remote agent stores the conversation. The session stores the conversation's context id and, after a question of the remote agent, the
id of the task that waits for the answer. A message is sent once and never resent: if the connection breaks, updates of the task are
fetched by its id, over a new stream or by polling. A continuation token contains the task id.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Sequence
from contextlib import aclosing, asynccontextmanager
from typing import TYPE_CHECKING, Literal, TypedDict, Unpack, cast, overload
from urllib.parse import urlsplit

import anyio

from gateway.agents.base_agent import BaseAgent
from gateway.agents.run_context import AgentStream
from gateway.errors import AgentError, NotSent
from gateway.json_types import JsonMapping, JsonObject
from gateway.policy.addresses import is_same_origin
from gateway.sessions.session import AgentSession
from gateway.types.messages import AgentRunInputs, Message, to_messages
from gateway.types.responses import AgentResponse, AgentResponseUpdate, ContinuationToken
from gateway.types.streams import ResponseStream

if TYPE_CHECKING:
    import httpx
    from a2a.client import Client
    from a2a.types import AgentCard, StreamResponse

    from gateway.agents.remote.a2a_task import RemoteTask

logger = logging.getLogger(__name__)

STATE_KEY = "a2a"
"""Key in a session's state: the context id and the task id of the remote A2A agent."""

DEFAULT_TIMEOUT_SECONDS = 60.0
"""Default time limit, in seconds, for a response of the remote agent, and for the next event of a stream."""

POLL_SECONDS = (0.5, 5.0)
"""First and longest interval, in seconds, between requests that poll the state of a remote task."""

FETCH_SECONDS = 0.2
"""Minimum interval, in seconds, between requests for a remote task whose artifacts grow; the end of a task is fetched at once."""

CANCEL_SECONDS = 5.0

INSTALL_HINT = "Remote A2A agents need the a2a-sdk package: pip install 'moongate[a2a]'."
"""Error text if the package of the extra `a2a` is not installed."""


class RemoteRunArguments(TypedDict, total=False):
    """Keyword arguments of `A2AAgent.run`, except `stream`."""

    session: AgentSession | None
    continuation_token: ContinuationToken | None
    background: bool
    function_invocation_kwargs: JsonMapping | None
    client_kwargs: JsonMapping | None


class A2AAgent(BaseAgent):
    """A remote agent that is called with the A2A protocol. The program passes the agent's URL, the agent card, or a client of `a2a-sdk`."""

    def __init__(
        self,
        *,
        name: str | None = None,
        id: str | None = None,
        description: str | None = None,
        agent_card: AgentCard | None = None,
        url: str | None = None,
        client: Client | None = None,
        http_client: httpx.AsyncClient | None = None,
        timeout: float | None = None,
        headers: JsonMapping | None = None,
    ) -> None:
        """Configure the remote agent; the first run connects to it.

        `headers` (such as an API key) are sent with every request to the origin of `url` (without `url`, of the card's first interface),
        and to no other origin. With a `client` or `http_client`, which the program closes, `headers` and `timeout` are not used.

        Raises:
            ValueError: Neither `url`, `agent_card` nor `client` is given.
        """
        if url is None and agent_card is None and client is None:
            raise ValueError("An A2AAgent needs a url, an agent_card or a client.")
        super().__init__(
            id=id,
            name=name or (agent_card.name if agent_card is not None else None),
            description=description or (agent_card.description if agent_card is not None else None),
        )
        self._card = agent_card
        self._url = url
        self._client = client
        self._http_client = http_client
        self._timeout = timeout or DEFAULT_TIMEOUT_SECONDS
        self._headers = dict(headers or {})
        self._owned: httpx.AsyncClient | None = None

    async def __aenter__(self) -> A2AAgent:
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Close the connections that the agent opened. A later run opens new connections."""
        owned, self._owned = self._owned, None
        if owned is not None:
            self._client = None
            await owned.aclose()

    def get_session(self, service_session_id: str, *, session_id: str | None = None) -> AgentSession:
        """Return a session that continues a conversation of the remote agent; `service_session_id` is the conversation's context id."""
        session = AgentSession(session_id=session_id, service_session_id=service_session_id)
        session.state[STATE_KEY] = {"context_id": service_session_id}
        return session

    @overload
    def run(
        self,
        messages: AgentRunInputs | None = None,
        *,
        stream: Literal[False] = False,
        **arguments: Unpack[RemoteRunArguments],
    ) -> Awaitable[AgentResponse]: ...
    @overload
    def run(
        self,
        messages: AgentRunInputs | None = None,
        *,
        stream: Literal[True],
        **arguments: Unpack[RemoteRunArguments],
    ) -> AgentStream: ...
    def run(
        self,
        messages: AgentRunInputs | None = None,
        *,
        stream: bool = False,
        session: AgentSession | None = None,
        continuation_token: ContinuationToken | None = None,
        background: bool = False,
        function_invocation_kwargs: JsonMapping | None = None,
        client_kwargs: JsonMapping | None = None,
    ) -> Awaitable[AgentResponse] | AgentStream:
        """Send the remote agent the user messages since its last answer, or continue the task of `continuation_token`.

        With `background`, the run does not wait for a remote task that is running, and ends with a continuation token. Cancelling the run
        cancels the remote task.
        `function_invocation_kwargs` and `client_kwargs` are accepted for compatibility with agent-framework and not sent.

        Raises:
            AgentError: The remote agent cannot be reached, or its task failed.
            ValueError: No message is left to send.
        """
        given = to_messages(messages)
        if continuation_token is None and not given:
            raise ValueError("A remote agent needs a message or a continuation token.")
        updates = self._updates(given, session or AgentSession(), continuation_token, background)
        response: AgentStream = ResponseStream(updates, self._finish)
        return response if stream else response.get_final_response()

    def run_noted(
        self,
        messages: Sequence[Message],
        session: AgentSession,
        note: Callable[[ContinuationToken], Awaitable[None]],
        will_resume: Callable[[], Awaitable[bool]],
        *,
        continuation_token: ContinuationToken | None = None,
    ) -> AgentStream:
        """Run the agent for a caller that can continue the run after a crash of this process.

        `note` receives the continuation token as soon as the remote agent opens a task. If the run is cancelled, `will_resume` returns
        whether another process will continue the run; if so, the remote task is not cancelled.

        Raises:
            AgentError: The remote agent cannot be reached, or its task failed.
        """
        updates = self._updates(messages, session, continuation_token, background=False, note=note, will_resume=will_resume)
        return ResponseStream(updates, self._finish)

    async def poll_task(self, continuation_token: ContinuationToken) -> AgentResponse:
        """Fetch the state of a remote task once. Return the task's answer, or while the task runs, a response with the continuation token.

        Raises:
            AgentError: The remote agent cannot be reached, or its task failed.
        """
        async with self._connected() as client:
            task = self._task(continuation_token)
            updates = await self._fetch(client, task)
        if not task.is_over:
            updates.append(AgentResponseUpdate([], "assistant", response_id=task.id, continuation_token=task.token))
        return self._finish(updates)

    async def cancel_task(self, continuation_token: ContinuationToken) -> None:
        """Send the remote agent a request to cancel a task. If the request fails, the error is logged.

        Raises:
            AgentError: The connection to the remote agent cannot be opened.
        """
        async with self._connected() as client:
            await self._cancel(client, self._task(continuation_token))

    async def reach(self) -> None:
        """Check that the remote agent can be reached, by fetching its agent card. No task is started.

        If the program passed the card or a client, or the agent has already connected, no request is sent.

        Raises:
            AgentError: The remote agent cannot be reached or used.
        """
        async with self._connected():
            pass

    @property
    def _label(self) -> str:
        return self.name or self._url or self.id

    @asynccontextmanager
    async def _connected(self) -> AsyncGenerator[Client]:
        """Yield the `a2a-sdk` client. Errors of that package and its HTTP client become `AgentError`, also inside the `with` block."""
        try:
            import a2a.client  # noqa: F401  # pyright: ignore[reportUnusedImport]  # checks that the package is installed
        except ImportError:
            raise AgentError(INSTALL_HINT) from None
        try:
            yield await self._connect()
        except _errors() as error:
            reason = str(error) or "the connection failed; check that the agent runs, then try again."
            raise AgentError(f"The remote agent {self._label!r} cannot be used: {reason}") from error

    async def _connect(self) -> Client:
        """Return the `a2a-sdk` client, created on first use; the remote agent's card is fetched once."""
        if self._client is not None:
            return self._client
        from a2a.client import A2ACardResolver, ClientConfig, ClientFactory

        card = self._card
        http = self._http_client or self._build_http(card)
        if card is None:
            card = await A2ACardResolver(http, cast("str", self._url)).get_agent_card()
            self._keep_to_origin(card)
        self.name, self.description = self.name or card.name, self.description or card.description
        self._client = ClientFactory(ClientConfig(httpx_client=http)).create(card)
        return self._client

    def _build_http(self, card: AgentCard | None) -> httpx.AsyncClient:
        from gateway.egress.httpx_transport import build_httpx_client

        url = self._url or (card.supported_interfaces[0].url if card is not None and card.supported_interfaces else "")
        try:
            self._owned = build_httpx_client(self._label, url, timeout_seconds=self._timeout, headers=self._headers)
        except NotSent as error:
            raise AgentError(str(error)) from None
        return self._owned

    def _keep_to_origin(self, card: AgentCard) -> None:
        """Remove from a fetched agent card all interfaces whose URL is not at the origin of the agent's URL.

        Requests to other origins would contain the secret headers, and could reach hosts of an internal network.

        Raises:
            AgentError: No interface is left.
        """
        kept = [interface for interface in card.supported_interfaces if is_same_origin(self._url or "", interface.url)]
        if not kept:
            others = ", ".join(sorted({urlsplit(interface.url).netloc[:100] or "?" for interface in card.supported_interfaces}))
            raise AgentError(f"The card of the remote agent at {self._url!r} has only interfaces at {others}; use a URL of that origin.")
        del card.supported_interfaces[:]
        card.supported_interfaces.extend(kept)

    def _finish(self, updates: Sequence[AgentResponseUpdate]) -> AgentResponse:
        response = AgentResponse.from_updates(updates)
        response.agent_id = self.id
        return response

    async def _updates(
        self,
        messages: Sequence[Message],
        session: AgentSession,
        token: ContinuationToken | None,
        background: bool,
        note: Callable[[ContinuationToken], Awaitable[None]] | None = None,
        will_resume: Callable[[], Awaitable[bool]] | None = None,
    ) -> AsyncGenerator[AgentResponseUpdate, None]:
        known: JsonObject = session.state.setdefault(STATE_KEY, {})
        async with self._connected() as client:
            task = self._task(token or known)
            task.note = note
            try:
                if token is None:
                    async for update in self._send(client, task, messages, background):
                        yield update
                async for update in self._follow(client, task, background):
                    yield update
            except anyio.get_cancelled_exc_class():
                if will_resume is None or not await will_resume():
                    with anyio.CancelScope(shield=True), anyio.move_on_after(CANCEL_SECONDS):
                        await self._cancel(client, task)
                raise
            known["context_id"] = task.context_id
            known.pop("task_id", None)
            if task.waits:
                known["task_id"] = task.id

    async def _send(
        self, client: Client, task: RemoteTask, messages: Sequence[Message], background: bool
    ) -> AsyncGenerator[AgentResponseUpdate, None]:
        """Send the new messages once as an A2A message, and yield the updates until the response or the connection ends."""
        from a2a.types import SendMessageConfiguration, SendMessageRequest

        from gateway.agents.remote.a2a_messages import to_wire_message

        message = to_wire_message(_new_messages(messages), context_id=task.context_id, task_id=task.id)
        if not message.parts:
            raise ValueError("The messages contain nothing that can be sent to a remote agent.")
        answered, task.id = task.id, ""
        request = SendMessageRequest(message=message, configuration=SendMessageConfiguration(return_immediately=background))
        try:
            async for update in self._take(client.send_message(request), task, background):
                yield update
        except _connection_errors() as error:
            task.id = task.id or answered
            if not task.id:
                raise
            logger.info("A2A stream lost agent=%s task=%s error=%s", self._label, task.id, type(error).__name__)

    async def _take(
        self, items: AsyncIterator[StreamResponse], task: RemoteTask, background: bool
    ) -> AsyncGenerator[AgentResponseUpdate, None]:
        async with aclosing(cast("AsyncGenerator[StreamResponse, None]", items)):
            async for item in items:
                updates = task.take(item)
                await task.noted()
                for update in updates:
                    yield update
                if task.is_over or (background and task.id):
                    return

    async def _follow(self, client: Client, task: RemoteTask, background: bool) -> AsyncGenerator[AgentResponseUpdate, None]:
        """Yield the remaining updates of a remote task, from a new stream or else by polling.

        With `background`, yield only the continuation token of a task that has not ended.
        """
        from a2a.types import SubscribeToTaskRequest

        if task.is_over or not task.id:
            return
        if background:
            yield AgentResponseUpdate([], "assistant", response_id=task.id, continuation_token=task.token)
            return
        try:
            async for update in self._watch(client, client.subscribe(SubscribeToTaskRequest(id=task.id)), task):
                yield update
        except _errors() as error:
            logger.info("A2A task not streamed agent=%s task=%s error=%s", self._label, task.id, type(error).__name__)
        pause, longest = POLL_SECONDS
        while not task.is_over:
            for update in await self._fetch(client, task):
                yield update
            if not task.is_over:
                await anyio.sleep(pause)
                pause = min(pause * 2, longest)

    async def _watch(
        self, client: Client, items: AsyncIterator[StreamResponse], task: RemoteTask
    ) -> AsyncGenerator[AgentResponseUpdate, None]:
        """Yield the updates of a remote task from a stream that was opened after the task had begun, until the task or the stream ends.

        Such a stream can repeat events that the task's state already includes. Therefore each event only triggers a request for the task,
        whose artifacts are compared with the parts received before.
        """
        due = 0.0
        async with aclosing(cast("AsyncGenerator[StreamResponse, None]", items)):
            async for item in items:
                kind = item.WhichOneof("payload")
                if kind == "artifact_update" and anyio.current_time() < due:
                    continue
                updates = await self._fetch(client, task) if kind in {"artifact_update", "status_update"} else task.take(item)
                due = anyio.current_time() + FETCH_SECONDS
                await task.noted()
                for update in updates:
                    yield update
                if task.is_over:
                    return

    async def _fetch(self, client: Client, task: RemoteTask) -> list[AgentResponseUpdate]:
        from a2a.types import GetTaskRequest

        return task.take_task(await client.get_task(GetTaskRequest(id=task.id)))

    async def _cancel(self, client: Client, task: RemoteTask) -> None:
        from a2a.types import CancelTaskRequest

        if task.id and not task.is_over:
            try:
                await client.cancel_task(CancelTaskRequest(id=task.id))
            except _errors() as error:
                logger.warning("A2A task not cancelled agent=%s task=%s error=%s", self._label, task.id, error)

    def _task(self, token: ContinuationToken) -> RemoteTask:
        from gateway.agents.remote.a2a_task import RemoteTask

        return RemoteTask(self._label, str(token.get("task_id") or ""), str(token.get("context_id") or ""))


def _new_messages(messages: Sequence[Message]) -> Sequence[Message]:
    """Return the user messages since the last answer; the remote agent already has the earlier messages."""
    last = max((number for number, message in enumerate(messages) if message.role == "assistant"), default=-1)
    return [message for message in messages[last + 1 :] if message.role == "user"]


def _errors() -> tuple[type[Exception], ...]:
    """Return the exception types of the package `a2a-sdk` and its HTTP client."""
    import httpx
    from a2a.utils.errors import A2AError

    return (A2AError, httpx.HTTPError)


def _connection_errors() -> tuple[type[Exception], ...]:
    """Return the exception types of `a2a-sdk` and its HTTP client for a lost connection, in contrast to an error response."""
    import httpx
    from a2a.client.errors import A2AClientError

    return (A2AClientError, httpx.TransportError)

"""A remote A2A agent for tests: a real process, on the protocol's own SDK, that follows the text of each message.

Run it with `python -m tests.fakes.a2a_agent [--no-streaming] [--key KEY]`; its first line on stdout is its URL.
What a message may say:

    say TEXT      a plain answer, no task
    work TEXT     a task: a status message, then TEXT as an artifact in two chunks
    ask [TEXT]    a task that asks TEXT, or for a colour, and repeats the user's answer
    fail TEXT     a task that fails
    hold          a task that works until it is cancelled or `POST /release`
    slow TEXT     a task that cuts its stream off and is done after `POST /release`
    grow TEXT     a task that gives the first half of TEXT at once and the rest after `POST /release`

A client that joins a task's stream late receives the artifacts once with the task, and once more as events.

`GET /log` lists the messages received and the tasks cancelled.
"""

from __future__ import annotations

import argparse
import socket
import sys
from collections.abc import AsyncGenerator
from typing import Any, cast

import anyio
import uvicorn
from a2a.helpers import new_task_from_user_message, new_text_message
from a2a.server.agent_execution import AgentExecutor, RequestContext
from a2a.server.context import ServerCallContext
from a2a.server.events import Event, EventQueue
from a2a.server.request_handlers import DefaultRequestHandler
from a2a.server.routes import create_agent_card_routes, create_jsonrpc_routes
from a2a.server.tasks import InMemoryTaskStore, TaskUpdater
from a2a.types import (
    AgentCapabilities,
    AgentCard,
    AgentInterface,
    AgentSkill,
    Artifact,
    Part,
    Role,
    SubscribeToTaskRequest,
    Task,
    TaskArtifactUpdateEvent,
    TaskState,
)
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

log: dict[str, list[Any]] = {"messages": [], "cancelled": []}
released = anyio.Event()


class Obedient(AgentExecutor):
    """Runs the command in each message's text."""

    async def execute(self, context: RequestContext, event_queue: EventQueue) -> None:
        """Run the command of one message."""
        text = context.get_user_input()
        assert context.message is not None
        log["messages"].append({"text": text, "context": context.context_id, "task": context.message.task_id})
        word, _, rest = text.partition(" ")
        if word == "say":
            await event_queue.enqueue_event(new_text_message(rest, context_id=context.context_id, role=Role.ROLE_AGENT))
            return
        asked = context.current_task is not None and context.current_task.status.state == TaskState.TASK_STATE_INPUT_REQUIRED
        task = context.current_task or new_task_from_user_message(context.message)
        if context.current_task is None:
            await event_queue.enqueue_event(task)
        updater = TaskUpdater(event_queue, task.id, task.context_id)
        if asked:
            await updater.add_artifact([Part(text=f"You like {text}.")])
            await updater.complete()
            return
        await updater.start_work(updater.new_agent_message([Part(text="looking into it")]))
        await self._do(word, rest, updater)

    async def _do(self, word: str, rest: str, updater: TaskUpdater) -> None:
        match word:
            case "ask":
                await updater.requires_input(updater.new_agent_message([Part(text=rest or "Which colour?")]))
            case "fail":
                await updater.failed(updater.new_agent_message([Part(text=rest)]))
            case "hold" | "slow":
                await released.wait()
                await updater.add_artifact([Part(text=rest)])
                await updater.complete()
            case "grow":
                half = len(rest) // 2
                await updater.add_artifact([Part(text=rest[:half])], artifact_id="answer", append=False)
                await released.wait()
                await updater.add_artifact([Part(text=rest[half:])], artifact_id="answer", append=True, last_chunk=True)
                await updater.complete()
            case _:
                half = len(rest) // 2
                await updater.add_artifact([Part(text=rest[:half])], artifact_id="answer", append=False)
                await updater.add_artifact([Part(text=rest[half:])], artifact_id="answer", append=True, last_chunk=True)
                await updater.complete()

    async def cancel(self, context: RequestContext, event_queue: EventQueue) -> None:
        """Record a cancellation and cancel the task."""
        log["cancelled"].append(context.task_id)
        await TaskUpdater(event_queue, context.task_id or "", context.context_id or "").cancel()


class Repeating(DefaultRequestHandler):
    """When a client joins a task's stream again, sends each artifact again as events: whole, then its last part."""

    async def on_subscribe_to_task(self, params: SubscribeToTaskRequest, context: ServerCallContext) -> AsyncGenerator[Event]:
        """Yield the task, its artifacts as events, and the events that follow."""
        joined = cast("AsyncGenerator[Event]", super().on_subscribe_to_task(params, context))  # pyright: ignore[reportUnknownMemberType]
        async for event in joined:
            yield event
            if not isinstance(event, Task):
                continue
            for artifact in event.artifacts:
                last = Artifact(artifact_id=artifact.artifact_id, parts=artifact.parts[-1:])
                for again, append in ((artifact, False), (last, True)):
                    yield TaskArtifactUpdateEvent(task_id=event.id, context_id=event.context_id, artifact=again, append=append)


class Gate:
    """ASGI middleware: rejects requests without the key, and cuts the streams of `slow` messages off after the first event."""

    def __init__(self, app: ASGIApp, key: str) -> None:
        self._app = app
        self._key = key

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = dict(scope.get("headers") or [])
        if self._key and scope["type"] == "http" and headers.get(b"authorization") != f"Bearer {self._key}".encode():
            await PlainTextResponse("no", 401)(scope, receive, send)
            return
        if scope["type"] != "http" or scope["method"] != "POST" or scope["path"] != "/":
            await self._app(scope, receive, send)
            return
        body = b""
        while True:
            message = await receive()
            body += message.get("body", b"")
            if not message.get("more_body"):
                break
        given = False

        async def replay() -> Any:
            nonlocal given
            if given:
                return await receive()
            given = True
            return {"type": "http.request", "body": body, "more_body": False}

        async def cut(message: Any) -> None:
            await send(message)
            if message["type"] == "http.response.body" and message.get("body"):
                raise ConnectionResetError("cut off")

        streams = b"SendStreamingMessage" in body or b"SubscribeToTask" in body
        await self._app(scope, replay, cut if b"slow " in body and streams else send)


async def _release(request: Request) -> JSONResponse:
    released.set()
    return JSONResponse({})


async def _log(request: Request) -> JSONResponse:
    return JSONResponse(log)


def main() -> None:
    """Print the agent's URL and serve until the process ends."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--no-streaming", action="store_true")
    parser.add_argument("--key", default="")
    parser.add_argument("--elsewhere", action="store_true", help="the card names another host")
    options = parser.parse_args()
    listener = socket.create_server(("127.0.0.1", 0))
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)  # or each answer waits 40 ms
    url = f"http://127.0.0.1:{listener.getsockname()[1]}"
    card = AgentCard(
        name="obedient",
        description="Follows instructions.",
        version="1.0",
        supported_interfaces=[
            AgentInterface(
                url="http://192.0.2.1:9/" if options.elsewhere else f"{url}/", protocol_binding="JSONRPC", protocol_version="1.0"
            )
        ],
        capabilities=AgentCapabilities(streaming=not options.no_streaming),
        default_input_modes=["text/plain"],
        default_output_modes=["text/plain"],
        skills=[AgentSkill(id="obey", name="obey", description="Obeys.", tags=["test"])],
    )
    handler = Repeating(Obedient(), InMemoryTaskStore(), card)
    own = [Route("/release", _release, methods=["POST"]), Route("/log", _log)]
    routes = [*create_agent_card_routes(card), *create_jsonrpc_routes(handler, "/"), *own]
    app = Starlette(routes=routes, middleware=[Middleware(Gate, key=options.key)])
    sys.stdout.write(f"{url}\n")
    sys.stdout.flush()
    uvicorn.Server(uvicorn.Config(app, log_level="error", lifespan="off")).run(sockets=[listener])


if __name__ == "__main__":
    main()

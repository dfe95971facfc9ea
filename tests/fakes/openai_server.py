"""A scripted OpenAI-compatible server: a real process on a real socket, `/v1/responses` and `/v1/chat/completions`.

It plays back *turns* instead of thinking. Run it with `python -m tests.fakes.openai_server --port 0 --script FILE`;
its first line on stdout is its base URL (`http://127.0.0.1:PORT/v1`). From a test use `openai_server()`.
It is not a model and checks requests only as far as a client could get them wrong.

A script is JSON: `{"turns": [TURN, …], "apiKey": "…", "models": ["…"]}`. `apiKey` makes other keys a 401,
`models` makes other models a 404, and is what `/v1/models` lists. `page` answers everything with an HTML page. A turn
is played once, the first unused one whose `when` fits; `"repeat": true` keeps it. Keys of a turn, all optional:

    text         the answer; `{last_user}`, `{last_tool}` and `{tools}` are filled in from the request
    reasoning    a reasoning item before the answer
    tool_calls   [{"name", "arguments": {…} or a raw string, "id"}]
    when         {"contains": text in the request, "model": name, "last_role": "user" | "tool", "path": end of the path}
    status       an HTTP error instead of an answer; `retry_after` (seconds) and `message` with it
    fault        "drop" (cut the connection after the text), "malformed" (a chunk that is not JSON), "hang" (never finish),
                 "failed" (an error inside the stream), "length" (cut off by the token limit)
    hold         a name: the answer waits until `POST /hold/NAME`
    repeat       true: the turn is never used up
    output       raw output items of a Responses answer, instead of those made from `text`, `reasoning` and `tool_calls`
    message      raw keys of a Chat Completions message, over those made from them
    deltas       raw deltas of a streamed Chat Completions answer, instead of those made from them
    logprobs     of a choice, or of the text part
    error        the error object of a `status`
    cached_tokens, reasoning_tokens, input_tokens, output_tokens   what the usage says
    polls        of a background response: how often it is still in progress when asked (1)
    drop_after   of a streamed background response: the sequence number after which the connection breaks, once

A project's agents (`/api/projects/NAME/agents/…`) are kept as long as the process.

Background responses are kept: `GET /v1/responses/ID` (also streamed), `POST …/cancel`, `DELETE`. `/v1/embeddings` answers
each input with a vector of its length. See `openai_background`.

`GET /requests` lists what was received (`path`, `body`, `authorization`), `POST /script` replaces the script.
"""

from __future__ import annotations

import argparse
import base64
import contextlib
import json
import socket
import struct
import subprocess
import sys
from collections.abc import AsyncIterator, Generator, Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, cast

import anyio
import httpx2
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from tests.fakes.nursery import sooner
from tests.fakes.openai_background import Kept, background_routes

Json = dict[str, Any]


@dataclass
class State:
    """The script being played and what came in so far."""

    script: Json = field(default_factory=lambda: Json(turns=[]))
    used: set[int] = field(default_factory=lambda: set[int]())
    requests: list[Json] = field(default_factory=lambda: list[Json]())
    holds: dict[str, anyio.Event] = field(default_factory=lambda: dict[str, anyio.Event]())
    kept: dict[str, Kept] = field(default_factory=lambda: dict[str, Kept]())
    agents: dict[str, list[Json]] = field(default_factory=lambda: dict[str, list[Json]]())

    def load(self, script: Json) -> None:
        """Start over with another script."""
        self.script, self.used, self.requests, self.holds, self.kept = script, set(), [], {}, {}

    def next_turn(self, path: str, body: Json) -> Json:
        """Return the turn to play for a request, or an error response if no turn is left."""
        for index, turn in enumerate(self.script.get("turns", [])):
            if index not in self.used and _fits(turn.get("when", {}), path, body):
                if not turn.get("repeat"):
                    self.used.add(index)
                return turn
        return {"status": 400, "message": "the script has no turn left for this request"}

    def hold(self, name: str) -> anyio.Event:
        """Return the event that releases the answers held under `name`."""
        return self.holds.setdefault(name, anyio.Event())


def _fits(when: Json, path: str, body: Json) -> bool:
    return (
        when.get("contains", "") in json.dumps(body, ensure_ascii=False)
        and when.get("model", body.get("model")) == body.get("model")
        and path.endswith(when.get("path", ""))
        and when.get("last_role", _last_role(body)) == _last_role(body)
    )


def _items(body: Json) -> list[Json]:
    items = body.get("input", body.get("messages", []))
    return [{"role": "user", "content": items}] if isinstance(items, str) else items


def _last_role(body: Json) -> str:
    last = _items(body)[-1] if _items(body) else {}
    return "tool" if last.get("type") == "function_call_output" else str(last.get("role", ""))


def _plain(content: Any) -> str:
    if isinstance(content, list):
        return "".join(str(part.get("text", "")) for part in cast("list[Json]", content))
    return str(content or "")


def _fill(text: str, body: Json) -> str:
    if "{" not in text:
        return text
    users = [_plain(i.get("content")) for i in _items(body) if i.get("role") == "user"]
    results = [i for i in _items(body) if i.get("type") == "function_call_output" or i.get("role") == "tool"]
    tools = [_plain(i.get("output", i.get("content"))) for i in results]
    names = [t.get("name") or t.get("function", {}).get("name", "") for t in body.get("tools", [])]
    filled = text.replace("{last_user}", users[-1] if users else "").replace("{last_tool}", tools[-1] if tools else "")
    return filled.replace("{tools}", ", ".join(names))


def _calls(turn: Json, number: int) -> list[Json]:
    return [
        {
            "id": call.get("id", f"call_{number}_{index}"),
            "name": call["name"],
            "arguments": a if isinstance(a := call.get("arguments", {}), str) else json.dumps(a),
        }
        for index, call in enumerate(turn.get("tool_calls", []))
    ]


def _usage(turn: Json) -> tuple[int, int]:
    return turn.get("input_tokens", 11), turn.get("output_tokens", 7)


def _error(status: int, message: str, code: str, headers: dict[str, str] | None = None, extra: Json | None = None) -> JSONResponse:
    return JSONResponse({"error": {"message": message, "type": "error", "code": code, **(extra or {})}}, status, headers)


async def _models(state: State, request: Request) -> Response:
    """The list of the script's models, if it has one."""
    if (refusal := _refusal(state, request, {"model": (state.script.get("models") or [None])[0]})) is not None:
        return refusal
    if "models" not in state.script:
        return _error(404, "Not found", "not_found")
    return JSONResponse({"object": "list", "data": [{"id": name, "object": "model"} for name in state.script["models"]]})


def _refusal(state: State, request: Request, body: Json) -> Response | None:
    if (page := state.script.get("page")) is not None:
        return Response(page, media_type="text/html")
    key = state.script.get("apiKey")
    if key and request.headers.get("authorization") != f"Bearer {key}":
        return _error(401, "Incorrect API key provided: sk-LEAKED. You can find your key on the dashboard.", "invalid_api_key")
    models = state.script.get("models")
    if models and body.get("model") not in models:
        return _error(404, f"The model `{body.get('model')}` does not exist", "model_not_found")
    return None


def _chunks(text: str) -> list[str]:
    words = text.split(" ")
    return [word if index == 0 else f" {word}" for index, word in enumerate(words)] if text else []


def _response_items(turn: Json, text: str, number: int) -> list[Json]:
    if "output" in turn:
        return turn["output"]
    items: list[Json] = []
    if turn.get("reasoning"):
        items.append({"type": "reasoning", "id": f"rs_{number}", "summary": [{"type": "summary_text", "text": turn["reasoning"]}]})
    if text:
        part: Json = {"type": "output_text", "text": text, "annotations": [], "logprobs": turn.get("logprobs", [])}
        items.append({"type": "message", "id": f"msg_{number}", "role": "assistant", "status": "completed", "content": [part]})
    for index, call in enumerate(_calls(turn, number)):
        item: Json = {"type": "function_call", "id": f"fc_{number}_{index}", "call_id": call["id"], "status": "completed"}
        items.append({**item, "name": call["name"], "arguments": call["arguments"]})
    return items


def _response(turn: Json, body: Json, text: str, number: int) -> Json:
    used_in, used_out = _usage(turn)
    cut = turn.get("fault") == "length"
    response: Json = {
        "id": f"resp_{number}",
        "object": "response",
        "created_at": 1_700_000_000 + number,
        "model": body.get("model"),
        "status": "incomplete" if cut else "completed",
        "output": _response_items(turn, text, number),
        "usage": {
            "input_tokens": used_in,
            "output_tokens": used_out,
            "total_tokens": used_in + used_out,
            "input_tokens_details": {"cached_tokens": turn.get("cached_tokens", 0)},
            "output_tokens_details": {"reasoning_tokens": turn.get("reasoning_tokens", 0)},
        },
    }
    if cut:
        response["incomplete_details"] = {"reason": "max_output_tokens"}
    return response


def _response_events(turn: Json, full: Json) -> Iterator[Json]:
    yield {"type": "response.created", "response": {**full, "status": "in_progress", "output": [], "usage": None}}
    for index, item in enumerate(full["output"]):
        base = {"output_index": index, "item_id": item.get("id")}
        emptied = {"message": Json(content=[]), "function_call": Json(arguments="")}
        started: Json = {**item, **emptied.get(item["type"], {})}
        yield {"type": "response.output_item.added", "output_index": index, "item": started}
        if item["type"] == "message":
            yield from _message_events(item, base)
        elif item["type"] == "reasoning":
            for number, summary in enumerate(item["summary"]):
                yield {"type": "response.reasoning_summary_text.delta", **base, "summary_index": number, "delta": summary["text"]}
        elif item["type"] == "function_call":
            yield {"type": "response.function_call_arguments.delta", **base, "delta": item["arguments"]}
            yield {"type": "response.function_call_arguments.done", **base, "arguments": item["arguments"]}
        yield {"type": "response.output_item.done", "output_index": index, "item": item}
    if turn.get("fault") == "failed":
        failure = {"code": "server_error", "message": "The model had an error"}
        yield {"type": "response.failed", "response": {**full, "status": "failed", "error": failure}}
        return
    yield {"type": "response.incomplete" if full["status"] == "incomplete" else "response.completed", "response": full}


def _message_events(item: Json, base: Json) -> Iterator[Json]:
    for number, part in enumerate(item["content"]):
        if part["type"] == "refusal":
            yield {"type": "response.refusal.delta", **base, "content_index": number, "delta": part["refusal"]}
            continue
        for delta in _chunks(part["text"]):
            yield {"type": "response.output_text.delta", **base, "content_index": number, "delta": delta}
        for annotation in part.get("annotations", []):
            yield {"type": "response.output_text.annotation.added", **base, "content_index": number, "annotation": annotation}


def _completion(turn: Json, body: Json, text: str, number: int) -> Json:
    used_in, used_out = _usage(turn)
    message: Json = {"role": "assistant", "content": text or None}
    calls = [
        {"id": c["id"], "type": "function", "function": {"name": c["name"], "arguments": c["arguments"]}} for c in _calls(turn, number)
    ]
    if calls:
        message["tool_calls"] = calls
    message |= turn.get("message", {})
    reason = "length" if turn.get("fault") == "length" else "tool_calls" if calls else "stop"
    return {
        "id": f"chatcmpl-{number}",
        "object": "chat.completion",
        "created": 1_700_000_000 + number,
        "model": body.get("model"),
        "choices": [{"index": 0, "message": message, "finish_reason": reason, "logprobs": turn.get("logprobs")}],
        "usage": {
            "prompt_tokens": used_in,
            "completion_tokens": used_out,
            "total_tokens": used_in + used_out,
            "prompt_tokens_details": {"cached_tokens": turn.get("cached_tokens", 0)},
            "completion_tokens_details": {"reasoning_tokens": turn.get("reasoning_tokens", 0)},
        },
    }


def _completion_events(turn: Json, body: Json, full: Json) -> Iterator[Json]:
    choice = full["choices"][0]
    base = {k: full[k] for k in ("id", "created", "model")} | {"object": "chat.completion.chunk"}

    def chunk(delta: Json, reason: str | None = None) -> Json:
        logprobs = turn.get("logprobs") if delta.get("content") else None
        return {**base, "choices": [{"index": 0, "delta": delta, "finish_reason": reason, "logprobs": logprobs}]}

    yield chunk({"role": "assistant", "content": ""})
    for delta in turn.get("deltas", []):
        yield chunk(delta)
    for piece in _chunks(choice["message"]["content"] or ""):
        yield chunk({"content": piece})
    for index, call in enumerate(choice["message"].get("tool_calls", [])):
        arguments = call["function"]["arguments"]
        head = {**call, "index": index, "function": {"name": call["function"]["name"], "arguments": ""}}
        yield chunk({"tool_calls": [head]})
        half = len(arguments) // 2
        for part in (arguments[:half], arguments[half:]):
            yield chunk({"tool_calls": [{"index": index, "function": {"arguments": part}}]})
    if turn.get("fault") == "failed":
        yield {"error": {"message": "The model had an error", "code": "server_error"}}
        return
    yield chunk({}, choice["finish_reason"])
    if cast("Json", body.get("stream_options") or {}).get("include_usage"):
        yield {**base, "choices": [], "usage": full["usage"]}


async def _sse(turn: Json, events: Iterator[Json], *, named: bool) -> AsyncIterator[bytes]:
    fault = turn.get("fault")
    cut = ("response.output_item.done", "response.completed") if named else ()
    for sequence, event in enumerate(events):
        choices = cast("list[Json]", event.get("choices") or [{}])
        ending = event.get("type") in cut or bool(choices[0].get("finish_reason"))
        if ending and fault == "drop":
            raise ConnectionResetError("scripted drop")
        if ending and fault == "hang":
            await anyio.sleep_forever()
        if ending and fault == "malformed":
            yield b'data: {"type": "response.output_text.delta", "delta": \n\n'
        data = {**event, "sequence_number": sequence} if named else event
        prefix = f"event: {event['type']}\n" if named else ""
        yield f"{prefix}data: {json.dumps(data)}\n\n".encode()
    yield b"data: [DONE]\n\n"


async def _whole_answer(turn: Json, full: Json) -> Response:
    if turn.get("fault") == "hang":
        await anyio.sleep_forever()
    if turn.get("fault") == "malformed":
        return Response(b"<html>not json</html>", media_type="application/json")
    return JSONResponse(full)


async def _embeddings(state: State, request: Request) -> Response:
    body: Json = await request.json()
    state.requests.append({"path": request.url.path, "body": body, "authorization": request.headers.get("authorization")})
    if (refusal := _refusal(state, request, body)) is not None:
        return refusal
    size = body.get("dimensions", 3)
    data: list[Json] = [{"index": index, "embedding": [float(len(text))] * size} for index, text in enumerate(body["input"])]
    if body.get("encoding_format") == "base64":
        for entry in data:
            entry["embedding"] = base64.b64encode(struct.pack(f"<{size}f", *entry["embedding"])).decode()
    used = {"prompt_tokens": len(data), "total_tokens": len(data)}
    return JSONResponse({"data": list(reversed(data)), "model": body["model"], "usage": used})


async def _new_agent(state: State, request: Request) -> Response:
    """Store an agent of a project; every `POST` creates a new version."""
    body: Json = await request.json()
    state.requests.append({"path": request.url.path, "body": body, "authorization": request.headers.get("authorization")})
    name = request.path_params["name"]
    versions = state.agents.setdefault(name, [])
    versions.append({"object": "agent.version", "name": name, "version": str(len(versions) + 1), **body})
    return JSONResponse(versions[-1])


async def _agent(state: State, request: Request) -> Response:
    versions = state.agents.get(request.path_params["name"])
    if not versions:
        return _error(404, "no such agent", "not_found")
    if version := request.path_params.get("version"):
        return JSONResponse(versions[int(version) - 1])
    return JSONResponse({"object": "agent", "name": versions[0]["name"], "versions": {"latest": versions[-1]}})


def build_app(state: State) -> Starlette:
    """The ASGI application that plays `state`."""

    async def answer(request: Request) -> Response:
        body: Json = await request.json()
        state.requests.append({"path": request.url.path, "body": body, "authorization": request.headers.get("authorization")})
        number = len(state.requests)
        if (refusal := _refusal(state, request, body)) is not None:
            return refusal
        turn = state.next_turn(request.url.path, body)
        if turn.get("hold"):
            await state.hold(turn["hold"]).wait()
        if "status" in turn:
            after = {"retry-after": str(turn["retry_after"])} if "retry_after" in turn else None
            return _error(turn["status"], turn.get("message", "scripted error"), "scripted", after, turn.get("error"))
        text = _fill(turn.get("text", ""), body)
        named = request.url.path.endswith("/responses")
        full = (_response if named else _completion)(turn, body, text, number)
        if body.get("background"):
            state.kept[full["id"]] = kept = Kept(full, list(_response_events(turn, full)), turn.get("polls", 1), turn.get("drop_after"))
            return kept.streamed(-1) if body.get("stream") else JSONResponse(kept.now())
        if body.get("stream"):
            events = _response_events(turn, full) if named else _completion_events(turn, body, full)
            return StreamingResponse(_sse(turn, events, named=named), media_type="text/event-stream")
        return await _whole_answer(turn, full)

    async def requests(_: Request) -> Response:
        return JSONResponse(state.requests)

    async def script(request: Request) -> Response:
        state.load(await request.json())
        return JSONResponse({})

    async def release(request: Request) -> Response:
        state.hold(request.path_params["name"]).set()
        return JSONResponse({})

    return Starlette(
        routes=[
            Route("/v1/responses", answer, methods=["POST"]),
            Route("/v1/chat/completions", answer, methods=["POST"]),
            Route("/v1/models", partial(_models, state)),
            Route("/v1/embeddings", partial(_embeddings, state), methods=["POST"]),
            Route("/api/projects/{project}/openai/v1/responses", answer, methods=["POST"]),
            Route("/api/projects/{project}/agents/{name}/versions", partial(_new_agent, state), methods=["POST"]),
            Route("/api/projects/{project}/agents/{name}", partial(_agent, state)),
            Route("/api/projects/{project}/agents/{name}/versions/{version}", partial(_agent, state)),
            *background_routes(state),
            Route("/requests", requests),
            Route("/script", script, methods=["POST"]),
            Route("/hold/{name}", release, methods=["POST"]),
        ]
    )


def main() -> None:
    """Serve until stdin closes or the process is stopped."""
    parser = argparse.ArgumentParser(description="A scripted OpenAI-compatible server.")
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--script", type=Path, default=None)
    options = parser.parse_args()
    state = State()
    if options.script:
        state.load(json.loads(options.script.read_text(encoding="utf-8")))
    listener = socket.create_server(("127.0.0.1", options.port))
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)  # or each answer waits 40 ms
    sys.stdout.write(f"http://127.0.0.1:{listener.getsockname()[1]}/v1\n")
    sys.stdout.flush()
    config = uvicorn.Config(build_app(state), log_level="critical", timeout_graceful_shutdown=1)
    uvicorn.Server(config).run(sockets=[listener])


@dataclass(frozen=True)
class ScriptedServer:
    """A running server, seen from a test."""

    base_url: str
    """`http://127.0.0.1:PORT/v1`, for `OPENAI_BASE_URL`."""
    process: subprocess.Popen[str]

    async def play(self, *turns: Json, **script: Any) -> None:
        """Replace the script; keyword arguments are its other keys."""
        await self._post("/script", {"turns": list(turns), **script})

    async def requests(self) -> list[Json]:
        """Requests received since the script was set."""
        async with httpx2.AsyncClient() as client:
            return (await client.get(self._root + "/requests")).json()

    async def release(self, name: str) -> None:
        """Let the answers held under `name` go."""
        await self._post(f"/hold/{name}", {})

    @property
    def _root(self) -> str:
        return self.base_url.removesuffix("/v1")

    async def _post(self, path: str, body: Json) -> None:
        async with httpx2.AsyncClient() as client:
            (await client.post(self._root + path, json=body)).raise_for_status()


@contextlib.contextmanager
def openai_server(*turns: Json) -> Generator[ScriptedServer]:
    """A server in its own process for the length of the block, playing `turns`; `play` changes them later."""
    command, args = sooner("tests.fakes.openai_server")
    root = Path(__file__).resolve().parents[2]
    with subprocess.Popen([command, *args], stdout=subprocess.PIPE, text=True, cwd=root) as process:
        try:
            assert process.stdout is not None
            base_url = process.stdout.readline().strip()
            assert base_url, "the scripted server did not start"
            server = ScriptedServer(base_url, process)
            if turns:
                httpx2.post(server.base_url.removesuffix("/v1") + "/script", json={"turns": list(turns)}).raise_for_status()
            yield server
        finally:
            process.terminate()


if __name__ == "__main__":
    main()

"""The part of the scripted OpenAI-compatible server that stores background responses and serves them again."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

Json = dict[str, Any]


@dataclass
class Kept:
    """One background response: unfinished for `polls` polls, and streamed from any sequence number on."""

    full: Json
    events: list[Json]
    polls: int
    drop_after: int | None
    is_cancelled: bool = False

    def now(self) -> Json:
        """Return the response with its current status."""
        if self.is_cancelled:
            return {**self.full, "status": "cancelled", "output": [], "usage": None}
        if self.polls > 0:
            return {**self.full, "status": "queued", "output": [], "usage": None}
        return self.full

    def poll(self) -> Json:
        """Return the response as a poll receives it, and count the poll."""
        shown = self.now()
        if self.polls > 0:
            self.polls -= 1
            shown["status"] = "in_progress" if not self.is_cancelled else "cancelled"
        return shown

    def streamed(self, after: int) -> Response:
        """Stream the events whose sequence number is greater than `after`."""
        return StreamingResponse(self._sse(after), media_type="text/event-stream")

    async def _sse(self, after: int) -> AsyncIterator[bytes]:
        for sequence, event in enumerate(self.events):
            if sequence <= after:
                continue
            yield f"event: {event['type']}\ndata: {json.dumps({**event, 'sequence_number': sequence})}\n\n".encode()
            if sequence == self.drop_after:
                self.drop_after = None
                raise ConnectionResetError("scripted drop")
        self.polls = 0


class Keeper(Protocol):
    """The part of the server's state that the background routes use."""

    requests: list[Json]

    @property
    def kept(self) -> Mapping[str, Kept]:
        """Background responses by response id."""
        ...


def background_routes(state: Keeper) -> list[Route]:
    """Return the routes that retrieve, cancel and delete background responses."""

    def found(request: Request) -> Kept | None:
        state.requests.append({"path": request.url.path, "query": str(request.url.query), "method": request.method})
        return state.kept.get(request.path_params["id"])

    def unknown(request: Request) -> Response:
        message = f"Response with id '{request.path_params['id']}' not found."
        return JSONResponse({"error": {"message": message, "type": "invalid_request_error", "code": None}}, 404)

    async def retrieve(request: Request) -> Response:
        kept = found(request)
        if kept is None:
            return unknown(request)
        if request.query_params.get("stream") == "true":
            return kept.streamed(int(request.query_params.get("starting_after", -1)))
        return JSONResponse(kept.poll())

    async def cancel(request: Request) -> Response:
        kept = found(request)
        if kept is None:
            return unknown(request)
        kept.is_cancelled = kept.is_cancelled or kept.polls > 0
        return JSONResponse(kept.now())

    async def delete(request: Request) -> Response:
        kept = found(request)
        return JSONResponse({"id": request.path_params["id"], "deleted": True}) if kept is not None else unknown(request)

    return [
        Route("/v1/responses/{id}", retrieve, methods=["GET"]),
        Route("/v1/responses/{id}", delete, methods=["DELETE"]),
        Route("/v1/responses/{id}/cancel", cancel, methods=["POST"]),
    ]

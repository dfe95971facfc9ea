"""The paths from a client through the gateway to an upstream server, and a client that connects over one of them.

A `Way` is one path: the front (HTTP, stdio, or HTTP through a second gateway), the client's protocol era, and the server's era and
transport. Tests of the interaction suite run on every path that their behaviour applies to.
"""

from __future__ import annotations

import warnings
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Literal

import mcp_types as t
from mcp.client.client import Client
from pydantic import FileUrl

Front = Literal["http", "two-hop", "stdio"]
Era = Literal["legacy", "modern"]
MODERN = "2026-07-28"


@dataclass(frozen=True)
class Way:
    """One path from a client to an upstream server."""

    front: Front
    era: Era
    upstream: str
    """`new-http`, `old-http`, `new-stdio` or `old-stdio`: the server's era and transport."""

    def __str__(self) -> str:
        return f"{self.front}-{self.era}-{self.upstream}"

    @property
    def hops(self) -> int:
        """Number of gateways on the path."""
        return 2 if self.front == "two-hop" else 1

    def asking(self, question: str) -> str:
        """The question as the person reads it: each gateway on the path names its server and marks the lines it did not write."""
        asked = f"Server '{self.upstream}' asks:\n│ {question}"
        return "\n│ ".join(["Server 'hub' asks:", *asked.split("\n")]) if self.hops == 2 else asked

    def name(self, native: str) -> str:
        """The exposed name of the upstream's tool or prompt."""
        return f"{self._prefix('__')}{native}"

    def uri(self, native: str) -> str:
        """The exposed URI of the upstream's resource."""
        return f"{self._prefix('+')}{native}"

    def _prefix(self, joint: str) -> str:
        return f"hub{joint}{self.upstream}{joint}" if self.front == "two-hop" else f"{self.upstream}{joint}"


def ways() -> list[Way]:
    """All paths. A stdio front is started for each test, so its clients only face the HTTP server of the other era."""
    kinds = ("new-http", "old-http", "new-stdio", "old-stdio")
    fronts: tuple[Front, ...] = ("http", "two-hop")
    eras: tuple[Era, ...] = ("legacy", "modern")
    stdio = [Way("stdio", "legacy", "new-http"), Way("stdio", "modern", "old-http")]
    return [*(Way(f, e, u) for f in fronts for e in eras for u in kinds), *stdio]


def cells() -> list[Way]:
    """Paths over one gateway with an HTTP front: both client eras, with servers of both eras over HTTP and stdio."""
    return [way for way in ways() if way.front == "http"]


@dataclass
class Heard:
    """Notifications and requests that the client received in addition to its results."""

    logs: list[Any] = field(default_factory=lambda: list[Any]())
    asked: list[Any] = field(default_factory=lambda: list[Any]())
    messages: list[Any] = field(default_factory=lambda: list[Any]())


@asynccontextmanager
async def connected(way: Way, target: Any, *, capable: bool = True) -> AsyncGenerator[tuple[Client, Heard]]:
    """A client of the way's era to a URL, a command or a transport; a capable one answers elicitation and sampling."""
    heard = Heard()

    async def sample(context: Any, params: t.CreateMessageRequestParams) -> t.CreateMessageResult:
        heard.asked.append(params)
        return t.CreateMessageResult(role="assistant", content=t.TextContent(type="text", text="Paris"), model="fake")

    async def elicit(context: Any, params: Any) -> t.ElicitResult:
        heard.asked.append(params)
        return t.ElicitResult(action="accept", content={"name": "Ada"} if params.mode == "form" else None)

    async def list_roots(context: Any) -> t.ListRootsResult:
        return t.ListRootsResult(roots=[t.Root(uri=FileUrl("file:///work/ada"), name="ada")])

    async def log(params: Any) -> None:
        heard.logs.append(params)

    async def hear(message: Any) -> None:
        heard.messages.append(message)

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        async with Client(
            target,
            mode="legacy" if way.era == "legacy" else MODERN,
            cache=None,
            sampling_callback=sample if capable else None,
            elicitation_callback=elicit if capable else None,
            list_roots_callback=list_roots if capable else None,
            logging_callback=log,
            message_handler=hear,
            log_level="debug" if way.era == "modern" else None,
        ) as client:
            yield client, heard

"""Redirects of a remote server: a call that may have run is not resent, and nothing follows to another origin."""

from __future__ import annotations

import pytest

from gateway.errors import Malformed, NotSent, RequestFailure
from gateway.upstream.carriers.http_failures import stays_at_origin
from tests.upstream.test_http_session_carrier import Message, Saying, Server, call, joined


class Moving(Server):
    """A server that answers its first call with a redirect."""

    def __init__(self, status: int, location: str) -> None:
        super().__init__()
        self._redirects = [(status, (b"location", location.encode()))]

    async def plain(self, answer: Message, saying: Saying) -> None:
        if self._redirects:
            status, location = self._redirects.pop()
            await saying.whole(status, b"", location)
        else:
            await super().plain(answer, saying)


@pytest.mark.parametrize("by_sdk", [False, True])
@pytest.mark.parametrize("status", [307, 308])
async def test_redirected_unprocessed_call_is_resent_once(status: int, by_sdk: bool) -> None:
    async with joined(server=Moving(status, "/elsewhere?a=1"), is_baked=by_sdk) as (server, session):
        assert await call(session, "plain") == "plain"
        assert len(server.of("tools/call")) == 2  # the redirected request, and the request at the new URL


@pytest.mark.parametrize("by_sdk", [False, True])
@pytest.mark.parametrize(
    ("status", "location", "failure"),
    [
        (301, "/elsewhere", Malformed),
        (302, "/elsewhere", Malformed),
        (303, "/elsewhere", Malformed),
        (307, "http://user:secret@127.0.0.1:9/mcp?key=secret", NotSent),
        (308, "https://127.0.0.1/mcp", NotSent),
        (307, "", NotSent),
        (307, "http://[", NotSent),
    ],
)
async def test_other_redirects_fail_the_call_and_name_the_place(
    status: int, location: str, failure: type[RequestFailure], by_sdk: bool
) -> None:
    """A server with cookies is served by the SDK's client, which sends no call again either."""
    async with joined(server=Moving(status, location), is_baked=by_sdk) as (server, session):
        with pytest.raises(failure, match=f"answered {status}, a redirect.*not followed") as caught:
            await call(session, "plain")
        assert type(caught.value) is failure and "secret" not in str(caught.value)
        assert len(server.of("tools/call")) == 1
        assert await call(session, "plain") == "plain"


@pytest.mark.parametrize(
    ("url", "following", "stays"),
    [
        ("http://a.example/mcp", "http://a.example:80/mcp/", True),
        ("http://a.example/mcp", "https://a.example/mcp", True),
        ("https://a.example/mcp", "http://a.example/mcp", False),
        ("http://a.example:8080/mcp", "https://a.example/mcp", False),
        ("http://a.example/mcp", "http://b.example/mcp", False),
        ("http://a.example/mcp", "http://a.example:81/mcp", False),
        ("http://a.example/mcp", "http://user@a.example/mcp", False),
        ("http://user@a.example/mcp", "http://user@a.example/mcp", True),
        ("http://a.example/mcp", "ftp://a.example/mcp", False),
    ],
)
def test_redirect_stays_at_the_origin_of_its_server(url: str, following: str, stays: bool) -> None:
    assert stays_at_origin(url, following) is stays

"""`GuardedFetch`: allowed addresses, limits on responses, and deadlines."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import AsyncGenerator, Callable
from typing import Any

import anyio
import anyio.abc
import pytest

from gateway.egress.guarded_fetch import MAX_BODY_BYTES, FetchFailed, FetchRefused, GuardedFetch

Answer = Callable[[bytes], bytes]
PUBLIC = GuardedFetch.for_server("https://docs.example.com/mcp", None)
LOCAL = GuardedFetch.for_server("http://127.0.0.1:9/mcp", None)


@contextlib.asynccontextmanager
async def answering(answer: Answer) -> AsyncGenerator[tuple[str, list[bytes]]]:
    """Run a raw HTTP server on loopback; yield its origin and the received request heads."""
    seen: list[bytes] = []

    async def handle(stream: anyio.abc.SocketStream) -> None:
        async with stream:
            with contextlib.suppress(anyio.EndOfStream, anyio.BrokenResourceError):
                seen.append(await stream.receive())
                await stream.send(answer(seen[-1]))

    async with await anyio.create_tcp_listener(local_host="127.0.0.1") as listener, anyio.create_task_group() as tasks:
        tasks.start_soon(listener.serve, handle)
        yield f"http://127.0.0.1:{listener.extra(anyio.abc.SocketAttribute.local_port)}", seen
        tasks.cancel_scope.cancel()


def ok(body: bytes, *headers: str) -> bytes:
    head = "\r\n".join(["HTTP/1.1 200 OK", f"content-length: {len(body)}", "connection: close", *headers])
    return head.encode() + b"\r\n\r\n" + body


@pytest.mark.parametrize(
    "host",
    [
        "127.0.0.1", "localhost", "127.1", "2130706433", "0x7f000001", "0x7f.1", "0177.0.0.1", "[::1]", "[::ffff:127.0.0.1]", "0.0.0.0",
        "0", "10.1.2.3", "192.168.1.1", "169.254.169.254", "0xa9fea9fe", "2852039166", "0251.0376.0251.0376", "[fd00:ec2::254]",
        "[fe80::1]", "[64:ff9b::a9fe:a9fe]", "[2002:a9fe:a9fe::]", "100.100.100.200", "168.63.129.16",
    ],
)  # fmt: skip
async def test_no_spelling_of_a_private_address_is_connected_to(host: str) -> None:
    with anyio.fail_after(20), pytest.raises((FetchRefused, FetchFailed)) as caught:
        await PUBLIC.get(f"https://{host}/.well-known/oauth-authorization-server")
    assert isinstance(caught.value, FetchRefused) or "name service" in str(caught.value)


@pytest.mark.parametrize("url", ["file:///etc/passwd", "gopher://x/", "ftp://x/", "https://user:pw@x.example.com/", "https:///x", "https://x:y/"])
async def test_only_plain_web_addresses_are_requested(url: str) -> None:
    with pytest.raises(FetchRefused):
        await PUBLIC.get(url)


async def test_plain_http_is_for_this_machine_only() -> None:
    with pytest.raises(FetchRefused, match="must be reached over https"):
        await LOCAL.get("http://192.0.2.1/")


@pytest.mark.attack(3)
async def test_local_server_may_use_only_a_local_authorization_server() -> None:
    async with answering(lambda _: ok(b"{}")) as (origin, seen):
        assert (await LOCAL.get(f"{origin}/x")).content == b"{}"
        assert b"host: 127.0.0.1" in seen[0].lower()
    with pytest.raises(FetchRefused, match="not a public address"):
        await LOCAL.get("https://10.0.0.1/")


async def test_private_origin_is_allowed_only_if_the_operator_wrote_it() -> None:
    async with answering(lambda _: ok(b"{}")) as (origin, _):
        fetch = GuardedFetch.for_server("https://docs.example.com/mcp", origin)
        assert (await fetch.get(f"{origin}/x")).status_code == 200
        host, _, port = origin.rpartition(":")
        with pytest.raises(FetchRefused):
            await fetch.get(f"{host}:{int(port) ^ 1}/x")


@pytest.mark.attack(3)
async def test_redirect_is_an_answer_and_not_followed() -> None:
    away = b"HTTP/1.1 302 Found\r\nlocation: http://169.254.169.254/\r\ncontent-length: 0\r\n\r\n"
    async with answering(lambda _: away) as (origin, seen):
        assert (await LOCAL.get(origin)).status_code == 302
        assert len(seen) == 1


@pytest.mark.attack(3)
async def test_connection_uses_the_address_that_was_judged(monkeypatch: pytest.MonkeyPatch) -> None:
    """DNS rebinding: the first lookup returns a public address, every later one this machine."""
    asked: list[str] = []
    real = socket.getaddrinfo

    def flipping(host: Any, *rest: Any, **more: Any) -> list[Any]:
        if host not in ("flip.example.com", b"flip.example.com"):
            return real(host, *rest, **more)
        asked.append("flip.example.com")
        address = "192.0.2.77" if len(asked) == 1 else "127.0.0.1"
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (address, 443))]

    monkeypatch.setattr(socket, "getaddrinfo", flipping)
    fetch = GuardedFetch.for_server("https://flip.example.com/mcp", None)  # trusted, so the first address counts as checked
    with anyio.move_on_after(3), contextlib.suppress(FetchFailed):
        await fetch.get("https://flip.example.com/x")
    assert asked == ["flip.example.com"]


@pytest.mark.attack(3)
@pytest.mark.parametrize("inner", ["127.0.0.1", "10.0.0.1", "169.254.169.254", "::ffff:192.168.0.1", "fd00::1"])
async def test_name_with_one_private_address_is_not_requested(monkeypatch: pytest.MonkeyPatch, inner: str) -> None:
    real = socket.getaddrinfo

    def mixed(host: Any, *rest: Any, **more: Any) -> list[Any]:
        if host not in ("mixed.example.com", b"mixed.example.com"):
            return real(host, *rest, **more)
        family = socket.AF_INET6 if ":" in inner else socket.AF_INET
        public = (socket.AF_INET, socket.SOCK_STREAM, 6, "", ("93.184.215.14", 443))
        return [public, (family, socket.SOCK_STREAM, 6, "", (inner, 443))]

    monkeypatch.setattr(socket, "getaddrinfo", mixed)
    with anyio.fail_after(20), pytest.raises(FetchRefused, match=r"No request is sent to mixed\.example\.com"):
        await PUBLIC.get("https://mixed.example.com/.well-known/oauth-authorization-server")


@pytest.mark.attack(21)
@pytest.mark.fault(20)
async def test_answer_too_large_is_refused_while_it_comes() -> None:
    async with answering(lambda _: ok(b"x" * (MAX_BODY_BYTES + 1))) as (origin, _):
        with pytest.raises(FetchRefused, match="more than 262144 bytes"):
            await LOCAL.get(origin)


@pytest.mark.attack(21)
@pytest.mark.fault(20)
async def test_unrequested_compressed_response_is_rejected() -> None:
    async with answering(lambda _: ok(b"\x1f\x8b", "content-encoding: gzip")) as (origin, seen):
        with pytest.raises(FetchRefused, match="content coding that was not offered"):
            await LOCAL.get(origin)
        assert b"accept-encoding: identity" in seen[0].lower()


async def test_silent_host_and_a_torn_answer_fail_in_time() -> None:
    async with answering(lambda _: b"HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\nshort") as (origin, _):
        with pytest.raises(FetchFailed, match="broke off"):
            await LOCAL.get(origin)
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        with anyio.fail_after(20), pytest.raises(FetchFailed, match=r"did not answer within 0\.3 s"):
            await LOCAL.send("GET", f"http://127.0.0.1:{silent.getsockname()[1]}/", max_seconds=0.3)


async def test_proxies_of_the_environment_are_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    async with answering(lambda _: ok(b"proxy")) as (proxy, seen), answering(lambda _: ok(b"{}")) as (origin, _):
        for name in ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "http_proxy"):
            monkeypatch.setenv(name, proxy)
        for name in ("NO_PROXY", "no_proxy"):
            monkeypatch.delenv(name, raising=False)
        assert (await LOCAL.get(origin)).content == b"{}"
        assert seen == []

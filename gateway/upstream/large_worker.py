"""The helper process that reads one large result of `tools/call`, and judges it as the gate does. `held` starts it and talks to it.

Reading and judging 60 MB takes single calls into C that hold the interpreter's lock for hundreds of milliseconds. In a process of its own
they delay nobody. The decision is made by `judge_whole`, the function that the gate calls too.

Frames go both ways: the length of a JSON object in four bytes, the object, and the `size` bytes that the object names. The process ends
when its standard input does, so it never outlives the gateway.
"""

from __future__ import annotations

import gc
import json
import sys
from collections.abc import Sequence
from typing import IO, cast

from gateway.json_types import JsonMapping, JsonObject, JsonValue
from gateway.tools.results import ResultKeeper, Rules, Source, judge_whole
from gateway.tools.verbatim import decode_lean
from gateway.upstream.answers import is_readable
from gateway.upstream.hop import received_call

_LENGTH_BYTES = 4

_BLOCKS = frozenset({"text", "image", "audio"})
"""Blocks in which nothing is rewritten between the server and the gate. A result with another one is judged in the gateway."""


def send(stream: IO[bytes], fields: JsonMapping, parts: Sequence[bytes] = ()) -> None:
    """Write one frame."""
    header = json.dumps({**fields, "size": sum(map(len, parts))}).encode()
    stream.write(len(header).to_bytes(_LENGTH_BYTES, "big") + header)
    for part in parts:
        stream.write(part)
    stream.flush()


def receive(stream: IO[bytes]) -> tuple[JsonObject, bytes]:
    """Read one frame.

    Raises:
        EOFError: The stream ended.
    """
    length = _exactly(stream, _LENGTH_BYTES)
    fields = cast("JsonObject", json.loads(_exactly(stream, int.from_bytes(length, "big"))))
    return fields, _exactly(stream, fields["size"])


def _exactly(stream: IO[bytes], size: int) -> bytes:
    data = stream.read(size)
    if len(data) < size:
        raise EOFError
    return data


def read_plain(parts: list[bytes]) -> tuple[JsonValue, JsonObject] | None:
    """The id and the result of a response whose result is complete and plain; `None` for every other message. Takes over `parts`."""
    try:
        message = cast("JsonMapping", decode_lean(parts))
    except ValueError:
        return None
    result = message.get("result") if isinstance(message, dict) else None
    if not isinstance(result, dict) or message.get("jsonrpc") != "2.0" or "error" in message or "method" in message:
        return None
    fields = cast("JsonObject", result)
    if fields.pop("resultType", "complete") != "complete" or "inputRequests" in fields or not is_readable(fields):
        return None
    content: Sequence[JsonMapping] = fields.get("content") or ()
    if any(block.get("type") not in _BLOCKS for block in content):
        return None
    return message.get("id"), received_call(fields)


def _judged(result: JsonObject, order: JsonObject) -> tuple[JsonObject, Sequence[bytes]]:
    """The reply to `judge`: `whole` if the result passes as it is, else what the gate hands out instead."""
    keeper = None if order["keeper"] is None else ResultKeeper.from_settings(order["keeper"])
    try:
        judged = judge_whole(result, Rules(**order["rules"]), keeper, Source(**order["source"]))
        if judged is None:
            return {"do": "whole"}, ()
        fields: JsonObject = {"do": "judged", "rule": judged.rule, "reason": judged.reason, "shortened": judged.is_shortened}
        return fields, (json.dumps(judged.result).encode(),)
    except (ValueError, RecursionError):
        return {"do": "whole"}, ()


def main() -> None:
    """Answer orders until the input ends."""
    gc.disable()  # JSON has no cycles, and a collection would visit millions of objects
    source, target = sys.stdin.buffer, sys.stdout.buffer
    result: JsonObject | None = None
    while True:
        try:
            order, body = receive(source)
        except EOFError:
            return
        if order["do"] == "read":
            result, parts = None, [body]
            del body
            found = read_plain(parts)
            if found is None:
                send(target, {"do": "whole"})
                continue
            number, result = found
            del found  # or it would keep the result
            send(target, {"do": "held", "id": number, "isError": result.get("isError")})
        elif order["do"] == "judge" and result is not None:
            fields, reply = _judged(result, order)
            result = None
            send(target, fields, reply)


if __name__ == "__main__":
    main()

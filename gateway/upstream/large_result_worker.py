"""The program of a helper process, which parses one large result of `tools/call` at a time and applies the gate's rules to it.

Parsing and checking 60 MB takes calls into C that hold the interpreter's lock for hundreds of milliseconds. In another process, these calls
do not block the gateway's event loop. Both the helper process and the gateway's own process apply the rules with
`gate.results.judge_whole`. `large_result_pool` starts the helper process.

The gateway sends orders on standard input and reads replies from standard output. Each order or reply is a frame: the length of a JSON
object in four bytes (big-endian), the object, and as many bytes as the object's member `size` says. The process ends when its standard
input ends, so it also ends if the gateway is killed.
"""

from __future__ import annotations

import gc
import json
import sys
from collections.abc import Sequence
from typing import IO, cast

from gateway.gate.results import ResultOrigin, ResultRules, judge_whole
from gateway.json_types import JsonMapping, JsonObject, JsonValue
from gateway.storage.open_results import open_results
from gateway.tools.base import is_call_result
from gateway.upstream.gateway_chain import received
from gateway.wire.long_text import decode_with_raw_text
from gateway.wire.rpc_envelope import VERSION, VERSION_KEY

_LENGTH_BYTES = 4

_BLOCKS = frozenset({"text", "image", "audio"})
"""Types of content blocks that this process can pass to the gate's rules.

If a result has a block of another type, the gateway's own process applies the rules.
"""


def send(stream: IO[bytes], fields: JsonMapping, parts: Sequence[bytes] = ()) -> None:
    """Write one frame to `stream`: the JSON object `fields`, and `parts` as its body."""
    header = json.dumps({**fields, "size": sum(map(len, parts))}).encode()
    stream.write(len(header).to_bytes(_LENGTH_BYTES, "big") + header)
    for part in parts:
        stream.write(part)
    stream.flush()


def receive(stream: IO[bytes]) -> tuple[JsonObject, bytes]:
    """Read one frame from `stream`, and return its JSON object and its body.

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
    """Parse a JSON-RPC response, and return its id and its result.

    Return `None` if this process cannot apply the gate's rules: the message is not JSON or not a successful response, the result is
    malformed or incomplete (`input_required`, a task), or the type of a content block is not in `_BLOCKS`.

    Takes ownership of `parts`.
    """
    try:
        message = cast("JsonMapping", decode_with_raw_text(parts))
    except ValueError:
        return None
    result = message.get("result") if isinstance(message, dict) else None
    if not isinstance(result, dict) or message.get(VERSION_KEY) != VERSION or "error" in message or "method" in message:
        return None
    fields = cast("JsonObject", result)
    if fields.pop("resultType", "complete") != "complete" or "inputRequests" in fields or not is_call_result(fields):
        return None
    content: Sequence[JsonMapping] = fields.get("content") or ()
    if any(block.get("type") not in _BLOCKS for block in content):
        return None
    return message.get("id"), received(fields)


def _judged(result: JsonObject, order: JsonObject) -> tuple[JsonObject, Sequence[bytes]]:
    """Apply the gate's rules that `order` contains to `result`. Return the reply to the gateway: its JSON object and its body.

    If the result passes unchanged or cannot be checked, the reply is `whole` without a body. Otherwise the reply has the verdict, and the
    replacement of the result as the body.
    """
    store = None if order["store"] is None else open_results(order["store"])
    try:
        judged = judge_whole(result, ResultRules(**order["rules"]), store, ResultOrigin(**order["source"]))
        if judged is None:
            return {"do": "whole"}, ()
        fields: JsonObject = {"do": "judged", "rule": judged.rule, "reason": judged.reason, "shortened": judged.is_shortened}
        return fields, (json.dumps(judged.result).encode(),)
    except (ValueError, RecursionError):
        return {"do": "whole"}, ()


def main() -> None:
    """Carry out the orders on standard input and write the replies to standard output, until the input ends."""
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
            del found  # otherwise this name would keep the result in memory
            send(target, {"do": "held", "id": number, "isError": result.get("isError")})
        elif order["do"] == "judge" and result is not None:
            fields, reply = _judged(result, order)
            result = None
            send(target, fields, reply)


if __name__ == "__main__":
    main()

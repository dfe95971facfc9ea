"""A long text is written again as it came only where that is certain to be the text that was judged."""

from __future__ import annotations

import json
from typing import Any

import pytest
from pydantic_core import from_json, to_json

from gateway.tools.verbatim import encode_around, verbatim_of

LINE = 'The fox said "hello" in C:\\temp, and went on its way.\n\t'
TEXT = LINE * 2000


def answer(text: str) -> dict[str, Any]:
    content = [{"type": "text", "text": "short"}, {"type": "text", "text": text}]
    return {"jsonrpc": "2.0", "id": 1, "result": {"resultType": "complete", "content": content}}


PLAIN, SPACED = to_json(answer(TEXT)), json.dumps(answer(TEXT)).encode()
WAYS = {"compact": PLAIN, "spaced": SPACED, "no escapes": to_json(answer("ä" * 70_000)), "short": to_json(answer("a"))}
DECEITS = {
    "an escape that need not be one": PLAIN.replace(b"fox", b"f\\u006fx"),
    "a colon that is one": SPACED.replace(b"fox", b"f\\u003ax", 1),
    "the name twice, the judged one last": PLAIN.replace(b'"text":"The', b'"text":"evil","text":"The', 1),
    "the same with backslashes to make up for it": PLAIN.replace(b'"text":"The', b'"text":"' + b'\\"' * 40 + b'","text":"The', 1),
    "the name twice, the judged one short": PLAIN.replace(b"way.\\n\\t", b'way.","text":"The end', 1),
    "a second block in it": PLAIN.replace(b"way.\\n\\t", b'way."},{"type":"text","text":"The', 1),
    "a second result": PLAIN[:-1] + b',"result":' + to_json(answer(TEXT + "x")["result"]) + b"}",
    "other spacing": PLAIN.replace(b'"content":', b'"content"  : '),
}


@pytest.mark.parametrize("way", WAYS)
def test_an_answer_is_read_as_what_came_whichever_way_it_was_written(way: str) -> None:
    message = from_json(WAYS[way])
    verbatim = verbatim_of(message, WAYS[way])
    assert (verbatim is None) == (way == "short")
    again = {"jsonrpc": "2.0", "id": "other", "result": {**message["result"], "_meta": {"a": 1}}}
    assert from_json(b"".join(encode_around(again, verbatim))) == again


@pytest.mark.parametrize("deceit", DECEITS)
def test_what_could_be_read_otherwise_is_written_anew(deceit: str) -> None:
    message = from_json(DECEITS[deceit])
    verbatim = verbatim_of(message, DECEITS[deceit])
    if verbatim is not None:
        assert json.loads(bytes(verbatim.encoded), object_pairs_hook=list) == verbatim.text
    encoded = b"".join(encode_around(message, verbatim))
    assert json.loads(encoded, object_pairs_hook=dict) == message
    assert encoded.count(b'"result":') == 1 and encoded.count(b'"text":') == len(message["result"]["content"])

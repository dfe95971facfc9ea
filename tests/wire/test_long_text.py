"""A long text's original bytes are sent on only if they certainly encode the text that was judged."""

from __future__ import annotations

import json
import random
import re
from typing import Any

import pytest
from pydantic_core import from_json, to_json

from gateway.tools.base import Complete
from gateway.wire.long_text import ENDS_BYTES, LONG_BYTES, LongText, decode_parts, encode_around

LINE = 'The fox said "hello" in C:\\temp, and went on its way.\n\t'
TEXT = LINE * 2000


def answer(*texts: str, **more: Any) -> dict[str, Any]:
    content = [{"type": "text", "text": text} for text in texts]
    return {"jsonrpc": "2.0", "id": 1, "result": {"resultType": "complete", "content": content, **more}}


def with_inside(data: bytes, what: bytes) -> bytes:
    """Insert `what` into the middle of the long text."""
    at = data.index(b"way.", len(data) // 2)
    return data[:at] + what + data[at:]


PLAIN, SPACED = to_json(answer("short", TEXT)), json.dumps(answer("short", TEXT), indent=2).encode()
TWICE = to_json(answer(TEXT, structuredContent={"result": TEXT}, isError=False))
APART = {
    "compact": PLAIN,
    "spaced": SPACED,
    "one text alone": to_json(answer(TEXT)),
    "one before short ones": to_json(answer(TEXT, "short", "\\")),
    "no escapes": to_json(answer("ä" * 70_000)),
    "not in ASCII": to_json(answer(TEXT + "ä\U0001f600")),
    "all in ASCII": json.dumps(answer(TEXT + "ä\U0001f600")).encode(),
    "many backslashes": to_json(answer("\\\\a" * 35_000)),
    "many quotes": to_json(answer('"' * 70_000)),
    "with structured content": to_json(answer(TEXT, structuredContent={"a": [{"b": "c"}]}, isError=False)),
    "an image": to_json({"jsonrpc": "2.0", "id": 1, "result": {"content": [{"type": "image", "data": "iVBOR/0K" * 9000}]}}),
    "the same text twice": TWICE,
    "the same text twice, spaced": json.dumps(answer(TEXT, structuredContent={"more": 1, "result": TEXT}), indent=2).encode(),
    "structured content alone": to_json({"jsonrpc": "2.0", "id": 1, "result": {"content": [], "structuredContent": {"text": TEXT}}}),
    "escapes that need not be": PLAIN.replace(b"fox", b"f\\u006fx"),
    "the name twice, the last one long": PLAIN.replace(b'"text":"The', b'"text":"evil","text":"The', 1),
}
WHOLE = {
    "short": to_json(answer("a")),
    "two long texts": to_json(answer(TEXT, TEXT)),
    "the same text twice, spelled in two ways": TWICE.replace(b"fox", b"f\\u006fx", 1).replace(b"temp", b"t\\u0065mp"),
    "two texts of the same length": TWICE.replace(b"fox", b"dog", 1),
    "the same text twice, in two blocks": to_json(answer(TEXT, TEXT, structuredContent={"result": "short"})),
    "the same text twice, once further down": to_json(answer(TEXT, structuredContent={"result": {"text": TEXT}})),
    "a long text elsewhere": to_json({"jsonrpc": "2.0", "id": 1, "result": {"content": [], "_meta": {"text": TEXT}}}),
    "a long name": to_json({"jsonrpc": "2.0", "id": 1, "result": {"content": [{"type": "text", "text": "a", TEXT: "b"}]}}),
    "no result": to_json({"jsonrpc": "2.0", "id": 1, "error": {"code": 1, "message": TEXT}}),
    "no object": to_json([TEXT]),
    "the name twice, the last one short": PLAIN.replace(b'"}]}}', b'","text":"The end"}]}}'),
    "the name twice, both long": with_inside(PLAIN, b'","text":"'),
    "another name in it": with_inside(PLAIN, b'","more":"'),
    "a second block in it": with_inside(PLAIN, b'"},{"type":"text","text":"'),
    "nothing but backslashes": to_json(answer("\\" * 70_000)),
    "a second result": PLAIN[:-1] + b',"result":' + to_json(answer("x")["result"]) + b"}",
    "only spaces": b'{"jsonrpc":"2.0","id":1,"result":{"content":[' + b" " * 70_000 + b'{"type":"text","text":"a"}]}}',
}


STRING_END = rb'[^"\\]*+(?:\\.[^"\\]*+)*+"'
STRING, REST_OF_STRING = re.compile(b'"' + STRING_END, re.DOTALL), re.compile(STRING_END, re.DOTALL)


def place_of(data: bytes) -> bytes | None:
    """Return the JSON string that may be extracted as a long text, found in the whole body with regular expressions."""
    start = data.find(b'"', 0, ENDS_BYTES)
    while start >= 0 and (short := STRING.match(data, start, start + ENDS_BYTES)) is not None:
        start = data.find(b'"', short.end(), ENDS_BYTES)
    edge = len(data) - ENDS_BYTES
    edge -= ENDS_BYTES - len(data[edge - ENDS_BYTES : edge].rstrip(b"\\"))
    end = REST_OF_STRING.match(data, edge)
    return data[start : end.end()] if start >= 0 and end is not None and end.end() - start >= LONG_BYTES else None


def cut(data: bytes, chance: random.Random) -> list[bytes]:
    """Split the data into chunks, some of them tiny, as they arrive over a network."""
    sizes = chance.choice([[1, 5, 100], [1_448], [4_095, 4_096, 8_192, 8_191], [16_384, 1, 65_536], [256_000], [40_000, 0, 3]])
    parts: list[bytes] = []
    at = 0
    while at < len(data):
        size = chance.choice(sizes)
        parts.append(data[at : at + size])
        at += size
    return parts


def sent(message: Any, long_text: LongText | None) -> bytes:
    return b"".join(encode_around(message, long_text)) if long_text is not None else to_json(message)


@pytest.mark.parametrize("way", APART)
def test_long_text_is_split_off_and_written_unchanged_in_every_form(way: str) -> None:
    message, encoded, long_text = decode_parts([APART[way]])
    assert message == from_json(APART[way]) and b"".join(encoded) == APART[way]
    assert long_text is not None and bytes(long_text.encoded) == encoded[1]
    again = {"jsonrpc": "2.0", "id": "other", "result": {**message["result"], "_meta": {"a": 1}}}
    written = sent(again, long_text)
    assert json.loads(written) == again and written.count(encoded[1]) == len(encoded) // 2
    assert written.count(b'"result":{') == 1 and written.count(b'"type":') == len(message["result"]["content"])


@pytest.mark.parametrize("way", WHOLE)
def test_message_without_one_certain_long_text_is_decoded_whole(way: str) -> None:
    message, encoded, long_text = decode_parts([WHOLE[way]])
    assert (message, encoded, long_text) == (from_json(WHOLE[way]), (WHOLE[way],), None)


@pytest.mark.parametrize("way", [*APART, *WHOLE])
def test_chunked_message_reads_like_a_whole_one(way: str) -> None:
    data, chance = (APART | WHOLE)[way], random.Random(way)
    whole = decode_parts([data])
    for _ in range(12):
        parts = cut(data, chance)
        assert decode_parts(parts) == whole
        assert way not in APART or (b"".join(parts) == data and len(parts) in (3, 5)), "the pieces are let go while the text is read"


def test_changed_copy_of_a_repeated_text_is_written_changed() -> None:
    message, _, long_text = decode_parts([TWICE])
    message["result"]["structuredContent"]["result"] = "other"
    written = sent(message, long_text)
    assert long_text is not None and json.loads(written) == message and written.count(long_text.encoded) == 1


def test_changed_long_text_is_written_changed() -> None:
    message, _, long_text = decode_parts([PLAIN])
    message["result"]["content"][1]["text"] = "other"
    assert json.loads(sent(message, long_text)) == message


@pytest.mark.parametrize(
    "broken", [PLAIN[:-1], PLAIN + b"}", b"\xff" + PLAIN, *(with_inside(PLAIN, b) for b in (b"\\x", b"\n", b"\xff", b'"'))]
)
def test_malformed_json_is_not_read(broken: bytes) -> None:
    with pytest.raises(ValueError):
        decode_parts([broken])


def test_partial_reading_equals_parsing_the_whole_message() -> None:
    chance = random.Random(1)
    pieces = [b'"', b"\\", b",", b'"text":"', b'"},{"', b"\\u0022", b'"}]', b"}", b"\x00", b"\xc3\xa4", b'","text":"', b"\\\\"]
    for _ in range(300):
        data = bytearray(chance.choice([PLAIN, SPACED, APART["one before short ones"], WHOLE["two long texts"], TWICE]))
        for _ in range(chance.randint(1, 3)):
            near = chance.choice([0, len(data) - 200, len(data) - 4300, chance.randrange(len(data) - 200)])
            at = near + chance.randrange(200)
            data[at : at + chance.randint(0, 2)] = chance.choice(pieces)
        parts = cut(bytes(data), chance)
        try:
            expected = from_json(bytes(data))
        except ValueError:
            with pytest.raises(ValueError):
                decode_parts([bytes(data)])
            with pytest.raises(ValueError):
                decode_parts(parts)
            continue
        message, encoded, long_text = decode_parts([bytes(data)])
        assert message == expected
        assert decode_parts(parts) == (message, encoded, long_text)
        assert long_text is None or (bytes(long_text.encoded) == encoded[1] and b"".join(encoded[1:-1]) == place_of(bytes(data)))
        if isinstance(message, dict) and long_text is not None:
            assert json.loads(sent(message, long_text)) == message


def test_long_text_is_found_where_the_grammar_finds_it() -> None:
    chance = random.Random(2)
    pieces = ["a", "\\", '"', "\\\\\\", "\n", "ä", "plain words and more of them ", '\\"', "x" * 500]
    found = 0
    for _ in range(400):
        texts = ["".join(chance.choices(pieces, k=chance.choice([1, 30, 3_000, 6_000]))) for _ in range(chance.randint(1, 3))]
        data = to_json(answer(*texts, structuredContent={"a" * chance.choice([1, 3_000]): "b" * chance.choice([1, 5_000])}))
        message, encoded, long_text = decode_parts(cut(data, chance))
        assert message == from_json(data) and b"".join(encoded) == data
        text = place_of(data) if len(data) >= LONG_BYTES else None
        is_one = text is not None and text in map(to_json, texts) and texts.count(from_json(text)) == 1
        assert (long_text is not None) is is_one
        found += is_one
    assert found > 50


@pytest.mark.parametrize(("kind", "is_binary"), [("image", True), ("audio", True), ("text", False), ("new", False)])
def test_only_image_and_audio_data_are_not_searched(kind: str, is_binary: bool) -> None:
    block = {"type": kind, "data": "iVBOR/0K" * 9_000}
    message, encoded, long_text = decode_parts([to_json({"jsonrpc": "2.0", "id": 1, "result": {"content": [block]}})])
    text_parts = Complete(message["result"], encoded, long_text).text_parts
    assert text_parts == ((encoded[0], encoded[2]) if is_binary else encoded)


def test_text_that_is_also_an_image_is_inspected() -> None:
    data = "iVBOR/0K" * 9_000
    result = {"content": [{"type": "image", "mimeType": "a/b", "data": data}], "structuredContent": {"result": data}}
    message, encoded, long_text = decode_parts([to_json({"jsonrpc": "2.0", "id": 1, "result": result})])
    assert long_text is not None and len(encoded) == 5
    assert Complete(message["result"], encoded, long_text).text_parts == encoded

"""Checks the results of calls and reads for hidden characters and size; shortens large results, and stores them whole (`ResultStore`).

A shortened result keeps its order, its images, `isError`, annotations and `_meta`. Each text that is cut is replaced by its first part, a
notice (size, shape, how to read on) and a link. The stored bytes are exactly those of the text. If too many texts must be cut, one JSON
document of all texts is stored instead, and its first part replaces them. `policy.result_limits` decides which results are shortened;
`gate.tools` and `gate.reads` call this module; the tool `read_result` reads stored results.

Decided: structured content over the size limit is removed if the tool has no output schema or the result is an error. With a schema, it is
cut (fewer items, shorter strings) if the cut value still matches the schema, and marked as cut if the schema allows another key; if no cut
value matches, the result becomes an error without structured content. Because: a client must not take a part for the whole, and a client
that follows the specification rejects a result without its promised structured content, unless the result is an error (both SDKs do). As an
error, the first part of the text and the link reach the model. Instead of: sending all of it (it floods the context), or removing it
without a notice (the client fails). Revisit: when the protocol can mark a result as partial.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Literal, Protocol, TypeVar, cast, runtime_checkable

import anyio.to_thread

from gateway.errors import StorageError, TooLargeToKeep, ToolFailed
from gateway.gate.selection import decode, encode, encode_parts, parse_json, to_json, whole_characters
from gateway.gate.shapes import describe_json, describe_text
from gateway.json_types import JsonMapping, JsonObject, JsonValue
from gateway.policy.decision import PASS, Pass, Reject, Rewrite
from gateway.policy.hidden_text import HiddenText, judge_result_text
from gateway.policy.result_limits import Shorten, judge_result, measure_bytes
from gateway.policy.schema_check import SchemaCheck, measure
from gateway.storage.result_store import KeptResult, ResultStore
from gateway.tools.base import Received, Releasable

logger = logging.getLogger(__name__)

T = TypeVar("T")

SHORTENED_META_KEY = "dev.moongate/shortened"
"""Key in the `_meta` of a shortened result whose value lists what was cut, with the id and size of each stored text."""

MARKER_KEY = "dev.moongate/shortened"
"""Key that is added to structured content to mark it as incomplete, if its output schema allows another key."""

HEAD_BYTES = 16_384
"""Maximum bytes of the start of a text that remain in a shortened result: about 4,000 tokens. The whole text is stored."""

NOTICE_BYTES = 700
"""Estimated bytes of the notice and the link that replace the rest of a text in a shortened result."""

MAX_PARTS = 16
"""Maximum number of texts of one result that are stored separately. If more texts must be cut, or
cutting single texts is not enough, all are stored as one JSON document."""

_LEVELS = ((64, 2_048), (16, 512), (4, 128), (1, 64), (0, 16))
"""Sizes to which structured content is cut: items per list and characters per string. They are tried in order until the result fits."""

_MAX_MAP_KEYS = 256
"""Maximum number of keys per JSON object that remain in structured content that is cut because it is too large."""

Form = Literal["content", "contents", "messages"]
"""Key under which an MCP result has its texts: `content` for a tool call, `contents` for a resource read, `messages` for a prompt."""


@dataclass(frozen=True, slots=True)
class ResultOrigin:
    """Describes where a result comes from (a tool call, a read or a prompt), and which caller owns it."""

    owner: str
    """Id of the caller's principal. Only this principal may read the stored result."""
    origin: str
    """Name of the called tool or of the prompt, or URI of the resource, as clients see it."""
    form: Form = "content"
    output_schema: JsonObject | None = None


@dataclass(frozen=True, slots=True)
class _Part:
    """A part of a result that can be shortened: an item of its list of content blocks, or its structured content."""

    index: int
    """Index of the item in the list; -1 for the structured content."""
    size: int


def _shorten(store: ResultStore, result: JsonObject, max_bytes: int, source: ResultOrigin) -> JsonObject | Reject:
    """Store a large result whole, and return a copy that is shortened to about `max_bytes`. Blocks.

    Return a refusal if the result cannot be stored, or cannot be shortened enough.
    """
    try:
        return _Shortening(store, result, max_bytes, source).run()
    except (StorageError, RecursionError) as error:
        logger.warning("large result not stored origin=%s error=%s", source.origin, error)
        why = _why(error)
        return Reject(
            "maxResultBytes",
            f"The result is larger than the {max_bytes} bytes allowed here, and it could not be kept to be read in parts. {why}",
        )


def _why(error: StorageError | RecursionError) -> str:
    """Return a text for the caller about why a result could not be stored. It does not contain the path of the state folder."""
    if isinstance(error, TooLargeToKeep):
        return str(error)
    return "The gateway's log says why." if isinstance(error, StorageError) else "It is nested too deeply."


def _unkept(verdict: Shorten) -> Reject:
    return Reject(
        "maxResultBytes",
        f"The result is larger than the {verdict.max_bytes} bytes allowed here. Ask for less of it (a filter, a page, a range).",
    )


@dataclass(frozen=True, slots=True)
class ResultRules:
    """The settings of a policy for results: what to do with hidden (invisible) characters, and limits of size in bytes."""

    hidden_text: HiddenText
    max_result_bytes: int
    max_kept_bytes: int


@dataclass(frozen=True, slots=True)
class Judged:
    """The replacement of a result that policy does not let through unchanged: a changed result, or a refusal.

    A refusal has a `rule` and a `reason`, and `result` is empty.
    """

    result: JsonObject
    rule: str = ""
    reason: str = ""
    is_shortened: bool = False


def judge_whole(result: JsonObject, rules: ResultRules, store: ResultStore | None, source: ResultOrigin) -> Judged | None:
    """Check a result for hidden characters, then its size. Return its replacement; `None` if it passes unchanged. Blocks.

    A result over the size limit is stored whole in `store`, and shortened. Without `store`, or over `max_kept_bytes`, it is refused.
    """
    cleaned, verdict = _judge(result, rules)
    if isinstance(verdict, Shorten):
        verdict = _unkept(verdict) if store is None else _shorten(store, cleaned, verdict.max_bytes, source)
    return _judged(result, cleaned, verdict)


async def judge_small(
    result: JsonObject,
    rules: ResultRules,
    store: ResultStore | None,
    source: ResultOrigin,
    encoded_bytes: int | None = None,
    *,
    is_searched: bool = True,
) -> Judged | None:
    """Check a small result for hidden characters and size on the event loop. Return its replacement; `None` if it passes unchanged.

    Only a result that must be shortened needs a worker thread. `encoded_bytes` is the length of the JSON that the result was read from, if
    it is known. With `is_searched=False`, the text is not searched for hidden characters, because it is known to have none.
    """
    cleaned, verdict = _judge(result, rules, encoded_bytes, is_searched=is_searched)
    if isinstance(verdict, Shorten):
        verdict = _unkept(verdict) if store is None else await store.work(partial(_shorten, store, cleaned, verdict.max_bytes, source))
    return _judged(result, cleaned, verdict)


async def judge_large(result: JsonObject, rules: ResultRules, store: ResultStore | None, source: ResultOrigin) -> Judged | None:
    """Check a large result for hidden characters and size in a worker thread. Return its replacement; `None` if it passes unchanged."""
    judge = partial(judge_whole, result, rules, store, source)
    return await (anyio.to_thread.run_sync(judge) if store is None else store.work(judge))


def _judge(
    result: JsonObject, rules: ResultRules, encoded_bytes: int | None = None, *, is_searched: bool = True
) -> tuple[JsonObject, Pass | Shorten | Reject]:
    """Check a result for hidden characters and size, and return the result and a verdict: pass, shorten or refuse.

    The returned result does not have the characters that policy removes.
    """
    verdict = judge_result_text(result, rules.hidden_text) if is_searched else PASS
    if isinstance(verdict, Reject):
        return result, verdict
    if isinstance(verdict, Rewrite):
        result, encoded_bytes = verdict.arguments, None
    return result, judge_result(result, rules.max_result_bytes, rules.max_kept_bytes, encoded_bytes)


def _judged(result: JsonObject, cleaned: JsonObject, verdict: Pass | Reject | JsonObject) -> Judged | None:
    if isinstance(verdict, Reject):
        return Judged({}, verdict.rule, verdict.reason)
    if isinstance(verdict, dict):
        return Judged(verdict, is_shortened=True)
    return None if cleaned is result else Judged(cleaned)


@runtime_checkable
class HelperResult(Releasable, Protocol):
    """A large result that is in the memory of a helper process (`upstream.large_result_pool`), not of this process.

    Its bytes count against the memory that large results may use together; `release` frees the result and these bytes.
    """

    async def judge(self, rules: ResultRules, store: ResultStore | None, source: ResultOrigin) -> Judged | None:
        """Check the result in the helper process, as `judge_whole` does. Call this at most once.

        Raises:
            ToolFailed: The helper process ended.
        """
        ...

    async def whole(self) -> Received:
        """Return the result unchanged, as the server sent it, from the memory of the helper process."""
        ...


class _Shortening:
    """The work of shortening one large result: stores its texts whole, and builds the shortened copy."""

    def __init__(self, store: ResultStore, result: JsonObject, max_bytes: int, source: ResultOrigin) -> None:
        self._store = store
        self._result = result
        self._budget = max_bytes
        self._source = source
        self._head = min(HEAD_BYTES, max_bytes // 8)
        self._notes: list[JsonObject] = []
        self._twin: KeptResult | None = None
        """The stored text that is the JSON of the structured content, if the result has such a text, as MCP recommends.

        The structured content is then not stored a second time."""

    def run(self) -> JsonObject | Reject:
        form = self._source.form
        units = list(self._result.get(form) or [])
        structured = self._result.get("structuredContent")
        sizes = [0 if _is_media(unit, form) else measure_bytes(unit, 2**62) for unit in units]
        parts = [_Part(i, size) for i, size in enumerate(sizes) if _text_of(units[i], form) is not None]
        # Texts come first: if a text and the structured content have the same size, the text is cut, because programs need the other.
        parts += [_Part(-1, measure_bytes(structured, 2**62))] if structured is not None else []
        total = sum(sizes) + (parts[-1].size if structured is not None else 0)
        chosen, left = self._choose(parts, total)
        shortened = dict(self._result)
        if left > max(self._budget, 4 * NOTICE_BYTES) or len(chosen) > MAX_PARTS:
            chosen = {-1} if structured is not None else cast("set[int]", set())
            fresh = self._gather(units)
        else:
            fresh: list[JsonValue] = []
            for index, unit in enumerate(units):
                fresh += self._cut(unit, index) if index in chosen else [unit]
        shortened[form] = fresh
        if -1 in chosen:
            self._replace_structured(shortened)
        meta = self._result.get("_meta")
        shortened["_meta"] = {**(cast("JsonObject", meta) if isinstance(meta, dict) else {}), SHORTENED_META_KEY: self._notes}
        rest = {key: value for key, value in self._result.items() if key not in (form, "structuredContent")}
        if measure_bytes(rest, self._budget) > self._budget:
            return Reject("maxResultBytes", f"The result's `_meta` is larger than the {self._budget} bytes allowed here.")
        return shortened

    def _choose(self, parts: Sequence[_Part], total: int) -> tuple[set[int], int]:
        """Choose which texts (or structured content) to cut, largest first, until the result fits or only short texts are left.

        Return their indexes and the new size, an estimate in bytes.
        """
        chosen: set[int] = set()
        for part in sorted(parts, key=lambda p: -p.size):
            if total <= self._budget or part.size <= self._head:
                break
            chosen.add(part.index)
            total -= part.size - self._head - NOTICE_BYTES
        return chosen, total

    # -- texts -------------------------------------------------------------------------------------------------

    def _cut(self, unit: JsonValue, index: int) -> list[JsonValue]:
        """Store the text of a content item whole. Return the items that replace it: the first part of the text, a notice and a link."""
        form = self._source.form
        text = _text_of(unit, form) or ""
        body = encode_parts(text)
        value, is_json = _decoded(body)
        mime = _mime_of(unit, form) or ("application/json" if is_json else "text/plain")
        kept = self._keep(body, mime)
        shape = describe_json(value, self._shape_chars()) if is_json else describe_text(text)
        head = decode(whole_characters(body[0], 0, self._head))
        self._note(kept, f"{form}/{index}", len(encode(head)))
        if is_json and form == "content" and value == self._result.get("structuredContent"):
            self._twin = kept
        notice = self._notice(kept, shape, len(encode(head)))
        return [_with_text(unit, form, head), *_extras(unit, form, kept, notice)]

    def _gather(self, units: list[JsonValue]) -> list[JsonValue]:
        """Store all content items, except images, audio and binary data, as one JSON document. Return the new list of items.

        In the list, the first part of the document, a notice and a link replace the stored items.
        """
        form = self._source.form
        spoken = [unit for unit in units if not _is_media(unit, form)]
        if not spoken:
            return units
        body = encode(to_json(spoken))
        kept = self._keep([body], "application/json")
        head = decode(whole_characters(body, 0, min(self._head, len(body))))
        self._note(kept, form, len(encode(head)))
        notice = self._notice(kept, describe_json(spoken, self._shape_chars()), len(encode(head)))
        first = next(i for i, unit in enumerate(units) if not _is_media(unit, form))
        stand_in: JsonValue = _plain(spoken[0], form, head, kept)
        media = [unit for unit in units if _is_media(unit, form)]
        before = sum(1 for unit in units[:first] if _is_media(unit, form))
        return [*media[:before], stand_in, *_extras(spoken[0], form, kept, notice), *media[before:]]

    # -- structured content ------------------------------------------------------------------------------------

    def _replace_structured(self, shortened: JsonObject) -> None:
        structured = shortened.pop("structuredContent")
        kept = self._twin
        if kept is None:
            body = encode(to_json(structured))
            kept = self._keep([body], "application/json")
            notice = self._notice(kept, describe_json(structured, self._shape_chars()), 0)
            shortened["content"] = [*shortened["content"], *_extras(None, "content", kept, notice)]
        self._note(kept, "structuredContent", 0)
        schema = self._source.output_schema
        if schema is None or self._result.get("isError"):
            self._add_note(shortened, "Its structured content was left out.")
            return
        cut = self._matching(structured, schema, kept)
        if cut is not None:
            shortened["structuredContent"] = cut
            self._notes[-1]["cut"] = True
            self._add_note(shortened, "Its structured content has been cut (fewer items, shorter strings): do not take it for the whole.")
        else:
            shortened["isError"] = True
            text = "The call succeeded; no part of its structured content matches the tool's output schema, so this is marked as an error."
            self._add_note(shortened, text)

    def _add_note(self, shortened: JsonObject, text: str) -> None:
        shortened["content"] = [*shortened["content"], {"type": "text", "text": f"[{text}]"}]

    def _matching(self, value: JsonValue, schema: JsonObject, kept: KeptResult) -> JsonObject | None:
        """Cut structured content as little as possible so that it fits, and still matches its output schema; `None` if this is impossible.

        If the schema allows another key, the returned object has `MARKER_KEY`, which marks it as incomplete.
        """
        check = SchemaCheck(schema)
        if check.problem is not None or not isinstance(value, dict):
            return None
        for items, characters in _LEVELS:
            cut = cast("JsonObject", _prune(value, items, characters))
            if measure_bytes(cut, self._budget) > max(self._head, 1_024):
                continue
            marked = {**cut, MARKER_KEY: {"result": kept.uri, "bytes": kept.size}}
            for candidate in (marked, cut):
                if check.find(candidate, measure(candidate)) is None:
                    return candidate
        return None

    # -- words -------------------------------------------------------------------------------------------------

    def _keep(self, body: Sequence[bytes], mime_type: str) -> KeptResult:
        return self._store.keep(self._source.owner, *body, mime_type=mime_type, origin=self._source.origin)

    def _shape_chars(self) -> int:
        return min(1_500, self._budget // 4)

    def _note(self, kept: KeptResult, part: str, shown: int) -> None:
        self._notes.append({"id": kept.id, "uri": kept.uri, "part": part, "bytes": kept.size, "shown": shown, "mimeType": kept.mime_type})

    def _notice(self, kept: KeptResult, shape: str, shown: int) -> str:
        examples = '"pointer": "/key/0"' if kept.mime_type.endswith("json") else '"lines": "1-200"'
        above = f"above are the first {shown:,} of its {kept.size:,} bytes" if shown else f"it has {kept.size:,} bytes"
        return (
            f"[Shortened by the gateway: {above}. The whole is kept for {_duration(self._store.ttl_seconds)}. Read on with the tool "
            f'read_result, {{"id": "{kept.id}"}} and one of "page": 2, {examples}, "search": "words". Its shape:\n{shape}]'
        )


def _decoded(body: Sequence[bytes]) -> tuple[JsonValue, bool]:
    """Parse an encoded text as JSON. Return its value and true if it is a JSON object or array; else `None` and false."""
    if body[0].lstrip()[:1] not in (b"{", b"["):
        return None, False
    try:
        return parse_json(b"".join(body)), True
    except ToolFailed:
        return None, False


def _duration(seconds: float) -> str:
    return f"{seconds / 60:.0f} minutes" if seconds >= 120 else f"{seconds:g} seconds"


def _prune(value: JsonValue, items: int, characters: int) -> JsonValue:
    """Return a copy of a JSON value in which lists have at most `items` items, and strings at most `characters` characters.

    Objects have at most `_MAX_MAP_KEYS` keys.
    """
    if isinstance(value, dict):
        mapping = cast("JsonMapping", value)
        return {key: _prune(mapping[key], items, characters) for key in list(mapping)[:_MAX_MAP_KEYS]}
    if isinstance(value, list):
        return [_prune(item, items, characters) for item in cast("list[JsonValue]", value)[:items]]
    return f"{value[: characters - 1]}…" if isinstance(value, str) and len(value) > characters else value


# -- the three forms of results -------------------------------------------------------------------------------------


def _block(unit: JsonValue, form: Form) -> JsonMapping:
    """Return the content block of `unit`, an item of the list under the key `form` of a result; an empty object if it has no block.

    In a prompt's `messages`, the block is the message's `content`; in the other lists, it is the item itself.
    """
    block = cast("JsonMapping", unit).get("content") if form == "messages" and isinstance(unit, dict) else unit
    return cast("JsonMapping", block) if isinstance(block, dict) else cast("JsonObject", {})


def _text_of(unit: JsonValue, form: Form) -> str | None:
    """Return the text of `unit`, an item of the list under the key `form` of a result; `None` if it has no text that can be cut."""
    block = _block(unit, form)
    resource = block.get("resource")
    holder = cast("JsonMapping", resource) if block.get("type") == "resource" and isinstance(resource, dict) else block
    text = holder.get("text")
    return text if isinstance(text, str) else None


def _mime_of(unit: JsonValue, form: Form) -> str | None:
    block = _block(unit, form)
    resource = block.get("resource")
    mime = (cast("JsonMapping", resource) if isinstance(resource, dict) else block).get("mimeType")
    return mime if isinstance(mime, str) else None


def _is_media(unit: JsonValue, form: Form) -> bool:
    block = _block(unit, form)
    resource = block.get("resource")
    return block.get("type") in ("image", "audio") or "blob" in block or (isinstance(resource, dict) and "blob" in resource)


def _with_block(unit: JsonValue, form: Form, block: JsonObject) -> JsonObject:
    return {**cast("JsonObject", unit), "content": block} if form == "messages" else block


def _with_text(unit: JsonValue, form: Form, text: str) -> JsonObject:
    block = dict(_block(unit, form))
    if block.get("type") == "resource":
        return _with_block(unit, form, {**block, "resource": {**block["resource"], "text": text}})
    return _with_block(unit, form, {**block, "text": text})


def _extras(unit: JsonValue, form: Form, kept: KeptResult, notice: str) -> list[JsonValue]:
    """Return the content items that follow a text that was cut: the notice, and a link to the stored text.

    The result of a read cannot contain links, so the notice has the URI there.
    """
    if form == "contents":
        return [{"uri": kept.uri, "mimeType": "text/plain", "text": notice}]
    link: JsonObject = {
        "type": "resource_link",
        "uri": kept.uri,
        "name": f"result-{kept.id}",
        "description": f"The whole of a shortened result of {kept.origin}"[:200],
        "mimeType": kept.mime_type,
        "size": kept.size,
    }
    blocks: list[JsonObject] = [{"type": "text", "text": notice}, link]
    return [_with_block(unit, form, block) for block in blocks]


def _plain(unit: JsonValue, form: Form, text: str, kept: KeptResult) -> JsonObject:
    """Return a content item with `text`, the first part of the JSON document in which all texts of the result were stored."""
    if form == "contents":
        return {"uri": str(_block(unit, form).get("uri") or kept.uri), "mimeType": "application/json", "text": text}
    role = cast("JsonMapping", unit).get("role", "user") if isinstance(unit, dict) else "user"
    block: JsonObject = {"type": "text", "text": text}
    return {"role": role, "content": block} if form == "messages" else block

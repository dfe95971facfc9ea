"""`ResultKeeper`: shortens what is over its budget and keeps the whole, so that nothing is lost and no context is flooded.

A shortened result keeps its order, its images, `isError`, annotations and `_meta`. Each text that is cut stands as its
head, followed by a notice (size, shape, how to read on) and a link. What is kept is exactly the text's own bytes.
`policy.limits` decides whether; the gates of tools and reads call this; `read_result` reads.

Structured content over the budget. Decided: without an output schema it is left out. With one it is sent cut (fewer
items, shorter strings) if the cut value still matches the schema, marked inside where the schema lets it; if it cannot
match, the result is an error result without it. Because: a client must not take a part for the whole, and a client
of the specification throws a result away that lacks promised structured content or does not match the schema (both
SDKs do), unless it is an error; as an error, the head and the link at least reach the model. Instead of: sending it
whole (floods), or leaving it out silently (the client fails and nothing is left). Revisit: when the protocol can say
that a result is partial.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TypeVar, cast

from gateway.errors import StorageError, TooLargeToKeep, ToolFailed
from gateway.json_types import JsonMapping, JsonObject, JsonValue
from gateway.policy.checking import SchemaCheck, measure
from gateway.policy.decision import Reject, Rewrite
from gateway.policy.hidden_text import HiddenText, judge_result_text
from gateway.policy.limits import Shorten, judge_result, measure_bytes
from gateway.storage.results import KeptResult, ResultStore
from gateway.tools.selection import decode, encode, encode_parts, parse_json, to_json, whole_characters
from gateway.tools.shapes import describe_json, describe_text

logger = logging.getLogger(__name__)

T = TypeVar("T")

SHORTENED_META_KEY = "dev.moongate/shortened"
"""Key in a result's `_meta` that lists what was shortened."""

MARKER_KEY = "dev.moongate/shortened"
"""Key put into cut structured content where its schema allows one more."""

HEAD_BYTES = 16_384
"""Most that is shown of one text: about 4,000 tokens."""

NOTICE_BYTES = 700
"""About what a notice and a link take; reckoned with, not enforced."""

MAX_PARTS = 16
"""Texts of one result kept one by one; with more, all of it is kept as one JSON document."""

_LEVELS = ((64, 2_048), (16, 512), (4, 128), (1, 64), (0, 16))
"""Items of a list and characters of a string left in cut structured content, tried in this order."""

_MAX_MAP_KEYS = 256
"""Keys left of one object in cut structured content."""

Form = Literal["content", "contents", "messages"]
"""The list of a result that has its texts: of a call, a read, a prompt."""


@dataclass(frozen=True, slots=True)
class Source:
    """Where a result is from and whose it is."""

    owner: str
    """Principal id."""
    origin: str
    """Exposed tool name, resource URI or prompt name."""
    form: Form = "content"
    output_schema: JsonObject | None = None


@dataclass(frozen=True, slots=True)
class _Part:
    """One thing that can be cut: a unit of the list by index, or the structured content."""

    index: int
    """-1 for the structured content."""
    size: int


class ResultKeeper:
    """Shortens results over one store. Stateless but for the store."""

    def __init__(self, store: ResultStore, *, ttl_seconds: float) -> None:
        self._store = store
        self._ttl = ttl_seconds

    @property
    def settings(self) -> JsonObject:
        """What `from_settings` makes the same keeper of, in another process."""
        return self._store.settings

    @classmethod
    def from_settings(cls, settings: JsonObject) -> ResultKeeper:
        """A keeper over the same folder."""
        ttl = settings["ttl_seconds"]
        return cls(
            ResultStore(Path(settings["folder"]), ttl_seconds=ttl, max_bytes_per_owner=settings["max_bytes_per_owner"]), ttl_seconds=ttl
        )

    async def shorten(self, result: JsonObject, max_bytes: int, source: Source) -> JsonObject | Reject:
        """As `shorten_now`, in a worker thread."""
        return await self.work(lambda: self.shorten_now(result, max_bytes, source))

    async def work(self, job: Callable[[], T]) -> T:
        """As `ResultStore.work`."""
        return await self._store.work(job)

    def shorten_now(self, result: JsonObject, max_bytes: int, source: Source) -> JsonObject | Reject:
        """The result as handed out, within about `max_bytes`; `result` is not changed. Blocks."""
        try:
            return _Shortening(self._store, self._ttl, result, max_bytes, source).run()
        except (StorageError, RecursionError) as error:
            logger.warning("A large result of %s could not be kept: %s", source.origin, error)
            why = _why(error)
            return Reject(
                "maxResultBytes",
                f"The result is larger than the {max_bytes} bytes allowed here, and it could not be kept to be read in parts. {why}",
            )


def _why(error: StorageError | RecursionError) -> str:
    """What the caller is told; where the state lies is not its business."""
    if isinstance(error, TooLargeToKeep):
        return str(error)
    return "The gateway's log says why." if isinstance(error, StorageError) else "It is nested too deeply."


async def shorten(result: JsonObject, verdict: Shorten, keeper: ResultKeeper | None, source: Source) -> JsonObject | Reject:
    """Act on a verdict; without a keeper (a gate outside a gateway) what is too large is refused."""
    return _unkept(verdict) if keeper is None else await keeper.shorten(result, verdict.max_bytes, source)


def _unkept(verdict: Shorten) -> Reject:
    return Reject(
        "maxResultBytes",
        f"The result is larger than the {verdict.max_bytes} bytes allowed here. Ask for less of it (a filter, a page, a range).",
    )


@dataclass(frozen=True, slots=True)
class Rules:
    """What a result must pass."""

    hidden_text: HiddenText
    max_result_bytes: int
    max_kept_bytes: int


@dataclass(frozen=True, slots=True)
class Judged:
    """What is handed out in place of a result; a refusal if `rule` is not empty, and then `result` is empty."""

    result: JsonObject
    rule: str = ""
    reason: str = ""
    is_shortened: bool = False


def judge_whole(result: JsonObject, rules: Rules, keeper: ResultKeeper | None, source: Source) -> Judged | None:
    """Judge a large result as the gate judges every result: hidden text, then size. `None` if it passes as it is. Blocks."""
    verdict = judge_result_text(result, rules.hidden_text)
    if isinstance(verdict, Reject):
        return Judged({}, verdict.rule, verdict.reason)
    cleaned = verdict.arguments if isinstance(verdict, Rewrite) else result
    limit = judge_result(cleaned, rules.max_result_bytes, rules.max_kept_bytes)
    if isinstance(limit, Shorten):
        shortened = _unkept(limit) if keeper is None else keeper.shorten_now(cleaned, limit.max_bytes, source)
        if not isinstance(shortened, Reject):
            return Judged(shortened, is_shortened=True)
        limit = shortened
    if isinstance(limit, Reject):
        return Judged({}, limit.rule, limit.reason)
    return None if cleaned is result else Judged(cleaned)


class _Shortening:
    """One result on its way to being shorter."""

    def __init__(self, store: ResultStore, ttl_seconds: float, result: JsonObject, max_bytes: int, source: Source) -> None:
        self._store = store
        self._ttl = ttl_seconds
        self._result = result
        self._budget = max_bytes
        self._source = source
        self._head = min(HEAD_BYTES, max_bytes // 8)
        self._notes: list[JsonObject] = []
        self._twin: KeptResult | None = None
        """Kept of a text that says the same as the structured content, as servers are told to send it."""

    def run(self) -> JsonObject | Reject:
        form = self._source.form
        units = list(self._result.get(form) or [])
        structured = self._result.get("structuredContent")
        sizes = [0 if _is_media(unit, form) else measure_bytes(unit, 2**62) for unit in units]
        parts = [_Part(i, size) for i, size in enumerate(sizes) if _text_of(units[i], form) is not None]
        # Texts come first among equals: programs read the structured content, and it is worth more whole.
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
        """What to cut so that the result fits, largest first, and about how many bytes are left then."""
        chosen: set[int] = set()
        for part in sorted(parts, key=lambda p: -p.size):
            if total <= self._budget or part.size <= self._head:
                break
            chosen.add(part.index)
            total -= part.size - self._head - NOTICE_BYTES
        return chosen, total

    # -- texts -------------------------------------------------------------------------------------------------

    def _cut(self, unit: JsonValue, index: int) -> list[JsonValue]:
        """A unit as its head, a notice and a link."""
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
        """Too much for parts: everything that is not media becomes one kept JSON document."""
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
            self._say(shortened, "Its structured content was left out.")
            return
        cut = self._matching(structured, schema, kept)
        if cut is not None:
            shortened["structuredContent"] = cut
            self._notes[-1]["cut"] = True
            self._say(shortened, "Its structured content has been cut (fewer items, shorter strings): do not take it for the whole.")
        else:
            shortened["isError"] = True
            text = "The call succeeded; no part of its structured content matches the tool's output schema, so this is marked as an error."
            self._say(shortened, text)

    def _say(self, shortened: JsonObject, text: str) -> None:
        shortened["content"] = [*shortened["content"], {"type": "text", "text": f"[{text}]"}]

    def _matching(self, value: JsonValue, schema: JsonObject, kept: KeptResult) -> JsonObject | None:
        """The largest cut of `value` that fits and matches; marked inside where the schema admits that."""
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
            f"[Shortened by the gateway: {above}. The whole is kept for {_duration(self._ttl)}. Read on with the tool "
            f'read_result, {{"id": "{kept.id}"}} and one of "page": 2, {examples}, "search": "words". Its shape:\n{shape}]'
        )


def _decoded(body: Sequence[bytes]) -> tuple[JsonValue, bool]:
    """The body as JSON if it is an object or an array."""
    if body[0].lstrip()[:1] not in (b"{", b"["):
        return None, False
    try:
        return parse_json(b"".join(body)), True
    except ToolFailed:
        return None, False


def _duration(seconds: float) -> str:
    return f"{seconds / 60:.0f} minutes" if seconds >= 120 else f"{seconds:g} seconds"


def _prune(value: JsonValue, items: int, characters: int) -> JsonValue:
    """A copy with lists and strings cut."""
    if isinstance(value, dict):
        mapping = cast("JsonMapping", value)
        return {key: _prune(mapping[key], items, characters) for key in list(mapping)[:_MAX_MAP_KEYS]}
    if isinstance(value, list):
        return [_prune(item, items, characters) for item in cast("list[JsonValue]", value)[:items]]
    return f"{value[: characters - 1]}…" if isinstance(value, str) and len(value) > characters else value


# -- the three forms of results -------------------------------------------------------------------------------------


def _block(unit: JsonValue, form: Form) -> JsonMapping:
    """The content block of a unit; empty for what is not one."""
    block = cast("JsonMapping", unit).get("content") if form == "messages" and isinstance(unit, dict) else unit
    return cast("JsonMapping", block) if isinstance(block, dict) else cast("JsonObject", {})


def _text_of(unit: JsonValue, form: Form) -> str | None:
    """The text of a unit that can be cut."""
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
    """The notice and the link, in the form's own shape; a read has no links, so its notice stands under the link's URI."""
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
    """A text of our own where everything was gathered."""
    if form == "contents":
        return {"uri": str(_block(unit, form).get("uri") or kept.uri), "mimeType": "application/json", "text": text}
    role = cast("JsonMapping", unit).get("role", "user") if isinstance(unit, dict) else "user"
    block: JsonObject = {"type": "text", "text": text}
    return {"role": role, "content": block} if form == "messages" else block

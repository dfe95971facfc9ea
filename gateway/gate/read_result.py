"""`ReadResult`: the built-in tool `read_result`, which returns parts of a large result that the gateway shortened and stored.

With it, a client that does not support resources can read every byte of a shortened result; other clients may read the linked resource
instead. Only the caller of the original call can read a result: for other callers the id is unknown.
"""

from __future__ import annotations

from typing import cast

from gateway.errors import NotFound, ToolFailed
from gateway.gate import selection
from gateway.json_types import JsonObject
from gateway.policy.metadata import PART_META_KEY
from gateway.storage.result_store import RESULT_SCHEME, KeptResult, ResultStore
from gateway.tools.base import Complete, ToolDefinition, ToolOutcome
from gateway.tools.context import CallContext

DEFAULT_PAGE_BYTES = 32_768
MAX_PAGE_BYTES = 262_144
"""Maximum size in bytes of one page of a stored result; the default (`DEFAULT_PAGE_BYTES`) is about 8,000 tokens.

The maximum is far below 1 MiB, the most that clients of the Python SDK accept in one server-sent event, because JSON may encode a character
in several bytes."""

MAX_CONTEXT = 2_000
"""Maximum number of characters that a search in a stored result shows before and after each match."""

_SELECTORS = ("lines", "pointer", "search")


class ReadResult:
    """The tool `read_result(id, page?, page_size?, lines? | pointer? | search?, context?)`, which reads a part of a stored result.

    The part is a page, a range of lines, the value at a JSON Pointer, or the matches of a search.
    """

    def __init__(self, store: ResultStore) -> None:
        self._store = store
        self.definition = ToolDefinition(
            name="read_result",
            title="Read a kept result",
            description=(
                "Read more of a result that the gateway shortened; its text names the id. Choose lines, a JSON Pointer, or a "
                "text to search for; without one of them the whole is read. Long answers come in pages."
            ),
            input_schema={
                "type": "object",
                "properties": {
                    "id": {"type": "string", "minLength": 1, "description": f"Id of the result, or its {RESULT_SCHEME} URI."},
                    "page": {"type": "integer", "minimum": 1, "default": 1},
                    "page_size": {
                        "type": "integer",
                        "minimum": 256,
                        "maximum": MAX_PAGE_BYTES,
                        "default": DEFAULT_PAGE_BYTES,
                        "description": "Bytes of a page.",
                    },
                    "lines": {"type": "string", "description": "Lines to read, e.g. '1-200' or '1000-'."},
                    "pointer": {"type": "string", "description": "JSON Pointer (RFC 6901) into a JSON result, e.g. '/items/0'."},
                    "search": {"type": "string", "minLength": 1, "maxLength": 1_000, "description": "Plain text to look for, in any case."},
                    "context": {
                        "type": "integer",
                        "minimum": 0,
                        "maximum": MAX_CONTEXT,
                        "default": 120,
                        "description": "Characters shown around each match of a search.",
                    },
                },
                "required": ["id"],
                "additionalProperties": False,
            },
            annotations={"readOnlyHint": True, "destructiveHint": False, "idempotentHint": True, "openWorldHint": False},
        )

    async def call(self, arguments: JsonObject, ctx: CallContext) -> ToolOutcome:
        """Return the requested part of a stored result: the first content block is its text, the second describes how to read on.

        A search returns one content block with all matches.

        Raises:
            ToolFailed: The result is unknown to this caller, the part does not exist, or the call selects parts in more than one way.
        """
        chosen = [name for name in _SELECTORS if arguments.get(name) is not None]
        if len(chosen) > 1:
            raise ToolFailed(f"read_result takes one of {', '.join(_SELECTORS)}; this call has {' and '.join(chosen)}.")
        owner = ctx.facts.principal.id
        result_id = str(arguments["id"]).removeprefix(RESULT_SCHEME)
        try:
            return await self._store.work(lambda: self._read(owner, result_id, chosen[0] if chosen else "", arguments))
        except NotFound as error:
            raise ToolFailed(
                f"{error} Run the call that made it again. A result of a gateway behind this one is read with that gateway's own "
                f"read_result (`<server>__read_result`)."
            ) from None

    def _read(self, owner: str, result_id: str, selector: str, arguments: JsonObject) -> Complete:
        page, page_size = int(arguments.get("page") or 1), int(arguments.get("page_size") or DEFAULT_PAGE_BYTES)
        kept = self._store.find(owner, result_id)
        if selector == "search":
            return self._search(owner, kept, str(arguments["search"]), int(arguments.get("context", 120)), page_size)
        if not selector:
            start, end = selection.page_bounds(kept.size, page, page_size)
            data = self._store.slice(owner, kept.id, start, end - start + 3)
            return _page(kept, selection.decode(selection.whole_characters(data, start, end, start)), kept.size, page, page_size, "")
        body = self._store.body(owner, kept.id)
        value = str(arguments[selector])
        text = selection.lines_of(body, value) if selector == "lines" else selection.at_pointer(body, value)
        part = selection.encode(text)
        start, end = selection.page_bounds(len(part), page, page_size)
        if len(part) > page_size:
            text = selection.decode(selection.whole_characters(part, start, end))
        return _page(kept, text, len(part), page, page_size, f" of {selector} {value[:100]!r}")

    def _search(self, owner: str, kept: KeptResult, words: str, context: int, page_size: int) -> Complete:
        found, total = selection.search(self._store.body(owner, kept.id), words, context)
        places = [f"line {f.line}, page {f.offset // page_size + 1} (byte {f.offset}):\n{f.excerpt}" for f in found]
        head = f"{total:,} match{'' if total == 1 else 'es'} for {words[:100]!r} in result {kept.id} ({kept.size:,} bytes)"
        if total > len(found):
            head += f"; the first {len(found)} are shown, so search for something rarer to see others"
        meta: JsonObject = {PART_META_KEY: {"id": kept.id, "matches": total, "offsets": [f.offset for f in found]}}
        return Complete({"content": [{"type": "text", "text": "\n\n".join([head, *places])}], "_meta": meta})


def _page(kept: KeptResult, text: str, size: int, page: int, page_size: int, what: str) -> Complete:
    pages = selection.page_count(size, page_size)
    note = f"[Page {page} of {pages}{what} of result {kept.id} ({kept.mime_type}, {kept.size:,} bytes, from {kept.origin})"
    note += f"; go on with page {page + 1}]" if page < pages else "; this is its end]"
    part: JsonObject = {"id": kept.id, "page": page, "pages": pages, "bytes": size, "mimeType": kept.mime_type}
    content = cast("list[JsonObject]", [{"type": "text", "text": text}, {"type": "text", "text": note}])
    return Complete({"content": content, "_meta": {PART_META_KEY: part}})

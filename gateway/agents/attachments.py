"""The argument `attachments` of an agent's tool: what goes to the agent beside the words of its task, as MCP content blocks.

Links to resources of the gateway are read through its gate, with the caller's rights or, for a link that a workflow's file contains,
with the file's. Nothing else is ever fetched here, so a web address stays an address.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Sequence
from typing import cast

from gateway.errors import AgentError, NotFound
from gateway.json_types import JsonMapping, JsonObject, JsonValue
from gateway.tools.base import Finished
from gateway.tools.contents import from_block
from gateway.tools.context import CallContext
from gateway.tools.toolbox import ResourceBox
from gateway.types.content import Content

MAX_ATTACHMENTS = 20
"""Of one task; a model's attention is spent long before."""

MAX_ATTACHED_BYTES = 16_777_216
"""Of one task in all, as text or base64: what models take in one request, and a session can keep."""

_BINARY = ("image", "audio")
_NEEDS = {
    "text": "`text`",
    "image": "`data` (base64) and `mimeType`",
    "audio": "`data` (base64) and `mimeType`",
    "resource": "`resource` with `uri` and `text` or `blob`",
    "resource_link": "`uri`",
}

ATTACHMENTS: JsonObject = {
    "type": "array",
    "maxItems": MAX_ATTACHMENTS,
    "description": (
        "What the task is about beside its words, as MCP content blocks. Link what is a resource here "
        '({"type": "resource_link", "uri": …}) rather than copy it.'
    ),
    "items": {
        "type": "object",
        "properties": {
            "type": {"type": "string", "enum": list(_NEEDS), "description": "Decides which of the others are needed."},
            "text": {"type": "string", "description": "Of `text`."},
            "data": {"type": "string", "description": "Of `image` and `audio`: the bytes as base64."},
            "mimeType": {"type": "string", "description": "Of `image` and `audio`, such as image/png."},
            "uri": {"type": "string", "description": "Of `resource_link`: a resource of this server, or a web address."},
            "name": {"type": "string", "description": "Of `resource_link`: what to call it."},
            "resource": {"type": "object", "description": "Of `resource`: a file, as {uri, mimeType, text} or {uri, mimeType, blob}."},
        },
        "required": ["type"],
    },
}
"""Its schema: flat, because models fill flat objects better than a choice of five."""


async def read_attachments(given: JsonValue, resources: ResourceBox | None, ctx: CallContext) -> list[Content]:
    """The contents of the argument's blocks, links resolved; without `resources` only web addresses may be linked.

    Raises:
        AgentError: A block is not what its type says, they are too many or too large, or a link leads nowhere; names the block.
        PolicyDenied: The API key of the caller has no scope for a linked resource.
        GatewayError: A resource cannot be read.
    """
    blocks: list[JsonMapping] = cast("list[JsonMapping]", given if isinstance(given, list) else [])
    if len(blocks) > MAX_ATTACHMENTS:
        raise AgentError(f"attachments: {len(blocks)} are too many; a task takes {MAX_ATTACHMENTS}.")
    contents: list[Content] = []
    left = MAX_ATTACHED_BYTES
    for number, block in enumerate(blocks):
        at = f"attachments[{number}]"
        _check(block, at)
        found = await _linked(block, at, resources, ctx) if block["type"] == "resource_link" else _read([block], at)
        left -= sum(_size(content) for content in found)
        if left < 0:
            raise AgentError(f"{at}: the attachments are larger than {MAX_ATTACHED_BYTES} bytes in all; link or shorten them.")
        contents += found
    return contents


async def _linked(block: JsonMapping, at: str, resources: ResourceBox | None, ctx: CallContext) -> list[Content]:
    uri = str(block["uri"])
    is_web = uri.startswith(("https://", "http://"))
    if resources is None:
        if is_web:
            return [from_block(block)]
        raise AgentError(f"{at}: {uri[:200]!r} cannot be read for this call; attach its content instead.")
    try:
        outcome = await resources.read_resource(uri, ctx.for_argument("uri", uri))
    except NotFound:
        if is_web:
            return [from_block(block)]  # the model's provider may look at it
        raise AgentError(f"{at}: no resource {uri[:200]!r} is here; resources/list shows which are.") from None
    if not isinstance(outcome, Finished):
        raise AgentError(f"{at}: resource {uri[:200]!r} asks something before it can be read; read it first and attach what it gives.")
    parts = cast("Sequence[JsonMapping]", outcome.result.get("contents") or ())
    return _read([{"type": "resource", "resource": part} for part in parts], at)


def _read(blocks: Sequence[JsonMapping], at: str) -> list[Content]:
    return [_named(block, _decodable(from_block(block), at)) for block in blocks]


def _named(block: JsonMapping, content: Content) -> Content:
    """A file of text goes to the model with its name."""
    if block.get("type") != "resource" or content.type != "text":
        return content
    uri = content.additional_properties.get("uri")
    return Content.from_text(f"File {uri}:\n{content.text}", additional_properties=content.additional_properties)


def _decodable(content: Content, at: str) -> Content:
    if content.type == "data":
        try:
            base64.b64decode((content.uri or "").partition("base64,")[2], validate=True)
        except (binascii.Error, ValueError):
            raise AgentError(f"{at}: its data is no base64.") from None
    return content


def _check(block: JsonMapping, at: str) -> None:
    kind = str(block.get("type"))
    if kind not in _NEEDS:
        raise AgentError(f"{at}: {kind[:50]!r} is no type of attachment; use one of {', '.join(_NEEDS)}.")
    file: JsonValue = block.get("resource")
    inner: JsonMapping = cast("JsonMapping", file) if isinstance(file, dict) else {}
    complete = {
        "text": isinstance(block.get("text"), str),
        "resource_link": bool(block.get("uri")) and isinstance(block.get("uri"), str),
        "resource": isinstance(inner.get("uri"), str) and isinstance(inner.get("text", inner.get("blob")), str),
    }
    is_complete = complete[kind] if kind not in _BINARY else str(block.get("mimeType")).startswith(f"{kind}/") and bool(block.get("data"))
    if not is_complete:
        raise AgentError(f"{at}: a block of type {kind!r} needs {_NEEDS[kind]}.")


def _size(content: Content) -> int:
    return len(content.text or "") + len(content.uri or "")

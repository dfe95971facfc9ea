"""The argument `attachments` of an agent's tool: MCP content blocks that are sent to the agent with its task.

A linked resource of the gateway is read through the gate (authorization, approvals, limits), with the caller's rights. If the link
is written in a workflow file, the resource is read with that file's rights. A web address that is not the URI of a gateway resource is
not fetched, but sent to the model.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Sequence
from typing import cast

from gateway.errors import AgentError, NotFound
from gateway.json_types import JsonMapping, JsonObject, JsonValue, items_of, members_of
from gateway.tools.base import Finished
from gateway.tools.contents import from_block
from gateway.tools.context import CallContext
from gateway.tools.toolbox import ResourceBox
from gateway.types.content import Content

MAX_ATTACHMENTS = 20
"""Maximum number of attachments of one task."""

MAX_ATTACHED_CHARS = 16_777_216
"""Maximum total size of a task's attachments, in characters of text and base64; fits one model request and a stored session."""

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
        "Content that belongs to the task, as MCP content blocks. Link a resource of this server "
        '({"type": "resource_link", "uri": …}) rather than copy it.'
    ),
    "items": {
        "type": "object",
        "properties": {
            "type": {"type": "string", "enum": list(_NEEDS), "description": "Decides which other properties are needed."},
            "text": {"type": "string", "description": "For `text`."},
            "data": {"type": "string", "description": "For `image` and `audio`: the bytes as base64."},
            "mimeType": {"type": "string", "description": "For `image` and `audio`, such as image/png."},
            "uri": {"type": "string", "description": "For `resource_link`: a resource of this server, or a web address."},
            "name": {"type": "string", "description": "For `resource_link`: its display name."},
            "resource": {"type": "object", "description": "For `resource`: a file, as {uri, mimeType, text} or {uri, mimeType, blob}."},
        },
        "required": ["type"],
    },
}
"""JSON Schema of the argument `attachments`.

All five types of content blocks share one flat object schema, because models fill it in more reliably than a choice of schemas.
"""


async def read_attachments(given: JsonValue, resources: ResourceBox | None, ctx: CallContext) -> list[Content]:
    """Convert the content blocks of the argument `attachments` to contents for the model, and read the resources that they link to.

    Without `resources`, blocks may link only web addresses.

    Raises:
        AgentError: A block does not match its type, a limit is exceeded, or a link cannot be resolved; the text names the block.
        PolicyDenied: The caller may not read a linked resource.
        GatewayError: A resource cannot be read.
    """
    blocks: list[JsonMapping] = items_of(given)
    if len(blocks) > MAX_ATTACHMENTS:
        raise AgentError(f"attachments: {len(blocks)} attachments were sent; a task takes at most {MAX_ATTACHMENTS}.")
    contents: list[Content] = []
    left = MAX_ATTACHED_CHARS
    for number, block in enumerate(blocks):
        at = f"attachments[{number}]"
        _check(block, at)
        found = await _linked(block, at, resources, ctx) if block["type"] == "resource_link" else _read([block], at)
        left -= sum(len(content.text or "") + len(content.uri or "") for content in found)
        if left < 0:
            raise AgentError(f"{at}: the attachments exceed {MAX_ATTACHED_CHARS} characters in total; link or shorten them.")
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
            return [from_block(block)]  # the model's provider may fetch the address
        raise AgentError(f"{at}: resource {uri[:200]!r} does not exist; resources/list names the resources.") from None
    if not isinstance(outcome, Finished):
        raise AgentError(f"{at}: resource {uri[:200]!r} requires input before it can be read; read it first and attach its content.")
    parts = cast("Sequence[JsonMapping]", outcome.result.get("contents") or ())
    return _read([{"type": "resource", "resource": part} for part in parts], at)


def _read(blocks: Sequence[JsonMapping], at: str) -> list[Content]:
    return [_named(block, _decodable(from_block(block), at)) for block in blocks]


def _named(block: JsonMapping, content: Content) -> Content:
    """Put the URI of a text resource before its text, so that the model can tell files apart; return other contents unchanged."""
    if block.get("type") != "resource" or content.type != "text":
        return content
    uri = content.additional_properties.get("uri")
    return Content.from_text(f"File {uri}:\n{content.text}", additional_properties=content.additional_properties)


def _decodable(content: Content, at: str) -> Content:
    if content.type == "data":
        try:
            base64.b64decode((content.uri or "").partition("base64,")[2], validate=True)
        except (binascii.Error, ValueError):
            raise AgentError(f"{at}: `data` is not valid base64.") from None
    return content


def _check(block: JsonMapping, at: str) -> None:
    kind = str(block.get("type"))
    if kind not in _NEEDS:
        raise AgentError(f"{at}: {kind[:50]!r} is not a type of attachment; use one of {', '.join(_NEEDS)}.")
    inner = members_of(block.get("resource"))
    complete = {
        "text": isinstance(block.get("text"), str),
        "resource_link": bool(block.get("uri")) and isinstance(block.get("uri"), str),
        "resource": isinstance(inner.get("uri"), str) and isinstance(inner.get("text", inner.get("blob")), str),
    }
    is_complete = complete[kind] if kind not in _BINARY else str(block.get("mimeType")).startswith(f"{kind}/") and bool(block.get("data"))
    if not is_complete:
        raise AgentError(f"{at}: a block of type {kind!r} needs {_NEEDS[kind]}.")

"""`gateway/wire` knows bytes, HTTP/1.1, SSE and JSON-RPC, but no MCP; no other package parses or frames them."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

from tests.architecture.imports import import_graph
from tests.architecture.sources import ROOT, name_of, nodes_of, python_files

ALLOWED_BELOW_WIRE = {"gateway.errors", "gateway.json_types", "gateway.protocol"}

MCP_NAME = re.compile(
    r"\b(?:(?:tools|resources|prompts|notifications|sampling|elicitation|completion|roots|logging|tasks|subscriptions|skills|server)/[a-z]"
    r"|initialize\b|mcp-[a-z]|io\.modelcontextprotocol|_meta\b)"
)
"""MCP method names, header names and reserved keys."""

PARSERS = {"h11", "h2", "wsproto", "websockets", "httptools", "httpx_sse", "sse_starlette", "http", "zlib", "gzip", "brotli", "zstandard"}
"""Libraries that parse HTTP or SSE, or decode content codings."""

FRAMING = re.compile(rb'HTTP/1|\r\n|"jsonrpc"|"method"|\A(?:data|event|id|retry):')
"""What bytes that frame HTTP/1.1, SSE or JSON-RPC have."""

ENVELOPE_MODULES = {"gateway/wire/jsonrpc.py", "gateway/wire/rpc_envelope.py"}
"""The modules that may spell the member `jsonrpc`."""

EXCEPTIONS = {
    "gateway/server/http_responses.py": "`http.HTTPStatus` names statuses",
    "gateway/skills/objects/archives.py": "`zlib.error` of a skill's ZIP archive",
    "gateway/types/framework_functions.py": "the signature of PNG files has a line break",
}


def constants(path: Path) -> Iterator[ast.Constant]:
    """The constants of a file, except docstrings."""
    nodes = nodes_of(path)
    docstrings = {id(node.value) for node in nodes if isinstance(node, ast.Expr)}
    return (node for node in nodes if isinstance(node, ast.Constant) and id(node) not in docstrings)


def imported(path: Path) -> set[str]:
    """The top-level names of the packages that a file imports."""
    found: set[str] = set()
    for node in nodes_of(path):
        if isinstance(node, ast.Import):
            found |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found.add(node.module.partition(".")[0])
    return found


def test_wire_imports_only_errors_and_json_types() -> None:
    graph = import_graph()
    found = {name: others for name in graph if name.startswith("gateway.wire") and (others := _outside(graph[name]) - ALLOWED_BELOW_WIRE)}
    assert found == {}
    from_protocol = [
        alias.name
        for path in python_files("gateway/wire")
        for node in nodes_of(path)
        if isinstance(node, ast.ImportFrom) and node.module == "gateway.protocol"
        for alias in node.names
    ]
    assert set(from_protocol) == {"RpcError"}


def _outside(names: set[str]) -> set[str]:
    return {name for name in names if name.startswith("gateway.") and not name.startswith("gateway.wire")}


def test_wire_contains_no_mcp_names() -> None:
    found = [
        f"{name_of(path)}:{node.lineno} {node.value!r}"
        for path in python_files("gateway/wire")
        for node in constants(path)
        if MCP_NAME.search(node.value.decode("latin-1") if isinstance(node.value, bytes) else str(node.value))
    ]
    assert found == []


def test_only_wire_parses_http_sse_json_rpc_and_content_codings() -> None:
    found: dict[str, list[str]] = {}
    for path in python_files("gateway"):
        if path.is_relative_to(ROOT / "gateway" / "wire"):
            continue
        framed = [node for node in constants(path) if isinstance(node.value, bytes) and FRAMING.search(node.value)]
        if marks := sorted(imported(path) & PARSERS) + [f"line {node.lineno}: {node.value!r}" for node in framed]:
            found[name_of(path)] = marks
    assert {name: marks for name, marks in found.items() if name not in EXCEPTIONS} == {}
    assert EXCEPTIONS.keys() <= found.keys(), "an exception that is not needed any more"


def test_only_two_modules_of_wire_spell_json_rpc_envelopes() -> None:
    found = {
        name_of(path)
        for path in python_files("gateway")
        for node in constants(path)
        if node.value in ("jsonrpc", b"jsonrpc") or re.search(r"[\"']jsonrpc[\"']", str(node.value))
    }
    assert found == ENVELOPE_MODULES

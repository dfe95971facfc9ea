"""A server over stdio with two tools, without a library."""

import json
import sys
from typing import Any

SCHEMA = {"type": "object", "properties": {"path": {"type": "string"}}, "required": ["path"]}
TOOLS = [{"name": name, "description": f"{name.title()} a note.", "inputSchema": SCHEMA} for name in ("read", "write")]

for line in sys.stdin:
    message = json.loads(line)
    if "id" not in message:
        continue
    answer: dict[str, Any]
    method, params = message["method"], message.get("params", {})
    if method == "initialize":
        facts: dict[str, Any] = {"capabilities": {"tools": {}}, "serverInfo": {"name": "notes", "version": "1"}}
        answer = {"result": {"protocolVersion": "2025-06-18", **facts}}
    elif method == "tools/list":
        answer = {"result": {"tools": TOOLS}}
    elif method == "tools/call":
        text = f"{params['name']} {params['arguments']['path']}"
        answer = {"result": {"content": [{"type": "text", "text": text}]}}
    elif method == "ping":
        answer = {"result": {}}
    else:
        answer = {"error": {"code": -32601, "message": "unknown method"}}
    sys.stdout.write(json.dumps({"jsonrpc": "2.0", "id": message["id"], **answer}) + "\n")
    sys.stdout.flush()

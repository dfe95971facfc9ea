"""A 2025 server over stdio that holds its calls until a file exists, and records their order.

    python -m tests.fakes.held_upstream --stdio FOLDER

The tools `work` and `ask` append their argument `who` to `FOLDER/seen` as a line. Calls are answered one after the other once
`FOLDER/go` exists; a call of `ask` is answered when its client has answered a form.
"""

from __future__ import annotations

import json
import sys
import threading
import time
from pathlib import Path
from queue import Queue
from typing import Any

PAUSE_SECONDS = 0.02
"""Between two answers, so that clients that call again have the time to do it."""

NAMES = {"type": "object", "properties": {"who": {"type": "string"}}, "required": ["who"]}
TOOLS: list[Any] = [{"name": name, "inputSchema": NAMES} for name in ("work", "ask")]
HELLO: dict[str, Any] = {"protocolVersion": "2025-11-25", "capabilities": {"tools": {}}, "serverInfo": {"name": "held", "version": "1"}}
FORM: dict[str, Any] = {"message": "Which colour?", "requestedSchema": {"type": "object", "properties": {"colour": {"type": "string"}}}}


def say(message: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps({"jsonrpc": "2.0", **message}) + "\n")
    sys.stdout.flush()


def answer(number: Any) -> None:
    say({"id": number, "result": {"content": [{"type": "text", "text": "done"}]}})


def answer_in_turn(go: Path, held: Queue[Any]) -> None:
    while True:
        number = held.get()
        while not go.exists():
            time.sleep(0.02)
        time.sleep(PAUSE_SECONDS)
        answer(number)


def main(folder: Path) -> None:
    held: Queue[Any] = Queue()
    threading.Thread(target=answer_in_turn, args=(folder / "go", held), daemon=True).start()
    for line in sys.stdin:
        message = json.loads(line)
        method, number = message.get("method"), message.get("id")
        if method == "initialize":
            say({"id": number, "result": HELLO})
        elif method == "tools/list":
            say({"id": number, "result": {"tools": TOOLS}})
        elif method == "tools/call":
            params = message["params"]
            with (folder / "seen").open("a") as seen:
                seen.write(params["arguments"]["who"] + "\n")
            if params["name"] == "ask":
                say({"id": f"form {number}", "method": "elicitation/create", "params": FORM})
            else:
                held.put(number)
        elif method is None:
            answer(int(str(number).removeprefix("form ")))
        elif number is not None:
            say({"id": number, "error": {"code": -32601, "message": "unknown"}})


if __name__ == "__main__":
    main(Path(sys.argv[-1]))

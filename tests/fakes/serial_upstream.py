"""A 2025 server over stdio that works on one call at a time, asks its client in the middle of a call, and ignores cancellations.

    python -m tests.fakes.serial_upstream --stdio FOLDER

During an elicitation, other calls wait in the server. The file `heard` in FOLDER gets a line per started call (`call TOOL WHO`), each
cancellation (`cancelled`) and each answer to a question (`answered result` or `answered error`). A call whose question is answered with an
error ends with the text of the error; `again` asks once more before that. A call of `busy` goes on until a ping has come and
`FOLDER/may_finish` exists, and notes what else comes before the ping (`early METHOD`).
"""

from __future__ import annotations

import json
import sys
import time
from collections import deque
from pathlib import Path
from typing import Any

WHO = {"type": "object", "properties": {"who": {"type": "string"}}, "required": ["who"]}
QUESTIONS: dict[str, tuple[str, dict[str, Any]]] = {
    "sample": (
        "sampling/createMessage",
        {"messages": [{"role": "user", "content": {"type": "text", "text": "Capital of France?"}}], "maxTokens": 10},
    ),
    "elicit": (
        "elicitation/create",
        {"message": "Which colour?", "requestedSchema": {"type": "object", "properties": {"colour": {"type": "string"}}}},
    ),
    "roots": ("roots/list", {}),
}
QUESTIONS["again"] = QUESTIONS["elicit"]
TOOLS: list[Any] = [{"name": name, "inputSchema": WHO} for name in ("work", "busy", *QUESTIONS)]
HELLO: dict[str, Any] = {"protocolVersion": "2025-11-25", "capabilities": {"tools": {}}, "serverInfo": {"name": "serial", "version": "1"}}


class Serial:
    def __init__(self, folder: Path) -> None:
        self.heard, self.may_finish = folder / "heard", folder / "may_finish"
        self.waiting: deque[dict[str, Any]] = deque()

    def note(self, line: str) -> None:
        with self.heard.open("a") as heard:
            heard.write(line + "\n")

    def say(self, **message: Any) -> None:
        sys.stdout.write(json.dumps({"jsonrpc": "2.0", **message}) + "\n")
        sys.stdout.flush()

    def read(self) -> dict[str, Any] | None:
        """Return the next message that is not a cancellation; record the cancellations before it."""
        for line in sys.stdin:
            message = json.loads(line)
            if message.get("method") == "notifications/cancelled":
                self.note("cancelled")
                continue
            return message
        return None

    def call(self, message: dict[str, Any]) -> None:
        name, who = message["params"]["name"], message["params"]["arguments"]["who"]
        self.note(f"call {name} {who}")
        text = "done"
        while name == "busy" and (early := self.read()) is not None:
            if early["method"] == "ping":
                while not self.may_finish.exists():
                    time.sleep(0.02)
                self.note("finished")
                self.say(id=early["id"], result={})
                break
            self.note(f"early {early['method']}")
        for attempt in range(2 if name == "again" else int(name in QUESTIONS)):
            method, params = QUESTIONS[name]
            number = f"question {message['id']}.{attempt}"
            self.say(id=number, method=method, params=params)
            while (answer := self.read()) is not None and answer.get("id") != number:
                self.waiting.append(answer)
            if answer is None:
                return
            self.note(f"answered {'result' if 'result' in answer else 'error'}")
            text = json.dumps(answer["result"]) if "result" in answer else answer["error"]["message"]
        self.say(id=message["id"], result={"content": [{"type": "text", "text": text}]})

    def run(self) -> None:
        while message := (self.waiting.popleft() if self.waiting else self.read()):
            method, number = message.get("method"), message.get("id")
            if method == "initialize":
                self.say(id=number, result=HELLO)
            elif method == "tools/list":
                self.say(id=number, result={"tools": TOOLS})
            elif method == "tools/call":
                self.call(message)
            elif method is not None and number is not None:
                self.say(id=number, error={"code": -32601, "message": "unknown"})


if __name__ == "__main__":
    Serial(Path(sys.argv[-1])).run()

"""Questions of calls, and a client that answers them."""

from __future__ import annotations

from typing import Any

from gateway.json_types import JsonObject
from gateway.policy.metadata import ASK_KEY
from gateway.tools.ports import ClientProfile

FORM: JsonObject = {"mode": "form", "message": "Go?", "requestedSchema": {}}
ASKABLE = ClientProfile(capabilities={"elicitation": {"form": {}}})


def question(key: Any = None, **params: Any) -> JsonObject:
    meta: JsonObject = {} if key is None else {"_meta": {ASK_KEY: key}}
    return {"method": "elicitation/create", "params": {**FORM, **params, **meta}}


class Answers:
    """A client that answers requests for input."""

    def __init__(self) -> None:
        self.asked: list[JsonObject] = []

    async def progress(self, progress: float, total: float | None, message: str | None) -> None:
        pass

    async def log(self, level: Any, data: Any, logger: str | None) -> None:
        pass

    async def ask(self, request: JsonObject, key: str = "") -> JsonObject:
        self.asked.append(request)
        return {"action": "accept", "content": {"name": "Ada"}}

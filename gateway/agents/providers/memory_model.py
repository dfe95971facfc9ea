"""What models are asked about memories: what of a conversation is worth keeping, and a topic put shorter.

A model that cannot be asked, or that answers with something else than was asked for, changes nothing; the log says so.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import cast

from gateway.agents.providers.memory_records import MemoryTopicRecord
from gateway.chat.base import SupportsChatGetResponse
from gateway.errors import GatewayError
from gateway.json_types import JsonMapping, JsonValue
from gateway.types.messages import Message

logger = logging.getLogger(__name__)

EXTRACTION_PROMPT = """\
You read the newest part of a conversation with an agent and pick out what is worth remembering for later conversations.
Answer with JSON only, in this form: {"memories": [{"topic": "a short name", "memory": "one sentence"}]}
- Pick lasting facts, preferences, decisions and habits; at most five.
- Leave out what only this task needs, reminders, results made once, and talk about tools.
- Use the same short topic name for the same thing.
- Where nothing is worth it, answer {"memories": []}."""

CONSOLIDATION_PROMPT = """\
You get what is remembered about one topic, as JSON, and put it shorter.
Answer with JSON only, in this form: {"summary": "a short summary", "memories": ["a fact", "another"]}
- Keep lasting facts, preferences and decisions.
- Say what is there twice only once, and leave out what is outdated or was only of the moment."""


@dataclass(frozen=True, slots=True)
class Extracted:
    """One thing that is worth keeping."""

    topic: str
    memory: str


@dataclass(frozen=True, slots=True)
class Consolidated:
    """A topic put shorter."""

    summary: str
    memories: list[str]


async def extracted(client: SupportsChatGetResponse | None, said: Sequence[Message], prompt: str | None) -> list[Extracted]:
    """What of a conversation is worth keeping."""
    text = "\n\n".join(f"{message.role.upper()}: {message.text.strip()}" for message in said if message.text.strip())
    if client is None or not text:
        return []
    answer = await _asked(client, prompt or EXTRACTION_PROMPT, text, "what is worth remembering")
    items: JsonValue = _fields(answer).get("memories") if isinstance(answer, dict) else answer
    if not isinstance(items, list):
        if answer is not None:
            logger.warning("Nothing is remembered: the model's `memories` is no list.")
        return []
    found: list[Extracted] = []
    for item in cast("list[JsonValue]", items):
        fields = _fields(item)
        topic, memory = fields.get("topic"), fields.get("memory")
        if isinstance(topic, str) and isinstance(memory, str) and topic.strip() and memory.strip():
            found.append(Extracted(topic, memory))
        else:
            logger.warning("One thing is not remembered: the model did not say topic and memory as text.")
    return found


async def consolidated(client: SupportsChatGetResponse | None, record: MemoryTopicRecord, prompt: str | None) -> Consolidated | None:
    """A topic put shorter; without a client as it is, `None` where the model did not do it."""
    if client is None:
        return Consolidated(record.summary, record.memories)
    asked = json.dumps(record.to_dict(), ensure_ascii=False)
    answer = await _asked(client, prompt or CONSOLIDATION_PROMPT, asked, f"the memory topic {record.topic!r}")
    fields = _fields(answer)
    summary, memories = fields.get("summary"), fields.get("memories")
    if not isinstance(summary, str) or not isinstance(memories, list):
        if answer is not None:
            logger.warning("The memory topic %r stays as it is: the model did not give `summary` and `memories`.", record.topic)
        return None
    return Consolidated(summary, [memory for memory in cast("list[JsonValue]", memories) if isinstance(memory, str)])


def _fields(value: JsonValue) -> JsonMapping:
    return cast("JsonMapping", value) if isinstance(value, dict) else {}


async def _asked(client: SupportsChatGetResponse, prompt: str, text: str, about: str) -> JsonValue:
    """The model's JSON; `None` where there is none."""
    try:
        response = await client.get_response([Message("system", [prompt]), Message("user", [text])])
    except GatewayError as error:
        logger.warning("The model could not be asked about %s: %s", about, error)
        return None
    answer = response.text.strip()
    if answer.startswith("```") and answer.endswith("```"):
        answer = "\n".join(answer.splitlines()[1:-1])
    try:
        return json.loads(answer)
    except (ValueError, RecursionError):
        logger.warning("The model's answer about %s is no JSON.", about)
        return None

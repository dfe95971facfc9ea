"""Model calls for an agent's memory: extracting facts from a conversation, and shortening the facts of a topic.

If a call fails or the answer does not have the requested format, the memory does not change, and the failure is logged.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import cast

from gateway.agents.providers.memory_records import MemoryTopicRecord
from gateway.chat.chat_context import SupportsChatGetResponse
from gateway.errors import GatewayError
from gateway.json_types import JsonValue, members_of
from gateway.types.messages import Message

logger = logging.getLogger(__name__)

EXTRACTION_PROMPT = """\
You read the newest part of a conversation with an agent and select what is worth remembering for later conversations.
Answer with JSON only, in this form: {"memories": [{"topic": "a short name", "memory": "one sentence"}]}
- Select lasting facts, preferences, decisions and habits; at most five.
- Leave out what only this task needs, reminders, results made once, and talk about tools.
- Use the same short topic name for the same subject.
- If nothing is worth remembering, answer {"memories": []}."""

CONSOLIDATION_PROMPT = """\
You receive the memories about one topic as JSON and shorten them.
Answer with JSON only, in this form: {"summary": "a short summary", "memories": ["a fact", "another"]}
- Keep lasting facts, preferences and decisions.
- Merge duplicates, and leave out what is outdated or was only temporary."""


@dataclass(frozen=True, slots=True)
class Extracted:
    """A fact that a model extracted from a conversation (`memory`), and the memory topic to which it belongs."""

    topic: str
    memory: str


@dataclass(frozen=True, slots=True)
class Consolidated:
    """The summary and the facts of a memory topic after a model has shortened them."""

    summary: str
    memories: list[str]


async def extracted(client: SupportsChatGetResponse | None, messages: Sequence[Message], prompt: str | None) -> list[Extracted]:
    """Have a model extract the facts to remember from messages. Return no facts without a chat client, or if the call fails."""
    text = "\n\n".join(f"{message.role.upper()}: {message.text.strip()}" for message in messages if message.text.strip())
    if client is None or not text:
        return []
    answer = await _ask_for_json(client, prompt or EXTRACTION_PROMPT, text, "extraction")
    items: JsonValue = members_of(answer).get("memories") if isinstance(answer, dict) else answer
    if not isinstance(items, list):
        if answer is not None:
            logger.warning("memories not extracted reason=memories_not_a_list")
        return []
    found: list[Extracted] = []
    for item in cast("list[JsonValue]", items):
        fields = members_of(item)
        topic, memory = fields.get("topic"), fields.get("memory")
        if isinstance(topic, str) and isinstance(memory, str) and topic.strip() and memory.strip():
            found.append(Extracted(topic, memory))
        else:
            logger.warning("memory not extracted reason=topic_or_memory_not_text")
    return found


async def consolidated(client: SupportsChatGetResponse | None, record: MemoryTopicRecord, prompt: str | None) -> Consolidated | None:
    """Have a model shorten the facts of a memory topic. Without a chat client, return them unchanged; if the call fails, return `None`."""
    if client is None:
        return Consolidated(record.summary, record.memories)
    asked = json.dumps(record.to_dict(), ensure_ascii=False)
    answer = await _ask_for_json(client, prompt or CONSOLIDATION_PROMPT, asked, f"consolidation of {record.topic!r}")
    fields = members_of(answer)
    summary, memories = fields.get("summary"), fields.get("memories")
    if not isinstance(summary, str) or not isinstance(memories, list):
        if answer is not None:
            logger.warning("memory topic not consolidated topic=%s reason=summary_or_memories_missing", record.topic)
        return None
    return Consolidated(summary, [memory for memory in cast("list[JsonValue]", memories) if isinstance(memory, str)])


async def _ask_for_json(client: SupportsChatGetResponse, prompt: str, text: str, purpose: str) -> JsonValue:
    """Call the model and parse its answer as JSON. Return `None`, and log the failure, if the call fails or the answer is not JSON."""
    try:
        response = await client.get_response([Message("system", [prompt]), Message("user", [text])])
    except GatewayError as error:
        logger.warning("memory model call failed purpose=%s error=%s", purpose, error)
        return None
    answer = response.text.strip()
    if answer.startswith("```") and answer.endswith("```"):
        answer = "\n".join(answer.splitlines()[1:-1])
    try:
        return json.loads(answer)
    except (ValueError, RecursionError):
        logger.warning("memory model answer is not JSON purpose=%s", purpose)
        return None

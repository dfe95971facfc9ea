"""Agent cards: JSON documents that describe the gateway's agents to MCP clients, as resources at `agent://<name>`.

A card omits the agent's instructions.
"""

from __future__ import annotations

import json

from gateway.agents.definition import AgentDefinition
from gateway.json_types import JsonObject

SCHEME = "agent://"
MIME_TYPE = "application/json"


def to_card(definition: AgentDefinition) -> JsonObject:
    """Return the card of an agent: a JSON object with its description, model, tools, skills and limits."""
    file = definition.file
    card: JsonObject = {
        "name": file.name,
        "description": file.description,
        "model": file.model,
        "tools": list(file.tools),
        "skills": list(file.skills),
        "limits": {"max-turns": file.max_turns, **file.loop.to_limits(by_alias=True)},
        "sessions": file.history != "none",
        "parameters": list(file.parameters),
        "attachments": file.attachments,
    }
    if file.output is not None:
        card["output"] = file.output
    return card


def to_resource(definition: AgentDefinition) -> JsonObject:
    """Return the item of `resources/list` for an agent's card."""
    name = definition.file.name
    described = f"What agent {name!r} does, with its tools, model and limits."
    return {"uri": f"{SCHEME}{name}", "name": name, "title": f"Agent {name}", "description": described, "mimeType": MIME_TYPE}


def to_contents(definition: AgentDefinition) -> JsonObject:
    """Return an agent's card (a JSON description of the agent) as the result of `resources/read`."""
    text = json.dumps(to_card(definition), ensure_ascii=False, indent=2)
    return {"contents": [{"uri": f"{SCHEME}{definition.file.name}", "mimeType": MIME_TYPE, "text": text}]}

"""The card of an agent: what a client can read about it at `agent://<name>`, as JSON. Says nothing of its instructions."""

from __future__ import annotations

import json

from gateway.agents.definition import AgentDefinition
from gateway.json_types import JsonObject

SCHEME = "agent://"
MIME_TYPE = "application/json"


def to_card(definition: AgentDefinition) -> JsonObject:
    """Everything a caller may know of an agent before it gives it a task."""
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
    """The card as `resources/list` has it."""
    name = definition.file.name
    described = f"What agent {name!r} does, its tools, its model and its limits."
    return {"uri": f"{SCHEME}{name}", "name": name, "title": f"Agent {name}", "description": described, "mimeType": MIME_TYPE}


def to_contents(definition: AgentDefinition) -> JsonObject:
    """The card as `resources/read` answers it."""
    text = json.dumps(to_card(definition), ensure_ascii=False, indent=2)
    return {"contents": [{"uri": f"{SCHEME}{definition.file.name}", "mimeType": MIME_TYPE, "text": text}]}

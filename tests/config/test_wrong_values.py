"""Every configuration key rejects wrong values with an error in terms of the file, without names of Python or pydantic."""

from __future__ import annotations

import json
import re
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, Union, cast, get_args, get_origin

import pytest
from pydantic import BaseModel

from gateway.agents.definition import read_agent
from gateway.config.load import load_text
from gateway.config.models import GatewayConfig
from gateway.errors import AgentError, ConfigError
from gateway.json_types import JsonObject, JsonValue

WRONG: list[JsonValue] = [True, 5, 2.5, "yes", [], [1], {"x": 1}]

INTERNALS = re.compile(
    r"pydantic|Input|should|valid |validat|function-|literal|discriminator|\btag\b|\b(str|int|bool|float|dict|NoneType)\b|\w\[\D|\.[A-Z]\w+"
)
"""Words of pydantic's errors, and names of Python types and classes."""

Place = tuple[str | int, ...]


def places(annotation: object, place: Place = ()) -> Iterator[tuple[Place, object]]:
    """Every place of a document with the type of its value, and of each member of a union."""
    origin = get_origin(annotation)
    if origin is Annotated:
        yield from places(get_args(annotation)[0], place)
    elif origin in (Union, types.UnionType):
        for member in get_args(annotation):
            yield from places(member, place)
    else:
        yield place, annotation
        if origin is dict:
            yield from places(get_args(annotation)[1], (*place, "agent" if place == ("policies",) else "k"))
        elif origin is list:
            yield from places(get_args(annotation)[0], (*place, 0))
        elif isinstance(annotation, type) and issubclass(annotation, BaseModel):
            for name, info in annotation.model_fields.items():
                yield from places(info.annotation, (*place, info.alias or name))


def document_with(place: Place, value: JsonValue) -> JsonObject:
    for part in reversed(place):
        value = [value] if part == 0 else {str(part): value}
    document = cast("JsonObject", value)
    if place[0] == "mcpServers" and len(place) > 2 and place[2] not in ("command", "url", "type"):
        document["mcpServers"]["k"] |= {"url": "https://example.com"} if place[2] == "headers" else {"command": "x"}
    return document


def mistakes_of(document: JsonObject) -> list[str]:
    """The lines of the error, or of the entry that it disables."""
    try:
        loaded = load_text(json.dumps(document), Path("g.json"), {}, fetches=False)
    except ConfigError as error:
        return [line.removeprefix("g.json: ") for line in str(error).splitlines()]
    return [f"{server.json_path}: {server.reason}" for server in loaded.disabled]


def test_every_key_with_a_wrong_value_names_itself_and_its_type() -> None:
    seen: set[Place] = set()
    refused: set[Place] = set()
    for place, _ in places(GatewayConfig):
        if not place or place in seen:
            continue
        seen.add(place)
        for value in WRONG:
            for line in mistakes_of(document_with(place, value)):
                refused.add(place)
                assert not INTERNALS.search(line), (place, value, line)
                assert line.startswith(str(place[0])), (place, value, line)
    free = {place for place in seen - refused if place[-1] != "k" and place[-2:-1] != ("arguments",)}
    assert len(seen) > 150 and len(free) < 10, free


@pytest.mark.parametrize(
    ("document", "line"),
    [
        ({"skills": {"scripts": {"enabled": "yes"}}}, "skills.scripts.enabled: must be true or false, not text. Write true without quotes"),
        ({"server": {"reload": 1}}, "server.reload: must be true or false, not a number"),
        ({"server": {"http": {"port": "8765"}}}, "server.http.port: must be a whole number, not text. Write 8765 without quotes"),
        ({"server": {"http": {"port": 8765.5}}}, "server.http.port: must be a whole number, not 8765.5"),
        ({"server": {"http": {"drainSeconds": True}}}, "server.http.drainSeconds: must be a whole number, not true or false"),
        ({"tasks": {"ttlSeconds": "fast"}}, "tasks.ttlSeconds: must be a number, not text"),
        (
            {"mcpServers": {"a": {"url": "x", "disabled": "No"}}},
            "mcpServers.a.disabled: must be true or false, not text. Write false without quotes",
        ),
        ({"mcpServers": {"a": {"url": "x", "enabled": "no"}}}, "mcpServers.a.enabled: must be true or false, without quotes."),
        (
            {"policies": {"skill": {"approval": "sometimes"}}},
            "policies.skill.approval: must be 'never' or 'always', or an object with the keys 'always', 'never' and 'by'",
        ),
        ({"policies": {"a": {"approval": {"alwayz": []}}}}, "policies.a.approval.alwayz: unknown key 'alwayz'. Did you mean 'always'?"),
        ({"policies": {"skill": {"approval": {"always": "x"}}}}, "policies.skill.approval.always: must be a list, not text"),
        ({"policies": {"skill": {"auth": {}}}}, "policies.skill.auth.type: is required: 'client-credentials' or 'authorization-code'"),
        (
            {"policies": {"skill": {"auth": {"type": "client-credential"}}}},
            "policies.skill.auth.type: must be 'client-credentials' or 'authorization-code'",
        ),
        ({"policies": {"a": {"auth": {"type": "authorization-code", "scopes": "x"}}}}, "policies.a.auth.scopes: must be a list, not text"),
        ({"agents": {"middleware": [5]}}, "agents.middleware[0]: must be text in quotes, or an object, not a number"),
        ({"agents": {"middleware": [{"a:b": 5}]}}, "agents.middleware[0].a:b: must be an object, not a number"),
        ({"server": {"clientPrefix": "x" * 41}}, "server.clientPrefix: must have at most 40 characters"),
        ({"tasks": {"ttlSecond": 5}}, "tasks.ttlSecond: unknown key 'ttlSecond'. Did you mean 'ttlSeconds'?"),
        ({"expose": {"foo": []}}, "expose.foo: unknown key 'foo'. Its keys are 'agents', 'skills' and 'functions'."),
    ],
)
def test_wrong_value_is_refused_with_its_key_and_the_fix(document: JsonObject, line: str) -> None:
    assert mistakes_of(document) == [line]


def test_agent_file_refuses_numbers_and_booleans_written_as_text(tmp_path: Path) -> None:
    file = tmp_path / "a.agent.md"
    keys: list[tuple[str, Any]] = [
        ("attachments: yes", "attachments: must be true or false, not text. Write true without quotes"),
        ("max-turns: '3'", "max-turns: must be a whole number, not text. Write 3 without quotes"),
        ("compaction: {strategy: x}", "compaction.strategy: must be 'context-window', 'sliding-window', 'tool-results', 'tool-calls' or"),
        ("loop: {max-function-calls: 0}", "loop.max-function-calls: must be at least 1"),
    ]
    for key, text in keys:
        file.write_text(f"---\nname: a\ndescription: d\n{key}\n---\nHelp.\n")
        with pytest.raises(AgentError, match=re.escape(text)):
            read_agent(file)

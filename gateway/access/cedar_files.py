"""Reads the Cedar policy files of `access.cedar` with the package cedarpy, which is imported on first use.

Each policy gets the id `FILE:LINE`, which errors, the audit log and `moongate policy explain` name.
"""

from __future__ import annotations

import glob
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Literal, cast

from gateway.errors import ConfigError
from gateway.json_types import JsonObject, JsonValue, as_object, items_of

MAX_FILE_BYTES = 4_194_304
"""Maximum bytes of one policy file."""

MAX_POLICIES = 10_000
"""Maximum number of policies of all files together."""

_PLACE = "access.cedar"


@dataclass(frozen=True, slots=True)
class CedarPolicy:
    """One policy of a file."""

    id: str
    """File, as the configuration names it, and line: `access/team.cedar:12`."""
    text: str
    effect: Literal["permit", "forbid"]
    principal: JsonObject
    """The condition on the principal in the head of the policy, in Cedar's JSON form."""
    action: JsonObject
    resource: JsonObject
    body: JsonObject
    """The whole policy in Cedar's JSON form."""
    reads_context: bool
    """Whether a condition of the policy reads `context`, such as the arguments of a call."""
    attributes: frozenset[str]
    """Names of all attributes that the conditions read."""


def load_cedarpy() -> ModuleType:
    """Return the module cedarpy. Raises `ConfigError` if the extra `cedar` is not installed."""
    try:
        import cedarpy
    except ImportError:
        text = "access.cedar needs the extra `cedar`: install `moongate[cedar]`."
        raise ConfigError(text, path=_PLACE) from None
    return cast("ModuleType", cedarpy)


def read_policies(written: Sequence[str], base_dir: Path) -> tuple[CedarPolicy, ...]:
    """Read and parse the files that `written` (paths or globs, relative to `base_dir`) names, in order. Blocks.

    Raises:
        ConfigError: A file cannot be read, a glob matches none, or a policy is malformed; the error names file and line.
    """
    found: list[CedarPolicy] = []
    for number, pattern in enumerate(written):
        for name, path in _files(pattern, base_dir, f"{_PLACE}[{number}]"):
            found += parse_policies(_text_of(path, name), name)
    if len(found) > MAX_POLICIES:
        raise ConfigError(f"access.cedar has {len(found)} policies; at most {MAX_POLICIES} are supported.", path=_PLACE)
    if len({policy.id for policy in found}) != len(found):
        raise ConfigError("access.cedar names a file twice; remove one entry.", path=_PLACE)
    return tuple(found)


def _files(pattern: str, base_dir: Path, place: str) -> Iterator[tuple[str, Path]]:
    whole = base_dir / Path(pattern).expanduser()
    if not any(mark in pattern for mark in "*?["):
        yield pattern, whole
        return
    matches = sorted(glob.glob(str(whole), recursive=True))
    if not matches:
        raise ConfigError(f"{place}: no file matches {pattern!r}.", path=place)
    for match in matches:
        path = Path(match)
        yield (str(path.relative_to(base_dir)) if path.is_relative_to(base_dir) else match), path


def _text_of(path: Path, name: str) -> str:
    try:
        with path.open("rb") as file:
            data = file.read(MAX_FILE_BYTES + 1)
    except OSError as error:
        raise ConfigError(f"Cedar file {name!r} cannot be read: {error.strerror or 'unknown reason'}.", path=_PLACE) from None
    if len(data) > MAX_FILE_BYTES:
        raise ConfigError(f"Cedar file {name!r} is larger than {MAX_FILE_BYTES} bytes.", path=_PLACE)
    try:
        return data.decode()
    except UnicodeDecodeError:
        raise ConfigError(f"Cedar file {name!r} is not UTF-8 text.", path=_PLACE) from None


def parse_policies(text: str, name: str) -> list[CedarPolicy]:
    """Parse the text of one file, which errors and ids call `name`. Raises `ConfigError` with the line of a malformed policy."""
    cedarpy = load_cedarpy()
    found: list[CedarPolicy] = []
    for line, statement in split_policies(text):
        try:
            parsed: JsonObject = json.loads(cedarpy.policies_to_json_str(statement))
        except ValueError as error:
            raise ConfigError(f"{name}:{_line_of_error(cedarpy, statement, line)}: {error}.", path=_PLACE) from None
        policies = list(cast("dict[str, JsonObject]", parsed.get("staticPolicies") or {}).values())
        if parsed.get("templates") or not policies:
            raise ConfigError(f"{name}:{line}: templates (`?principal`, `?resource`) are not supported.", path=_PLACE)
        found += [_policy(f"{name}:{line}" if not number else f"{name}:{line}.{number}", statement, p) for number, p in enumerate(policies)]
    return found


def _policy(policy_id: str, text: str, body: JsonObject) -> CedarPolicy:
    names = {str(node["attr"]) for node in _nodes(body["conditions"]) if "attr" in node}
    reads = any(node.get("Var") == "context" for node in _nodes(body["conditions"]))
    effect = cast("Literal['permit', 'forbid']", body["effect"])
    return CedarPolicy(policy_id, text, effect, body["principal"], body["action"], body["resource"], body, reads, frozenset(names))


def _nodes(value: JsonValue) -> Iterator[JsonObject]:
    """Yield every JSON object inside `value`."""
    found = as_object(value)
    if found is not None:
        yield found
        for child in found.values():
            yield from _nodes(child)
    else:
        for child in items_of(value):
            yield from _nodes(child)


def split_policies(text: str) -> list[tuple[int, str]]:
    """Return the policies in `text`, each with the line on which it begins. A `;` outside of text and comments ends a policy."""
    found: list[tuple[int, str]] = []
    start, line, start_line = -1, 1, 1
    position, length = 0, len(text)
    while position < length:
        char = text[position]
        if char == "/" and text.startswith("//", position):
            end = text.find("\n", position)
            position = length if end < 0 else end
            continue
        if start < 0 and not char.isspace():
            start, start_line = position, line
        if char == '"':
            end = _end_of_text(text, position)
            line += text.count("\n", position, end)
            position = end
            continue
        if char == "\n":
            line += 1
        elif char == ";":
            found.append((start_line, text[start : position + 1]))
            start = -1
        position += 1
    if start >= 0:
        found.append((start_line, text[start:]))
    return found


def _end_of_text(text: str, start: int) -> int:
    """Return the position after the string literal that begins at `start`; the end of `text` if the literal is not closed."""
    position = start + 1
    while position < len(text):
        if text[position] == "\\":
            position += 2
        elif text[position] == '"':
            return position + 1
        else:
            position += 1
    return len(text)


def _line_of_error(cedarpy: ModuleType, statement: str, line: int) -> int:
    """Return the line of the error in a malformed policy that begins at `line`.

    The parser reports no position. The error is on the last line of the shortest part of the policy that fails for another reason than its
    missing end.
    """
    lines = statement.split("\n")
    for number in range(len(lines)):
        try:
            cedarpy.policies_to_json_str("\n".join(lines[: number + 1]))
        except ValueError as error:
            if "end of input" not in str(error):
                return line + number
    return line + len(lines) - 1

"""Reads the files of agents, skills and workflows safely, and decodes their YAML and frontmatter.

YAML is decoded with the YAML 1.2 core schema, as the JavaScript parsers of other MCP hosts do: `yes` is a string, `0123` is 123, dates are
strings. Aliases, anchors, tags and duplicate keys are rejected, so that the cost of a document is proportional to its size.

A file with a second name (hard link) is rejected, because it may be a file from outside the folder of agents, skills or workflows. Folders
of the Python installation are exempt, because installers create hard links there.
"""

from __future__ import annotations

import os
import re
import sysconfig
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from gateway.errors import ConfigError
from gateway.json_types import JsonObject, JsonValue

if TYPE_CHECKING:
    import yaml

MAX_DOCUMENT_BYTES = 262_144
"""Maximum size of a workflow file in bytes, and of each decoded YAML text in characters; a larger file or text is rejected.

Of the Markdown file of an agent, this limits only the frontmatter. The largest real frontmatter seen has 9.6 KB.
"""

MAX_DEPTH = 64
"""Maximum nesting of a YAML document."""

_LIBYAML_TOO_DEEP = "exceeded maximum nesting depth"
"""Message of the error that libyaml 0.2.6 and later raise beyond 1,000 levels of nesting.

The scanner of libyaml reads ahead, so it may fail before this module has counted `MAX_DEPTH` levels.
"""

HAS_SECOND_NAME = "has a second name (hard link), so it may be a file from elsewhere; replace it by a copy."

_PACKAGE = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
"""Path of the package `gateway`, in which the bundled agents and skills are installed."""

_INT = re.compile(r"^(?:[-+]?[0-9]+|0o[0-7]+|0x[0-9a-fA-F]+)$")
_FLOAT = re.compile(r"^(?:[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?|[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN))$")
_CONSTANTS: dict[str, JsonValue] = {
    **dict.fromkeys(("", "~", "null", "Null", "NULL")),
    **dict.fromkeys(("true", "True", "TRUE"), True),
    **dict.fromkeys(("false", "False", "FALSE"), False),
}


class DocumentError(ConfigError):
    """Error: the file of an agent, skill or workflow, or its YAML, cannot be read.

    `code` is a stable name of the problem: `yaml-syntax`, `yaml-alias`, `yaml-tag`, `yaml-duplicate-key`, `yaml-depth`, `too-large`,
    `no-frontmatter`, `unclosed-frontmatter`, `frontmatter-not-mapping` or `hard-link`. `line` is 1-based, or 0 if unknown. `reason` is the
    message without the line.
    """

    def __init__(self, reason: str, *, code: str, line: int = 0, path: str = "") -> None:
        super().__init__(f"Line {line}: {reason}" if line else reason, path=path)
        self.reason = reason
        self.code = code
        self.line = line


@dataclass(frozen=True, slots=True)
class Frontmatter:
    """A Markdown document, split into its YAML frontmatter and its body, both as text."""

    header: str
    """YAML text between the `---` lines."""
    body: str
    """Text after the second `---` line."""
    body_line: int
    """1-based number of the line in the document on which the body starts."""


def has_second_name(status: os.stat_result, place: str) -> bool:
    """Return whether a file has several names (hard links) and is outside the Python installation, so that it must not be read.

    `place` is the path of the file or of a folder that contains it, without symbolic links.
    """
    return status.st_nlink > 1 and not _is_installed(place)


def _is_installed(place: str) -> bool:
    """Return whether a path without symbolic links is inside the Python installation, where files may have several hard links.

    Installers such as uv create such links. The files are trusted, because this process executes files of the installation anyway.
    """
    folders = (sysconfig.get_path("purelib"), sysconfig.get_path("platlib"), _PACKAGE)
    return any(Path(place).is_relative_to(os.path.realpath(folder)) for folder in folders)


def read_document(path: Path) -> bytes:
    """Return the content of the file of an agent, skill or workflow.

    Raises:
        DocumentError: The file has a second name (`hard-link`).
        OSError: The file cannot be read.
    """
    with path.open("rb") as file:
        if has_second_name(os.fstat(file.fileno()), os.path.realpath(path)):
            raise DocumentError(HAS_SECOND_NAME, code="hard-link")
        return file.read()


def split_frontmatter(text: str) -> Frontmatter:
    """Split a Markdown document that starts with a `---` line into frontmatter and body. A byte-order mark and CRLF are accepted.

    Raises:
        DocumentError: The first line is not `---` (`no-frontmatter`), or no second `---` follows (`unclosed-frontmatter`).
    """
    lines = text.removeprefix("\ufeff").splitlines(keepends=True)
    if not lines or lines[0].rstrip() != "---":
        raise DocumentError("The frontmatter is missing: the first line must be `---`.", code="no-frontmatter", line=1)
    for number, line in enumerate(lines[1:], start=1):
        if line.rstrip() == "---":
            return Frontmatter("".join(lines[1:number]), "".join(lines[number + 1 :]), number + 2)
    raise DocumentError("The frontmatter is not closed: no second `---` line.", code="unclosed-frontmatter", line=1)


def load_yaml(text: str, *, path: str = "") -> JsonValue:
    """Decode a text with one YAML document to JSON values; an empty document is `None`. Keys become strings.

    `path` is the document's file, for error messages.

    Raises:
        DocumentError: The text is not YAML, or uses a rejected feature; `line` is the 1-based line, or 0 if it is unknown.
    """
    import yaml  # imported on first use, because some gateways read no YAML

    if len(text) > MAX_DOCUMENT_BYTES:
        raise DocumentError(f"The document is larger than {MAX_DOCUMENT_BYTES} characters.", code="too-large", path=path)
    loader = cast("type[yaml.SafeLoader]", getattr(yaml, "CSafeLoader", yaml.SafeLoader))
    try:
        _check_events(yaml.parse(text, Loader=loader), path)
        node = yaml.compose(text, Loader=loader)
        return None if node is None else _value(node, path)
    except yaml.MarkedYAMLError as error:
        line = error.problem_mark.line + 1 if error.problem_mark else 0
        if error.problem == _LIBYAML_TOO_DEEP:
            raise _too_deep(line, path) from None
        raise DocumentError(str(error.problem), code="yaml-syntax", line=line, path=path) from None
    except yaml.YAMLError as error:
        raise DocumentError(f"Not YAML: {error}", code="yaml-syntax", path=path) from None
    except UnicodeEncodeError as error:
        line = text.count("\n", 0, error.start) + 1
        raise DocumentError("half a character (a lone surrogate).", code="yaml-syntax", line=line, path=path) from None


def load_mapping(text: str, *, path: str = "") -> JsonObject:
    """Decode a text with one YAML document, which must be a mapping; an empty document is `{}`. `path` is its file, for error messages.

    Raises:
        DocumentError: `load_yaml` rejects the document, or it is not a mapping (`yaml-syntax`).
    """
    value = load_yaml(text, path=path)
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise DocumentError("Expected a mapping of `key: value` lines.", code="yaml-syntax", line=1, path=path)
    return cast("JsonObject", value)


def _check_events(events: Any, path: str) -> None:
    depth = 0
    for event in events:
        line = event.start_mark.line + 1
        name = type(event).__name__
        if name == "AliasEvent" or getattr(event, "anchor", None):
            raise DocumentError("aliases and anchors are not read.", code="yaml-alias", line=line, path=path)
        tag = getattr(event, "tag", None)
        if tag and tag != "!":
            raise DocumentError(f"tags such as {tag!r} are not read.", code="yaml-tag", line=line, path=path)
        depth += name.endswith("StartEvent") - (name.endswith("EndEvent"))
        if depth > MAX_DEPTH:
            raise _too_deep(line, path)


def _too_deep(line: int, path: str) -> DocumentError:
    return DocumentError(f"nested deeper than {MAX_DEPTH}.", code="yaml-depth", line=line, path=path)


def _value(node: Any, path: str) -> JsonValue:
    kind = type(node).__name__
    if kind == "SequenceNode":
        return [_value(item, path) for item in node.value]
    if kind == "MappingNode":
        return _mapping(node, path)
    return node.value if node.style else _scalar(node.value)


def _mapping(node: Any, path: str) -> JsonObject:
    result: JsonObject = {}
    for key_node, value_node in node.value:
        line = key_node.start_mark.line + 1
        if type(key_node).__name__ != "ScalarNode":
            raise DocumentError("a key must be plain text.", code="yaml-syntax", line=line, path=path)
        if key_node.value in result:
            raise DocumentError(f"key {key_node.value!r} is written twice.", code="yaml-duplicate-key", line=line, path=path)
        result[key_node.value] = _value(value_node, path)
    return result


def _scalar(text: str) -> JsonValue:
    if text in _CONSTANTS:
        return _CONSTANTS[text]
    if _INT.match(text) and len(text) < 300:
        return int(text, 0) if text[:2] in ("0o", "0x") else int(text)
    if _FLOAT.match(text):
        return float(text.lower().replace(".inf", "inf").replace(".nan", "nan"))
    return text

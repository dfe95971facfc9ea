"""Parses `SKILL.md` files tolerantly, and reports every departure from the Agent Skills format as a diagnostic with a code.

A diagnostic of level `error` refuses the skill, `warning` refuses it in strict mode only, and `info` has no effect. Frontmatter that is not
YAML 1.2 is parsed again line by line. A skill with such frontmatter is served by tools and its prompt only, because hosts compare the
frontmatter in `skills/list` with the frontmatter that they parse themselves. The parser runs no command and expands no variable in a skill.
"""

from __future__ import annotations

import math
import re
from typing import cast

from gateway.config.documents import DocumentError, Frontmatter, load_yaml, split_frontmatter
from gateway.diagnostics import Diagnostic, Level
from gateway.json_types import JsonMapping, JsonObject, JsonValue
from gateway.policy.skill_policy import MAX_NAME_CHARS, is_skill_name
from gateway.skills.model import MANIFEST, SkillDocument

MAX_FRONTMATTER_BYTES = 65_536
"""Maximum size of frontmatter; larger frontmatter is refused without parsing. The largest published frontmatter has 9.6 KB."""

LARGE_MANIFEST_BYTES = 50_000
"""Size above which a `SKILL.md` gets a warning, because it costs a model more than 10,000 tokens."""

MAX_DESCRIPTION_CHARS = 1024
MAX_COMPATIBILITY_CHARS = 500
"""Maximum length of the field `compatibility`, in characters. This limit and `MAX_DESCRIPTION_CHARS` are those of the Agent Skills
specification."""

CONTROLS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff]")
"""Matches characters that text of skills may not have: C0 and C1 controls and DEL, except tab and line feed, and surrogates. It also
matches carriage returns, which text may have; the parser replaces them before it searches."""

HIDDEN = re.compile("[\u200b\u2060\u202a-\u202e\u2066-\u2069\U000e0000-\U000e007f]")
"""Matches characters that hide or reorder text: zero-width characters, bidirectional overrides, and Unicode tags."""

KNOWN_KEYS = frozenset({"name", "description", "license", "compatibility", "metadata", "allowed-tools"})
"""Frontmatter fields that the Agent Skills specification defines. Any other field is kept, and reported by a diagnostic."""

EXECUTABLE_KEYS = frozenset({"hooks", "model", "context", "agent", "shell", "allowed-tools"})
"""Frontmatter fields with which some hosts run commands or widen permissions. The gateway treats them as data."""

TOOLS_ONLY = " Served by tools only"
"""Start of the last sentence in the message of a diagnostic about a problem for which `skills/list` leaves out the skill.

The skill tools still serve the skill. `SkillFrontmatter` removes the sentence, because it does not apply to a skill that a Python program
creates."""

_CONTROLS_TEXT = f"The text has control characters; remove them.{TOOLS_ONLY}."
_COMMAND = re.compile(r"!`[^`\n]+`")
_TOP_LEVEL = re.compile(r"(?P<key>[A-Za-z0-9_][A-Za-z0-9_ .-]*?)[ \t]*:(?:[ \t]+(?P<value>.*))?$")

_CAUSES = {
    "mapping values are not allowed in this context": "a `: ` inside a value that is not in quotes",
    "did not find expected key": "a line that is not `key: value`, or text after a closing quote or bracket",
    "could not find expected ':'": "a line that is not `key: value`",
    "did not find expected ',' or ']'": "a `[` that is not closed, or a value that starts with one and needs quotes",
    "did not find expected ',' or '}'": "a `{` that is not closed, or a value that starts with one and needs quotes",
    "found character that cannot start any token": "a tab before a key, or a value that starts with `@` or a backtick and needs quotes",
    "found unexpected end of stream": "a quote that is not closed",
    "found unknown escape character": "a backslash inside double quotes; use single quotes",
}
"""Error message of the YAML parser → the usual cause in frontmatter, which the diagnostic names instead."""


def parse_skill(data: bytes, *, directory: str, file_name: str = MANIFEST) -> SkillDocument:
    """Parse the bytes of a `SKILL.md`. Never raises; every problem becomes a diagnostic of the returned document.

    `directory` is the name of the skill's folder, with which the name in the frontmatter is compared. `file_name` is the spelling of the
    file's name on disk.
    """
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        line = data[: error.start].count(b"\n") + 1
        return _refused(_error("not-utf8", f"{file_name} is not UTF-8; save it as UTF-8 without changes.", line))
    try:
        parts = split_frontmatter(text)
    except DocumentError as error:
        return _refused(_error(error.code, error.reason, error.line or None))
    if len(parts.header.encode()) > MAX_FRONTMATTER_BYTES:
        return _refused(_error("frontmatter-too-large", f"The frontmatter is larger than {MAX_FRONTMATTER_BYTES} bytes."))
    try:
        frontmatter, findings = _read_frontmatter(parts.header)
    except DocumentError as error:
        return _refused(_from_document(error))
    findings += _check_file(text, len(data), file_name, parts)
    findings += check_fields(frontmatter, directory, parts.header)
    if not _is_json(frontmatter):
        reason = f"A value cannot be written as JSON (infinity, not a number, a lone surrogate).{TOOLS_ONLY}."
        findings.append(_warning("not-json", reason))
    name, description = frontmatter.get("name"), frontmatter.get("description")
    codes = {d.code for d in findings}
    return SkillDocument(
        frontmatter=frontmatter,
        name=name if isinstance(name, str) else "",
        description=description if isinstance(description, str) else "",
        text=text,
        body_start=len(text) - len(parts.body),
        conformant=not codes & {"yaml-repaired", "name-missing", "name-illegal", "control-characters", "not-json"},
        diagnostics=tuple(dict.fromkeys(findings)),
    )


def _read_frontmatter(header: str) -> tuple[JsonObject, list[Diagnostic]]:
    """Parse frontmatter as YAML; if it is not valid YAML, parse it line by line. Return the fields and diagnostics.

    Raises:
        DocumentError: The frontmatter is not a mapping, uses a refused feature of YAML (aliases, anchors, tags, repeated keys, deep
            nesting), or is not YAML and has no description line by line.
    """
    try:
        value = load_yaml(header)
    except DocumentError as error:
        if error.code != "yaml-syntax":
            raise
        rescued = _rescue(header)
        if not rescued.get("description"):
            raise
        finding = _from_document(error, "yaml-repaired", "warning")
        return rescued, [finding]
    if value is None:
        return {}, []
    if not isinstance(value, dict):
        raise DocumentError("The frontmatter must be `key: value` lines.", code="frontmatter-not-mapping", line=1)
    return cast("JsonObject", value), []


def _rescue(header: str) -> JsonObject:
    """Parse frontmatter that is not valid YAML, one top-level `key: value` block at a time. A value that is not YAML is taken as text.

    Raises:
        DocumentError: A block uses a refused feature of YAML, or a key is written twice.
    """
    blocks: list[tuple[str, list[str]]] = []
    for line in header.splitlines():
        match = _TOP_LEVEL.match(line)
        if match:
            blocks.append((match["key"], [match["value"] or ""]))
        elif blocks and (not line.strip() or line[0] in " \t-"):
            blocks[-1][1].append(line)
    result: JsonObject = {}
    for key, lines in blocks:
        if key in result:
            raise DocumentError(f"Key {key!r} is written twice.", code="yaml-duplicate-key")
        result[key] = _rescue_value("\n".join(lines))
    return result


def _rescue_value(text: str) -> JsonValue:
    try:
        loaded = load_yaml(f"value: {text}")
    except DocumentError as error:
        if error.code != "yaml-syntax":
            raise
    else:
        if isinstance(loaded, dict) and len(cast("JsonObject", loaded)) == 1:
            return cast("JsonObject", loaded)["value"]
    plain = " ".join(text.split())
    return plain[1:-1] if len(plain) > 1 and plain[0] == plain[-1] and plain[0] in "'\"" else plain


def _check_file(text: str, size: int, file_name: str, parts: Frontmatter) -> list[Diagnostic]:
    found: list[Diagnostic] = []
    if file_name != MANIFEST:
        found.append(_warning("file-name-case", f"The file is called {file_name!r}; rename it to {MANIFEST!r}."))
    if text.startswith("\ufeff"):
        found.append(_warning("bom", "The file starts with a byte order mark; save it without one.", 1))
    if size > LARGE_MANIFEST_BYTES:
        found.append(_warning("large-manifest", f"{MANIFEST} has {size} bytes; move detail into files under `references/`."))
    if controls := CONTROLS.search(text.replace("\r", "\n")):
        line = _line_of(text, controls.start())
        found.append(_warning("control-characters", _CONTROLS_TEXT, line))
    if hidden := HIDDEN.search(text):
        line = _line_of(text, hidden.start())
        found.append(_warning("hidden-characters", f"U+{ord(hidden[0]):04X} hides or reorders text; remove it.", line))
    if command := _COMMAND.search(parts.body):
        line = parts.body_line + parts.body.count("\n", 0, command.start())
        found.append(_info("executable-frontmatter", f"{command[0]} is text: loading a skill runs nothing.", line))
    return found


def check_fields(frontmatter: JsonMapping, directory: str, header: str = "") -> list[Diagnostic]:
    """Check the fields of a frontmatter by the Agent Skills specification, and return a diagnostic for each problem.

    `directory` is the name of the skill's folder. `header` is the text of the frontmatter; the diagnostics' line numbers are determined
    from it.
    """
    found = _check_name(frontmatter, directory, header)
    return [*found, *_check_description(frontmatter, header), *_check_optional(frontmatter, header)]


def _check_name(frontmatter: JsonMapping, directory: str, header: str) -> list[Diagnostic]:
    name, line = frontmatter.get("name"), _key_line(header, "name")
    if name is None or name == "":
        return [_warning("name-missing", f"`name` is missing; add it.{TOOLS_ONLY}, under the folder's name.", line)]
    if not is_skill_name(name):
        rule = f"1 to {MAX_NAME_CHARS} lower-case letters, digits and single hyphens"
        return [_warning("name-illegal", f"`name` {str(name)[:80]!r} must be {rule}.{TOOLS_ONLY}.", line)]
    if name != directory:
        return [_warning("name-not-directory", f"`name` is {name!r} but the folder is {directory!r}; use one name.", line)]
    return []


def _check_description(frontmatter: JsonMapping, header: str) -> list[Diagnostic]:
    description, line = frontmatter.get("description"), _key_line(header, "description")
    if not isinstance(description, str) or not description.strip():
        return [_error("description-missing", "`description` is missing or empty; say what the skill does and when to use it.", line)]
    found: list[Diagnostic] = []
    if CONTROLS.search(description.replace("\r", "\n")):
        found.append(_warning("control-characters", _CONTROLS_TEXT, line))
    if (size := len(description)) > MAX_DESCRIPTION_CHARS:
        text = f"`description` has {size} characters, {MAX_DESCRIPTION_CHARS} are allowed."
        found.append(_warning("description-too-long", text, line))
    return found


def _check_optional(frontmatter: JsonMapping, header: str) -> list[Diagnostic]:
    found: list[Diagnostic] = []
    for key in frontmatter:
        line = _key_line(header, key)
        if key in EXECUTABLE_KEYS:
            found.append(_info("executable-frontmatter", f"`{key}` is data only; it grants and runs nothing.", line))
        elif key not in KNOWN_KEYS:
            found.append(_info("unknown-key", f"`{key}` is not a field of the Agent Skills format; kept as it is.", line))
    line = _key_line(header, "metadata")
    metadata = frontmatter.get("metadata", {})
    if not isinstance(metadata, dict):
        found.append(_warning("metadata-type", "`metadata` must map names to strings.", line))
    else:
        odd = [key for key, value in cast("JsonObject", metadata).items() if not isinstance(value, str)]
        if odd:
            names = ", ".join(f"{key[:40]!r}" for key in odd[:3]) + (", …" if len(odd) > 3 else "")
            found.append(_warning("metadata-type", f"`metadata` may contain only strings: put {names} in quotes or elsewhere.", line))
    found += [
        _warning(f"{key}-type", f"`{key}` must be one string.", _key_line(header, key))
        for key in ("allowed-tools", "license")
        if not isinstance(frontmatter.get(key, ""), str)
    ]
    compatibility = frontmatter.get("compatibility", "any")
    if not isinstance(compatibility, str) or not 1 <= len(compatibility) <= MAX_COMPATIBILITY_CHARS:
        line = _key_line(header, "compatibility")
        text = f"`compatibility` must be a string of 1 to {MAX_COMPATIBILITY_CHARS} characters."
        found.append(_warning("compatibility-type", text, line))
    return found


def _is_json(value: JsonValue) -> bool:
    match value:
        case float():
            return math.isfinite(value)
        case str():
            return value.isascii() or not any("\ud800" <= c <= "\udfff" for c in value)
        case dict():
            return all(_is_json(k) and _is_json(v) for k, v in cast("JsonObject", value).items())
        case list():
            return all(_is_json(v) for v in cast("list[JsonValue]", value))
        case _:
            return True


def _key_line(header: str, key: str) -> int | None:
    for number, line in enumerate(header.splitlines(), start=2):
        if line.startswith(key) and line[len(key) :].lstrip().startswith(":"):
            return number
    return None


def _line_of(text: str, position: int) -> int:
    return text.count("\n", 0, position) + 1


def _from_document(error: DocumentError, code: str = "", level: Level = "error") -> Diagnostic:
    """Convert a YAML error in frontmatter to a diagnostic, with a line number that counts from the top of the file.

    `code` replaces the code of the error; `level` is the level of the diagnostic.
    """
    message = " ".join(error.reason.split())
    message = _CAUSES.get(message, message)
    if code == "yaml-repaired":
        message = f"Not valid YAML ({message}); parsed line by line, served by tools only. Quote the value."
    elif error.code == "yaml-syntax":
        message = f"Not valid YAML ({message}), and line by line it has no description either; correct it."
    return Diagnostic(code or error.code, level, message, error.line + 1 if error.line else None)


def _refused(finding: Diagnostic) -> SkillDocument:
    return SkillDocument({}, "", "", "", 0, conformant=False, diagnostics=(finding,))


def _error(code: str, message: str, line: int | None = None) -> Diagnostic:
    return Diagnostic(code, "error", message, line)


def _warning(code: str, message: str, line: int | None = None) -> Diagnostic:
    return Diagnostic(code, "warning", message, line)


def _info(code: str, message: str, line: int | None = None) -> Diagnostic:
    return Diagnostic(code, "info", message, line)

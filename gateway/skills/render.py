"""The texts a model reads about skills: one loaded skill, the catalogue, one-line descriptions.

Skill texts are written by others and land in prompts, so here they are made harmless as text: one line where one
line is meant, no control characters, no forged end of the wrapper. Resources serve raw bytes instead and do not
come through here. Pure functions; `tools`, prompts and `provider` call them.
"""

from __future__ import annotations

import html
import re
from collections.abc import Sequence
from dataclasses import dataclass

from gateway.json_types import JsonMapping, JsonObject
from gateway.skills.index import SkillIndex
from gateway.skills.models import MANIFEST, Skill, SkillFile, SkillFunction
from gateway.skills.objects.content import code_text, member_blocks
from gateway.skills.objects.files import is_manifest
from gateway.skills.parser import CONTROLS, HIDDEN

MAX_BODY_CHARS = 50_000
"""Characters of a skill that one `load_skill` returns; the result says how to go on."""

MAX_LISTED_FILES = 100
"""Files named when a skill is loaded; the folder itself can be listed for the rest."""

MAX_DESCRIPTION_CHARS = 1024
"""Characters of a description in any list."""

CATALOGUE_MAX_SKILLS = 30
"""Up to this many skills `load_skill` names them all; above, search is the way in."""

CATALOGUE_MAX_BYTES = 8_000
"""What the catalogue may cost in a tool description: about 2,000 tokens in every prompt."""

_CATALOGUE_CUTS = (MAX_DESCRIPTION_CHARS, 500, 240, 120, 0)

_WRAPPER = "skill_content"
_FORGED_END = re.compile(rf"<(?=\s*/\s*{_WRAPPER})", re.IGNORECASE)


def one_line(text: str, max_chars: int = MAX_DESCRIPTION_CHARS) -> str:
    """`text` on one line, without control or hidden characters, cut with an ellipsis."""
    plain = " ".join(HIDDEN.sub("", CONTROLS.sub(" ", text)).split())
    return plain if len(plain) <= max_chars else plain[: max_chars - 1].rstrip() + "…"


def escape(text: str) -> str:
    """For use in XML text and attributes."""
    return html.escape(text, quote=True)


def visible(text: str) -> str:
    """`text` with control and hidden characters replaced one for one, so that positions stay valid."""
    return HIDDEN.sub("\ufffd", CONTROLS.sub(lambda m: m[0] if m[0] == "\r" else "\ufffd", text))


COMMAND_LINE: JsonObject = {"type": "array", "items": {"type": "string"}}
"""The arguments of a script that is a file, as JSON Schema."""


@dataclass(frozen=True, slots=True)
class _Member:
    """A file or function of a skill, as `load_skill` shows it."""

    name: str
    description: str
    parameters_schema: JsonMapping | None = None


@dataclass(frozen=True, slots=True)
class LoadedSkill:
    """What `load_skill` and the skill's prompt say."""

    text: str
    structured: JsonObject


def load(index: SkillIndex, skill: Skill) -> LoadedSkill:
    """The wrapped text of a skill, then what it offers to read and to run, as agent-framework's `load_skill` gives it.

    A skill in a file is the whole file, a skill in code its fields and instructions. The body is cut at `MAX_BODY_CHARS`;
    `nextOffset` then continues it with `read_skill_resource` of `SKILL.md`.
    """
    handle = index.handle(skill)
    whole = visible(skill.document.body)
    body = whole[:MAX_BODY_CHARS]
    others = [f for path, f in skill.files.items() if path != MANIFEST]
    structured: JsonObject = {
        "name": skill.name,
        "skill": handle,
        "description": one_line(skill.document.description),
        "origin": skill.origin,
        "body": body,
        "files": [file_wire(f) for f in others[:MAX_LISTED_FILES]],
        "filesOmitted": max(0, len(others) - MAX_LISTED_FILES),
    }
    if skill.uri:
        structured["uri"] = skill.uri
    if skill.manifest.digest:
        structured["digest"] = skill.manifest.digest
    attributes = {"name": skill.name, "origin": skill.origin, "uri": skill.uri, "digest": skill.manifest.digest}
    opening = " ".join(f'{key}="{escape(value)}"' for key, value in attributes.items() if value)
    if skill.in_code:
        text = code_text(skill.name, structured["description"], body.strip("\n"))
    else:
        text = visible(skill.document.text[: skill.document.body_start]) + body
    lines = [f"<{_WRAPPER} {opening}>", _FORGED_END.sub("&lt;", text).strip("\n"), f"</{_WRAPPER}>"]
    if len(whole) > len(body):
        offset = skill.document.body_start + len(body)
        structured["nextOffset"] = offset
        lines.append(
            f"Only {len(body)} of {len(whole)} characters are shown. Go on with "
            f'read_skill_resource(skill_name="{handle}", resource_name="{MANIFEST}", offset={offset}).'
        )
    lines += _file_lines(handle, others)
    if skill.functions:
        structured["scripts"] = [_function_wire(function) for function in skill.functions]
    return LoadedSkill("\n".join(lines) + _offered(others[:MAX_LISTED_FILES], skill.functions), structured)


def _file_lines(handle: str, files: Sequence[SkillFile]) -> list[str]:
    if not files:
        return []
    lines = [
        "Relative paths in these instructions are relative to the skill's folder. Read a file with "
        f'read_skill_resource(skill_name="{handle}", resource_name="<path>") when the instructions call for it.'
    ]
    if len(files) > MAX_LISTED_FILES:
        lines.append(f'{len(files) - MAX_LISTED_FILES} more files: read_skill_resource with resource_name "." or a folder lists them.')
    return lines


def _offered(files: Sequence[SkillFile], functions: Sequence[SkillFunction]) -> str:
    """The blocks at the end: what is there to read, and what to run."""
    resources = [_Member(f.path, describe_file(f)) for f in files if not f.is_script and not is_manifest(f.path)]
    scripts = [_Member(f.path, describe_file(f), COMMAND_LINE) for f in files if f.is_script]
    scripts += [_Member(f.name, one_line(f.description), f.parameters) for f in functions]
    return member_blocks(resources, scripts)


def _function_wire(function: SkillFunction) -> JsonObject:
    wire: JsonObject = {"name": function.name, "description": one_line(function.description)}
    return {**wire, "parameters": dict(function.parameters)} if function.parameters else wire


def describe_file(file: SkillFile) -> str:
    """Size and kind in a few words."""
    if file.is_dynamic:
        return "made when it is read"
    return f"{file.size} bytes" + (", script" if file.is_script else "") + ("" if file.is_text else f", {file.mime_type}")


def file_wire(file: SkillFile) -> JsonObject:
    """A file in a structured list."""
    wire: JsonObject = {"path": file.path, "mimeType": file.mime_type, "script": file.is_script}
    return wire if file.is_dynamic else {**wire, "size": file.size, "digest": file.digest}


def catalogue(index: SkillIndex, skills: Sequence[Skill]) -> str:
    """Skills of the index, one line each, within `CATALOGUE_MAX_BYTES`; above `CATALOGUE_MAX_SKILLS` only how many there are."""
    if len(skills) > CATALOGUE_MAX_SKILLS:
        return f"There are {len(skills)} skills here: find the right one with search_skills first."
    text = ""
    for cut in _CATALOGUE_CUTS:
        lines = [_catalogue_line(index.handle(s), one_line(s.document.description, cut) if cut else "") for s in skills]
        text = "\n".join(["Available skills:", *lines])
        if len(text.encode()) <= CATALOGUE_MAX_BYTES:
            break
    return text


def _catalogue_line(name: str, description: str) -> str:
    return f"- {name}: {description}" if description else f"- {name}"

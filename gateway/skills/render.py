"""Formats skills as text for models: the full text of one skill, lists of skills, and one-line descriptions.

The skill tools, prompts, agents' instructions and `objects` use this module. Authors of skills are not trusted, so their text is made
harmless: descriptions are put on one line, control characters are removed, and the text of a skill cannot contain the tag that ends it.
`resources/read` returns raw bytes instead. The tags around lists of resources and scripts are those of Microsoft's agent framework since
core 1.13, because models and prompts written for that framework expect them. Pure functions.
"""

from __future__ import annotations

import html
import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from gateway.config.instruction_template import fill_template
from gateway.json_types import JsonObject
from gateway.skills.index import SkillIndex
from gateway.skills.model import MANIFEST, Skill, SkillFile, SkillMember, is_manifest
from gateway.skills.parser import CONTROLS, HIDDEN

MAX_BODY_CHARS = 50_000
"""Maximum characters of a skill's text in one result of the tool `load_skill`; the result says how to read the rest."""

MAX_LISTED_FILES = 100
"""Maximum number of files that a result of `load_skill` lists; the tool `read_skill_resource` lists all files."""

MAX_DESCRIPTION_CHARS = 1024
"""Maximum characters of a skill's description in lists of skills. A longer description is cut."""

CATALOGUE_MAX_SKILLS = 30
"""Maximum number of skills that the description of the tool `load_skill` lists. If there are more, it refers to `search_skills` instead."""

CATALOGUE_MAX_BYTES = 8_000
"""Maximum bytes of the list of skills in the description of the tool `load_skill`: about 2,000 tokens in every prompt."""

_CATALOGUE_CUTS = (MAX_DESCRIPTION_CHARS, 500, 240, 120, 0)
"""Lengths to which each description in the list of skills is cut; 0 leaves the descriptions out. They are tried in order until the list
has at most `CATALOGUE_MAX_BYTES`."""

_WRAPPER = "skill_content"
_FORGED_END = re.compile(rf"<(?=\s*/\s*{_WRAPPER})", re.IGNORECASE)

COMMAND_LINE: JsonObject = {"type": "array", "items": {"type": "string"}}
"""JSON Schema for the arguments of a script file: an array of strings."""

_TEMPLATE = """\
You have skills: tested instructions for particular kinds of work. When a task matches one, call `load_skill` with \
its name before you act, follow what it says, and read the files it refers to with `read_skill_resource`. Load a \
skill once.
<available_skills>
{skills}
</available_skills>"""


PROVIDER_TEMPLATE = """\
You have skills: tested instructions for particular kinds of work.

<available_skills>
{skills}
</available_skills>

When a task matches a skill:
- Load it with `load_skill` before you act, and follow what it says.
{resource_instructions}
{runner_instructions}
Load only what you need, and each skill once."""
"""Default template for the instructions that the context provider `SkillsProvider` adds to an agent."""

RESOURCE_INSTRUCTIONS = "- Read what the skill refers to with `read_skill_resource`, by the names it lists."
RUNNER_INSTRUCTIONS = (
    "- Run its scripts with `run_skill_script`, by the names it lists; what a script takes goes into `args`, not beside it."
)


def one_line(text: str, max_chars: int = MAX_DESCRIPTION_CHARS) -> str:
    """Return `text` on one line, without control or hidden characters. Text longer than `max_chars` is cut and ends with an ellipsis."""
    plain = " ".join(HIDDEN.sub("", CONTROLS.sub(" ", text)).split())
    return plain if len(plain) <= max_chars else plain[: max_chars - 1].rstrip() + "…"


def escape(text: str) -> str:
    """Escape `text` for XML text and attributes."""
    return html.escape(text, quote=True)


def visible(text: str) -> str:
    """Replace each control or hidden character except carriage returns by a visible one. The length stays, so that offsets stay valid."""
    return HIDDEN.sub("\ufffd", CONTROLS.sub(lambda m: m[0] if m[0] == "\r" else "\ufffd", text))


def code_text(name: str, description: str, instructions: str) -> str:
    """Return name, description and instructions of a skill that is a Python object, as XML. The instructions are not escaped."""
    head = f"<name>{escape(name)}</name>\n<description>{escape(description)}</description>"
    return f"{head}\n\n<instructions>\n{instructions}\n</instructions>"


def member_blocks(resources: Iterable[SkillMember], scripts: Iterable[SkillMember]) -> str:
    """Return the XML lists of resources and scripts that are appended to a skill's text.

    An empty list is written, too, so that a model does not guess that there are resources or scripts.
    """
    return _block("available_resources", [_opening("resource", r) + "/>" for r in resources]) + _block(
        "available_scripts", [_script(script) for script in scripts]
    )


def _block(tag: str, entries: Sequence[str]) -> str:
    if not entries:
        return f"\n\n<{tag} />"
    lines = "\n".join(f"  {entry}" for entry in entries)
    return f"\n\n<{tag}>\n{lines}\n</{tag}>"


def _script(script: SkillMember) -> str:
    opening = _opening("script", script)
    if not script.parameters:
        return f"{opening}/>"
    text = html.escape(json.dumps(script.parameters), quote=False)
    return f"{opening}>\n    <parameters_schema>{text}</parameters_schema>\n  </script>"


def _opening(tag: str, member: SkillMember) -> str:
    described = f' description="{escape(member.description)}"' if member.description else ""
    return f'<{tag} name="{escape(member.name)}"{described}'


@dataclass(frozen=True, slots=True)
class LoadedSkill:
    """A skill formatted for a model: text and structured content of a result of `load_skill`. The skill's MCP prompt has the same text."""

    text: str
    structured: JsonObject


def load(index: SkillIndex, skill: Skill) -> LoadedSkill:
    """Format a skill for a model: its text in a tag that names the skill's origin, then the lists of its resources and scripts.

    The text is the whole `SKILL.md` or, for a Python object without a file (`Skill.in_code`), its fields and instructions. The Markdown is
    cut at `MAX_BODY_CHARS` characters; the tool `read_skill_resource` reads the rest of `SKILL.md` from the offset `nextOffset`.
    """
    handle = index.handle(skill)
    whole = visible(skill.document.body)
    body = whole[:MAX_BODY_CHARS]
    others = [f for path, f in skill.files.items() if path != MANIFEST]
    structured: JsonObject = {
        **skill_wire(index, skill),
        "body": body,
        "files": [file_wire(f) for f in others[:MAX_LISTED_FILES]],
        "filesOmitted": max(0, len(others) - MAX_LISTED_FILES),
    }
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
            f"Only {len(body)} of {len(whole)} characters are shown. Continue with "
            f'read_skill_resource(skill_name="{handle}", resource_name="{MANIFEST}", offset={offset}).'
        )
    if others:
        lines.append(
            "Relative paths in these instructions are relative to the skill's folder. Read a file with "
            f'read_skill_resource(skill_name="{handle}", resource_name="<path>") when the instructions call for it.'
        )
    if len(others) > MAX_LISTED_FILES:
        lines.append(f'{len(others) - MAX_LISTED_FILES} more files: read_skill_resource with resource_name "." or a folder lists them.')
    if skill.functions:
        structured["scripts"] = [_function_wire(function) for function in skill.functions]
    return LoadedSkill("\n".join(lines) + _offered(others[:MAX_LISTED_FILES], skill.functions), structured)


def _offered(files: Sequence[SkillFile], functions: Sequence[SkillMember]) -> str:
    resources = [SkillMember(f.path, describe_file(f)) for f in files if not f.is_script and not is_manifest(f.path)]
    scripts = [SkillMember(f.path, describe_file(f), COMMAND_LINE) for f in files if f.is_script]
    return member_blocks(resources, [*scripts, *(replace(f, description=one_line(f.description)) for f in functions)])


def _function_wire(function: SkillMember) -> JsonObject:
    wire: JsonObject = {"name": function.name, "description": one_line(function.description)}
    return {**wire, "parameters": dict(function.parameters)} if function.parameters else wire


def skill_wire(index: SkillIndex, skill: Skill, max_chars: int = MAX_DESCRIPTION_CHARS) -> JsonObject:
    """Return the fields that describe a skill in the structured content of tool results: name, description, origin and URI (if any).

    The field `skill` is the text by which a model names the skill. A description longer than `max_chars` is cut.
    """
    description = one_line(skill.document.description, max_chars)
    wire: JsonObject = {"name": skill.name, "skill": index.handle(skill), "description": description, "origin": skill.origin}
    return {**wire, "uri": skill.uri} if skill.uri else wire


def describe_file(file: SkillFile) -> str:
    """Return a short description of a skill's file for models: its size, whether it is a script, and its MIME type if it is not text.

    A file of unknown size is described as made when it is read.
    """
    if file.is_dynamic:
        return "made when it is read"
    return f"{file.size} bytes" + (", script" if file.is_script else "") + ("" if file.is_text else f", {file.mime_type}")


def file_wire(file: SkillFile) -> JsonObject:
    """Return a skill's file as a JSON object for the structured content of tool results.

    The object has the path, the MIME type, whether the file is a script and, if they are known, size and digest.
    """
    wire: JsonObject = {"path": file.path, "mimeType": file.mime_type, "script": file.is_script}
    return wire if file.is_dynamic else {**wire, "size": file.size, "digest": file.digest}


def catalogue(index: SkillIndex, skills: Sequence[Skill]) -> str:
    """Return the list of skills for the description of `load_skill`: a line per skill, with at most `CATALOGUE_MAX_BYTES`.

    For more than `CATALOGUE_MAX_SKILLS` skills, return only their number and a reference to `search_skills`.
    """
    if len(skills) > CATALOGUE_MAX_SKILLS:
        return f"There are {len(skills)} skills here: find the right one with search_skills first."
    text = ""
    for cut in _CATALOGUE_CUTS:
        described = [(index.handle(s), one_line(s.document.description, cut) if cut else "") for s in skills]
        text = "\n".join(["Available skills:", *(f"- {name}: {said}" if said else f"- {name}" for name, said in described)])
        if len(text.encode()) <= CATALOGUE_MAX_BYTES:
            break
    return text


def skill_instructions(index: SkillIndex, skills: Sequence[Skill], template: str | None = None) -> str:
    """Return the part of an agent's instructions that lists its skills, sorted and XML-escaped; empty if it has no skills.

    `template` is text with the placeholder `{skills}`, which `config.instruction_template` has checked; `None` means the default template.
    """
    if not skills:
        return ""
    named = {(index.handle(skill), one_line(skill.document.description)) for skill in skills}
    return fill_template(template or _TEMPLATE, _named(named, "<skill>{0}{1}</skill>"))


def provider_instructions(skills: Iterable[tuple[str, str]], template: str | None = None) -> str:
    """Return the instructions that the context provider `SkillsProvider` adds to an agent. They list `skills`, sorted and XML-escaped.

    `skills` are pairs of name and description.

    Raises:
        ValueError: `template` lacks `{skills}`, or has braces that are neither a known placeholder nor doubled.
    """
    named = _named(skills, "  <skill>\n    {0}\n    {1}\n  </skill>")
    return fill_template(
        template or PROVIDER_TEMPLATE, named, resource_instructions=RESOURCE_INSTRUCTIONS, runner_instructions=RUNNER_INSTRUCTIONS
    )


def _named(skills: Iterable[tuple[str, str]], layout: str) -> str:
    """Return the content of the element `<available_skills>`: one entry per pair of name and description, sorted.

    `layout` is the format of an entry; `{0}` is replaced by the element with the name, `{1}` by the element with the description.
    """
    return "\n".join(
        layout.format(f"<name>{escape(name)}</name>", f"<description>{escape(description)}</description>")
        for name, description in sorted(skills)
    )

"""Renders skills as text for models: one loaded skill, lists of skills, one-line descriptions.

The tools, prompts, agents' instructions and `objects` use it. Authors of skills are not trusted, so their text is made harmless here:
descriptions become one line, control characters are removed, and the tag that ends a skill cannot be forged. `resources/read` returns
raw bytes instead. The tags that list resources and scripts are agent-framework's since core 1.13, because models and prompts written for
it read them. Pure functions.
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
"""Maximum characters of a skill in one result of `load_skill`; the result says how to read the rest."""

MAX_LISTED_FILES = 100
"""Maximum number of files that `load_skill` names; `read_skill_resource` of a folder lists the others."""

MAX_DESCRIPTION_CHARS = 1024
"""Maximum characters of a skill's description in any list of skills."""

CATALOGUE_MAX_SKILLS = 30
"""If there are more skills, the description of `load_skill` does not name them and refers to `search_skills`."""

CATALOGUE_MAX_BYTES = 8_000
"""Maximum bytes of the catalogue (the list of skills) in the description of `load_skill`: about 2,000 tokens in every prompt."""

_CATALOGUE_CUTS = (MAX_DESCRIPTION_CHARS, 500, 240, 120, 0)
"""Lengths to which descriptions in the catalogue are cut. They are tried in this order until it fits `CATALOGUE_MAX_BYTES`."""

_WRAPPER = "skill_content"
_FORGED_END = re.compile(rf"<(?=\s*/\s*{_WRAPPER})", re.IGNORECASE)

COMMAND_LINE: JsonObject = {"type": "array", "items": {"type": "string"}}
"""JSON Schema of the arguments of a script file."""

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
"""Default template for the instructions of `SkillsProvider`."""

RESOURCE_INSTRUCTIONS = "- Read what the skill refers to with `read_skill_resource`, by the names it lists."
RUNNER_INSTRUCTIONS = (
    "- Run its scripts with `run_skill_script`, by the names it lists; what a script takes goes into `args`, not beside it."
)


def one_line(text: str, max_chars: int = MAX_DESCRIPTION_CHARS) -> str:
    """Return `text` on one line, without control or hidden characters, cut with an ellipsis."""
    plain = " ".join(HIDDEN.sub("", CONTROLS.sub(" ", text)).split())
    return plain if len(plain) <= max_chars else plain[: max_chars - 1].rstrip() + "…"


def escape(text: str) -> str:
    """Escape `text` for XML text and attributes."""
    return html.escape(text, quote=True)


def visible(text: str) -> str:
    """Replace each control and hidden character by one other character, so that offsets stay valid."""
    return HIDDEN.sub("\ufffd", CONTROLS.sub(lambda m: m[0] if m[0] == "\r" else "\ufffd", text))


def code_text(name: str, description: str, instructions: str) -> str:
    """Return the text of a skill in code, without its resources and scripts. The instructions are not escaped."""
    head = f"<name>{escape(name)}</name>\n<description>{escape(description)}</description>"
    return f"{head}\n\n<instructions>\n{instructions}\n</instructions>"


def member_blocks(resources: Iterable[SkillMember], scripts: Iterable[SkillMember]) -> str:
    """Return the lists of resources and scripts at the end of a skill's text. An empty list is included, so that a model need not guess."""
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
    """A skill rendered for a model: text and structured content for a result of `load_skill`. The skill's prompt has the same text."""

    text: str
    structured: JsonObject


def load(index: SkillIndex, skill: Skill) -> LoadedSkill:
    """Render a skill inside a tag that names its origin, then its resources and scripts.

    A skill in a file is shown as the whole file, a skill in code as its fields and instructions. The body is cut at `MAX_BODY_CHARS`;
    `read_skill_resource` of `SKILL.md` continues at `nextOffset`.
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


def describe_file(file: SkillFile) -> str:
    """Return a few words about a skill's file: its size, and whether it is a script or binary."""
    if file.is_dynamic:
        return "made when it is read"
    return f"{file.size} bytes" + (", script" if file.is_script else "") + ("" if file.is_text else f", {file.mime_type}")


def file_wire(file: SkillFile) -> JsonObject:
    """Return a skill's file as an item of a tool result's structured content."""
    wire: JsonObject = {"path": file.path, "mimeType": file.mime_type, "script": file.is_script}
    return wire if file.is_dynamic else {**wire, "size": file.size, "digest": file.digest}


def catalogue(index: SkillIndex, skills: Sequence[Skill]) -> str:
    """Return the catalogue: a line per skill, within `CATALOGUE_MAX_BYTES`; beyond `CATALOGUE_MAX_SKILLS` skills only their number."""
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
    """Return the part of an agent's instructions that names its skills, sorted and XML-escaped; empty without skills.

    `template` has the placeholder `{skills}` (`config.instruction_template` checks it).
    """
    if not skills:
        return ""
    named = {(index.handle(skill), one_line(skill.document.description)) for skill in skills}
    return fill_template(template or _TEMPLATE, _named(named, "<skill>{0}{1}</skill>"))


def provider_instructions(skills: Iterable[tuple[str, str]], template: str | None = None) -> str:
    """Return the instructions of `SkillsProvider`, which name the skills (name, description), sorted and XML-escaped.

    Raises:
        ValueError: `template` lacks `{skills}`, or has braces that are neither a known placeholder nor doubled.
    """
    named = _named(skills, "  <skill>\n    {0}\n    {1}\n  </skill>")
    template = template or PROVIDER_TEMPLATE
    return fill_template(template, named, resource_instructions=RESOURCE_INSTRUCTIONS, runner_instructions=RUNNER_INSTRUCTIONS)


def _named(skills: Iterable[tuple[str, str]], layout: str) -> str:
    """Return the entries of `<available_skills>`, sorted. `layout` places the elements of name (`{0}`) and description (`{1}`)."""
    return "\n".join(
        layout.format(f"<name>{escape(name)}</name>", f"<description>{escape(description)}</description>")
        for name, description in sorted(skills)
    )

"""`CodeSkills`: serves skills that are Python objects in the same way as skills in folders.

`skills.objects` of the configuration names the objects; their classes are in `gateway.skills.objects`. Each skill's text becomes a
`SKILL.md`, which is listed with its digest like a file on disk. A resource may be a function, which is called at each read. Functions run
in this process, because they are the operator's own code, like the functions that `expose.functions` of the configuration names.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Awaitable, Callable, Container, Sequence
from dataclasses import replace
from inspect import isabstract, isclass
from pathlib import Path
from types import ModuleType
from typing import cast

from pydantic_core import to_json

from gateway.diagnostics import Diagnostic
from gateway.errors import CODE_ERRORS, ConfigError, GatewayError, NotFound, ToolFailed, describe_error
from gateway.json_types import JsonValue
from gateway.policy.skill_policy import NAME, is_safe_name
from gateway.skills.backend import SkillBackend
from gateway.skills.index import published
from gateway.skills.mime import MARKDOWN, mime_type_of
from gateway.skills.model import MANIFEST, SkillFile, SkillReport, verdict_of
from gateway.skills.model import Skill as ServedSkill
from gateway.skills.objects.code_skills import ClassSkill, InlineSkill, InlineSkillResource
from gateway.skills.objects.skill import DefinedSkill, FileSkill, ScriptArguments, Skill, SkillFrontmatter, to_member, use_member
from gateway.skills.objects.sources import SkillsSource, fetch
from gateway.skills.parser import parse_skill
from gateway.tools.context import CallContext
from gateway.tools.functions_source import import_from, import_object

logger = logging.getLogger(__name__)

BACKEND_ID = "code:"
"""Id of the backend `CodeSkills`: the first part of `Skill.key` for skills that are Python objects.

It differs from the first part of the keys of skills in folders, which is an absolute path."""


class CodeSkills(SkillBackend):
    """A `SkillBackend` that provides the configured skills that are Python objects.

    `start` imports the objects, and `refresh` reads their skills again.
    """

    id = BACKEND_ID

    def __init__(self, references: Sequence[str], *, base_dir: Path, strict: bool = False) -> None:
        """Store the settings. Nothing is imported before `start`.

        `references` name the Python objects, as `module` or `module:name`; modules are looked up in the folder `base_dir` first. `strict`
        refuses skills with warnings.
        """
        super().__init__()
        self._references = list(dict.fromkeys(references))
        self._base_dir = base_dir
        self._strict = strict
        self._found: list[tuple[str, Skill | SkillsSource]] = []
        self._served: dict[str, tuple[Skill, ServedSkill]] = {}
        """Skill name → the Python object, and the skill that was made from it for the skill index."""
        self._failed: list[SkillReport] = []
        self.problems: list[SkillReport] = []
        """One report for each skill that is refused or served with a warning, and for each reference that cannot be imported or read."""

    @property
    def skills(self) -> Sequence[ServedSkill]:
        """The skills that the last refresh found, in the order of `skills.objects` in the configuration."""
        return [skill for _, skill in self._served.values()]

    async def start(self) -> None:
        """Import the Python objects that `skills.objects` of the configuration names, and read their skills.

        An object that cannot be imported or read is added to `problems`; the skills of the other objects are served.
        """
        for reference in self._references:
            try:
                self._found += [(reference, found) for found in await self._import(reference)]
            except ConfigError as error:
                self._failed.append(_refused(reference, "code-unusable", str(error)))
        await self.refresh()

    async def _import(self, reference: str) -> list[Skill | SkillsSource]:
        if ":" in reference:
            found = _skills_in(await import_object(reference, base_dir=self._base_dir))
        else:
            module = await import_from(reference, base_dir=self._base_dir)
            found = [skill for value in _own_values(module) for skill in _skills_in(value)]
        if not found:
            text = "No skill is defined there. Name a Skill object or class, a list of them, or a SkillsSource."
            raise ConfigError(text, path=reference)
        return found

    async def refresh(self) -> None:
        """Read every skill object again, and call each `SkillsSource` (an object that returns skills) again.

        If the code of a configured object fails, the skills that the object had at the last refresh are served unchanged.
        """
        served: dict[str, tuple[Skill, ServedSkill]] = {}
        problems = list(self._failed)
        for reference, found in self._found:
            try:
                for skill in await fetch(found, None) if isinstance(found, SkillsSource) else [found]:
                    made = self._judge(reference, skill, served.keys(), problems)
                    if made is not None:
                        served[made.id] = skill, made
            except CODE_ERRORS as error:  # the skill's own code can raise anything
                failure = _refused(reference, "code-failed", f"Reading the skill failed: {type(error).__name__}: {error}")
                if failure not in self.problems:
                    logger.warning("skill in code not read reference=%s", reference, exc_info=error)
                problems.append(failure)
                for name, kept in self._served.items():
                    if kept[1].origin == reference:
                        served.setdefault(name, kept)
        was, self._served, self.problems = self.skills, served, problems
        if self.skills != was:
            self._on_change()

    def _judge(self, reference: str, skill: Skill, taken: Container[str], problems: list[SkillReport]) -> ServedSkill | None:
        """Convert a Python object to a skill for the skill index, or return `None` to refuse it. Add refusals and warnings to `problems`.

        `taken` has the names of the skills that are already accepted.
        """
        name = skill.frontmatter.name
        if name in taken:
            problems.append(_refused(reference, "name-taken", f"Another skill in code is called {name!r}; rename one."))
            return None
        made = to_served(skill, reference)
        verdict = verdict_of(made.diagnostics, strict=self._strict)
        is_served = verdict != "rejected"
        if verdict != "accepted":
            problems.append(SkillReport(reference, name, verdict, is_served and made.is_listed, made.diagnostics))
        return made if is_served else None

    async def renew(self, skill: ServedSkill, ctx: CallContext) -> ServedSkill:
        """Read every skill object again, and return the new version of `skill` under the id that `skill` has.

        Raises:
            NotFound: The skill no longer exists.
        """
        await self.refresh()
        now = next((s for s in self.skills if s.key == skill.key), None)
        if now is None:
            raise NotFound("skill", skill.id)
        return published(now, skill.id) if now.is_listed else now

    async def fetch(self, skill: ServedSkill, path: str, ctx: CallContext) -> tuple[SkillFile, bytes]:
        """Return the description (`SkillFile`: path, type, size, digest) and the bytes of a resource or of the `SKILL.md` of a skill.

        The bytes are made now, by the Python object that is the skill.

        Raises:
            NotFound: The skill has no such file.
            ToolFailed: The skill's code fails.
        """
        file, found = skill.files.get(path), self._object(skill)
        if file is None:
            raise NotFound("resource", path)
        if path == MANIFEST:
            data = (manifest_of(found) or await _content(skill, found)).encode()
        else:
            data = _to_bytes(await _run_code(skill, f"give {path!r}", lambda: use_member(found, "resource", path, None, {})))
        return file, data

    async def run(self, skill: ServedSkill, function: str, args: JsonValue, ctx: CallContext) -> str:
        """Call a script (a Python function) of the skill, and return its result as text.

        Raises:
            NotFound: The skill has no such script.
            SkillError: The arguments do not fit.
            ToolFailed: The script fails.
        """
        found, given = self._object(skill), cast("ScriptArguments", args)
        value = await _run_code(skill, f"run {function!r}", lambda: use_member(found, "script", function, given, {}))
        return _to_bytes(value).decode("utf-8", errors="replace")

    def _object(self, skill: ServedSkill) -> Skill:
        if (found := self._served.get(skill.key[1])) is None:
            raise NotFound("skill", skill.id)
        return found[0]


async def _run_code(skill: ServedSkill, what: str, work: Callable[[], Awaitable[object]]) -> object:
    """Run code of a skill, and return its result. `what` names the action in the error message.

    Raises:
        GatewayError: The code raised it; it is passed on unchanged (a `SkillError` if arguments do not fit).
        ToolFailed: The code raised any other exception.
    """
    try:
        return await work()
    except GatewayError:
        raise
    except CODE_ERRORS as error:
        logger.exception("code of skill failed skill=%s action=%r", skill.id, what)
        raise ToolFailed(f"Skill {skill.name!r} could not {what}: {describe_error(error)}") from error


async def _content(skill: ServedSkill, found: Skill) -> str:
    """Return the text of a skill as a `SKILL.md`, for a skill whose class is not from `gateway.skills.objects`.

    If the text has no frontmatter, the skill's own frontmatter is put before it.
    """
    text = str(await _run_code(skill, "be loaded", found.get_content))
    return text if text.startswith("---\n") else _header(found.frontmatter) + text


def to_served(skill: Skill, reference: str) -> ServedSkill:
    """Convert a Python skill object to a skill for the skill index, from what the object declares. No function of the object is called.

    `reference` is the configured reference that names the object. A resource with an unusable name is left out, with a warning.
    """
    name, text = skill.frontmatter.name, manifest_of(skill)
    data = (text or _header(skill.frontmatter)).encode()
    document = parse_skill(data, directory=name)
    manifest = SkillFile(MANIFEST, (), (0, 0, 0, 0), "", MARKDOWN)
    files = {MANIFEST: manifest.with_content(data) if text else manifest}
    diagnostics = list(document.diagnostics)
    for resource in skill.resources if isinstance(skill, DefinedSkill) else ():
        if resource.name in files or not is_safe_name(resource.name):
            problem = f"Resource {resource.name!r} is left out: its name must be a relative path that no other resource has."
            diagnostics.append(Diagnostic("file-name", "warning", problem))
            continue
        file = replace(manifest, path=resource.name, mime_type=mime_type_of(resource.name, is_text=True))
        content = resource.content if isinstance(resource, InlineSkillResource) else None
        files[resource.name] = file if content is None else file.with_content(content.encode())
    served = ServedSkill(
        id=name,
        key=(BACKEND_ID, name),
        origin=reference,
        root_uri="",
        document=document,
        files=files,
        diagnostics=tuple(diagnostics),
        functions=tuple(map(to_member, skill.scripts if isinstance(skill, DefinedSkill) else ())),
        in_code=isinstance(skill, ClassSkill | InlineSkill),
    )
    return published(served, name) if document.conformant else served


def manifest_of(skill: Skill) -> str:
    """Return the `SKILL.md` of a Python skill object; empty if the object's class does not define the text in a known form.

    A `FileSkill` has the text of a file. For a `ClassSkill` or `InlineSkill`, the text is made of its fields and instructions.
    """
    if isinstance(skill, ClassSkill | InlineSkill):
        return f"{_header(skill.frontmatter)}{skill.instructions.rstrip()}\n"
    return skill.content if isinstance(skill, FileSkill) else ""


def _header(frontmatter: SkillFrontmatter) -> str:
    """Return the frontmatter of a skill that is a Python object as the YAML with which a `SKILL.md` begins.

    Values are quoted as in JSON, which YAML allows.
    """
    fields = {
        "name": frontmatter.name,
        "description": frontmatter.description,
        "license": frontmatter.license,
        "compatibility": frontmatter.compatibility,
        "allowed-tools": frontmatter.allowed_tools,
    }
    lines = [f"{key}: {_quoted(value)}" for key, value in fields.items() if value is not None]
    if frontmatter.metadata:
        lines += ["metadata:", *(f"  {_quoted(key)}: {_quoted(value)}" for key, value in frontmatter.metadata.items())]
    return "\n".join(["---", *lines, "---", ""])


def _quoted(text: str) -> str:
    return text if NAME.fullmatch(text) and not text.isdigit() else json.dumps(text, ensure_ascii=False)


def _to_bytes(value: object) -> bytes:
    """Convert the result of a skill's function to bytes: text to UTF-8, and any value other than text or bytes to JSON."""
    if isinstance(value, bytes | bytearray):
        return bytes(value)
    return value.encode() if isinstance(value, str) else to_json(value, fallback=str)


def _skills_in(value: object) -> list[Skill | SkillsSource]:
    """Return the skills and skill sources in a Python value; empty if it has none.

    A skill or skill source is returned itself. For a skill class, a new instance is returned; for a list, the skills and skill sources in
    its items.

    Raises:
        ConfigError: Creating an instance of the skill class fails.
    """
    if isinstance(value, Skill | SkillsSource):
        return [value]
    if isclass(value) and issubclass(value, Skill) and not isabstract(value):
        try:
            return [value()]
        except CODE_ERRORS as error:  # the operator's own class
            raise ConfigError(f"Creating {value.__name__} failed: {type(error).__name__}: {error}", path=value.__name__) from error
    if isinstance(value, list | tuple):
        return [skill for item in cast("Sequence[object]", value) for skill in _skills_in(item)]
    return []


def _own_values(module: ModuleType) -> list[object]:
    """Return the values of a module's variables, which are searched for skills. Classes that the module imports are left out."""
    return [v for v in vars(module).values() if not isclass(v) or v.__module__ == module.__name__]


def _refused(reference: str, code: str, message: str) -> SkillReport:
    return SkillReport(reference, "", "rejected", False, (Diagnostic(code, "error", message),))

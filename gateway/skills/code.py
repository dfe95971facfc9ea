"""`CodeSkills`: skills that are Python objects, served like folders are.

`skills.objects` of the configuration names them; what they are made of is `objects`'. Their text becomes a `SKILL.md` of
its own, so every surface and digest works as for a folder; what a function gives is made at each read. Functions run in
this process: they are the operator's own code, as those of `expose.functions` are.
"""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from inspect import isabstract, isclass
from pathlib import Path
from types import ModuleType
from typing import cast

from pydantic_core import to_json

from gateway.diagnostics import Diagnostic
from gateway.errors import CODE_ERRORS, ConfigError, GatewayError, NotFound, SkillError, ToolFailed, said_by
from gateway.json_types import JsonValue
from gateway.policy.skills import NAME, is_safe_name
from gateway.skills.index import SOURCE_ID, own_uri, published
from gateway.skills.mime import MARKDOWN, mime_type_of
from gateway.skills.models import MANIFEST, MAX_SKILL_BYTES, SkillFile, SkillFunction, SkillReport
from gateway.skills.models import Skill as Served
from gateway.skills.objects.class_skill import ClassSkill
from gateway.skills.objects.frontmatter import SkillFrontmatter
from gateway.skills.objects.inline import InlineSkill
from gateway.skills.objects.members import InlineSkillResource, ScriptRefused
from gateway.skills.objects.skill import FileSkill, ScriptArguments, Skill, SkillResource, SkillScript
from gateway.skills.objects.sources import SkillsSource, fetch
from gateway.skills.parser import parse_skill
from gateway.tools.context import CallContext
from gateway.tools.functions_source import import_from, import_object

logger = logging.getLogger(__name__)

MAX_ATTEMPTS = 3
"""How often a read starts over when an object changes under it."""

HOME_ID = "code:"
"""First part of the keys of these skills; no folder's path ends in a colon without a separator before it."""


class CodeSkills:
    """Implements `SkillHome`. `start` imports the objects; a `SkillsSource` among them is asked again at each `refresh`."""

    def __init__(self, references: Sequence[str], *, base_dir: Path, strict: bool = False) -> None:
        """`references` are `module` or `module:name`, looked for in `base_dir` first. No side effects."""
        self._references = list(dict.fromkeys(references))
        self._base_dir = base_dir
        self._strict = strict
        self._found: list[tuple[str, Skill | SkillsSource]] = []
        self._objects: dict[str, Skill] = {}
        self._skills: tuple[Served, ...] = ()
        self._on_change: Callable[[], None] = lambda: None
        self._failed: list[SkillReport] = []
        self.problems: list[SkillReport] = []
        """What could not be served, or with a warning."""

    @property
    def id(self) -> str:
        """Always `code:`."""
        return HOME_ID

    @property
    def skills(self) -> Sequence[Served]:
        """As last seen, in the order of the configuration."""
        return self._skills

    def subscribe(self, on_change: Callable[[], None]) -> None:
        """Register the library."""
        self._on_change = on_change

    async def start(self) -> None:
        """Import everything; what fails is noted in `problems` and the rest is served."""
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
            raise ConfigError("There is no skill; name a Skill, a class of one, a list or a SkillsSource.", path=reference)
        return found

    async def refresh(self) -> None:
        """Ask the sources again and read every skill; one whose code fails is left out until it works."""
        objects: dict[str, Skill] = {}
        served: list[Served] = []
        problems = list(self._failed)
        for reference, found in self._found:
            try:
                given = await fetch(found, None) if isinstance(found, SkillsSource) else [found]
                for skill in given:
                    self._take(reference, skill, objects, served, problems)
            except CODE_ERRORS as error:  # the skill's own code, whatever it raises
                failure = _refused(reference, "code-failed", f"Reading it failed: {type(error).__name__}: {error}")
                if failure not in self.problems:
                    logger.warning("skills of %s could not be read", reference, exc_info=error)
                problems.append(failure)
                served += [s for s in self._skills if s.origin == reference and s.key[1] not in objects]
                objects |= {s.key[1]: self._objects[s.key[1]] for s in served if s.key[1] not in objects}
        self._objects, self.problems = objects, problems
        if tuple(served) != self._skills:
            self._skills = tuple(served)
            self._on_change()

    def _take(
        self, reference: str, skill: Skill, objects: dict[str, Skill], served: list[Served], problems: list[SkillReport]
    ) -> None:
        name = skill.frontmatter.name
        if name in objects:
            problems.append(_refused(reference, "name-taken", f"Another skill in code is called {name!r}; rename one."))
            return
        made = to_served(skill, reference)
        levels = {d.level for d in made.diagnostics}
        if "error" in levels or (self._strict and "warning" in levels):
            problems.append(SkillReport(reference, name, "rejected", False, made.diagnostics))
            return
        if "warning" in levels:
            problems.append(SkillReport(reference, name, "accepted_with_warning", made.is_listed, made.diagnostics))
        objects[name] = skill
        served.append(made)

    async def ready(self) -> None:
        """It is, once started."""

    async def renew(self, skill: Served, ctx: CallContext) -> Served:
        """The skill with its text as it is now. Raises `NotFound`; `ToolFailed` where its code fails."""
        found = self._object(skill)
        if not skill.manifest.is_dynamic:
            return (await self.read(skill, MANIFEST, ctx))[0]
        document = parse_skill((await _content(skill, found)).encode(), directory=skill.document.name)
        return replace(skill, document=replace(skill.document, text=document.text, body_start=document.body_start))

    async def read(self, skill: Served, path: str, ctx: CallContext) -> tuple[Served, SkillFile, bytes]:
        """The bytes of a resource, or of its `SKILL.md`. Raises `NotFound`; `ToolFailed` where its code fails."""
        for _ in range(MAX_ATTEMPTS):
            file = skill.files.get(path)
            if file is None:
                raise NotFound("resource", path)
            data = await self._bytes_of(skill, file)
            if len(data) > MAX_SKILL_BYTES:
                text = f"{path!r} of skill {skill.id!r} gave {len(data)} bytes, {MAX_SKILL_BYTES} are allowed."
                raise SkillError(text, code="too-large")
            now = _described(file, data)
            if file.is_dynamic or now.digest == file.digest:
                return skill, now, data
            await self.refresh()  # the object was changed
            skill = self._renewed(skill)
        raise SkillError(f"{path!r} of skill {skill.id!r} keeps changing; try again.", code="unstable")

    async def _bytes_of(self, skill: Served, file: SkillFile) -> bytes:
        found = self._object(skill)
        if file.path == MANIFEST:
            return (await _content(skill, found) if file.is_dynamic else manifest_of(found)).encode()
        resource = await found.get_resource(file.path)
        if resource is None:
            raise NotFound("resource", file.path)
        return _bytes(await _of_skill(skill, f"give {file.path!r}", resource.read))

    def _renewed(self, skill: Served) -> Served:
        """The skill as last read, under the names that it was given."""
        now = next((s for s in self._skills if s.key == skill.key), None)
        if now is None:
            raise NotFound("skill", skill.id)
        return published(now, skill.id) if now.is_listed else now

    def place_of(self, skill: Served, path: str) -> tuple[str, str]:
        """The gateway's own source, and the URI of the file there."""
        return SOURCE_ID, own_uri(skill, path)

    async def run(self, skill: Served, function: str, args: JsonValue, ctx: CallContext) -> str:
        """Call a script. Raises `SkillError` for arguments that do not fit, `ToolFailed` where it fails."""
        found = self._object(skill)
        script = await found.get_script(function)
        if script is None:
            raise NotFound("script", function)
        given = cast("ScriptArguments", args)
        value = await _of_skill(skill, f"run {function!r}", lambda: script.run(found, given))
        return _bytes(value).decode("utf-8", errors="replace")

    def _object(self, skill: Served) -> Skill:
        found = self._objects.get(skill.key[1])
        if found is None:
            raise NotFound("skill", skill.id)
        return found


async def _of_skill(skill: Served, what: str, work: Callable[[], Awaitable[object]]) -> object:
    """The result of a skill's own code. Raises `SkillError` for a call that does not fit, `ToolFailed` for any failure."""
    try:
        return await work()
    except GatewayError:
        raise
    except ScriptRefused as error:
        raise SkillError(str(error), code="script-arguments") from None
    except CODE_ERRORS as error:  # the skill's own code
        logger.exception("skill %s could not %s", skill.id, what)
        raise ToolFailed(f"Skill {skill.name!r} could not {what}: {said_by(error)}") from error


async def _content(skill: Served, found: Skill) -> str:
    """The text of a skill whose class we do not know, as a `SKILL.md`."""
    text = str(await _of_skill(skill, "be loaded", found.get_content))
    return text if text.startswith("---\n") else _header(found.frontmatter) + text


def to_served(skill: Skill, reference: str) -> Served:
    """A skill in code as the index holds it. What it says about itself is asked for now, its functions are not called."""
    name = skill.frontmatter.name
    is_known = isinstance(skill, ClassSkill | FileSkill | InlineSkill)
    data = (manifest_of(skill) if is_known else _header(skill.frontmatter)).encode()
    document = parse_skill(data, directory=name)
    resources: Sequence[SkillResource] = skill.resources if is_known else ()
    scripts: Sequence[SkillScript] = skill.scripts if is_known else ()
    blank = SkillFile(MANIFEST, (), (0, 0, 0, 0), "", MARKDOWN, is_text=True, is_script=False, is_settled=True)
    files = {MANIFEST: _described(blank, data) if is_known else blank}
    diagnostics = list(document.diagnostics)
    for resource in resources:
        if resource.name in files or not is_safe_name(resource.name):
            text = f"Resource {resource.name!r} is left out: its name must be a path in the skill, and no other\'s."
            diagnostics.append(Diagnostic("file-name", "warning", text))
            continue
        file = replace(blank, path=resource.name, mime_type=mime_type_of(resource.name, is_text=True))
        content = resource.content if isinstance(resource, InlineSkillResource) else None
        files[resource.name] = file if content is None else _described(file, content.encode())
    functions = tuple(SkillFunction(s.name, s.description or "", s.parameters_schema) for s in scripts)
    served = Served(
        id=name,
        key=(HOME_ID, name),
        origin=reference,
        root_uri="",
        document=document,
        files=files,
        diagnostics=tuple(diagnostics),
        functions=functions,
        in_code=is_known and not isinstance(skill, FileSkill),
    )
    return published(served, name) if document.conformant else served


def manifest_of(skill: Skill) -> str:
    """The `SKILL.md` of a skill whose text is known: a file\'s own, or its fields and instructions."""
    if isinstance(skill, FileSkill):
        return skill.content
    assert isinstance(skill, ClassSkill | InlineSkill)
    return f"{_header(skill.frontmatter)}{skill.instructions.rstrip()}\n"


def _header(frontmatter: SkillFrontmatter) -> str:
    """The fields as YAML. JSON\'s quoting is YAML\'s."""
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


def _described(file: SkillFile, data: bytes) -> SkillFile:
    """A file with what is known of its bytes; one that is made at each read stays without a digest."""
    try:
        data.decode("utf-8")
        is_text = True
    except UnicodeDecodeError:
        is_text = False
    digest = f"sha256:{hashlib.sha256(data).hexdigest()}"
    return replace(file, stamp=(len(data), 0, 0, 0), digest=digest, is_text=is_text)


def _bytes(value: object) -> bytes:
    """What a function gave: bytes and texts as they are, anything else as JSON."""
    if isinstance(value, bytes | bytearray):
        return bytes(value)
    return value.encode() if isinstance(value, str) else to_json(value, fallback=str)


def _skills_in(value: object) -> list[Skill | SkillsSource]:
    """The skills that a named object is, or holds."""
    if isinstance(value, Skill | SkillsSource):
        return [value]
    if isclass(value) and issubclass(value, Skill) and not isabstract(value):
        try:
            return [value()]
        except CODE_ERRORS as error:  # the operator's own class
            raise ConfigError(f"Making a {value.__name__} failed: {type(error).__name__}: {error}", path=value.__name__) from error
    if isinstance(value, list | tuple):
        return [skill for item in cast("Sequence[object]", value) for skill in _skills_in(item)]
    return []


def _own_values(module: ModuleType) -> list[object]:
    """The skills that a module makes itself: objects, and classes that it defines."""
    return [v for v in vars(module).values() if not isclass(v) or v.__module__ == module.__name__]


def _refused(reference: str, code: str, message: str) -> SkillReport:
    return SkillReport(reference, "", "rejected", False, (Diagnostic(code, "error", message),))

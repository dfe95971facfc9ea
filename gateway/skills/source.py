"""`SkillSource`: folders of skills as a `Source`: three tools, resources, prompts, completion.

Shapes what the library's index says for MCP and tells the catalog when a list changed. Parsing, disk access and
texts live in the modules beside it. `app` makes one, enters it, and hands `extension` to the server and
`instructions` to the agents.
"""

from __future__ import annotations

import base64
import json
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import anyio
from anyio.abc import TaskGroup

from gateway.config.skills import SignatureRule
from gateway.errors import NotFound
from gateway.json_types import JsonMapping, JsonObject, JsonValue
from gateway.skills.extension import SkillsExtension, resource_wire
from gateway.skills.index import SCHEME, SOURCE_ID, SkillIndex
from gateway.skills.library import SkillLibrary
from gateway.skills.mime import MARKDOWN
from gateway.skills.models import Skill, SkillReport
from gateway.skills.provider import find_named, skill_instructions
from gateway.skills.render import load, one_line
from gateway.skills.tools import LoadSkill, ReadSkillResource, SearchSkills
from gateway.telemetry.events import EventStream
from gateway.tools.base import ChangeKind, Finished, Kind, OnChange, SkillMethod, Tool
from gateway.tools.context import CallContext

if TYPE_CHECKING:  # imported when a script can run
    from gateway.skills.code import CodeSkills
    from gateway.skills.run_tool import RunSkillScript
    from gateway.skills.scripts import ScriptRunner

INDEX_URI = "skill://index.json"
"""The listing of the draft of SEP-2640; still the only one that Microsoft's agent framework reads."""

TEMPLATE = "skill://{+path}"

MAX_COMPLETIONS = 100
"""Values per completion (MCP, `completion/complete`)."""


@dataclass(frozen=True, slots=True)
class SkillRules:
    """The operator's rules for which skills are served and how agents are told of them."""

    keeps: Callable[[str], bool] | None = None
    """A skill whose id it refuses is not served."""
    signed: Mapping[str, SignatureRule] | None = None
    """Roots whose skills must be signed."""
    instruction_template: str | None = None
    """A usable one (`config.templates`)."""


class SkillSource:
    """Serves the skills below `paths`. Entering reads them; leaving stops watching."""

    def __init__(
        self,
        paths: Sequence[Path],
        *,
        strict: bool = False,
        refresh_seconds: float = 5.0,
        scripts: ScriptRunner | None = None,
        state_folder: Path | None = None,
        code: CodeSkills | None = None,
        events: EventStream | None = None,
        rules: SkillRules | None = None,
    ) -> None:
        """No side effects.

        `strict` refuses what is otherwise served with a warning. Changes on disk are looked for every
        `refresh_seconds`; with 0, on every use and not in between. Without `scripts` no file can run. What was read is kept
        in `state_folder` for the next start. `code` are skills that are Python objects. Runs of scripts are told to
        `events`.
        """
        rules = rules or SkillRules()
        self.library = SkillLibrary(
            paths,
            strict=strict,
            refresh_seconds=refresh_seconds,
            state_folder=state_folder,
            homes=[code] if code is not None else (),
            keeps=rules.keeps,
            signed=rules.signed,
        )
        self._scripts = scripts
        self._code = code
        self._template = rules.instruction_template
        self.extension = SkillsExtension(self.library)
        self._refresh_seconds = refresh_seconds
        self._tasks: TaskGroup | None = None
        self._on_change: OnChange | None = None
        self._on_update: Callable[[str], None] | None = None
        self._watched: Counter[str] = Counter()
        self._search = SearchSkills(self.library)
        self._read = ReadSkillResource(self.library)
        self._run: RunSkillScript | None = None
        self._events = events
        self._tools: list[Tool] = []
        self._lists: dict[Kind, list[JsonObject]] = {"resources": [], "templates": [], "prompts": []}
        self.library.subscribe(self._swapped)

    @property
    def id(self) -> str:
        """Always `skill`."""
        return SOURCE_ID

    async def __aenter__(self) -> SkillSource:
        """Read every skill, see whether scripts can run, and start watching."""
        if self._scripts is not None:
            await self._scripts.start()
        if self._code is not None:
            await self._code.start()
        await self.library.refresh()
        if self._refresh_seconds > 0:
            self._tasks = anyio.create_task_group()
            await self._tasks.__aenter__()
            self._tasks.start_soon(self.library.watch)
        return self

    async def __aexit__(self, *exc: object) -> None:
        if self._tasks is not None:
            tasks, self._tasks = self._tasks, None
            tasks.cancel_scope.cancel()
            await tasks.__aexit__(None, None, None)
        with anyio.CancelScope(shield=True):
            await self.library.keep()

    # -- what is here ------------------------------------------------------------------------------------------

    @property
    def index(self) -> SkillIndex:
        """The skills as last read."""
        return self.library.index

    @property
    def problems(self) -> list[SkillReport]:
        """Every folder that is refused, or served with a warning, with its diagnostics."""
        index = self.index
        in_code = self._code.problems if self._code is not None else []
        return [*index.trouble, *(r for r in index.reports if r.verdict != "accepted"), *in_code]

    @property
    def entries(self) -> list[JsonMapping]:
        """`{uri, frontmatter, resources}` of every listed skill (SEP-2640), sorted by URI. Shared: do not change them."""
        return [skill.entry for skill in self.index.listed]

    async def refresh(self) -> None:
        """Look for changes on disk now."""
        await self.library.refresh()

    def instructions(self, names: Sequence[str]) -> str:
        """What to tell an agent that has the skills `names`; see `skill_instructions`."""
        return skill_instructions(self.index, names, self._template)

    def wishes(self, names: Sequence[str]) -> Sequence[JsonValue]:
        """The `allowed-tools` of skills as written, `None` where it is not; see `find_named` for what it raises."""
        return [skill.document.frontmatter.get("allowed-tools") for skill in find_named(self.index, names)]

    # -- Source ------------------------------------------------------------------------------------------------

    async def tools(self) -> Sequence[Tool]:
        """The three tools, and the fourth where scripts can run; none while there is no skill for models."""
        return list(self._tools)

    def subscribe(self, on_change: OnChange) -> None:
        """Register the catalog."""
        self._on_change = on_change

    def subscribe_updates(self, on_update: Callable[[str], None]) -> None:
        """Register who hears that a watched file changed."""
        self._on_update = on_update

    async def list(self, kind: Kind) -> Sequence[JsonObject]:
        """`SKILL.md` of every listed skill (other files are readable, not listed), one template, one prompt per skill."""
        return list(self._lists[kind])

    async def read(self, uri: str, ctx: CallContext) -> Finished:
        """The raw bytes of a file: text exactly as stored where it is UTF-8, else base64. Raises `NotFound`."""
        index = await self.library.current()
        if uri == INDEX_URI and index.has_uris:
            text = json.dumps(_legacy_index(index), ensure_ascii=False)
            return Finished({"contents": [{"uri": uri, "mimeType": "application/json", "text": text}]})
        found = index.by_file.get(uri)
        if found is None:
            raise NotFound("resource", uri)
        try:
            skill, file, data = await self.library.read(found[0], found[1].path, ctx)
        except NotFound:
            raise NotFound("resource", uri) from None
        if skill.root_uri != found[0].root_uri:
            raise NotFound("resource", uri)
        content: JsonObject = {"uri": uri, "mimeType": resource_wire(skill, file)["mimeType"]}
        if file.is_text:
            content["text"] = data.decode("utf-8")
        else:
            content["blob"] = base64.b64encode(data).decode()
        return Finished({"contents": [content]})

    @property
    def serves_skills(self) -> bool:
        """Always: a folder without skills is an empty list (`SkillServing`)."""
        return True

    @property
    def reads_directories(self) -> bool:
        """Always."""
        return True

    async def skills(self, method: SkillMethod, params: JsonObject, ctx: CallContext) -> JsonObject:
        """One request of the skills extension."""
        uri, cursor = str(params.get("uri") or ""), params.get("cursor")
        cursor = cursor if isinstance(cursor, str) else None
        match method:
            case "skills/list":
                return await self.extension.list_page(cursor)
            case "skills/get":
                return await self.extension.get(uri, ctx)
            case "resources/directory/read":
                return await self.extension.directory(uri, cursor)

    async def get_prompt(self, name: str, arguments: Mapping[str, str], ctx: CallContext) -> Finished:
        """The text of `load_skill` as a user message. Raises `NotFound`."""
        index = await self.library.current()
        skill = next((s for s in index.skills if prompt_name(s) == name), None)
        if skill is None:
            raise NotFound("prompt", name)
        try:
            skill = await self.library.recheck(skill, ctx)
        except NotFound:
            raise NotFound("prompt", name) from None
        text = load(self.index, skill).text
        message: JsonObject = {"role": "user", "content": {"type": "text", "text": text}}
        return Finished({"description": one_line(skill.document.description), "messages": [message]})

    async def complete(self, ref: JsonObject, argument: JsonObject, context: JsonObject | None, ctx: CallContext) -> JsonObject:
        """Paths for the template: skills first, the files of one once its name is typed. Prompts have no arguments."""
        values: list[str] = []
        if ref.get("type") == "ref/resource" and ref.get("uri") == TEMPLATE and argument.get("name") == "path":
            typed = str(argument.get("value") or "")
            index = await self.library.current()
            manifests = [f"{skill.uri}".removeprefix(SCHEME) for skill in index.listed]
            paths = manifests if "/" not in typed else [uri.removeprefix(SCHEME) for uri in index.by_file]
            values = sorted(path for path in paths if path.startswith(typed))
        shown = values[:MAX_COMPLETIONS]
        return {"values": shown, "total": len(values), "hasMore": len(values) > len(shown)}

    async def watch(self, uri: str) -> None:
        """Follow a file. Raises `NotFound`."""
        if uri not in self.index.by_file and uri != INDEX_URI:
            raise NotFound("resource", uri)
        self._watched[uri] += 1

    async def unwatch(self, uri: str) -> None:
        """Undo one `watch`."""
        self._watched[uri] -= 1
        self._watched += Counter()

    # -- changes -----------------------------------------------------------------------------------------------

    def _swapped(self, old: SkillIndex, new: SkillIndex) -> None:
        """Rebuild the lists and tell who listens about those that differ."""
        changed: list[ChangeKind] = []
        if self._renew_tools(new):
            changed.append("tools")
        lists = _lists(new)
        if lists["resources"] != self._lists["resources"]:
            changed.append("resources")
        if lists["prompts"] != self._lists["prompts"]:
            changed.append("prompts")
        self._lists = lists
        if self._on_change is not None:
            for kind in changed:
                self._on_change(kind)
        if self._on_update is not None:
            for uri in list(self._watched):
                if _version(old, uri) != _version(new, uri):
                    self._on_update(uri)

    def _renew_tools(self, index: SkillIndex) -> bool:
        """Make `load_skill` anew where its catalogue differs; whether the list of tools changed."""
        if not index.for_models:
            had, self._tools = bool(self._tools), []
            return had
        load_skill = LoadSkill(self.library, index)
        runs = (self._scripts is not None and self._scripts.is_offered) or any(s.functions for s in index.for_models)
        had_run = bool(self._tools) and self._tools[-1] is self._run
        if self._tools and self._tools[1].definition == load_skill.definition and had_run == runs:
            return False
        self._tools = [self._search, load_skill, self._read, *([self._running()] if runs else [])]
        return True

    def _running(self) -> RunSkillScript:
        if self._run is None:
            from gateway.skills.run_tool import RunSkillScript

            self._run = RunSkillScript(self.library, self._scripts, self._events)
        return self._run


def _lists(index: SkillIndex) -> dict[Kind, list[JsonObject]]:
    resources = [resource_wire(skill, skill.manifest) for skill in index.listed]
    templates: list[JsonObject] = []
    if index.has_uris:
        note = "Every skill, in the form of the draft of SEP-2640."
        resources.append({"uri": INDEX_URI, "name": "index.json", "description": note, "mimeType": "application/json"})
    if index.listed:
        note = "Any file of a skill: <skill>/<path>."
        templates.append({"uriTemplate": TEMPLATE, "name": "skill-file", "description": note})
    prompts: list[JsonObject] = [{"name": prompt_name(s), "description": one_line(s.document.description)} for s in index.skills]
    return {"resources": resources, "templates": templates, "prompts": prompts}


def prompt_name(skill: Skill) -> str:
    """The id; its slashes as prompts of a source with a prefix have them, since a name of MCP may not have any."""
    return skill.id.replace("/", "__")


def _legacy_index(index: SkillIndex) -> JsonObject:
    """Without skills kept from models: a reader of this form offers all of them to its model."""
    return {"skills": [_legacy_entry(skill) for skill in index.for_models if skill.is_listed]}


def _legacy_entry(skill: Skill) -> JsonObject:
    wire: JsonObject = {"name": skill.name, "type": "skill-md", "description": skill.document.description, "url": skill.uri}
    return {**wire, **({"digest": skill.manifest.digest} if skill.manifest.digest else {}), "mimeType": MARKDOWN}


def _version(index: SkillIndex, uri: str) -> object:
    """Something that differs when the content behind `uri` does."""
    if uri == INDEX_URI:
        return _legacy_index(index)
    found = index.by_file.get(uri)
    return found[1].digest if found else None

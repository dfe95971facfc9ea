"""`SkillSource`: the tool source that serves skills to MCP clients as tools, resources, prompts and completions.

It converts the library's index to MCP listings and calls the catalog back when a listing changes. `app` creates and enters it, and gives
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

from gateway.config.skill_settings import SignatureRule
from gateway.errors import NotFound
from gateway.json_types import JsonObject, JsonValue
from gateway.skills.extension import SkillsExtension, resource_wire
from gateway.skills.index import SCHEME, SOURCE_ID, SkillIndex
from gateway.skills.library import SkillLibrary
from gateway.skills.lookup import skills_of_file
from gateway.skills.mime import MARKDOWN
from gateway.skills.model import Skill, SkillReport
from gateway.skills.remote import INDEX_URI
from gateway.skills.render import load, one_line, skill_instructions
from gateway.skills.skill_tools import LoadSkill, ReadSkillResource, SearchSkills
from gateway.telemetry.gateway_events import EventStream
from gateway.tools.base import ChangeKind, Finished, Kind, OnChange, SkillMethod, Tool
from gateway.tools.context import CallContext

if TYPE_CHECKING:  # imported only if a script can run
    from gateway.skills.code import CodeSkills
    from gateway.skills.run_tool import RunSkillScript
    from gateway.skills.scripts import ScriptRunner

TEMPLATE = "skill://{+path}"

MAX_COMPLETIONS = 100
"""Maximum number of values per completion (MCP, `completion/complete`)."""


@dataclass(frozen=True, slots=True)
class SkillRules:
    """The operator's rules for which skills are served, and how agents' instructions name them."""

    keeps: Callable[[str], bool] | None = None
    """Returns whether the skill with an id is served; `None` serves all skills."""
    signed: Mapping[str, SignatureRule] | None = None
    """Root folder → signature rule, for folders whose skills must be signed."""
    instruction_template: str | None = None
    """Template of the text that names the skills to an agent. Has the placeholder `{skills}`; `None` for the default template."""


class SkillSource:
    """Serves the skills below `paths` and those in code. Entering the context reads the skills; leaving it writes the index cache."""

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
        """Store the settings. Nothing is read before the context is entered.

        `strict` refuses skills that are otherwise served with a warning. The source looks for changes on disk every `refresh_seconds`;
        with 0 only at every use. Without `scripts` no script file can run. The index is cached in `state_folder` for the next start.
        `code` has the skills that are Python objects. Runs of scripts are emitted to `events`.
        """
        rules = rules or SkillRules()
        self.library = SkillLibrary(
            paths,
            strict=strict,
            refresh_seconds=refresh_seconds,
            state_folder=state_folder,
            backends=[code] if code is not None else (),
            keeps=rules.keeps,
            signed=rules.signed,
        )
        self._scripts = scripts
        self._code = code
        self._template = rules.instruction_template
        self.extension = SkillsExtension(self.library)
        self._refresh_seconds = refresh_seconds
        self._tasks: TaskGroup | None = None
        self._on_change: OnChange = lambda _: None
        self._on_update: Callable[[str], None] = lambda _: None
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
        """Test whether scripts can run, read every skill, and start watching."""
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
            await self.library.store()

    @property
    def index(self) -> SkillIndex:
        """The index that was built last."""
        return self.library.index

    @property
    def problems(self) -> list[SkillReport]:
        """One report per skill or root folder that is refused or served with a warning."""
        index = self.index
        in_code = self._code.problems if self._code is not None else []
        return [*index.trouble, *(r for r in index.reports if r.verdict != "accepted"), *in_code]

    async def refresh(self) -> None:
        """Check every folder and backend now."""
        await self.library.refresh()

    def instructions(self, names: Sequence[str]) -> str:
        """Return the part of an agent's instructions that names its skills. Raises `SkillError` for an unknown or ambiguous name."""
        return skill_instructions(self.index, skills_of_file(self.index, names), self._template)

    def allowed_tools(self, names: Sequence[str]) -> Sequence[JsonValue]:
        """Return `allowed-tools` of each named skill, `None` if it has none. Raises `SkillError` for an unknown or ambiguous name."""
        return [skill.document.frontmatter.get("allowed-tools") for skill in skills_of_file(self.index, names)]

    async def tools(self) -> Sequence[Tool]:
        """Return the skill tools, with `run_skill_script` only if scripts can run; an empty list if models may see no skill."""
        return list(self._tools)

    def subscribe(self, on_change: OnChange) -> None:
        """Register the callback for changed lists. It replaces a callback registered earlier."""
        self._on_change = on_change

    def subscribe_updates(self, on_update: Callable[[str], None]) -> None:
        """Register the callback that is called with the URI of a watched file that has changed."""
        self._on_update = on_update

    async def list(self, kind: Kind) -> Sequence[JsonObject]:
        """List resources (`SKILL.md` of every listed skill, and the index), the one template for all files, or a prompt per skill."""
        return list(self._lists[kind])

    async def read(self, uri: str, ctx: CallContext) -> Finished:
        """Return the raw bytes of a file: as text if they are UTF-8, else as base64. Raises `NotFound`."""
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
        """Always true: the skills extension is supported even while there are no skills."""
        return True

    @property
    def reads_directories(self) -> bool:
        """Always true: `resources/directory/read` is supported."""
        return True

    async def skills(self, method: SkillMethod, params: JsonObject, ctx: CallContext) -> JsonObject:
        """Answer a request of the skills extension (`skills/list`, `skills/get`, `resources/directory/read`)."""
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
        """Return the prompt of a skill: one user message with the text that `load_skill` returns. Raises `NotFound`."""
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
        """Complete the path in the template: before the first slash with skills, after it with files. Prompts have no arguments."""
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
        """Start to watch a skill's file; changes go to the callback of `subscribe_updates`. Raises `NotFound`."""
        if uri not in self.index.by_file and uri != INDEX_URI:
            raise NotFound("resource", uri)
        self._watched[uri] += 1

    async def unwatch(self, uri: str) -> None:
        """End a watch that `watch` started."""
        self._watched[uri] -= 1
        self._watched += Counter()

    def _swapped(self, old: SkillIndex, new: SkillIndex) -> None:
        """Rebuild the lists after a change of the index, and call the callbacks for changed lists and changed watched files."""
        changed: list[ChangeKind] = []
        if self._renew_tools(new):
            changed.append("tools")
        lists = _lists(new)
        if lists["resources"] != self._lists["resources"]:
            changed.append("resources")
        if lists["prompts"] != self._lists["prompts"]:
            changed.append("prompts")
        self._lists = lists
        for kind in changed:
            self._on_change(kind)
        for uri in list(self._watched):
            if _version(old, uri) != _version(new, uri):
                self._on_update(uri)

    def _renew_tools(self, index: SkillIndex) -> bool:
        """Create `load_skill` again if the skills in its description changed; return whether the list of tools changed."""
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
        note = "All skills, in the format of the draft of SEP-2640."
        resources.append({"uri": INDEX_URI, "name": "index.json", "description": note, "mimeType": "application/json"})
    if index.listed:
        note = "Any file of a skill: <skill>/<path>."
        templates.append({"uriTemplate": TEMPLATE, "name": "skill-file", "description": note})
    prompts: list[JsonObject] = [{"name": prompt_name(s), "description": one_line(s.document.description)} for s in index.skills]
    return {"resources": resources, "templates": templates, "prompts": prompts}


def prompt_name(skill: Skill) -> str:
    """Return the name of a skill's prompt: its id with `__` for each slash, which names in MCP may not have."""
    return skill.id.replace("/", "__")


def _legacy_index(index: SkillIndex) -> JsonObject:
    """Return the skills that models may see, in the format of SEP-2640's draft, whose clients offer every entry to their model."""
    return {"skills": [_legacy_entry(skill) for skill in index.for_models if skill.is_listed]}


def _legacy_entry(skill: Skill) -> JsonObject:
    wire: JsonObject = {"name": skill.name, "type": "skill-md", "description": skill.document.description, "url": skill.uri}
    return {**wire, **({"digest": skill.manifest.digest} if skill.manifest.digest else {}), "mimeType": MARKDOWN}


def _version(index: SkillIndex, uri: str) -> object:
    """Return a value that changes with the content of `uri`."""
    if uri == INDEX_URI:
        return _legacy_index(index)
    found = index.by_file.get(uri)
    return found[1].digest if found else None

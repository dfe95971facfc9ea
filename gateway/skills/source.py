"""`SkillSource`: the tool source that serves skills to MCP clients as tools, resources, prompts and completions.

It converts the skill library's index to MCP listings, and calls the catalog's callback when a listing changes. `app` creates and enters the
source, and passes `instructions` to the agents.
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

if TYPE_CHECKING:  # modules that are imported only if a script can run
    from gateway.skills.code import CodeSkills
    from gateway.skills.run_tool import RunSkillScript
    from gateway.skills.scripts import ScriptRunner

TEMPLATE = "skill://{+path}"

MAX_COMPLETIONS = 100
"""Maximum number of values in a result of `completion/complete`, as MCP requires."""


@dataclass(frozen=True, slots=True)
class SkillRules:
    """The operator's rules: which skills are served, which must be signed, and how the instructions of agents list their skills."""

    keeps: Callable[[str], bool] | None = None
    """Receives the id of a skill and returns whether the skill is served; `None` serves all skills."""
    signed: Mapping[str, SignatureRule] | None = None
    """Folder that is searched for skills → the signature rule for its skills. Skills of other folders need no signature."""
    instruction_template: str | None = None
    """Template of the text that lists the skills for an agent, with the placeholder `{skills}`; `None` for the default template."""


class SkillSource:
    """Serves the skills in folders and in Python objects to MCP clients.

    The tools and prompts also serve skills of remote servers, if a backend that provides them was added to `library`. Entering
    the context reads the skills and starts to watch the folders; leaving it writes the cache file of the skill index.
    """

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

        `strict` refuses skills that are otherwise served with a warning. Folders are checked for changes every `refresh_seconds`; with 0,
        only at every use. Without `scripts`, no script file can run. The skill index is cached in `state_folder` for the next start. `code`
        provides the skills that are Python objects. Runs of scripts are reported to `events`, from which the audit log is written.
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
        """The id of this source: always `skill`."""
        return SOURCE_ID

    async def __aenter__(self) -> SkillSource:
        """Test whether scripts can run, read every skill, and start to watch the folders for changes."""
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
        """The index of all skills that was built last."""
        return self.library.index

    @property
    def problems(self) -> list[SkillReport]:
        """One report per skill or root folder (a folder searched for skills) that is refused or served with a warning."""
        index = self.index
        in_code = self._code.problems if self._code is not None else []
        return [*index.trouble, *(r for r in index.reports if r.verdict != "accepted"), *in_code]

    async def refresh(self) -> None:
        """Check every skill folder and every other provider of skills for changes now."""
        await self.library.refresh()

    def instructions(self, names: Sequence[str]) -> str:
        """Return the part of an agent's instructions that lists the skills with these names.

        Raises:
            SkillError: A name is unknown or fits several skills.
        """
        return skill_instructions(self.index, skills_of_file(self.index, names), self._template)

    def allowed_tools(self, names: Sequence[str]) -> Sequence[JsonValue]:
        """Return the frontmatter field `allowed-tools` of each skill in `names`; `None` for a skill without this field.

        Raises:
            SkillError: A name is unknown or fits several skills.
        """
        return [skill.document.frontmatter.get("allowed-tools") for skill in skills_of_file(self.index, names)]

    async def tools(self) -> Sequence[Tool]:
        """Return the tools for skills, with `run_skill_script` only if scripts can run; an empty list if models may not see any skill."""
        return list(self._tools)

    def subscribe(self, on_change: OnChange) -> None:
        """Register the callback that is called with the kind (tools, resources, prompts) of a changed list.

        It replaces a callback registered earlier.
        """
        self._on_change = on_change

    def subscribe_updates(self, on_update: Callable[[str], None]) -> None:
        """Register the callback that is called with the URI of a watched file after its content changed."""
        self._on_update = on_update

    async def list(self, kind: Kind) -> Sequence[JsonObject]:
        """Return the resources, resource templates or prompts of the skills, in MCP's format.

        Resources are the `SKILL.md` of each listed skill and, if any skill has a URI, `skill://index.json`. One URI template covers all
        files of skills. Each skill has a prompt.
        """
        return list(self._lists[kind])

    async def read(self, uri: str, ctx: CallContext) -> Finished:
        """Return the content of a skill's file, or of `skill://index.json`, as a `resources/read` result: text if it is UTF-8, else base64.

        Raises:
            NotFound: No file has this URI.
            GatewayError: The file cannot be read (`SkillLibrary.read`).
        """
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
        """Whether the MCP skills extension is supported. Always true, also while the gateway has no skills."""
        return True

    @property
    def reads_directories(self) -> bool:
        """Whether `resources/directory/read` is supported. Always true."""
        return True

    async def skills(self, method: SkillMethod, params: JsonObject, ctx: CallContext) -> JsonObject:
        """Answer a request of the MCP skills extension (`skills/list`, `skills/get` or `resources/directory/read`)."""
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
        """Return the prompt of a skill: one user message with the text that the tool `load_skill` returns.

        Raises:
            NotFound: No skill has this prompt.
        """
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
        """Answer `completion/complete` for the URI template of skill files, with paths that begin with the given value.

        If the value has no slash, these are paths of `SKILL.md` files, otherwise paths of all files. Any other request gets no values,
        because prompts of skills have no arguments.
        """
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
        """Start to watch a skill's file. After a change of its digest, the callback of `subscribe_updates` is called with its URI.

        Raises:
            NotFound: No file has this URI.
        """
        if uri not in self.index.by_file and uri != INDEX_URI:
            raise NotFound("resource", uri)
        self._watched[uri] += 1

    async def unwatch(self, uri: str) -> None:
        """End one watch of the file `uri`. A file that was watched several times stays watched until each watch has ended."""
        self._watched[uri] -= 1
        self._watched += Counter()

    def _swapped(self, old: SkillIndex, new: SkillIndex) -> None:
        """Build the MCP listings again after a change of the skill index, and call the callbacks for changed listings and watched files."""
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
        """Create the tools again if the skills in the description of `load_skill` changed, or if scripts became able or unable to run.

        Returns whether the list of tools changed.
        """
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
    """Return the name of a skill's MCP prompt: the skill's id with `__` for each slash, because names may not contain slashes."""
    return skill.id.replace("/", "__")


def _legacy_index(index: SkillIndex) -> JsonObject:
    """Return the content of `skill://index.json`, in the format of SEP-2640's draft: the skills with URIs that models may see.

    Other skills are left out, because clients of the draft offer every entry to their model.
    """
    return {"skills": [_legacy_entry(skill) for skill in index.for_models if skill.is_listed]}


def _legacy_entry(skill: Skill) -> JsonObject:
    wire: JsonObject = {"name": skill.name, "type": "skill-md", "description": skill.document.description, "url": skill.uri}
    return {**wire, **({"digest": skill.manifest.digest} if skill.manifest.digest else {}), "mimeType": MARKDOWN}


def _version(index: SkillIndex, uri: str) -> object:
    """Return a value that changes when the content of `uri`, a skill's file or `skill://index.json`, changes.

    For a file whose content is made at each read, the value stays the same. Clients that watch the URI are notified if the values for
    the old and the new index differ.
    """
    if uri == INDEX_URI:
        return _legacy_index(index)
    found = index.by_file.get(uri)
    return found[1].digest if found else None

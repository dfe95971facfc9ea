"""The tools `search_skills`, `load_skill` and `read_skill_resource`, which serve skills to MCP clients that support only tools.

Names and arguments are those of Microsoft's agent framework, so prompts written for it work unchanged. A wrong argument gives an error
result that says what to pass instead. None of these tools runs a script or a command of a skill. `SkillSource` creates the three tools, and
creates `load_skill` again when the list of skills in its description changes.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import json
from bisect import bisect_right
from collections.abc import Sequence
from typing import Literal, cast

import anyio.to_thread

from gateway.errors import NotFound, SkillError, ToolFailed
from gateway.json_types import JsonObject
from gateway.policy.caller_rights import Rights
from gateway.policy.decision import PASS
from gateway.skills.index import SkillIndex, children, file_uri
from gateway.skills.library import SkillLibrary
from gateway.skills.lookup import SkillRights, check_file, named_skill, skills_named, suggestion
from gateway.skills.model import MANIFEST, Skill, SkillFile, spelled
from gateway.skills.render import catalogue, describe_file, escape, file_wire, load, one_line, skill_wire
from gateway.tools.base import Complete, ToolDefinition, ToolOutcome
from gateway.tools.context import CallContext

MAX_RESULTS = 50
DEFAULT_RESULTS = 10
"""Default number of skills per page of a search; `MAX_RESULTS` is the maximum."""

RESULT_DESCRIPTION_CHARS = 400
"""Maximum characters of a skill's description in search results."""

MAX_READ = 200_000
DEFAULT_READ = 50_000
"""Default length of the part of a file that one call of `read_skill_resource` returns; `MAX_READ` is the maximum.

In characters of a text file, or bytes of any other file."""

MAX_LISTED = 1_000
"""Maximum number of entries in one listing of a skill's folder."""

_ANNOTATIONS: JsonObject = {"readOnlyHint": True, "destructiveHint": False, "idempotentHint": True, "openWorldHint": False}
STRING: JsonObject = {"type": "string"}
_COUNT: JsonObject = {"type": "integer", "minimum": 0}


def object_schema(properties: JsonObject, *required: str) -> JsonObject:
    """Return the JSON Schema of an object with these properties. `required` are the names of the required properties."""
    schema: JsonObject = {"type": "object", "properties": properties}
    return {**schema, "required": [*required]} if required else schema


def closed_schema(properties: JsonObject, *required: str) -> JsonObject:
    """Return the JSON Schema of an object that allows no properties besides `properties`, for the arguments of a tool."""
    return {**object_schema(properties, *required), "additionalProperties": False}


_NAMED: JsonObject = {
    "name": STRING,
    "skill": {**STRING, "description": "What to pass as skill_name."},
    "description": STRING,
    "origin": STRING,
    "uri": STRING,
}
_ALWAYS = ("name", "skill", "description", "origin")
"""Names of the fields that every skill in a result of `search_skills` or `load_skill` has. `_NAMED` has the schemas of all fields."""

_FILE = object_schema({"path": STRING, "size": _COUNT, "mimeType": STRING, "digest": STRING, "script": {"type": "boolean"}}, "path")
_FUNCTION = object_schema({"name": STRING, "description": STRING, "parameters": {"type": "object"}}, "name")
SKILL_NAME: JsonObject = {**STRING, "minLength": 1, "description": "Name of the skill; its skill:// URI where names are shared."}


class SearchSkills:
    """The tool `search_skills(query?, limit?, cursor?)`, with which a model finds skills."""

    def __init__(self, library: SkillLibrary) -> None:
        self._library = library
        self.definition = ToolDefinition(
            name="search_skills",
            title="Search skills",
            description=(
                "Find skills: tested instructions for particular kinds of work. Search before you start a task that a "
                "skill may cover, then load the best match with load_skill. Without a query, lists all skills."
            ),
            input_schema=closed_schema(
                {
                    "query": {**STRING, "description": "The subject of the task, in a few words."},
                    "limit": {"type": "integer", "minimum": 1, "maximum": MAX_RESULTS, "default": DEFAULT_RESULTS},
                    "cursor": {**STRING, "description": "`nextCursor` of the previous page of the same query."},
                }
            ),
            output_schema=object_schema(
                {"skills": {"type": "array", "items": object_schema(_NAMED, *_ALWAYS)}, "total": _COUNT, "nextCursor": STRING},
                "skills",
                "total",
            ),
            annotations=_ANNOTATIONS,
        )

    async def call(self, arguments: JsonObject, ctx: CallContext) -> ToolOutcome:
        """Return one page of the skills that match the query and that the caller may read, best match first.

        Without a query, return all skills that the caller may read, sorted by id.
        """
        index = await self._library.current()
        query = str(arguments.get("query") or "").strip()
        limit = min(MAX_RESULTS, max(1, int(arguments.get("limit") or DEFAULT_RESULTS)))
        found = await anyio.to_thread.run_sync(index.search.rank, query) if query else index.for_models
        rights = SkillRights(self._library, index, ctx.for_argument("query", query))
        found, known = rights.readable(found), rights.readable(index.for_models)
        start = _position(str(arguments.get("cursor") or ""), query, [skill.id for skill in found])
        page = found[start : start + limit]
        structured: JsonObject = {"skills": [skill_wire(index, skill, RESULT_DESCRIPTION_CHARS) for skill in page], "total": len(found)}
        lines = [_headline(query, len(found), len(known))]
        lines += [f"- {r['skill']}: {r['description']} (from {r['origin']})" for r in structured["skills"]]
        left = len(found) - start - len(page)
        if left > 0:
            structured["nextCursor"] = _cursor(query, start + len(page), page[-1].id)
            lines.append(f"{left} more: search again with the same query and cursor {structured['nextCursor']!r}.")
        if page:
            lines.append('Load one with load_skill(skill_name="…") before you act on it.')
        return Complete.text("\n".join(lines), structured=structured)


_LOAD = (
    "Get the instructions of a skill, and the list of its files. When a task matches a skill, load it before you act and follow it."
)


class LoadSkill:
    """The tool `load_skill(skill_name)`, with which a model reads a skill. Its description lists the skills in the skill index `index`."""

    def __init__(self, library: SkillLibrary, index: SkillIndex) -> None:
        self._library = library
        self._index = index
        self.definition = ToolDefinition(
            name="load_skill",
            title="Load a skill",
            description=f"{_LOAD}\n{catalogue(index, index.for_models)}",
            input_schema=closed_schema({"skill_name": SKILL_NAME}, "skill_name"),
            output_schema=object_schema(
                {
                    **_NAMED,
                    "digest": {**STRING, "description": "sha256 of SKILL.md."},
                    "body": {**STRING, "description": "The instructions, Markdown."},
                    "files": {"type": "array", "items": _FILE},
                    "filesOmitted": _COUNT,
                    "scripts": {"type": "array", "items": _FUNCTION, "description": "Functions that run_skill_script runs, besides files."},
                    "nextOffset": {**_COUNT, "description": "Offset for the next read_skill_resource of SKILL.md; absent at the end."},
                },
                *_ALWAYS,
                "body",
                "files",
                "filesOmitted",
            ),
            annotations=_ANNOTATIONS,
        )

    def description_for(self, rights: Rights | None, named: Sequence[str] = ()) -> str:
        """Return the tool's description for one caller, with a list of skills.

        The list has the skills in `named` or, if `named` is empty, the skills that the caller may read by its
        `rights`; `None` allows all skills.
        """
        if named:
            skills = skills_named(self._index, named)
            return f"{_LOAD}\n{catalogue(self._index, [skill for skill in self._index.for_models if skill.key in skills])}"
        if rights is None:
            return str(self.definition.description)
        shown = [skill for skill in self._index.for_models if self._library.judge(skill, MANIFEST, rights) is PASS]
        return f"{_LOAD}\n{catalogue(self._index, shown)}"

    async def call(self, arguments: JsonObject, ctx: CallContext) -> ToolOutcome:
        """Read the named skill again, and return its text with the lists of its resources and scripts."""
        index = await self._library.current()
        skill = await self._library.recheck(named_skill(self._library, index, arguments, ctx), ctx)
        loaded = load(self._library.index, skill)
        return Complete.text(loaded.text, structured=loaded.structured)


class ReadSkillResource:
    """The tool `read_skill_resource(skill_name, resource_name, offset?, length?)`, with which a model reads a file of a skill."""

    def __init__(self, library: SkillLibrary) -> None:
        self._library = library
        self.definition = ToolDefinition(
            name="read_skill_resource",
            title="Read a file of a skill",
            description=(
                "Read a file that a loaded skill refers to, or list one of its folders. Text is returned as it is, any other file as "
                "base64. A script is returned as text; this tool does not run it."
            ),
            input_schema=closed_schema(
                {
                    "skill_name": SKILL_NAME,
                    "resource_name": {**STRING, "description": 'Path of the file or folder in the skill; "." is the skill itself.'},
                    "offset": {**_COUNT, "default": 0, "description": "Start of the read: in characters of text, in bytes of other files."},
                    "length": {"type": "integer", "minimum": 1, "maximum": MAX_READ, "default": DEFAULT_READ},
                },
                "skill_name",
                "resource_name",
            ),
            output_schema=object_schema(
                {
                    "skill": STRING,
                    "path": STRING,
                    "kind": {"enum": ["text", "blob", "folder"]},
                    "uri": STRING,
                    "mimeType": STRING,
                    "size": {**_COUNT, "description": "Bytes of the whole file."},
                    "digest": {**STRING, "description": "sha256 of the whole file."},
                    "text": STRING,
                    "blob": {**STRING, "description": "base64"},
                    "offset": _COUNT,
                    "nextOffset": {**_COUNT, "description": "Offset of the next read; absent at the end."},
                    "entries": {"type": "array", "items": _FILE, "description": "The entries of a folder; names of folders end in `/`."},
                    "entriesOmitted": _COUNT,
                },
                "skill",
                "path",
                "kind",
            ),
            annotations=_ANNOTATIONS,
        )

    async def call(self, arguments: JsonObject, ctx: CallContext) -> ToolOutcome:
        """Return a part of the named file, from `offset` on, or the listing of the named folder."""
        index = await self._library.current()
        skill = named_skill(self._library, index, arguments, ctx)
        wanted = str(arguments.get("resource_name") or ".")
        path = _resource_path(skill, wanted)
        if path is None:
            skill = await self._library.recheck(skill, ctx)  # the file may have been added after the index was built
            path = _resource_path(skill, wanted)
        if path is None:
            raise ToolFailed(_unknown_file(skill, wanted))
        handle = self._library.index.handle(skill)
        if path not in skill.files:
            return _list_folder(skill, handle, path)
        check_file(self._library, skill, path, ctx)
        try:
            skill, file, data = await self._library.read(skill, path, ctx)
        except (NotFound, SkillError) as error:
            raise ToolFailed(f"{path!r} of skill {handle!r} cannot be read: {error}") from None
        offset = max(0, int(arguments.get("offset") or 0))
        length = min(MAX_READ, max(1, int(arguments.get("length") or DEFAULT_READ)))
        return _piece(skill, handle, file, data, offset, length)


def _resource_path(skill: Skill, wanted: str) -> str | None:
    """Return the path in the skill of the file or folder that `wanted` (a path or URI) refers to, or `None`.

    The path is looked up in the skill index, never on the disk. The path of the skill's own folder is empty.
    """
    if skill.root_uri and wanted.startswith(f"{skill.root_uri}/"):
        for path in skill.files:
            if file_uri(skill.root_uri, path) == wanted:
                return path
    plain = wanted.removeprefix("./").rstrip("/")
    if plain in ("", "."):
        return ""
    return plain if any(path.startswith(f"{plain}/") for path in skill.files) else spelled(plain, skill.files)


def _unknown_file(skill: Skill, wanted: str) -> str:
    hint = suggestion(wanted, skill.files, 'List its files with resource_name ".".')
    return f"Skill {skill.name!r} has no file {one_line(wanted, 200)!r}. {hint}"


def _headline(query: str, matches: int, total: int) -> str:
    if not query:
        return f"{total} skills:"
    if not matches:
        return f"No skill matches {one_line(query, 200)!r}. Try other words, or no query to list all {total}."
    return f"{matches} of {total} skills match {one_line(query, 200)!r}, best first:"


def _piece(skill: Skill, handle: str, file: SkillFile, data: bytes, offset: int, length: int) -> Complete:
    kind: Literal["text", "blob"] = "text" if file.is_text else "blob"
    whole: str | bytes = data.decode("utf-8") if file.is_text else data
    piece = whole[offset : offset + length]
    structured: JsonObject = {
        "skill": handle,
        "path": file.path,
        "kind": kind,
        "mimeType": file.mime_type,
        "size": file.size,
        "digest": file.digest,
        "offset": offset,
    }
    if skill.root_uri:
        structured["uri"] = file_uri(skill.root_uri, file.path)
    end = offset + len(piece)
    if isinstance(piece, str):
        structured["text"] = piece
        content: list[JsonObject] = [{"type": "text", "text": piece}]
    else:
        blob = base64.b64encode(piece).decode()
        structured["blob"] = blob
        is_image = file.mime_type.startswith("image/") and len(piece) == len(whole)
        block: JsonObject = {"type": "image", "data": blob, "mimeType": file.mime_type}
        content = [block if is_image else {"type": "text", "text": f"{file.path} ({describe_file(file)}), base64:\n{blob}"}]
    if end < len(whole):
        structured["nextOffset"] = end
        unit = "characters" if file.is_text else "bytes"
        note = f"{offset} to {end} of {len(whole)} {unit}. Continue with offset={end}."
        content.append({"type": "text", "text": note})
    return Complete({"content": content, "structuredContent": structured})


def _list_folder(skill: Skill, handle: str, path: str) -> Complete:
    found = sorted(children(skill, path).items())
    entries: list[JsonObject] = []
    lines = [f"{escape(path) or 'The skill'} has {len(found)} entries:"]
    for name, file in found[:MAX_LISTED]:
        entries.append({"path": name} if file is None else file_wire(file))
        lines.append(f"- {escape(name)}" + ("" if file is None else f" ({describe_file(file)})"))
    structured: JsonObject = {"skill": handle, "path": path or ".", "kind": "folder", "entries": entries}
    if len(found) > MAX_LISTED:
        structured["entriesOmitted"] = len(found) - MAX_LISTED
        lines.append(f"- and {len(found) - MAX_LISTED} more")
    return Complete.text("\n".join(lines), structured=structured)


def _cursor(query: str, position: int, last_id: str) -> str:
    """Return the cursor of the next page: the query's hash, the position of the page, and the id of the last skill before it.

    The id is needed because skills can be added and removed between the requests.
    """
    token = json.dumps([_query_mark(query), position, last_id])
    return base64.urlsafe_b64encode(token.encode()).decode().rstrip("=")


def _position(cursor: str, query: str, ids: list[str]) -> int:
    """Return the position in `ids` (skills in the order of the results) at which the page for `cursor` starts.

    The page starts after the previous page's last skill. If that skill is gone, it starts at the position in the cursor or, without a
    query, at the next id. An empty cursor gives 0.

    Raises:
        ToolFailed: The cursor is malformed or belongs to another query.
    """
    if not cursor:
        return 0
    try:
        token = json.loads(base64.urlsafe_b64decode(cursor + "=" * (-len(cursor) % 4)))
        mark, position, last_id = cast("tuple[str, int, str]", token)
        if mark == _query_mark(query):
            if not query:
                return bisect_right(ids, str(last_id))
            return ids.index(last_id) + 1 if last_id in ids else max(0, int(position))
    except (binascii.Error, UnicodeError, ValueError, TypeError):
        pass
    raise ToolFailed("This cursor is not from a search with this query. Leave it out to start again.")


def _query_mark(query: str) -> str:
    return hashlib.sha256(query.encode()).hexdigest()[:8]

"""`MCPSkillsSource`: the skills of a remote MCP server as Python objects, for programs that have an MCP client.

The skills come from the MCP skills extension (SEP-2640), or from the resource `skill://index.json` that a draft of the extension defined.
`skills.remote` converts the server's list to the types of the gateway's skill index, and this module creates an `MCPSkill` from each entry.
The text of a skill is fetched when it is first loaded, an archive when the skills are listed. Names of files that a model gives are checked
before a request is sent. The gateway itself does not use this module: it reads its servers' skills with `catalog.remote_skills`. The types
of the MCP SDK are imported at first use. This import is fast, because a program with an MCP session has already imported the SDK.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Protocol, cast
from urllib.parse import unquote

import anyio

from gateway.errors import NotFound, SkillError
from gateway.json_types import JsonMapping, JsonObject, members_of, objects_in
from gateway.protocol import SKILLS_EXTENSION
from gateway.skills.model import MANIFEST, SkillDocument, SkillFile, spelled
from gateway.skills.model import Skill as ListedSkill
from gateway.skills.objects.archives import ArchiveLimits, read_archive
from gateway.skills.objects.file_source import RESOURCE_EXTENSIONS, SEARCH_DEPTH, FileSelection, to_frontmatter
from gateway.skills.objects.skill import Skill, SkillFrontmatter, SkillResource
from gateway.skills.objects.sources import SkillsSource, SkillsSourceContext
from gateway.skills.remote import INDEX_URI, decode_blob, file_of, index_entries, list_skills, read_listed, to_skill, unlisted_skill

logger = logging.getLogger(__name__)

REQUEST_SECONDS = 60.0
"""Timeout of one request to the MCP server that has the skills, in seconds."""

_BACKEND_ID = "client:"
"""First part of the keys of skills that were listed by a program's own MCP client. These skills never enter the gateway's skill index."""

_NOT_FOUND = (-32002, -32601)


class ReadsResources(Protocol):
    """Interface of an MCP client with which `MCPSkillsSource` reads skills. `Client` and `ClientSession` of the MCP SDK implement it."""

    async def read_resource(self, uri: str) -> object:
        """Send `resources/read` and return the result. Raises `MCPError`."""
        ...


class MCPSkillResource(SkillResource):
    """A file of a skill of a remote server, with the content that was already fetched."""

    def __init__(self, *, name: str, result: object) -> None:
        super().__init__(name=name)
        self._result = result

    async def read(self, **kwargs: object) -> object:
        """Return the content that was fetched: bytes if the server sent a blob, else text; `None` if it sent no text and no valid blob."""
        return _content_of(self._result)


class MCPSkill(Skill):
    """A skill of a remote server. Its text and files can be read; its scripts cannot be run."""

    def __init__(
        self,
        frontmatter: SkillFrontmatter,
        skill_md_uri: str,
        client: ReadsResources | None = None,
        *,
        session_provider: Callable[[], ReadsResources] | None = None,
        entry: JsonMapping | None = None,
    ) -> None:
        """Create a skill that is read with `client`, or with the result of `session_provider`, which is called for each read.

        `entry` is the skill's entry in `skills/list`. If it lists files, only these are read, and their digests are checked.

        Raises:
            ValueError: Both or neither of `client` and `session_provider` are given, or `entry` breaks SEP-2640.
        """
        if entry is None:
            listed = unlisted_skill(skill_md_uri, frontmatter.name, frontmatter.description, _BACKEND_ID, "")
        elif (listed := to_skill(entry, _BACKEND_ID, "")) is None:
            raise ValueError(f"The entry of skill {frontmatter.name!r} breaks the rules of `skills/list`.")
        self._listed = listed
        self._frontmatter = frontmatter
        self._session = _provider(client, session_provider)
        self._content: str | None = None

    @property
    def frontmatter(self) -> SkillFrontmatter:
        """The frontmatter of the skill, as the server lists it."""
        return self._frontmatter

    async def get_content(self) -> str:
        """Return the text of the skill's `SKILL.md`, which the first call fetches.

        Raises:
            ValueError: The server sends no text, a text whose digest differs from the listed digest, or a text larger than
            `MAX_SKILL_BYTES`.
            MCPError, TimeoutError: The read failed.
        """
        if self._content is None:
            try:
                text = _content_of(await self._read(MANIFEST))
            except (NotFound, SkillError) as error:
                is_large = isinstance(error, SkillError) and error.code == "too-large"
                reason = "is too large" if is_large else "has another digest than the server lists"
                raise ValueError(f"The text of {self._uri!r} {reason}; it is not used.") from None
            if not isinstance(text, str):
                raise ValueError(f"The server sent no text for {self._uri!r}.")
            self._content = text
        return self._content

    async def get_resource(self, name: str) -> SkillResource | None:
        """Fetch a file of the skill and return it.

        `None` if the skill has no such file, the name points outside the skill, or the file has another digest than listed or is too large.

        Raises:
            MCPError, TimeoutError: The read failed.
        """
        path = name.replace("\\", "/")
        try:
            result = await _if_found(self._read(spelled(path, self._listed.files) or unquote(path)))
        except (NotFound, SkillError) as error:
            level = logging.DEBUG if isinstance(error, NotFound) else logging.WARNING
            logger.log(level, "resource refused skill=%s name=%r reason=%r", self._frontmatter.name, name, str(error))
            return None
        return None if result is None else MCPSkillResource(name=name, result=result)

    @property
    def _uri(self) -> str:
        return self._listed.manifest.segments[0]

    async def _read(self, path: str) -> object:
        """Fetch a file of the skill, check its bytes against the listed digest (if the server lists one), and return the server's result.

        Raises:
            NotFound: The skill has no such file.
            SkillError: The digest differs from the listed digest even after retries, or the file is larger than `MAX_SKILL_BYTES`.
            MCPError, TimeoutError: The read failed.
        """
        results: list[object] = []

        async def fetch(skill: ListedSkill, path: str) -> tuple[SkillFile, bytes]:
            file = file_of(skill, path)
            results.append(await _read(self._session, file.segments[0]))
            content = _content_of(results[-1])
            return file, content.encode() if isinstance(content, str) else content or b""

        self._listed, _, _ = await read_listed(self._listed, path, fetch, self._renew)
        return results[-1]

    async def _renew(self, skill: ListedSkill) -> ListedSkill:
        answer = await _send(self._session(), "skills/get", {"uri": self._uri})
        now = to_skill(members_of(answer.get("skill")), _BACKEND_ID, "")
        if now is None:
            raise NotFound("skill", skill.id)
        return now


class MCPSkillsSource(SkillsSource):
    """Source of a remote MCP server's skills, from `skills/list` or, without the skills extension, from the resource `skill://index.json`.

    `skills/list` contains digests, which are checked. `skill://index.json` may list `SKILL.md` files and ZIP archives; entries of other
    types are skipped.
    """

    def __init__(
        self,
        client: ReadsResources | None = None,
        *,
        session_provider: Callable[[], ReadsResources] | None = None,
        archive_resource_extensions: Sequence[str] | None = None,
        archive_resource_search_depth: int = SEARCH_DEPTH,
        archive_max_file_count: int = 20,
        archive_max_size_bytes: int = 1_048_576,
        archive_max_uncompressed_size_bytes: int = 1_048_576,
    ) -> None:
        """Use `client` for all reads, or the result of `session_provider`, which is called for each read.

        The parameters `archive_…` limit ZIP archives with skills, and select which of their files are resources.

        Raises:
            ValueError: Both or neither of `client` and `session_provider` are given.
        """
        self._session = _provider(client, session_provider)
        extensions = RESOURCE_EXTENSIONS if archive_resource_extensions is None else archive_resource_extensions
        self._limits = ArchiveLimits(
            archive_max_file_count,
            archive_max_size_bytes,
            archive_max_uncompressed_size_bytes,
            FileSelection(extensions, archive_resource_search_depth),
        )

    async def get_skills(self, context: SkillsSourceContext | None = None) -> list[Skill]:
        """Return the skills in the server's order; an empty list if the server has neither the extension nor a usable `skill://index.json`.

        Raises:
            MCPError, TimeoutError: The server has a list of skills, but reading it, or an archive that it lists, failed.
        """
        if _has_extension(self._session()):
            listed = await list_skills(self._fetch_page, _BACKEND_ID, "")
            found = [self._skill(one.document, str(one.uri), one.entry) for one in listed]
        else:
            result = await _if_found(_read(self._session, INDEX_URI))
            found = [await self._to_skill(entry) for entry in _entries(_content_of(result))] if result is not None else []
        return [skill for skill in found if skill is not None]

    async def _fetch_page(self, cursor: str | None) -> tuple[list[JsonObject], str | None]:
        page = await _send(self._session(), "skills/list", {} if cursor is None else {"cursor": cursor})
        following = page.get("nextCursor")
        return objects_in(page.get("skills")), following if isinstance(following, str) else None

    def _skill(self, document: SkillDocument, uri: str, entry: JsonMapping | None) -> Skill | None:
        frontmatter = to_frontmatter(document, uri, logging.DEBUG)  # a server may list thousands of malformed skills
        return None if frontmatter is None else MCPSkill(frontmatter, uri, session_provider=self._session, entry=entry)

    async def _to_skill(self, entry: JsonMapping) -> Skill | None:
        kind, name, url = (str(entry.get(key) or "").strip() for key in ("type", "name", "url"))
        if not name or not url:
            logger.debug("skill skipped reason='the index entry has no name or no url'")
            return None
        if kind.lower() == "archive":
            result = await _if_found(_read(self._session, url))
            data = _content_of(result)
            if not data or isinstance(data, str):
                logger.warning("skill left out reason='the archive is missing' skill=%s url=%s", name, url)
                return None
            return read_archive(data, name=name, url=url, digest=entry.get("digest"), limits=self._limits)
        if kind.lower() != "skill-md":
            logger.debug("skill skipped reason='unknown type' skill=%s type=%r", name, kind)
            return None
        return self._skill(SkillDocument(name=name, description=str(entry.get("description") or "")), url, None)


def _has_extension(session: object) -> bool:
    """Return whether the server of an MCP session declares the MCP skills extension. False before the session is initialized."""
    extensions = getattr(getattr(session, "server_capabilities", None), "extensions", None)
    return isinstance(extensions, dict) and SKILLS_EXTENSION in extensions


async def _send(session: object, method: str, params: JsonObject) -> JsonMapping:
    """Send a request of the MCP skills extension and return its result. Raises `MCPError` or `TimeoutError`."""
    from mcp_types import Request
    from pydantic import TypeAdapter

    class _SkillRequest(Request[dict[str, Any], str]):
        name_param = "uri" if "uri" in params else None

    low: Any = getattr(session, "session", session)
    with anyio.fail_after(REQUEST_SECONDS):
        return await low.send_request(_SkillRequest(method=method, params=params), TypeAdapter(dict[str, Any]))


def _provider(client: ReadsResources | None, session_provider: Callable[[], ReadsResources] | None) -> Callable[[], ReadsResources]:
    if (client is None) == (session_provider is None):
        raise ValueError("Give exactly one of client and session_provider.")
    if session_provider is not None:
        return session_provider
    return lambda: cast("ReadsResources", client)


async def _read(session: Callable[[], ReadsResources], uri: str) -> object:
    with anyio.fail_after(REQUEST_SECONDS):
        return await session().read_resource(uri)


async def _if_found(reading: Awaitable[object]) -> object | None:
    """Wait for the result of a `resources/read` and return it, or `None` if the server answers that the resource does not exist."""
    from mcp.shared.exceptions import MCPError

    try:
        return await reading
    except MCPError as error:
        if error.error.code in _NOT_FOUND or (error.error.code == -32602 and _is_uri_only(error.error.data)):
            return None
        raise


def _is_uri_only(data: object) -> bool:
    """Return whether `data`, the data of a JSON-RPC error with code -32602, reports an unknown resource.

    By MCP 2026-07-28, the data then has the single member `uri`. Errors about other parameters have the same code, but other data.
    """
    return isinstance(data, dict) and set(cast("dict[str, object]", data)) == {"uri"}


def _content_of(result: object) -> str | bytes | None:
    """Return the content of a `resources/read` result: bytes if the server sent a blob, else text; `None` without valid content."""
    contents = cast("Sequence[object]", getattr(result, "contents", ()))
    blob = next((blob for content in contents if isinstance(blob := getattr(content, "blob", None), str)), None)
    if blob is None:
        return "\n".join(text for content in contents if isinstance(text := getattr(content, "text", None), str)) or None
    data = decode_blob(blob.partition(",")[2] if blob.startswith("data:") else blob)
    if data is None:
        logger.warning("resource of a skill ignored reason='invalid base64'")
    return data


def _entries(text: str | bytes | None) -> list[JsonMapping]:
    try:
        return index_entries(text or "")
    except ValueError as error:
        logger.warning("skill index unusable uri=%s error=%s", INDEX_URI, error)
        return []

"""`MCPSkillsSource`: the skills of a remote MCP server as objects, from the skills extension (SEP-2640) or its draft's index resource.

`skills.remote` converts what the server lists to the index's model, and `MCPSkill` answers from it. Bodies are fetched when they are
first loaded. Names that a model gives are checked before a request is sent. The gateway itself reads skills of its servers with
`catalog.remote_skills`. The SDK's types are imported at first use, because every program with a session has imported them.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Any, Protocol, cast
from urllib.parse import unquote

import anyio

from gateway.json_types import JsonMapping, JsonObject, members_of, objects_in
from gateway.policy.skill_policy import is_safe_name
from gateway.protocol import SKILLS_EXTENSION
from gateway.skills.model import MANIFEST, digest_of
from gateway.skills.objects.archives import ArchiveLimits, read_archive
from gateway.skills.objects.file_source import RESOURCE_EXTENSIONS, SEARCH_DEPTH
from gateway.skills.objects.skill import Skill, SkillFrontmatter, SkillResource
from gateway.skills.objects.sources import SkillsSource, SkillsSourceContext
from gateway.skills.remote import INDEX_URI, decode_blob, index_entries, list_skills, to_skill

logger = logging.getLogger(__name__)

REQUEST_SECONDS = 60.0
"""Timeout of one request to the server, in seconds."""

_BACKEND_ID = "client:"
"""First part of the keys of skills that a program's own client lists; they never enter the gateway's index."""

_NOT_FOUND = (-32002, -32601)


class ReadsResources(Protocol):
    """The part of an MCP client that is used here; the SDK's `Client` and `ClientSession` implement it."""

    async def read_resource(self, uri: str) -> object:
        """Send `resources/read` and return the result. Raises `MCPError`."""
        ...


class MCPSkillResource(SkillResource):
    """A file of a remote skill, with the content that was fetched."""

    def __init__(self, *, name: str, result: object) -> None:
        super().__init__(name=name)
        self._result = result

    async def read(self, **kwargs: object) -> object:
        """Return the fetched content: bytes if the server sent a blob, else text; `None` if it sent nothing."""
        blob = _blob(self._result)
        return blob if blob is not None else _text(self._result) or None


class MCPSkill(Skill):
    """A skill of a remote server. Its scripts cannot be run."""

    def __init__(
        self,
        frontmatter: SkillFrontmatter,
        skill_md_uri: str,
        client: ReadsResources | None = None,
        *,
        session_provider: Callable[[], ReadsResources] | None = None,
        entry: JsonMapping | None = None,
    ) -> None:
        """Give exactly one of `client` and `session_provider`, which is called for each read.

        `entry` is the entry of `skills/list`. If given, only listed files are read, and their digests are checked.

        Raises:
            ValueError: Both or neither of `client` and `session_provider` are given, or `entry` breaks SEP-2640.
        """
        self._listed = None if entry is None else to_skill(entry, _BACKEND_ID, "")
        if entry is not None and self._listed is None:
            raise ValueError(f"The entry of skill {frontmatter.name!r} breaks the rules of `skills/list`.")
        self._frontmatter = frontmatter
        self._uri = skill_md_uri
        self._root = skill_md_uri.removesuffix(MANIFEST) if skill_md_uri.endswith(MANIFEST) else skill_md_uri.rstrip("/") + "/"
        self._session = _provider(client, session_provider)
        self._content: str | None = None

    @property
    def frontmatter(self) -> SkillFrontmatter:
        """The frontmatter of the skill, as the server lists it."""
        return self._frontmatter

    async def get_content(self) -> str:
        """Return `SKILL.md`, which is fetched once.

        Raises:
            ValueError: The server sends no text, or a text with another digest than it lists.
            MCPError: The read failed.
        """
        if self._content is None:
            text = _text(await _read(self._session, self._uri))
            if not text:
                raise ValueError(f"The server sent no text for {self._uri!r}.")
            if not self._is_listed(MANIFEST, text.encode()) and not await self._is_renewed(MANIFEST, text.encode()):
                raise ValueError(f"The text of {self._uri!r} has another digest than the server lists; it is not used.")
            self._content = text
        return self._content

    async def get_resource(self, name: str) -> SkillResource | None:
        """Fetch a file of the skill; `None` if the skill has no such file, or the name is outside the skill."""
        path = name.replace("\\", "/")
        if not is_safe_name(path):
            logger.debug("resource name refused skill=%s name=%r", self._frontmatter.name, name)
            return None
        uri = self._root + path
        if self._listed is not None and not self._listed.is_dynamic:
            file = self._listed.files.get(path) or self._listed.files.get(unquote(path))
            if file is None:
                return None
            path, uri = file.path, file.segments[0]
        result = await _try_read(self._session, uri)
        if result is None:
            return None
        blob = _blob(result)
        data = blob if blob is not None else _text(result).encode()
        if not self._is_listed(path, data) and not await self._is_renewed(path, data):
            logger.warning("resource refused reason='other digest than listed' skill=%s name=%r", self._frontmatter.name, name)
            return None
        return MCPSkillResource(name=name, result=result)

    def _is_listed(self, path: str, data: bytes) -> bool:
        if self._listed is None or self._listed.is_dynamic:
            return True
        return path in self._listed.files and self._listed.files[path].digest == digest_of(data)

    async def _is_renewed(self, path: str, data: bytes) -> bool:
        """Fetch the skill's entry again, in case the skill has changed, and return whether it lists the digest of `data` for this file."""
        answer = await _send(self._session(), "skills/get", {"uri": self._uri})
        now = to_skill(members_of(answer.get("skill")), _BACKEND_ID, "")
        self._listed = now or self._listed
        return now is not None and self._is_listed(path, data)


class MCPSkillsSource(SkillsSource):
    """The skills of a server, from `skills/list` with digests. For a server without the extension, from `skill://index.json`.

    The index resource may name single files and ZIP archives; other types are skipped.
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
        """Give exactly one of `client` and `session_provider`, which is called for each read. Raises `ValueError` otherwise."""
        self._session = _provider(client, session_provider)
        extensions = RESOURCE_EXTENSIONS if archive_resource_extensions is None else archive_resource_extensions
        self._limits = ArchiveLimits(
            archive_max_file_count,
            archive_max_size_bytes,
            archive_max_uncompressed_size_bytes,
            tuple(extension.lower() for extension in extensions),
            archive_resource_search_depth,
        )

    async def get_skills(self, context: SkillsSourceContext | None = None) -> list[Skill]:
        """Return the skills in the server's order; an empty list if the server has neither the extension nor the index resource.

        Raises:
            MCPError, TimeoutError: The skills are listed but cannot be read.
        """
        if _has_extension(self._session()):
            listed = await list_skills(self._fetch_page, _BACKEND_ID, "")
            found = [self._skill(one.document.name, one.document.description, str(one.uri), one.entry) for one in listed]
        else:
            result = await _try_read(self._session, INDEX_URI)
            found = [await self._to_skill(entry) for entry in _entries(_text(result))] if result is not None else []
        return [skill for skill in found if skill is not None]

    async def _fetch_page(self, cursor: str | None) -> tuple[list[JsonObject], str | None]:
        page = await _send(self._session(), "skills/list", {} if cursor is None else {"cursor": cursor})
        following = page.get("nextCursor")
        return objects_in(page.get("skills")), following if isinstance(following, str) else None

    def _skill(self, name: str, description: str, uri: str, entry: JsonMapping | None) -> Skill | None:
        try:
            frontmatter = SkillFrontmatter(name=name, description=description)
        except ValueError as error:
            logger.debug("skill skipped reason=%r", str(error))
            return None
        return MCPSkill(frontmatter, uri, session_provider=self._session, entry=entry)

    async def _to_skill(self, entry: JsonMapping) -> Skill | None:
        kind, name, url = (str(entry.get(key) or "").strip() for key in ("type", "name", "url"))
        if not name or not url:
            logger.debug("skill skipped reason='the index entry has no name or no url'")
            return None
        if kind.lower() == "archive":
            result = await _try_read(self._session, url)
            data = None if result is None else _blob(result)
            if not data:
                logger.warning("skill left out reason='the archive is missing' skill=%s url=%s", name, url)
                return None
            return read_archive(data, name=name, url=url, digest=entry.get("digest"), limits=self._limits)
        if kind.lower() != "skill-md":
            logger.debug("skill skipped reason='unknown type' skill=%s type=%r", name, kind)
            return None
        return self._skill(name, str(entry.get("description") or ""), url, None)


def _has_extension(session: object) -> bool:
    """Return whether the server declares the skills extension; false before the session is initialized."""
    extensions = getattr(getattr(session, "server_capabilities", None), "extensions", None)
    return isinstance(extensions, dict) and SKILLS_EXTENSION in extensions


async def _send(session: object, method: str, params: JsonObject) -> JsonMapping:
    """Send a request of the skills extension and return the result. Raises `MCPError` or `TimeoutError`."""
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


async def _try_read(session: Callable[[], ReadsResources], uri: str) -> object | None:
    """Read a resource and return the result, or `None` if the server answers that it has no such resource."""
    from mcp.shared.exceptions import MCPError

    try:
        return await _read(session, uri)
    except MCPError as error:
        if error.error.code in _NOT_FOUND or (error.error.code == -32602 and _is_uri_only(error.error.data)):
            return None
        raise


def _is_uri_only(data: object) -> bool:
    """Return whether error data means an unknown resource in MCP 2026-07-28. Other wrong parameters have the same error code."""
    return isinstance(data, dict) and set(cast("dict[str, object]", data)) == {"uri"}


def _contents(result: object) -> Sequence[object]:
    return cast("Sequence[object]", getattr(result, "contents", ()))


def _text(result: object) -> str:
    texts = (getattr(content, "text", None) for content in _contents(result))
    return "\n".join(text for text in texts if isinstance(text, str))


def _blob(result: object) -> bytes | None:
    for content in _contents(result):
        blob = getattr(content, "blob", None)
        if isinstance(blob, str):
            data = decode_blob(blob.partition(",")[2] if blob.startswith("data:") else blob)
            if data is None:
                logger.warning("resource of a skill ignored reason='invalid base64'")
            return data
    return None


def _entries(text: str) -> list[JsonMapping]:
    try:
        return index_entries(text)
    except ValueError as error:
        logger.warning("skill index unusable uri=%s error=%s", INDEX_URI, error)
        return []

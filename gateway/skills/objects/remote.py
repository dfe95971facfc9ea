"""`MCPSkillsSource`: skills of a remote MCP server, by the skills extension or the index resource of its draft.

Bodies are fetched when they are first loaded. What a model names is checked before anything is asked of the server.
The gateway's own way to the skills of its servers is `gateway.catalog.remote_skills`.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import json
import logging
from collections.abc import Callable, Sequence
from typing import Protocol, cast
from urllib.parse import unquote

import anyio

from gateway.json_types import JsonMapping, JsonValue
from gateway.policy.skills import is_safe_name
from gateway.skills.models import MANIFEST
from gateway.skills.objects.archives import ArchiveLimits, read_archive
from gateway.skills.objects.entries import get_entry, has_extension, list_entries
from gateway.skills.objects.files import RESOURCE_EXTENSIONS, SEARCH_DEPTH
from gateway.skills.objects.frontmatter import SkillFrontmatter
from gateway.skills.objects.skill import Skill, SkillResource
from gateway.skills.objects.sources import SkillsSource, SkillsSourceContext

logger = logging.getLogger(__name__)

INDEX_URI = "skill://index.json"

READ_SECONDS = 60.0
"""Time one read of the server may take."""

MAX_INDEX_CHARS = 8_000_000
"""A larger index is not read: tens of thousands of skills."""

_NOT_FOUND = (-32002, -32601)


class ReadsResources(Protocol):
    """What is needed of an MCP client: the SDK's `Client` and `ClientSession` have it."""

    async def read_resource(self, uri: str) -> object:
        """`resources/read`; raises `MCPError`."""
        ...


class MCPSkillResource(SkillResource):
    """A file of a remote skill, as it was fetched."""

    def __init__(self, *, name: str, result: object) -> None:
        super().__init__(name=name)
        self._result = result

    async def read(self, **kwargs: object) -> object:
        """Bytes for a blob, else the text; `None` for nothing."""
        blob = _blob(self._result)
        return blob if blob is not None else _text(self._result) or None


class MCPSkill(Skill):
    """A skill of a remote server. Its scripts cannot be run: they are the server's, not ours."""

    def __init__(
        self,
        frontmatter: SkillFrontmatter,
        skill_md_uri: str,
        client: ReadsResources | None = None,
        *,
        session_provider: Callable[[], ReadsResources] | None = None,
        entry: JsonMapping | None = None,
    ) -> None:
        """Exactly one of `client` and `session_provider`, which is asked for each read. Raises `ValueError` otherwise.

        `entry` is what the skills extension lists: then only listed files are read, and checked against their digests.
        """
        self._digests = None if entry is None else _digests(entry)
        self._frontmatter = frontmatter
        self._uri = skill_md_uri
        self._root = skill_md_uri.removesuffix(MANIFEST) if skill_md_uri.endswith(MANIFEST) else skill_md_uri.rstrip("/") + "/"
        self._session = _provider(client, session_provider)
        self._content: str | None = None

    @property
    def frontmatter(self) -> SkillFrontmatter:
        """As the index says."""
        return self._frontmatter

    async def get_content(self) -> str:
        """`SKILL.md`, fetched once.

        Raises:
            ValueError: The server has no text there, or another one than it lists.
            MCPError: It could not be read.
        """
        if self._content is None:
            text = _text(await _read(self._session, self._uri))
            if not text:
                raise ValueError(f"The server has no text at {self._uri!r}.")
            if not self._is_listed(self._uri, text.encode()) and not await self._is_renewed(self._uri, text.encode()):
                raise ValueError(f"The text at {self._uri!r} is not the one that the server lists.")
            self._content = text
        return self._content

    async def get_resource(self, name: str) -> SkillResource | None:
        """A file of the skill, fetched now; `None` where there is none, or the name leads elsewhere."""
        path = name.replace("\\", "/")
        if not is_safe_name(path):
            logger.debug("resource name %r of skill %r refused", name, self._frontmatter.name)
            return None
        uri = self._root + path
        if self._digests is not None:
            uri = next((listed for listed in self._digests if listed == uri or unquote(listed) == uri), "")
        result = await _try_read(self._session, uri) if uri else None
        if result is None:
            return None
        blob = _blob(result)
        data = blob if blob is not None else _text(result).encode()
        if not self._is_listed(uri, data) and not await self._is_renewed(uri, data):
            logger.warning("resource %r of skill %r is not what the server lists", name, self._frontmatter.name)
            return None
        return MCPSkillResource(name=name, result=result)

    def _is_listed(self, uri: str, data: bytes) -> bool:
        return self._digests is None or self._digests.get(uri) == f"sha256:{hashlib.sha256(data).hexdigest()}"

    async def _is_renewed(self, uri: str, data: bytes) -> bool:
        """Whether the server lists these bytes now: the skill was changed since it was listed."""
        entry = await get_entry(self._session(), self._uri)
        self._digests = self._digests if entry is None else _digests(entry)
        return entry is not None and self._is_listed(uri, data)


class MCPSkillsSource(SkillsSource):
    """The skills of a server that has the skills extension, as it lists them, with digests; else those in its `skill://index.json`:
    single files and ZIP archives. Other types are passed over.
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
        """Exactly one of `client` and `session_provider`, which is asked for each read. Raises `ValueError` otherwise."""
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
        """The skills in the server's order; none where it has neither the extension nor an index.

        Raises:
            MCPError, TimeoutError: They are there but cannot be read.
        """
        if has_extension(self._session()):
            return [skill for entry in await list_entries(self._session()) if (skill := self._listed(entry)) is not None]
        result = await _try_read(self._session, INDEX_URI)
        found = [await self._to_skill(entry) for entry in _entries(_text(result))] if result is not None else []
        return [skill for skill in found if skill is not None]

    def _listed(self, entry: JsonMapping) -> Skill | None:
        fields = cast("JsonMapping", entry["frontmatter"])
        try:
            frontmatter = SkillFrontmatter(name=str(fields["name"]), description=str(fields["description"]))
        except ValueError as error:
            logger.debug("entry passed over: %s", error)
            return None
        return MCPSkill(frontmatter, str(entry["uri"]), session_provider=self._session, entry=entry)

    async def _to_skill(self, entry: JsonMapping) -> Skill | None:
        kind, name, url = (str(entry.get(key) or "").strip() for key in ("type", "name", "url"))
        if not name or not url:
            logger.debug("index entry without name or url passed over")
            return None
        if kind.lower() == "archive":
            result = await _try_read(self._session, url)
            data = None if result is None else _blob(result)
            if not data:
                logger.warning("skill %r left out: there is no archive at %s", name, url)
                return None
            return read_archive(data, name=name, url=url, digest=entry.get("digest"), limits=self._limits)
        if kind.lower() != "skill-md":
            logger.debug("skill %r of unknown type %r passed over", name, kind)
            return None
        try:
            frontmatter = SkillFrontmatter(name=name, description=str(entry.get("description") or ""))
        except ValueError as error:
            logger.debug("index entry passed over: %s", error)
            return None
        return MCPSkill(frontmatter, url, session_provider=self._session)


def _digests(entry: JsonMapping) -> dict[str, str] | None:
    """URI → digest of each listed file; `None` where the server does not say beforehand."""
    files = entry["resources"]
    return None if files == "dynamic" else {str(file["uri"]): str(file["digest"]) for file in cast("list[JsonMapping]", files)}


def _provider(client: ReadsResources | None, session_provider: Callable[[], ReadsResources] | None) -> Callable[[], ReadsResources]:
    if (client is None) == (session_provider is None):
        raise ValueError("Give exactly one of client and session_provider.")
    if session_provider is not None:
        return session_provider
    return lambda: cast("ReadsResources", client)


async def _read(session: Callable[[], ReadsResources], uri: str) -> object:
    with anyio.fail_after(READ_SECONDS):
        return await session().read_resource(uri)


async def _try_read(session: Callable[[], ReadsResources], uri: str) -> object | None:
    """The result, or `None` where the server says that there is no such thing."""
    from mcp.shared.exceptions import MCPError  # loaded by whoever has a session

    try:
        return await _read(session, uri)
    except MCPError as error:
        if error.error.code in _NOT_FOUND or (error.error.code == -32602 and _is_uri_only(error.error.data)):
            return None
        raise


def _is_uri_only(data: object) -> bool:
    """The mark of an unknown resource in 2026-07-28, as against other wrong parameters."""
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
            try:
                return base64.b64decode(blob.partition(",")[2] if blob.startswith("data:") else blob, validate=True)
            except (binascii.Error, ValueError):
                logger.warning("a resource of a skill is no base64 and is passed over")
                return None
    return None


def _entries(text: str) -> list[JsonMapping]:
    if not text or len(text) > MAX_INDEX_CHARS:
        return []
    try:
        value: JsonValue = json.loads(text)
    except (ValueError, RecursionError) as error:
        logger.warning("%s is no JSON, so there are no skills error=%s", INDEX_URI, error)
        return []
    listed: JsonValue = cast("JsonMapping", value).get("skills") if isinstance(value, dict) else None
    if not isinstance(listed, list):
        logger.warning("%s lists no skills", INDEX_URI)
        return []
    return [cast("JsonMapping", entry) for entry in cast("list[JsonValue]", listed) if isinstance(entry, dict)]

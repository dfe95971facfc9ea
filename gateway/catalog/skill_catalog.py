"""`SkillCatalog`: implements the methods of the skills extension (SEP-2640) for all sources with skills: local folders and remote servers.

Content, digests and frontmatter of a remote skill stay unchanged. Its URIs get the label of the source (its prefix) as first segment, like
all URIs of the source, so that `resources/read` finds the skill's files. Each page of `skills/list` is one request to one source. For a
server without the extension, entries are made in advance from its `SKILL.md` files and stored in `SourceListing.shown_skills`. The package
`server` registers the three methods as MCP handlers.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Sequence
from typing import cast
from urllib.parse import unquote

from gateway.catalog.catalog import Catalog
from gateway.catalog.names import expose_uri
from gateway.catalog.source_listing import SourceListing
from gateway.errors import GatewayError, NotFound, PolicyDenied, SkillError
from gateway.gate.reads import Read
from gateway.json_types import JsonMapping, JsonObject, JsonValue, members_of, objects_in
from gateway.policy.decision import PASS, Reject
from gateway.policy.hidden_text import judge_hidden_text, strip_text
from gateway.policy.skill_policy import judge_entry, judge_skill_uri
from gateway.skills.skill_pages import FOLDER, TTL_MS, decode_cursor, encode_cursor, page_after
from gateway.tools.base import Finished, SkillMethod, SkillServing, cacheable
from gateway.tools.context import CallContext

logger = logging.getLogger(__name__)

ORIGIN_KEY = "dev.moongate/origin"
"""Key in the `_meta` of a skill's entry; its value is the id of the source that published the skill.

The gateway adds the key because it is an intermediary (SEP-2640): it lists skills of servers to its own clients.
"""

MANIFEST = "/SKILL.md"


class SkillCatalog:
    """Serves `skills/list`, `skills/get` and `resources/directory/read` for all sources with skills. Safe for concurrent calls."""

    def __init__(self, catalog: Catalog) -> None:
        self._catalog = catalog

    @property
    def has_skills(self) -> bool:
        """Whether any source supports the skills extension or has skills now."""
        return any(True for _ in self._serving())

    async def list_page(self, cursor: str | None, ctx: CallContext) -> JsonObject:
        """Return the result of `skills/list`: one page of one source. Its cursor leads to the source's next page, then to the next source.

        A remote server is skipped if its first page cannot be fetched.

        Raises:
            NotFound: The cursor was not made by this method, or its source no longer exists (kind `cursor`).
        """
        await self._catalog.ready()
        listings = self._serving()
        position, inner = _open_cursor(cursor, listings)
        for at in range(position, len(listings)):
            listing = listings[at]
            params: JsonObject = {} if inner is None else {"cursor": inner}
            try:
                page = await _page(listing, params, ctx)
            except GatewayError as error:
                if inner is not None or listing.entry.is_local:
                    raise
                logger.warning("skills not listed server=%s error=%s", listing.entry.source.id, error)
                continue
            entries = self._exposed(page, listing) if listing.serves_skills else objects_in(page["skills"])
            if ctx.facts.principal.rights is not None:
                entries = [entry for entry in entries if self._admits(ctx, listing, str(entry["uri"]))]
            following = page.get("nextCursor")
            inner = None
            if not entries and not isinstance(following, str) and at + 1 < len(listings):
                continue
            result = cacheable({"skills": entries}, _ttl(page))
            if isinstance(following, str):
                result["nextCursor"] = _cursor(listing, following)
            elif at + 1 < len(listings):
                result["nextCursor"] = _cursor(listings[at + 1], None)
            return result
        return cacheable({"skills": []})

    async def page_of(self, listing: SourceListing, cursor: str | None, ctx: CallContext) -> tuple[list[JsonObject], str | None, int]:
        """Request one page of `skills/list` from one source, with the source's own cursor, or `None` for the first page.

        Returns the entries with exposed URIs, the source's cursor of the next page (`None` after the last page), and `ttlMs`.
        """
        page = await _ask(listing, "skills/list", listing.entry.source.id, {} if cursor is None else {"cursor": cursor}, ctx)
        following = page.get("nextCursor")
        return self._exposed(page, listing), following if isinstance(following, str) else None, _ttl(page)

    def exposed(self, listing: SourceListing, uri: str) -> str | None:
        """Return the exposed URI (the URI that clients see) for a native URI of a source; `None` if policy hides the skill."""
        return expose_uri(listing.label, uri) if judge_skill_uri(uri, listing.entry.policy.skills) else None

    async def get(self, uri: str, ctx: CallContext) -> JsonObject:
        """Return the result of `skills/get`: the current entry of the skill with the exposed URI `uri`. Raises `NotFound`."""
        listing, native = await self._find("skill", uri)
        if not listing.serves_skills:
            return cacheable({"skill": await self._shown(listing, uri, ctx)}, TTL_MS)
        answer = await _ask(listing, "skills/get", uri, {"uri": native}, ctx, native)
        skill = answer.get("skill")
        exposed = self._exposed({"skills": [skill]}, listing)
        if not exposed:
            raise NotFound("skill", uri)
        return cacheable({"skill": exposed[0]}, _ttl(answer))

    async def directory(self, uri: str, cursor: str | None, ctx: CallContext) -> JsonObject:
        """Return the result of `resources/directory/read`: the direct children of the folder with the exposed URI `uri`.

        If the source does not support this method, the children are derived from the list of the skill's files. Raises `NotFound`.
        """
        listing, native = await self._find("directory", uri)
        read = Read(method="resources/directory/read", name=uri, subject=("resources", native), kind="directory", hidden_text="allow")
        return await listing.reads.fetch(read, ctx, lambda inner: self._directory(listing, native, uri, cursor, inner))

    async def _directory(self, listing: SourceListing, native: str, uri: str, cursor: str | None, ctx: CallContext) -> JsonObject:
        if not listing.serves_skills:
            return _tree(_shown_files(listing), uri, uri)
        source = cast("SkillServing", listing.entry.source)
        if not source.reads_directories:
            return await self._children(listing, native, uri, ctx)
        params: JsonObject = {"uri": native} if cursor is None else {"uri": native, "cursor": cursor}
        answer = await source.skills("resources/directory/read", params, ctx)
        found = [_exposed_uri(child, listing) for child in objects_in(answer.get("resources")) if _is_allowed(child.get("uri"), listing)]
        result = cacheable({"resources": found}, _ttl(answer))
        return {**result, "nextCursor": answer["nextCursor"]} if isinstance(answer.get("nextCursor"), str) else result

    def _admits(self, ctx: CallContext, listing: SourceListing, uri: str) -> bool:
        return listing.admits(ctx.facts.principal, "resources", self._catalog.locate(uri)[1])

    def _serving(self) -> list[SourceListing]:
        return [listing for listing in self._catalog.listings if listing.serves_skills or listing.shown_skills]

    async def show(self, listing: SourceListing, uri: str, ctx: CallContext) -> JsonObject | None:
        """Read a `SKILL.md` (exposed URI) of a server without the skills extension, and make the entry of the skill from it.

        Returns the entry and stores it in `listing.shown_skills`, so that `skills/list` lists it. Returns `None` if the file breaks the
        extension's rules for listed skills; such a skill is served by the gateway's skill tools only.

        Raises:
            NotFound: The server no longer has the file.
            SkillError: The file is not a usable `SKILL.md`.
            PolicyDenied: Policy forbids reading the file.
        """
        from gateway.skills.remote import entry_of

        try:
            entry = entry_of(self._catalog.locate(uri)[1], await self.bytes_at(uri, ctx))
        except (NotFound, PolicyDenied, SkillError):
            listing.shown_skills.pop(uri, None)
            raise
        exposed = self._exposed({"skills": [entry]}, listing) if entry is not None else []
        if not exposed:
            listing.shown_skills.pop(uri, None)
            return None
        listing.shown_skills[uri] = exposed[0]
        return exposed[0]

    async def bytes_at(self, uri: str, ctx: CallContext) -> bytes:
        """Read the resource with an exposed URI (the URI that clients see), if policy allows it, and return its content as bytes.

        Raises `SkillError` if the result has neither text nor base64.
        """
        from gateway.skills.remote import bytes_of

        outcome = await self._catalog.read_now(uri, ctx)
        found = bytes_of(outcome.result.get("contents")) if isinstance(outcome, Finished) else None
        if found is None:
            raise SkillError(f"The server sent neither text nor base64 for {uri!r}.", code="entry-differs")
        return found

    async def _shown(self, listing: SourceListing, uri: str, ctx: CallContext) -> JsonObject:
        """Return the current entry of a skill of a server without the skills extension, by reading its `SKILL.md` (`uri`) again.

        Raises `NotFound` if the skill is not listed, or if its file now breaks the extension's rules for listed skills.
        """
        entry = await self.show(listing, uri, ctx) if uri in listing.shown_skills else None
        if entry is None:
            raise NotFound("skill", uri)
        return entry

    def _exposed(self, page: JsonMapping, listing: SourceListing) -> list[JsonObject]:
        """Return the skill entries of a source's page that policy allows, in the form for clients (see `_expose`)."""
        entries = objects_in(page.get("skills"))
        if listing.entry.is_local:  # the local source has already left out the entries that policy denies
            return [_expose(entry, listing) for entry in entries]
        served = [_expose(entry, listing) for entry in entries if judge_entry(entry) and _is_served(entry, listing)]
        return [entry for entry in served if self._is_its(entry, listing)]

    def _is_its(self, entry: JsonMapping, listing: SourceListing) -> bool:
        """Return whether the gateway routes reads of the entry's exposed URI to the source `listing`.

        Two sources may list the same URI; only one of them receives the reads.
        """
        try:
            return self._catalog.locate(str(entry["uri"]))[0] is listing
        except NotFound:
            return False

    async def _find(self, kind: str, uri: str) -> tuple[SourceListing, str]:
        await self._catalog.ready()
        try:
            listing, native = self._catalog.locate(uri)
        except NotFound:
            raise NotFound(kind, uri) from None
        if listing not in self._serving():
            raise NotFound(kind, uri)
        return listing, native

    async def _children(self, listing: SourceListing, native: str, uri: str, ctx: CallContext) -> JsonObject:
        """Return the direct children of a folder, derived from the list of files in the entry of the skill that contains the folder.

        `native` is the URI of the folder at its source, and `uri` its exposed URI. Raises `NotFound` for an unknown or empty folder.
        """
        source = cast("SkillServing", listing.entry.source)
        place = native.rstrip("/")
        root = place
        files: list[str] = []
        while root.count("/") > 1 and not files:
            try:
                answer = await source.skills("skills/get", {"uri": root + MANIFEST}, ctx)
                listed = objects_in(members_of(answer.get("skill")).get("resources"))
                files = [str(file["uri"]) for file in listed if isinstance(file.get("uri"), str)]
            except NotFound:
                files = []
            root = root.rpartition("/")[0]
        return _tree([file for file in files if _is_allowed(file, listing)], place, expose_uri(listing.label, place))


async def _ask(
    listing: SourceListing, method: SkillMethod, name: str, params: JsonObject, ctx: CallContext, native: str | None = None
) -> JsonObject:
    """Send a request of the skills extension to a source, through the gate of the source (its policy checks), and return the result.

    If the request is about one skill, `native` is the native URI that the caller's rights must include. Hidden characters stay in the
    result, because MCP hosts compare entries with files.
    """
    source = cast("SkillServing", listing.entry.source)
    read = Read(method=method, name=name, subject=None if native is None else ("resources", native), kind="skill", hidden_text="allow")
    return await listing.reads.fetch(read, ctx, lambda inner: source.skills(method, params, inner))


async def _page(listing: SourceListing, params: JsonObject, ctx: CallContext) -> JsonObject:
    """Return one page of a source's skills, as a result of `skills/list`.

    For a source without the skills extension, the page is built from the entries in `SourceListing.shown_skills`.
    """
    if listing.serves_skills:
        return await _ask(listing, "skills/list", listing.entry.source.id, params, ctx)
    return page_after(params.get("cursor"), "skills", sorted(listing.shown_skills.items()))


def _shown_files(listing: SourceListing) -> list[str]:
    """Return the exposed URIs of the files of all skills of a server without the skills extension.

    These are the skills' `SKILL.md` files, and the server's resources in the folders of these files.
    """
    roots = tuple(uri.removesuffix(MANIFEST) + "/" for uri in listing.shown_skills)
    return list(dict.fromkeys([*listing.shown_skills, *(uri for uri in listing.natives.get("resources", {}) if uri.startswith(roots))]))


def _tree(files: Sequence[str], place: str, uri: str) -> JsonObject:
    """Return the direct children of a folder as a result of `resources/directory/read`. Raises `NotFound` for an unknown or empty folder.

    `files` are the URIs of the skill's files, and `place` is the folder's URI in the same form. `uri` is the folder's exposed URI; the URIs
    in the result begin with it.
    """
    children: dict[str, JsonObject] = {}
    for file in files:
        if file.startswith(f"{place}/"):
            name, slash, _ = file[len(place) + 1 :].partition("/")
            child: JsonObject = {"uri": f"{uri}/{name}", "name": unquote(name)}
            children[name] = {**child, "mimeType": FOLDER} if slash else child
    if not children:
        raise NotFound("directory", uri)
    return cacheable({"resources": list[JsonMapping](children.values())})


def _is_served(entry: JsonMapping, listing: SourceListing) -> bool:
    """Return whether policy allows a skill's entry: the patterns of the policy include the skill, and no text has forbidden characters.

    Hidden characters are forbidden if the policy sets `hiddenText` to `refuse`.
    """
    if not _is_allowed(entry.get("uri"), listing):
        return False
    verdict = judge_hidden_text(dict(entry), "The entry") if listing.hidden_text == "refuse" else PASS
    if isinstance(verdict, Reject):
        uri = strip_text(str(entry.get("uri")))
        logger.warning("skill left out server=%s skill=%s reason=%s", listing.entry.source.id, uri, verdict.reason)
        return False
    return True


def _is_allowed(uri: JsonValue, listing: SourceListing) -> bool:
    return isinstance(uri, str) and judge_skill_uri(uri, listing.entry.policy.skills)


def _expose(entry: JsonMapping, listing: SourceListing) -> JsonObject:
    """Return a remote skill's entry with exposed URIs, without files that policy denies, and with the id of its source in `_meta`.

    The entry of a skill of this gateway itself stays unchanged.
    """
    if listing.entry.is_local and not listing.label:
        return dict(entry)
    exposed = _exposed_uri(entry, listing)
    if isinstance(entry.get("resources"), list):
        exposed["resources"] = [_exposed_uri(f, listing) for f in objects_in(entry["resources"]) if _is_allowed(f.get("uri"), listing)]
    if not listing.entry.is_local:
        exposed["_meta"] = {**members_of(entry.get("_meta")), ORIGIN_KEY: listing.entry.source.id}
    return exposed


def _exposed_uri(wire: JsonMapping, listing: SourceListing) -> JsonObject:
    uri = wire.get("uri")
    return {**wire, "uri": expose_uri(listing.label, uri)} if isinstance(uri, str) else dict(wire)


def _ttl(answer: JsonMapping) -> int:
    ttl = answer.get("ttlMs")
    return max(0, int(ttl)) if isinstance(ttl, int | float) and not isinstance(ttl, bool) else 0


def _cursor(listing: SourceListing, inner: str | None) -> str:
    return encode_cursor(json.dumps([listing.entry.source.id, inner]))


def _open_cursor(cursor: str | None, listings: Sequence[SourceListing]) -> tuple[int, str | None]:
    """Decode a cursor of `skills/list`: return the index of its source in `listings`, and the source's own cursor. Raises `NotFound`."""
    if cursor is None:
        return 0, None
    try:
        source, inner = json.loads(decode_cursor(cursor))
    except (ValueError, TypeError):
        raise NotFound("cursor", cursor) from None
    for position, listing in enumerate(listings):
        if listing.entry.source.id == source and (inner is None or isinstance(inner, str)):
            return position, inner
    raise NotFound("cursor", cursor)

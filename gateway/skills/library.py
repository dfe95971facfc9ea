"""`SkillLibrary`: holds the current index of all skills, keeps it up to date, and reads files of skills with a check of their digest.

The skills are in folders, or are provided by backends: Python objects and remote servers. Tools, resources, prompts and the skills
extension all use the same library, so that listings and reads agree. Disk access happens in worker threads. The library does not depend on
MCP messages.
"""

from __future__ import annotations

import dataclasses
import logging
import os
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path

import anyio
import anyio.to_thread

from gateway.config.skill_settings import SignatureRule
from gateway.errors import NotFound, SkillError
from gateway.policy.caller_rights import Rights
from gateway.policy.decision import PASS, Reject, Verdict
from gateway.policy.scopes import RULE
from gateway.skills.backend import SkillBackend
from gateway.skills.index import SOURCE_ID, SkillIndex, build_index, is_same, own_uri, with_more
from gateway.skills.index_cache import cache_file, read_cache, write_cache
from gateway.skills.model import MANIFEST, Key, Skill, SkillFile
from gateway.skills.parser import parse_skill
from gateway.skills.reader import read_verified
from gateway.skills.remote import MAX_ATTEMPTS, read_listed
from gateway.tools.context import CallContext

logger = logging.getLogger(__name__)

REST_FACTOR = 20
"""Minimum ratio of the pause after a refresh to the duration of the refresh, so that a large number of skills does not keep a core busy."""

_EMPTY = SkillIndex()
"""A skill index without skills, which the library uses before the first refresh."""

OnSwap = Callable[[SkillIndex, SkillIndex], None]
"""Callback for a change of the index of all skills. Receives the old and the new index; is called synchronously, and must not block or
raise."""


class SkillLibrary:
    """All skills: those in folders below `paths`, and those of backends, which provide skills that are not in folders.

    Call `refresh` once before use; `watch` then keeps the index of the skills current.
    """

    def __init__(
        self,
        paths: Sequence[Path],
        *,
        strict: bool = False,
        refresh_seconds: float = 5.0,
        state_folder: Path | None = None,
        backends: Sequence[SkillBackend] = (),
        keeps: Callable[[str], bool] | None = None,
        signed: Mapping[str, SignatureRule] | None = None,
    ) -> None:
        """Store the settings. Nothing is read before `refresh`.

        `strict` refuses skills with warnings. Folders are checked again after `refresh_seconds`; with 0, every use reads the folders on
        disk. `keeps` receives the id of one of the gateway's own skills (not of a remote server), and returns whether the skill is served.
        `signed` has a rule for each root folder whose skills must be signed. The index is cached in `state_folder`, except with `signed`:
        signatures are checked at every start.
        """
        self._roots = tuple(str(path) for path in paths)
        self._strict = strict
        self._signed = {os.path.realpath(root): rule for root, rule in (signed or {}).items()}
        self._refresh_seconds = refresh_seconds
        self._folders: SkillIndex | None = None
        self._index = _EMPTY
        self._keeps = keeps
        self._backends: dict[str, SkillBackend] = {}
        self._cache = cache_file(state_folder, self._roots) if state_folder is not None and not signed else None
        self._is_cached = True
        self._checked = float("-inf")
        self._lock = anyio.Lock()
        self._listeners: list[OnSwap] = []
        for backend in backends:
            self.add(backend)

    @property
    def index(self) -> SkillIndex:
        """The index (table) of all skills that was built last. Reading this property never accesses the disk."""
        return self._index

    def add(self, backend: SkillBackend) -> None:
        """Add a provider of skills that are not in folders. Its skills are in the index at once, or from the first `refresh` on."""
        self._backends[backend.id] = backend
        backend.subscribe(self._combine)
        self._combine()

    def has(self, backend: SkillBackend) -> bool:
        """Return whether exactly this `SkillBackend` object (a provider of skills) was added to the library."""
        return self._backends.get(backend.id) is backend

    def backend_of(self, skill: Skill) -> SkillBackend | None:
        """Return the `SkillBackend` that provides a skill; `None` for a skill in a folder."""
        return self._backends.get(skill.key[0])

    def subscribe(self, listener: OnSwap) -> None:
        """Register a callback that is called with the old and the new skill index after each change of the index."""
        self._listeners.append(listener)

    async def current(self) -> SkillIndex:
        """Return the skill index, after a refresh if the last refresh is older than `refresh_seconds`.

        Also waits, with the deadline of `SkillBackend.ready`, until every backend has listed its skills for the first time.
        """
        if anyio.current_time() - self._checked >= self._refresh_seconds:
            await self.refresh()
        for backend in self._backends.values():
            await backend.ready()
        return self.index

    async def refresh(self) -> SkillIndex:
        """Check every skill folder and backend for changes now, and return the index. An unchanged folder costs one `stat` per file."""
        asked = anyio.current_time()
        async with self._lock:
            if self._checked < asked:
                started = anyio.current_time()
                await self._build(None)
                for backend in self._backends.values():
                    await backend.refresh()
                self._checked = started
        return self.index

    async def store(self) -> None:
        """Write the skill index to the cache file for the next start, if the index changed since it was last written."""
        if self._cache is not None and not self._is_cached:
            self._is_cached = True
            await anyio.to_thread.run_sync(write_cache, self._cache, self.index.folders)

    async def watch(self) -> None:
        """Check for changes every `refresh_seconds` and store the index in the cache, until cancelled. Long checks get longer pauses."""
        while True:
            started = anyio.current_time()
            await self.current()
            await self.store()
            took = anyio.current_time() - started
            await anyio.sleep(max(self._refresh_seconds, took * REST_FACTOR))

    def judge(self, skill: Skill, path: str, rights: Rights | None) -> Verdict:
        """Decide whether a caller with these rights may read a file of a skill. `None` as rights allows everything.

        The file is judged as a resource of the source that publishes the skill: the gateway itself, or a remote server.
        """
        if rights is None:
            return PASS
        backend = self.backend_of(skill)
        try:
            source, uri = (SOURCE_ID, own_uri(skill, path)) if backend is None else backend.locate(skill, path)
        except NotFound as error:
            return Reject(RULE, str(error))
        return rights.decide("resources", source, uri).verdict

    async def recheck(self, skill: Skill, ctx: CallContext) -> Skill:
        """Read one skill again, and return it as its folder or backend has it now, with the text of its `SKILL.md`.

        Raises:
            NotFound: The skill is gone, or is refused now.
            SkillError: A server's `SKILL.md` has an error, or differs from the entry that the server lists (code `entry-differs`); or
                reading the `SKILL.md` fails as in `read`.
            GatewayError: The backend cannot be reached, or its code fails.
        """
        backend = self.backend_of(skill)
        if backend is None:
            return await self._reread(skill)
        if skill.is_remote:
            skill = await backend.renew(skill, ctx)
        skill, _, data = await self.read(skill, MANIFEST, ctx)
        document = parse_skill(data, directory=skill.document.name)
        known = dataclasses.replace(skill.document, text=document.text, body_start=document.body_start)
        if skill.is_remote:
            if known.conformant and document.frontmatter != known.frontmatter:
                text = f"The frontmatter of skill {skill.id!r} differs from what {skill.origin!r} lists; the skill is not used."
                raise SkillError(text, code="entry-differs")
            if problem := next((d.message for d in document.diagnostics if d.level == "error"), None):
                raise SkillError(f"Skill {skill.id!r} of {skill.origin!r} cannot be used: {problem}", code="entry-differs")
            known = dataclasses.replace(known, frontmatter=document.frontmatter)
        return dataclasses.replace(skill, document=known)

    async def _reread(self, skill: Skill) -> Skill:
        folder = self.index.folders.get(skill.key)
        if folder is None or not await anyio.to_thread.run_sync(folder.is_current):
            async with self._lock:
                await self._build(frozenset({skill.key}))
        now = self.index.by_key.get(skill.key)
        if now is None:
            raise NotFound("skill", skill.id)
        return now

    async def read(self, skill: Skill, path: str, ctx: CallContext) -> tuple[Skill, SkillFile, bytes]:
        """Read the file `path` of a skill. Return the current skill, the file's current description (`SkillFile`), and the file's bytes.

        The bytes have the digest in that description. If the file changed since it was indexed, the skill is indexed again first.

        Raises:
            NotFound: The skill has no such file, or no longer has it.
            SkillError: The file changes faster than it can be read (code `unstable`), or its backend keeps sending bytes whose
                digest differs from the listed digest (code `digest-differs`) or a file that is too large (code `too-large`).
            GatewayError: The backend cannot be reached, or its code fails.
        """
        if (backend := self.backend_of(skill)) is not None:
            return await read_listed(skill, path, partial(backend.fetch, ctx=ctx), partial(backend.renew, ctx=ctx))
        for _ in range(MAX_ATTEMPTS):
            file = skill.files.get(path)
            if file is None:
                raise NotFound("resource", path)
            data = await anyio.to_thread.run_sync(read_verified, skill.key[0], file)
            if data is not None:
                return skill, file, data
            skill = await self._reread(skill)
        raise SkillError(f"{path!r} of skill {skill.id!r} keeps changing; try again.", code="unstable")

    async def _build(self, only: frozenset[Key] | None) -> None:
        """Build the index of the skill folders again. If the disk cannot be read, the last index stays. The caller must hold `_lock`.

        `only` has the keys of the folders to check; `None` checks all folders.
        """
        old = self._folders
        try:
            cached = await anyio.to_thread.run_sync(read_cache, self._cache) if old is None and self._cache is not None else None
            build = partial(build_index, self._roots, strict=self._strict, signed=self._signed)
            new = await anyio.to_thread.run_sync(partial(build, previous=old, only=only, cached=cached))
        except OSError as error:
            logger.warning("skills not refreshed, keeping the last index error=%s", error)
            return
        if new is old:
            return
        old = old if old is not None else _EMPTY
        self._folders = new
        self._is_cached = cached is not None and is_same(new.folders, cached)
        if new.reports != old.reports or new.trouble != old.trouble:
            refused = sum(r.verdict == "rejected" for r in (*new.reports, *new.trouble))
            logger.info("skills indexed served=%d listed=%d refused=%d", len(new.skills), len(new.listed), refused)
        self._combine()

    def _combine(self) -> None:
        """Create the index of all skills, those of folders and those of backends, and call the callbacks for a change of the index."""
        if self._folders is None:
            return
        more = [skill for backend in self._backends.values() for skill in backend.skills]
        old, self._index = self._index, with_more(self._folders, more, self._keeps)
        for listener in self._listeners:
            listener(old, self._index)

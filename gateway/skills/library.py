"""`SkillLibrary`: the live index over folders and other homes of skills: built once, refreshed when the disk changed, read with care.

The one holder of the current `SkillIndex`; tools, resources, prompts and the extension all ask it, so what they
list and what they read agree. All disk work happens in worker threads. Knows nothing of MCP shapes.
"""

from __future__ import annotations

import hashlib
import logging
import os
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path

import anyio
import anyio.to_thread

from gateway.config.skills import SignatureRule
from gateway.errors import NotFound, SkillError
from gateway.policy.decision import PASS, Reject, Verdict
from gateway.policy.scopes import RULE, judge_scope
from gateway.skills.files import Changed, read_file
from gateway.skills.homes import SkillHome
from gateway.skills.index import SOURCE_ID, Key, SkillIndex, build_index, is_current, own_uri, with_more
from gateway.skills.models import Skill, SkillFile
from gateway.skills.remembered import file_for, keep, recall, same_candidates
from gateway.tools.context import CallContext

logger = logging.getLogger(__name__)

MAX_ATTEMPTS = 3
"""How often a read starts over when the file keeps changing under it."""

REST_FACTOR = 20
"""Looking for changes takes at most one part in this many of the time, however many skills there are."""

_NONE = SkillIndex()
"""Before the first look."""

OnSwap = Callable[[SkillIndex, SkillIndex], None]
"""Called with the old and the new index, synchronously, after each change; must not block or raise."""


class SkillLibrary:
    """Skills below `paths`. Call `refresh` once before use; `watch` keeps it current without being asked."""

    def __init__(
        self,
        paths: Sequence[Path],
        *,
        strict: bool = False,
        refresh_seconds: float = 5.0,
        state_folder: Path | None = None,
        homes: Sequence[SkillHome] = (),
        keeps: Callable[[str], bool] | None = None,
        signed: Mapping[str, SignatureRule] | None = None,
    ) -> None:
        """No side effects. With `refresh_seconds` 0 every use looks at the disk. The index is kept in `state_folder`, but not where
        any root is in `signed`, whose skills must be signed: signatures are checked at every start.

        `homes` have skills that are in no folder; a skill of ours whose id `keeps` refuses is not served.
        """
        self._roots = tuple(str(path) for path in paths)
        self._strict = strict
        self._signed = {os.path.realpath(root): rule for root, rule in (signed or {}).items()}
        self._refresh_seconds = refresh_seconds
        self._folders: SkillIndex | None = None
        self._index = _NONE
        self._keeps = keeps
        self._homes: dict[str, SkillHome] = {}
        self._file = file_for(state_folder, self._roots) if state_folder is not None and not signed else None
        self._is_kept = True
        self._checked = float("-inf")
        self._lock = anyio.Lock()
        self._listeners: list[OnSwap] = []
        for home in homes:
            self._adopt(home)

    @property
    def index(self) -> SkillIndex:
        """The table as last built; never touches the disk."""
        return self._index

    def add(self, home: SkillHome) -> None:
        """Serve the skills of another home too."""
        self._adopt(home)
        self._combine()

    def has(self, home: SkillHome) -> bool:
        """Whether it is one of ours."""
        return self._homes.get(home.id) is home

    def _adopt(self, home: SkillHome) -> None:
        self._homes[home.id] = home
        home.subscribe(self._combine)

    def home_of(self, skill: Skill) -> SkillHome | None:
        """Where a skill is that is in no folder."""
        return self._homes.get(skill.key[0])

    def subscribe(self, listener: OnSwap) -> None:
        """Hear of every change."""
        self._listeners.append(listener)

    async def current(self) -> SkillIndex:
        """The table, looked over again if the last look is older than `refresh_seconds`."""
        if anyio.current_time() - self._checked >= self._refresh_seconds:
            await self.refresh()
        for home in self._homes.values():
            await home.ready()
        return self.index

    async def refresh(self) -> SkillIndex:
        """Look at every folder now. A pass of `stat` calls when nothing changed."""
        asked = anyio.current_time()
        async with self._lock:
            if self._checked < asked:
                started = anyio.current_time()
                await self._build(None)
                for home in self._homes.values():
                    await home.refresh()
                self._checked = started
        return self.index

    async def keep(self) -> None:
        """Write the index down for the next start, if it changed since."""
        if self._file is not None and not self._is_kept:
            self._is_kept = True
            await anyio.to_thread.run_sync(keep, self._file, self.index.candidates)

    async def watch(self) -> None:
        """Refresh every `refresh_seconds`, or less often where a look takes long; until cancelled."""
        while True:
            started = anyio.current_time()
            await self.current()
            await self.keep()
            took = anyio.current_time() - started
            await anyio.sleep(max(self._refresh_seconds, took * REST_FACTOR))

    def judge(self, skill: Skill, path: str, scopes: Sequence[str] | None) -> Verdict:
        """Whether a caller with these scopes may read a file of a skill: as the resource that it is of the source that publishes it."""
        if scopes is None:
            return PASS
        home = self.home_of(skill)
        try:
            source, uri = (SOURCE_ID, own_uri(skill, path)) if home is None else home.place_of(skill, path)
        except NotFound as error:
            return Reject(RULE, str(error))
        return judge_scope(scopes, "resources", source, uri)

    async def recheck(self, skill: Skill, ctx: CallContext) -> Skill:
        """The skill as its folder or home is now; every other one stays as it was.

        Raises:
            NotFound: It is gone, or refused since.
            GatewayError: Its home cannot be reached.
        """
        home = self.home_of(skill)
        if home is not None:
            return await home.renew(skill, ctx)
        if not await anyio.to_thread.run_sync(is_current, self.index, skill.key):
            async with self._lock:
                await self._build(frozenset({skill.key}))
        now = self.index.by_key.get(skill.key)
        if now is None:
            raise NotFound("skill", skill.id)
        return now

    async def read(self, skill: Skill, path: str, ctx: CallContext) -> tuple[Skill, SkillFile, bytes]:
        """The bytes of a file by its path in the index, with the skill and file they belong to.

        The bytes always have the file's digest: where the disk moved on, the skill is indexed again first.

        Raises:
            NotFound: There is no such file, or not any more.
            SkillError: The file changes faster than it can be read.
            GatewayError: Its home cannot be reached.
        """
        home = self.home_of(skill)
        if home is not None:
            return await home.read(skill, path, ctx)
        for _ in range(MAX_ATTEMPTS):
            file = skill.files.get(path)
            if file is None:
                raise NotFound("resource", path)
            data = await anyio.to_thread.run_sync(_read_verified, skill.key[0], file)
            if data is not None:
                return skill, file, data
            skill = await self.recheck(skill, ctx)
        raise SkillError(f"{path!r} of skill {skill.id!r} keeps changing; try again.", code="unstable")

    async def _build(self, only: frozenset[Key] | None) -> None:
        """Replace the index; the caller holds the lock. What the disk shows cannot fail it, a broken disk leaves it as it is."""
        old = self._folders
        try:
            remembered = await anyio.to_thread.run_sync(recall, self._file) if old is None and self._file is not None else None
            build = partial(build_index, self._roots, strict=self._strict, signed=self._signed)
            new = await anyio.to_thread.run_sync(partial(build, previous=old, only=only, remembered=remembered))
        except OSError as error:
            logger.warning("skills could not be looked at, keeping the last state error=%s", error)
            return
        if new is old:
            return
        old = old if old is not None else _NONE
        self._folders = new
        self._is_kept = remembered is not None and same_candidates(new.candidates, remembered)
        if new.reports != old.reports or new.trouble != old.trouble:
            refused = sum(r.verdict == "rejected" for r in (*new.reports, *new.trouble))
            logger.info("skills indexed served=%d listed=%d refused=%d", len(new.skills), len(new.listed), refused)
        self._combine()

    def _combine(self) -> None:
        """Put the table together from what folders and homes have now, and tell who listens."""
        if self._folders is None:
            return
        more = [skill for home in self._homes.values() for skill in home.skills]
        old, self._index = self._index, with_more(self._folders, more, self._keeps)
        for listener in self._listeners:
            listener(old, self._index)


def _read_verified(root: str, file: SkillFile) -> bytes | None:
    """The bytes behind an indexed file, or `None` when they are not the indexed ones any more."""
    try:
        data, _ = read_file(root, file.segments, file.size)
    except Changed:
        return None
    return data if f"sha256:{hashlib.sha256(data).hexdigest()}" == file.digest else None

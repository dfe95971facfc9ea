"""`SkillIndex`: an immutable table of every served skill, with the ids and URIs that `build_index` assigns to the skills.

The skills extension, resources, tools and prompts all answer from the same index, so that they agree. Building the index again reuses
everything that did not change on disk. Input of clients is looked up in the index and never joined to a path. Blocking; `library` builds
the index in a worker thread.
"""

from __future__ import annotations

import logging
import os
import re
from collections import Counter
from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import cast
from urllib.parse import quote

from gateway.config.skill_settings import SignatureRule
from gateway.diagnostics import Diagnostic
from gateway.json_types import JsonObject, JsonValue
from gateway.skills.model import MANIFEST, Key, Skill, SkillFile, SkillReport, verdict_of
from gateway.skills.reader import FolderReader, SkillFolder
from gateway.skills.skill_search import SearchIndex

logger = logging.getLogger(__name__)

SCHEME = "skill://"

SOURCE_ID = "skill"
"""Id of the source that publishes the gateway's own skills: those in folders and those that are Python objects."""

PREFIX = "code"
"""First segment of the id `code/<name>`, which a skill that is a Python object gets if another skill already has its id.

If a skill is called `code`, or the id `code/<name>` is taken too, the first segment is `code-2`, `code-3` and so on.
"""

_SAFE = "-._~!$&'()*+,;=:@"
"""Characters besides letters and digits that a segment of a URI path may contain without percent-encoding (RFC 3986, `pchar`)."""


@dataclass(frozen=True, slots=True)
class SkillIndex:
    """All served skills, and tables to look them up. Created by `build_index` and `with_more`; never modified."""

    folders: Mapping[Key, SkillFolder] = field(default_factory=lambda: cast("dict[Key, SkillFolder]", {}))
    """Key of a skill folder → everything that was read of the folder. Includes folders whose skill is refused and not served."""
    skills: tuple[Skill, ...] = ()
    """All served skills, sorted by id."""
    listed: tuple[Skill, ...] = ()
    """The gateway's own skills (not those of remote servers) that have URIs, sorted by URI."""
    for_models: tuple[Skill, ...] = ()
    """The skills that models may see, sorted by id. Skill tools, search results and lists of skills for models are made from these."""
    reports: tuple[SkillReport, ...] = ()
    """One report per skill folder that was found: whether the skill is served or refused, and its diagnostics.

    A skill folder inside another skill has no report if its `SKILL.md` cannot be listed; it is then part of the other skill.
    """
    trouble: tuple[SkillReport, ...] = ()
    """One report per root folder (a folder searched for skills) that cannot be used, or that was not searched completely."""
    by_key: Mapping[Key, Skill] = field(default_factory=lambda: cast("dict[Key, Skill]", {}))
    by_root: Mapping[str, Skill] = field(default_factory=lambda: cast("dict[str, Skill]", {}))
    """URI of a skill's folder → the skill, for the gateway's own skills that have URIs (`listed`)."""
    by_file: Mapping[str, tuple[Skill, SkillFile]] = field(default_factory=lambda: cast("dict[str, tuple[Skill, SkillFile]]", {}))
    """URI of a file (percent-encoded as by `file_uri`) → the skill and the file, for all files of the gateway's own skills that have
    URIs (`listed`)."""
    search: SearchIndex = field(default_factory=lambda: SearchIndex([]))
    by_name: Mapping[str, tuple[Skill, ...]] = field(default_factory=lambda: cast("dict[str, tuple[Skill, ...]]", {}))
    """Case-folded id, name or frontmatter name of a skill → the skills that models may see (`for_models`) to which it refers."""

    @property
    def has_uris(self) -> bool:
        """Whether any served skill has `skill://` URIs. Skills of remote servers count, too."""
        return any(skill.is_listed for skill in self.skills)

    def named(self, name: str) -> list[Skill]:
        """Return the skills to which `name`, written by a model or a user, can refer, among those that models may see (`for_models`).

        An id or a `skill://` URI refers to one skill, a name without slash to every skill with that name. Upper and lower case are treated
        as equal, unless a skill is spelled exactly like `name`: then skills that differ in case are left out.
        """
        wanted = name.strip().removesuffix(f"/{MANIFEST}").removeprefix(SCHEME).rstrip("/")
        found = self.by_name.get(wanted.casefold(), ())
        if name.strip().startswith(SCHEME) or "/" in wanted:
            found = [s for s in found if s.id.casefold() == wanted.casefold()]
            return [s for s in found if s.id == wanted] or found
        return [s for s in found if s.name == wanted] or list(found)

    def handle(self, skill: Skill) -> str:
        """Return the text that models and users pass to name this skill: its name, or `skill://<id>` if several skills have that name.

        `named` finds exactly this skill by this text, if models may see the skill.
        """
        return skill.name if len(self.named(skill.name)) == 1 else SCHEME + skill.id

    def directory(self, uri: str) -> tuple[Skill, str] | None:
        """Return the skill that contains the folder with this URI, and the folder's path in the skill; `None` if no skill contains it.

        The URI has no slash at its end. The path of the skill's own folder is empty.
        """
        root = uri
        while root and root not in self.by_root:
            root = root.rpartition("/")[0]
        if not root:
            return None
        skill = self.by_root[root]
        for path in skill.files:
            parts = path.split("/")[:-1]
            for depth in range(len(parts) + 1):
                folder = "/".join(parts[:depth])
                if (file_uri(root, folder) if folder else root) == uri:
                    return skill, folder
        return None


def file_uri(root_uri: str, path: str) -> str:
    """Return the URI of a skill's file: `root_uri`, the URI of the skill's folder, and the percent-encoded segments of `path`."""
    return "/".join((root_uri, *(quote(segment, safe=_SAFE) for segment in path.split("/"))))


def children(skill: Skill, folder: str) -> dict[str, SkillFile | None]:
    """Return the files and folders directly inside the folder `folder` of a skill, by path. The folder `""` is the skill's own folder.

    A file's path maps to the file. A folder's path ends in `/` and maps to `None`.
    """
    prefix = f"{folder}/" if folder else ""
    found: dict[str, SkillFile | None] = {}
    for path, file in skill.files.items():
        if path.startswith(prefix):
            name, slash, _ = path[len(prefix) :].partition("/")
            found[prefix + name + slash] = None if slash else file
    return found


def own_uri(skill: Skill, path: str) -> str:
    """Return the URI by which the scopes of API keys allow or refuse a file of a skill that is not on a remote server.

    If the skill has no URI, because it is not listed, a URI is made from the skill's id.
    """
    return file_uri(skill.root_uri or f"{SCHEME}{skill.id}", path)


def build_index(
    roots: Sequence[str],
    *,
    strict: bool = False,
    previous: SkillIndex | None = None,
    only: frozenset[Key] | None = None,
    cached: Mapping[Key, SkillFolder] | None = None,
    signed: Mapping[str, SignatureRule] | None = None,
) -> SkillIndex:
    """Read the skills below the folders `roots` and assign their ids and URIs. Return `previous` itself if nothing changed.

    Skill folders that did not change on disk are not read again. They are taken from `previous`, the last index; at the first call from
    `cached`, the content of the cache file. `only` has keys of skill folders: just these folders, and folders that contain them or are
    inside them, are checked for changes. `strict` refuses skills with warnings. `signed` has a signature rule for each root folder whose
    skills must be signed.
    """
    known: Mapping[Key, SkillFolder] = previous.folders if previous else (cached or {})
    reader = FolderReader(known, signed or {})
    folders: dict[Key, SkillFolder] = {}
    if only is not None and previous is not None:
        reader.trouble += previous.trouble
        for key, folder in known.items():
            is_touched = any(folder.overlaps(known[other]) for other in only if other in known)
            folders[key] = reader.read(key, is_nested=folder.is_nested) if is_touched else folder
    else:
        for folder in reader.read_roots(roots):
            folders.setdefault(folder.key, folder)
    if previous is not None and tuple(reader.trouble) == previous.trouble and is_same(folders, known):
        return previous
    return _assemble(folders, reader.trouble, strict=strict)


def is_same(now: Mapping[Key, SkillFolder], then: Mapping[Key, SkillFolder]) -> bool:
    """Return whether `now` and `then` have the same `SkillFolder` objects in the same order, so that no folder was read again."""
    return list(now) == list(then) and all(then[key] is folder for key, folder in now.items())


def _assemble(folders: Mapping[Key, SkillFolder], trouble: Sequence[SkillReport], *, strict: bool) -> SkillIndex:
    taken: set[str] = set()
    names = Counter(c.document.name for c in folders.values() if _is_listable(c, strict))
    skills: list[Skill] = []
    reports: list[SkillReport] = []
    for folder in folders.values():
        listable = _is_listable(folder, strict)
        if folder.is_nested and not listable:
            continue  # its files are served as files of the skill that contains the folder
        skill = None
        if folder.verdict(strict=strict) != "rejected":
            skill_id = _unique_id(folder, taken, names, listable=listable)
            skill = _to_skill(folder, skill_id, listable=listable)
            if strict and skill.diagnostics != folder.diagnostics:
                skill, folder = None, replace(folder, diagnostics=skill.diagnostics)
            else:
                taken.add(skill_id)
                skills.append(skill)
        reports.append(_report(folder, skill))
    return _tabulate(SkillIndex(folders=folders, reports=tuple(reports), trouble=tuple(trouble)), skills)


def with_more(index: SkillIndex, more: Sequence[Skill], keeps: Callable[[str], bool] | None) -> SkillIndex:
    """Return a copy of `index`, the index of skills in folders, with the skills of other providers (`more`) added.

    If a skill in `more` has the same id as an earlier skill, the earlier skill keeps the id; skills in folders come first. The later skill
    gets a prefix (`code/<name>`) if it is a Python object. If it is a remote server's skill, it is left out and logged, because its URIs
    belong to that server. `keeps` selects among the local skills, which are in folders or are Python objects: a local skill is left out if
    `keeps` returns false for its id. `None` selects all.
    """
    if not more and keeps is None:
        return index
    skills = list(index.skills)
    taken = {skill.id for skill in skills}
    names = {skill.name for skill in (*skills, *more)}
    for skill in more:
        served = skill
        if skill.id in taken:
            if skill.is_remote:
                logger.warning("skill left out reason=uri-taken skill=%s server=%s", skill.id, skill.origin)
                continue
            note = Diagnostic("name-taken", "warning", f"Another skill is called {skill.id!r}; rename one.")
            served = replace(published(skill, _prefixed(PREFIX, skill.name, taken, names)), diagnostics=(*skill.diagnostics, note))
        taken.add(served.id)
        skills.append(served)
    return _tabulate(index, skills if keeps is None else [skill for skill in skills if skill.is_remote or keeps(skill.id)])


def _tabulate(index: SkillIndex, skills: list[Skill]) -> SkillIndex:
    """Return a copy of the skill index `index` that has `skills` as its skills, with new lookup tables for them."""
    skills.sort(key=lambda s: s.id)
    own = [s for s in skills if s.is_listed and not s.is_remote]
    for_models = tuple(s for s in skills if s.is_for_models)
    by_name: dict[str, tuple[Skill, ...]] = {}
    for skill in for_models:
        for name in {skill.id.casefold(), skill.name.casefold(), skill.document.name.casefold()} - {""}:
            by_name[name] = (*by_name.get(name, ()), skill)
    return replace(
        index,
        skills=tuple(skills),
        listed=tuple(sorted(own, key=lambda s: s.root_uri)),
        for_models=for_models,
        by_key={s.key: s for s in skills},
        by_root={s.root_uri: s for s in own},
        by_file={file_uri(s.root_uri, f.path): (s, f) for s in own for f in s.files.values()},
        search=SearchIndex(for_models),
        by_name=by_name,
    )


def _is_listable(folder: SkillFolder, strict: bool) -> bool:
    within = not any(d.code in ("too-many-files", "too-large") for d in folder.diagnostics)
    return folder.document.conformant and within and folder.verdict(strict=strict) != "rejected"


def _unique_id(folder: SkillFolder, taken: set[str], names: Counter[str], *, listable: bool) -> str:
    """Return an unused id for the skill in `folder`: its name, or `<prefix>/<name>` if another skill has that id.

    The name is that in the frontmatter or, if `listable` is false, a name made of the folder's name. The prefix is made of the name of the
    skill's folder or of its parent folder. It is never the name of a skill that can be in `skills/list`, because the new URI would then be
    below the URI of that skill. A skill that cannot be in `skills/list` (`listable` is false) never takes the name of a skill that
    can.
    """
    name = folder.document.name if listable else _slug(folder.name)
    if name not in taken and (listable or name not in names):
        return name
    around = folder.segments[-2] if len(folder.segments) > 1 else os.path.basename(folder.key[0])
    return _prefixed(_slug(around) if _slug(folder.name) == name else _slug(folder.name), name, taken, names)


def _prefixed(stem: str, name: str, taken: Container[str], names: Container[str]) -> str:
    prefix, number = stem, 1
    while prefix in names or f"{prefix}/{name}" in taken:
        number += 1
        prefix = f"{stem}-{number}"
    return f"{prefix}/{name}"


def _slug(text: str) -> str:
    """Convert `text` to a legal skill name: lower-case letters, digits and single hyphens, at most 60 characters."""
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")[:60].rstrip("-") or "skill"


def _to_skill(folder: SkillFolder, skill_id: str, *, listable: bool) -> Skill:
    diagnostics = folder.diagnostics
    if "/" in skill_id:
        note = f"Another skill is called {skill_id.rpartition('/')[2]!r}; this one is served as {skill_id!r}. Rename one."
        diagnostics = (*diagnostics, Diagnostic("name-taken", "warning", note))
    skill = Skill(
        id=skill_id,
        key=folder.key,
        origin="/".join((os.path.basename(folder.key[0]) or "root", *folder.segments)),
        root_uri="",
        document=folder.document,
        files=folder.files,
        diagnostics=diagnostics,
    )
    return published(skill, skill_id) if listable else skill


def published(skill: Skill, skill_id: str) -> Skill:
    """Return a copy of the skill with the id `skill_id`, its `skill://` URI, and its entry for `skills/list` (SEP-2640).

    `resources` in the entry lists the files, or is `dynamic` if the content of any file is made at each read.
    """
    root_uri = SCHEME + skill_id
    files = skill.files.values()
    resources = [{"uri": file_uri(root_uri, f.path), "digest": f.digest, "size": f.size} for f in files]
    entry: JsonObject = {
        "uri": f"{root_uri}/{MANIFEST}",
        "frontmatter": dict(skill.document.frontmatter),
        "resources": "dynamic" if any(f.is_dynamic for f in files) else list[JsonValue](resources),
    }
    return replace(skill, id=skill_id, root_uri=root_uri, entry=entry)


def _report(folder: SkillFolder, skill: Skill | None) -> SkillReport:
    diagnostics = skill.diagnostics if skill else folder.diagnostics
    return SkillReport(
        path=folder.path,
        name=skill.name if skill else folder.document.name,
        verdict="rejected" if skill is None else verdict_of(diagnostics),
        listed=skill is not None and skill.is_listed,
        diagnostics=diagnostics,
    )
